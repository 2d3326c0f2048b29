"""The report of a campaign: what is drawn, what is said, what is never said, and that no receipt can do anything to readers."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")

from sglang_ext.bench.report import html, over_time, plots, sheets, text, words
from sglang_ext.bench.report.read import campaign as read
from sglang_ext.bench.report.read import means
from sglang_ext.bench.report.svg import RIGHT, thin, ticks
from tests.unit import headless, sample_campaign
from tests.unit.sample_campaign import SUMMARY, campaign

NASTY = "</script></style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=x &amp; {{ 7*7 }} \x1b[31m\n"
NASTY += "\u202e\u2066\u200b"
PLOTS = ("paired", "timeline", "spread", "traces", "economics")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return campaign()


@pytest.fixture(scope="module")
def page(made: dict[str, Any]) -> str:
    return html.render(made)


def svg(page: str, name: str) -> ElementTree.Element:
    """A plot of the page; it must be well formed by itself."""
    found = re.search(rf'<svg class="plot" id="plot-{name}".*?</svg>', page, re.DOTALL)
    assert found, f"no plot {name}"
    return ElementTree.fromstring(found[0])


def marks(drawing: ElementTree.Element, kind: str = "mark") -> list[ElementTree.Element]:
    return [one for one in drawing.iter() if kind in one.get("class", "").split()]


def centre(mark: ElementTree.Element) -> float:
    """Where a polygon stands along x."""
    at = [float(pair.partition(",")[0]) for pair in mark.get("points", "").split()]
    return (min(at) + max(at)) / 2


def hovers(elements: list[ElementTree.Element]) -> list[str]:
    return [one.findtext("title") or "" for one in elements]


class Tags(HTMLParser):
    """Every tag and attribute name of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


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


def test_the_verdict_is_a_sentence(page: str, made: dict[str, Any]) -> None:
    words = " ".join(" ".join(Tags(page).words).split())
    for one in made["comparisons"]:
        assert f"{one['ratio']:.3f} times its decode rate (95% interval {one['low']:.3f} to {one['high']:.3f})" in words
    assert "eagle3-2 is faster than baseline" in words
    assert "no difference is found where there is none" in words
    assert "needs " in words and "to break even" in words
    assert SUMMARY in words


def test_cannot_tell_names_the_detectable_effect() -> None:
    made = campaign(
        arms=(sample_campaign.ARMS[0], sample_campaign.ARMS[1], sample_campaign.Made("other", 82.3)), throttled=None
    )
    one = made["comparisons"][1]
    one["verdict"], one["mde"], made["state"] = "inconclusive", 0.0164, "INCONCLUSIVE"
    one["economics"] = {"accept": 2.71, "break_even_accept": 2.77, "step_ms": 33.0, "base_step_ms": 12.0}
    for said in (html.render(made), text.render(made)):
        assert "Cannot tell whether other is faster or slower than baseline" in said
        assert "These pairs show a difference of 1.6% four times in five" in said
        assert "whether it pays is not decided" in said and "it does not pay" not in said


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("same", "eagle3-2 is as fast as baseline within 1%"),
        ("no regression", "eagle3-2 is not slower than baseline by more than 1%"),
    ],
)
def test_within_the_margin(verdict: str, words: str) -> None:
    made = campaign(blocks=4, throttled=None)
    made["comparisons"][1]["verdict"] = verdict
    assert words in html.render(made) and words in text.render(made)


def test_what_the_real_verdict_makes_of_it() -> None:
    """The record as `study` fills it in, and not as the samples do."""
    pytest.importorskip("scipy")
    from sglang_ext.study.verdict import judge

    made = judge({**campaign(), "comparisons": [], "excluded": []})
    page, table = html.render(made), text.render(made)
    assert made["comparisons"] and made["excluded"]
    for one in made["comparisons"]:
        assert f"{one['ratio']:.3f} times its decode rate (95% interval {one['low']:.3f} to {one['high']:.3f})" in page
        assert f"{100 * (one['ratio'] - 1):+.2f}%" in table
    assert len(marks(svg(page, "paired"))) == sum(one["pairs"] for one in made["comparisons"]) + len(made["excluded"])
    assert len(marks(svg(page, "economics"))) == 6 and "break even" in table


@pytest.mark.parametrize("state", ["INVALID", "UNRECONCILED", "UNKNOWN", "of another release"])
def test_no_ratio_where_no_number_counts(state: str) -> None:
    made = campaign(state=state, reason="verdict_lost: a worker ended", blocks=4, gpus=1)
    page, table = html.render(made), text.render(made)
    without_hovers = re.sub(r"<title>[^<]*</title>", "", page)  # of single pairs and runs: evidence, and no result
    for one in made["comparisons"]:
        for shown in (
            f"{one['ratio']:.3f} times",
            f"{100 * (one['ratio'] - 1):+.2f}%",
            f"{100 * (one['low'] - 1):+.2f}%",
        ):
            assert shown in text.render({**made, "state": "VALID"})
            assert shown not in table and shown not in without_hovers
    for said in (re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL), table):
        assert "no number counts" in said and "verdict_lost: a worker ended" in said
        assert not re.search("faster|slower|to break even|it pays", said)
    assert page.count("None of them counts") >= 4
    assert "plot-economics" not in page and "tok/s" not in table
    assert marks(svg(page, "paired"), "interval") == []
    assert all("hollow" in mark.get("class", "") for mark in marks(svg(page, "paired")))


def test_no_gpu_is_said_and_not_drawn() -> None:
    page = html.render(campaign(blocks=4, gpus=0))
    why = "LibraryNotFound: no NVIDIA driver is installed"
    assert f"Not drawn: SM clock, GPU temperature, memory temperature, power of a GPU ({why})." in page
    assert marks(svg(page, "timeline"), "band") == []
    assert "No GPU was read" in page


def test_a_launch_that_was_given_up_is_hollow_and_nothing_to_reconcile() -> None:
    made = campaign(blocks=2, runs=3, throttled=None)
    given_up = made["arms"][2]["launches"][0]
    given_up.update(state="abandoned", reason="block_unfinished: it was interrupted", reconciliation=None)
    made["comparisons"] = []
    page = html.render(made)
    hollow = hovers(marks(svg(page, "timeline"), "hollow"))
    assert len(hollow) == 3 and all("does not count: the launch was abandoned" in said for said in hollow)
    assert "7 launches RECONCILED; the largest difference is" in page and "7 of 8 launches finished" in page
    for arm in made["arms"]:
        for launch in arm["launches"]:
            launch["reconciliation"] = None
    assert "7 launches UNKNOWN. Client" in html.render(made)


def test_simulated_acceptance_is_labelled_wherever_it_appears() -> None:
    made = campaign(blocks=4, simulated=True, throttled=None)
    page, table = html.render(made), text.render(made)
    for name in ("eagle3-2", "eagle3-3"):
        label = f"{name} (simulated acceptance)"
        for plot in ("paired", "spread", "traces", "economics"):
            assert any(label in "".join(one.itertext()) for one in svg(page, plot).iter() if one.tag == "text"), plot
        assert page.count(f'<th scope="row" class="short">{label}</th>') == 2  # both tables of figures
        assert f"{label} is " in page and f"{label} is " in table
        assert re.search(rf"^{re.escape(label)} ", table, re.MULTILINE)
    assert "was set and not measured" in page
    assert "imulated acceptance" not in html.render(campaign(blocks=2, throttled=None))


def nasty(value: Any) -> Any:
    """The same receipt, every text of it an attack; what chooses the way through the report stays."""
    if isinstance(value, dict):
        return {k: v if k in ("schema", "state", "verdict") else nasty(v) for k, v in value.items()}
    if isinstance(value, list):
        return [nasty(v) for v in value]
    return value + NASTY if isinstance(value, str) else value


def test_a_receipt_cannot_break_out() -> None:
    made = campaign(blocks=3, simulated=True, gpus=2, throttled=(1, "eagle3-3"))
    clean, page = Tags(html.render(made)), html.render(nasty(made))
    found = Tags(page)
    assert "<script" not in page and "<img" not in page and "{{ 7*7 }}" in "".join(found.words)
    assert not any(ch in page for ch in "\x1b\u202e\u2066\u200b") and "\\u202e\\u2066\\u200b" in page
    assert found.tags <= clean.tags and found.attributes <= clean.attributes
    for name in PLOTS:
        svg(page, name)
    for line in text.render(nasty(made), width=100).splitlines():
        assert line.isprintable(), line
    assert text.progress_line(nasty(made), NASTY).isprintable()


def test_names_of_things_cannot_break_out_either() -> None:
    made = campaign(blocks=2, throttled=None)
    for arm in made["arms"]:
        arm["fingerprint"]["arguments"][NASTY] = NASTY + arm["name"]
        arm["fingerprint"]["contract"]["variables"][NASTY] = {"want": "1"}
    made["suite"]["workload"][NASTY] = 1
    made["plan"][NASTY] = 1
    assert "<script" not in html.render(made)


def test_nothing_comes_from_elsewhere(page: str) -> None:
    assert all(value.startswith(("#", "data:,")) for value in Tags(page).values)
    assert "url(" not in page and "@import" not in page and "<script" not in page
    assert "default-src 'none'" in page


def test_the_same_receipt_gives_the_same_page(made: dict[str, Any], page: str) -> None:
    assert html.render(json.loads(json.dumps(made, sort_keys=True))) == page


@pytest.mark.parametrize(("tokens", "number"), [(20_000, 2000), pytest.param(60_000, 5000, marks=pytest.mark.e2e)])
def test_its_size_is_bounded(tokens: int, number: int) -> None:
    """A long campaign with long streams, sampled often: hundreds of megabytes of receipt would not be a page."""
    made = campaign(blocks=10, runs=4, tokens=16, gpus=1)
    long = {"t": [i * 0.01 for i in range(tokens)], "tokens": list(range(1, tokens + 1))}
    for arm in made["arms"]:
        for launch in arm["launches"]:
            launch["runs"][0]["trace"] = long
            launch["runs"] *= 50
            samples = launch["machine"]["gpus"][0]["samples"]
            began = launch["runs"][0]["began"]
            samples["t"] = [began + i * 0.001 for i in range(number)]
            for field in ("sm_mhz", "temp_c", "power_w"):
                samples[field] = [1000 + i % 97 for i in range(number)]
    made["notes"] = ["x" * 1_000_000] * 3
    page = html.render(made)
    assert len(page) < 2_000_000
    assert len(marks(svg(page, "traces"))) <= 4 * plots.BINS
    for name in ("spread", "timeline"):
        points = [m for m in marks(svg(page, name)) if m.tag in ("circle", "polygon")]
        assert plots.MOST_MARKS / 2 < len(points) <= plots.MOST_MARKS + 200, name
    assert page.count("One of 3 runs is shown") >= 2


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


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*path, 0))


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.e2e)])
def test_a_damaged_receipt_still_gives_a_report(every: int) -> None:
    """Each value in turn replaced by one of another kind: a report says less then, and never ends in a traceback.

    One of seven values will do in `make unit`: neighbours are alike.
    """
    made = campaign(arms=sample_campaign.ARMS[::2], blocks=2, runs=1, tokens=6, gpus=1, throttled=None)
    chance = random.Random(1)
    wrong = [None, [], {}, "x", -1, 1e300, 10**400, True, [None], ["x"], {"x": None}, float("nan"), 0]
    tried = 0
    whole = [path for path in paths(made) if path]
    for path in {*whole[::every], *whole[:5], *whole[-5:]}:
        damaged = copy.deepcopy(made)
        inner = damaged
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = chance.choice(wrong)
        page, table = html.render(damaged), text.render(damaged)
        text.progress_line(damaged)
        assert page.rstrip().endswith("</html>") and table, path
        for found in re.findall(r"<svg class=\"plot\".*?</svg>", page, re.DOTALL):
            assert "nan" not in re.sub(r"<(title|text)[ >].*?</\1>", "", found), path
            ElementTree.fromstring(found)
        tried += 1
    assert tried > 150 // every
    assert html.render({}) and text.render({}) and text.progress_line({})


def test_a_receipt_of_a_single_bench_run_can_be_read_too() -> None:
    whole = campaign(blocks=2, throttled=None)
    launch = {"verified": True, "runs": whole["arms"][0]["launches"][0]["runs"], "warmups": []}
    single = {
        "schema": "sglang-ext/bench/1",
        "state": "VALID",
        "time": whole["time"],
        "suite": {"name": "baseline", "summary": "S", "workload": {}},
        "fingerprint": whole["arms"][0]["fingerprint"],
        "arms": [{"name": "baseline", "launches": [launch]}],
        "comparisons": [],
    }
    page = html.render(single)
    assert "nothing to compare it with" in page and "plot-paired" not in page and "NCCL_PROTO" in page
    assert len(marks(svg(page, "spread"))) == 5


def test_the_table_of_arms(made: dict[str, Any]) -> None:
    lines = text.render(made).splitlines()
    assert lines[0].split()[:2] == ["arm", "launches"]
    row = next(line for line in lines if line.startswith("eagle3-3 "))
    found = means(read(made).arms[3], 8)
    assert (
        "7 of 8" in row
        and f"{found.rate:.2f}" in row
        and f"{found.accept:.2f}" in row
        and f"{found.step_ms:.2f}" in row
    )
    assert found.accept is not None and found.step_ms is not None and found.rate is not None
    assert 1000 * found.accept / found.step_ms == pytest.approx(
        found.rate, rel=0.02
    )  # the prefill's token is in L alone
    base = next(line for line in lines if line.startswith("baseline "))
    assert " - " in base  # it does not speculate: no accept length, and none "unknown"
    assert lines[-1].startswith("VALID; 32 of 32 launches finished, 1 pair excluded by rule")


@pytest.mark.parametrize("width", [24, 40, 80, 132])
def test_no_line_is_wider_than_the_terminal(made: dict[str, Any], width: int) -> None:
    assert max(map(len, text.render(made, width=width).splitlines())) <= max(width, 24)
    assert len(text.progress_line(made, "baseline", width=width)) <= width


def test_without_a_terminal_nothing_is_broken_or_coloured(made: dict[str, Any]) -> None:
    table = text.render(made)
    assert "\x1b" not in table
    assert any(len(line) > 132 for line in table.splitlines())
    assert "\x1b[32mVALID\x1b[0m" in text.render(made, colour=True)


def test_progress_says_where_it_is_and_no_verdict(made: dict[str, Any]) -> None:
    """After two launches of block 3, by their own times."""
    order = made["plan"]["blocks"]
    done = {(b, name) for b in range(2) for name in order[b]} | {(2, name) for name in order[2][:2]}
    partial = copy.deepcopy(made)
    for arm in partial["arms"]:
        arm["launches"] = [launch for launch in arm["launches"] if (launch["block"], arm["name"]) in done]
    line = text.progress_line(partial, order[2][2])
    assert line.startswith(f"block 3 of 8, launch 11 of 32, {order[2][2]}, about ")
    took = {
        arm["name"]: [launch["time"]["ended"] - launch["time"]["began"] for launch in arm["launches"]]
        for arm in partial["arms"]
    }
    rest = [name for b, names in enumerate(order) for name in names if (b, name) not in done]
    left = sum(sum(took[name]) / len(took[name]) for name in rest)
    hours, minutes = divmod(round(left / 60), 60)
    assert f"about {hours} h {minutes} min left" in line
    rate = means(read(partial).arms[0], 0).rate
    assert f"baseline {rate:.2f} ({len(took['baseline'])})" in line
    assert not re.search(r"faster|slower|same|%|times|\bp\b", line)  # the comparisons are in the record, and stay there


def test_progress_before_the_first_launch_has_ended(made: dict[str, Any]) -> None:
    empty = copy.deepcopy(made)
    for arm in empty["arms"]:
        arm["launches"] = []
    assert text.progress_line(empty, "baseline") == "block 1 of 8, launch 1 of 32, baseline, time left not known yet"


def test_progress_goes_by_launches_that_were_given_up_where_none_is_finished(made: dict[str, Any]) -> None:
    """Those that were measured: one that was interrupted while its server started says little."""
    partial = copy.deepcopy(made)
    for arm in partial["arms"]:
        del arm["launches"][1:]
        arm["launches"][0].update(state="abandoned", time={"began": 100.0, "ready": 120.0, "ended": 160.0})
    early = {**copy.deepcopy(partial["arms"][0]["launches"][0]), "runs": [], "time": {"began": 50.0, "ended": 51.0}}
    partial["arms"][0]["launches"].append(early)
    line = text.progress_line(partial, "baseline")
    assert line.startswith("block 1 of 8, launch 1 of 32, baseline, about 32 min left"), line


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_dark_and_print_can_be_read() -> None:
    """WCAG AA: 4.5 for text, 3 for what is drawn."""
    css = Path(html.__file__).with_name("page.css").read_text()
    schemes = [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{3,6})", part)) for part in css.split(":root {")[1:4]]
    assert len(schemes) == 3 and all(len(scheme) >= 20 for scheme in schemes)
    for scheme in schemes:

        def contrast(a: str, b: str, scheme: dict[str, str] = scheme) -> float:
            high, low = sorted((luminance(scheme[a]), luminance(scheme[b])), reverse=True)
            return (high + 0.05) / (low + 0.05)

        for ink in ("ink", "quiet", "link", "good", "bad", "open"):
            assert contrast(ink, "paper") >= 4.5, ink
        for kind in ("good", "bad", "open"):
            assert contrast(kind, f"{kind}-tint") >= 4.5 and contrast("ink", f"{kind}-tint") >= 4.5
        for series in range(8):
            assert contrast(f"c{series}", "paper") >= 3, series


# Of every plot: its name, its size, the marks that are not drawn, texts that are cut off, and those that stand on each other.
LOOK = """
[...document.querySelectorAll('svg.plot')].map(s => {
  const view = s.viewBox.baseVal, texts = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBBox()])
  const apart = (a, b) => a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y + 3 || b.y + b.height <= a.y + 3
  return {
    name: s.id, width: s.getBoundingClientRect().width, height: s.getBoundingClientRect().height,
    undrawn: [...s.querySelectorAll('.mark')].filter(m => !(m.getBBox().width > 0 && m.getBBox().height > 0)).length,
    cut: texts.filter(([, b]) => b.x < -1 || b.x + b.width > view.width + 1 || b.y + b.height > view.height + 1).map(t => t[0]),
    crossed: texts.flatMap(([said, a], i) => texts.slice(i + 1).filter(([, b]) => !apart(a, b)).map(t => said + ' / ' + t[0])),
  }
})
"""


@pytest.mark.e2e  # a real browser
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_a_browser_draws_all_of_it(tmp_path: Path, width: int, dark: bool) -> None:
    browser = headless.found()
    if browser is None:
        pytest.skip("no chromium on PATH")
    made = campaign(simulated=True)
    made["arms"][2]["summary"] = "x" * 500
    file = tmp_path / "report.html"
    file.write_text(html.render(made), encoding="utf-8")
    with headless.Page(browser, tmp_path, width=width, dark=dark) as shown:
        shown.load(file)
        plots_there = shown.evaluate(LOOK)
        assert [one["name"] for one in plots_there] == [f"plot-{name}" for name in PLOTS]
        for one in plots_there:
            assert one["width"] > 300 and one["height"] > 100 and one["undrawn"] == 0, one
            assert one["cut"] == [] and one["crossed"] == [], one
        assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
        paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(17, 21, 26)" if dark else "rgb(255, 255, 255)")
        assert shown.problems == []


def test_a_control_that_could_not_have_seen_anything_gets_no_tick() -> None:
    made = campaign()
    effect = made["plan"]["effect"]
    control = next(one for one in made["comparisons"] if one["control"])

    def said(low: float, high: float) -> words.Said:
        control.update(ratio=1.0, low=low, high=high)
        found = read(made)
        return words.say(found, next(one for one in found.comparisons if one.control))

    assert said(1 - effect / 2, 1 + effect / 2).mark == "✓"
    wide = said(0.5, 2.0)
    assert wide.mark == "?" and "might have gone unseen" in wide.meaning
    assert said(1.01, 1.5).mark == "✗"


def test_patches_of_a_server_that_ran_already_are_what_was_seen() -> None:
    made = campaign(blocks=2, throttled=None)
    made["suite"]["arms"][0]["address"] = made["suite"]["arms"][1]["address"] = "http://127.0.0.1:30000"
    made["suite"]["arms"][2]["patches"] = False
    made["arms"][1]["fingerprint"] = {
        "patches": {"patchset": None, "mode": None, "imported": None, "reason": "nothing"}
    }
    assert [row[2] for row in sheets.commands(read(made)).rows] == ["on", "unknown", "off", "on"]
