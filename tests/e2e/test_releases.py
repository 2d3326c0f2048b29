"""Older releases run too: the oldest and one in between, each from its own wheel; the newest is what all other tests here run.

`tools/live_releases.py` runs them all, each beside its own stock server; here they are held to the newest one's answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_ext.delivery.seams.engine import CARRIED
from tests.rig import releases

from .conftest import PROMPTS, ROOT, TOKENS, StockFacts, by_witness

OLDEST = releases.supported()[0]


@pytest.mark.parametrize("version", [OLDEST, "0.5.15"])
def test_an_older_release_serves_patched(
    version: str, stock: StockFacts, models: dict[str, Path], logs: Callable[[str], Path]
) -> None:
    assert (releases.PROMPTS, releases.TOKENS) == (PROMPTS, TOKENS)
    release = releases.prepare(version, ROOT / ".rig" / "releases")
    with release.server(logs(version), models["deepseek"], patched=True) as server:
        server.wait_ready()
        report = release.verify(server)
        assert report["verdict"] == "PASS", report
        for witness in ("exec", "live", "attested"):
            wanted = {name: ("value", value) for name, value in releases.CONTRACT.items()}
            assert by_witness(report, witness) == [wanted] * 2, witness
        assert {w["hook"]["mode"] for w in report["workers"] if w["counts"]} == {"overlay"}
        assert "CUDA_DEVICE_MAX_CONNECTIONS 32 -> 8 (by sglang's _set_envs_and_config); restored to 32" in server.text()
        assert server.tokens() == stock.answers["tokens"]
        published = server.get("/server_info")
        assert published["version"] == version
        # A worker of these publishes its copy of the arguments, key by key: the run directory rode along in it.
        assert CARRIED not in json.dumps(published)
