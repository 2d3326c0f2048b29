"""The verdict on a campaign: may its numbers be believed, and do they answer what was asked?

INVALID        a launch was refused, or two names of one and the same configuration differ: nothing here can be believed
UNRECONCILED   too often nobody could confirm that client and server mean the same rate
INCONCLUSIVE   what was measured is sound and does not decide; what would is said
VALID          every arm has an answer
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.campaigns.record import status_of
from sglang_ext.reasons import TABLE
from sglang_ext.study import notes, sequential
from sglang_ext.study.comparison import comparisons
from sglang_ext.study.decision import INCONCLUSIVE as OPEN
from sglang_ext.study.pairs import (
    FINISHED,
    RECONCILED,
    REFUSED,
    UNRECONCILED,
    Arm,
    baseline_of,
    by_block,
    finished_blocks,
    gather,
    reconciliation,
)
from sglang_ext.study.power import MOST, POWER, pairs_for

VALID, INVALID, INCONCLUSIVE = "VALID", "INVALID", "INCONCLUSIVE"
MOST_UNRECONCILED = 0.25  # of the finished launches; one glitch costs a pair, a habit costs the campaign


class Ruling(NamedTuple):
    """What a campaign comes to."""

    state: str
    code: str | None
    text: str
    exit: int


def judge(campaign: Mapping[str, Any]) -> dict[str, Any]:
    """The campaign with comparisons, excluded, notes, state, reason and exit; the same again when judged again."""
    plan, look = campaign["plan"], sequential.at(campaign)
    arms = gather(campaign, look.blocks if look else None)
    found = comparisons(
        arms,
        baseline_of(campaign)["name"],
        level=look.level if look else plan["alpha"],
        margin=plan["margin"],
        judged=look is not None,
    )
    excluded = [
        {"block": block, "arm": arm.name, "code": why.code, "text": why.text}
        for arm in arms
        for block, why in arm.excluded
    ]
    ruling = _rule(campaign, look, arms, found)
    return {
        **campaign,
        "comparisons": found,
        "excluded": excluded,
        "notes": list(dict.fromkeys([*campaign["notes"], *notes.notes(campaign, look, arms, found)])),
        "state": ruling.state,
        "reason": None if ruling.code is None else f"{ruling.code}: {ruling.text}",
        "exit": ruling.exit,
    }


def _rule(
    campaign: Mapping[str, Any], look: sequential.Look | None, arms: Sequence[Arm], found: Sequence[Mapping[str, Any]]
) -> Ruling:
    """The gravest that holds."""
    return (
        _refused(campaign)
        or _unfinished(campaign, look)
        or _control(found)
        or _unreconciled(campaign)
        or _too_few(arms)
        or _open(campaign, look, found)
        or Ruling(VALID, None, "", 0)
    )


def _refused(campaign: Mapping[str, Any]) -> Ruling | None:
    for arm in campaign["arms"]:
        for launch in by_block(arm).values():  # one that was refused, and was taken again after a mend, is no more
            code, _, text = (launch.get("reason") or "").partition(": ")
            if launch["state"] != REFUSED and code != "verdict_lost":
                continue
            where = f"block {launch['block']}, arm {arm['name']}"
            if code not in TABLE:
                return _ruling(INVALID, "launch_refused", f"{where}: the launch was refused")
            return Ruling(INVALID, code, f"{where}: {text}", status_of(code, launch))
    return None


def _unfinished(campaign: Mapping[str, Any], look: sequential.Look | None) -> Ruling | None:
    if look is not None:
        return None
    text = (
        f"expected {len(campaign['plan']['blocks'])} finished blocks, found {finished_blocks(campaign)}: "
        "whoever stops at will stops at what pleases"
    )
    return _ruling(INCONCLUSIVE, "campaign_unfinished", text)


def _control(found: Sequence[Mapping[str, Any]]) -> Ruling | None:
    for one in found:
        if one["control"] and one["ratio"] is not None and not one["low"] <= 1 <= one["high"]:
            text = (
                f"expected {one['arm']}, the baseline under another name, to be as fast as itself, found the ratio "
                f"{one['ratio']:.4f} ({one['low']:.4f} to {one['high']:.4f}) in {one['pairs']} pairs"
            )
            return _ruling(INVALID, "control_failed", text)
    return None


def _unreconciled(campaign: Mapping[str, Any]) -> Ruling | None:
    launches = [one for arm in campaign["arms"] for one in by_block(arm).values() if one["state"] == FINISHED]
    states = Counter(reconciliation(launch) for launch in launches)
    without = len(launches) - states[RECONCILED]
    if without <= MOST_UNRECONCILED * len(launches):
        return None
    text = (
        f"expected {1 - MOST_UNRECONCILED:.0%} of {len(launches)} launches reconciled at least, found {states[RECONCILED]}; "
        f"{states[UNRECONCILED]} disagree, {without - states[UNRECONCILED]} could not be looked at"
    )
    reasons = Counter(
        why for launch in launches if (why := (launch.get("reconciliation") or {}).get("reason")) is not None
    )
    if reasons:
        text += f"; most often: {reasons.most_common(1)[0][0]}"
    return _ruling(UNRECONCILED, "unreconciled", text)


def _too_few(arms: Sequence[Arm]) -> Ruling | None:
    for arm in arms:
        if len(arm.pairs) < 2:
            codes = Counter(why.code for _, why in arm.excluded)
            text = f"{arm.name}: expected two pairs that count at least, found {len(arm.pairs)}"
            if codes:
                text += f"; excluded: {', '.join(f'{number} {code}' for code, number in codes.most_common())}"
            return _ruling(INCONCLUSIVE, "too_few_pairs", text)
    return None


def _open(
    campaign: Mapping[str, Any], look: sequential.Look | None, found: Sequence[Mapping[str, Any]]
) -> Ruling | None:
    asked = [one for one in found if not one["control"]]
    undecided = [one for one in asked if one["verdict"] == OPEN]
    if not undecided or look is None:
        return None
    plan, parts = campaign["plan"], []
    for one in undecided:
        parts.append(
            f"{one['arm']}: neither a difference nor its absence within {plan['margin']:.1%} shows; ratio {one['ratio']:.4f} "
            f"({one['low']:.4f} to {one['high']:.4f}); {one['pairs']} pairs would show {one['mde']:.1%} four times in five"
        )
        spread = _spread(one["pair_logs"])
        if one["mde"] > plan["effect"]:
            try:
                needed = str(pairs_for(plan["effect"], spread, look.level / len(asked), POWER))
            except ValueError:  # so many that nobody launches them
                needed = f"more than {MOST}"
            parts[-1] += f", {needed} would show the wanted {plan['effect']:.1%}"
    return _ruling(INCONCLUSIVE, "not_decided", "; ".join(parts))


def _spread(logs: Sequence[float]) -> float:
    mean = sum(logs) / len(logs)
    return float((sum((value - mean) ** 2 for value in logs) / (len(logs) - 1)) ** 0.5)


def _ruling(state: str, code: str, text: str) -> Ruling:
    return Ruling(state, code, text, TABLE[code].exit)
