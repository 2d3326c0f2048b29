"""Several arms, one baseline: five questions at 5 % each give a false answer in every fourth campaign. Holm keeps it at 5 %."""

from __future__ import annotations

from typing import Any

import numpy as np

from sglang_ext.study.distributions import Array


def holm(p: Any, family: int | None = None) -> Array:
    """The p values along the last axis, each made comparable with the whole level.

    ``family``: how many questions were asked, where some came to no p; those count as if they had the largest.
    """
    values = np.asarray(p, dtype=np.float64)
    asked = max(family or 0, values.shape[-1])
    order = np.argsort(values, axis=-1)
    steps = np.take_along_axis(values, order, axis=-1) * (asked - np.arange(values.shape[-1]))
    adjusted = np.empty_like(values)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0), axis=-1)
    return adjusted
