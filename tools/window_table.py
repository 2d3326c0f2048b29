#!/usr/bin/env python3
"""What a server's log shows of chats that all decode at one rate: the table of docs/reconciliation.md, worked out.

    python tools/window_table.py            is the table as worked out?
    python tools/window_table.py --write    write it

Exit codes: 0 good, 1 it is not. Pure arithmetic: no clock, no chance.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reconciliation.md"
BEGIN, END = "<!-- window_table: begin -->", "<!-- window_table: end -->"
RATE, INTERVAL = 82.2, 40  # tokens a second while it decodes; steps of a window
IDLE, FIRST_TOKEN = 0.5, 0.35  # seconds between two requests, and from a request to its first token
LENGTHS = (64, 128, 256, 512, 1024, 2048)
LINES = 2000  # of the log, for each length
LOW = 80.0


class Seen(NamedTuple):
    """What somebody reads off the log."""

    mean: float
    median: float
    weighted: float  # tokens over time, of all windows
    low: float  # share of the lines below LOW


def lines(tokens: int, number: int = LINES) -> list[float]:
    """Seconds of each window of a server that gets one request of ``tokens`` tokens after the other, never flushed.

    The first token of a request comes from its prefill and counts in no window; the others are one decode step each.
    """
    found: list[float] = []
    steps, passed, since = 0, 0.0, 0.0
    while len(found) < number:
        passed += IDLE + FIRST_TOKEN
        for _ in range(tokens - 1):
            passed += 1 / RATE
            steps += 1
            if steps % INTERVAL == 0:
                found.append(passed - since)
                since = passed
    return found[1:number]  # the first one begins with the server


def seen(tokens: int) -> Seen:
    """The log of requests of ``tokens`` tokens, read in four ways."""
    each = lines(tokens)
    rates = [INTERVAL / seconds for seconds in each]
    low = sum(rate < LOW for rate in rates) / len(rates)
    return Seen(statistics.mean(rates), statistics.median(rates), INTERVAL * len(each) / sum(each), low)


def dead_time(tokens: int, rate: float) -> float:
    """Seconds without a token in each request that make ``rate`` of RATE over the wall."""
    return tokens / rate - tokens / RATE


def table() -> str:
    """The table, as Markdown."""
    rows = [
        "| tokens of each request | mean of the lines | median line | tokens over time | lines below 80 |",
        "|---|---|---|---|---|",
    ]
    for tokens in LENGTHS:
        one = seen(tokens)
        rows.append(f"| {tokens} | {one.mean:.1f} | {one.median:.1f} | {one.weighted:.1f} | {one.low:.0%} |")
    return "\n".join(rows)


def put_in(page: str) -> str:
    """The page with the table as it is worked out. Raises ValueError where its place is missing."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name}: expected {BEGIN} and {END}, found no such place")
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    write = parser.parse_args(argv).write
    page = PAGE.read_text(encoding="utf-8")
    made = put_in(page)
    if write:
        PAGE.write_text(made, encoding="utf-8")
    elif made != page:
        print(f"{PAGE.name}: its table is not as worked out; run with --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
