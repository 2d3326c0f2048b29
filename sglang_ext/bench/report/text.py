"""A campaign on a terminal: one line while it runs, and at the end a table of arms, the comparisons, and the state.

Texts of a receipt are made printable: a terminal obeys what it is sent.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang_ext.bench.report import words
from sglang_ext.bench.report.read import FINISHED, Arm, Campaign, Launch, Means, campaign, means
from sglang_ext.verify.report import paint, table

GRADE = {"VALID": "PASS", "INVALID": "FAIL", "UNRECONCILED": "FAIL", "INCONCLUSIVE": "UNKNOWN"}  # whose colour it gets
HEAD = ("arm", "launches", "decode tok/s", "vary", "TTFT ms", "accept length", "step ms")
INTERVAL = "interval"
AGAINST = ("compared", "difference", INTERVAL, "pairs", "p (Holm)", "sign flips", "verdict")


def printable(text: str) -> str:
    """No control sequence, no line break: what cannot be seen is shown as its escape."""
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def columns() -> int | None:
    """The terminal's width, or None where the output goes elsewhere: lines are then not broken."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def render(raw: Mapping[str, Any], *, width: int | None = None, colour: bool = False) -> str:
    """The campaign as text. ``width`` None: that of the terminal, if there is one."""
    read = campaign(raw)
    width = columns() if width is None else width
    out = [*_fit(_arms(read), width), ""]
    said = [words.say(read, one) for one in sorted(read.comparisons, key=lambda one: one.control)]
    if read.counts and said:
        out += [*_fit(_comparisons(read), width), ""]
        out += [line for one in said for line in _wrap(f"{one.mark} {printable(one.meaning)}", width)]
        out += [
            line
            for one in read.comparisons
            if (text := words.economics(one)) is not None
            for line in _wrap(f"{printable(_name(read, one.arm))}: {text}", width)
        ]
        out.append("")
    for one in read.excluded:
        block = one.get("block")
        place = f"block {block + 1}, {one.get('arm')}" if isinstance(block, int) else str(one.get("arm"))
        out += _wrap(printable(f"excluded: {place}: {one.get('code')}: {one.get('text')}"), width)
    out += [line for note in read.notes for line in _wrap(printable(f"note: {note}"), width)]
    if read.stopped:
        out += _wrap(printable(f"stopped early by rule: {read.stopped}"), width)
    state = printable(read.state)
    reason = f": {printable(read.reason)}" if read.reason else ""
    closing = _wrap(f"{state}{reason}; {words.outcome(read)}", width)
    out += [paint(state, GRADE.get(state, ""), colour) + closing[0].removeprefix(state), *closing[1:]]
    out += _wrap(f"    fix: {read.fix}", width) if read.fix else []
    return "\n".join(out)


def _name(read: Campaign, arm: str) -> str:
    found = read.arm(arm)
    return words.label(found) if found else arm


def _arms(read: Campaign) -> list[tuple[str, ...]]:
    """One row an arm; no figure where none counts."""
    rows = []
    for arm in read.arms:
        found = means(arm, max(read.blocks, len({launch.block for launch in arm.launches})))
        name, launches = printable(words.label(arm)), f"{found.launches} of {found.planned}"
        rows.append((name, launches, *_figures(arm, found)) if read.counts else (name, launches))
    return [HEAD if read.counts else HEAD[:2], *rows]


def _figures(arm: Arm, found: Means) -> tuple[str, ...]:
    vary = "-" if found.cv is None else f"{100 * found.cv:.2f}%"
    accept = words.figure(found.accept) if arm.speculates else "-"
    return (words.figure(found.rate), vary, words.figure(found.ttft_ms, 1), accept, words.figure(found.step_ms))


def _comparisons(read: Campaign) -> list[tuple[str, ...]]:
    rows = []
    for one in sorted(read.comparisons, key=lambda one: one.control):
        said = words.say(read, one)
        rows.append(
            (
                printable(said.title),
                said.figure or words.UNKNOWN,
                said.interval or words.UNKNOWN,
                str(len(one.pairs)),
                words.probability(one.p_t if one.p_holm is None else one.p_holm),
                words.probability(one.p_sign_flip),
                printable(one.verdict) if not one.control else "control",
            )
        )
    levels = " / ".join(sorted({words.level(one) for one in read.comparisons}))
    return [tuple(f"{levels} {cell}" if cell == INTERVAL else cell for cell in AGAINST), *rows]


def _fit(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """A table where it fits, else each row as a line of its own with the names of its figures."""
    lines = table(rows)
    if width is None or max(map(len, lines)) <= width:
        return lines
    head = rows[0]
    told = (
        f"{row[0]}: " + ", ".join(f"{name} {cell}" for name, cell in zip(head[1:], row[1:], strict=True))
        for row in rows[1:]
    )
    return [line for one in told for line in _wrap(one, width)]


def _wrap(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width, 20), subsequent_indent="    ", break_on_hyphens=False) or [""]


def progress_line(raw: Mapping[str, Any], arm: str | None = None, *, width: int | None = None) -> str:
    """Where a running campaign is: block, launch, arm, time left, rates so far. ``arm``: the one that is being taken.

    Rates and nothing else: what they mean is for the rule to say, when it may. How long is left is what the launches of each arm
    took so far; of an arm without one, what the others took. Before one is finished, what those took that were measured and did
    not count.
    """
    read = campaign(raw)
    plan = [name for block in _blocks(raw) for name in block]
    done = [launch for launch in read.launches() if launch.state == FINISHED]
    ended = len({(launch.block, launch.arm) for launch in done})  # what failed or was given up is taken again
    parts = [f"launch {min(ended + 1, len(plan))} of {len(plan)}"] if plan else [f"launch {ended + 1}"]
    if plan:
        parts.insert(0, f"block {_block_of(ended, _blocks(raw))} of {read.blocks}")
    if arm is not None:
        parts.append(printable(arm))
    left = time_left(done or [launch for launch in read.launches() if launch.runs], plan[ended:])
    parts.append("time left not known yet" if left is None else f"about {words.duration(left)} left")
    rates = [(one, means(one, 0)) for one in read.arms]
    so_far = ", ".join(f"{printable(one.name)} {m.rate:.2f} ({m.launches})" for one, m in rates if m.rate is not None)
    line = ", ".join(parts) + (f"; tok/s so far: {so_far}" if so_far else "")
    return line if width is None or len(line) <= width else line[: max(width - 3, 0)] + "..."


def _blocks(raw: Mapping[str, Any]) -> list[list[str]]:
    plan = raw.get("plan")
    blocks = plan.get("blocks") if isinstance(plan, Mapping) else None
    return [list(map(str, block)) for block in blocks if isinstance(block, list)] if isinstance(blocks, list) else []


def _block_of(launch: int, blocks: Iterable[Sequence[str]]) -> int:
    """The number of the block that holds the launch with this index, from 1."""
    number = 0
    for number, block in enumerate(blocks, 1):
        if launch < len(block):
            return number
        launch -= len(block)
    return number


def time_left(done: Sequence[Launch], to_come: Sequence[str]) -> float | None:
    """Seconds, by what launches took so far; None where none has ended."""
    took: dict[str, list[float]] = {}
    for launch in done:
        if launch.began is not None and launch.ended is not None:
            took.setdefault(launch.arm, []).append(launch.ended - launch.began)
    if not took:
        return None
    usual = statistics.fmean(seconds for each in took.values() for seconds in each)
    return sum(statistics.fmean(took[arm]) if arm in took else usual for arm in to_come)
