"""RECORD, METADATA and the version file of a baked wheel, each rewritten as its own format has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from sglang_ext.patchset import wheel_texts
from sglang_ext.patchset.baked import Renamer
from sglang_ext.patchset.wheel_texts import TextError
from tests.unit.small_wheel import record_of

NAMES = st.text(st.sampled_from([*"ab/.,\"' +=é\u2028\x0c", "\x85"]), min_size=1, max_size=12)


@given(
    st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]), st.data()
)
@settings(deadline=None)
def test_record_is_rewritten_as_csv_would(files: dict[str, bytes], end: str, data: st.DataObject) -> None:
    rename = Renamer("a", 'new, "a"/')
    contents = data.draw(st.dictionaries(st.sampled_from(sorted(files)), st.binary(max_size=9)))
    now = {rename(name): contents.get(name, old) for name, old in files.items()}
    assert wheel_texts.record(record_of(files, "RECORD", end), contents, rename) == record_of(now, "RECORD", end)


def test_record_must_know_the_file() -> None:
    with pytest.raises(TextError, match="does not list c"):
        wheel_texts.record(b"a,sha256=x,1\nRECORD,,\n", {"c": b""}, lambda name: name)
    with pytest.raises(TextError, match="quotes do not close"):
        wheel_texts.record(b'"a\nb",sha256=x,1\n', {}, lambda name: name)


@pytest.mark.parametrize("text", [b"Name: sglang\nVersion: 1\n", b"Name: sglang\r\nVersion: 1\r\n\r\n\r\nbody\r\n"])
def test_metadata_without_requirements_or_description(text: bytes) -> None:
    new = wheel_texts.metadata(text, "1", "1+ext.1", "sglang-ext==2", "> note\n")
    end = "\r\n" if b"\r" in text else "\n"
    body = f"{end}{end}body{end}" if b"body" in text else ""
    assert (
        new.decode()
        == end.join(("Name: sglang", "Version: 1+ext.1", "Requires-Dist: sglang-ext==2", "", "> note", "")) + body
    )


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12.post1"])
def test_version_file_of_a_release(release: str) -> None:
    numbers = ", ".join(part if part.isdigit() else repr(part) for part in release.split("."))
    text = f"__version__ = version = '{release}'\n__version_tuple__ = version_tuple = ({numbers})\n".encode()
    scope: dict[str, Any] = {}
    exec(wheel_texts.version_file(text, release, "ext.1"), scope)
    parsed = Version(scope["__version__"])
    assert (parsed.public, parsed.local) == (release, "ext.1")
    assert ".".join(map(str, scope["__version_tuple__"])) == f"{release}.ext.1"
