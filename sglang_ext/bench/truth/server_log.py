"""The decode lines of a server's log, as windows. Text in, windows out; only `Tail` touches a file.

A rank writes one line for every ``decode_log_interval`` decode steps (sglang 0.5.23
srt/managers/scheduler_components/metrics_reporter.py:934-946 and 960-1042; the same words since 0.5.9):

    [2026-11-29 21:22:21 TP0] Decode batch, #running-req: 1, #token: 33, token usage: 0.00, accept len: 3.00, accept rate: 1.00,
    cpu graph: False, gen throughput (token/s): 43.68, #queue-req: 0

What stands between differs: pools of hybrid models, speculation, disaggregation, and a tail with MFU or a device timer. So a
line is read by the names in it and not by their order. The rate is the tokens of the window over the wall time since the line
before, whatever happened in between: of the first line after a pause that time is mostly the pause.

A rank that empties its cache says so. From then on it counts steps from zero (metrics_reporter.py:708), so the lines that
follow end at step 40, 80, ... of the next request.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

DECODE, PREFILL, FLUSHED = "Decode batch", "Prefill batch", "Cache flushed successfully!"
RATE, RUNNING, QUEUED, ACCEPT = "gen throughput (token/s)", "#running-req", "#queue-req", "accept len"
GRAPHS = ("cuda graph", "cpu graph", "npu graph", "musa graph")
DECIMALS = 2  # of a rate and of an accept length
HALF = 0.5 * 10**-DECIMALS  # what rounding to so many may have taken or added
# configure_logger's own form; another one (SGLANG_LOGGING_CONFIG_PATH) leaves time and rank unknown. Milliseconds: SGLANG_LOG_MS.
HEAD = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)((?: [A-Z_]+\d+)*)\] ")
FIELD = re.compile(r"([^,:]+): ([^,]*)")
DATA_PARALLEL = re.compile(r"(?:^| )DP(\d+)(?: |$)")  # not ATTN_DP0, not MOE_DP0
PAUSE = 0.05  # seconds between two looks at a log that is being written


class Window(NamedTuple):
    """One decode line. What a line does not say is None."""

    at: str  # when it was written, by the server's own clock and time zone; whole seconds, as a rule
    rank: str  # "TP0", "DP1 TP0"; "" where the line does not say
    tok_s: float
    running: int  # requests in the batch
    queued: int | None
    accept_length: float | None  # None: it does not speculate
    graph: bool | None  # did this step run from a captured graph
    flushes: int  # how often this rank had emptied its cache before
    prefills: int  # prefill batches of this rank since its line or flush before

    @property
    def data_parallel(self) -> int | None:
        found = DATA_PARALLEL.search(self.rank)
        return int(found[1]) if found else None


def windows(text: str) -> list[Window]:
    """Every decode line of ``text``, in order. Other lines, and broken ones, are passed over."""
    found: list[Window] = []
    flushes: dict[str, int] = {}
    prefills: dict[str, int] = {}
    for line in text.splitlines():
        if not (DECODE in line or PREFILL in line or FLUSHED in line):
            continue
        at, rank, message = _parts(line)
        if message.startswith(FLUSHED):
            flushes[rank], prefills[rank] = flushes.get(rank, 0) + 1, 0
        elif message.startswith(PREFILL):
            prefills[rank] = prefills.get(rank, 0) + 1
        elif message.startswith(DECODE):
            window = _window(at, rank, message, flushes.get(rank, 0), prefills.get(rank, 0))
            if window is not None:
                found.append(window)
                prefills[rank] = 0
    return found


def _parts(line: str) -> tuple[str, str, str]:
    """``(time, rank, message)``; time and rank empty where the line begins in another way."""
    head = HEAD.search(line)
    if head is not None:
        return head[1], head[2].strip(), line[head.end() :]
    at = min(at for word in (DECODE, PREFILL, FLUSHED) if (at := line.find(word)) >= 0)
    return "", "", line[at:]


def _window(at: str, rank: str, message: str, flushes: int, prefills: int) -> Window | None:
    """A window, or None for a line that was cut or says something else."""
    fields = {name.strip(): value.strip() for name, value in FIELD.findall(message)}
    rate, running = _number(fields.get(RATE)), _number(fields.get(RUNNING))
    if rate is None or running is None:
        return None
    graph = next((fields[name] for name in GRAPHS if name in fields), None)
    queued = _number(fields.get(QUEUED))
    return Window(
        at=at,
        rank=rank,
        tok_s=rate,
        running=int(running),
        queued=None if queued is None else int(queued),
        accept_length=_number(fields.get(ACCEPT)),
        graph={"True": True, "False": False}.get(graph or ""),
        flushes=flushes,
        prefills=prefills,
    )


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\d+(?:\.\d+)?", text):
        return None  # inf and nan are no rate
    return float(text)


def since_flush(found: Iterable[Window]) -> dict[str, list[Window]]:
    """Rank -> its windows after the last flush in the text; a rank that was not flushed in it has none."""
    newest: dict[str, list[Window]] = {}
    for window in found:
        kept = newest.setdefault(window.rank, [])
        if kept and kept[-1].flushes != window.flushes:
            kept.clear()
        if window.flushes:
            kept.append(window)
    return {rank: kept for rank, kept in newest.items() if kept}


class Tail:
    """What is written to a log from now on. Only whole lines: the server may be in the middle of one."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self.path = path
        self.begin = os.stat(path).st_size

    def text(self) -> str:
        """Raises OSError."""
        with open(self.path, "rb") as file:
            file.seek(self.begin)
            raw = file.read()
        return raw[: raw.rfind(b"\n") + 1].decode("utf-8", "replace")

    def wait(self, enough: Callable[[str], bool], seconds: float) -> str:
        """The text as soon as it is ``enough``, or what there is after ``seconds``. Raises OSError."""
        deadline = time.monotonic() + seconds
        while True:
            text = self.text()
            if enough(text) or time.monotonic() >= deadline:
                return text
            time.sleep(PAUSE)
