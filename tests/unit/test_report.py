"""What the report of a campaign says: a verdict in a sentence, no number where none counts, and what was set as such."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("jinja2")

from sglang_ext.bench.report import html, sheets, text, words
from sglang_ext.bench.report.read import campaign as read
from tests.unit import report_page, sample_campaign
from tests.unit.report_page import Tags, hovers, marks, svg
from tests.unit.sample_campaign import SUMMARY, campaign

made, page = report_page.made, report_page.page  # the fixtures


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
