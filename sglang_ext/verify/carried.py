"""The run a server's processes carry: where it is, whether it may be believed, what it decided."""

from __future__ import annotations

import os

from sglang_ext.contract.model import Contract
from sglang_ext.quick import Any
from sglang_ext.run.directory import RUN_DIR, RunDirectory, RunError
from sglang_ext.run.directory import SCHEMA as RUN_SCHEMA
from sglang_ext.run.process import effective_uid, inner_pid, root_of
from sglang_ext.verify.discover import Server
from sglang_ext.verify.witnesses import read_exec, read_now


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
                    return _own_run(root_of(pid) + block.values[RUN_DIR], pid, server), ""
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
    if main is not None and server.main is not None:
        own = server.main.identity._replace(pid=inner_pid(server.main.pid))  # as it calls itself, in a container
        if main != own._asdict():
            found = f"pid {main['pid']}" if isinstance(main, dict) and "pid" in main else "none that can be read"
            raise RunError(f"run directory {path} is that of another server: expected pid {own.pid}, found {found}")
    return directory


def run_contract(directory: RunDirectory | None) -> Contract | None:
    """The contract the run decided. Raises ContractError or RunError when it is damaged."""
    stored = directory.read("contract.json") if directory is not None else None
    return Contract.from_json(stored) if stored is not None else None


def run_files(directory: RunDirectory | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """run.json and server.json of the run; None where there is no run, or it has not come that far. Raises RunError."""
    if directory is None:
        return None, None
    run = directory.read("run.json")
    if run is None or run.get("schema") != RUN_SCHEMA or not isinstance(run.get("id"), str):
        raise RunError(f"{directory.path} has no run.json of ours; it is not believed, start the server again")
    return run, directory.read("server.json")
