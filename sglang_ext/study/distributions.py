"""Student's t on whole arrays, central and not. The one module that knows scipy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
STEPS = 2000
NOTHING = 1e-12  # of the probability, left out on either side


def t_below(t: Any, df: Any) -> Array:
    """P(T <= t)."""
    return np.asarray(special.stdtr(df, t), dtype=np.float64)


def t_quantile(p: float, df: int) -> float:
    """The t with P(T <= t) = p."""
    return float(special.stdtrit(df, p))


def normal_below(z: Any) -> Array:
    """P(Z <= z)."""
    return np.asarray(special.ndtr(z), dtype=np.float64)


@lru_cache(maxsize=256)
def spreads(df: int) -> tuple[Array, Array]:
    """The standard deviation a sample shows, in units of the true one: values and how likely each is, for weighted sums.

    So the noncentral t is integrated here: `special.nctdtr` (scipy 1.17) gives nan from shifts of 16 or so on, and those
    are asked for where pairs are few. On a scale of logs the density is smooth and falls to nothing on both sides, so
    equal steps are exact.
    """
    low, high = (0.5 * np.log(special.chdtri(df, p) / df) for p in (1 - NOTHING, NOTHING))
    logs = np.linspace(low, high, STEPS)
    density = df * (logs - 0.5 * np.exp(2 * logs))
    weights = np.exp(density - density.max())
    return np.exp(logs), weights / weights.sum()
