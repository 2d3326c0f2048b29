"""Processes by pid *and* start time: a pid alone names a stranger as soon as the kernel reuses it."""

from __future__ import annotations

import os

from sglang_ext.quick import NamedTuple

KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h: it has no command line, and a big host has hundreds


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
    flags: int = 0

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_time)

    @property
    def alive(self) -> bool:
        """False for zombies: they hold a pid but run, own and answer nothing."""
        return self.state not in "ZXx"

    @property
    def of_the_kernel(self) -> bool:
        return bool(self.flags & KERNEL_THREAD)


def parse_stat(text: str) -> Stat:
    """Read one line of /proc/PID/stat. The command may hold blanks and parentheses: the last ``)`` ends it."""
    pid = int(text[: text.index(" ")])
    fields = text[text.rindex(")") + 2 :].split(None, 20)
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]), int(fields[6]))


def read_whole(path: str) -> bytes:
    """A file of /proc, without the layers of `open`: a host has thousands of processes. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = os.read(handle, 4096)
        while piece := os.read(handle, 65536):  # tables come in pieces that are not full
            whole += piece
        return whole
    finally:
        os.close(handle)


def stat(pid: int) -> Stat | None:
    """The process ``pid`` now, or None when there is none (or /proc hides it)."""
    try:
        return parse_stat(read_whole(f"/proc/{pid}/stat").decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None


def status(pid: int | str) -> dict[str, str]:
    """The lines of /proc/PID/status by name (proc(5)); empty when it is gone or hidden. Anybody may read it."""
    try:
        text = read_whole(f"/proc/{pid}/status").decode("utf-8", "replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _words(pid: int, name: bytes) -> list[bytes]:
    """What one line of /proc/PID/status holds; nothing when the process is gone, or the kernel has no such line."""
    try:
        text = read_whole(f"/proc/{pid}/status")
    except OSError:
        return []
    _, found, rest = text.partition(b"\n" + name + b":")
    return rest[: rest.find(b"\n")].split() if found else []


def effective_uid(pid: int) -> int | None:
    """The user ``pid`` acts as, or None when it is gone."""
    words = _words(pid, b"Uid")
    return int(words[1]) if len(words) > 1 else None


def inner_pid(pid: int) -> int:
    """What ``pid`` calls itself: its pid in the innermost pid namespace it is in (a container's), else ``pid``.

    What a worker writes about itself, and the names of its files, hold this number; the kernel and /proc speak ours.
    """
    words = _words(pid, b"NSpid")
    return int(words[-1]) if words else pid


def namespace(pid: int | str, kind: str) -> str:
    """The namespace of this kind (``mnt``, ``net``, ``pid``, ...) ``pid`` is in; empty when that is closed to us."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def in_our_namespace(pid: int, kind: str) -> bool:
    """Does ``pid`` share our namespace of this kind? True where that cannot be told."""
    return namespace(pid, kind) in ("", namespace("self", kind))


def root_of(pid: int) -> str:
    """What a path of ``pid`` must begin with for us: ``/proc/PID/root`` where it lives in other mounts or another root.

    Empty where its paths are ours. That link is closed to whoever may not look into the process: then it is empty too,
    and nothing of its own could be read anyhow.
    """
    try:
        same = os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/proc/self/root"))
    except OSError:
        return ""
    return "" if same and in_our_namespace(pid, "mnt") else f"/proc/{pid}/root"


def started_at(pid: int) -> float:
    """When ``pid`` was started, in seconds of the wall clock (proc(5): stat field 22, and btime); 0.0 when it is gone."""
    entry = stat(pid)
    if entry is None:
        return 0.0
    lines = read_whole("/proc/stat").decode("ascii", "replace").splitlines()
    booted = next((int(line.split()[1]) for line in lines if line.startswith("btime ")), 0)
    return booted + entry.start_time / os.sysconf("SC_CLK_TCK")


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


def ancestors(pid: int) -> list[int]:
    """The parent of ``pid``, its parent, and so on, as far as this pid namespace goes."""
    found: list[int] = []
    while (entry := stat(pid)) is not None and entry.ppid and entry.ppid not in found:
        pid = entry.ppid
        found.append(pid)
    return found


def command_line(pid: int) -> list[str]:
    """The arguments of ``pid``; a title written by setproctitle comes as one item. Empty when unreadable."""
    try:
        raw = read_whole(f"/proc/{pid}/cmdline")
    except OSError:
        return []
    return [part.decode("utf-8", "surrogateescape") for part in raw.rstrip(b"\0 ").split(b"\0")] if raw else []


def in_session(session: int, stats: dict[int, Stat] | None = None) -> list[Stat]:
    """The living processes of a session, oldest first."""
    stats = all_stats() if stats is None else stats
    return sorted((s for s in stats.values() if s.session == session and s.alive), key=lambda s: s.start_time)
