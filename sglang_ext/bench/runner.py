"""One bench run: verify, warm up, N streams, verify again. No PASS, no number.

What counts is decided here; how streams are sent and held against the server's own word is `measure`'s business, what they were
taken on `fingerprint`'s. A suite with arms is a `campaign`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from sglang_ext.bench import fingerprint
from sglang_ext.bench.campaigns.measure import NOTHING, Taken, Taker, Tell, place
from sglang_ext.bench.essentials import essentials
from sglang_ext.bench.gate import LOST, same_server
from sglang_ext.bench.suites.suite import Suite
from sglang_ext.bench.traffic import client, endpoint
from sglang_ext.bench.traffic.client import Fault, ServerError
from sglang_ext.bench.traffic.figures import Run
from sglang_ext.bench.truth import reconcile
from sglang_ext.bench.truth.referee import Referee
from sglang_ext.bench.truth.sameness import differences, with_environment
from sglang_ext.verify.check import exit_code, unseen
from sglang_ext.verify.faults import UNJUDGED

VALID, INVALID, UNRECONCILED = "VALID", "INVALID", "UNRECONCILED"
FAILED, UNKNOWN_EXIT = 1, 3
Check = Callable[
    [int | None], dict[str, Any]
]  # verify: the server the user named (None), or the one of this main process


class Outcome(NamedTuple):
    """What a bench run came to; a receipt is made of this."""

    suite: Suite
    state: str
    reason: Fault | None  # why it is not VALID
    status: int  # the exit status
    before: dict[str, Any]
    after: dict[str, Any] | None
    taken: Taken
    fingerprint: dict[str, Any] | None
    began: float  # time.time()
    ended: float

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.taken.runs


def bench(suite: Suite, check: Check, tell: Tell, expected: dict[str, Any] | None = None) -> Outcome:
    """Run ``suite`` on the server that ``check`` verifies; ``tell`` hears what is going on, never a figure.

    ``expected``: the fingerprint of the receipt that is to be repeated, with the environment of its ranks where it tells that;
    on another one nothing is measured.

    Raises what the first ``check`` raises. Later there is a result to give up: nothing is raised, the outcome is INVALID.
    """
    began = time.time()
    before = check(None)

    def outcome(reason: Fault | None, status: int, **found: Any) -> Outcome:
        state = VALID if reason is None else UNRECONCILED if reason.code == "unreconciled" else INVALID
        empty: dict[str, Any] = {"after": None, "taken": NOTHING, "fingerprint": None}
        return Outcome(
            suite=suite,
            state=state,
            reason=reason,
            status=status,
            before=before,
            began=began,
            ended=time.time(),
            **empty | found,
        )

    if before["verdict"] != "PASS":
        text = f"expected PASS before the first run, found {before['verdict']}"
        return outcome(Fault("not_verified", text), exit_code(before["verdict"]))
    try:
        address = endpoint.find(before)
        server = client.ask(address, "/server_info")
        model = client.ask(address, "/model_info")
    except (endpoint.NoEndpointError, ServerError) as error:
        return outcome(Fault("no_endpoint", str(error)), UNKNOWN_EXIT)
    tell(f"{address}: reading what it runs on")
    made = fingerprint.collect(before, server, model)
    now = with_environment(made, essentials(before))  # as a receipt has it: the same values by the same words
    if expected is not None and (faults := differences({"receipt": expected, "now": now}, ())):
        return outcome(Fault("rerun_differs", "; ".join(fault.text for fault in faults)), FAILED, fingerprint=made)

    referee = Referee(address, None, server, flush=False)
    taken = Taker(place(address, server, model), suite.workload, tell, referee, server).take()
    failed = taken.fault

    tell("verifying again")
    after = _look_again(check, before["main"])
    found = {"after": after, "taken": taken, "fingerprint": made}
    if after["verdict"] != "PASS":
        text = f"expected PASS after the last run, found {after['verdict']}"
        text += f"; before that {failed}" if failed else ""
        return outcome(Fault("verdict_lost", text), LOST, **found)
    if not same_server(before, after) or before["contract"]["digest"] != after["contract"]["digest"]:
        text = "expected the same workers and contract before and after, found others"
        return outcome(Fault("verdict_lost", text), LOST, **found)
    if failed:
        return outcome(failed, FAILED, **found)
    whole = reconcile.together(taken.reconciled)
    if whole.state == reconcile.UNRECONCILED:
        return outcome(Fault("unreconciled", str(whole.reason)), UNKNOWN_EXIT, **found)
    return outcome(None, 0, **found)


def _look_again(check: Check, main: int | None) -> dict[str, Any]:
    """The second verification, of the same server whatever else was started meanwhile. One that is gone was not seen."""
    try:
        return check(main)
    except UNJUDGED as error:
        return unseen("no_server", f"it was verified before and cannot be found as that again: {error}")
