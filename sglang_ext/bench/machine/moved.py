"""Is the machine what it was, or the like of another arm's? Pure: dicts in, marks out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_ext.bench.machine.marks import LINKS, best_links, mark

# What two launches of a campaign must share for their rates to be compared.
STEADY = (
    "name", "uuid", "vbios", "driver", "cuda", "power_limit_w", "sm_max_mhz", "mem_max_mhz", "persistence", "ecc_mode",
    "mig_mode", "pcie_max_gen", "pcie_max_width",
)  # fmt: skip
EACH_ITS_OWN = ("uuid", "vbios")  # of two cards of one kind
STEADY_CPU = ("governor", "driver", "boost", "smt", "cores")


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is not as it was in an earlier launch of the campaign, its first one say; unknown on either side is no change."""
    found: list[dict[str, Any]] = []
    earlier = {gpu["index"]: gpu for gpu in before["gpus"]}
    present = {gpu["index"]: gpu for gpu in now["gpus"]}
    if earlier.keys() != present.keys():
        text = f"expected the GPUs {_list(earlier)} as in the first launch, found {_list(present)}"
        found.append(mark("machine_changed", text))
    for index in sorted(earlier.keys() & present.keys()):
        a, b = (one[index]["static"] | best_links(one[index]) for one in (earlier, present))
        moved = _moved(a, b, (*STEADY, *LINKS))
        if moved:
            found.append(mark("machine_changed", f"GPU {index} is not as in the first launch: {moved}"))
    return found + _cpus(before, now)


def unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the machines of two servers that run side by side do not share: their GPUs one by one, each arm having its own, and
    the CPUs. Unknown on either side is no difference.
    """
    found = _cpus(before, now)
    if "gpus" in before["unknown"] or "gpus" in now["unknown"]:
        return found
    earlier, present = (sorted(one["gpus"], key=lambda gpu: int(gpu["index"])) for one in (before, now))
    if len(earlier) != len(present):
        text = f"expected {len(earlier)} GPUs, as many as in the first launch, found {len(present)}"
        return [mark("machine_changed", text), *found]
    names = [name for name in (*STEADY, *LINKS) if name not in EACH_ITS_OWN]
    for one, other in zip(earlier, present, strict=True):
        a, b = (gpu["static"] | best_links(gpu) for gpu in (one, other))
        if moved := _moved(a, b, names):
            text = f"GPU {other['index']} is not like GPU {one['index']} in the first launch: {moved}"
            found.append(mark("machine_changed", text))
    return found


def _cpus(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    moved = _moved(before.get("cpu") or {}, now.get("cpu") or {}, STEADY_CPU)
    return [mark("machine_changed", f"the CPUs are not as in the first launch: {moved}")] if moved else []


def _moved(a: Mapping[str, Any], b: Mapping[str, Any], names: Sequence[str]) -> str:
    known = [name for name in names if a.get(name) is not None and b.get(name) is not None]
    return ", ".join(f"{name} {a[name]} -> {b[name]}" for name in known if a[name] != b[name])


def _list(gpus: Mapping[int, Any]) -> str:
    return ", ".join(map(str, sorted(gpus))) or "none"
