"""Campaign records made by hand, as `bench run` writes them; only what the study reads is filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Record = dict[str, Any]


def run(rate: float, **facts: Any) -> Record:
    """A run of a server that does not speculate, unless ``facts`` say otherwise."""
    made = {"valid": True, "reason": None, "decode_tok_s": rate, "step_ms": 1000 / rate, "accept_length": None}
    return made | facts


def launch(arm: str, block: int, rate: float | Sequence[Record], **facts: Any) -> Record:
    """A launch that counts: one run at ``rate``, or the given runs."""
    made = {
        "block": block,
        "order": 0,
        "arm": arm,
        "state": "finished",
        "reason": None,
        "runs": [run(rate)] if isinstance(rate, float | int) else list(rate),
        "reconciliation": {"state": "RECONCILED", "reason": None},
        "machine": {"marks": []},
        "fingerprint": None,
        "output_sha256": [],
        "simulated_acceptance": False,
    }
    return made | facts


def campaign(arms: Mapping[str, Sequence[Any]], **plan: Any) -> Record:
    """A campaign whose arms have one launch per block; the first is the baseline, one called control the control.

    An entry is a rate, a list of runs, or a whole launch.
    """
    first = next(iter(arms))
    blocks = plan.pop("planned", max(len(entries) for entries in arms.values()))
    made = []
    for name, entries in arms.items():
        launches = [one if isinstance(one, dict) else launch(name, i, one) for i, one in enumerate(entries)]
        made.append(
            {
                "name": name,
                "summary": "",
                "baseline": name == first,
                "control": name == "control",
                "fingerprint": None,
                "launches": launches,
            }
        )
    rules = {"seed": 1, "rule": "fixed", "alpha": 0.05, "margin": 0.01, "effect": 0.02, "stopped": None}
    return {
        "schema": "sglang-ext/campaign/1",
        "state": "INCONCLUSIVE",
        "reason": None,
        "exit": 5,
        "plan": {"blocks": [list(arms)] * blocks, **rules, **plan},
        "arms": made,
        "comparisons": [],
        "excluded": [],
        "notes": [],
    }


def rates(logs: Sequence[float], middle: float = 100.0) -> list[float]:
    """Rates whose logarithms are ``logs`` above that of ``middle``."""
    return [middle * math.exp(value) for value in logs]
