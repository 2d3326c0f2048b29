"""What in a machine's state marks a launch, and which marks make its pair not count. Pure: dicts in, dicts out.

The rule behind the table: what comes from outside the arm (heat, a brake, somebody else, a fault of the hardware) and may move
its rate excludes its pair; what is part of how the machine works, alike for both arms or brought about by the arm itself, is
told and excludes nothing. An excluded pair is counted, never dropped in silence.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.machine.questions import EVENTS, IDLE, POWER_CAP, THROTTLING_TIMES
from sglang_ext.reasons import NOTE, severity

Gpu = Mapping[str, Any]
Span = tuple[int | None, float, float]  # a run's index in its launch, began, ended (seconds since the epoch)
WHOLE: Span = (None, float("-inf"), float("inf"))

CODES = (
    "throttled",
    "throttling_unseen",
    "power_capped",
    "clock_dropped",
    "pcie_degraded",
    "pcie_below_maximum",
    "ecc_errors",
    "ecc_corrected",
    "co_tenant",
    "cpu_steal",
    "cpu_throttled",
    "cpu_busy",
    "cpu_limited",
    "machine_changed",
)


class Limits(NamedTuple):
    """From where on something is a mark. Shares are of a run's time, or of the observation's where only that is known."""

    # A GPU that stood still for this share would lose as much of its rate: a tenth of the margin of "no regression" (1 %).
    throttled: float = 0.001
    # Under the cap clocks follow the work, and that is the machine's ordinary state; less than this is a moment of prefill.
    power_capped: float = 0.05
    # Boost clocks move in steps of 15 MHz with the load; this is several of them. Of the fastest run's median.
    clock: float = 0.03
    # A hypervisor that takes this share of all CPUs may have taken much more of the one that launches the kernels.
    steal: float = 0.02
    cpu_throttled: float = 0.001
    others: float = 0.1  # of all CPUs, used by other programs
    held_back: float = 0.001  # by a control group's quota


LIMITS = Limits()
FEWEST = 3  # samples under load that make a median
LINKS = {"pcie_gen": ("PCIe generation", "pcie_max_gen"), "pcie_width": ("PCIe width", "pcie_max_width")}
CLOCKS = {"sm_mhz": "SM clock", "mem_mhz": "memory clock"}
ERRORS = {"ecc_uncorrected": "uncorrected errors", "rows_uncorrected": "rows remapped for an uncorrected error"}
STANDING = {"rows_pending": "a row waits to be remapped", "rows_failed": "a row could not be remapped"}


def excludes(code: str) -> bool:
    """Does a launch with this mark not count? The severity of the code says so: all but a note."""
    return severity(code) != NOTE


def mark(code: str, text: str, run: int | None = None) -> dict[str, Any]:
    return {"code": code, "text": text, "run": run, "excludes": excludes(code)}


def marks(machine: Mapping[str, Any], spans: Sequence[Span] = (), limits: Limits = LIMITS) -> list[dict[str, Any]]:
    """The marks of one launch. With ``spans``, when its runs were, only what happened in one of them counts of what comes and
    goes; without, all that was observed counts as one run.
    """
    found: list[dict[str, Any]] = []
    spans = _apart(spans)
    for gpu in machine["gpus"]:
        found += _throttling(gpu, spans or (WHOLE,), limits)
        found += _clocks(gpu, spans, limits)
        found += _links(gpu, spans or (WHOLE,))
        found += _memory(gpu)
        found += _company(gpu)
    found += _host(machine.get("cpu") or {}, limits)
    return found


def _apart(spans: Sequence[Span]) -> list[Span]:
    """Streams that ran at once are one run, under the first one's index: what happened to them is told once."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda one: one[1]):
        if found and span[1] < found[-1][2]:
            found[-1] = (found[-1][0], found[-1][1], max(found[-1][2], span[2]))
        else:
            found.append(span)
    return found


def _inside(gpu: Gpu, span: Span) -> list[int]:
    """Which samples fall into a span."""
    return [at for at, t in enumerate(gpu["samples"].get("t", ())) if span[1] <= t <= span[2]]


def _loaded(gpu: Gpu, span: Span) -> list[int]:
    """Those of them in which the GPU had work, by its own word: its clocks and its link fall at idle."""
    samples = gpu["samples"]
    found = []
    for at in _inside(gpu, span):
        events, busy = (_at(samples, name, at) for name in ("reasons", "util_pct"))
        if (events is None and busy is None) or (events is not None and events & IDLE) or busy == 0:
            continue
        found.append(at)
    return found


def _at(samples: Mapping[str, Any], name: str, at: int) -> Any:
    values = samples.get(name)
    return values[at] if values else None


def _known(gpu: Gpu, name: str, at: Sequence[int]) -> list[Any]:
    return [value for one in at if (value := _at(gpu["samples"], name, one)) is not None]


def share(gpu: Gpu, name: str, span: Span) -> float | None:
    """The share of a span in which a time grew, from the last look before it to the first one after it."""
    looks, points = gpu["samples"].get("t", ()), gpu.get("times", {}).get(name)
    if not points or len(looks) < 2:
        return None
    first = max((t for t in looks if t <= span[1]), default=looks[0])
    last = min((t for t in looks if t >= span[2]), default=looks[-1])
    if last <= first:
        return None

    def value(when: float) -> float:
        return float(next((v for t, v in reversed(points) if t <= when), points[0][1]))

    return float((value(last) - value(first)) / 1e9 / (last - first))


def _throttling(gpu: Gpu, spans: Sequence[Span], limits: Limits) -> Iterator[dict[str, Any]]:
    seen = False
    for span in spans:
        at = _inside(gpu, span)
        events = _known(gpu, "reasons", at)
        shares = {name: found for name in THROTTLING_TIMES if (found := share(gpu, name, span)) is not None}
        seen = seen or bool(events) or bool(shares)
        said = [
            f"{event.name} in {count} of {len(events)} samples"
            for event in EVENTS
            if event.throttles and (count := sum(1 for one in events if one & event.bit))
        ]
        said += [
            f"{name.removesuffix('_ns').replace('_', ' ')} for {found:.2%} of the time"
            for name, found in shares.items()
            if found > limits.throttled
        ]
        if said:
            yield mark("throttled", f"GPU {gpu['index']}: {', '.join(said)}", span[0])
        capped = _capped(gpu, span)
        if capped is not None and capped > limits.power_capped:
            watts = gpu["static"].get("power_limit_w")
            limit = f"its power limit of {watts:g} W" if watts else "its power limit"
            yield mark(
                "power_capped",
                f"GPU {gpu['index']}: {limit} held the clocks down for {capped:.0%} of the time",
                span[0],
            )
    if not seen:
        why = gpu["unknown"].get("reasons") or gpu["unknown"].get("gpu") or "no sample was taken"
        yield mark(
            "throttling_unseen", f"GPU {gpu['index']}: neither event reasons nor their times can be read ({why})"
        )


def _capped(gpu: Gpu, span: Span) -> float | None:
    """The share of a span under the power cap: by its time, else by samples."""
    found = share(gpu, "power_cap_ns", span)
    events = _known(gpu, "reasons", _inside(gpu, span))
    if found is None and events:
        found = sum(1 for one in events if one & POWER_CAP) / len(events)
    return found


def _clocks(gpu: Gpu, spans: Sequence[Span], limits: Limits) -> Iterator[dict[str, Any]]:
    """Runs that ran on slower clocks than the fastest of the launch, where the power cap does not explain it."""
    for name, words in CLOCKS.items():
        medians = {}
        for span in spans:
            values = _known(gpu, name, _loaded(gpu, span))
            if len(values) >= FEWEST:
                medians[span] = statistics.median(values)
        best = max(medians.values(), default=0)
        for span, median in medians.items():
            if median >= best * (1 - limits.clock):
                continue
            capped = _capped(gpu, span)
            if name == "sm_mhz" and capped is not None and capped > limits.power_capped:
                continue
            text = f"{words} at {median:g} MHz, {1 - median / best:.1%} below the launch's fastest run ({best:g} MHz)"
            yield mark("clock_dropped", f"GPU {gpu['index']}: {text}", span[0])


def best_links(gpu: Gpu, span: Span = WHOLE) -> dict[str, Any]:
    """The fastest link seen under load: it wakes with the work, so one slow sample means nothing."""
    at = _loaded(gpu, span)
    return {name: max(_known(gpu, name, at), default=None) for name in LINKS}


def _links(gpu: Gpu, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    each = [(span[0], best_links(gpu, span)) for span in spans]
    for name, (words, most) in LINKS.items():
        values = [(run, links[name]) for run, links in each if links[name] is not None]
        best = max((value for _, value in values), default=None)
        if best is None:
            continue
        for run, value in values:
            if value < best:
                yield mark(
                    "pcie_degraded", f"GPU {gpu['index']}: {words} {value} under load, {best} in another run", run
                )
        possible = gpu["static"].get(most)
        if possible is not None and best < possible:
            text = f"GPU {gpu['index']}: {words} {best} under load, where card and slot can do {possible}"
            yield mark("pcie_below_maximum", text)


def _memory(gpu: Gpu) -> Iterator[dict[str, Any]]:
    deltas, ecc = gpu["deltas"], gpu["ecc"]
    bad = [f"{deltas[name]} {words}" for name, words in ERRORS.items() if deltas.get(name)]
    bad += [words for name, words in STANDING.items() if ecc.get(name)]
    if bad:
        yield mark("ecc_errors", f"GPU {gpu['index']}: {', '.join(bad)}")
    fixed = (deltas.get("ecc_corrected") or 0) + (deltas.get("rows_corrected") or 0)
    if fixed:
        yield mark("ecc_corrected", f"GPU {gpu['index']}: {fixed} memory errors were corrected while it was watched")


def _company(gpu: Gpu) -> Iterator[dict[str, Any]]:
    strangers = gpu.get("strangers") or ()
    if strangers:
        told = ", ".join(
            f"pid {one['pid']}" + (f" ({one['program']})" if one["program"] else "") for one in strangers[:5]
        )
        yield mark("co_tenant", f"GPU {gpu['index']}: held by others too: {told}")


def _host(cpu: Mapping[str, Any], limits: Limits) -> Iterator[dict[str, Any]]:
    steal = cpu.get("steal_share")
    if steal is not None and steal > limits.steal:
        yield mark("cpu_steal", f"the hypervisor gave {steal:.1%} of the CPUs' time to others")
    hot = (cpu.get("throttled") or {}).get("share")
    if hot is not None and hot > limits.cpu_throttled:
        yield mark("cpu_throttled", f"heat held a CPU back for {hot:.1%} of the time")
    others, cores = cpu.get("others"), cpu.get("cores")
    if others and cores and others["cores"] > limits.others * cores:
        names = ", ".join(f"{one['program']} {one['cores']:g}" for one in others["programs"])
        yield mark(
            "cpu_busy", f"other programs used {others['cores']:g} of {cores} CPUs{f' ({names})' if names else ''}"
        )
    held = (cpu.get("limits") or {}).get("held_share")
    if held is not None and held > limits.held_back:
        yield mark("cpu_limited", f"its control group's quota held the server back for {held:.1%} of the time")
