"""parse, apply, reverse, state: folders of real cases, and laws that hold for every diff.

A case is `patch_cases/<name>/`: `case.patch`, `before.txt` (absent where the patch cannot be read), then
either `after.txt` (and `offsets.txt`) or `error.txt`, a part of the sentence that is expected; `state.txt`
where the state is not what these say.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ext.patchset.diff import (
    Hunk,
    Patch,
    PatchError,
    _fits,
    _places,
    apply,
    apply_with_offsets,
    make,
    parse,
    render,
    reverse,
    state,
)

CASES = sorted(path.parent for path in (Path(__file__).parent / "patch_cases").glob("*/case.patch"))
TARGET = "sglang/srt/entrypoints/launch.py"
SMALL = f"--- a/{TARGET}\n+++ b/{TARGET}\n@@ -1,3 +1,3 @@ def f():\n a\n-b\n+B\n c\n"


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_case(case: Path) -> None:
    text, before = _bytes(case / "case.patch").decode(), _bytes(case / "before.txt")
    if (case / "error.txt").exists():
        with pytest.raises(PatchError) as caught:
            apply(parse(text, "case.patch"), before)
        assert _bytes(case / "error.txt").decode().strip() in str(caught.value)
        assert "case.patch" in str(caught.value)
        assert str(caught.value).endswith(".")
        return
    patch = parse(text, "case.patch")
    after = _bytes(case / "after.txt")
    offsets = tuple(map(int, _bytes(case / "offsets.txt").split())) or (0,) * len(patch.hunks)
    assert apply_with_offsets(patch, before) == (after, offsets)
    assert apply(reverse(patch), after) == before
    assert (state(patch, before), state(patch, after)) == ("not_applied", "applied")


@pytest.mark.parametrize("case", [c for c in CASES if (c / "error.txt").exists()], ids=lambda path: path.name)
def test_state_of_what_cannot_be_applied(case: Path) -> None:
    try:
        patch = parse(_bytes(case / "case.patch").decode(), "case.patch")
    except PatchError:
        return
    expected = _bytes(case / "state.txt").decode().strip() or "neither"
    assert state(patch, _bytes(case / "before.txt")) == expected


def test_there_are_cases_of_both_kinds() -> None:
    assert len([case for case in CASES if (case / "after.txt").exists()]) > 8
    assert len([case for case in CASES if (case / "error.txt").exists()]) > 25


def test_what_a_patch_holds() -> None:
    patch = parse("Subject: x\n folded\n\n" + SMALL, "a.patch")
    assert (patch.origin, patch.header, patch.target) == ("a.patch", "Subject: x\n folded\n\n", TARGET)
    (hunk,) = patch.hunks
    assert (hunk.old_start, hunk.new_start, hunk.section) == (1, 1, " def f():")
    assert (hunk.old, hunk.new) == ([b"a\n", b"b\n", b"c\n"], [b"a\n", b"B\n", b"c\n"])
    assert hunk.lines == (b" a\n", b"-b\n", b"+B\n", b" c\n")


def test_values_are_immutable_and_compared_by_content() -> None:
    patch = parse(SMALL, "a.patch")
    assert patch == parse(SMALL, "a.patch") != parse(SMALL, "b.patch")
    assert len({patch, parse(SMALL, "a.patch")}) == 1
    with pytest.raises(AttributeError):
        patch.target = "x"


def test_render_is_the_canonical_text() -> None:
    text = "Subject: x\n\n" + SMALL
    assert render(parse(text, "a.patch")) == text
    dated = text.replace(f"b/{TARGET}\n", f"b/{TARGET}\t2026-01-01 00:00:00.0 +0000\n")
    assert render(parse(dated, "a.patch")) == text


def test_message_names_patch_file_hunk_expected_and_found() -> None:
    with pytest.raises(PatchError) as caught:
        apply(parse(SMALL, "a.patch"), b"a\nX\nc\n")
    for part in ("a.patch", TARGET, "hunk 1 of 1", "line 2", "expected 'b'", "found 'X'", "rebase_patches"):
        assert part in str(caught.value)


def test_second_hunk_is_only_sought_below_the_first() -> None:
    text = SMALL + "@@ -7,3 +7,3 @@\n g\n-h\n+H\n i\n"
    with pytest.raises(PatchError, match="occur only above the place of the hunk before it"):
        apply(parse(text, "a.patch"), b"g\nh\ni\na\nb\nc\n")


def test_state_with_a_tie_is_neither() -> None:
    patch = make(TARGET, b"a\n" * 8, b"a\n" * 9, "a.patch")
    grown = parse(f"--- a/{TARGET}\n+++ b/{TARGET}\n@@ -2,2 +2,3 @@\n a\n+a\n a\n", "a.patch")
    assert state(grown, b"a\n" * 8) == "neither"
    assert state(patch, b"b\n") == "neither"


def test_make_refuses_an_empty_patch() -> None:
    with pytest.raises(PatchError, match="would be empty"):
        make(TARGET, b"a\n", b"a\n", "a.patch")


def _random_pair(rng: random.Random) -> tuple[bytes, bytes]:
    alphabet = [f"line {n}" for n in range(rng.choice((3, 12, 1000)))] + [
        "",
        "-- x",
        "++ x",
        "\x0c",
        "é\u2028",
    ]
    old = [rng.choice(alphabet) for _ in range(rng.randint(1, 40))]
    new = list(old)
    for _ in range(rng.randint(1, 5)):
        at = rng.randint(0, len(new))
        new[at : at + rng.randint(0, 3)] = [rng.choice(alphabet) for _ in range(rng.randint(0, 3))]
    ends = [rng.choice(("\n", "\n", "\n", "")) for _ in range(2)]
    return ("\n".join(old) + ends[0]).encode(), ("\n".join(new) + ends[1]).encode()


@pytest.mark.parametrize("seed", range(8))
def test_round_trip_laws(seed: int) -> None:
    rng = random.Random(seed)
    tried = 0
    for _ in range(150):
        old, new = _random_pair(rng)
        try:
            patch: Patch = make(TARGET, old, new, "random.patch", "Subject: x\n\n", context=rng.randint(1, 4))
        except PatchError as error:
            assert old == new or "without any line" in str(error)
            continue
        tried += 1
        assert apply(patch, old) == new
        assert parse(render(patch), "random.patch") == patch
        assert reverse(reverse(patch)) == patch
        assert apply(reverse(patch), new) == old
        # Where lines repeat, both sides can show both; then the answer is "neither", never the wrong one.
        assert state(patch, old) in ("not_applied", "neither")
        assert state(patch, new) in ("applied", "neither")
    assert tried > 100


def test_the_room_is_light_to_import() -> None:
    """The import hook loads it in every worker process; the heavy modules wait until they are used."""
    root = Path(__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from sglang_ext.patchset import diff, header, lock, plain_toml, postcondition, series, series_lint\n"
        "heavy = {'re', 'typing', 'dataclasses', 'pathlib', 'hashlib', 'tomllib', 'ast', 'difflib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_search_finds_every_place_a_plain_one_finds() -> None:
    """The places of a hunk are looked for by its longest line; few different lines make many twins and overlaps."""
    drawn = random.Random(7)
    words = [b"\n", b"a\n", b"bb\n", b"bb\n", b"ccc\n", b"end"]
    for _ in range(3000):
        lines = [drawn.choice(words[:5]) for _ in range(drawn.randrange(12))] + [words[5]] * drawn.randrange(2)
        tagged = [
            drawn.choice((b" ", b" ", b"-", b"+")) + drawn.choice(words[:5]) for _ in range(drawn.randrange(1, 5))
        ]
        hunk = Hunk(1, 1, "", tagged)
        floor = drawn.randrange(len(lines) + 1)
        plain = [at for at in range(floor, len(lines) - len(hunk.old) + 1) if _fits(hunk, hunk.old, lines, at)]
        assert _places(hunk, hunk.old, lines, floor) == plain, (lines, tagged, floor)
