"""One bench run: verify, warm up, N streams, verify again. No PASS, no number.

What counts is decided here; how a stream is timed is `client`'s and `figures`' business, what it was taken on `fingerprint`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from sglang_ext.bench import client, endpoint, fingerprint
from sglang_ext.bench.client import Address, Fault, ServerError
from sglang_ext.bench.figures import Run, figures
from sglang_ext.bench.gate import LOST, same_server
from sglang_ext.bench.suite import Suite, Workload
from sglang_ext.contract.model import ContractError
from sglang_ext.run.directory import RunError
from sglang_ext.verify.check import NoContractError, exit_code, unseen
from sglang_ext.verify.select import SeveralServersError

VALID, INVALID = "VALID", "INVALID"
FAILED, UNKNOWN_EXIT = 1, 3
Check = Callable[
    [int | None], dict[str, Any]
]  # verify: the server the user named (None), or the one of this main process
Tell = Callable[[str], None]


class Outcome(NamedTuple):
    """What a bench run came to; a receipt is made of this."""

    suite: Suite
    state: str
    reason: Fault | None  # why it is not VALID
    status: int  # the exit status
    before: dict[str, Any]
    after: dict[str, Any] | None
    runs: tuple[Run, ...]
    warmups: tuple[Run, ...]
    fingerprint: dict[str, Any] | None
    began: float  # time.time()
    ended: float


def bench(suite: Suite, check: Check, tell: Tell) -> Outcome:
    """Run ``suite`` on the server that ``check`` verifies; ``tell`` hears what is going on, never a figure.

    Raises what the first ``check`` raises. Later there is a result to give up: nothing is raised, the outcome is INVALID.
    """
    began = time.time()
    before = check(None)

    def outcome(reason: Fault | None, status: int, **found: Any) -> Outcome:
        state = VALID if reason is None else INVALID
        empty: dict[str, Any] = {"after": None, "runs": (), "warmups": (), "fingerprint": None}
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

    name = str(model.get("served_model_name") or server.get("served_model_name") or "default")
    asker = _Asker(address, suite.workload, name, server)
    work = suite.workload
    warmups = asker.several("warm-up", work.warmup_runs, work.warmup_tokens, tell)
    failed = next((run.fault for run in warmups if run.fault), None)
    runs = () if failed else asker.several("run", work.runs, work.tokens, tell)
    failed = failed or next((run.fault for run in runs if run.fault), None)

    tell("verifying again")
    after = _look_again(check, before["main"])
    found = {"after": after, "runs": runs, "warmups": warmups, "fingerprint": made}
    if after["verdict"] != "PASS":
        text = f"expected PASS after the last run, found {after['verdict']}"
        text += f"; before that {failed}" if failed else ""
        return outcome(Fault("verdict_lost", text), LOST, **found)
    if not same_server(before, after) or before["contract"]["digest"] != after["contract"]["digest"]:
        text = "expected the same workers and contract before and after, found others"
        return outcome(Fault("verdict_lost", text), LOST, **found)
    return outcome(failed, FAILED if failed else 0, **found)


def _look_again(check: Check, main: int | None) -> dict[str, Any]:
    """The second verification, of the same server whatever else was started meanwhile. One that is gone was not seen."""
    try:
        return check(main)
    except (ContractError, NoContractError, RunError, SeveralServersError, OSError) as error:
        return unseen("no_server", f"it was verified before and cannot be found as that again: {error}")


class _Asker:
    """Sends one stream after the other, and asks in between what the server's own last window was."""

    def __init__(self, address: Address, work: Workload, model: str, server: dict[str, Any]) -> None:
        self.address, self.work, self.model = address, work, model
        self.speculative = server["speculative_algorithm"] is not None if "speculative_algorithm" in server else None
        self.windows: list[float] | str = windows(server)

    def several(self, what: str, number: int, tokens: int, tell: Tell) -> tuple[Run, ...]:
        """``number`` streams; stops at the first that does not count, as nothing after it would."""
        runs: list[Run] = []
        for index in range(number):
            tell(f"{what} {index + 1} of {number}: {tokens} tokens")
            runs.append(self.once(tokens))
            if runs[-1].fault:
                tell(f"{what} {index + 1} does not count: {runs[-1].fault}")
                break
        return tuple(runs)

    def once(self, tokens: int) -> Run:
        request = client.body(self.work, tokens, self.model)
        answer = client.stream(self.address, client.PATHS[self.work.endpoint], request, self.work.timeout_s)
        run = figures(answer, tokens, speculative=self.speculative)
        window, why = self.window()
        if window is None:
            run.unknown["server_gen_tok_s"] = why
        return run._replace(server_gen_tok_s=window)

    def window(self) -> tuple[float | None, str]:
        """The server's last finished window, if one finished since we last looked; else why there is none to show."""
        earlier = self.windows
        try:
            self.windows = windows(client.ask(self.address, "/server_info"))
        except ServerError as error:
            self.windows = str(error)
        if isinstance(self.windows, str):
            return None, self.windows
        if len(self.windows) != 1:
            return (
                None,
                f"{len(self.windows)} data-parallel ranks answer, and which of them served this run is not worked out",
            )
        if self.windows == earlier:
            return None, "no window of the server ended since the last look: what it tells is older than this run"
        return self.windows[0], ""


def windows(server: dict[str, Any]) -> list[float] | str:
    """`last_gen_throughput` of each data-parallel rank (sglang 0.5.23: of its last 40 decode steps), or why not."""
    states = server.get("internal_states")
    found = [s.get("last_gen_throughput") for s in states if isinstance(s, dict)] if isinstance(states, list) else []
    values = [float(value) for value in found if isinstance(value, int | float)]
    return values if values and len(values) == len(found) else "/server_info has no last_gen_throughput"
