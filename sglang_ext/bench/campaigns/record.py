"""The record of a campaign: its plan, and what its launches come to, before anybody judges it. Nothing is started here."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_ext import __version__
from sglang_ext.bench.campaigns.journal import SCHEMA, JournalError, digest
from sglang_ext.bench.suites import plan
from sglang_ext.bench.suites.suite import Suite, changed
from sglang_ext.bench.truth.sameness import unknown
from sglang_ext.reasons import TABLE

Record = dict[str, Any]
UNDECIDED = "INCONCLUSIVE"
FAILED, UNKNOWN = 1, 3
STATUSES = (FAILED, UNKNOWN, 4)  # what a reason's own exit status may be here; the others are those of a command line


def begin(suite: Suite, repeats: Mapping[str, Record]) -> Record:
    """The plan of a new campaign. ``repeats``: what each arm ran on in the receipt that is taken again, none in any other: kept
    here, so that whoever goes on with it is held to the same.
    """
    campaign = suite.campaign
    assert campaign is not None
    seed = campaign.seed if campaign.seed is not None else plan.draw_seed()
    return {
        "id": secrets.token_hex(8),
        "time": {"began": time.time()},
        "suite": suite.to_json(),
        "from": {"suite": os.path.abspath(suite.path), "sglang_ext": __version__},
        "plan": {
            "seed": seed,
            "blocks": plan.order([arm.name for arm in suite.arms], campaign.blocks, seed),
            "rule": campaign.rule,
            "alpha": campaign.alpha,
            "margin": campaign.margin,
            "effect": campaign.effect,
            "stopped": None,
        },
        **({"repeats": dict(repeats)} if repeats else {}),
    }


def check_same(head: Record, suite: Suite, repeats: Mapping[str, Record], folder: str) -> None:
    """Raise JournalError unless the folder's campaign is of this suite, as it is now, and repeats what is to be repeated."""
    stored = head["suite"]
    found = changed(stored, suite)
    if not found and stored["sha256"] != suite.sha256:
        found = [f"suite sha256: expected {stored['sha256'][:12]}, found {suite.sha256[:12]}"]
    campaign = suite.campaign
    if not found and campaign is not None and campaign.seed not in (None, head["plan"]["seed"]):
        found = [f"seed: expected {head['plan']['seed']}, found {campaign.seed}"]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise JournalError(
            "campaign_differs",
            f"{folder} holds a campaign of another suite: {found[0]}{more}; restore the suite, or name another folder with --out",
        )
    if repeats and digest(repeats) != digest(head.get("repeats") or {}):
        other = "one of another receipt" if head.get("repeats") else "one that repeats none"
        raise JournalError(
            "campaign_differs",
            f"{folder}: expected a campaign that repeats this receipt, found {other}; name another folder with --out",
        )


def record(head: Record, suite: Suite, launches: list[Record]) -> Record:
    """The campaign so far, undecided."""
    arms: list[Record] = []
    for arm in suite.arms:
        own = [one for one in launches if one["arm"] == arm.name]
        arms.append(
            {
                "name": arm.name,
                "summary": arm.summary,
                "baseline": arm.baseline,
                "control": arm.control,
                "fingerprint": next((one["fingerprint"] for one in own if one["state"] == "finished"), None),
                "launches": own,
            }
        )
    return {
        "schema": SCHEMA,
        "id": head["id"],
        "state": UNDECIDED,
        "reason": None,
        "exit": 5,
        "time": {"began": head["time"]["began"], "ended": time.time()},
        "suite": head["suite"],
        "from": head["from"],
        "plan": dict(head["plan"]),
        "arms": arms,
        "comparisons": [],
        "excluded": [],
        "notes": [
            *outputs(launches),
            *taken_again(launches),
            *unknown({arm["name"]: arm["fingerprint"] for arm in arms if arm["fingerprint"]}),
        ],
    }


def outputs(launches: list[Record]) -> list[str]:
    """A note where greedy arms did not say the same. With several prompts each run has its own text, in the same order."""
    said: dict[tuple[str, ...], list[str]] = {}
    for one in launches:
        if one["state"] == "finished" and None not in one["output_sha256"]:
            said.setdefault(tuple(one["output_sha256"]), []).append(one["arm"])
    if len(said) < 2:
        return []
    groups = "; ".join(", ".join(sorted(set(arms))) for arms in said.values())
    return [f"outputs_differ: expected the same greedy text of every launch, found {len(said)} ({groups})"]


def taken_again(launches: Sequence[Record]) -> list[str]:
    """A note where blocks were begun more than once: whoever interrupts what displeases must show it."""
    given_up = [one for one in launches if one["state"] == "abandoned"]
    if not given_up:
        return []
    blocks = ", ".join(str(block + 1) for block in sorted({one["block"] for one in given_up}))
    measured = sum(bool(one["runs"]) for one in given_up)
    return [
        f"block_unfinished: {len(given_up)} launches were given up and count for nothing, {measured} of them with runs that had "
        f"been taken; begun more than once for it: block {blocks}"
    ]


def status_of(code: str, made: Mapping[str, Any]) -> int:
    """The exit status of a campaign that ends over this launch: what could not be seen is not what was seen to be wrong."""
    before = (made.get("verify") or {}).get("before") or {}
    if code == "not_verified" and before.get("verdict") == "UNKNOWN":
        return UNKNOWN
    own = TABLE[code].exit if code in TABLE else FAILED
    return own if own in STATUSES else FAILED
