"""The tests of differences: against values by hand, against scipy's own, and what must hold of any numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from sglang_ext.study.decision import FASTER, INCONCLUSIVE, NO_REGRESSION, SAME, SLOWER, decide
from sglang_ext.study.equivalence import equivalence
from sglang_ext.study.multiple import holm
from sglang_ext.study.paired import MOST, in_errors, least_sign_flip, paired, sign_flip
from tests.unit.cases import given_cases

LOGS = [0.021, 0.018, 0.025, 0.011, 0.030, 0.016, 0.022, 0.019]
NUMBERS = st.floats(-0.5, 0.5, allow_nan=False).map(lambda value: round(value, 6))
PAIRS = st.lists(NUMBERS, min_size=2, max_size=9)


def test_the_t_test_by_hand() -> None:
    # Mean 2, deviations -1 0 1: s = 1, s/sqrt(3) = 0.57735; t(0.975, 2) = 4.30265.
    found = paired([1.0, 2.0, 3.0], 0.05)
    assert found.pairs == 3 and float(found.mean) == 2.0 and float(found.spread) == 1.0
    assert float(found.error) == pytest.approx(0.57735, abs=1e-5)
    assert float(found.low) == pytest.approx(2 - 4.30265 * 0.57735, abs=1e-4)
    assert float(found.high) == pytest.approx(2 + 4.30265 * 0.57735, abs=1e-4)
    # Two degrees of freedom have a closed form: P(T > t) = (1 - t / sqrt(2 + t^2)) / 2, with t = 2 sqrt(3).
    t = 2 * math.sqrt(3)
    assert float(found.p) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-12)


def test_the_t_test_is_scipys() -> None:
    found, theirs = paired(LOGS, 0.05), stats.ttest_1samp(LOGS, 0)
    low, high = theirs.confidence_interval(0.95)
    assert float(found.p) == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (float(found.low), float(found.high)) == (pytest.approx(low, rel=1e-9), pytest.approx(high, rel=1e-9))


@given_cases(100, PAIRS, st.sampled_from([0.005, 0.045, 0.05]))
def test_interval_and_p_say_the_same(logs: list[float], level: float) -> None:
    found = paired(logs, level)
    assert found.low <= found.mean <= found.high
    if abs(float(found.p) - level) > 1e-9:
        assert (found.p < level) == (found.low > 0 or found.high < 0)


@given_cases(100, PAIRS)
def test_the_other_way_round_is_the_inverse(logs: list[float]) -> None:
    one, other = paired(logs, 0.05), paired([-value for value in logs], 0.05)
    assert float(one.p) == pytest.approx(float(other.p), rel=1e-9)
    assert float(one.low) == pytest.approx(-float(other.high), abs=1e-12)
    assert sign_flip(logs) == pytest.approx(sign_flip([-value for value in logs]))


def test_a_whole_array_at_once_is_each_by_itself() -> None:
    many = np.random.default_rng(1).normal(0, 0.01, (5, 3, 8))
    at_once = paired(many, 0.05)
    assert at_once.p.shape == (5, 3)
    for i, j in itertools.product(range(5), range(3)):
        alone = paired(many[i, j], 0.05)
        assert float(alone.p) == at_once.p[i, j] and float(alone.low) == at_once.low[i, j]


@pytest.mark.parametrize("logs", [[], [0.01]])
def test_one_pair_is_no_sample(logs: list[float]) -> None:
    with pytest.raises(ValueError, match="expected two pairs or more"):
        paired(logs, 0.05)


@pytest.mark.parametrize(
    ("logs", "p"), [([0.0, 0.0, 0.0], 1.0), ([0.01, 0.01, 0.01], 0.0), ([1e-16, 2e-16, 1e-16], 1.0)]
)
def test_no_spread_at_all(logs: list[float], p: float) -> None:
    """A scripted server gives it; and what rounding leaves of equal rates is no difference."""
    found = paired(logs, 0.05)
    assert float(found.p) == p and float(found.low) == float(found.high) == pytest.approx(logs[0], abs=1e-12)


def test_distances_without_error() -> None:
    assert in_errors(np.array([-1.0, 0.0, 2.0, 2.0]), np.array([0.0, 0.0, 0.0, 4.0])).tolist() == [
        -np.inf,
        0,
        np.inf,
        0.5,
    ]


def test_sign_flips_by_hand() -> None:
    # 1 + 2 - 4 = -1: of |±1±2±4| in {7, 3, 5, 1} twice each, all are 1 or more.
    assert sign_flip([1, 2, -4]) == 1.0
    assert sign_flip([1, 2, 4]) == 0.25  # 7 and -7 of eight
    assert sign_flip([2, 2, -1]) == 0.5  # 5, 3 and their opposites: four of eight reach 3
    assert sign_flip([1, 1, 1, 1, 1]) == least_sign_flip(5) == 0.0625
    assert sign_flip([0.1] * 3 + [-0.1] * 3) == 1.0


@given_cases(100, PAIRS)
def test_sign_flips_are_counted_as_one_would(logs: list[float]) -> None:
    seen = abs(math.fsum(logs))
    sums = [
        abs(math.fsum(s * v for s, v in zip(signs, logs, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(logs))
    ]
    tie = 1e-9
    assert sign_flip(logs) == sum(value >= seen - tie for value in sums) / len(sums)


@given_cases(100, st.permutations(LOGS))
def test_sign_flips_do_not_depend_on_the_order(logs: list[float]) -> None:
    assert sign_flip(logs) == sign_flip(LOGS) == 2 / 256


@pytest.mark.parametrize("size", [2, 5, 8, 12])
def test_sign_flips_are_scipys(size: int) -> None:
    logs = np.random.default_rng(size).normal(0.004, 0.01, size)
    theirs = stats.permutation_test(
        (logs,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", vectorized=True, n_resamples=np.inf
    )
    assert sign_flip(list(logs)) == pytest.approx(theirs.pvalue, rel=1e-12)


def test_sign_flips_of_many_pairs() -> None:
    """Every one of 2^30 choices is counted: with equal values the count is a sum of binomial coefficients."""
    logs = [1.0] * 20 + [-1.0] * 10
    exact = 2 * sum(math.comb(30, k) for k in range(20, 31)) / 2**30
    assert sign_flip(logs) == pytest.approx(exact, rel=1e-12)
    assert sign_flip([1.0] * (MOST + 1)) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == pytest.approx([0.02])
    assert holm([0.02], family=3) == pytest.approx([0.06])  # two arms came to no p: they were asked about all the same


P_VALUES = arrays.arrays(np.float64, st.integers(1, 6), elements=st.floats(0, 1))


@given_cases(100, P_VALUES)
def test_what_holm_does_to_any_family(p: np.ndarray) -> None:
    adjusted = holm(p)
    assert np.all(adjusted >= p) and np.all(adjusted <= np.minimum(p * len(p), 1) + 1e-12) and np.all(adjusted <= 1)
    order = np.argsort(p, kind="stable")
    assert np.all(np.diff(adjusted[order]) >= 0)
    # Step-down by definition: reject the smallest while p <= alpha / (questions left).
    for alpha in (0.01, 0.05, 0.3):
        rejected = 0
        while rejected < len(p) and p[order[rejected]] * (len(p) - rejected) <= alpha:
            rejected += 1
        assert int((adjusted <= alpha).sum()) == rejected


def test_holm_on_arrays_is_each_by_itself() -> None:
    many = np.random.default_rng(2).random((4, 5, 3))
    at_once = holm(many)
    assert all(np.array_equal(at_once[i, j], holm(many[i, j])) for i in range(4) for j in range(5))


def test_equivalence_is_two_one_sided_tests() -> None:
    logs = [0.002, -0.003, 0.001, 0.004, -0.001, 0.0]
    found = equivalence(paired(logs, 0.05), 0.01)
    above = stats.ttest_1samp(logs, math.log(0.99), alternative="greater").pvalue
    below = stats.ttest_1samp(logs, math.log(1.01), alternative="less").pvalue
    assert float(found.no_regression) == pytest.approx(above, rel=1e-9)
    assert float(found.same) == pytest.approx(max(above, below), rel=1e-9)


@pytest.mark.parametrize("margin", [0.0, -0.01, 1.0])
def test_a_margin_that_is_none(margin: float) -> None:
    with pytest.raises(ValueError, match="expected a margin between 0 and 1"):
        equivalence(paired([0.0, 0.1], 0.05), margin)


@pytest.mark.parametrize(
    ("logs", "verdict"),
    [
        (LOGS, FASTER),
        ([-value for value in LOGS], SLOWER),
        ([0.001, -0.001, 0.002, -0.002, 0.0, 0.001], SAME),
        ([0.02, -0.004, 0.018, 0.0, 0.021, -0.006, 0.015, -0.005], NO_REGRESSION),
        ([0.02, -0.02, 0.03, -0.03], INCONCLUSIVE),
        ([0.003, 0.003001, 0.003, 0.002999], FASTER),  # by less than the margin: still so
    ],
)
def test_what_is_said_of_one_arm(logs: list[float], verdict: str) -> None:
    (found,) = decide([logs], 0.05, 0.01)
    assert str(found.verdict) == verdict


def test_more_arms_take_more_evidence() -> None:
    logs = [0.02, 0.004, 0.015, 0.003, 0.012, 0.001]
    (alone,) = decide([logs], 0.05, 0.01)
    several = decide([logs, [0.02, -0.02, 0.03], [0.01, -0.03, 0.02, 0.0]], 0.05, 0.01)
    assert str(alone.verdict) == FASTER and float(alone.p_holm) == pytest.approx(float(alone.found.p))
    assert float(several[0].p_holm) == pytest.approx(3 * float(alone.found.p))
    assert float(several[0].p_holm) > 0.05 and str(several[0].verdict) == NO_REGRESSION
    assert decide([], 0.05, 0.01) == []
