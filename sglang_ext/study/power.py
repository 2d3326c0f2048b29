"""How many pairs a wanted effect takes, and what the pairs that were taken could have shown.

A launch's rate scatters by ``cv`` (0.01: one percent); the log ratio of two launches by cv * sqrt(2). An effect is a
difference of logs, as it may go either way: 2 % are ln 1.02 = 0.0198 up and -ln 0.98 = 0.0202 down, and 0.02 here.
Exact, with the noncentral t distribution: the textbook's normal formula asks for two or three pairs too few.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sglang_ext.study.distributions import normal_below, spreads, t_quantile

POWER = 0.8  # of the minimal detectable effect: four campaigns in five would find it
SPREADS = (0.003, 0.007, 0.01, 0.02)  # of launches: a quiet machine's to a troubled one's
MOST = 1_000_000  # pairs; nobody launches that often
HALVINGS = 60


def plan(effect: float, cv: float, alpha: float = 0.05, power: float = 0.9, comparisons: int = 1) -> int:
    """Pairs needed to see ``effect`` (0.02: two percent) with probability ``power``; of several arms, the hardest."""
    return pairs_for(effect, cv * math.sqrt(2), alpha / comparisons, power)


def pairs_for(distance: float, spread: float, alpha: float, power: float) -> int:
    """The same, in logs: ``spread`` is the standard deviation of the pair logs."""
    if distance == 0:
        raise ValueError("expected an effect other than 0: no number of pairs shows that")
    return _least(lambda pairs: paired_power(distance, spread, pairs, alpha) >= power)


def paired_power(distance: float, spread: float, pairs: int, alpha: float) -> float:
    """The chance that the paired t test finds a true log ratio of ``distance``, in either direction."""
    if spread == 0:
        return 1.0
    return _two_sided(pairs - 1, abs(distance) / (spread / math.sqrt(pairs)), alpha)


def launches_for(effect: float, cv: float, alpha: float = 0.05, power: float = 0.9) -> int:
    """Launches per arm were they not paired: what pairing costs where nothing drifts. Two samples, for comparison only."""

    def enough(launches: int) -> bool:
        shift = abs(effect) / (cv * math.sqrt(2 / launches))
        return _two_sided(2 * launches - 2, shift, alpha) >= power

    return _least(enough)


def detectable(spread: float, pairs: int, alpha: float, power: float = POWER) -> float:
    """The minimal detectable effect: the smallest that ``pairs`` so scattered would have shown."""
    if spread == 0:
        return 0.0
    low, high = 0.0, spread
    while paired_power(high, spread, pairs, alpha) < power:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if paired_power(middle, spread, pairs, alpha) >= power else (middle, high)
    return high


def outlook(pairs: int, alpha: float, comparisons: int = 1) -> list[tuple[float, float]]:
    """What a plan can find: for each scatter of launches, the smallest effect seen with POWER."""
    return [(cv, detectable(cv * math.sqrt(2), pairs, alpha / comparisons)) for cv in SPREADS]


def same_power(margin: float, spread: float, pairs: int, alpha: float) -> float:
    """The chance that "same" is shown of arms that are the same: both one-sided tests at once."""
    if spread == 0:
        return 1.0
    error = spread / math.sqrt(pairs)
    # Given the spread the pairs show, their mean must lie within what the two tests leave of the margins.
    shown, weights = spreads(pairs - 1)
    reach = t_quantile(1 - alpha, pairs - 1) * shown
    low, high = math.log1p(-margin) / error + reach, math.log1p(margin) / error - reach
    return float(np.maximum(normal_below(high) - normal_below(low), 0) @ weights)


def pairs_for_same(margin: float, cv: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Pairs needed to show "same" within ``margin``, where it is true."""
    return _least(lambda pairs: same_power(margin, cv * math.sqrt(2), pairs, alpha) >= power)


def _two_sided(df: int, shift: float, alpha: float) -> float:
    shown, weights = spreads(df)
    bound = t_quantile(1 - alpha / 2, df) * shown
    return float((normal_below(shift - bound) + normal_below(-shift - bound)) @ weights)


def _least(enough: Callable[[int], bool]) -> int:
    """The smallest number from 2 on that is enough. Raises ValueError where none below MOST is."""
    low, high = 1, 2
    while not enough(high):
        if high >= MOST:
            raise ValueError(f"expected an effect that {MOST} pairs can show, found one too small for its scatter")
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
