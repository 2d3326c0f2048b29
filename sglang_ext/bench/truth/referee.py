"""Asks a server for its own word on each run: its cache emptied before, its log and counters after. The I/O edge of `reconcile`.

referee = Referee(address, log, server_info)
referee.before()
...                                    one stream, or several at once
part = referee.after([run.to_json()])  a Reconciliation; `reconcile.together` makes the launch's of all of them
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.client import Address, ServerError
from sglang_ext.bench.truth import counters, reconcile
from sglang_ext.bench.truth.counters import CountersError
from sglang_ext.bench.truth.reconcile import Reconciliation
from sglang_ext.bench.truth.server_log import Tail, since_flush, windows

FLUSH = "/flush_cache"
TRIES, PAUSE = 20, 0.25  # it refuses while a request is not quite over; seconds between two tries
SETTLE = 3.0  # seconds for the last lines to reach the log, and for the counters


class Referee:
    """Of one server. ``log``: the file its output goes to, None where nobody captured it. ``flush`` False: its cache is left
    alone, as others may use it; then only its counters can speak."""

    def __init__(
        self, address: Address, log: str | None, server_info: Mapping[str, Any], *, flush: bool = True
    ) -> None:
        self.address, self.log, self.flush = address, log, flush
        stated = server_info.get("decode_log_interval")
        self.interval = stated if type(stated) is int and stated > 0 else reconcile.INTERVAL
        self.counting = bool(server_info.get("enable_metrics"))
        self.tail: Tail | None = None
        self.counted: dict[str, float] | None = None
        self.why: str | None = None

    def before(self) -> None:
        """Empty the cache, so that windows are aligned with the run that follows. Never raises: `after` says why not."""
        self.tail, self.counted, self.why = None, None, None
        try:
            if self.log is not None:
                self.tail = Tail(self.log)
            if self.flush:
                self._empty()
        except ServerError as error:
            self.why = f"the cache could not be emptied before the run ({error})"
        except OSError as error:
            self.why = f"the server's log cannot be read ({error.strerror})"
        if self.counting:
            self.counted = self._count()

    def after(self, runs: Sequence[Mapping[str, Any]]) -> Reconciliation:
        """What the server has to say of ``runs``, as a receipt has them: all streams that ran since `before`."""
        counted, found = self._delta(runs), None
        if self.tail is not None and self.why is None:
            try:
                found = windows(self.tail.wait(lambda text: self._complete(text, runs), SETTLE))
            except OSError as error:
                self.why = f"the server's log cannot be read ({error.strerror})"
        part = reconcile.reconcile(runs, found, counted, self.interval)
        if part.state == reconcile.UNKNOWN and self.why is not None:
            told = [self.why, part.reason] if counted is not None else [self.why]
            part = part._replace(reason="; ".join(filter(None, told)))
        return part

    def _empty(self) -> None:
        for left in reversed(range(TRIES)):
            try:
                client.post(self.address, FLUSH)
                return
            except ServerError:
                if not left:
                    raise
                time.sleep(PAUSE)  # the run before may still be on its way out

    def _count(self) -> dict[str, float] | None:
        try:
            return counters.read(self.address)
        except CountersError:
            return None

    def _complete(self, text: str, runs: Sequence[Mapping[str, Any]]) -> bool:
        """Has every window that ended within the run been written?"""
        steps = max((_steps(run) for run in runs), default=0)
        return any(len(found) >= steps // self.interval for found in since_flush(windows(text)).values())

    def _delta(self, runs: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
        if self.counted is None:
            return None
        own = sum(int(run.get("tokens") or 0) for run in runs)
        deadline = time.monotonic() + SETTLE
        while True:
            now = self._count()
            try:
                found = counters.delta(self.counted, now) if now is not None else None
            except CountersError:
                return None
            late = found is not None and found.get("generation_tokens", 0.0) < own
            if not late or time.monotonic() >= deadline:
                return found
            time.sleep(PAUSE)


def _steps(run: Mapping[str, Any]) -> int:
    """Decode steps of a run: one for each token but the first, which is the prefill's; with speculation one for each draft."""
    length, tokens = run.get("accept_length"), int(run.get("tokens") or 0)
    return round((tokens - 1) / length) if length else tokens - 1
