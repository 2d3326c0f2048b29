"""The plots of a campaign but the one over time: paired differences, runs by launch, token times, what speculating costs.

Each has one row an arm with its own heading, so that long names have room and a row can be read on a narrow screen. Every mark
has a hover text, every plot a description; how many marks there can be is bounded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from markupsafe import Markup

from sglang_ext.bench.report.read import FINISHED, Arm, Campaign, Comparison, Run, Trace, means
from sglang_ext.bench.report.svg import (
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    box,
    colour,
    drawing,
    line,
    mark,
    num,
    path,
    rows_of_grid,
    scale,
    thin,
    ticks,
    words,
)
from sglang_ext.bench.report.words import NOT_COUNTING, label, level, percent, say

MOST_MARKS = 3000  # of runs in one plot
BINS = 240  # of token times in one row
HEAD = 24.0  # room for the heading of a row
FOOT = 40.0  # room for the x axis


class Figure(NamedTuple):
    """A plot, what it shows, and what of it cannot be shown and why."""

    name: str
    title: str
    caption: str
    svg: Markup | None
    missing: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()  # for a legend


def heading(y: float, title: str, detail: str) -> Markup:
    return Markup("").join(
        (words(4, y + 15, shorten(title), class_="head"), words(WIDTH - 4, y + 15, detail, class_="end"))
    )


def shorten(text: str, longest: int = 52) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def paired(campaign: Campaign) -> Figure:
    """Each pair of launches of one block, the mean and its interval; the control first, as the rest rests on it."""
    title = "Paired differences"
    found = sorted((c for c in campaign.comparisons if c.pairs), key=lambda c: not c.control)
    if not found:
        return Figure("paired", title, "", None, ("No pair of launches was finished.",))
    margin = math.log1p(campaign.margin) if campaign.margin else 0.0
    values = [log for one in found for _, log in one.pairs]
    values += [math.log(v) for one in found for v in (one.low, one.high) if v] if campaign.counts else []
    values += [log for one in found for _, log, _ in _left_out(campaign, one)]
    axis = scale([*values, 0.0, margin, -margin], 16.0, RIGHT)
    out: list[Markup] = []
    y = 0.0
    for one in found:
        row, y = _row_of_pairs(campaign, one, axis, y)
        out += row
    strip = [box(axis(-margin), 0.0, axis(margin), y, "margin")] if margin else []
    grid = []
    for value in ticks(100 * math.expm1(axis.low), 100 * math.expm1(axis.high), 7):
        x = axis(math.log1p(value / 100))
        grid += [
            line(x, 0.0, x, y, "zero" if value == 0 else "grid"),
            words(x, y + 16, f"{value:+g}%" if value else "0", class_="tick mid"),
        ]
    grid.append(words((16 + RIGHT) / 2, y + 34, "decode rate against the baseline of the same block", class_="mid"))
    caption = "One point for each block, the first at the top; hollow: it does not count. "
    if campaign.counts:
        caption += f"The band is the {level(found[0])} interval of the mean, the line in it the mean. "
    if margin:
        caption += f"The grey strip is ±{100 * (campaign.margin or 0):g}%: within it two arms are taken for the same."
    told = "; ".join(f"{s.title}: {s.figure or s.verdict}" for s in (say(campaign, one) for one in found))
    svg = drawing("paired", f"{title}: {told}", caption, y + FOOT, *strip, *grid, *out)
    return Figure("paired", title, caption, svg)


def _left_out(campaign: Campaign, one: Comparison) -> Iterator[tuple[int, float, str]]:
    """Pairs that were measured and do not count: block, difference, why."""
    launches = {(launch.arm, launch.block): launch for launch in campaign.launches()}
    counted = {block for block, _ in one.pairs}
    for block in sorted({block for _, block in launches} - counted):
        arm, base = launches.get((one.arm, block)), launches.get((one.baseline, block))
        if arm is None or base is None or arm.log_rate is None or base.log_rate is None:
            continue
        if why := arm.excluded or base.excluded:
            yield block, arm.log_rate - base.log_rate, why


def _row_of_pairs(campaign: Campaign, one: Comparison, axis: Scale, y: float) -> tuple[list[Markup], float]:
    """One comparison from ``y`` on, and where it ends."""
    said = say(campaign, one)
    arm = campaign.arm(one.arm)
    series = arm.series if arm else 2
    top = y + HEAD
    blocks = max(campaign.blocks, *(block + 1 for block, _ in one.pairs), 1)
    bottom = top + min(max(10 + 8 * blocks, 34), 140)

    def at(block: int) -> float:
        return top + 8 + (block + 0.5) / blocks * (bottom - top - 16)

    detail = NOT_COUNTING
    if said.figure and said.interval:
        detail = (
            f"{said.figure} ({said.interval}): {said.verdict}"
            if not one.control
            else f"{said.figure} ({said.interval})"
        )
    out = [heading(y, said.title, detail), line(4.0, bottom + 4, WIDTH - 4, bottom + 4, "rule")]
    if campaign.counts and one.low and one.high and one.ratio:
        low, middle, high = (axis(math.log(v)) for v in (one.low, one.ratio, one.high))
        out.append(box(low, top, high, bottom, f"interval f{colour(series)}", f"{said.figure} ({said.interval})"))
        out.append(line(middle, top, middle, bottom, f"mean s{colour(series)}"))
    for block, log in one.pairs:
        out.append(
            mark(
                axis(log), at(block), series, f"block {block + 1}: {percent(math.exp(log))}", hollow=not campaign.counts
            )
        )
    for block, log, why in _left_out(campaign, one):
        out.append(mark(axis(log), at(block), series, f"block {block + 1}, excluded: {why}", hollow=True))
    return out, bottom + 8


def spread(campaign: Campaign) -> Figure:
    """Every run as its distance from the arm's mean, grouped by launch: what varies, runs or launches, and did it drift?"""
    title = "Runs of each arm, by launch"
    arms = [arm for arm in campaign.arms if arm.counting()]
    if not arms:
        return Figure("spread", title, "", None, ("No run has a decode rate.",))
    total = sum(len(launch.runs) for arm in arms for launch in arm.launches)
    every = math.ceil(total / MOST_MARKS)
    rates = {arm.name: means(arm, 0).rate or 1.0 for arm in arms}
    distances = [
        100 * (run.rate / rates[arm.name] - 1)
        for arm in arms
        for launch in arm.launches
        for run in launch.runs
        if run.rate and run.counts
    ]
    blocks = max(campaign.blocks, *(launch.block + 1 for arm in arms for launch in arm.launches))
    column = (RIGHT - LEFT) / blocks
    out: list[Markup] = []
    y = 0.0
    for arm in arms:
        found = means(arm, 0)
        axis = scale(distances, y + HEAD + 84, y + HEAD)
        varies = "" if found.cv is None else f", launches vary by {100 * found.cv:.2f}%"
        out += [
            heading(y, label(arm), f"{rates[arm.name]:.2f} tok/s in the mean{varies}"),
            *rows_of_grid(axis, 4, signed=True),
        ]
        for launch in (one for one in arm.launches if one.state == FINISHED):
            left = LEFT + launch.block * column
            if launch.log_rate is not None:
                height = axis(100 * (math.exp(launch.log_rate) / rates[arm.name] - 1))
                out.append(
                    line(left + column * 0.12, height, left + column * 0.88, height, f"mean s{colour(arm.series)}")
                )
            shown = [run for run in launch.runs if run.rate and run.counts][::every]
            for index, run in enumerate(shown):
                rate = run.rate or 0.0
                distance = 100 * (rate / rates[arm.name] - 1)
                x = left + column * (0.2 + 0.6 * (index + 0.5) / len(shown))
                told = f"{arm.name}, block {launch.block + 1}, run {run.number}: {rate:.2f} tok/s ({distance:+.2f}%)"
                told += f"; excluded: {launch.excluded}" if launch.excluded else ""
                hollow = launch.excluded is not None
                out.append(mark(x, axis(distance), arm.series, told, hollow=hollow, size=min(3.2, 0.3 * column)))
        y += HEAD + 92
    step = math.ceil(blocks / 24)
    out += [words(LEFT + (b + 0.5) * column, y + 12, str(b + 1), class_="tick mid") for b in range(0, blocks, step)]
    out.append(words((LEFT + RIGHT) / 2, y + 32, "block", class_="mid"))
    caption = (
        "Distance of each run from its arm's mean, in percent; a line is the mean of a launch. Read a column from top to bottom "
        "for what a block did to all arms. The scale is the same for all."
    )
    caption += f" One of {every} runs is shown." if every > 1 else ""
    return Figure("spread", title, caption, drawing("spread", title, caption, y + FOOT, *out))


def typical(arm: Arm) -> tuple[int, Run, Trace] | None:
    """The run with a trace that is nearest to the median rate: its block, itself, its token times."""
    found = [(launch.block, run) for launch in arm.counting() for run in launch.runs if run.rate and run.counts]
    if not found:
        return None
    middle = statistics.median(run.rate or 0.0 for _, run in found)
    nearest = sorted(found, key=lambda one: (abs((one[1].rate or 0.0) - middle), one[0], one[1].number))
    return next(((block, run, trace) for block, run in nearest if (trace := run.trace)), None)


def traces(campaign: Campaign) -> Figure:
    """Time between chunks over the token's index, of one typical run of each arm: pauses, drift with length, rhythm."""
    title = "Time between chunks"
    chosen = [(arm, found) for arm in campaign.arms if (found := typical(arm))]
    drawn = {arm.name for arm, _ in chosen}
    missing = tuple(f"{arm.name}: no run has its token times." for arm in campaign.arms if arm.name not in drawn)
    if not chosen:
        return Figure("traces", title, "", None, missing or ("No run has its token times.",))
    last = max(trace.tokens[-1] for _, (_, _, trace) in chosen)
    rows = []
    for arm, (block, run, (t, n)) in chosen:
        gaps = [(n[i], 1000 * (t[i] - t[i - 1])) for i in range(1, len(t))]
        each = (n[-1] - n[0]) / (len(n) - 1)
        rows.append((arm, block, run, gaps, each, thin(gaps, 0.0, last, BINS)))
    every = sorted(ms for *_, gaps, _, _ in rows for _, ms in gaps if ms > 0) or [1.0]
    logarithmic = every[-1] > 10 * statistics.median(every)
    low = 0.8 * max(every[0], statistics.median(every) / 20) if logarithmic else 0.0
    axis_x = Scale(0.0, last, LEFT, RIGHT)
    out: list[Markup] = []
    y = 0.0
    for arm, block, run, _, each, bins in rows:
        ends = (math.log10(low), math.log10(every[-1] * 1.1)) if logarithmic else (0.0, every[-1] * 1.05)
        axis = Scale(*ends, y + HEAD + 92, y + HEAD)

        def at(ms: float, axis: Scale = axis) -> float:
            return axis(math.log10(max(ms, low))) if logarithmic else axis(ms)

        detail = f"block {block + 1}, run {run.number}: {run.rate:.2f} tok/s, {each:.2f} tokens a chunk"
        out.append(heading(y, label(arm), detail))
        values = _decades(low, every[-1]) if logarithmic else ticks(0.0, every[-1], 3)
        for value in values:
            out += [
                line(LEFT, at(value), RIGHT, at(value), "grid"),
                words(LEFT - 6, at(value) + 4, f"{value:g}", class_="tick end"),
            ]
        for one in bins:
            told = f"token {one.x:.0f}: {one.middle:.2f} ms"
            told += f" ({one.low:.2f} to {one.high:.2f})" if one.high > one.low else ""
            out.append(
                box(
                    axis_x(one.x) - 1,
                    at(one.low),
                    axis_x(one.x) + 1,
                    at(one.high) - 1,
                    f"mark f{colour(arm.series)}",
                    told,
                )
            )
        out.append(path([(axis_x(one.x), at(one.middle)) for one in bins], f"thin s{colour(arm.series)}"))
        y += HEAD + 100
    out += [words(axis_x(v), y + 12, num(v), class_="tick mid") for v in ticks(0.0, last, 8)]
    out.append(words((LEFT + RIGHT) / 2, y + 32, "token", class_="mid"))
    caption = (
        "Milliseconds between two chunks that bring tokens, in the run of each arm that is nearest to its median rate: bars from "
        f"the least to the greatest, a line through the middle, in at most {BINS} steps. "
    )
    caption += "The scale is logarithmic, the same for all." if logarithmic else "The scale is the same for all."
    return Figure("traces", title, caption, drawing("traces", title, caption, y + FOOT, *out), missing)


def _decades(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... where they are few; else only the tens. Exact, as 10.0 ** n is not."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high < 100 * low else (1,)
    return [v for p in powers for f in factors if low <= (v := float(f"{f}e{p}")) <= high]


def economics(campaign: Campaign) -> Figure | None:
    """ln(rate) = ln(tokens a step) - ln(time a step): what speculating gains by the one, and pays by the other."""
    title = "What speculating gains and costs"
    keys = ("dln_accept", "dln_step", "dln_rate")
    found = [
        (one, [one.economics[key] or 0.0 for key in keys])
        for one in campaign.comparisons
        if one.economics and all(one.economics.get(key) is not None for key in keys)
    ]
    if not found or not campaign.counts:
        return None
    bars = [(a, -s, r) for _, (a, s, r) in found]
    axis = scale([0.0, *(v for each in bars for v in each)], 250.0, RIGHT)
    out: list[Markup] = []
    y = 0.0
    for (one, _), (accept, step, rate) in zip(found, bars, strict=True):
        arm = campaign.arm(one.arm)
        series = arm.series if arm else 2
        out.append(heading(y, label(arm) if arm else one.arm, f"against {shorten(one.baseline, 30)}"))
        three = (
            ("tokens a step", accept, "gain" if accept >= 0 else "cost"),
            ("time a step", step, "gain" if step >= 0 else "cost"),
            ("together: the rate", rate, f"f{colour(series)}"),
        )
        for index, (name, value, kind) in enumerate(three):
            top = y + HEAD + 4 + 20 * index
            factor = f"÷ {math.exp(-value):.3f}" if index == 1 else f"× {math.exp(value):.3f}"
            out += [
                words(4, top + 12, name),
                words(240, top + 12, factor, class_="end"),
                box(axis(0.0), top, axis(value), top + 15, f"mark {kind}", f"{name}: {factor}, ln {value:+.4f}"),
            ]
        y += HEAD + 74
    out.append(line(axis(0.0), HEAD, axis(0.0), y - 4, "zero"))
    caption = (
        "Against the baseline, on a logarithmic scale, so that the third bar is exactly the sum of the first two: "
        "rate = tokens a step / time a step."
    )
    return Figure("economics", title, caption, drawing("economics", title, caption, y, *out))
