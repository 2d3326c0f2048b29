"""What an arm's server is proven to hold, now: the same verification as everywhere, of the server one process belongs to.

A server of ours is judged by its run's contract and the arm's; a stock one by the arm's, for which `live` suffices. An arm that
demands nothing is not judged: who its workers are is noted all the same, so that other ones afterwards are not taken for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping
from typing import Any

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract
from sglang_ext.contract.names import is_tuning
from sglang_ext.contract.profile import load_profile
from sglang_ext.hide import presentable
from sglang_ext.run.directory import RunDirectory
from sglang_ext.verify import expected as sizes
from sglang_ext.verify import select
from sglang_ext.verify.carried import find_run, run_contract, run_files
from sglang_ext.verify.check import DECIDING, SCHEMA, Request, unseen, verify
from sglang_ext.verify.discover import Server
from sglang_ext.verify.faults import UNJUDGED
from sglang_ext.verify.witnesses import read_exec, read_now

NOT_ASKED = "NOT_ASKED"  # the verdict where nothing is demanded
GOOD = ("PASS", NOT_ASKED)


def contract_of(stated: Mapping[str, Any]) -> Contract:
    """The contract of an arm. Raises ContractError."""
    profile = load_profile(stated["profile"]) if stated.get("profile") else None
    sets = [f"{name}={value}" for name, value in (stated.get("set") or {}).items()]
    return decide(profile, sets, list(stated.get("absent") or ()), {})


def look(pid: int, wanted: Contract) -> dict[str, Any]:
    """The report on the server that ``pid`` belongs to, or stands in front of. Raises nothing: what cannot be seen is UNKNOWN."""
    try:
        return judge(select.by_pid(pid)[0], wanted)
    except select.NoServerError as error:
        return unseen(error.code, str(error))
    except UNJUDGED as error:
        return unseen("no_server", f"the server of pid {pid} cannot be judged: {error}")


def judge(server: Server, wanted: Contract) -> dict[str, Any]:
    """The report on one server: what its run demands, and ``wanted`` on top. Raises what `verify` raises."""
    directory, _ = find_run(server)
    stated = run_contract(directory)
    terms = {**(stated.terms if stated is not None else {}), **wanted.terms}
    if not terms:
        return unjudged(server, directory)
    return verify(server, Request(Contract(terms), accepted=_accepted(directory)), directory)


def _accepted(directory: RunDirectory | None) -> list[str]:
    run = run_files(directory)[0]
    return list(run.get("accepted", ())) if run else []


def unjudged(server: Server, directory: RunDirectory | None) -> dict[str, Any]:
    """Who the workers of a server are, and which tuning variables they hold; in the shape of a verify report."""
    run, facts = run_files(directory)
    expected = sizes.of(server, facts)
    workers: list[dict[str, Any]] = []
    for process in server.processes:
        if process.role == "other":
            continue
        block = read_now(process.stat.pid)
        held = block.values if block.state == "ok" else {}
        workers.append(
            {
                "label": process.rank.label or process.name or process.title.removeprefix("sglang::"),
                "role": process.role,
                "title": process.title,
                "pid": process.stat.pid,
                "start_time": process.stat.start_time,
                "rank": process.rank._asdict(),
                "counts": process.role in DECIDING,
                "verdict": NOT_ASKED,
                "hook": {"active": False, "patchset": None, "mode": "none"},
                "variables": {},
                "extras": {name: presentable(value) for name, value in sorted(held.items()) if is_tuning(name)},
                "unread": block.state != "ok",
            }
        )
    found = {
        "schema": SCHEMA,
        "verdict": NOT_ASKED,
        "host": os.uname().nodename,
        "time": time.time(),
        "run": {"id": run["id"], "dir": directory.path} if run and directory else None,
        "main": server.main.pid if server.main else None,
        "contract": Contract().to_json(),
        "expected": expected._asdict(),
        "require": None,
        "workers": sorted(workers, key=lambda w: (not w["counts"], w["label"], w["pid"])),
        "problems": [],
    }
    here = sum(worker["counts"] for worker in workers)
    if expected.here is not None and here != expected.here:
        code = "missing_ranks" if here < expected.here else "extra_ranks"
        return {**unseen(code, f"expected {expected.here} schedulers, found {here}"), "main": found["main"]}
    return found


def environment_of(pid: int) -> dict[str, str]:
    """The environment of a process, now or as it was started with; {} where neither can be read. It is stored nowhere."""
    blocks = (read(pid) for read in (read_now, read_exec))
    return next((dict(block.values) for block in blocks if block.state == "ok"), {})


def names_held(report: Mapping[str, Any], names: Container[str]) -> set[str]:
    """Which of ``names`` a rank holds, whatever they are called: a report shows what tunes, and no other variable."""
    pids = [worker["pid"] for worker in report["workers"] if worker["counts"]]
    return {name for pid in pids for name in read_now(pid).values if name in names}


def nobody() -> dict[str, Any]:
    """The report on an address behind which no SGLang server of this host is: nothing is demanded, and nothing seen."""
    return {**unseen("no_server", "no SGLang server of this host listens there"), "verdict": NOT_ASKED, "problems": []}
