"""Which pairs of a campaign count, and what each says: from the record of launches to pair logs, every exclusion with its reason.

A pair is an arm's launch and the baseline's launch of the same block. One of them not finished, throttled or unreconciled: the
pair is out, whatever it would have said, and is counted as out. Rules that look at the rate itself exclude nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.campaigns import journal
from sglang_ext.reasons import NOTE, TABLE

FINISHED, REFUSED, ABANDONED = "finished", "refused", "abandoned"
RECONCILED, UNRECONCILED, UNKNOWN = "RECONCILED", "UNRECONCILED", "UNKNOWN"

Launch = Mapping[str, Any]
Run = Mapping[str, Any]


class Exclusion(NamedTuple):
    """Why a launch does not count: a code of `reasons` and a sentence."""

    code: str
    text: str


class Pair(NamedTuple):
    """One pair that counts."""

    block: int
    log: float
    base: Launch
    arm: Launch


class Arm(NamedTuple):
    """One arm against the baseline."""

    name: str
    control: bool
    pairs: tuple[Pair, ...]
    excluded: tuple[tuple[int, Exclusion], ...]  # block, why

    @property
    def logs(self) -> list[float]:
        return [pair.log for pair in self.pairs]


def baseline_of(campaign: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arm that all others are compared with."""
    found: list[Mapping[str, Any]] = [arm for arm in campaign["arms"] if arm["baseline"] and not arm["control"]]
    if len(found) != 1:
        raise ValueError(f"expected one baseline arm, found {len(found)}; the suite names it with baseline = true")
    return found[0]


def gather(campaign: Mapping[str, Any], blocks: int | None = None) -> list[Arm]:
    """Every arm but the baseline with its pairs of the first ``blocks`` blocks (None: of all)."""
    base = baseline_of(campaign)
    limit = len(campaign["plan"]["blocks"]) if blocks is None else blocks
    return [against(base, arm, limit) for arm in campaign["arms"] if arm is not base]


def against(base: Mapping[str, Any], arm: Mapping[str, Any], limit: int) -> Arm:
    """``arm`` with its pairs against any other arm, of the first ``limit`` blocks."""
    pairs: list[Pair] = []
    excluded: list[tuple[int, Exclusion]] = []
    bases, own = by_block(base), by_block(arm)
    for block in sorted(bases.keys() & own.keys()):
        if block >= limit:
            continue
        first, second = bases[block], own[block]
        why = _named(exclusion(first), base["name"]) or _named(exclusion(second), arm["name"])
        if why is None:
            pairs.append(Pair(block, log_rate(second) - log_rate(first), first, second))
        else:
            excluded.append((block, why))
    return Arm(arm["name"], arm["control"], tuple(pairs), tuple(excluded))


def by_block(arm: Mapping[str, Any]) -> dict[int, Launch]:
    """The launch of each block that counts there: of those that were repeated, the last that was not abandoned."""
    launches = sorted(
        arm["launches"], key=lambda launch: launch["state"] != ABANDONED
    )  # stable: order is kept otherwise
    return {launch["block"]: launch for launch in launches}


def exclusion(launch: Launch) -> Exclusion | None:
    """Why a launch does not count, or None: it does."""
    if launch["state"] != FINISHED:
        code, _, text = (launch.get("reason") or "").partition(": ")
        return Exclusion(code, text) if text else Exclusion("launch_failed", f"it was {launch['state']}")
    for mark in (launch.get("machine") or {}).get("marks", ()):
        if _excludes(mark):
            return Exclusion(mark["code"], mark["text"])
    if reconciliation(launch) == UNRECONCILED:
        why = launch["reconciliation"].get("reason") or "client and server disagree about its rate"
        return Exclusion("unreconciled", why)
    if not counting(launch):
        return Exclusion("launch_failed", "expected a decode rate of one run at least, found none")
    return None


def reconciliation(launch: Launch) -> str:
    """RECONCILED, UNRECONCILED or UNKNOWN; a launch that says nothing of it is UNKNOWN."""
    found = launch.get("reconciliation")
    return str(found["state"]) if found else UNKNOWN


def counting(launch: Launch) -> Sequence[Run]:
    """The runs that count: each with a rate."""
    return [run for run in launch["runs"] if run["valid"] and run["decode_tok_s"]]


def log_rate(launch: Launch) -> float:
    """The figure of a launch: the mean of ln(decode_tok_s) over its runs that count."""
    runs = counting(launch)
    return math.fsum(math.log(run["decode_tok_s"]) for run in runs) / len(runs)


def finished_blocks(campaign: Mapping[str, Any]) -> int:
    """How many blocks, from the first on, are finished, by the rule a campaign goes on by: every arm has a finished launch."""
    plan = campaign["plan"]
    launches = [
        {"block": launch["block"], "arm": arm["name"], "state": launch["state"]}
        for arm in campaign["arms"]
        for launch in arm["launches"]
    ]
    whole = journal.finished_blocks(plan, launches)
    return next((block for block in range(len(plan["blocks"])) if block not in whole), len(plan["blocks"]))


def _excludes(mark: Mapping[str, Any]) -> bool:
    """As was said when the mark was made; else by the severity of its code, and a code of another release excludes."""
    code = mark["code"]
    return bool(mark.get("excludes", code not in TABLE or TABLE[code].severity != NOTE))


def _named(why: Exclusion | None, arm: str) -> Exclusion | None:
    return why and Exclusion(why.code, f"launch of {arm}: {why.text}")
