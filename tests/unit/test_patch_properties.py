"""Laws of the patch core that hold for every file and every change, and the quick TOML reader beside `tomllib`."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from sglang_ext.patchset import plain_toml
from sglang_ext.patchset.diff import (
    Patch,
    PatchError,
    apply,
    apply_with_offsets,
    make,
    parse,
    render,
    reverse,
    state,
)
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock
from sglang_ext.patchset.series import PatchSet
from tests.unit.cases import given_cases

TARGET = "sglang/f.py"
# Form feeds, lone CRs, what looks like a diff, and characters that other splitters take for line ends.
LINES = st.sampled_from([*"abcdefgh", "", "    pass", "-- x", "++ x", "@@ -1 +1 @@", "\x0c", "é\u2028", "\\ odd", " "])
FILES = st.tuples(st.lists(LINES, min_size=1, max_size=25), st.sampled_from(["\n", "\n", ""])).map(
    lambda parts: ("\n".join(parts[0]) + parts[1]).encode()
)


def made(old: bytes, new: bytes, context: int = 3) -> Patch:
    """The patch from one to the other; a pair that gives none is left out."""
    assume(old != new)
    try:
        return make(TARGET, old, new, "p.patch", "Subject: x\n\n", context)
    except PatchError as error:
        assume("without any line" not in str(error))
        raise


@given_cases(300, FILES, FILES, st.integers(1, 4))
def test_there_and_back(old: bytes, new: bytes, context: int) -> None:
    patch = made(old, new, context)
    assert apply(patch, old) == new
    assert apply(reverse(patch), new) == old
    assert reverse(reverse(patch)) == patch
    assert parse(render(patch), "p.patch") == patch


@given_cases(300, FILES, FILES, FILES)
def test_three_states(old: bytes, new: bytes, other: bytes) -> None:
    """Not applied, applied, or neither; and `apply` does what the state says."""
    patch = made(old, new)
    assert state(patch, old) in ("not_applied", "neither")
    assert state(patch, new) in ("applied", "neither")
    for source in (old, new, other):
        found = state(patch, source)
        assert {"applied": "not_applied", "not_applied": "applied"}.get(found, found) == state(reverse(patch), source)
        if found == "not_applied":
            assert apply(reverse(patch), apply(patch, source)) == source
        if found == "applied":
            with pytest.raises(PatchError):
                apply(patch, source)


@given_cases(200, FILES, FILES, st.integers(1, 30), st.integers(0, 3))
def test_what_stands_around_moves_a_patch_and_changes_nothing_else(
    old: bytes, new: bytes, above: int, below: int
) -> None:
    assume(old.endswith(b"\n") and new.endswith(b"\n"))
    before = b"".join(b"above %d\n" % number for number in range(above))
    after = b"".join(b"below %d\n" % number for number in range(below))
    patch = made(before + old + b"end\n" * 4, before + new + b"end\n" * 4)
    more = b"more\n" * above
    try:
        result, offsets = apply_with_offsets(patch, more + before + old + b"end\n" * 4 + after)
    except PatchError as error:
        assert any(part in str(error) for part in ("anchor occurs", "must end", "must begin", "already applied"))
        return
    assert result == more + before + new + b"end\n" * 4 + after
    assert set(offsets) == {above}


@given_cases(150, FILES, FILES, FILES, FILES)
def test_a_set_is_applied_whole_or_not_at_all(old: bytes, new: bytes, other: bytes, wrong: bytes) -> None:
    first = made(old, new)
    second = Patch("q.patch", "", "sglang/g.py", made(old, other).hunks)
    patch_set = PatchSet([first, second], "0" * 64)
    files = {TARGET: old, "sglang/g.py": wrong}
    try:
        expected = {TARGET: apply(first, old), "sglang/g.py": apply(second, wrong)}
    except PatchError:
        with pytest.raises(PatchError):
            patch_set.apply_all(files.__getitem__)
    else:
        assert patch_set.apply_all(files.__getitem__) == expected


# --- the lock's reader

HASH = "ab" * 32
LOCK = dump_lock(
    Lock(
        Release(
            version,
            HASH,
            {f"sglang-{version}-py3-none-any.whl": HASH},
            {"sglang/a.py": LockedFile(HASH, HASH)},
            ("a/0.5.9.patch", "b.patch"),
        )
        for version in ("0.5.9", "0.5.10.post1")
    )
)
PIECES = st.sampled_from(
    [*'"[]=.,#\\ \t\r\n', "'", "\n[x]\n", '[release."0.5.9"]\n', "a = 1\n", "a = 01\n", "a = []\n", 'a = ["b", "c"]\n',
     'a = ["b, c"]\n', "a.b = 1\n", '"é" = "é"\n', "a = 1 # b\n", "schema = 1\n", "\ufeff", "\x00", "a = -1\n"]
)  # fmt: skip


@given_cases(600, st.lists(st.tuples(st.integers(0, len(LOCK)), st.integers(0, 3), PIECES), max_size=3))
def test_the_quick_reader_never_differs_from_tomllib(edits: list[tuple[int, int, str]]) -> None:
    text = LOCK
    for at, cut, piece in edits:
        text = text[:at] + piece + text[at + cut :]
    found = plain_toml.read(text)
    if found is not None:
        assert found == tomllib.loads(text)


@given_cases(600, st.lists(PIECES | st.sampled_from(["a", "b"]), max_size=12).map("".join))
def test_the_quick_reader_on_scraps(text: str) -> None:
    found = plain_toml.read(text)
    if found is not None:
        assert found == tomllib.loads(text)


def test_the_quick_reader_reads_what_we_write() -> None:
    assert plain_toml.read(LOCK) == tomllib.loads(LOCK)
    assert plain_toml.read(LOCK + "\n[[x]]\n") is None
