"""Finding SGLang servers and their processes on this host, ours or stock, from /proc alone.

A process that called setproctitle shows its title as its command line: `sglang::scheduler_DP0_PP0_TP1` and so on (sglang
0.5.23 scheduler.py:6294, detokenizer_manager.py:551, data_parallel_controller.py:955, multi_tokenizer_mixin.py:847). The
server a worker belongs to is its nearest ancestor that could have started it: one without such a title, no fork server
and no wrapper script. A worker whose ancestors are gone keeps its session. A server that a process of another server
started is a server of its own, and its processes are not the other's.
"""

from __future__ import annotations

import os

from sglang_ext.quick import NamedTuple
from sglang_ext.run.process import Stat, all_stats, command_line, inner_pid
from sglang_ext.verify.expected import Expected

TITLES = (  # longest first: a prefix may not hide another
    ("sglang::data_parallel_controller", "dp_controller"),
    ("sglang::detokenizer", "detokenizer"),
    ("sglang::tokenizer_worker", "tokenizer"),
    ("sglang::scheduler", "scheduler"),
)
FORK_SERVER = "multiprocessing.forkserver"  # CPython Lib/multiprocessing/forkserver.py: in the code it is started with
# Stand between a Python and what it starts where they do not exec; none of them ever started a worker by itself.
WRAPPERS = frozenset(
    (
        *("bash", "dash", "sh", "env", "tini", "dumb-init"),
        *("chrt", "ionice", "nice", "numactl", "setpriv", "stdbuf", "taskset", "timeout"),
    )
)


class Rank(NamedTuple):
    """Where a scheduler stands; None: not told by what we saw."""

    node: int | None = None
    dp: int | None = None
    pp: int | None = None
    tp: int | None = None

    @property
    def label(self) -> str:
        """`TP1`, `DP0 PP1 TP3`: the parts that are known."""
        parts = [f"{n}{v}" for n, v in (("DP", self.dp), ("PP", self.pp), ("TP", self.tp)) if v is not None]
        return " ".join(parts)


class Process(NamedTuple):
    """A process of a server: its identity, what its title says it is, and its rank if that is a scheduler."""

    stat: Stat
    role: str
    title: str
    rank: Rank
    name: str = ""  # what to call it where no title does: `rank 3` of a job that is no SGLang server
    ns_pid: int = 0  # what it calls itself, in the container it may be in; its files are named by that
    forked: bool = False  # by a fork server: with the environment of that one's start, not of its own


class Server(NamedTuple):
    """One server: its main process (None when it is gone) and every process below it."""

    main: Stat | None
    arguments: tuple[str, ...]  # the main process's command line
    processes: tuple[Process, ...]
    told: Expected | None = None  # how many ranks there must be, where the ranks themselves say it

    @property
    def pids(self) -> frozenset[int]:
        own = {p.stat.pid for p in self.processes}
        return frozenset(own | ({self.main.pid} if self.main else set()))


def role_of(title: str) -> str:
    """What a process is by its title; "other" where it has none of SGLang's."""
    if not title.startswith("sglang::"):
        return "other"
    return next((role for prefix, role in TITLES if title.startswith(prefix)), "other")


def parse_rank(title: str) -> Rank:
    """The rank in a scheduler's title. SGLang leaves out what has size one: a missing TP is rank 0 of 1."""
    found: dict[str, int] = {}
    family = ""
    for word in title.partition("sglang::scheduler")[2].split("_"):
        name = word.rstrip("0123456789")
        number = word[len(name) :]
        if not number:
            family = name  # ATTN_CP0, MOE_DP0: another kind of rank under a two-word name
            continue
        if not family and name in ("DP", "PP", "TP"):
            found[name] = int(number)
        family = ""
    return Rank(dp=found.get("DP"), pp=found.get("PP"), tp=found.get("TP", 0))


def describe(entry: Stat, arguments: list[str]) -> Process:
    """Role and rank of one process from its command line."""
    title = arguments[0] if arguments else ""
    role = role_of(title)
    rank = parse_rank(title) if role == "scheduler" else Rank()
    return Process(entry, role, title if role != "other" else "", rank, ns_pid=inner_pid(entry.pid))


def children(stats: dict[int, Stat]) -> dict[int, list[Stat]]:
    """Living processes by parent."""
    below: dict[int, list[Stat]] = {}
    for entry in stats.values():
        if entry.alive:
            below.setdefault(entry.ppid, []).append(entry)
    return below


def descendants(pid: int, below: dict[int, list[Stat]], *, without: frozenset[int] = frozenset()) -> list[Stat]:
    """Every process under ``pid``, in order of start; ``without``: these and what is under them is left out."""
    found, waiting, seen = [], [pid], {pid, *without}
    while waiting:
        for entry in below.get(waiting.pop(), ()):
            if entry.pid not in seen:
                seen.add(entry.pid)
                found.append(entry)
                waiting.append(entry.pid)
    return sorted(found, key=lambda s: (s.start_time, s.pid))


class Host:
    """Every process of this host at one moment, each read once, and the servers among them."""

    def __init__(self) -> None:
        self.stats = all_stats()
        self.below = children(self.stats)
        self._lines: dict[int, list[str]] = {}
        self._groups: dict[tuple[str, int], list[int]] = {}  # ("main", pid) or ("session", id) -> titled processes
        titled = {pid for pid in self.stats if role_of("".join(self.line(pid)[:1])) != "other"}
        for pid in sorted(titled):
            main = self._starter(pid, titled)
            key = ("main", main) if main else ("session", self.stats[pid].session)
            self._groups.setdefault(key, []).append(pid)
        self.mains = frozenset(pid for kind, pid in self._groups if kind == "main")

    def line(self, pid: int) -> list[str]:
        """The command line of ``pid``; empty for what has none: zombies and threads of the kernel."""
        if pid not in self._lines:
            entry = self.stats.get(pid)
            readable = entry is not None and entry.alive and not entry.of_the_kernel
            self._lines[pid] = command_line(pid) if readable else []
        return self._lines[pid]

    def servers(self) -> list[Server]:
        """Every server with at least one titled process."""
        return [
            self.server(self.stats[key])
            if kind == "main"
            else Server(None, (), tuple(self._described([self.stats[pid] for pid in pids])))
            for (kind, key), pids in sorted(self._groups.items())
        ]

    def server(self, main: Stat) -> Server:
        """The server whose main process this is, whatever it is called."""
        processes = descendants(main.pid, self.below, without=self.mains - {main.pid})
        return Server(main, tuple(self.line(main.pid)), tuple(self._described(processes)))

    def family(self, pid: int) -> list[Process]:
        """``pid`` and every process under it."""
        return self._described([self.stats[pid], *descendants(pid, self.below)])

    def forked(self, pid: int) -> bool:
        """Was ``pid`` forked off a fork server?"""
        return pid in self.stats and self._forks(self.stats[pid].ppid)

    def _described(self, entries: list[Stat]) -> list[Process]:
        return [
            describe(entry, self.line(entry.pid))._replace(forked=self.forked(entry.pid))
            for entry in sorted(entries, key=lambda s: (s.start_time, s.pid))
        ]

    def _starter(self, pid: int, titled: set[int]) -> int | None:
        """The process that started the titled ``pid``; None where it is gone: an orphan has another parent, no Python.

        In a container the server may be pid 1 itself, which is also where every orphan goes: those of other sessions.
        """
        session = self.stats[pid].session
        starter = self.stats[pid].ppid
        while starter in titled or self._forks(starter) or self._wraps(starter, session):
            starter = self.stats[starter].ppid
        if starter not in self.stats or not is_sglang(self.line(starter), starter):
            return None
        if starter == 1 and (self.stats[1].session != session or "python" not in program(1, self.line(1))):
            return None
        return starter

    def _forks(self, pid: int) -> bool:
        """Is ``pid`` a fork server? What it forked shows the same words until it has a title."""
        return any(FORK_SERVER in word for word in self.line(pid))

    def _wraps(self, pid: int, session: int) -> bool:
        """Is ``pid`` a wrapper between a worker and what started it? In the worker's session: it is no shell of a login."""
        entry = self.stats.get(pid)
        return entry is not None and pid != 1 and entry.session == session and program(pid, self.line(pid)) in WRAPPERS


def find_servers() -> list[Server]:
    """Every SGLang server on this host that has at least one titled process."""
    return Host().servers()


def program(pid: int, arguments: list[str]) -> str:
    """The name of the file ``pid`` executes; where that link is closed to us, what it was called as."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return os.path.basename(arguments[0]) if arguments else ""


def is_sglang(arguments: list[str], pid: int) -> bool:
    """Could this be a server's main process? Any Python: ``Engine(...)`` runs inside the user's own script."""
    return "python" in program(pid, arguments) or any("sglang" in word for word in arguments)
