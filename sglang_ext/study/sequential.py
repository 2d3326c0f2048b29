"""Stopping early without fooling oneself: who looks after every block and stops at the first p below 5 % is wrong far more often.

Rule "sequential": one look halfway, at a tenth of alpha, and the end, at the other nine tenths. Looks that together spend alpha
cannot be wrong more often than alpha, however they depend on each other; no table of boundaries is needed.
What halfway shows at that level is a large effect (a speculative decoder's, not a flag's); a small one takes all blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sglang_ext.bench.suites import plan as design
from sglang_ext.bench.suites.plan import EARLY, at_the_end, halfway
from sglang_ext.bench.suites.plan import HALFWAY_LEAST as LEAST
from sglang_ext.study.comparison import comparisons
from sglang_ext.study.decision import FASTER, SLOWER
from sglang_ext.study.pairs import baseline_of, finished_blocks, gather

SEQUENTIAL = design.SEQUENTIAL


class Look(NamedTuple):
    """When the numbers are judged, and at which level."""

    blocks: int
    level: float


def looks(rule: str, blocks: int, alpha: float) -> tuple[Look, ...]:
    """The looks of a plan, the last one at its end. With too few blocks for one halfway: the end alone, at all of alpha."""
    half = halfway(blocks)
    if rule != SEQUENTIAL or half is None:
        return (Look(blocks, alpha),)
    return Look(half, alpha * EARLY), Look(blocks, alpha * at_the_end(rule, blocks))


def at(campaign: Mapping[str, Any]) -> Look | None:
    """The look a campaign has come to: its end, or the one it was stopped at. None: neither, so nothing may be concluded."""
    plan = campaign["plan"]
    done, planned = finished_blocks(campaign), looks(plan["rule"], len(plan["blocks"]), plan["alpha"])
    if done >= planned[-1].blocks:
        return planned[-1]
    return planned[0] if plan["stopped"] and len(planned) > 1 and done == planned[0].blocks else None


def stop(campaign: Mapping[str, Any]) -> str | None:
    """Asked after every block: why to stop now, or None. Answers only at a planned look, and the same way every time."""
    plan = campaign["plan"]
    planned = looks(plan["rule"], len(plan["blocks"]), plan["alpha"])
    if len(planned) == 1 or finished_blocks(campaign) != planned[0].blocks:
        return None
    look = planned[0]
    arms = gather(campaign, look.blocks)
    if any(len(arm.pairs) < LEAST for arm in arms):
        return None
    found = comparisons(arms, baseline_of(campaign)["name"], level=look.level, margin=plan["margin"])
    where = f"after {look.blocks} of {len(plan['blocks'])} blocks, the planned look at level {look.level:g}"
    for one in found:
        if one["control"] and not one["low"] <= 1 <= one["high"]:
            return f"{where}: the A/A control {one['arm']} differs from the baseline, so more blocks would not count either"
    asked = [one for one in found if not one["control"]]
    if asked and all(one["verdict"] in (FASTER, SLOWER) for one in asked):
        return f"{where}: {', '.join(one['arm'] + ' is ' + one['verdict'] for one in asked)}"
    return None
