"""The plot over time: what each run gave, and below, on the same axis, what the GPUs did meanwhile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from sglang_ext.bench.report.plots import FOOT, MOST_MARKS, Figure, heading
from sglang_ext.bench.report.read import FINISHED, Arm, Campaign, Launch, listing, mapping, number, text
from sglang_ext.bench.report.svg import (
    LEFT,
    RIGHT,
    box,
    colour,
    drawing,
    el,
    hover,
    line,
    mark,
    path,
    rows_of_grid,
    scale,
    thin,
    words,
)
from sglang_ext.bench.report.words import label, moment

# Field of a GPU's samples -> heading, unit.
PANELS = {
    "sm_mhz": ("SM clock", "MHz"),
    "temp_c": ("GPU temperature", "°C"),
    "mem_temp_c": ("memory temperature", "°C"),
    "power_w": ("power of a GPU", "W"),
}
BINS = 300  # of one panel
MOST_SAMPLES = 20_000  # of one GPU in one launch
PAUSE = 600.0  # seconds; a gap that is longer, and much longer than the others, is marked
PAUSE_WIDTH, MOST_PAUSES = 14.0, 8
GAP, GAPS = 8.0, 0.2  # what is drawn of a gap between two launches, and of all of them as a share of the whole
TICKS_APART = 74.0
SHORT = 1800.0  # seconds
TALL, LOW = 190.0, 74.0  # panels


class Clock(NamedTuple):
    """From a time to where it is drawn: only while something was measured, as starting servers takes most of a campaign.

    ``spans``: began, ended, left, right. ``pauses``: those gaps in which longer than usual nothing was measured, as left, right,
    began, ended.
    """

    spans: tuple[tuple[float, float, float, float], ...]
    pauses: tuple[tuple[float, float, float, float], ...]

    def __call__(self, at: float) -> float:
        for began, ended, left, right in self.spans:
            if at <= ended:
                return left + max(at - began, 0.0) / (ended - began) * (right - left)
        return RIGHT

    @classmethod
    def over(cls, times: list[tuple[float, float]]) -> Clock:
        merged: list[list[float]] = []
        for began, ended in sorted(times):
            if merged and began <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], ended)
            else:
                merged.append([began, max(ended, began + 1.0)])
        gaps = [after[0] - before[1] for before, after in pairwise(merged)]
        usual = statistics.median(gaps) if gaps else 0.0
        long = [gap > max(PAUSE, 5 * usual) for gap in gaps]
        room = min(GAP, GAPS * (RIGHT - LEFT) / max(len(gaps), 1))
        free = RIGHT - LEFT - room * len(gaps) - PAUSE_WIDTH * min(sum(long), MOST_PAUSES)
        unit = free / sum(ended - began for began, ended in merged)
        spans: list[tuple[float, float, float, float]] = []
        pauses: list[tuple[float, float, float, float]] = []
        left = float(LEFT)
        for index, (began, ended) in enumerate(merged):
            right = left + (ended - began) * unit
            spans.append((began, ended, left, right))
            left = right + room
            if index < len(gaps) and long[index] and len(pauses) < MOST_PAUSES:
                pauses.append((left, left + PAUSE_WIDTH - room, ended, merged[index + 1][0]))
                left += PAUSE_WIDTH
        return cls(tuple(spans), tuple(pauses))

    def ticks(self) -> Iterator[tuple[float, float]]:
        """Where, and seconds since the start: the beginnings of some spans, far enough apart to be read."""
        last = -math.inf
        for began, _, left, _ in self.spans:
            if left - last >= TICKS_APART:
                last = left
                yield left, began - self.spans[0][0]


def timeline(campaign: Campaign) -> Figure:
    """Rates over time, with clocks, temperature and power below; what could not be read is said and not drawn."""
    title = "Rates over time, and the machine below them"
    launches = [launch for launch in campaign.launches() if _measured(launch)]
    runs = [run for launch in launches for run in launch.runs if run.rate and run.began is not None]
    if not runs:
        return Figure("timeline", title, "", None, ("No run has both a time and a decode rate.",))
    clock = Clock.over([span for launch in launches if (span := _measured(launch))])
    arms = {arm.name: arm for arm in campaign.arms}
    every = math.ceil(len(runs) / MOST_MARKS)
    out = [
        heading(0.0, "decode rate of each run", "tok/s"),
        *_rates(launches, arms, clock, every),
    ]
    y = 24 + TALL + 8
    for field, (name, unit) in PANELS.items():
        panel = _panel(launches, clock, field, y)
        if panel:
            out += [heading(y, name, f"{unit}; line: the middle of all GPUs, band: least to greatest"), *panel]
            y += 24 + LOW + 8
    under = _blocks(launches, clock, y)
    for left, right, began, ended in clock.pauses:
        under.append(
            box(left, 24.0, right, y, "pause", f"nothing was measured from {moment(began)} to {moment(ended)}")
        )
    part = 60 if clock.spans[-1][1] - clock.spans[0][0] > SHORT else 1
    for x, seconds in clock.ticks():
        out += [line(x, y, x, y + 4, "rule"), words(x, y + 16, _elapsed(seconds, part), class_="tick mid")]
    unit = "hours:minutes" if part == 60 else "minutes:seconds"
    start = f"{unit} since {moment(clock.spans[0][0])}, while runs were taken: server starts are cut out"
    out.append(words((LEFT + RIGHT) / 2, y + 34, start, class_="mid"))
    caption = "A point is a run, a line the mean of a launch; hollow: it does not count. Stripes are blocks. "
    caption += "“!” is what the machine did during a launch (point at it, or see Machine)." if _flags(launches) else ""
    caption += f" One of {every} runs is shown." if every > 1 else ""
    svg = drawing("timeline", title, caption, y + FOOT, *under, *out)
    return Figure("timeline", title, caption, svg, tuple(_missing(launches)), campaign.arms)


def _elapsed(seconds: float, part: int) -> str:
    """In hours:minutes (``part`` 60 seconds) or minutes:seconds."""
    whole, rest = divmod(round(seconds / part), 60)
    return f"{whole}:{rest:02}"


def _measured(launch: Launch) -> tuple[float, float] | None:
    """From its first run to the end of its last one."""
    known = [(run.began, run.began + (run.seconds or 0.0)) for run in launch.runs if run.began is not None]
    return (min(began for began, _ in known), max(ended for _, ended in known)) if known else None


def _blocks(launches: list[Launch], clock: Clock, bottom: float) -> list[Markup]:
    """A stripe behind every second block, and its number where there is room."""
    found: dict[int, list[float]] = {}
    for launch in launches:
        found.setdefault(launch.block, []).extend(_measured(launch) or ())
    out: list[Markup] = []
    for block, times in sorted(found.items()):
        left, right = clock(min(times)) - 2, clock(max(times)) + 2
        if block % 2 == 0:
            out.append(box(left, 24.0, right, bottom, "stripe", f"block {block + 1}"))
        if right - left > 20:
            out.append(words((left + right) / 2, 24 + TALL, f"{block + 1}", class_="tick mid"))
    return out


def _flags(launches: list[Launch]) -> list[tuple[Launch, str]]:
    """Launches with marks of the machine that exclude their pair, and what they say."""
    found = []
    for launch in launches:
        every = map(mapping, listing(mapping(launch.raw.get("machine")).get("marks")))
        marks = [one for one in every if one.get("excludes") is not False]
        if said := "; ".join(f"{text(m.get('code'))}: {text(m.get('text'))}" for m in marks[:20]):
            found.append((launch, f"{launch.arm}, block {launch.block + 1}: {said}"))
    return found


def _rates(launches: list[Launch], arms: dict[str, Arm], clock: Clock, every: int) -> list[Markup]:
    rates = [run.rate for launch in launches for run in launch.runs if run.rate and run.began is not None]
    axis = scale(rates, 24 + TALL - 14, 40.0)
    out = rows_of_grid(axis, 5)
    for launch in launches:
        arm = arms[launch.arm]
        shown = [run for run in launch.runs if run.rate and run.began is not None][::every]
        if launch.log_rate is not None and shown:
            ends = [clock(run.began or 0.0) for run in shown] + [
                clock((run.began or 0.0) + (run.seconds or 0)) for run in shown
            ]
            height = axis(math.exp(launch.log_rate))
            out.append(line(min(ends) - 3, height, max(ends) + 3, height, f"mean s{colour(arm.series)}"))
        for run in shown:
            at, rate = run.began or 0.0, run.rate or 0.0
            told = f"{label(arm)}, block {launch.block + 1}, run {run.number}: {rate:.2f} tok/s at {moment(at)}"
            why = run.reason if not run.counts else launch.excluded
            why = why or (f"the launch was {launch.state}" if launch.state != FINISHED else None)
            told += f"; does not count: {why}" if why else ""
            middle = clock(at + (run.seconds or 0.0) / 2)
            out.append(mark(middle, axis(rate), arm.series, told, hollow=bool(why), size=3.2))
    for launch, said in _flags(launches):
        span = _measured(launch) or (0.0, 0.0)
        out.append(el("text", hover(said), "!", x=(clock(span[0]) + clock(span[1])) / 2, y=37.0, class_="flag mid"))
    return out


def _samples(launch: Launch, field: str) -> list[tuple[float, float]]:
    """Every sample of every GPU while the launch's runs were taken."""
    began, ended = _measured(launch) or (0.0, 0.0)
    found = []
    for gpu in listing(mapping(launch.raw.get("machine")).get("gpus"))[:64]:
        samples = mapping(mapping(gpu).get("samples"))
        pairs = zip(listing(samples.get("t"))[:MOST_SAMPLES], listing(samples.get(field)), strict=False)
        known = ((number(a), number(b)) for a, b in pairs)
        found += [(t, v) for t, v in known if t is not None and v is not None and began <= t <= ended]
    return found


def _panel(launches: list[Launch], clock: Clock, field: str, y: float) -> list[Markup]:
    """One figure of the GPUs over time, or nothing where none could read it."""
    each = [(launch, found) for launch in launches if (found := _samples(launch, field))]
    if not each:
        return []
    unit = PANELS[field][1]
    total = sum(ended - began for began, ended, _, _ in clock.spans)
    axis = scale([v for _, found in each for _, v in found], y + 24 + LOW, y + 30)
    out = rows_of_grid(axis, 4)
    for launch, found in each:
        began, ended = min(t for t, _ in found), max(t for t, _ in found)
        bins = thin(found, began, ended, max(round(BINS * (ended - began) / total), 2))
        upper = [(clock(one.x), axis(one.high)) for one in bins]
        lower = [(clock(one.x), axis(one.low)) for one in reversed(bins)]
        low, high = min(v for _, v in found), max(v for _, v in found)
        told = f"{launch.arm}, block {launch.block + 1}: {low:g} to {high:g} {unit}"
        out += [path([*upper, *lower], "mark band", told)]
        out += [path([(clock(one.x), axis(one.middle)) for one in bins], "thin machine")]
    return out


def _missing(launches: list[Launch]) -> Iterator[str]:
    """What of the machine is not drawn, and why, each once."""
    machines = [mapping(launch.raw.get("machine")) for launch in launches]
    if not any(machines):
        yield "No clocks, temperatures or power: the receipt has no machine state."
        return
    reasons: dict[str, list[str]] = {}
    for field, (name, _) in PANELS.items():
        if any(_samples(launch, field) for launch in launches):
            continue
        parts = [part for machine in machines for part in (machine, *map(mapping, listing(machine.get("gpus"))))]
        said = [why for part in parts if (why := _why(mapping(part.get("unknown")), field))]
        reasons.setdefault(said[0] if said else "the receipt does not say why", []).append(name)
    for why, names in reasons.items():
        yield f"Not drawn: {', '.join(names)} ({why})."


def _why(unknown: dict[str, object] | object, field: str) -> str:
    """The reason for one field, or the one for all GPUs."""
    known = mapping(unknown)
    return next((text(known[key]) for key in (field, "gpus", "gpu", "nvml") if text(known.get(key))), "")
