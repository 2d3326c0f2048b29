"""Which server is meant: by run directory, port, pid, or because there is only one."""

from __future__ import annotations

import time
from collections.abc import Callable

from sglang_ext.quick import Any
from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.run.listeners import listeners
from sglang_ext.run.process import Identity, Stat, in_our_namespace, inner_pid
from sglang_ext.verify.discover import Host, Server, descendants, find_servers


class NoServerError(Exception):
    """No server is where it was looked for: UNKNOWN, exit 3. ``code``: of `reasons.TABLE`."""

    def __init__(self, message: str, code: str = "no_server") -> None:
        super().__init__(message)
        self.code = code


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
    host = Host()
    found = host.stats.get(main.pid)
    if found is None or found.identity != main:
        found = _inside(host, main) or found
    if found is not None and found.start_time != main.start_time:
        raise NoServerError(
            f"the server of the run in {path} (pid {main.pid}) has ended: its pid is another process's now, expected start "
            f"time {main.start_time}, found start time {found.start_time}"
        )
    if found is None or not found.alive:
        raise _nothing(f"the server of the run in {path} (pid {main.pid}) has ended")
    return host.server(found), directory


def _inside(host: Host, main: Identity) -> Stat | None:
    """The process that calls itself ``main`` in a pid namespace below ours, as the server of a container does."""
    born = (entry for entry in host.stats.values() if entry.start_time == main.start_time)
    return next((entry for entry in born if entry.pid != main.pid and inner_pid(entry.pid) == main.pid), None)


def by_pid(pid: int) -> tuple[Server, bool]:
    """``(server, True)``: the SGLang server or the job ``pid`` belongs to, or the only one it stands in front of.

    What stands in front need not be ours: numactl, a shell, tini, a container's init. Where there is neither server nor
    job: ``(pid and its descendants, False)``. Raises SeveralServersError, or NoServerError when ``pid`` has ended.
    """
    host = Host()
    servers = host.servers()
    for server in servers:
        if pid in server.pids:
            return server, True
    if pid not in host.stats or not host.stats[pid].alive:
        raise _nothing(f"there is no process {pid}{_called(servers, pid)}")
    under = {entry.pid for entry in descendants(pid, host.below)}
    below = [server for server in servers if server.pids & under]
    if not below:
        from sglang_ext.verify.job import jobs_of

        below = jobs_of(host, pid)
    if len(below) > 1:
        raise SeveralServersError(f"{len(below)} servers or jobs run under pid {pid}: {names(below)}; name one of them")
    if below:
        return below[0], True
    return Server(host.stats[pid], tuple(host.line(pid)), tuple(host.family(pid))), False


def _called(servers: list[Server], pid: int) -> str:
    """Where ``pid`` is what a process of a server calls itself in its container: who that is for us."""
    ours = [p.stat.pid for server in servers for p in server.processes if p.ns_pid == pid != p.stat.pid]
    return f"; in its own pid namespace, process {ours[0]} is called that" if ours else ""


def by_port(port: int) -> Server:
    """The server one of whose processes listens on ``port``: of our network, or else of a container's."""
    servers = find_servers()
    found = [server for server in servers if listeners(port, server.pids)]
    found = found or [server for server in servers if listeners(port, server.pids, anywhere=True)]
    if len(found) > 1:
        raise SeveralServersError(f"{len(found)} servers listen on port {port}: {names(found)}; name one with --pid")
    if found:
        return found[0]
    known = f"; servers found: {names(servers)}" if servers else ""
    raise _nothing(f"no SGLang server we can look into listens on port {port}{known}{_closed(servers)}")


def every() -> list[Server]:
    """Every SGLang server on this host, one at least."""
    servers = find_servers()
    if not servers:
        raise _nothing("no SGLang server is running on this host (none with an sglang:: process)")
    return servers


def only() -> Server:
    """The only SGLang server on this host."""
    servers = every()
    if len(servers) > 1:
        raise SeveralServersError(
            f"{len(servers)} SGLang servers are running: {names(servers)}; name one with --pid, or look at each with "
            "verify-env --all"
        )
    return servers[0]


def _nothing(message: str) -> NoServerError:
    """Nothing was found; where /proc hides processes from us, that proves nothing, and is said."""
    from sglang_ext.verify.sight import hidden

    hindrance = hidden()
    if hindrance is None:
        return NoServerError(message)
    return NoServerError(f"{hindrance.sentence}: of those we see, {message}; {hindrance.remedy}", "processes_hidden")


def _closed(servers: list[Server]) -> str:
    """Why the first server that is closed to us is."""
    from sglang_ext.run.process import namespace
    from sglang_ext.verify.sight import why_not

    for server in servers:
        pid = min(server.pids)
        if not namespace(pid, "net"):
            hindrance = why_not(pid, attach=False)
            return f"; {hindrance.sentence}: {hindrance.remedy}"
    return ""


def names(servers: list[Server]) -> str:
    """A list for a message: pids and how many processes each has."""
    return ", ".join(
        f"pid {s.main.pid} ({len(s.processes)} processes{_elsewhere(s.main.pid)})"
        if s.main
        else f"orphans {[p.stat.pid for p in s.processes]}"
        for s in servers
    )


def _elsewhere(pid: int) -> str:
    return "" if in_our_namespace(pid, "pid") else f", in a container as pid {inner_pid(pid)}"


def wait_for(find: Callable[[], Any], complete: Callable[[Any], bool], seconds: float) -> Any:
    """Look again until the expected ranks are there or ``seconds`` are over; then whatever is there, or NoServerError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = find()
            if time.monotonic() >= deadline or complete(found):
                return found
        except NoServerError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)
