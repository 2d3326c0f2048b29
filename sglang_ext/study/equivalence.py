"""Showing that nothing changed. "Not significant" shows nothing: of two noisy pairs nothing is. This asks the other way round.

"No regression" is claimed when a loss of the whole margin is refuted, "same" when a gain of it is, too (two one-sided tests).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sglang_ext.study.distributions import Array, t_below
from sglang_ext.study.paired import Paired, in_errors


class Equivalence(NamedTuple):
    """One-sided p values, shaped as the Paired they are of."""

    no_regression: Array  # of the claim: the ratio is above 1 - margin
    same: Array  # of the claim: it is also below 1 + margin


def equivalence(found: Paired, margin: float) -> Equivalence:
    """Both claims about ``found``; ``margin`` as a share of the rate: 0.01 is one percent."""
    if not 0 < margin < 1:
        raise ValueError(f"expected a margin between 0 and 1, found {margin:g}")
    df = found.pairs - 1
    above = t_below(-in_errors(found.mean - np.log1p(-margin), found.error), df)
    below = t_below(in_errors(found.mean - np.log1p(margin), found.error), df)
    return Equivalence(above, np.maximum(above, below))
