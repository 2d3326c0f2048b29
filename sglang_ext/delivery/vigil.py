"""The vigil over the workers of a server that serves: which of them ended first, where SGLang then ends itself.

Upstream kills its processes and then itself as soon as it learns that a worker is gone, and that can be a few hundredths of a
second later: within one tick all have ended. So a pidfd of each worker wakes whoever waits here as the worker ends.
"""

from __future__ import annotations

import os
import select

from sglang_ext.delivery.ending import open_pidfd
from sglang_ext.quick import Any
from sglang_ext.run.attestation import is_record
from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.run.process import Identity, is_alive

# Seconds after which whoever ends a whole server, upstream itself or a user, has also ended its main process.
SETTLE = 0.01


def attested(directory: RunDirectory) -> list[tuple[str, Identity]]:
    """The workers of a run that were built, each with what to call it: ``TP1 (pid 4711)``. A damaged record is none."""
    sizes = (_read(directory, "server.json") or {}).get("expected")
    found = []
    for name in directory.names("workers"):
        record = _read(directory, name) or {}
        pid, started = record.get("pid"), record.get("start_time")
        if isinstance(pid, int) and isinstance(started, int) and is_record(record, pid, started) and "ready" in record:
            label = label_of(record["rank"], sizes if isinstance(sizes, dict) else {})
            found.append((f"{label} (pid {pid})" if label else f"pid {pid}", Identity(pid, started)))
    return found


def label_of(rank: dict[str, Any], sizes: dict[str, Any]) -> str:
    """A rank by its dimensions, as verify-env names it: those of size one are not told, but for TP."""
    told = [part for part in ("dp", "pp", "tp") if part == "tp" or sizes.get(part) != 1]
    return " ".join(f"{part.upper()}{rank[part]}" for part in told if isinstance(rank.get(part), int))


def _read(directory: RunDirectory, name: str) -> dict[str, Any] | None:
    try:
        return directory.read(name)
    except RunError:
        return None


class Vigil:
    """The workers of a run, read once. A worker no pidfd can be had of is looked at instead, once in every `wait`."""

    def __init__(self, directory: RunDirectory) -> None:
        self._alarm = select.poll()
        self._held: dict[int, str] = {}
        self._watched: list[tuple[str, Identity]] = []
        for who, identity in attested(directory):
            handle = open_pidfd(identity.pid)
            if handle is None:
                self._watched.append((who, identity))
                continue
            self._held[handle] = who
            if is_alive(identity):  # looked at after the pidfd: it is this process
                self._alarm.register(handle, select.POLLIN)
            else:
                self._watched.append((who, identity))

    def wait(self, seconds: float) -> list[str]:
        """Wait so long, or until a worker ends. Returns the first that have ended, once: then the vigil is over."""
        first = [self._held[handle] for handle, _ in self._alarm.poll(seconds * 1000)]
        first += [who for who, identity in self._watched if not is_alive(identity)]
        if first:
            self.close()
        return first

    def close(self) -> None:
        """Watch nobody any more; to `wait` is to sleep from now on."""
        for handle in self._held:
            os.close(handle)
        self._alarm, self._held, self._watched = select.poll(), {}, []
