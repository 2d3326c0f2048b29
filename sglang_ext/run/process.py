"""Processes by pid *and* start time: a pid alone names a stranger as soon as the kernel reuses it."""

from __future__ import annotations

import os
from typing import NamedTuple


class Identity(NamedTuple):
    """A process that stays the same one. ``start_time`` is in clock ticks since boot (proc(5), field 22)."""

    pid: int
    start_time: int


class Stat(NamedTuple):
    """What /proc/PID/stat says of a process, as far as we need it."""

    pid: int
    state: str
    ppid: int
    session: int
    start_time: int

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_time)

    @property
    def alive(self) -> bool:
        """False for zombies: they hold a pid but run, own and answer nothing."""
        return self.state not in "ZXx"


def parse_stat(text: str) -> Stat:
    """Read one line of /proc/PID/stat. The command may hold blanks and parentheses: the last ``)`` ends it."""
    pid = int(text[: text.index(" ")])
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def stat(pid: int) -> Stat | None:
    """The process ``pid`` now, or None when there is none (or /proc hides it)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError):
        return None


def effective_uid(pid: int) -> int | None:
    """The user ``pid`` acts as (proc(5), status), or None when it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next(int(line.split()[2]) for line in file if line.startswith("Uid:"))
    except (OSError, StopIteration, ValueError):
        return None


def myself() -> Identity:
    """This process's own identity."""
    now = stat(os.getpid())
    return Identity(os.getpid(), now.start_time if now else 0)


def is_alive(identity: Identity) -> bool:
    """Is exactly this process still running?"""
    now = stat(identity.pid)
    return now is not None and now.start_time == identity.start_time and now.alive


def all_stats() -> dict[int, Stat]:
    """Every process /proc shows, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (entry := stat(int(name))) is not None:
            found[entry.pid] = entry
    return found


def command_line(pid: int) -> list[str]:
    """The arguments of ``pid``; a title written by setproctitle comes as one item. Empty when unreadable."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read()
    except OSError:
        return []
    return [part.decode("utf-8", "surrogateescape") for part in raw.rstrip(b"\0 ").split(b"\0")] if raw else []


def in_session(session: int, stats: dict[int, Stat] | None = None) -> list[Stat]:
    """The living processes of a session, oldest first."""
    stats = all_stats() if stats is None else stats
    return sorted((s for s in stats.values() if s.session == session and s.alive), key=lambda s: s.start_time)
