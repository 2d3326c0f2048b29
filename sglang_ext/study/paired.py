"""Paired differences: the t test and interval, and an exact test that assumes nothing of the noise.

One number per pair: ln(rate of the arm's launch) - ln(rate of the baseline's launch in the same block). The launch is the unit:
its runs share a process, an allocation of memory and a temperature, so they are one observation seen several times.

All of it works along the last axis, so that tools/error_rates.py can put thousands of campaigns through this very code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sglang_ext.study.distributions import Array, t_below, t_quantile

DIGITS = 12  # of a logarithm; what differs behind them is arithmetic and no clock's doing
MOST = 40  # pairs the exact test takes: two tables of 2^20 sums
TIE = 1e-12  # of the largest sum: as large as the observed one but for rounding


class Paired(NamedTuple):
    """What the pairs show. Each field has the shape that is left without the axis of the pairs."""

    pairs: int
    mean: Array  # of the pair logs
    spread: Array  # their standard deviation
    error: Array  # of the mean
    low: Array  # the interval, in logs
    high: Array
    p: Array  # two-sided: of so large a mean where the arms are the same


def paired(logs: Any, level: float) -> Paired:
    """The t test of pair logs against 0, and the interval of confidence 1 - ``level``. Needs two pairs or more."""
    values = np.round(np.asarray(logs, dtype=np.float64), DIGITS)
    pairs = values.shape[-1]
    if pairs < 2:
        raise ValueError(f"expected two pairs or more, found {pairs}: one difference shows no spread")
    mean, spread = values.mean(axis=-1), values.std(axis=-1, ddof=1)
    error = spread / np.sqrt(pairs)
    reach = t_quantile(1 - level / 2, pairs - 1) * error
    p = 2 * t_below(-np.abs(in_errors(mean, error)), pairs - 1)
    return Paired(pairs, mean, spread, error, mean - reach, mean + reach, p)


def in_errors(distance: Array, error: Array) -> Array:
    """``distance`` in standard errors; without any spread every distance but 0 is beyond all of them."""
    distance, error = np.asarray(distance), np.asarray(error)
    beyond = np.where(distance == 0, 0.0, np.copysign(np.inf, distance))
    errors: Array = np.divide(distance, error, out=beyond, where=error > 0)
    return errors


def sign_flip(logs: Sequence[float]) -> float | None:
    """The exact p of the mean when each pair might as well have come out the other way round; None beyond MOST pairs.

    Which of a pair was launched first was drawn by lot, so under "no difference" each of the 2^n choices of signs was equally
    likely. All are counted, as sums of two halves: for each sum of the left one, how many of the right bring it far enough.
    """
    values = np.abs(np.asarray(logs, dtype=np.float64))
    if values.size > MOST:
        return None
    reach = abs(float(np.sum(logs))) - TIE * float(values.sum())
    if reach <= 0:
        return 1.0
    left, right = _sums(values[: values.size // 2]), np.sort(_sums(values[values.size // 2 :]))
    above = right.size - np.searchsorted(right, reach - left, side="left")
    below = np.searchsorted(right, -reach - left, side="right")
    return float(above.sum() + below.sum()) / 2.0**values.size


def least_sign_flip(pairs: int) -> float:
    """The smallest p that ``sign_flip`` can give: 5 pairs reach 0.0625 at best, 6 reach 0.031."""
    return float(2.0 ** (1 - pairs)) if pairs else 1.0


def _sums(values: Array) -> Array:
    """The sum of ``values`` under every choice of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums
