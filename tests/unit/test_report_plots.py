"""The plots of a report: every pair and run is a mark where it belongs, and what is not drawn is said."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("jinja2")

from sglang_ext.bench.report import html, over_time, plots
from sglang_ext.bench.report.read import campaign as read
from sglang_ext.bench.report.svg import RIGHT, thin, ticks
from tests.unit import report_page
from tests.unit.report_page import centre, hovers, marks, svg
from tests.unit.sample_campaign import campaign

made, page = report_page.made, report_page.page  # the fixtures


def test_every_pair_is_a_mark_where_it_belongs(made: dict[str, Any], page: str) -> None:
    drawing = svg(page, "paired")
    logs = [log for one in made["comparisons"] for log in one["pair_logs"]]
    assert len(made["excluded"]) == 1
    assert len(marks(drawing)) == len(logs) + 1
    (hollow,) = marks(drawing, "hollow")
    assert "excluded: launch of eagle3-3" in hovers([hollow])[0]
    assert len(marks(drawing, "interval")) == 3
    control = made["comparisons"][0]
    at = [centre(one) for one in marks(drawing) if one.get("class") == "mark s1"]
    assert control["control"] and len(at) == len(control["pair_logs"])
    by_log = sorted(zip(control["pair_logs"], at, strict=True))
    slope = (by_log[-1][1] - by_log[0][1]) / (by_log[-1][0] - by_log[0][0])
    for log, x in by_log:  # one scale, linear in logs
        assert x == pytest.approx(by_log[0][1] + slope * (log - by_log[0][0]), abs=0.2)
    (band, *_) = marks(drawing, "interval")
    left = by_log[0][1] + slope * (math.log(control["low"]) - by_log[0][0])
    assert float(band.get("x", "nan")) == pytest.approx(left, abs=0.2)


def test_every_run_is_drawn_over_time_with_the_machine_below(made: dict[str, Any], page: str) -> None:
    drawing = svg(page, "timeline")
    runs = [run for arm in made["arms"] for launch in arm["launches"] for run in launch["runs"]]
    points = [m for m in marks(drawing) if "band" not in m.get("class", "")]
    assert len(points) == len(runs) == 160
    launches = sum(len(arm["launches"]) for arm in made["arms"])
    assert len(marks(drawing, "band")) == launches * 3  # SM clock, temperature, power; memory heat cannot be read
    assert len(marks(drawing, "flag")) == 1 and "software thermal slowdown" in hovers(marks(drawing, "flag"))[0]
    assert "Not drawn: memory temperature (NotSupported: this GPU or driver does not offer it)." in page
    found = {"".join(one.itertext()) for one in drawing.iter() if one.tag.endswith("text")}
    assert {"SM clock", "GPU temperature", "power of a GPU"} <= found and "memory temperature" not in found


def test_a_run_stands_at_its_time(made: dict[str, Any], page: str) -> None:
    """Order along the axis is order in time, and rates rise upwards."""
    points = [m for m in marks(svg(page, "timeline")) if m.tag == "circle"]
    spots = [
        (float(p.get("cx", "nan")), float(p.get("cy", "nan")), h) for p, h in zip(points, hovers(points), strict=True)
    ]
    assert [x for x, _, _ in spots] == sorted(x for x, _, _ in spots)
    rates = [float(re.search(r": ([0-9.]+) tok/s", h)[1]) for _, _, h in spots]  # type: ignore[index]
    low, high = rates.index(min(rates)), rates.index(max(rates))
    assert spots[low][1] > spots[high][1]


def test_runs_by_launch_and_token_times(made: dict[str, Any], page: str) -> None:
    drawing = svg(page, "spread")
    assert len(marks(drawing)) == 160 and len(marks(drawing, "mean")) == 32
    drawing = svg(page, "traces")
    chunks = [len(plots.typical(arm)[2].tokens) - 1 for arm in read(made).arms]  # type: ignore[index]
    assert (
        0.9 * sum(min(n, plots.BINS) for n in chunks) <= len(marks(drawing)) <= sum(min(n, plots.BINS) for n in chunks)
    )
    assert all(n > 50 for n in chunks)
    assert len(marks(svg(page, "economics"))) == 6


def test_a_pause_in_a_stream_survives_thinning() -> None:
    points = [(float(i), 12.0) for i in range(5000)]
    points[3210] = (3210.0, 480.0)
    bins = thin(points, 0.0, 5000.0, 240)
    assert len(bins) == 240 and max(one.high for one in bins) == 480.0
    assert {one.low for one in bins} == {12.0} and {one.middle for one in bins} == {12.0}


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.31, 12.2), (81.3, 81.9), (0.0, 2048.0), (5.0, 5.0)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high, 5)
    assert 1 <= len(found) <= 8 and all(low <= tick <= high for tick in found)
    assert len(found) == 1 or all(float(f"{tick:.3g}") == pytest.approx(tick, abs=1e-9) for tick in found)


def test_no_gpu_is_said_and_not_drawn() -> None:
    page = html.render(campaign(blocks=4, gpus=0))
    why = "LibraryNotFound: no NVIDIA driver is installed"
    assert f"Not drawn: SM clock, GPU temperature, memory temperature, power of a GPU ({why})." in page
    assert marks(svg(page, "timeline"), "band") == []
    assert "No GPU was read" in page


def test_a_campaign_that_went_on_next_day_is_readable() -> None:
    made = campaign(blocks=4, throttled=None)
    for arm in made["arms"]:
        for launch in arm["launches"]:
            if launch["block"] >= 2:
                launch["time"] = {k: v + 86_400 for k, v in launch["time"].items()}
                for run in launch["runs"]:
                    run["began"] += 86_400
                for gpu in launch["machine"]["gpus"]:
                    gpu["samples"]["t"] = [t + 86_400 for t in gpu["samples"]["t"]]
    drawing = svg(html.render(made), "timeline")
    (pause,) = marks(drawing, "pause")
    assert "nothing was measured from" in hovers([pause])[0]
    xs = sorted(float(m.get("cx", "nan")) for m in marks(drawing) if m.tag == "circle")
    assert sum(x < float(pause.get("x", "nan")) for x in xs) == len(xs) / 2


def test_the_time_axis_shows_what_was_measured_and_marks_long_pauses() -> None:
    times = [(1000.0 * i, 1000.0 * i + 100) for i in range(9)]
    times[5:] = [(began + 86_400, ended + 86_400) for began, ended in times[5:]]
    clock = over_time.Clock.over([*times, (20.0, 80.0)])  # one that lies within another changes nothing
    widths = [right - left for _, _, left, right in clock.spans]
    assert len(widths) == 9 and widths == pytest.approx([widths[0]] * 9)
    assert sum(widths) > 0.7 * (clock.spans[-1][3] - clock.spans[0][2])
    assert clock(50.0) == pytest.approx((clock(0.0) + clock(100.0)) / 2)
    ((left, right, began, ended),) = clock.pauses
    assert (began, ended) == (4100.0, 91_400.0) and clock(4100.0) < left < right < clock(91_400.0)
    ticks_at = [x for x, _ in clock.ticks()]
    assert all(b - a >= over_time.TICKS_APART for a, b in pairwise(ticks_at)) and len(ticks_at) > 4


@pytest.mark.parametrize("late", [1, 12, 20])
def test_a_pause_lies_within_the_plot_however_late_it_comes(late: int) -> None:
    times = [(1000.0 * i, 1000.0 * i + 100) for i in range(24)]
    times[late:] = [(began + 86_400, ended + 86_400) for began, ended in times[late:]]
    clock = over_time.Clock.over(times)
    assert len(clock.pauses) == 1 and clock.spans[-1][3] == pytest.approx(RIGHT)


def test_so_many_pauses_lie_within_the_plot() -> None:
    begins = [i * 100.0 + 86_400 * (i // 2) for i in range(60)]
    clock = over_time.Clock.over([(began, began + 90) for began in begins])
    assert len(clock.pauses) == over_time.MOST_PAUSES and clock.spans[-1][3] == pytest.approx(RIGHT)
