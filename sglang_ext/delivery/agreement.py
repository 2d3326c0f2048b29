"""Do all ranks hold the same? Asked through the process group's store, with a time-out.

Not a collective: where one rank does not take part a collective hangs the whole server; the store gives the others a
clean error after ``timeout``. The default group's store spans TP, PP and nodes (sglang 0.5.23, seen at TP=2 and PP=2);
DP replicas have a world each and are compared from outside.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from sglang_ext.contract.names import NODE_LOCAL

TIMEOUT = 120.0  # seconds: ranks load their weights at different speed
LONGEST = 86400.0  # seconds: a longer wait is for ever, and no timedelta holds an infinite one
TIMEOUT_VARIABLE = "SGLANG_EXT_AGREEMENT_TIMEOUT"
PREFIX = "sglang_ext/agreement/1"


def timeout() -> float:
    """Seconds to wait for the other ranks, all of them together: from 1 to a day. What is no number counts as not given."""
    try:
        given = float(os.environ.get(TIMEOUT_VARIABLE, ""))
    except ValueError:
        return TIMEOUT
    return TIMEOUT if math.isnan(given) else min(max(given, 1.0), LONGEST)


class Store(Protocol):
    """What is used of torch.distributed.Store."""

    def set(self, key: str, value: str) -> None: ...
    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None: ...
    def get(self, key: str) -> bytes: ...


def differing(statements: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """One clause for each thing the ranks do not agree on; ``statements`` maps rank to contract, patchset, nccl, node, and own:
    the variables that need not be the same, as a launcher has set them for its own node. What each node has of its own
    (`NODE_LOCAL`) is the same within a node, and there on all nodes or on none.
    """
    clauses = []
    for key, what in (("contract", "the contract"), ("patchset", "the patch set")):
        if len({str(s.get(key)) for s in statements.values()}) > 1:
            clauses.append(what + " is " + _sides({r: str(s.get(key))[:12] for r, s in statements.items()}))
    own = {name for s in statements.values() for name in s.get("own", ())}
    for name in sorted({n for s in statements.values() for n in s.get("nccl", {})} - own):
        values = {rank: s.get("nccl", {}).get(name) for rank, s in statements.items()}
        held = {(s.get("node") if name in NODE_LOCAL else None, values[rank]) for rank, s in statements.items()}
        somewhere_only = len({value is None for _, value in held}) > 1
        if somewhere_only or len(held) > len({node for node, _ in held}):
            clauses.append(name + " is " + _sides(values))
    return clauses


def _sides(values: Mapping[int, str | None]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault("absent" if value is None else value, []).append(rank)
    return " but ".join(
        f"{value} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        for value, ranks in groups.items()
    )


def agree(store: Store, rank: int, world: int, statement: Mapping[str, Any], timeout: float) -> tuple[str | None, str]:
    """State ours, wait for everybody's, compare. Returns ``(reason code or None, sentence)``."""
    try:
        store.set(f"{PREFIX}/{rank}", json.dumps(statement, sort_keys=True))
    except RuntimeError as error:  # the rank that keeps the store is gone, or the network to it
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return "agreement_timeout", (
            f"rank {rank} of {world} could not state its environment to the others ({first[:80]}); see the log of rank 0"
        )
    statements: dict[int, Mapping[str, Any]] = {}
    deadline = time.monotonic() + timeout
    for other in range(world):
        left = max(deadline - time.monotonic(), 0.1)
        try:
            store.wait([f"{PREFIX}/{other}"], datetime.timedelta(seconds=left))
            statements[other] = json.loads(store.get(f"{PREFIX}/{other}"))
        except (RuntimeError, ValueError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            return "agreement_timeout", (
                f"rank {other} of {world} did not state its environment to rank {rank} within {timeout:g} s ({first[:80]}); "
                f"see that rank's log, or raise {TIMEOUT_VARIABLE}"
            )
    clauses = differing(statements)
    if clauses:
        return "ranks_differ", "; ".join(clauses) + "; start every rank with the same contract"
    return None, f"{world} ranks hold the same"
