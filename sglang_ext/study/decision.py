"""What may be said of each arm: from pair logs to verdicts, for one campaign or, along leading axes, for thousands at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sglang_ext.study.distributions import Array
from sglang_ext.study.equivalence import Equivalence, equivalence
from sglang_ext.study.multiple import holm
from sglang_ext.study.paired import Paired, paired

FASTER, SLOWER, SAME, NO_REGRESSION, INCONCLUSIVE = "faster", "slower", "same", "no regression", "inconclusive"


class Decision(NamedTuple):
    """Of one arm. The p values of ``equivalence`` and ``p_holm`` are compared with the level itself."""

    found: Paired
    p_holm: Array
    equivalence: Equivalence
    verdict: Any  # array of verdicts


def decide(arms: Sequence[Any], level: float, margin: float, family: int | None = None) -> list[Decision]:
    """One decision for each of ``arms``, arrays of pair logs (two or more along the last axis).

    A difference comes first: where there is one, it is said even when it is smaller than the margin. For any one true ratio only
    one of the two families of claims can be wrong, so each is held at the whole level.
    """
    if not arms:
        return []
    found = [paired(logs, level) for logs in arms]
    claims = [equivalence(one, margin) for one in found]

    def over_arms(values: list[Array]) -> list[Array]:
        return list(np.moveaxis(holm(np.stack(values, axis=-1), family), -1, 0))

    differ = over_arms([one.p for one in found])
    no_regression = over_arms([one.no_regression for one in claims])
    same = over_arms([one.same for one in claims])
    return [
        Decision(one, p, Equivalence(above, both), _verdict(one.mean, p, above, both, level))
        for one, p, above, both in zip(found, differ, no_regression, same, strict=True)
    ]


def _verdict(mean: Array, differ: Array, no_regression: Array, same: Array, level: float) -> Any:
    cases = [(differ <= level) & (mean > 0), (differ <= level) & (mean < 0), same <= level, no_regression <= level]
    return np.select(cases, [FASTER, SLOWER, SAME, NO_REGRESSION], INCONCLUSIVE)
