"""No receipt can do anything to readers: hostile, damaged or huge, its page is closed in itself and stays small."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")

from sglang_ext.bench.report import html, plots, text
from tests.unit import report_page, sample_campaign
from tests.unit.report_page import PLOTS, Tags, marks, svg
from tests.unit.sample_campaign import campaign

made, page = report_page.made, report_page.page  # the fixtures

NASTY = "</script></style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=x &amp; {{ 7*7 }} \x1b[31m\n"
NASTY += "\u202e\u2066\u200b"


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
