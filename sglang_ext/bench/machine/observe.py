"""Watches the machine while a number is taken, and says before whether the GPUs are free for it.

A thread looks at each GPU once a second and sleeps in between; how much CPU it took stands in what it found. Everything works
without a GPU: then there are no GPUs in it, and the reason.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sglang_ext.bench.machine import host, kernel, nvml, questions
from sglang_ext.bench.machine.free import foreign, held_by, named, preflight
from sglang_ext.bench.machine.nvml import Gpu, Holder, Library, Unknown
from sglang_ext.bench.machine.questions import Unreadable

__all__ = ["Observer", "preflight", "start"]

EVERY = 1.0  # seconds between two looks
LOOKS_PER_LIST = 10  # looks between two lists of processes: those are the driver's slowest answer
PATIENCE = 10.0  # seconds for the last look: a GPU that fell off its bus may never answer
FASTER_THAN_TIME = 1.02  # a time that grew by more than the time that passed is none


class _Watched:
    """What was seen of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.unknown: Unknown = {}
        self.static: dict[str, Any] = {}
        self.t: list[float] = []
        self.samples: dict[str, list[Any]] = {name: [] for name in questions.SAMPLED}
        self.times: dict[str, list[list[float]]] = {}  # [when, value], written down when it changed
        self.ends: list[dict[str, Any]] = []  # the counts, at either end
        self.holders: dict[int, Holder] = {}

    def look(self, library: Library) -> None:
        now, times = library.sample(self.gpu.handle, self.unknown)
        at = round(time.time(), 3)
        self.t.append(at)
        for name, value in now.items():
            self.samples[name].append(value)
        for name, grown in times.items():
            if grown is not None:
                points = self.times.setdefault(name, [])
                if not points or points[-1][1] != grown:
                    points.append([at, grown])

    def list_holders(self, library: Library) -> None:
        try:
            self.holders |= {one.pid: one for one in library.holders(self.gpu.handle)}
        except Unreadable as why:
            self.unknown.setdefault("holders", str(why))

    def count(self, library: Library) -> None:
        self.ends.append(library.read(questions.COUNTS, self.unknown, self.gpu.handle))

    def to_json(self, ours: Collection[int], allowed: int, comparable: bool) -> dict[str, Any]:
        strangers = foreign(list(self.holders.values()), ours, allowed, comparable)
        if self.holders and not comparable:
            self.unknown["holders.ours"] = (
                "NVML tells the host's pids, which are others here: only their number is compared"
            )
        known = len(self.t) > 0
        return {
            "index": self.gpu.number,
            "uuid": self.gpu.uuid,
            "name": self.gpu.name,
            "static": self.static,
            "samples": {"t": self.t, **self.samples},
            "times": self.times,
            "deltas": self._deltas() if known else {},
            "ecc": {name: self.ends[-1].get(name) for name in questions.ECC} if self.ends else {},
            "strangers": [
                {"pid": one.pid, "program": named(one.pid, comparable), "memory_bytes": one.memory} for one in strangers
            ],
            "unknown": self.unknown,
        }

    def _deltas(self) -> dict[str, Any]:
        """What each counter grew by. One that fell, or a time that outran the clock, is none."""
        found: dict[str, Any] = {}
        span = (self.t[-1] - self.t[0]) * 1e9
        for one in questions.TIMES:
            points = self.times.get(one.name)
            if not points:
                found[one.name] = None
                continue
            values = [value for _, value in points]
            found[one.name] = grown = values[-1] - values[0]
            falls = any(b < a for a, b in itertools.pairwise(values))
            if falls or grown > span * FASTER_THAN_TIME:
                what = (
                    "it fell: the driver was loaded anew, or wraps it" if falls else "it grew faster than time passes"
                )
                self.unknown[one.name] = f"{what}, so it is not the time it should be"
                found[one.name] = None
                del self.times[one.name]
        first, last = self.ends[0], self.ends[-1]
        for question in questions.COUNTS:
            a, b = first.get(question.field), last.get(question.field)
            fell = a is not None and b is not None and b < a
            if fell:
                self.unknown[question.field] = "it fell: the driver was loaded anew, or wraps it"
            found[question.field] = None if a is None or b is None or fell else b - a
        return found


class Observer:
    """Made by `start`. `stop` ends it and gives what it saw."""

    def __init__(
        self,
        pids: Iterable[int],
        environment: Mapping[str, str],
        every: float,
        alone: bool = True,
        blind: str | None = None,
    ) -> None:
        self.pids = list(pids)
        self.every = every
        self.unknown: Unknown = {}
        self.began = time.time()
        self.busy = 0.0  # seconds of CPU of the thread
        self.looks = 0
        self.library: Library | None = None
        self.watched: list[_Watched] = []
        self._over = threading.Event()
        if blind is None:
            self._open(environment, alone)
        else:
            self.unknown["gpus"] = blind
        self.host = self._host()
        self._thread = threading.Thread(target=self._watch, name="sglang-ext-machine", daemon=True)
        if self.watched:
            self._look()  # here, so that what grows is counted from now on
            self._thread.start()

    def _open(self, environment: Mapping[str, str], alone: bool) -> None:
        opened = nvml.open_library()
        if isinstance(opened, str):
            self.unknown["gpus"] = opened
            return
        try:
            gpus = opened.gpus()
        except Unreadable as why:
            self.unknown["gpus"] = str(why)
            opened.close()
            return
        self.library = opened
        chosen = nvml.selected(gpus, environment)
        if not alone and chosen:
            chosen = held_by(opened, chosen, self.pids)
            if not chosen:
                self.unknown["gpus"] = "the server holds no GPU of this machine"
        for gpu in chosen:
            one = _Watched(gpu)
            self.watched.append(one)
            if gpu.handle is None:
                one.unknown["gpu"] = gpu.fault
                continue
            one.static = opened.static(gpu, gpus, one.unknown)
            node = kernel.numa_node(one.static["pci"])
            one.static["numa_node"] = node if isinstance(node, int) else None
            if isinstance(node, str):
                one.unknown["numa_node"] = node
            one.count(opened)

    def _host(self) -> kernel.Snapshot | None:
        try:
            return kernel.snapshot(self.pids[0] if self.pids else os.getpid())
        except (OSError, ValueError) as error:
            self.unknown["cpu"] = f"/proc cannot be read as it should ({type(error).__name__})"
            return None

    def _watch(self) -> None:
        began = time.thread_time()
        try:
            while not self._over.wait(self.every):
                self._look()
            self._look()  # the counters' last values
        except Exception as error:  # seen or not, a number is being taken: it must not end for this
            self.unknown["samples"] = f"the look at the GPUs ended early ({type(error).__name__}: {error})"
        self.busy = time.thread_time() - began

    def _look(self) -> None:
        assert self.library is not None
        for one in self.watched:
            if one.gpu.handle is not None:
                one.look(self.library)
                if self.looks % LOOKS_PER_LIST == 0 or self._over.is_set():
                    one.list_holders(self.library)
        self.looks += 1

    def stop(self) -> dict[str, Any]:
        """End the watch. ``marks`` is left empty: `marks.marks` fills it, as it knows when the runs were."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)
        hangs = self._thread.is_alive()
        if hangs:
            self.unknown["samples"] = f"NVML did not answer within {PATIENCE:g} s: a GPU may have fallen off its bus"
        after = self._host()
        ours = set(self.pids) | {os.getpid()}
        cpu: dict[str, Any] = {}
        if self.host is not None and after is not None:
            ours = kernel.family(self.pids, self.host.processes) | kernel.family(self.pids, after.processes)
            try:
                cpu = host.state(self.host, after, ours, self.unknown)
            except (OSError, ValueError) as error:
                self.unknown["cpu"] = f"/proc or /sys cannot be read as it should ({type(error).__name__})"
        comparable = not kernel.in_a_container()
        if self.library is not None and not hangs:
            for one in self.watched:
                if one.gpu.handle is not None:
                    one.count(self.library)
            self.library.close()
        return {
            "span": {"began": round(self.began, 3), "ended": round(time.time(), 3)},
            "gpus": [one.to_json(ours, len(self.pids), comparable) for one in self.watched],
            "cpu": cpu,
            "observer": {"every_s": self.every, "looks": self.looks, "cpu_s": round(self.busy, 4)},
            "unknown": self.unknown,
            "marks": [],
        }


def start(
    pids: Iterable[int],
    *,
    environment: Mapping[str, str] = os.environ,
    every: float = EVERY,
    alone: bool = True,
    blind: str | None = None,
) -> Observer:
    """Watch from now on. ``pids``: the server's processes, whose work is not somebody else's; ``environment``: its own.

    Not ``alone``: other servers run beside it, and of the GPUs its environment leaves it only those that it holds are watched.
    ``blind``: why no GPU can be watched at all.
    """
    return Observer(pids, environment, every, alone, blind)
