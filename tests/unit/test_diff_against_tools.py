"""Random patches through ours, `git apply` and `patch -F0`: where we apply, they must not disagree.

The tools take all cases in one call, each on a file of its own, and leave a `.rej` beside what they refuse. More
cases: SGLANG_EXT_DIFF_CASES=20000 pytest tests/unit/test_diff_against_tools.py
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from sglang_ext.patchset.diff import PatchError, apply, make, parse, render

if TYPE_CHECKING:
    from pathlib import Path

CASES = int(os.environ.get("SGLANG_EXT_DIFF_CASES", "2400"))
BATCH = 400  # one of them in `make unit`, all of them end to end
TOOLS = {
    "git": ("git", "apply", "--reject", "p.patch"),
    "patch": ("patch", "-F0", "-s", "-N", "-p1", "-i", "p.patch"),
}

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("git", "patch", "diff"))), reason="needs the tools git, patch and diff"
)


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    # Inside a repository `git apply` can skip every file and still exit 0, so it must find none.
    env = {"PATH": os.environ["PATH"], "GIT_DIR": str(folder / "nowhere"), "LC_ALL": "C"}
    return subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _diffs(folder: Path, pairs: dict[str, tuple[bytes, bytes]]) -> dict[str, bytes]:
    """What GNU diff writes for each pair, under the names that patches here have."""
    for at, side in enumerate("ab"):
        _write(folder / side, {name: pair[at] for name, pair in pairs.items()})
    text = _run(folder, "diff", "-r", "-U3", "a", "b").stdout
    parts = text.split(b"diff -r -U3 a/")[1:]
    return {part.split(b" ", 1)[0].decode(): part.split(b"\n", 1)[1] for part in parts}


def _by_tool(folder: Path, sources: dict[str, bytes], patches: dict[str, bytes], tool: str) -> dict[str, bytes | None]:
    """Each file after the tool; None where it refused."""
    _write(folder, sources)
    (folder / "p.patch").write_bytes(b"".join(patches[name] for name in sources))
    _run(folder, *TOOLS[tool])
    return {
        name: None if (folder / f"{name}.rej").exists() else (folder / name).read_bytes() for name in sources
    }  # fmt: skip


def _ours(text: bytes, source: bytes) -> tuple[bytes | None, str]:
    try:
        return apply(parse(text.decode(), "p.patch"), source), ""
    except PatchError as error:
        return None, str(error)


def _edit(rng: random.Random, lines: list[str]) -> list[str]:
    lines = list(lines)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(lines))
        lines[at : at + rng.randint(0, 2)] = [f"new {rng.randint(0, 9)}" for _ in range(rng.randint(0, 2))]
    return lines


def _join(lines: list[str], rng: random.Random) -> bytes:
    return ("\n".join(lines) + rng.choice(("\n", "\n", "\n", ""))).encode()


def _words(rng: random.Random) -> list[str]:
    """Lines of a file: from all different to all alike, so that anchors are found, moved and doubled."""
    return [f"line {rng.randint(0, rng.choice((2, 6, 40, 500)))}" for _ in range(rng.randint(4, 40))]


def _source(rng: random.Random, words: list[str], old: bytes, new: bytes) -> bytes:
    """What the patch is tried on: its own file, that file moved or edited, or one that has it already."""
    kind = rng.random()
    if kind < 0.2:
        return old
    if kind < 0.35:
        return b"".join(f"above {n}\n".encode() for n in range(rng.randint(1, 9))) + old
    if kind < 0.45:
        return new
    return _join(_edit(rng, words), rng)


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.e2e) for n in range(1, -(-CASES // BATCH)))])
def test_against_git_and_gnu_patch(tmp_path: Path, batch: int) -> None:
    rng = random.Random(20261129 + batch)
    pairs: dict[str, tuple[bytes, bytes]] = {}
    sources: dict[str, bytes] = {}
    for number in range(min(BATCH, CASES - batch * BATCH)):
        name = f"sglang/f{number:05d}.py"
        words = _words(rng)
        old = _join(words, rng)
        new = _join(_edit(rng, words), rng)
        if old.strip() and new.strip() and old != new:
            pairs[name] = old, new
            sources[name] = _source(rng, words, old, new)
    patches = _diffs(tmp_path, pairs)
    # `diff` may write a hunk with nothing on one side; the parser refuses it, and says why.
    read = {}
    for name, text in patches.items():
        outcome, why = _ours(text, pairs[name][0])
        if outcome is None:
            assert "without any line" in why or "no line of context" in why, why
            continue
        assert outcome == pairs[name][1]  # what GNU diff writes, we read
        read[name] = text
    sources = {name: source for name, source in sources.items() if name in read}
    counts = {"applied": 0, "refused": 0, "git": 0, "patch": 0}
    theirs = {tool: _by_tool(tmp_path / tool, sources, read, tool) for tool in TOOLS}
    for name, source in sources.items():
        ours, why = _ours(read[name], source)
        counts["refused" if ours is None else "applied"] += 1
        for tool in TOOLS:
            found = theirs[tool][name]
            told = f"{tool} disagrees on\n{read[name].decode()}\n--- source\n{source.decode()}\n--- ours: {why}"
            if found is None:
                continue
            counts[tool] += 1
            if ours is not None:
                assert ours == found, told
            elif tool != "git" or b"\\ No newline" not in read[name]:
                # Where we see the anchor nowhere, nobody may find it; where we see it twice, we alone refuse. (git takes
                # a last line without a newline for any line that begins so.)
                assert "fits nowhere" not in why, told
    assert sum(counts[kind] for kind in ("applied", "refused")) > 0.8 * len(pairs)
    assert min(counts.values()) > len(sources) // 10, counts


def test_tools_accept_what_we_write(tmp_path: Path) -> None:
    rng = random.Random(7)
    olds: dict[str, bytes] = {}
    news: dict[str, bytes] = {}
    patches: dict[str, bytes] = {}
    for number in range(300):
        name = f"sglang/f{number:03d}.py"
        words = [f"line {rng.randint(0, 500)}" for _ in range(rng.randint(8, 40))]
        old, new = _join(words, rng), _join(_edit(rng, words), rng)
        if old != new:
            olds[name], news[name] = old, new
            patches[name] = render(make(name, old, new, "p.patch")).encode()
    assert len(olds) > 250
    for tool in TOOLS:
        assert _by_tool(tmp_path / tool, olds, patches, tool) == news, tool
