"""The header block: what every patch must say, one sentence per fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_ext.patchset.diff import Patch, parse
from sglang_ext.patchset.header import HeaderError, expected_seams, lint_header, read_header

DIFF = "--- a/sglang/f.py\n+++ b/sglang/f.py\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n"
GOOD = {
    "Subject": "Do a thing",
    "Reason": "local",
    "Why-Not-A-Plugin": "Its errors\n are swallowed",
    "Forwarded": "no: ours alone",
    "Retire-When": "never: it is ours",
    "Probe": "seam f keeps,\n seam C.__init__ built",
}


def _patch(text: str) -> Patch:
    return parse(text + DIFF, "a.patch")


def _with(**changes: str | None) -> Patch:
    """A good header with some keys changed; None takes one out, `_` stands for `-`."""
    fields = GOOD | {key.replace("_", "-"): value for key, value in changes.items()}
    return _patch("".join(f"{key}: {value}\n" for key, value in fields.items() if value is not None) + "\n")


def test_good_header() -> None:
    patch = _with()
    assert lint_header(patch) == []
    fields = read_header(patch)
    assert list(fields) == list(GOOD)
    assert fields["Why-Not-A-Plugin"] == "Its errors are swallowed"
    assert expected_seams(patch) == (("f", "keeps"), ("C.__init__", "built"))


@pytest.mark.parametrize("key", GOOD)
def test_missing_key(key: str) -> None:
    (fault,) = lint_header(_with(**{key: None}))
    assert fault == f"Patch a.patch: the header has no `{key}` line; add `{key}: ...`."


@pytest.mark.parametrize("key", GOOD)
def test_empty_key(key: str) -> None:
    (fault,) = lint_header(_with(**{key: ""}))
    assert f"the key `{key}` is empty" in fault


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"Reason": "because"}, "must be one of upstream-pending, upstream-rejected, local"),
        ({"Forwarded": "no"}, "must be one URL or `no: <why>`"),
        ({"Forwarded": "no: "}, "must be one URL or `no: <why>`"),
        ({"Forwarded": "soon"}, "must be one URL or `no: <why>`"),
        ({"Forwarded": "https://a.example and more"}, "must be one URL or `no: <why>`"),
        ({"Reason": "upstream-pending"}, "Forwarded must be the URL"),
        ({"Reason": "upstream-rejected"}, "Forwarded must be the URL"),
        ({"Author": "me"}, "line 9: the key `Author` is unknown"),
        ({"Probe": "seam f"}, "Probe has `seam f`"),
        ({"Probe": "seam f keeps,"}, "Probe has ``"),
        ({"Probe": "grep f keeps"}, "Probe has `grep f keeps`"),
        ({"Probe": "seam f. keeps"}, "Probe has `seam f. keeps`"),
        ({"Probe": "seam f a.b"}, "Probe has `seam f a.b`"),
        ({"Probe": "seam f keeps, seam f keeps"}, "twice"),
    ],
)
def test_bad_value(changes: dict[str, str], part: str) -> None:
    (fault,) = lint_header(_with(**changes))
    assert part in fault
    assert "a.patch" in fault


def test_url_fits_every_reason() -> None:
    for reason in ("upstream-pending", "upstream-rejected", "local"):
        assert lint_header(_with(Reason=reason, Forwarded="https://example.org/pull/1")) == []


def test_nested_functions_have_python_qualnames() -> None:
    assert expected_seams(_with(Probe="seam f.<locals>.g keeps")) == (("f.<locals>.g", "keeps"),)


def test_duplicate_key() -> None:
    text = "".join(f"{key}: {value}\n" for key, value in GOOD.items())
    (fault,) = lint_header(_patch(text + "Reason: local\n"))
    assert "line 9: the key `Reason` is there twice" in fault


def test_lines_that_are_no_fields() -> None:
    text = "".join(f"{key}: {value}\n" for key, value in GOOD.items())
    assert "`free text: here`" in lint_header(_patch(text + "free text: here\n"))[0]
    assert "is not `Key: value`" in lint_header(_patch(" folded first\n" + text))[0]


def test_no_header_at_all() -> None:
    assert len(lint_header(_patch(""))) == len(GOOD)
    with pytest.raises(HeaderError, match="no `Subject` line"):
        read_header(_patch(""))
    with pytest.raises(HeaderError, match="no `Probe` line"):
        expected_seams(_patch(""))


def test_our_own_patches_are_well_labelled() -> None:
    root = Path(__file__).parents[2] / "patches"
    files = sorted(path for path in root.rglob("*.patch") if "local" not in path.parts)
    for path in files:
        assert lint_header(parse(path.read_bytes().decode(), path.name)) == []
