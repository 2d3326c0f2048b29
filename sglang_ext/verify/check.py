"""One verification: look at every process of a server, judge, and report by schema sglang-ext/verify/1."""

from __future__ import annotations

import os
import time
from typing import Any

from sglang_ext.contract.model import Contract
from sglang_ext.contract.names import is_nccl, is_tuning, shown
from sglang_ext.reasons import TABLE, severity
from sglang_ext.run.attestation import record_name
from sglang_ext.run.directory import RUN_DIR, RunDirectory, RunError
from sglang_ext.run.directory import SCHEMA as RUN_SCHEMA
from sglang_ext.run.process import effective_uid, stat
from sglang_ext.verify import expected as sizes
from sglang_ext.verify.discover import Process, Rank, Server
from sglang_ext.verify.judge import FAIL, PASS, UNKNOWN, History, judge, worst
from sglang_ext.verify.witnesses import Reading, Witnessed, look, read_exec, read_now

SCHEMA = "sglang-ext/verify/1"
WITNESSES = ("exec", "live", "attested")


class Request:
    """What is asked: the contract (None: the run's own), the witness demanded, and who decides."""

    def __init__(self, contract: Contract | None, *, require: str | None = None, all_processes: bool = False) -> None:
        self.contract, self.require, self.all_processes = contract, require, all_processes


class NoContractError(Exception):
    """Neither the command line nor the run names a contract: there is nothing to verify against."""


def run_of(server: Server) -> RunDirectory | None:
    """The run directory this server's processes carry, if it may be believed."""
    return find_run(server)[0]


def find_run(server: Server) -> tuple[RunDirectory | None, str]:
    """The run directory this server's processes carry, or None and, where there is something to say, why not.

    Schedulers first: a run marks them all, and keeps their exec blocks readable. Memory costs more to read, and is only
    looked into where no block tells: one worker and the main process.
    """
    order = sorted(server.processes, key=lambda p: p.role != "scheduler")
    pids = [p.stat.pid for p in order[:4]] + ([server.main.pid] if server.main else [])
    blocks = []
    for read, where in ((read_exec, pids), (read_now, [*pids[:1], *pids[-1:]])):
        for pid in where:
            block = read(pid)
            blocks.append(block)
            if block.state == "ok" and RUN_DIR in block.values:
                try:
                    return _own_run(block.values[RUN_DIR], pid, server), ""
                except RunError as error:
                    return None, str(error).removesuffix("; name one that exists")
    if blocks and all(block.state == "denied" for block in blocks):
        return None, f"its processes cannot be looked into ({blocks[0].detail})"
    return None, ""


def _own_run(path: str, pid: int, server: Server) -> RunDirectory:
    """The run directory in ``path`` that process ``pid`` carries. Raises RunError where it is not this server's own."""
    directory = RunDirectory.open(path)
    owner, user = os.lstat(path).st_uid, effective_uid(pid)
    if owner not in (0, user):
        raise RunError(f"run directory {path} belongs to uid {owner}, expected the server's own, {user}")
    if (directory.read("run.json") or {}).get("schema") != RUN_SCHEMA:
        raise RunError(f"run directory {path} has no run.json of ours")
    main = (directory.read("server.json") or {}).get("main")
    if main is not None and server.main is not None and main != server.main.identity._asdict():
        found = f"pid {main['pid']}" if isinstance(main, dict) and "pid" in main else "none that can be read"
        raise RunError(f"run directory {path} is that of another server: expected pid {server.main.pid}, found {found}")
    return directory


def run_contract(directory: RunDirectory | None) -> Contract | None:
    """The contract the run decided. Raises ContractError or RunError when it is damaged."""
    stored = directory.read("contract.json") if directory is not None else None
    return Contract.from_json(stored) if stored is not None else None


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
    run, facts = _run_files(directory)
    expected = sizes.from_record(facts) if facts else sizes.from_arguments(server.arguments)
    check = _Check(contract, request, directory, run, server, expected)
    if fault and not fault.startswith("its processes"):
        check.problem("run_not_believed", f"judged as a server that is not ours: {fault}")
    for process in server.processes:
        check.look_at(process)
    check.count()
    check.compare_ranks()
    return check.report()


def _run_files(directory: RunDirectory | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    if directory is None:
        return None, None
    run = directory.read("run.json")
    if run is None or run.get("schema") != RUN_SCHEMA or not isinstance(run.get("id"), str):
        raise RunError(f"{directory.path} has no run.json of ours; it is not believed, start the server again")
    return run, directory.read("server.json")


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
        self.problems: list[dict[str, Any]] = []
        self.workers: list[dict[str, Any]] = []
        self.now: dict[int, tuple[str, dict[str, str]]] = {}  # pid -> label, environment: of schedulers
        self.expected = expected
        self.main = read_exec(server.main.pid) if server.main else None

    def problem(
        self, code: str, message: str, worker: int | None = None, variable: str | None = None, *, counts: bool = True
    ) -> None:
        """Note one problem; ``counts`` False: it is a helper's and decides nothing."""
        grade = severity(code) if counts else "note"
        self.problems.append(
            {
                "code": code,
                "severity": grade,
                "worker": worker,
                "variable": variable,
                "message": message,
                "fix": TABLE[code].fix,
            }
        )

    def look_at(self, process: Process) -> None:
        pid, started = process.stat.pid, process.stat.start_time
        role, rank = process.role, process.rank
        seen = look(self.directory, pid, started, ask=role in ("scheduler", "other"))
        if seen.record is not None and role == "other":
            role = "scheduler"  # not titled yet, but it attests
        if role == "other" and not self.request.all_processes:
            return  # resource tracker, a shell, a worker that has not got as far as its title
        if seen.record is not None:
            rank = _attested_rank(seen.record, rank, self.expected)
        counts = role == "scheduler" or self.request.all_processes
        label = rank.label or process.title.removeprefix("sglang::") or f"pid {pid}"
        after = stat(pid)
        if after is None or after.start_time != started or not after.alive:
            self.problem("worker_gone", f"{_who(label, pid)} ended while it was being read", pid, counts=counts)
            seen = seen._replace(**{w: getattr(seen, w)._replace(state="gone", values={}) for w in WITNESSES})
        variables = {
            name: self._variable(name, term.want, seen, label, pid, counts)
            for name, term in self.contract.terms.items()
        }
        verdicts = [v["verdict"] for v in variables.values()]
        if role == "scheduler":
            verdicts += self._hook(seen, label, pid)
        environment = _now(seen)
        if counts and environment is not None:
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
                "hook": _hook_of(seen.record),
                "variables": variables,
                "extras": {
                    n: v
                    for n, v in sorted((environment or {}).items())
                    if is_tuning(n) and n not in self.contract.terms
                },
            }
        )

    def _variable(
        self, name: str, want: str | None, seen: Witnessed, label: str, pid: int, counts: bool
    ) -> dict[str, Any]:
        readings: dict[str, Reading] = {w: getattr(seen, w).reading(name) for w in WITNESSES}
        entered = (seen.record or {}).get("entered", {})
        history = History(
            entered=_stored(entered, name),
            repaired=name in entered.get("repaired", ()),
            main=self.main.reading(name) if self.main else None,
        )
        verdict, reason, message = judge(name, want, readings, history)
        require = self.request.require
        if verdict == PASS and require and not readings.get(require, Reading("unavailable")).says:
            verdict, reason = UNKNOWN, "witness_missing"
            message = f"{require} was demanded and says nothing: {readings[require].detail or readings[require].state}"
        elif verdict == PASS and require and readings[require].value != want and reason != "repaired":
            verdict, reason, message = FAIL, "different", f"{require} shows {shown(readings[require].value)}"
        if reason is not None:
            self.problem(
                reason, f"{_who(label, pid)} {name}: expected {shown(want)}, {message}", pid, name, counts=counts
            )
        return {
            "verdict": verdict,
            "reason": reason,
            "witnesses": {w: {"state": r.state, "value": r.value, "detail": r.detail} for w, r in readings.items()},
        }

    def _hook(self, seen: Witnessed, label: str, pid: int) -> list[str]:
        """What the hook's state in a scheduler adds to its verdict."""
        if seen.record_fault:
            self.problem("attestation_bad", f"{_who(label, pid)}: {seen.record_fault}", pid)
            return [UNKNOWN]
        stated = (seen.record or {}).get("contract", self.contract.digest)
        if self.request.contract is None and stated != self.contract.digest:
            self.problem(
                "contract_edited",
                f"{_who(label, pid)}: expected the contract it was started with, digest {str(stated)[:12]}, found "
                f"{self.contract.digest[:12]} in contract.json",
                pid,
            )
            return [FAIL]
        if self.run is not None and seen.record is None:
            self.problem(
                "hook_inactive",
                f"{_who(label, pid)} belongs to run {self.run['id']} and attests nothing: expected "
                f"{record_name(pid)}, found none",
                pid,
            )
            return [FAIL]
        if self.run is not None and _hook_of(seen.record)["mode"] == "none":
            self.problem("hook_inactive", f"{_who(label, pid)} says it runs stock files", pid)
            return [FAIL]
        # Where the run only warns, ranks that did not agree serve all the same; on other nodes only they saw it.
        agreement = _part(_part(seen.record, "ready"), "agreement")
        if agreement.get("code") in TABLE:
            self.problem(agreement["code"], f"{_who(label, pid)} when it was built: {agreement.get('message')}", pid)
            return [FAIL]
        return []

    def count(self) -> None:
        """Found ranks = expected ranks, or it is said which are missing."""
        expected = self.expected
        if self.request.all_processes:
            return
        schedulers = [w for w in self.workers if w["role"] == "scheduler"]
        found = ", ".join(w["label"] for w in schedulers) or "none"
        if expected.here is None:
            self.problem(
                "expected_unknown",
                f"found {len(schedulers)} schedulers ({found}), expected: not told by its command line",
            )
        elif len(schedulers) != expected.here:
            code = "missing_ranks" if len(schedulers) < expected.here else "extra_ranks"
            absent = [label for label in _labels(expected) if label not in {w["label"] for w in schedulers}]
            missing = f"; {', '.join(absent)} missing" if absent and code == "missing_ranks" else ""
            self.problem(code, f"found {len(schedulers)} of {expected.here} schedulers ({found}){missing}")
        elif len({w["label"] for w in schedulers}) != len(schedulers):
            self.problem("extra_ranks", f"two schedulers claim the same rank ({found})")

    def compare_ranks(self) -> None:
        """Every NCCL variable outside the contract must be the same in every rank; those inside were judged already."""
        names = {n for _, env in self.now.values() for n in env if is_nccl(n) and is_tuning(n)} - set(
            self.contract.terms
        )
        for name in sorted(names):
            values = {pid: env.get(name) for pid, (_, env) in self.now.items()}
            if len(set(values.values())) > 1:
                sides: dict[str | None, list[str]] = {}
                for pid, value in values.items():
                    sides.setdefault(value, []).append(self.now[pid][0])
                text = ", ".join(f"{shown(value)} on {', '.join(labels)}" for value, labels in sides.items())
                self.problem("ranks_differ", f"{name} is {text}", None, name)

    def report(self) -> dict[str, Any]:
        grades = {"fail": FAIL, "unknown": UNKNOWN}
        verdicts = [w["verdict"] for w in self.workers if w["counts"]]
        verdicts += [grades[p["severity"]] for p in self.problems if p["severity"] in grades]
        if self.expected.here is not None:
            known = self.expected._asdict()
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


def _labels(expected: sizes.Expected) -> list[str]:
    """What the schedulers must be called, where that can be told: on one node, without data parallelism."""
    if expected.nnodes != 1 or expected.dp != 1 or expected.here is None:
        return []
    stages = range(expected.pp) if expected.pp > 1 else (None,)
    return [Rank(pp=pp, tp=tp).label for pp in stages for tp in range(expected.tp)]


def _attested_rank(record: dict[str, Any], titled: Rank, expected: sizes.Expected) -> Rank:
    """A title leaves parts out; the attestation has what the worker was called with. Dimensions of one are not named."""
    said = {k: v for k, v in record.get("rank", {}).items() if k in Rank._fields and isinstance(v, int)}
    known = {k: v for k, v in titled._asdict().items() if v is not None}
    alone = {k for k in ("dp", "pp") if getattr(expected, k) == 1}
    return Rank(**{k: v for k, v in (said | known).items() if k not in alone})


def _part(record: dict[str, Any] | None, key: str) -> dict[str, Any]:
    """An object inside a record that a worker wrote; empty where there is none."""
    value = (record or {}).get(key)
    return value if isinstance(value, dict) else {}


def _hook_of(record: dict[str, Any] | None) -> dict[str, Any]:
    hook = (record or {}).get("hook") or {}
    mode = hook.get("mode") if hook.get("mode") in ("overlay", "baked") else "none"
    return {"active": mode != "none", "patchset": hook.get("patchset"), "mode": mode}


def _stored(entered: dict[str, Any], name: str) -> Reading | None:
    values = entered.get("values")
    if not isinstance(values, dict) or (name not in values and not is_tuning(name)):
        return None
    value = values.get(name)  # every tuning variable that was there is in it
    return Reading("absent") if value is None else Reading("value", str(value))


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
        "expected": sizes.Expected()._asdict(),
        "require": None,
        "workers": [],
        "problems": [
            {
                "code": code,
                "severity": "unknown",
                "worker": None,
                "variable": None,
                "message": message,
                "fix": TABLE[code].fix,
            }
        ],
    }
