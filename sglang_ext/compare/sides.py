"""A side of a comparison: recognised by its form, read, and turned into facts.

* pid:N, port:N, run:DIR: a live server; of a run whose server has ended, what its directory holds
* DIR: the same as run:DIR
* FILE: a receipt of `bench run`, or a report of `verify-env --json`
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from sglang_ext.compare import facts
from sglang_ext.compare.difference import ARGUMENTS, MODEL, Side
from sglang_ext.contract.model import ContractError
from sglang_ext.run import attestation
from sglang_ext.run.directory import SCHEMA as RUN_SCHEMA
from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.verify import check, select
from sglang_ext.verify import expected as sizes
from sglang_ext.verify.carried import find_run, run_contract, run_files
from sglang_ext.verify.discover import Process, Rank, Server
from sglang_ext.verify.witnesses import dial, look

BIGGEST = 64 << 20  # bytes of a file; a receipt of many runs is some MiB
FORMS = "pid:N, port:N, run:DIR, a run directory, a receipt, or a report of verify-env --json"
RECEIPT, REPORT, ALL = "sglang-ext/bench/1", check.SCHEMA, "sglang-ext/verify-all/1"
DEEPEST = 64  # levels of a value; ours have five
SHAPE = (KeyError, TypeError, AttributeError, ValueError, IndexError)


class SideError(Exception):
    """What was given is no side, or cannot be read as one; one sentence."""


def load(given: str) -> Side:
    """The side that ``given`` names.

    Raises SideError; NoServerError or SeveralServersError where a live server was meant and none, or more than one, is
    there; RunError or ContractError where a run is damaged.
    """
    form, colon, rest = given.partition(":")
    if colon and form in ("pid", "port"):
        if not (rest.isascii() and rest.isdigit()):
            raise SideError(f"{given!r}: expected a number after {form}:, found {rest!r}; write it like {form}:4711")
        return live(given, _by_pid(int(rest)) if form == "pid" else select.by_port(int(rest)))
    if colon and form == "run":
        return run(given, rest)
    if os.path.isdir(given):
        return run(given, given)
    if os.path.lexists(given):
        return document(given, _read(given))
    raise SideError(f"{given!r}: expected {FORMS}, found no file or directory of that name; correct it")


def _by_pid(pid: int) -> Server:
    server, is_server = select.by_pid(pid)
    if not is_server:
        raise select.NoServerError(f"process {pid} belongs to no SGLang server that we can see")
    return server


def run(given: str, path: str) -> Side:
    """A run directory: its server where that lives, else what the directory holds."""
    try:
        server, directory = select.by_run(path)
    except select.NoServerError as error:
        return ended(given, RunDirectory.open(path), str(error))
    return live(given, server, directory)


def live(given: str, server: Server, directory: RunDirectory | None = None) -> Side:
    """A running server, by what verify-env sees, what a receipt's fingerprint reads, and its own answers."""
    from sglang_ext.bench import fingerprint

    try:
        report = check.verify(server, check.Request(None), directory)
    except check.NoContractError:
        report = seen(server, directory)
    arguments, model, fault = answers(report)
    made = fingerprint.collect(report, arguments, model)
    groups = {**facts.of_report(report), **facts.of_fingerprint(made, report)}
    if fault:
        groups |= facts.all_unknown((ARGUMENTS, MODEL), fault)
    origin = f"run {report['run']['id']}" if report["run"] else "not of ours"
    return Side(given, "server", f"live server, pid {report['main']}, {origin}", groups)


def answers(report: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The server's own /server_info and /model_info; empty, and why, where it cannot be asked."""
    from sglang_ext.bench.traffic import client, endpoint

    try:
        address = endpoint.find(report)
        return client.ask(address, "/server_info"), client.ask(address, "/model_info"), ""
    except (endpoint.NoEndpointError, client.ServerError) as error:
        return {}, {}, f"the server could not be asked: {error}"


def seen(server: Server, directory: RunDirectory | None) -> dict[str, Any]:
    """A verify report without verdicts, of a server that nothing says how to judge."""
    fault = ""
    if directory is None:
        directory, fault = find_run(server)
    stored, record = run_files(directory)
    contract = run_contract(directory)
    expected = sizes.of(server, record)
    workers = [_worker(process, directory) for process in server.processes if process.role in ("scheduler", "rank")]
    return {
        "host": os.uname().nodename,
        "run": {"id": stored["id"], "dir": directory.path} if stored and directory else None,
        "main": server.main.pid if server.main else None,
        "contract": contract.to_json() if contract is not None else None,
        "expected": expected._asdict() if expected.here is not None else dict.fromkeys(facts.SIZE_NAMES),
        "workers": workers,
        "problems": [{"code": "run_not_believed", "message": fault}] if fault else [],
    }


def _worker(process: Process, directory: RunDirectory | None) -> dict[str, Any]:
    pid, started = process.stat.pid, process.stat.start_time
    witnessed = look(directory, pid, started, dial(directory, pid))
    block = next((b for b in (witnessed.live, witnessed.attested) if b.state == "ok"), None)
    hook = (witnessed.record or {}).get("hook") or {}
    return {
        "pid": pid,
        "start_time": started,
        "label": process.rank.label or process.name or f"pid {pid}",
        "counts": True,
        "variables": {},
        "hook": {"mode": hook.get("mode") or "none", "patchset": hook.get("patchset")},
        "extras": facts.harmless(block.values) if block is not None else {},
        "unseen": None if block is not None else witnessed.live.detail or witnessed.live.state,
    }


def ended(given: str, directory: RunDirectory, why: str) -> Side:
    """A run whose server has ended, or was never started: what its directory holds."""
    stored, record = directory.read("run.json"), directory.read("server.json")
    if stored is None or stored.get("schema") != RUN_SCHEMA:
        raise SideError(f"{given}: expected a run directory, found no run.json of ours in it; name {FORMS}")
    expected = sizes.from_record(record) if record else None
    records: dict[str, dict[str, Any]] = {}
    for name in directory.names("workers"):
        found = directory.read(name)
        if found is None or not attestation.is_record(found, found.get("pid", 0), found.get("start_time", 0)):
            raise RunError(f"{directory.file(name)} has another shape than ours; it is not believed")
        records[_label(found, expected)] = found
    groups = facts.of_run(directory.read("contract.json"), record, dict(sorted(records.items())))
    return Side(given, "run", f"run {stored['id']}; {why.partition(':')[0]}", groups)


def _label(record: Mapping[str, Any], expected: sizes.Expected | None) -> str:
    """What verify-env calls this worker: a dimension of one is not named."""
    alone = {name for name in ("dp", "pp") if expected is not None and getattr(expected, name) == 1}
    said = {k: v for k, v in record["rank"].items() if k in Rank._fields and isinstance(v, int) and k not in alone}
    return Rank(**said).label or f"pid {record['pid']}"


def _read(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            raw = file.read(BIGGEST + 1)
    except OSError as error:
        raise SideError(f"{path} cannot be read ({error.strerror}); name {FORMS}") from None
    if len(raw) > BIGGEST:
        raise SideError(f"{path}: expected a file of at most {BIGGEST >> 20} MiB, found a larger one; name {FORMS}")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise SideError(f"{path}: expected JSON, found something else; name {FORMS}") from None


def document(given: str, found: Any) -> Side:
    """A receipt or a verify report. Raises SideError where it is neither."""
    schema = found.get("schema") if isinstance(found, dict) else None
    try:
        if schema == RECEIPT:
            return _sound(receipt(given, found))
        if schema == REPORT:
            return _sound(report(given, found))
        if schema == ALL:
            if (number := len(found["servers"])) != 1:
                raise SideError(f"{given}: expected one server, found {number}; verify one by --pid or --port")
            return _sound(report(given, found["servers"][0]))
    except ContractError as error:
        raise SideError(f"{given}: {error}") from None
    except SHAPE:
        raise SideError(f"{given} says it is {schema} and has another shape; make it anew") from None
    told = f"schema {schema!r}" if schema is not None else "JSON without a schema"
    raise SideError(f"{given}: expected {RECEIPT} or {REPORT}, found {told}; name {FORMS}")


def _sound(side: Side) -> Side:
    """The side of a file, where names and reasons are texts and no value is nested without an end: what comparing relies on."""
    texts: list[object] = []
    for ranks in side.groups.values():
        for rank, known in ranks.items():
            texts += [rank, *known.facts, *known.unknown, *known.unknown.values(), known.why or ""]
            for value in known.facts.values():
                _measure(value, DEEPEST)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    return side


def _measure(value: object, deepest: int) -> None:
    if deepest == 0:
        raise ValueError
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _measure(part, deepest - 1)


def receipt(given: str, found: Mapping[str, Any]) -> Side:
    """What a number was taken on."""
    before, made = found["verify"]["before"], found["fingerprint"]
    groups = facts.of_report(before)
    if made is not None:
        groups |= facts.of_fingerprint(made, before)
    else:
        why = "nothing was measured, so the receipt has no fingerprint"
        groups = facts.all_unknown(facts.FINGERPRINTED, why) | groups
    name = found["suite"]["name"]
    return Side(given, "receipt", f"receipt of {name}, {found['state']}, {_when(before)}", groups)


def report(given: str, found: Mapping[str, Any]) -> Side:
    """What verify-env saw."""
    groups = facts.all_unknown(facts.FINGERPRINTED, facts.UNTOLD) | facts.of_report(found)
    return Side(given, "report", f"verify report, {found['verdict']}, {_when(found)}", groups)


def _when(found: Mapping[str, Any]) -> str:
    import time

    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(found["time"])))
    except (OverflowError, OSError):  # a number, and no time
        raise ValueError from None
