"""What a reader of a campaign must know to read its figures right: one sentence each, only where it applies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from sglang_ext.bench.truth.sameness import differences
from sglang_ext.study.decision import FASTER, SLOWER
from sglang_ext.study.economics import mean_step
from sglang_ext.study.paired import least_sign_flip, paired
from sglang_ext.study.pairs import FINISHED, RECONCILED, Arm, against, by_block, counting, reconciliation
from sglang_ext.study.sequential import Look


def notes(
    campaign: Mapping[str, Any], look: Look | None, arms: Sequence[Arm], found: Sequence[Mapping[str, Any]]
) -> list[str]:
    """All that apply, in the order a reader needs them."""
    level = look.level if look else campaign["plan"]["alpha"]
    return [
        *_simulated(campaign),
        *_design(campaign, look, arms),
        *_excluded(arms),
        *_reconciled(campaign),
        *_doubts(found, level, campaign["plan"]["margin"]),
        *_longer_drafts(campaign, look, level),
    ]


def _simulated(campaign: Mapping[str, Any]) -> Iterator[str]:
    for arm in campaign["arms"]:
        if _simulates(arm):
            yield (
                f"{arm['name']}: acceptance was SIMULATED; its accept length is what was set and no finding, and its rate holds "
                "for that accept length only"
            )


def _simulates(arm: Mapping[str, Any]) -> bool:
    return any(launch.get("simulated_acceptance") for launch in arm["launches"])


def _design(campaign: Mapping[str, Any], look: Look | None, arms: Sequence[Arm]) -> Iterator[str]:
    if not any(arm.control for arm in arms):
        yield "no A/A control was run: nothing shows that this setup finds no difference where there is none"
    if sum(not arm.control for arm in arms) > 1:
        yield "intervals are those of each arm by itself; verdicts are by p_holm, which counts how many arms were asked about"
    if look is not None and look.blocks < len(campaign["plan"]["blocks"]):
        yield f"stopped early by the planned rule: intervals are at {1 - look.level:.1%}, wider for having looked halfway"


def _excluded(arms: Sequence[Arm]) -> Iterator[str]:
    codes = Counter(why.code for arm in arms for _, why in arm.excluded)
    if codes:
        total = codes.total() + sum(len(arm.pairs) for arm in arms)
        shown = ", ".join(f"{number} {code}" for code, number in codes.most_common())
        yield f"{codes.total()} of {total} pairs are excluded by rule: {shown}"


def _reconciled(campaign: Mapping[str, Any]) -> Iterator[str]:
    launches = [one for arm in campaign["arms"] for one in by_block(arm).values() if one["state"] == FINISHED]
    states = [reconciliation(launch) for launch in launches]
    without = sum(state != RECONCILED for state in states)
    if without:
        yield f"{without} of {len(states)} launches are not reconciled with the server's own count"


def _doubts(found: Sequence[Mapping[str, Any]], level: float, margin: float) -> Iterator[str]:
    """Where the verdict is right by the rule and a reader may still take it for more than it is."""
    for one in found:
        if one["control"] or one["verdict"] not in (FASTER, SLOWER):
            continue
        flip, pairs = one["p_sign_flip"], one["pairs"]
        if flip is not None and flip > level:
            if least_sign_flip(pairs) > level:
                why = f"with {pairs} pairs the exact sign-flip test cannot reach {level:g}: the verdict rests on the t test alone"
            else:
                why = (
                    f"the exact sign-flip test does not agree (p = {flip:.3f}): look at the pairs before relying on it"
                )
            yield f"{one['arm']}: {why}"
        if one["equivalence"]["holds"]:
            yield f"{one['arm']}: {one['verdict']}, by less than the margin of {margin:.1%}"


# What two arms may differ in for the step to be all that is compared: it and the tokens it drafts, the memory those leave (which
# decides what fits, and not how fast it is), and the acceptance that was made up for each.
STEP = (
    "arguments.speculative_num_steps",
    "arguments.speculative_num_draft_tokens",
    "arguments.mem_fraction_static",
    "arguments.max_total_num_tokens",
    "arguments.max_req_input_len",
    "environment.SGLANG_SIMULATE_ACC_*",
    "contract.SGLANG_SIMULATE_ACC_*",
)


def _longer_drafts(campaign: Mapping[str, Any], look: Look | None, level: float) -> Iterator[str]:
    """Whether one more draft step pays, where two arms differ by just that: in pairs of their own, and only where that shows."""
    limit = look.blocks if look else len(campaign["plan"]["blocks"])
    known = [
        (k, arm)
        for arm in campaign["arms"]
        if not arm["control"] and not arm["baseline"] and (k := _draft_steps(arm)) is not None
    ]
    for (k, short), (n, long) in combinations(sorted(known, key=lambda one: one[0]), 2):
        if n != k + 1 or _simulates(short) != _simulates(long):
            continue
        if differences({one["name"]: one["fingerprint"] for one in (short, long)}, STEP):
            continue  # another draft model or algorithm: whose doing the difference is, nobody can say
        pairs = against(short, long, limit).pairs
        before = mean_step(counting(pair.base) for pair in pairs)
        after = mean_step(counting(pair.arm) for pair in pairs)
        if before is None or after is None:
            continue
        made_up = ", acceptance SIMULATED" if _simulates(short) else ""
        arms = f"from {k} draft steps ({short['name']}{made_up}) to {n} ({long['name']}{made_up})"
        if len(pairs) < 2:
            yield f"whether going {arms} pays is not decided: both count in one block only"
            continue
        rate = paired([pair.log for pair in pairs], level)
        mean, low, high = (math.exp(value) for value in (rate.mean, rate.low, rate.high))
        decided = look is not None and not low <= 1 <= high
        says = f"going {arms} {'pays' if low > 1 else 'does not pay'}"
        if not decided:
            says = f"whether going {arms} pays is not decided"
        yield (
            f"{says}: in the {len(pairs)} blocks where both count the rate is x {mean:.4f} ({low:.4f} to "
            f"{high:.4f} at {1 - level:.1%}), accept length x {after.tokens / before.tokens:.3f}, step time x "
            f"{after.ms / before.ms:.3f}"
        )


def _draft_steps(arm: Mapping[str, Any]) -> int | None:
    arguments = (arm.get("fingerprint") or {}).get("arguments") or {}
    value = arguments.get("speculative_num_steps")
    return value if type(value) is int else None
