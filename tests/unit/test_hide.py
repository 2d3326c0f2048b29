"""What holds a password is seen; what only looks like it is left alone, as the launcher refuses what is seen."""

from __future__ import annotations

import pytest

from sglang_ext.hide import HIDDEN, holds_credentials, presentable


@pytest.mark.parametrize(
    "text",
    [
        "http://user:pw@host:3128",
        "https://token@host/x",
        "redis://user:pa/ss@host",
        "redis://user:pa?ss@host",
        "http://user:pa ss@host:3128",
        "a=1,proxy=http://user:pw@host",
        "http://plain/ https://user:pw@host",
        "user:pw@host.example.org",
        "user:pw@10.0.0.1",
        "user:p/w@localhost",
        "user:pw@host:5432",
    ],
)
def test_credentials(text: str) -> None:
    assert holds_credentials(text) and presentable(text) == HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "LL",
        "http://host:8000/models/kimi@main",
        "git+https://github.com:443/a/b@main",
        "docker://registry:5000/sglang@sha256:ab",
        "docker://registry/sglang@sha256:ab",
        "https://host/path@v1",
        "hf:model@rev",
        "sglang:v0.5@sha256:ab",
        "lmsysorg/sglang:v0.5@sha256:ab",
        '{"a":"x@y"}',
        '{"note": "v1@main.example"}',
        "KMP_HW_SUBSET=4c:eff0,2c@4:eff1",
        "4c:eff0,2c@4:eff1",
        "rack1:node2@dc",
        "expandable_segments:True",
        "[fe80::1%eth0]:1234",
        "^=mlx5_0:1",
        "/data/a@b:c",
        "host:/mnt/x@y",
        "git@github.com:org/repo",
        "kimi-k2:int4@prod",
    ],
)
def test_no_credentials(text: str) -> None:
    assert not holds_credentials(text) and presentable(text) == text
