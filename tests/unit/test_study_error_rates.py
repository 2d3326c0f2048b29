"""The promised error rates, by a small simulation of the shipped code; and that the usual designs would break the promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sglang_ext.study import decision, sequential
from sglang_ext.study.verdict import judge
from tests.unit.study_campaign import campaign, rates
from tools import error_rates
from tools.error_rates import BASE, BLOCKS, CONTROL, DRIFTS, MOST_FALSE, OURS, Rates, ordered, shipped, shipped_logs

REPEATS = 3000
SLACK = 3 * math.sqrt(MOST_FALSE * (1 - MOST_FALSE) / REPEATS)  # 1.3 points; what is wrong is wrong by more


@pytest.fixture(scope="module")
def found() -> dict[str, Rates]:
    return error_rates.run(REPEATS, 7)[0]


@pytest.mark.parametrize("drift", DRIFTS)
def test_false_verdicts_stay_within_the_promise(found: dict[str, Rates], drift: str) -> None:
    for group in (found[drift].false, found[drift].claims):
        assert {name: share for name, share in group.items() if name in OURS and share > MOST_FALSE + SLACK} == {}


@pytest.mark.parametrize("drift", DRIFTS)
def test_two_percent_are_found(found: dict[str, Rates], drift: str) -> None:
    power = found[drift].power
    assert min(power["fixed"], power["fixed, and A/A holds"], power["sequential"]) >= error_rates.LEAST_POWER - SLACK


@pytest.mark.parametrize(
    ("design", "drift"),
    [
        ("AAAABBBB", "linear, -5 % from first to last launch"),
        ("AAAABBBB", "thermal soak, -5 %"),
        ("AAAABBBB", "random walk, 3 % at the end"),
        ("stale baseline", "linear, -5 % from first to last launch"),
        ("stale baseline", "random walk, 3 % at the end"),
        ("ABAB", "linear, -5 % from first to last launch"),
        ("a look after every block", "none"),
        ("two arms, no Holm", "none"),
    ],
)
def test_the_bound_is_one_that_wrong_designs_break(found: dict[str, Rates], design: str, drift: str) -> None:
    assert found[drift].false[design] > MOST_FALSE + SLACK


def test_without_drift_all_designs_are_sound(found: dict[str, Rates]) -> None:
    """Else the simulation itself would be what is wrong with them."""
    for design in ("AAAABBBB", "stale baseline", "ABAB", "ABBA"):
        assert found["none"].false[design] < MOST_FALSE + SLACK


def test_a_broken_promise_is_found(found: dict[str, Rates]) -> None:
    bad = Rates({"fixed": 0.07, "AAAABBBB": 1.0}, {"fixed": 0.5, "fixed, and A/A holds": 0.95, "sequential": 0.95}, {})
    assert error_rates.broken({"none": bad}) == [
        "drift none, fixed: expected 6% false at most, found 7.00%",
        "drift none, fixed: expected power 0.9, found 0.500",
    ]


@pytest.mark.parametrize("repeats", [5, pytest.param(12, marks=pytest.mark.e2e)])
@pytest.mark.parametrize("rule", ["fixed", sequential.SEQUENTIAL])
@pytest.mark.parametrize("effect", [0.0, 0.02, 0.15])
def test_what_is_simulated_is_what_judges_a_record(rule: str, effect: float, repeats: int) -> None:
    """The same campaigns through arrays and, block after block with stop(), through records: same verdicts, same blocks."""
    places = ordered((BASE, CONTROL, "B"), repeats, 11)
    logs = shipped_logs(DRIFTS["linear, -5 % from first to last launch"], np.random.default_rng(5), places)
    logs = logs + np.array([0.0, math.log1p(effect)])[:, None, None]
    logs[0, 0] += 0.05  # one control that fails
    outcome = shipped(logs, rule)
    for number in range(repeats):
        control, arm = logs[0, number], logs[1, number]
        for blocks in range(1, BLOCKS + 1):
            made = campaign(
                {BASE: rates([0.0] * blocks), CONTROL: rates(control[:blocks]), "B": rates(arm[:blocks])},
                planned=BLOCKS,
                rule=rule,
            )
            made["plan"]["stopped"] = sequential.stop(made)
            if made["plan"]["stopped"]:
                break
        judged = judge(made)
        (said,) = [one["verdict"] for one in judged["comparisons"] if one["arm"] == "B"]
        failed = (judged["reason"] or "").startswith("control_failed")
        assert (said, failed, blocks) == (
            str(outcome.verdicts[0, number]),
            outcome.control_failed[number],
            outcome.blocks[number],
        )
    assert outcome.control_failed[0]
    if effect == 0.15:
        assert set(outcome.verdicts[0][1:]) == {decision.FASTER}
        assert (outcome.blocks.max() == BLOCKS // 2) == (rule == sequential.SEQUENTIAL)


def test_every_launch_has_a_place_of_its_own_in_its_block() -> None:
    places = ordered((BASE, CONTROL, "B", "C"), 50, 3)
    assert np.array_equal(np.sort(places.reshape(50, -1), axis=1), np.tile(np.arange(4 * BLOCKS), (50, 1)))
    assert all((places[:, block] // 4 == block).all() for block in range(BLOCKS))


def test_the_page_holds_what_the_tool_writes() -> None:
    page = error_rates.PAGE.read_text(encoding="utf-8")
    simulated = page[page.index(error_rates.BEGIN) + len(error_rates.BEGIN) : page.index(error_rates.END)]
    assert f"{error_rates.REPEATS} campaigns for each figure (seed {error_rates.SEED})" in simulated
    assert all(f"| {drift} |" in simulated for drift in DRIFTS)
    # What is computed must be as the code computes it now; simulated anew it is by the tool alone.
    rates, early = error_rates.run(20, 1)
    mark = "**Minimal detectable effect**"
    assert simulated.partition(mark)[2].strip() == error_rates.render(rates, early, 20, 1).partition(mark)[2].strip()
