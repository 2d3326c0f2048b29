"""The host's side of a number: how its CPUs run, who else uses them, and what it takes away. A value, or why there is none.

Two snapshots, one at each end, and what happened between them. Of other people's processes only the program's name is kept.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection
from typing import Any

from sglang_ext.bench.machine.kernel import CPUS, PARTS, Snapshot, number_of, text_of

Unknown = dict[str, str]
IDLE, WAITING, STOLEN = 3, 4, 7  # parts of a CPU's time in proc_stat(5)
NAMED = 5  # programs
WORTH_NAMING = 0.05  # of one CPU; below that it is the host's ordinary hum
SIZES = ("MemTotal", "MemAvailable", "MemFree", "SwapTotal", "SwapFree")


def state(
    before: Snapshot, after: Snapshot, ours: Collection[int], unknown: Unknown, proc: str = "/proc", sys: str = "/sys"
) -> dict[str, Any]:
    """The host between two snapshots, for a receipt. What has no value is null, its reason in ``unknown``."""
    span = after.at - before.at
    found: dict[str, Any] = {
        **_clocks(sys, unknown),
        "cores": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)),
        "smt": _switch(f"{sys}/{CPUS}/smt/active", "smt", unknown),
        "load": _load(proc, unknown),
        "numa": _numa(proc, sys, unknown),
        "memory": _memory(proc, unknown),
        **_shares(before, after, ours, unknown),
        "pressure": _waited(before, after, span, unknown),
        "throttled": _throttled(before, after, span, unknown),
    }
    first, last = before.limits.held_ns, after.limits.held_ns
    share = None if first is None or last is None or span <= 0 else round((last - first) / 1e9 / span, 4)
    if share is None:
        unknown["cpu.limits.held_share"] = "no control group above the server says how long it was held back"
    found["limits"] = {"cpus": after.limits.cpus, "memory_bytes": after.limits.memory, "held_share": share}
    return found


def _switch(path: str, name: str, unknown: Unknown) -> bool | None:
    value = number_of(path)
    if value is None:
        unknown[f"cpu.{name}"] = f"{path} is not there"
        return None
    return bool(value)


def _lines(path: str) -> dict[str, str]:
    return {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in (text_of(path) or "").splitlines())
    }


def _clocks(sys: str, unknown: Unknown) -> dict[str, Any]:
    """Governor, driver, and the clocks as the kernel sees them now."""
    places = sorted(glob.glob(f"{sys}/{CPUS}/cpu[0-9]*/cpufreq"))
    if not places:
        for name in ("governor", "driver", "mhz", "boost"):
            unknown[f"cpu.{name}"] = (
                "the kernel shows no cpufreq: a virtual machine, or clocks that the firmware sets alone"
            )
        return dict.fromkeys(("governor", "driver", "mhz", "boost"))
    governors = Counter(text_of(f"{place}/scaling_governor") or "unknown" for place in places)
    now = [value for place in places if (value := number_of(f"{place}/scaling_cur_freq")) is not None]
    least, most = (number_of(f"{places[0]}/cpuinfo_{end}_freq") for end in ("min", "max"))
    off = number_of(f"{sys}/{CPUS}/intel_pstate/no_turbo")
    boost = number_of(f"{sys}/{CPUS}/cpufreq/boost") if off is None else int(not off)
    if boost is None:
        unknown["cpu.boost"] = "the kernel does not say whether the CPUs may boost"
    mixed = ", ".join(f"{name} on {count}" for name, count in governors.most_common())
    return {
        "governor": next(iter(governors)) if len(governors) == 1 else mixed,
        "driver": text_of(f"{places[0]}/scaling_driver"),
        "mhz": {
            "now_least": _mhz(min(now, default=None)),
            "now_most": _mhz(max(now, default=None)),
            "least": _mhz(least),
            "most": _mhz(most),
        },
        "boost": None if boost is None else bool(boost),
    }


def _mhz(khz: int | None) -> int | None:
    return None if khz is None else round(khz / 1000)


def _load(proc: str, unknown: Unknown) -> list[float] | None:
    words = (text_of(f"{proc}/loadavg") or "").split()
    if len(words) < 3:
        unknown["cpu.load"] = f"{proc}/loadavg is not there"
        return None
    return [float(word) for word in words[:3]]


def _numa(proc: str, sys: str, unknown: Unknown) -> dict[str, Any]:
    balancing = number_of(f"{proc}/sys/kernel/numa_balancing")
    if balancing is None:
        unknown["cpu.numa.balancing"] = "the kernel was built without automatic NUMA balancing, or hides it"
    nodes = glob.glob(f"{sys}/devices/system/node/node[0-9]*")
    if not nodes:
        unknown["cpu.numa.nodes"] = "the kernel shows no NUMA nodes"
    return {"nodes": len(nodes) or None, "balancing": None if balancing is None else bool(balancing)}


def _memory(proc: str, unknown: Unknown) -> dict[str, int] | None:
    words = _lines(f"{proc}/meminfo")
    try:
        size = {name: int(words[name].split()[0]) * 1024 for name in SIZES}
    except (KeyError, ValueError, IndexError):
        unknown["cpu.memory"] = f"{proc}/meminfo does not say"
        return None
    return {
        "total_bytes": size["MemTotal"],
        "available_bytes": size["MemAvailable"],
        "free_bytes": size["MemFree"],
        "swap_used_bytes": size["SwapTotal"] - size["SwapFree"],
    }


def _shares(before: Snapshot, after: Snapshot, ours: Collection[int], unknown: Unknown) -> dict[str, Any]:
    """How busy the CPUs were, what of that was not ours, and what a hypervisor gave to others."""
    empty = {"busy_share": None, "steal_share": None, "others": None}
    parts = [b - a for a, b in zip(before.ticks or (), after.ticks or (), strict=False)][:PARTS]
    whole = sum(parts)
    if len(parts) < PARTS or whole <= 0:
        for name in empty:
            unknown[f"cpu.{name}"] = "the kernel's count of CPU time does not move (a sandbox, or too short a span)"
        return empty
    busy = whole - parts[IDLE] - parts[WAITING] - parts[STOLEN]
    second = os.sysconf("SC_CLK_TCK") * (after.at - before.at)
    # A child that ended is in what its parent has waited for, so the sum over a family counts it once, at either end.
    own = _sum(after, ours) - _sum(before, ours)
    theirs = {
        (one.program, pid): used
        for pid, one in after.processes.items()
        if pid not in ours and (used := (one.own - _earlier(before, pid, one.started)) / second) >= WORTH_NAMING
    }
    named = sorted(theirs.items(), key=lambda item: -item[1])[:NAMED]
    return {
        "busy_share": round(busy / whole, 4),
        "steal_share": round(parts[STOLEN] / whole, 4),
        "others": {
            "cores": round(max(busy - own, 0) / second, 2),
            "count": len(theirs),
            "programs": [{"program": name, "pid": pid, "cores": round(used, 2)} for (name, pid), used in named],
        },
    }


def _sum(one: Snapshot, pids: Collection[int]) -> int:
    return sum(spent.own + spent.children for pid, spent in one.processes.items() if pid in pids)


def _earlier(before: Snapshot, pid: int, started: int) -> int:
    """What this very process had used before; a new one, nothing."""
    known = before.processes.get(pid)
    return known.own if known is not None and known.started == started else 0


def _waited(before: Snapshot, after: Snapshot, span: float, unknown: Unknown) -> dict[str, float] | None:
    """The share of time in which at least one task waited for a CPU, memory or a disk."""
    if not after.pressure or span <= 0:
        unknown["cpu.pressure"] = "the kernel keeps no pressure stall information"
        return None
    return {
        what: round((total - before.pressure.get(what, total)) / 1e6 / span, 4)
        for what, total in after.pressure.items()
    }


def _throttled(before: Snapshot, after: Snapshot, span: float, unknown: Unknown) -> dict[str, Any] | None:
    """CPUs held back by heat: the events of the CPU with most of them, and the share of time of the one held back longest."""
    if not after.heat or span <= 0:
        unknown["cpu.throttled"] = "the kernel counts no thermal throttling of these CPUs"
        return None
    grown = {name: value - before.heat.get(name, value) for name, value in after.heat.items()}
    events = max((value for name, value in grown.items() if name.endswith("events")), default=None)
    times = [value for name, value in grown.items() if name.endswith("ms")]
    if not times:
        unknown["cpu.throttled.share"] = "this kernel counts events of throttling, not their time"
    return {"events": events, "share": round(max(times) / 1000 / span, 4) if times else None}
