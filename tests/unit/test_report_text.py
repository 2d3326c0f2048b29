"""The report on a terminal: the table of arms within its width, and progress that tells where it is and no verdict."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

pytest.importorskip("jinja2")

from sglang_ext.bench.report import text
from sglang_ext.bench.report.read import campaign as read
from sglang_ext.bench.report.read import means
from tests.unit import report_page

made = report_page.made  # the fixture


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
