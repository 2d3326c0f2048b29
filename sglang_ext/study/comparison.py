"""The comparisons of a record: each arm against the baseline, in numbers of JSON, with a reason for each that is null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_ext.study.decision import INCONCLUSIVE, Decision, decide
from sglang_ext.study.economics import economics, mean_step
from sglang_ext.study.paired import MOST, sign_flip
from sglang_ext.study.pairs import Arm, Launch, counting
from sglang_ext.study.power import detectable

METRIC = "decode_tok_s"
TOO_FEW = "fewer than two pairs count: one difference shows no spread, so neither a ratio nor an interval is stated"
FIGURES = ("ratio", "low", "high", "p_t", "p_sign_flip", "p_holm", "equivalence", "mde")
NO_FAMILY = "the control is a check of the setup and no question of the campaign"


def comparisons(
    arms: Sequence[Arm], baseline: str, *, level: float, margin: float, judged: bool = True
) -> list[dict[str, Any]]:
    """One comparison per arm, at ``level``; not ``judged``: figures, and no verdict, as the campaign is not at its end."""
    asked = [arm for arm in arms if not arm.control]
    decisions: dict[str, Decision] = {}
    for family in (asked, [arm for arm in arms if arm.control]):
        able = [arm for arm in family if len(arm.pairs) >= 2]
        found = decide([arm.logs for arm in able], level, margin, len(family))
        decisions |= {arm.name: decision for arm, decision in zip(able, found, strict=True)}
    return [_comparison(arm, baseline, decisions.get(arm.name), level, margin, len(asked), judged) for arm in arms]


def _comparison(
    arm: Arm, baseline: str, decision: Decision | None, level: float, margin: float, asked: int, judged: bool
) -> dict[str, Any]:
    unknown: dict[str, str] = {}
    made: dict[str, Any] = {
        "arm": arm.name,
        "baseline": baseline,
        "control": arm.control,
        "metric": METRIC,
        "pairs": len(arm.pairs),
        "blocks": [pair.block for pair in arm.pairs],
        "pair_logs": arm.logs,
        "confidence": 1 - level,
        **dict.fromkeys(FIGURES),
        "verdict": INCONCLUSIVE,
        "simulated_acceptance": any(
            launch.get("simulated_acceptance") for pair in arm.pairs for launch in (pair.base, pair.arm)
        ),
        "economics": None,
        "unknown": unknown,
    }
    if decision is None:
        unknown |= dict.fromkeys(FIGURES, TOO_FEW)
    else:
        made |= _figures(arm, decision, level, margin, asked)
        if arm.control:
            unknown["p_holm"] = NO_FAMILY
        if made["p_sign_flip"] is None:
            unknown["p_sign_flip"] = f"more than {MOST} pairs are too many to go through every choice of signs"
        if judged:
            made["verdict"] = str(decision.verdict)
    made["economics"], why = _economics(arm)
    if why:
        unknown["economics"] = why
    return made


def _figures(arm: Arm, decision: Decision, level: float, margin: float, asked: int) -> dict[str, Any]:
    found, claims = decision.found, decision.equivalence
    family = 1 if arm.control else max(asked, 1)
    return {
        "ratio": math.exp(found.mean),
        "low": math.exp(found.low),
        "high": math.exp(found.high),
        "p_t": float(found.p),
        "p_sign_flip": sign_flip(arm.logs),
        "p_holm": None if arm.control else float(decision.p_holm),
        "equivalence": {
            "margin": margin,
            "p": float(claims.same),
            "holds": bool(claims.same <= level),
            "p_no_regression": float(claims.no_regression),
            "no_regression": bool(claims.no_regression <= level),
        },
        "mde": detectable(float(found.spread), found.pairs, level / family),
    }


def _economics(arm: Arm) -> tuple[dict[str, float] | None, str | None]:
    """What speculation costs and brings in the pairs that count; or why that is not known, if the arm speculates at all."""
    if not any(speculates(launch) for pair in arm.pairs for launch in (pair.base, pair.arm)):
        return None, None
    base = mean_step([counting(pair.base) for pair in arm.pairs])
    own = mean_step([counting(pair.arm) for pair in arm.pairs])
    if base is None or own is None:
        return None, "a run that counts does not show its step: neither step_ms nor accept_length is known"
    return economics(base, own), None


def speculates(launch: Launch) -> bool:
    """Whether the launch's server speculates: it says so, or its runs were verified in steps."""
    made: Mapping[str, Any] = launch.get("fingerprint") or {}
    arguments = made.get("arguments") or {}
    return bool(arguments.get("speculative_algorithm")) or any(
        run.get("accept_length") is not None for run in launch["runs"]
    )
