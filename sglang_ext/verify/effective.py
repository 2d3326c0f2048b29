"""The fourth witness: what NCCL itself logged in a worker when its communicators started.

It speaks only where the worker has a log of its own: NCCL_DEBUG=INFO and an NCCL_DEBUG_FILE with %p in its name (the
launcher's --nccl-log sets both). A line "X set by environment to V" is testimony. A missing line is one only where NCCL
must have read the variable on the way (`nccl.silence`): everywhere else it says nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping

from sglang_ext.contract.names import shown
from sglang_ext.quick import TYPE_CHECKING, NamedTuple
from sglang_ext.verify.witnesses import ABSENT, VALUE, Reading

if TYPE_CHECKING:  # at run time only where a worker has a log: the parser costs every verification 5 ms
    from sglang_ext.nccl.testimony import Testimony

LONGEST = 16 << 20  # bytes of a log: what is set is said at its beginning, what is chosen fills the rest
CLOCKS_DIFFER = 2.0  # seconds between a file system's clock and a start time counted in ticks
LOGS = ("INFO", "TRACE")  # the levels of NCCL_DEBUG that print what was set (NCCL 2.30.7 src/debug.cc)
# What a log holds when NCCL_DEBUG_SUBSYS does not say (nccl src/debug.cc; BOOTSTRAP joined in 2.23).
BY_DEFAULT = frozenset({"INIT", "BOOTSTRAP", "ENV"})


class Log(NamedTuple):
    """A worker's log: what it testifies, or ``state`` and ``detail``: why there is none."""

    state: str  # ok unavailable denied not_read
    detail: str
    path: str | None = None
    testimony: Testimony | None = None
    version: tuple[int, ...] | None = None
    subsystems: frozenset[str] = frozenset()
    whole: bool = False  # neither cut by us, nor torn, nor mixed
    neighbours: int = 1

    def reading(self, name: str, wanted: Callable[[str], bool] = lambda value: True) -> Reading:
        """What NCCL said of ``name``. It may have read it more than once: a value that is not ``wanted`` speaks for all."""
        if self.state != "ok" or self.testimony is None:
            return Reading(self.state, None, self.detail)
        said = self.testimony.values().get(name, ())
        if said:
            seen = next((value for value in said if not wanted(value)), said[-1])
            return Reading(VALUE, seen, f"NCCL's log: {', then '.join(map(shown, said))}")
        if self.version is not None and self.whole:
            from sglang_ext.nccl.silence import expected_line, silence_proves

            line = expected_line(name, self.version)
            largest = max((n for ranks in self.testimony.ranks().values() for _, n in ranks), default=0)
            if silence_proves(line, self.subsystems, largest, min(self.neighbours, largest)):
                return Reading(ABSENT, None, "NCCL must have read it and says nothing of it")
        return Reading("not_read", None, "NCCL's log has no line of it, which proves nothing here")


def read_log(pid: int, ns_pid: int, environment: Mapping[str, str] | None, *, neighbours: int, root: str = "") -> Log:
    """The log of worker ``pid`` (``ns_pid`` in its own namespace, its files below ``root``) by its environment, now."""
    if environment is None:
        return Log("unavailable", "the worker's environment cannot be read, and so neither where its log is")
    if environment.get("NCCL_DEBUG", "").upper() not in LOGS or not environment.get("NCCL_DEBUG_FILE"):
        return Log("unavailable", "the worker keeps no NCCL log: NCCL_DEBUG=INFO and NCCL_DEBUG_FILE are not set in it")
    pattern = environment["NCCL_DEBUG_FILE"]
    if "%p" not in pattern:
        return Log("unavailable", f"NCCL_DEBUG_FILE={pattern} is one file for every process: each truncates it; add %p")
    path, raw, cut, fault = "", None, False, ("", "")
    for host in _hosts(pid, environment, root) if "%h" in pattern else ("",):
        path = expand(pattern, host, ns_pid)
        raw, cut, fault = _read(root + path, pid)
        if raw is not None or fault[0] != "unavailable":
            break
    if raw is None:
        return Log(*fault, path)
    from sglang_ext.nccl.log import parse

    testimony = parse(raw).of(ns_pid)
    if not testimony.processes:
        return Log("not_read", "NCCL's log has no line of this process yet", path)
    version = testimony.libraries[-1].version if testimony.libraries else None
    subsystems = frozenset(
        word.strip().upper() for word in environment.get("NCCL_DEBUG_SUBSYS", "").split(",") if word.strip()
    )
    whole = not (cut or testimony.torn or testimony.mixed)
    return Log("ok", "", path, testimony, version, subsystems or BY_DEFAULT, whole, neighbours)


def expand(pattern: str, host: str, pid: int) -> str:
    """NCCL_DEBUG_FILE with %h, %p and %% filled in; any other %x stays (NCCL 2.30.7 src/debug.cc)."""
    out, index = [], 0
    while index < len(pattern):
        pair = pattern[index : index + 2]
        out.append({"%h": host, "%p": str(pid), "%%": "%"}.get(pair, pair[:1]))
        index += 2 if pair in ("%h", "%p", "%%") else 1
    return "".join(out)


def _hosts(pid: int, environment: Mapping[str, str], root: str) -> Iterator[str]:
    """What the worker's host may be called, up to the first dot; in a container, by what such a one states of itself."""
    from sglang_ext.run.process import in_our_namespace

    names = [os.uname().nodename]
    if not in_our_namespace(pid, "uts"):
        names = [environment.get("HOSTNAME", ""), _hostname_file(root), *names]
    yield from dict.fromkeys(name.partition(".")[0] for name in names if name)


def _hostname_file(root: str) -> str:
    try:
        with open(f"{root}/etc/hostname", encoding="utf-8", errors="replace") as file:
            return file.readline(256).strip()
    except OSError:
        return ""


def _read(path: str, pid: int) -> tuple[bytes | None, bool, tuple[str, str]]:
    """The log's bytes and whether they were cut; or None and (state, why). Only the worker's own regular file is believed."""
    from sglang_ext.run.process import effective_uid, started_at

    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, False, ("unavailable", "NCCL has written no log yet: no communicator has started in this worker")
    except OSError as error:
        return None, False, ("denied", f"NCCL's log {path} cannot be read ({error.strerror})")
    with open(handle, "rb") as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (effective_uid(pid), 0):
            return None, False, ("not_read", f"NCCL's log {path} is no regular file of the worker's user: not believed")
        if info.st_mtime < started_at(pid) - CLOCKS_DIFFER:
            return None, False, ("not_read", f"NCCL's log {path} is older than the worker: an earlier process wrote it")
        raw = file.read(LONGEST + 1)
    return raw[:LONGEST], len(raw) > LONGEST, ("", "")
