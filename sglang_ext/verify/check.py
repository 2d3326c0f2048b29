"""One verification: look at every process of a server, judge, and report by schema sglang-ext/verify/1."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from sglang_ext import reasons
from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.contract.names import is_nccl, is_tuning, shown
from sglang_ext.hide import HIDDEN, presentable
from sglang_ext.nccl.finding import Finding
from sglang_ext.quick import Any, NamedTuple
from sglang_ext.run.attestation import Call
from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.run.process import root_of, stat
from sglang_ext.verify import expected as sizes
from sglang_ext.verify import records
from sglang_ext.verify.carried import find_run, run_contract, run_files
from sglang_ext.verify.discover import Process, Server
from sglang_ext.verify.effective import Log, read_log
from sglang_ext.verify.inside import Inside, copies, look_inside, same_to
from sglang_ext.verify.judge import FAIL, PASS, UNKNOWN, History, judge, worst
from sglang_ext.verify.ranks import miscounted, unlike
from sglang_ext.verify.values import NOTHING_READ, Read, of_interest, read_values, weigh
from sglang_ext.verify.witnesses import Reading, Witnessed, dial, look, read_exec

SCHEMA = "sglang-ext/verify/1"
WITNESSES = ("exec", "live", "attested")  # of any process; schedulers have a fourth, effective
DECIDING = ("scheduler", "rank")  # the roles whose verdict counts
ANSWERING = ("scheduler", "other")  # the roles that may attest; a worker without its title yet is an "other"


class Request:
    """What is asked: the contract (None: the run's own), the witness demanded, who decides, and whether ranks are expected."""

    def __init__(
        self,
        contract: Contract | None,
        *,
        require: str | None = None,
        all_processes: bool = False,
        is_server: bool = True,
        accepted: Collection[str] = (),
    ) -> None:
        self.contract, self.require, self.is_server = contract, require, is_server
        self.all_processes = all_processes or not is_server  # where there is no server there are no ranks to decide
        self.accepted = frozenset(accepted)  # codes of value findings that are known and wanted so


NO_LOG = Log("unavailable", "only ranks talk NCCL")


class Beside(NamedTuple):
    """What is known of a worker beside its environment: its NCCL, that one's log, and what it makes of the values."""

    nccl: Inside
    log: Log
    values: Read


class NoContractError(Exception):
    """Neither the command line nor the run names a contract: there is nothing to verify against."""


def verify(server: Server, request: Request, directory: RunDirectory | None = None) -> dict[str, Any]:
    """Look at ``server`` now and report.

    Raises NoContractError when nothing says what to look for, ContractError or RunError when the run's contract is
    damaged.
    """
    fault = ""
    if directory is None:
        directory, fault = find_run(server)
    contract = request.contract if request.contract is not None else run_contract(directory)
    if not contract:
        why = fault or (
            "this server carries no run of ours"
            if directory is None
            else f"the run in {directory.path} states no contract, or an empty one"
        )
        raise NoContractError(f"{why}; name the contract with --profile, --set or --absent")
    run, facts = run_files(directory)
    expected = sizes.of(server, facts)
    check = _Check(contract, request, directory, run, server, expected)
    check.of_run = contract if request.contract is None else _believed(directory)
    if fault and not fault.startswith("its processes"):
        check.problem("run_not_believed", f"judged as a server that is not ours: {fault}")
    asked = [p for p in server.processes if p.role in ANSWERING]
    check.calls = {p.stat.pid: dial(directory, p.stat.pid) for p in asked}  # they answer while others are looked at
    for process in server.processes:
        check.look_at(process)
    check.count()
    check.compare_ranks()
    check.compare_copies()
    return check.report()


class _Check:
    """The state of one verification while it goes from process to process."""

    def __init__(
        self,
        contract: Contract,
        request: Request,
        directory: RunDirectory | None,
        run: dict[str, Any] | None,
        server: Server,
        expected: sizes.Expected,
    ) -> None:
        self.contract, self.request, self.directory, self.run, self.server = contract, request, directory, run, server
        self.calls: dict[int, Call | None] = {}
        self.problems: list[dict[str, Any]] = []
        self.workers: list[dict[str, Any]] = []
        self.now: dict[int, tuple[str, dict[str, str]]] = {}  # pid -> label, environment: of those that count
        self.inside: list[tuple[str, int, Inside]] = []  # label, pid, NCCL: of those that count
        self.findings: set[Finding] = set()  # what has been said of values
        self.read: dict[Any, Read] = {}
        self.of_ranks: tuple[int, ...] | None = None
        self.of_run: Contract | None = (
            None  # what the run was started with: what a worker repaired, it repaired to that
        )
        self.expected = expected
        self.main = read_exec(server.main.pid) if server.main else None

    def problem(
        self,
        code: str,
        message: str,
        worker: int | None = None,
        variable: str | None = None,
        *,
        counts: bool = True,
        grade: str | None = None,
    ) -> None:
        """Note one problem, as grave as its code or ``grade`` says; ``counts`` False: it is a helper's and decides nothing."""
        grade = (grade or reasons.severity(code)) if counts else "note"
        self.problems.append(
            {
                "code": code,
                "severity": grade,
                "worker": worker,
                "variable": variable,
                "message": message,
                "fix": reasons.TABLE[code].fix,
            }
        )

    def look_at(self, process: Process) -> None:
        pid, started = process.stat.pid, process.stat.start_time
        role, rank = process.role, process.rank
        seen = look(self.directory, pid, started, self.calls.get(pid), ask=role in ANSWERING)
        if seen.record is not None and role == "other":
            role = "scheduler"  # not titled yet, but it attests
        if role == "other" and not self.request.all_processes:
            return  # resource tracker, a shell, a worker that has not got as far as its title
        if seen.record is not None:
            rank = records.rank_of(seen.record, rank, self.expected)
        counts = role in DECIDING or self.request.all_processes
        label = rank.label or process.name or process.title.removeprefix("sglang::") or f"pid {pid}"
        if not label.isprintable():  # any process may title itself so; a terminal must not obey it
            label = ascii(label)
        after = stat(pid)
        if after is None or after.start_time != started or not after.alive:
            self.problem("worker_gone", f"{_who(label, pid)} ended while it was being read", pid, counts=counts)
            seen = seen._replace(**{w: getattr(seen, w)._replace(state="gone", values={}) for w in WITNESSES})
        environment = _now(seen)
        nccl = look_inside(pid, seen.maps)
        beside = Beside(nccl, NO_LOG, NOTHING_READ)
        if role in DECIDING and seen.live.state != "gone":
            beside = Beside(nccl, self._log(process, environment), self._values(pid, label, environment, nccl))
        variables = {
            name: self._variable(name, term.want, seen, beside, label, pid, counts)
            for name, term in self.contract.terms.items()
        }
        verdicts = [v["verdict"] for v in variables.values()]
        if role == "scheduler":
            verdicts += self._hook(seen, label, process)
        if counts and process.forked:
            self.problem("forked", f"{_who(label, pid)} was forked off a multiprocessing fork server", pid)
        if counts:
            self.inside.append((label, pid, nccl))
            if environment is not None:
                self.now[pid] = (label, environment)
        self.workers.append(
            {
                "pid": pid,
                "start_time": started,
                "role": role,
                "title": process.title,
                "label": label,
                "rank": rank._asdict(),
                "verdict": worst(verdicts),
                "counts": counts,
                "hook": records.hook_of(seen.record),
                "nccl": {
                    **nccl.to_json(),
                    "log": beside.log.path,
                    "conf": [file.path for file in beside.values.conf.files],
                },
                "variables": variables,
                "extras": {
                    n: presentable(v)
                    for n, v in sorted((environment or {}).items())
                    if is_tuning(n) and n not in self.contract.terms
                },
            }
        )

    def _values(self, pid: int, label: str, environment: dict[str, str] | None, nccl: Inside) -> Read:
        """What NCCL makes of this worker's values; what there is to say of equal workers is said once."""
        if environment is None:
            return NOTHING_READ
        environment = {name: value for name, value in environment.items() if value != HIDDEN}
        wanted = {name: term.want for name, term in self.contract.terms.items()}
        root = root_of(pid)
        key = (nccl.version, root, tuple(of_interest(environment).items()))
        if key in self.read:  # ranks mostly hold the same
            return self.read[key]
        read = self.read[key] = read_values(pid, environment, nccl.version, wanted, root=root)
        accepted = self.request.accepted | set(records.accepted(self.run))
        for finding in read.findings:
            name = finding.variable or ""  # a wrong value in quotes is the judge's to say
            judged = finding.code == "quoted" and name in wanted and environment.get(name) != wanted[name]
            if finding not in self.findings and not judged:
                self.findings.add(finding)
                weighed = weigh(finding, wanted, accepted, known=nccl.version is not None)
                grade = weighed.severity
                self.problem(weighed.code, f"{_who(label, pid)} {weighed.message}", pid, finding.variable, grade=grade)
        return read

    def _log(self, process: Process, environment: dict[str, str] | None) -> Log:
        pid = process.stat.pid
        neighbours = self.expected.here or sum(p.role in DECIDING for p in self.server.processes)
        return read_log(pid, process.ns_pid or pid, environment, neighbours=neighbours, root=root_of(pid))

    def _variable(
        self,
        name: str,
        want: str | None,
        seen: Witnessed,
        beside: Beside,
        label: str,
        pid: int,
        counts: bool,
    ) -> dict[str, Any]:
        same = same_to(name, beside.nccl.version or self._other_version())
        readings: dict[str, Reading] = {w: getattr(seen, w).reading(name) for w in WITNESSES}
        if is_nccl(name):
            readings["effective"] = beside.log.reading(name, lambda value: same(want, value))
        entered = (seen.record or {}).get("entered", {})
        term = self.of_run.terms.get(name) if self.of_run else None
        history = History(
            entered=records.found_at_entry(seen.record, name),
            repaired=name in entered.get("repaired", ()) and term is not None and same(want, term.want),
            main=self.main.reading(name) if self.main else None,
        )
        verdict, reason, message = judge(name, want, readings, history, same)
        if verdict == FAIL and readings["live"].says and readings["exec"].value != readings["live"].value:
            file = beside.values.file_that_sets(name, readings["live"].value)
            if file is not None:
                reason, message = "conf_sets", f"found {shown(readings['live'].value)}, which {file} gives it"
        require = self.request.require
        if verdict == PASS and require and not readings.get(require, Reading("unavailable")).says:
            verdict, reason = UNKNOWN, "witness_missing"
            silent = readings.get(require, Reading("unavailable", None, "it speaks of NCCL_* variables only"))
            message = f"{require} was demanded and says nothing: {silent.detail or silent.state}"
        elif verdict == PASS and require and not same(want, readings[require].value) and reason != "repaired":
            verdict, reason, message = FAIL, "different", f"{require} shows {shown(readings[require].value)}"
        if reason == "not_seen" and seen.live.state == "gone":
            reason = "worker_gone"  # said of the worker already, once
        elif reason is not None:
            self.problem(
                reason, f"{_who(label, pid)} {name}: expected {shown(want)}, {message}", pid, name, counts=counts
            )
        return {
            "verdict": verdict,
            "reason": reason,
            "witnesses": {
                w: {"state": r.state, "value": presentable(r.value), "detail": r.detail} for w, r in readings.items()
            },
        }

    def _hook(self, seen: Witnessed, label: str, process: Process) -> list[str]:
        """What the hook's state in a scheduler adds to its verdict."""
        stated_for = self.contract.digest if self.request.contract is None else None
        fault = records.fault_of(seen, process, self.run, stated_for)
        if fault is None:
            return []
        self.problem(fault.code, f"{_who(label, process.stat.pid)}{fault.text}", process.stat.pid)
        return [{"fail": FAIL, "unknown": UNKNOWN}[reasons.severity(fault.code)]]

    def count(self) -> None:
        """Found ranks = expected ranks, or it is said which are missing."""
        if self.request.is_server:
            fault = miscounted([w["label"] for w in self.workers if w["role"] in DECIDING], self.expected)
            if fault is not None:
                self.problem(*fault)

    def compare_ranks(self) -> None:
        """Every NCCL variable outside the contract must be the same in every rank; those inside were judged already."""
        for name, text in unlike(self.now, self.contract.terms, self._version()):
            self.problem("ranks_differ", text, None, name)

    def _version(self) -> tuple[int, ...] | None:
        """The one NCCL release all deciding workers have mapped; None where there is none, or not one."""
        versions = {inside.version for _, _, inside in self.inside}
        return versions.pop() if len(versions) == 1 else None

    def _other_version(self) -> tuple[int, ...] | None:
        """For a process that has no libnccl: the release its server's ranks have mapped, where they decide beside it."""
        if not self.request.all_processes:
            return None
        if self.of_ranks is None:
            ranks = (look_inside(p.stat.pid).version for p in self.server.processes if p.role in DECIDING)
            self.of_ranks = next((version for version in ranks if version is not None), ())
        return self.of_ranks or None

    def compare_copies(self) -> None:
        """One libnccl in every worker, and the same one in all."""
        for code, message, pid in copies(self.inside):
            self.problem(code, message, pid)

    def report(self) -> dict[str, Any]:
        grades = {"fail": FAIL, "unknown": UNKNOWN}
        verdicts = [w["verdict"] for w in self.workers if w["counts"]]
        verdicts += [grades[p["severity"]] for p in self.problems if p["severity"] in grades]
        if self.expected.here is not None:
            known = {size: value or None for size, value in self.expected._asdict().items()}  # a job has no TP
        else:
            known = {**self.expected._asdict(), "tp": None, "pp": None, "dp": None, "nnodes": None}
        return {
            "schema": SCHEMA,
            "verdict": worst(verdicts),
            "host": os.uname().nodename,
            "time": time.time(),
            "run": {"id": self.run["id"], "dir": self.directory.path} if self.run and self.directory else None,
            "main": self.server.main.pid if self.server.main else None,
            "contract": self.contract.to_json(),
            "expected": known,
            "require": self.request.require,
            "workers": sorted(self.workers, key=_order),
            "problems": self.problems,
        }


def _believed(directory: RunDirectory | None) -> Contract | None:
    """The run's contract beside one from the command line, which may stand alone."""
    try:
        return run_contract(directory)
    except (ContractError, RunError):
        return None


def _order(worker: dict[str, Any]) -> tuple[Any, ...]:
    rank = worker["rank"]
    return (
        not worker["counts"],
        worker["role"],
        *((rank[k] is None, rank[k] or 0) for k in ("dp", "pp", "tp")),
        worker["pid"],
    )


def _who(label: str, pid: int) -> str:
    """`TP1 (pid 4711)`; a process without a rank or title is called by its pid alone."""
    return label if label == f"pid {pid}" else f"{label} (pid {pid})"


def _now(seen: Witnessed) -> dict[str, str] | None:
    for block in (seen.live, seen.attested):
        if block.state == "ok":
            return block.values
    return None


def exit_code(verdict: str) -> int:
    """0 PASS, 1 FAIL, 3 UNKNOWN."""
    return {PASS: 0, FAIL: 1}.get(verdict, 3)


def unseen(code: str, message: str) -> dict[str, Any]:
    """The report when there is no server to look at: UNKNOWN, with the reason."""
    return {
        "schema": SCHEMA,
        "verdict": UNKNOWN,
        "host": os.uname().nodename,
        "time": time.time(),
        "run": None,
        "main": None,
        "contract": None,
        "expected": dict.fromkeys(sizes.Expected._fields),
        "require": None,
        "workers": [],
        "problems": [
            {
                "code": code,
                "severity": "unknown",
                "worker": None,
                "variable": None,
                "message": message,
                "fix": reasons.TABLE[code].fix,
            }
        ],
    }
