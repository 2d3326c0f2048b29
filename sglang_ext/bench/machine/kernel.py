"""What the kernel's files say at one moment: of the processes, of what has grown, of the limits. What is not there is left out.

Of other people's processes only the program's name is read, never an argument.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sglang_ext.run.process import namespace, read_whole

CPUS = "devices/system/cpu"
PARTS = 8  # proc_stat(5): guest time is in user time already, so only the first eight make up the whole
# proc_pid_stat(5), after the name: the parent, time used, time used by children it has waited for, the start.
PPID, TIMES, STARTED = 1, slice(11, 13), 19
CHILDREN = slice(13, 15)
THROTTLES = ("core", "package")
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h: the same on every machine
NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number for "none"


class Spent(NamedTuple):
    """What a process has used of the CPUs, in clock ticks. ``children``: what ended ones of it had used."""

    started: int
    parent: int
    program: str
    own: int
    children: int


class Limits(NamedTuple):
    """What the control groups above a process allow it, and how long it was held back: no time where nothing limits it."""

    cpus: float | None
    memory: int | None
    held_ns: int | None


class Snapshot(NamedTuple):
    """The host at one moment: only what grows, or is compared."""

    at: float
    ticks: tuple[int, ...] | None
    processes: Mapping[int, Spent]
    pressure: Mapping[str, int]  # microseconds in which somebody waited
    heat: Mapping[str, int]  # events and milliseconds of CPU throttling
    limits: Limits


def snapshot(of: int, proc: str = "/proc", sys: str = "/sys") -> Snapshot:
    """Read it all; what is not there is left out. ``of``: the process whose control group counts."""
    return Snapshot(time.monotonic(), _ticks(proc), processes(proc), _pressure(proc), _heat(sys), limits(of, proc, sys))


def in_a_container() -> bool:
    """Are our pids others than the host's? Then NVML, which tells the host's, cannot be matched with ours."""
    return namespace("self", "pid") not in ("", INITIAL_PID_NAMESPACE)


def family(pids: Iterable[int], processes: Mapping[int, Spent]) -> set[int]:
    """``pids``, ourselves, and all that descend from them."""
    found = {*pids, os.getpid()}
    while more := {pid for pid, one in processes.items() if one.parent in found and pid not in found}:
        found |= more
    return found


def program(pid: int, proc: str = "/proc") -> str | None:
    """The name of a program, never its arguments; None where its pid is not one of ours."""
    text = text_of(f"{proc}/{pid}/comm")
    return text or None


def numa_node(pci: str | None, sys: str = "/sys") -> int | str:
    """The node a card hangs on, or why none is known. NVML writes the domain with eight digits, the kernel with four."""
    if not pci:
        return "NVML does not say where the card is"
    domain, _, rest = pci.lower().partition(":")
    text = text_of(f"{sys}/bus/pci/devices/{int(domain, 16):04x}:{rest}/numa_node")
    if text is None:
        return "the kernel does not show the card's device"
    return int(text) if int(text) >= 0 else "the firmware names no node for the card's slot"


def text_of(path: str) -> str | None:
    try:
        return read_whole(path).decode("utf-8", "replace").strip()
    except OSError:
        return None


def number_of(path: str) -> int | None:
    text = text_of(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _ticks(proc: str) -> tuple[int, ...] | None:
    first = (text_of(f"{proc}/stat") or "").partition("\n")[0].split()
    return tuple(map(int, first[1:])) if len(first) > PARTS and first[0] == "cpu" else None


def processes(proc: str = "/proc") -> dict[int, Spent]:
    found: dict[int, Spent] = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        text = text_of(f"{proc}/{entry}/stat")
        if not text:
            continue  # it ended meanwhile
        # The name may hold blanks and parentheses: the last one ends it.
        name, _, rest = text.partition("(")[2].rpartition(")")
        words = rest.split()
        own, children = (sum(map(int, words[part])) for part in (TIMES, CHILDREN))
        found[int(entry)] = Spent(int(words[STARTED]), int(words[PPID]), name, own, children)
    return found


def _pressure(proc: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for what in ("cpu", "memory", "io"):
        for line in (text_of(f"{proc}/pressure/{what}") or "").splitlines():
            kind, *words = line.split()
            if kind == "some":
                found[what] = int(next(word for word in words if word.startswith("total="))[6:])
    return found


def _heat(sys: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind in THROTTLES:
        for unit, file in (("events", "count"), ("ms", "total_time_ms")):
            # A package counts once, however many of its CPUs show its counter: the greatest is what is wanted of either.
            for path in glob.glob(f"{sys}/{CPUS}/cpu[0-9]*/thermal_throttle/{kind}_throttle_{file}"):
                if (value := number_of(path)) is not None:
                    found[f"{path.removeprefix(f'{sys}/{CPUS}/').partition('/')[0]}.{kind}.{unit}"] = value
    return found


def limits(pid: int, proc: str = "/proc", sys: str = "/sys") -> Limits:
    """The tightest of the control groups from ``pid`` up to the root, of either version. Null: no limit is seen."""
    cpus: list[float] = []
    memory: list[int] = []
    held: list[int] = []
    groups = text_of(f"{proc}/{pid}/cgroup")
    if groups is None:
        return Limits(None, None, None)
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        root = f"{sys}/fs/cgroup" if controllers == "" else f"{sys}/fs/cgroup/{controllers}"
        if controllers and not {"cpu", "memory"} & set(names):
            continue
        for place in _upwards(root, path):
            quota = (text_of(f"{place}/cpu.max") or "").split()
            if not quota:
                quota = [
                    text_of(f"{place}/cpu.cfs_quota_us") or "max",
                    text_of(f"{place}/cpu.cfs_period_us") or "100000",
                ]
            if quota[0] not in ("max", "-1"):
                cpus.append(int(quota[0]) / int(quota[1]))
                held += _held(place)
            top = text_of(f"{place}/memory.max") or text_of(f"{place}/memory.limit_in_bytes") or "max"
            if top != "max" and int(top) < NO_LIMIT:
                memory.append(int(top))
    return Limits(min(cpus, default=None), min(memory, default=None), max(held, default=None if cpus else 0))


def _held(place: str) -> list[int]:
    """Nanoseconds for which this group had used up its share of CPU; version 2 counts microseconds."""
    words = dict(line.split() for line in (text_of(f"{place}/cpu.stat") or "").splitlines())
    if "throttled_usec" in words:
        return [int(words["throttled_usec"]) * 1000]
    return [int(words["throttled_time"])] if "throttled_time" in words else []


def _upwards(root: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != ".."]
    return [os.path.join(root, *parts[:length]) for length in range(len(parts), -1, -1)]
