"""Random patches through ours, `git apply` and `patch -F0`: where we apply, they must not disagree."""

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

TARGET = "sglang/f.py"
ROUNDS = 300

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("git", "patch", "diff"))), reason="needs the tools git, patch and diff"
)


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    # Inside a repository `git apply` can skip every file and still exit 0, so it must find none.
    env = {"PATH": os.environ["PATH"], "GIT_DIR": str(folder / "nowhere"), "LC_ALL": "C"}
    return subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _by_tool(folder: Path, source: bytes, *command: str) -> bytes | None:
    target = folder / TARGET
    target.write_bytes(source)
    done = _run(folder, *command)
    return target.read_bytes() if done.returncode == 0 else None


def _edit(rng: random.Random, lines: list[str]) -> list[str]:
    lines = list(lines)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(lines))
        lines[at : at + rng.randint(0, 2)] = [f"new {rng.randint(0, 9)}" for _ in range(rng.randint(0, 2))]
    return lines


def _join(lines: list[str], rng: random.Random) -> bytes:
    return ("\n".join(lines) + rng.choice(("\n", "\n", "\n", ""))).encode()


def test_against_git_and_gnu_patch(tmp_path: Path) -> None:
    rng = random.Random(20261129)
    (tmp_path / "sglang").mkdir()
    counts = {"applied": 0, "refused": 0, "git": 0, "patch": 0}
    for _ in range(ROUNDS):
        words = [f"line {rng.randint(0, rng.choice((6, 500)))}" for _ in range(rng.randint(8, 40))]
        old, new = _join(words, rng), _join(_edit(rng, words), rng)
        (tmp_path / "old").write_bytes(old)
        (tmp_path / "new").write_bytes(new)
        labels = ("--label", f"a/{TARGET}", "--label", f"b/{TARGET}")
        text = _run(tmp_path, "diff", "-U3", *labels, "old", "new").stdout
        (tmp_path / "p.patch").write_bytes(text)
        if not text:
            continue
        patch = parse(text.decode(), "p.patch")
        assert apply(patch, old) == new  # what GNU diff writes, we read
        source = old if rng.random() < 0.3 else _join(_edit(rng, words), rng)
        try:
            ours: bytes | None = apply(patch, source)
        except PatchError:
            ours = None
        gits = _by_tool(tmp_path, source, "git", "apply", "p.patch")
        gnus = _by_tool(tmp_path, source, "patch", "-F0", "-s", "-N", "-p1", "-i", "p.patch")
        if ours is None:
            counts["refused"] += 1
            continue
        counts["applied"] += 1
        for name, theirs in (("git", gits), ("patch", gnus)):
            if theirs is not None:
                counts[name] += 1
                assert ours == theirs, f"{name} disagrees on\n{text.decode()}\n--- source\n{source.decode()}"
    assert min(counts.values()) > 60, counts


def test_tools_accept_what_we_write(tmp_path: Path) -> None:
    rng = random.Random(7)
    (tmp_path / "sglang").mkdir()
    accepted = 0
    for _ in range(60):
        words = [f"line {rng.randint(0, 500)}" for _ in range(rng.randint(8, 40))]
        old, new = _join(words, rng), _join(_edit(rng, words), rng)
        if old == new:
            continue
        (tmp_path / "p.patch").write_text(render(make(TARGET, old, new, "p.patch", "Subject: x\n\n")), "utf-8")
        assert _by_tool(tmp_path, old, "git", "apply", "p.patch") == new
        assert _by_tool(tmp_path, old, "patch", "-F0", "-s", "-p1", "-i", "p.patch") == new
        accepted += 1
    assert accepted > 40
