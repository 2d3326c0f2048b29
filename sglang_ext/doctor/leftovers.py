"""What earlier runs have left: run directories, processes, overlays. Reported only: nothing here is signalled or removed.

Shared-memory files are left out: their names (`nccl-XXXXXX`, `psm_...`) do not say whose they are, and those that carry a
pid (`torch_PID_...`) may be of another pid namespace that shares /dev/shm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_ext.delivery.old_runs import is_elsewhere
from sglang_ext.doctor import upstream
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import NOTE, OK, UNKNOWN, WARN, Result, listed
from sglang_ext.patchset import overlay
from sglang_ext.run.directory import RUN_ID, RunDirectory, RunError, check_trusted, default_base
from sglang_ext.run.process import Identity, all_stats, is_alive, stat

if TYPE_CHECKING:
    from sglang_ext.verify.discover import Process


class Run(NamedTuple):
    """A run directory: what run.json says, or why it cannot be read."""

    path: str
    id: str
    owner: Identity
    fault: str = ""
    elsewhere: bool = False  # of another pid namespace: its owner's pid says nothing here

    @property
    def alive(self) -> bool:
        return is_alive(self.owner)


def runs(base: str) -> list[Run]:
    """The run directories in ``base``."""
    try:
        check_trusted(base, made_by_us=True)
        names = sorted(os.listdir(base))
    except (RunError, OSError):
        return []  # the check on the place itself says what is wrong with it
    return [describe(os.path.join(base, name)) for name in names]


def describe(path: str) -> Run:
    try:
        record: dict[str, Any] = RunDirectory.open(path).read("run.json") or {}
        owner = Identity(int(record["owner"]["pid"]), int(record["owner"]["start_time"]))
        return Run(path, str(record["id"]), owner, elsewhere=is_elsewhere(record))
    except RunError as error:
        return Run(path, "", Identity(0, 0), str(error))
    except (KeyError, TypeError, ValueError):
        return Run(path, "", Identity(0, 0), f"{path} is no run directory of this sglang-ext")


def members(run: Run) -> list[Identity]:
    """The processes the run has recorded: its main process and its workers, by pid and start time."""
    found = []
    directory = RunDirectory(run.path)
    for name in ("server.json", *directory.names("workers")):
        try:
            record = directory.read(name) or {}
            record = record.get("main", record)
            found.append(Identity(int(record["pid"]), int(record["start_time"])))
        except (RunError, KeyError, TypeError, ValueError, AttributeError):
            continue  # torn as its writer died; the environments of living processes tell as well
    return found


def by_run_id() -> dict[str, list[Identity]]:
    """Living processes by the run id they were started with, as far as this user may look."""
    found: dict[str, list[Identity]] = {}
    mark = f"{RUN_ID}=".encode()
    for pid, entry in all_stats().items():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                block = file.read()
        except OSError:
            continue
        if entry.alive and mark in block:
            value = next((part[len(mark) :] for part in block.split(b"\0") if part.startswith(mark)), b"")
            found.setdefault(value.decode("utf-8", "replace"), []).append(entry.identity)
    return found


def ourselves() -> set[int]:
    """This process and those above it."""
    found: set[int] = set()
    entry = stat(os.getpid())
    while entry is not None and entry.pid not in found:
        found.add(entry.pid)
        entry = stat(entry.ppid)
    return found


def check_runs(here: Here) -> Iterator[Result]:
    """Run directories whose owner has ended, and processes of them that have not."""
    base = default_base()
    found = runs(base)
    readable = [run for run in found if not run.fault]
    away = [run for run in readable if run.elsewhere]
    dead = [run for run in readable if not run.elsewhere and not run.alive]
    carrying = by_run_id() if dead else {}
    above = ourselves()  # a shell in which the variables of a run were left over is none of its processes
    for run in dead:
        left = {one for one in members(run) if is_alive(one)} | set(carrying.get(run.id, ()))
        left = {one for one in left if one.pid not in above}
        if left:
            pids = [str(one.pid) for one in sorted(left)]
            message = f"the owner of run {run.path} is not running here, but processes of it are: {listed(pids)}"
            seen = tuple(f"pid {one.pid}, start time {one.start_time}" for one in sorted(left))
            yield Result(WARN, message, f"end them: kill {' '.join(pids)}", seen)
    odd = [run for run in found if run.fault]
    if odd:
        message = f"entries of {base} that are no run directories to be believed: {len(odd)}"
        yield Result(NOTE, message, "look at them, and remove them by hand", tuple(run.fault for run in odd))
    if dead:
        message = (
            f"runs without an owner in {base}: {len(dead)}; a later launch drops those that ended more than a day ago"
        )
        yield Result(NOTE, message, seen=tuple(run.path for run in dead))
    if away:
        message = f"runs of another pid namespace in {base}: {len(away)}; whether they live only shows there"
        yield Result(NOTE, message, seen=tuple(run.path for run in away))
    living = len(readable) - len(dead) - len(away)
    if not dead and not odd and not away:
        yield Result(
            OK, f"no run has left anything behind; {living} running" if living else "no run has left anything behind"
        )


def orphans() -> list[Process]:
    """Processes with one of SGLang's titles, of a server that is gone, whose parent is pid 1 now.

    Ray's actors have no Python above them either, but a parent that lives.
    """
    from sglang_ext.verify.discover import find_servers

    return [one for server in find_servers() if server.main is None for one in server.processes if one.stat.ppid == 1]


def check_orphans(here: Here) -> Iterator[Result]:
    """Schedulers and detokenizers of servers that are gone: they hold GPU memory, and verify-env meets them."""
    found = orphans()
    if not found:
        yield Result(OK, "no SGLang process has outlived its server")
        return
    pids = [str(one.stat.pid) for one in found]
    seen = tuple(f"pid {one.stat.pid}, start time {one.stat.start_time}: {one.title}" for one in found)
    yield Result(
        WARN,
        f"SGLang processes that have outlived their server: {listed(pids)}",
        f"end them: kill {' '.join(pids)}",
        seen,
    )


def size_of(folder: str) -> int:
    """Bytes in a folder's files."""
    total = 0
    for where, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue  # removed meanwhile
    return total


def check_overlays(here: Here) -> Iterator[Result]:
    """Patched copies of other releases or patch sets."""
    try:
        base = overlay.cache_base()
    except overlay.OverlayError as error:
        yield Result(UNKNOWN, str(error))
        return
    try:
        found = upstream.planned(here)
    except overlay.OverlayError:
        found = None
    current = found.key if found else ""
    old = [folder for folder in upstream.overlays(base) if os.path.basename(folder) != current]
    if not old:
        yield Result(OK, "no patched copies of other releases or patch sets are kept")
        return
    mib = sum(map(size_of, old)) / (1 << 20)
    message = f"overlays of other releases, patch sets or cut-off builds in {base}: {len(old)}, {mib:.1f} MiB"
    yield Result(NOTE, message, "remove those no other environment of yours uses", tuple(old))
