"""Break-even and attribution: the worked examples of the origin, and what holds exactly of any step."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st

from sglang_ext.study.economics import (
    Step,
    accept_length,
    attribution,
    break_even,
    chance_needed,
    economics,
    longest_step,
    mean_step,
    step_of,
)
from tests.unit.cases import given_cases
from tests.unit.study_campaign import run

BASE = Step(1.0, 1000 / 82.2)
STEPS = st.builds(Step, st.floats(1, 8), st.floats(0.5, 500))


def test_the_origins_baseline_and_a_step_of_30_ms() -> None:
    assert BASE.ms == pytest.approx(12.165, abs=5e-4)
    assert break_even(30, BASE) == pytest.approx(2.466, abs=5e-4)


def test_the_chance_a_token_must_have() -> None:
    needed = break_even(30, BASE)
    assert chance_needed(needed, 2) == pytest.approx(0.810, abs=5e-4)
    assert chance_needed(needed, 3) == pytest.approx(0.682, abs=5e-4)
    assert chance_needed(4.1, 3) is None and chance_needed(0.9, 3) is None
    assert chance_needed(1.0, 3) == pytest.approx(0, abs=1e-12) and chance_needed(4.0, 3) == pytest.approx(1)


def test_published_accept_lengths_at_30_ms() -> None:
    chance = chance_needed(2.687, 3)
    assert chance is not None and chance == pytest.approx(0.739, abs=5e-4)
    two = accept_length(chance, 2)
    assert two == pytest.approx(2.28, abs=0.006)
    assert Step(2.687, 30).rate == pytest.approx(89.6, abs=0.05) and Step(2.687, 30).rate / 82.2 == pytest.approx(
        1.09, abs=0.002
    )
    assert Step(two, 30).rate == pytest.approx(76.1, abs=0.1) and Step(two, 30).rate / 82.2 == pytest.approx(
        0.93, abs=0.005
    )
    assert longest_step(2.687, BASE) == pytest.approx(32.7, abs=0.05) and longest_step(two, BASE) == pytest.approx(
        27.8, abs=0.05
    )
    assert longest_step(2.295, BASE) == pytest.approx(27.9, abs=0.05) and longest_step(3.285, BASE) == pytest.approx(
        40.0, abs=0.05
    )


def test_a_third_step_pays_only_while_it_is_cheap() -> None:
    cumulative = (0.633, 0.404, 0.264)
    two, three = 1 + sum(cumulative[:2]), 1 + sum(cumulative)
    assert (two, three) == (pytest.approx(2.04, abs=0.005), pytest.approx(2.30, abs=0.005))
    assert Step(three, 24 * 1.14).rate < Step(two, 24).rate < Step(three, 24 * 1.12).rate


def test_what_94_and_60_leave_open() -> None:
    fall, own = math.log(60 / 94), math.log(82.2 / 88.8)
    assert fall == pytest.approx(-0.449, abs=5e-4) and own == pytest.approx(-0.077, abs=5e-4)
    assert fall - own == pytest.approx(-0.372, abs=5e-4) and 1 - math.exp(fall - own) == pytest.approx(0.31, abs=0.005)
    # At 60 tok/s one L goes with one step; without either nothing is known.
    assert [1000 * accept / 60 for accept in (1.8, 2.3, 3.0)] == [
        pytest.approx(30.0),
        pytest.approx(38.3, abs=0.05),
        50.0,
    ]


@given_cases(100, STEPS, STEPS)
def test_the_attribution_has_no_remainder(base: Step, arm: Step) -> None:
    change = attribution(base, arm)
    assert change.rate == change.accept - change.step
    assert change.rate == pytest.approx(math.log(arm.rate / base.rate), abs=1e-9)


@given_cases(100, STEPS, STEPS)
def test_break_even_is_as_fast_as_the_baseline(base: Step, arm: Step) -> None:
    assert Step(break_even(arm.ms, base), arm.ms).rate == pytest.approx(base.rate, rel=1e-9)
    assert Step(arm.tokens, longest_step(arm.tokens, base)).rate == pytest.approx(base.rate, rel=1e-9)
    if abs(arm.rate / base.rate - 1) > 1e-9:
        assert (
            (arm.rate > base.rate)
            == (arm.tokens > break_even(arm.ms, base))
            == (arm.ms < longest_step(arm.tokens, base))
        )


@given_cases(100, st.floats(0, 1), st.integers(1, 8))
def test_accept_length_and_its_chance(chance: float, steps: int) -> None:
    tokens = accept_length(chance, steps)
    assert 1 <= tokens <= steps + 1
    found = chance_needed(tokens, steps)
    assert found is not None and accept_length(found, steps) == pytest.approx(tokens, abs=1e-9)


def test_the_step_of_a_run() -> None:
    plain = step_of(run(82.2))
    assert plain is not None and plain.tokens == pytest.approx(1.0) and plain.rate == pytest.approx(82.2)
    # 2047 tokens after the prefill's, in 682 verify steps of 30 ms; SGLang's accept length counts 2048.
    span = 682 * 0.030
    told = step_of(run(2047 / span, step_ms=30.0, accept_length=2048 / 682))
    assert told == (pytest.approx(2047 / 682), 30.0)
    # Where only the accept length shows, it is L, and the step is what the rate leaves.
    assert step_of(run(90.0, step_ms=None, accept_length=2.7)) == (2.7, pytest.approx(30.0))
    assert step_of(run(90.0, step_ms=None)) is None and step_of(run(90.0, decode_tok_s=None)) is None


def test_the_step_of_several_launches() -> None:
    fast, slow = run(100.0, step_ms=20.0), run(100.0 / 4, step_ms=80.0)
    found = mean_step([[fast, fast, slow], [slow]])
    assert found is not None and found.tokens == pytest.approx(2.0)
    # Mean of logs within the launch, then over launches: 20 * 4^(1/3) and 80, not the mean over four runs.
    assert found.ms == pytest.approx(math.sqrt(20 * 4 ** (1 / 3) * 80))
    assert mean_step([[fast], [run(100.0, step_ms=None)]]) is None and mean_step([]) is None and mean_step([[]]) is None


def test_the_record_of_an_arm() -> None:
    found = economics(BASE, Step(2.687, 30))
    assert found["dln_rate"] == found["dln_accept"] - found["dln_step"]
    assert found["dln_accept"] == pytest.approx(0.988, abs=5e-4) and found["dln_step"] == pytest.approx(0.903, abs=5e-4)
    assert found["break_even_accept"] == pytest.approx(2.466, abs=5e-4)
    assert found["longest_step_ms"] == pytest.approx(32.7, abs=0.05)


def test_break_even_against_a_baseline_that_speculates() -> None:
    """Two steps against three: the longer one must bring in proportion to what it takes."""
    assert break_even(36, Step(2.0, 30)) == pytest.approx(2.4)
