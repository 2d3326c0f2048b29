"""Which server is meant: by run directory, port, pid, or because there is only one."""

from __future__ import annotations

import time
from collections.abc import Callable

from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.run.process import Identity, all_stats, command_line
from sglang_ext.verify.check import run_of
from sglang_ext.verify.discover import Server, children, descendants, describe, find_servers, server_of
from sglang_ext.verify.listeners import listeners


class NoServerError(Exception):
    """No server is where it was looked for: UNKNOWN, exit 3."""


class SeveralServersError(Exception):
    """More than one server could be meant: exit 2, with the list."""


def by_run(path: str) -> tuple[Server, RunDirectory]:
    """The server of a run directory. Raises RunError when the directory cannot be believed, NoServerError when it is dead."""
    directory = RunDirectory.open(path)
    facts = directory.read("server.json")
    if facts is None:
        raise NoServerError(f"the run in {path} has not come as far as starting its workers")
    try:
        main = Identity(facts["main"]["pid"], facts["main"]["start_time"])
    except (KeyError, TypeError):
        raise RunError(f"{path}/server.json has another shape than ours; it is not believed") from None
    stats = all_stats()
    found = stats.get(main.pid)
    if found is not None and found.identity != main:
        raise NoServerError(
            f"the server of the run in {path} (pid {main.pid}) has ended: its pid is another process's now, expected start "
            f"time {main.start_time}, found start time {found.start_time}"
        )
    if found is None or not found.alive:
        raise NoServerError(f"the server of the run in {path} (pid {main.pid}) has ended")
    return server_of(found, children(stats)), directory


def by_pid(pid: int) -> tuple[Server, bool]:
    """``(server, True)``: the SGLang server ``pid`` belongs to; else ``(pid and its descendants, False)``."""
    for server in find_servers():
        if pid in server.pids or _launched_by(server, pid):
            return server, True
    stats = all_stats()
    if pid not in stats or not stats[pid].alive:
        raise NoServerError(f"there is no process {pid}")
    below = children(stats)
    family = [stats[pid], *descendants(pid, below)]
    return Server(stats[pid], tuple(command_line(pid)), tuple(describe(s, command_line(s.pid)) for s in family)), False


def _launched_by(server: Server, pid: int) -> bool:
    """Is ``pid`` the launcher in front of this server? A shell that started one is not."""
    if server.main is None or server.main.ppid != pid:
        return False
    directory = run_of(server)
    try:
        owner = ((directory.read("run.json") if directory else None) or {}).get("owner")
    except RunError:
        return False
    return isinstance(owner, dict) and owner.get("pid") == pid


def by_port(port: int) -> Server:
    """The server one of whose processes listens on ``port``."""
    servers = find_servers()
    for server in servers:
        if listeners(port, server.pids):
            return server
    known = f"; servers found: {names(servers)}" if servers else ""
    raise NoServerError(f"no SGLang server we can look into listens on port {port}{known}")


def only() -> Server:
    """The only SGLang server on this host."""
    servers = find_servers()
    if not servers:
        raise NoServerError("no SGLang server is running on this host (none with an sglang:: process)")
    if len(servers) > 1:
        raise SeveralServersError(
            f"{len(servers)} SGLang servers are running: {names(servers)}; name one with --pid, or --all"
        )
    return servers[0]


def names(servers: list[Server]) -> str:
    """A list for a message: pids and how many processes each has."""
    return ", ".join(
        f"pid {s.main.pid} ({len(s.processes)} processes)" if s.main else f"orphans {[p.stat.pid for p in s.processes]}"
        for s in servers
    )


def wait_for(find: Callable[[], Server], complete: Callable[[Server], bool], seconds: float) -> Server:
    """Look again until the expected ranks are there or ``seconds`` are over; then whatever is there, or NoServerError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            server = find()
            if complete(server) or time.monotonic() >= deadline:
                return server
        except NoServerError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)
