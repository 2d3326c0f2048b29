"""One fault, one row: what is done, what must come out, and what was said. The run itself writes docs/fault-matrix.md."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sglang_ext.reasons import TABLE
from tests.e2e.conftest import ROOT, Done

PAGE = ROOT / "docs" / "fault-matrix.md"
INTRO = """\
# The fault matrix

Each row is one fault on real processes, one test in `tests/e2e/faults/`, and what the program said when it was run: this page
is written by `SGLANG_EXT_WRITE_MATRIX=1 python -m pytest tests/e2e/faults`, and a test compares it with every run. Process ids,
paths and hashes are replaced by PID, DIR and HASH, and by WHY what a host says of its own restrictions. The verdict is
verify-env's; *refused* is a command that did nothing, *stopped* a launch that ended what it had started, *noted* one that said
so and went on (here as far as a port that is taken), *stock* and *patched* what an import found, *undisturbed* a program that
has nothing to do with us. In the doctor's rows the verdict is a check's state, and the code its name ([doctor.md](doctor.md)).
A negative exit status is the signal a process died of. Codes are explained in [reasons.md](reasons.md), and where the faults
come from in [public-cases.md](public-cases.md).
"""


class Row(NamedTuple):
    """A fault in words, and what must come of it. ``says``: what the sentence has to name."""

    fault: str
    verdict: str
    code: str | None
    exit: int
    says: tuple[str, ...] = ()


class Seen(NamedTuple):
    """What a row came to: the command that was judged and the sentence it printed."""

    group: str
    row: Row
    sentence: str


def fault(
    fault: str, verdict: str, code: str | None, status: int, says: str | tuple[str, ...], act: Callable[..., Any]
) -> Any:
    """A row of the matrix as a pytest parameter: its function is ``act``, its id the function's name."""
    row = Row(fault, verdict, code, status, (says,) if isinstance(says, str) else says)
    return pytest.param(row, act, id=act.__name__.removeprefix("_"))


class Matrix:
    """Collects what came out; names of places and processes are made the same for every run."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        self.names: dict[str, str] = {}  # a text of this run -> what stands for it

    def add(self, request: pytest.FixtureRequest, row: Row, sentence: str, names: dict[str, str] | None = None) -> None:
        """Note a row whose every claim held."""
        for word in row.says:
            assert word in sentence, f"the sentence does not name {word!r}: {sentence}"
        group = request.module.__doc__.splitlines()[0]
        self.seen[request.node.nodeid] = Seen(group, row, self.plain(sentence, names or {}))

    def plain(self, sentence: str, names: dict[str, str]) -> str:
        for text, name in sorted((self.names | names).items(), key=lambda pair: -len(pair[0])):
            sentence = sentence.replace(text, name)
        for pattern, name in (
            (rf"\buid {os.geteuid()}\b", "uid USER"),
            (r"(?:DIR)?/\S*?/site-packages\b", "SITE"),
            (r"/tmp/[\w./-]*?(?=[\s;:,)/]|$)(?:/[\w.-]+)*", "DIR"),
            (r"\b[0-9a-f]{60,}\b|\b[0-9a-f]{24}\b|\b[0-9a-f]{12}\b", "HASH"),
            (r"\b(pid|process|pids|orphans) \[?\d+(, \d+)*\]?", r"\1 PID"),
            (r"workers/\d+\.", "workers/PID."),
            (r"\bstart time \d+", "start time TICKS"),
            (r"\bport \d+", "port PORT"),
            (r"\b\d{8}-\d{6}-[0-9a-f]{6}-[0-9a-f]{8}\b|\brun-[0-9a-f]{8}(-[0-9a-f]{8})?\b", "RUN"),
            # Which of its hindrances stands in the way is the host's: Yama, a security module, a mask.
            (r"(?<=not permitted: )(nothing /proc says|kernel\.yama\.).*?(?=\)\. Fix: |$)", "WHY"),
        ):
            sentence = re.sub(pattern, name, sentence)
        return sentence

    def render(self) -> str:
        """The page: a table for each theme."""
        parts = [INTRO, f"\n{len(self.seen)} rows.\n"]
        groups = dict.fromkeys(seen.group for seen in self.seen.values())
        for group in groups:
            parts.append(
                f"\n## {group.rstrip('.')}\n\n| fault | verdict | code | exit | what it says |\n|---|---|---|---|---|\n"
            )
            parts += [line(seen) for seen in self.seen.values() if seen.group == group]
        return "".join(parts)


def line(seen: Seen) -> str:
    """One row of the page."""
    row = seen.row
    cells = (row.fault, row.verdict, f"`{row.code}`" if row.code else "-", str(row.exit), seen.sentence)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def judged(row: Row, done: Done, report: dict[str, Any] | None, also: Iterable[str] = ()) -> str:
    """verify-env came to ``row``: exit, verdict, the one code, and a sentence with its fix. Returns the sentence.

    ``also``: codes that may stand beside the row's own.
    """
    text = done.out + done.err
    assert done.status == row.exit, text
    assert "Traceback" not in text, text
    if report is None:
        return refused(row, done)
    assert report["verdict"] == row.verdict, text
    grave = {p["code"] for p in report["problems"] if p["severity"] != "note"}
    assert grave <= {row.code, *also}, text
    if row.code is None:
        assert not grave
        return done.out.splitlines()[-1]
    problem = next((p for p in report["problems"] if p["code"] == row.code), None)
    assert problem is not None, text
    assert f"{problem['severity']} {row.code}: {problem['message']}" in text
    if problem["severity"] == "note":
        return str(problem["message"])
    assert f"    fix: {problem['fix']}" in text
    return f"{problem['message']}. Fix: {problem['fix']}"


def refused(row: Row, done: Done) -> str:
    """One line on stderr says it, code first, and nothing is left of a traceback. Returns the sentence."""
    assert done.status == row.exit, done.out + done.err
    assert "Traceback" not in done.err, done.err
    lines = [text for text in done.err.splitlines() if text.startswith(f"sglang-ext: {row.code}: ")]
    assert len(lines) == 1 and row.code in TABLE, done.out + done.err
    return lines[0].removeprefix(f"sglang-ext: {row.code}: ")


def committed() -> set[str]:
    """The lines of the page as committed."""
    return set(PAGE.read_text(encoding="utf-8").splitlines(keepends=True)) if Path(PAGE).exists() else set()
