"""Finding SGLang servers and their processes on this host, ours or stock, from /proc alone.

A process that called setproctitle shows its title as its command line: `sglang::scheduler_DP0_PP0_TP1` and so on (sglang
0.5.23 scheduler.py:6294, detokenizer_manager.py:551, data_parallel_controller.py:955, multi_tokenizer_mixin.py:847). The
server a worker belongs to is its nearest ancestor without such a title; a worker whose ancestors are gone keeps its
session.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from sglang_ext.run.process import Stat, all_stats, command_line

TITLES = (  # longest first: a prefix may not hide another
    ("sglang::data_parallel_controller", "dp_controller"),
    ("sglang::detokenizer", "detokenizer"),
    ("sglang::tokenizer_worker", "tokenizer"),
    ("sglang::scheduler", "scheduler"),
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


class Server(NamedTuple):
    """One server: its main process (None when it is gone) and every process below it."""

    main: Stat | None
    arguments: tuple[str, ...]  # the main process's command line
    processes: tuple[Process, ...]

    @property
    def pids(self) -> frozenset[int]:
        own = {p.stat.pid for p in self.processes}
        return frozenset(own | ({self.main.pid} if self.main else set()))


def role_of(title: str) -> str:
    """What a process is by its title; "other" where it has none of SGLang's."""
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
    return Process(entry, role, title if role != "other" else "", parse_rank(title) if role == "scheduler" else Rank())


def children(stats: dict[int, Stat]) -> dict[int, list[Stat]]:
    """Living processes by parent."""
    below: dict[int, list[Stat]] = {}
    for entry in stats.values():
        if entry.alive:
            below.setdefault(entry.ppid, []).append(entry)
    return below


def descendants(pid: int, below: dict[int, list[Stat]]) -> list[Stat]:
    """Every process under ``pid``, in order of start."""
    found, waiting, seen = [], [pid], {pid}
    while waiting:
        for entry in below.get(waiting.pop(), ()):
            if entry.pid not in seen:
                seen.add(entry.pid)
                found.append(entry)
                waiting.append(entry.pid)
    return sorted(found, key=lambda s: (s.start_time, s.pid))


def find_servers() -> list[Server]:
    """Every SGLang server on this host that has at least one titled process."""
    stats = all_stats()
    titled = {}
    for pid, entry in stats.items():
        if entry.alive and (arguments := command_line(pid)) and role_of(arguments[0]) != "other":
            titled[pid] = describe(entry, arguments)
    groups: dict[tuple[str, int], list[Process]] = {}
    for process in titled.values():
        main = process.stat.ppid
        while main in titled:
            main = titled[main].stat.ppid
        # Reparented: to init or to a subreaper, which is no Python that could have started it.
        orphan = main not in stats or main == 1 or not is_sglang(command_line(main), main)
        groups.setdefault(("session", process.stat.session) if orphan else ("main", main), []).append(process)
    below = children(stats)
    servers = []
    for (kind, key), processes in sorted(groups.items()):
        if kind == "main":
            servers.append(server_of(stats[key], below))
        else:
            servers.append(Server(None, (), tuple(sorted(processes, key=lambda p: (p.stat.start_time, p.stat.pid)))))
    return servers


def server_of(main: Stat, below: dict[int, list[Stat]]) -> Server:
    """The server whose main process this is, whatever it is called."""
    processes = tuple(describe(entry, command_line(entry.pid)) for entry in descendants(main.pid, below))
    return Server(main, tuple(command_line(main.pid)), processes)


def is_sglang(arguments: list[str], pid: int) -> bool:
    """Could this be a server's main process? Any Python: ``Engine(...)`` runs inside the user's own script."""
    try:
        executable = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        executable = os.path.basename(arguments[0]) if arguments else ""
    return "python" in executable or any("sglang" in word for word in arguments)
