"""One launch of a campaign: an arm's server started, proven, measured, proven again, and ended. Fills in a LAUNCH of the record.

An arm of a running server is looked for, proven where it is an SGLang server of this host, measured, and left running.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench import fingerprint
from sglang_ext.bench.campaigns import looks, servers
from sglang_ext.bench.campaigns.measure import Taker, place
from sglang_ext.bench.essentials import essentials
from sglang_ext.bench.gate import same_server
from sglang_ext.bench.machine import marks, observe
from sglang_ext.bench.suites.arms import Arm
from sglang_ext.bench.suites.suite import Suite, command
from sglang_ext.bench.traffic import client, endpoint
from sglang_ext.bench.traffic.client import KEY, Address, Fault, ServerError
from sglang_ext.bench.truth import in_effect, reconcile
from sglang_ext.bench.truth.referee import Referee
from sglang_ext.bench.truth.sameness import with_environment
from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.verify import select

Record = dict[str, Any]
Tell = Callable[[str], None]
LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0")
SETTLED = 10.0  # seconds a server that has lost a worker, or its client, gets to end by itself: then that is the reason
MOST_LOG = 64 << 20  # bytes of a log that are looked through; a campaign's have some hundred KiB


class Refused(Exception):
    """A gate is closed: what is here may not be measured. ``fault`` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Serving(NamedTuple):
    """A server that serves."""

    address: Address
    pid: int | None  # whose server it is; None: nobody of this host's
    log: str | None
    ready: float
    environment: Mapping[str, str]  # what its workers have, as far as that is known: which GPUs are its own
    pids: Callable[[], set[int]]
    look: Callable[[], Record]
    check: Callable[..., None]  # raises LaunchError once it has ended
    alone: bool = True  # False: other arms' servers run beside it, and the GPUs that it holds are its own
    blind: str | None = None  # why no GPU is watched


def launch(made: Record, arm: Arm, suite: Suite, log: str, tell: Tell, hold: Callable[[], None]) -> None:
    """Launch ``arm`` and put what comes of it into ``made``: "finished", or "failed" with the reason.

    ``hold`` compares what was measured with the other launches: before that none is finished, however well it went. Raises
    Refused, as ``hold`` may. On any other exception, an interrupt say, ``made`` says "abandoned".
    """
    made.update(
        state="abandoned",
        reason="block_unfinished: it was interrupted",
        time={"began": time.time(), "ready": None, "ended": None},
        verify={"before": None, "after": None},
        server={"pid": None, "port": None, "log": os.path.relpath(log, os.path.dirname(os.path.dirname(log)))},
        in_effect={},
        fingerprint=None,
        warmups=[],
        runs=[],
        together=[],
        counters=None,
        reconciliation=None,
        machine=None,
        output_sha256=[],
        simulated_acceptance=False,
        unknown={},
    )
    fault: Fault | None
    try:
        with _serving(arm, suite, log, tell) as serving:
            made["time"]["ready"] = serving.ready
            made["server"].update(pid=serving.pid, port=serving.address.port)
            if serving.log is None:
                made["server"]["log"] = None
            fault = _measure(made, arm, suite, serving, tell)
    except servers.LaunchError as error:
        fault = error.fault
    finally:
        made["time"]["ended"] = time.time()
    if fault is not None and os.path.exists(log):  # a server was started: its own words are there
        fault = fault._replace(text=f"{fault.text} (log: {log})")
    if fault is None:
        hold()
    made.update(state="failed" if fault else "finished", reason=str(fault) if fault else None)


@contextlib.contextmanager
def _serving(arm: Arm, suite: Suite, log: str, tell: Tell) -> Iterator[Serving]:
    """The arm's server, once it serves; ended afterwards where it was ours to start."""
    assert suite.campaign is not None
    try:
        wanted = looks.contract_of(arm.contract)
    except ContractError as error:
        raise Refused(Fault("contract_invalid", str(error))) from None
    if arm.address is not None:
        yield _running(arm.address)
        return
    port = servers.free_port()
    argv, changes = command(arm, port)
    own = environment(changes)
    seen = environment({**changes, **arm.variables})  # the launcher is told of the contract, and its workers have it
    _preflight(seen)
    with servers.start(argv, own, log) as server:
        tell("waiting until it serves")
        ready = server.wait_until_it_serves(port, suite.campaign.ready_timeout_s, tell)
        pid = server.main.pid
        yield Serving(
            Address(servers.HOST, port),
            pid,
            log,
            ready,
            seen,
            lambda: server.pids,
            lambda: looks.look(pid, wanted),
            server.check,
        )
        tell("ending the server")
    if server.left is not None and server.left.there:
        raise servers.LaunchError(
            "server_left_over", f"expected nothing left of the server, found pids {server.left.there}"
        )


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This environment with an arm's changes. The key that a client needs is no business of a server's."""
    made = {name: value for name, value in os.environ.items() if name != KEY}
    for name, value in changes.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = value
    return made


def _running(url: str) -> Serving:
    """The server that runs behind an address: one of this host's, or one that nobody here can look into."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    address = Address(endpoint.EVERYWHERE.get(host.strip("[]"), host.strip("[]")), int(port))
    if address.host not in LOCAL:
        return _unseen(
            address, f"the server is not of this host but of {address.host}: its GPUs are not seen from here"
        )
    try:
        server = select.by_port(address.port)
    except select.NoServerError:  # whoever listens there cannot be looked into
        return _unseen(
            address, "no SGLang server of this host is seen to listen there: which GPUs are its own is not known"
        )
    except select.SeveralServersError as error:
        raise Refused(Fault("no_endpoint", str(error))) from None
    pid = server.main.pid if server.main else min(server.pids)
    worker = next((one.stat.pid for one in server.processes if one.role == "scheduler"), pid)
    return Serving(
        address,
        pid,
        None,
        time.time(),
        looks.environment_of(worker),
        lambda: set(server.pids),
        lambda: looks.look(pid, Contract()),
        lambda *_: None,
        alone=False,
    )


def _unseen(address: Address, why: str) -> Serving:
    return Serving(address, None, None, time.time(), {}, set, looks.nobody, lambda *_: None, alone=False, blind=why)


def _preflight(own: Mapping[str, str]) -> None:
    """Raise Refused where something else than the arm's server would be measured along with it."""
    if found := servers.leftovers():
        raise Refused(found)
    if faults := observe.preflight((), environment=own):
        raise Refused(faults[0])


def _measure(made: Record, arm: Arm, suite: Suite, serving: Serving, tell: Tell) -> Fault | None:
    """Prove, measure, prove again. Returns why the launch does not count. Raises Refused."""
    assert suite.campaign is not None
    before = serving.look()
    made["verify"]["before"] = essentials(before)
    if before["verdict"] not in looks.GOOD:
        serving.check(SETTLED)  # one that has just ended says why itself
        raise Refused(Fault("not_verified", _why(before)))
    try:
        address = endpoint.find(before) if before["main"] is not None else serving.address
        server, model = client.ask(address, "/server_info"), client.ask(address, "/model_info")
    except (endpoint.NoEndpointError, ServerError) as error:
        serving.check(SETTLED)
        return Fault("no_endpoint", str(error))
    made["fingerprint"] = with_environment(fingerprint.collect(before, server, model), before)
    _effect(made, arm, server, before, serving.log)
    tell(f"{before['verdict']}; measuring")
    time.sleep(suite.campaign.settle_s)
    observer = observe.start(serving.pids(), environment=serving.environment, alone=serving.alone, blind=serving.blind)
    try:
        referee = Referee(address, serving.log, server)
        taken = Taker(place(address, server, model), suite.workload, tell, referee, server).take()
    finally:
        machine = observer.stop()
    made.update(
        warmups=taken.warmups_json(),
        runs=taken.runs_json(),
        together=taken.rounds_json(),
        counters=taken.counters,
        reconciliation=reconcile.together(taken.reconciled).to_json(),
        machine=machine,
        output_sha256=[run.text_sha256 for run in taken.runs],
        unknown=taken.unknown,
    )
    machine["marks"] = marks.marks(machine, spans(made["runs"]))
    if taken.fault is not None:
        serving.check(SETTLED)
        return taken.fault
    serving.check()
    after = serving.look()
    made["verify"]["after"] = essentials(after)
    if after["verdict"] != before["verdict"] or not same_server(before, after):
        serving.check(SETTLED)
        text = f"found {_why(after)}" if after["verdict"] != before["verdict"] else "found other workers"
        raise Refused(
            Fault("verdict_lost", f"expected {before['verdict']} of the same workers after the last run, {text}")
        )
    _effect(made, arm, server, after, serving.log)
    return None


def spans(runs: Sequence[Record]) -> list[marks.Span]:
    """When each run was, for what the machine did meanwhile."""
    return [
        (index, run["began"], run["began"] + run["trace"]["t"][-1])
        for index, run in enumerate(runs)
        if run["trace"]["t"]
    ]


def _effect(made: Record, arm: Arm, server: Record, report: Record, log: str | None) -> None:
    """Hold what the arm asks for against what the server does. Raises Refused."""
    variables = held(report)
    if variables is not None:  # what looks like none that tunes is in no report
        variables |= dict.fromkeys(looks.names_held(report, in_effect.DEAD_NAMES), "")
    made["in_effect"], faults = in_effect.check(arm, server, _text(log), variables)
    made["simulated_acceptance"] = bool(made["in_effect"].get("simulated_acceptance"))
    if faults:
        raise Refused(faults[0])


def held(report: Mapping[str, Any]) -> dict[str, str] | None:
    """The tuning variables the ranks hold, where all hold the same; None where nobody could look into one."""
    each = []
    for worker in report["workers"]:
        if worker["counts"]:
            if worker.get("unread"):
                return None
            seen = {
                name: found["witnesses"].get("live", {}).get("value") for name, found in worker["variables"].items()
            }
            each.append({name: value for name, value in {**worker["extras"], **seen}.items() if value is not None})
    if not each:
        return None
    return {name: value for name, value in each[0].items() if all(one.get(name) == value for one in each)}


def _text(log: str | None) -> str | None:
    """What the server has written so far."""
    try:
        if log is None:
            return None
        with open(log, encoding="utf-8", errors="replace") as file:
            return file.read(MOST_LOG)
    except OSError:
        return None


def _why(report: Mapping[str, Any]) -> str:
    """A verdict and the first thing that led to it."""
    first = next((f": {p['code']}: {p['message']}" for p in report["problems"] if p["severity"] != "note"), "")
    return f"{report['verdict']}{first}"
