"""Drawing: elements, scales, ticks, and making many points few. No plot library: a hover text on every mark, colours that
follow the reader's light or dark mode, and no dependency, in less code than it takes to style one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH = 760  # of every plot, in its own units
LEFT = 52  # of what is drawn: room for the numbers of the y axis
RIGHT = 748
SHAPES = 6


def num(value: float) -> str:
    """A coordinate: a tenth is finer than a pixel."""
    found = f"{value:.1f}"
    return found.removesuffix(".0") if found != "-0.0" else "0"


def el(tag: str, *children: str, **attributes: object) -> Markup:
    """An element. Texts that are no Markup are escaped; ``class_`` is class, ``stroke_width`` is stroke-width."""
    words = [tag]
    for key, value in attributes.items():
        shown = num(value) if isinstance(value, float) else value
        words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{' '.join(words)}>{inside}</{tag}>" if inside else f"<{' '.join(words)}/>")


def hover(said: str) -> Markup:
    return el("title", said)


def words(x: float, y: float, said: str, **attributes: object) -> Markup:
    return el("text", said, x=num(x), y=num(y), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return el("line", x1=num(x1), y1=num(y1), x2=num(x2), y2=num(y2), class_=kind)


def box(x1: float, y1: float, x2: float, y2: float, kind: str, said: str | None = None) -> Markup:
    """A rectangle from corner to corner, never too thin to see."""
    left, top = min(x1, x2), min(y1, y2)
    sizes = {"width": num(max(abs(x2 - x1), 0.5)), "height": num(max(abs(y2 - y1), 0.5))}
    return el("rect", *([hover(said)] if said else []), x=num(left), y=num(top), **sizes, class_=kind)


def path(points: Sequence[tuple[float, float]], kind: str, said: str | None = None) -> Markup:
    """A line through all points; one with a hover text is closed, an area."""
    steps = "L".join(f"{num(x)} {num(y)}" for x, y in points)
    if said is None:
        return el("path", d=f"M{steps}", class_=kind)
    return el("path", hover(said), d=f"M{steps}Z", class_=kind)


def mark(x: float, y: float, series: int, said: str, *, hollow: bool = False, size: float = 4.0) -> Markup:
    """A point of a series: by colour and by shape, as not everybody sees colours; hollow where it does not count."""
    r, shape = size, series % SHAPES
    a, b = 0.4 * r, 1.25 * r
    corners = {
        1: ((-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)),
        2: ((-r, -r), (r, -r), (r, r), (-r, r)),
        3: ((0.0, -1.25 * r), (1.15 * r, 0.9 * r), (-1.15 * r, 0.9 * r)),
        4: ((0.0, -1.35 * r), (1.35 * r, 0.0), (0.0, 1.35 * r), (-1.35 * r, 0.0)),
        5: ((0.0, 1.25 * r), (1.15 * r, -0.9 * r), (-1.15 * r, -0.9 * r)),
    }
    kind = f"mark s{colour(series)}{' hollow' if hollow else ''}"
    if shape not in corners:
        return el("circle", hover(said), cx=num(x), cy=num(y), r=num(r), class_=kind)
    return el(
        "polygon",
        hover(said),
        points=" ".join(f"{num(x + dx)},{num(y + dy)}" for dx, dy in corners[shape]),
        class_=kind,
    )


def colour(series: int) -> int:
    """Which of the eight colours: grey for the baseline and its control, the other six in turn."""
    return series if series < 2 else 2 + (series - 2) % 6


def drawing(name: str, title: str, description: str, height: float, *children: str) -> Markup:
    """A whole plot, with its words for whoever does not see it."""
    return el(
        "svg",
        el("desc", description, id=f"{name}-words"),
        *children,
        class_="plot",
        id=f"plot-{name}",
        viewBox=f"0 0 {WIDTH} {num(height)}",
        role="img",
        aria_label=title,
        aria_describedby=f"{name}-words",
    )


class Scale(NamedTuple):
    """From values to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def scale(values: Sequence[float], start: float, end: float, *, pad: float = 0.05) -> Scale:
    """Over all values, with some room; a single value gets some room too."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = (high - low) * pad or max(abs(high) * pad, 1e-9)
    return Scale(low - room, high + room, start, end)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values from low to high: 1, 2 or 5 times a power of ten apart."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    rough = span / max(about, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def rows_of_grid(axis: Scale, about: int = 4, *, signed: bool = False) -> list[Markup]:
    """Horizontal lines with their values at the left; ``signed``: percent, up or down."""
    out = []
    for value in ticks(axis.low, axis.high, about):
        y = axis(value)
        said = f"{value:+g}%" if signed and value else f"{value:g}"
        out += [line(LEFT, y, RIGHT, y, "grid"), words(LEFT - 6, y + 4, said, class_="tick end")]
    return out


class Bin(NamedTuple):
    """Many points as one: where, and their least, middle and greatest value."""

    x: float
    low: float
    middle: float
    high: float


def thin(points: Sequence[tuple[float, float]], low: float, high: float, most: int) -> list[Bin]:
    """At most ``most`` bins over x from low to high; extremes are kept, as they are what one looks for."""
    bins: dict[int, list[tuple[float, float]]] = {}
    width = (high - low) / most or 1.0
    for x, y in points:
        if low <= x <= high:
            bins.setdefault(min(int((x - low) / width), most - 1), []).append((x, y))
    out = []
    for _, inside in sorted(bins.items()):
        values = [y for _, y in inside]
        x = statistics.fmean(x for x, _ in inside)
        out.append(Bin(x, min(values), statistics.median(values), max(values)))
    return out
