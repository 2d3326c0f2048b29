"""A bench run on a terminal: what is going on, then a table, one line that says whether the numbers count, and why not."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from sglang_ext.bench.runner import VALID, Outcome
from sglang_ext.bench.traffic.figures import Run
from sglang_ext.reasons import TABLE
from sglang_ext.verify.report import table

HEAD = ("run", "tokens", "TTFT ms", "decode tok/s", "e2e tok/s", "server window tok/s", "accept length")
Figure = Callable[[Run], float | None]
# The server's windows are left out of the summary: they are no rates of the runs, a mean of them has no meaning.
COLUMNS: tuple[tuple[Figure | None, int], ...] = (
    (lambda run: run.tokens, 0),
    (lambda run: run.ttft_s and run.ttft_s * 1000, 1),
    (lambda run: run.decode_tok_s, 2),
    (lambda run: run.e2e_tok_s, 2),
    (None, 2),
    (lambda run: run.accept_length, 2),
)
CACHED_SHARE = 0.01  # of the prompt; above it, the time to the first token is not that of a fresh prompt
EVERY = 5.0  # seconds between signs of life


class Progress:
    """Lines on stderr, and every few seconds a sign of life. Its thread sleeps nearly always: it must not be measured."""

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, name="sglang-ext-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def tell(self, text: str) -> None:
        self._began = time.monotonic()
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def _live(self) -> None:
        while not self._over.wait(self._every):
            waited = time.monotonic() - self._began
            if waited >= self._every:
                print(f"bench: ... {waited:.0f} s", file=sys.stderr, flush=True)


def cell(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def accept_cell(run: Run) -> str:
    plain = run.accept_length is None and "does not speculate" in run.unknown.get("accept_length", "")
    return "-" if plain else cell(run.accept_length, 2)


def rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """One row a run, then median and range of what has them."""
    lines = [
        (
            str(number),
            *(cell(figure(run), digits) for figure, digits in COLUMNS[:4] if figure),
            cell(run.server_gen_tok_s, 2),
            accept_cell(run),
        )
        for number, run in enumerate(runs, 1)
    ]
    median, spread = ["median"], ["min-max"]
    for figure, digits in COLUMNS:
        found = [value for run in runs if figure and (value := figure(run)) is not None]
        whole = len(found) == len(runs)
        median.append(f"{statistics.median(found):.{digits}f}" if whole else "")
        spread.append(f"{min(found):.{digits}f}-{max(found):.{digits}f}" if whole else "")
    return [HEAD, *lines, tuple(median), tuple(spread)]


def notes(outcome: Outcome) -> list[str]:
    """What a reader must know to read the table right."""
    found = []
    shares = [
        r.cached_tokens / r.prompt_tokens for r in outcome.runs if r.prompt_tokens and r.cached_tokens is not None
    ]
    if shares and max(shares) > CACHED_SHARE:
        found.append(
            f"up to {max(shares):.0%} of the prompt came from the prefix cache: TTFT is that of a known prompt"
        )
    for name in ("server_gen_tok_s", "accept_length"):
        for why in sorted({run.unknown[name] for run in outcome.runs if name in run.unknown}):
            if "does not speculate" not in why:
                found.append(f"{name} unknown: {why}")
    return found


def render(outcome: Outcome, kept: str | None) -> str:
    """The result as text; figures only where they count. ``kept``: where the receipt is."""
    out: list[str] = []
    if outcome.state == VALID:
        rates = [run.decode_tok_s for run in outcome.runs if run.decode_tok_s is not None]
        out += [*table(rows(outcome.runs)), ""]
        out += [f"note: {note}" for note in notes(outcome)]
        out.append(
            f"{VALID}: median decode {statistics.median(rates):.2f} tok/s of {len(rates)} runs "
            f"({min(rates):.2f}-{max(rates):.2f}), by the client, one stream, {outcome.suite.workload.tokens} tokens each; "
            "verified before and after"
        )
    else:
        reason = outcome.reason
        assert reason is not None
        out += [f"{outcome.state}: {reason}; no number counts", f"    fix: {TABLE[reason.code].fix}"]
    out.append(f"receipt: {kept}" if kept else "no receipt kept: name a file with --json FILE")
    return "\n".join(out)
