"""Are the GPUs free? Who holds them beside the server, and memory that nobody holds."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sglang_ext.bench.machine import kernel, nvml
from sglang_ext.bench.machine.nvml import Gpu, Holder, Library
from sglang_ext.bench.machine.questions import Unreadable
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.run import process

GIB = 1 << 30
IN_USE = 2 * GIB  # below it SGLang's own tests call a GPU idle (sglang 0.5.23 test/test_utils.py:2129)
RELEASE, POLL = (
    60.0,
    0.5,
)  # seconds for the driver to take memory back: as long as SGLang's own tests wait (the same, :2130)
SHOWN = 5  # processes in one sentence


def foreign(holders: Sequence[Holder], ours: Collection[int], allowed: int, comparable: bool) -> list[Holder]:
    """Those that are not ours. In a container NVML tells pids of the host, which name nobody here or somebody else: there a GPU
    held by no more processes than may hold it is taken as ours, and otherwise all of them are shown.
    """
    if comparable:
        return [one for one in holders if one.pid not in ours]
    return list(holders) if len(holders) > allowed else []


def held_by(library: Library, gpus: Sequence[Gpu], pids: Iterable[int]) -> list[Gpu]:
    """Those that ``pids`` or what descends from them hold, and those of which that cannot be told: in a container all."""
    if kernel.in_a_container():
        return list(gpus)
    ours = kernel.family(pids, kernel.processes())
    return [gpu for gpu in gpus if _may_hold(library, gpu, ours)]


def _may_hold(library: Library, gpu: Gpu, ours: Collection[int]) -> bool:
    if gpu.handle is None:
        return True
    try:
        return any(one.pid in ours for one in library.holders(gpu.handle))
    except Unreadable:
        return True


def named(pid: int, comparable: bool) -> str | None:
    return kernel.program(pid) if comparable else None


class Finding(NamedTuple):
    """Why a GPU is not free. ``passes``: it may be a server that has just ended, whose memory the driver has yet to take back."""

    fault: Fault
    passes: bool = False


def preflight(
    allowed_pids: Iterable[int], *, environment: Mapping[str, str] = os.environ, patience: float = RELEASE
) -> list[Fault]:
    """Why a number cannot be taken on these GPUs now; empty where they are free, or there are none.

    ``allowed_pids``: the processes of a server that runs already, none before a launch. What a server that has just ended
    still holds is waited for, ``patience`` seconds at most; a process that lives is not.
    """
    allowed = set(allowed_pids)
    number = len(allowed)
    opened = nvml.open_library()
    if isinstance(opened, str):
        fix = "expected to see who holds the GPUs, as an NVIDIA driver is here"
        return [Fault("gpu_unseen", f"{fix}; found: {opened}")] if nvml.has_driver() else []
    deadline = time.monotonic() + patience
    try:
        gpus = nvml.selected(opened.gpus(), environment)
        if allowed:
            allowed |= kernel.family(allowed, kernel.processes())
        comparable = not kernel.in_a_container()
        while True:
            found = [one for gpu in gpus for one in _look(opened, gpu, allowed, number, comparable)]
            if not all(one.passes for one in found) or not found or time.monotonic() >= deadline:
                return [one.fault for one in found]
            time.sleep(POLL)
    except Unreadable as why:
        return [Fault("gpu_unseen", f"expected a list of GPUs from NVML, found: {why}")]
    finally:
        opened.close()


def _look(library: Library, gpu: Gpu, allowed: Collection[int], number: int, comparable: bool) -> list[Finding]:
    """What keeps one GPU from being free for the processes ``allowed``."""
    who = f"GPU {gpu.number}"
    if gpu.handle is None:
        return [Finding(Fault("gpu_unseen", f"{who}: expected an answer, found: {gpu.fault}"))]
    holders: list[Holder] | None = None
    used: int | None = None
    faults: list[str] = []
    try:
        holders = library.holders(gpu.handle)
    except Unreadable as why:
        faults.append(str(why))
    try:
        used = library.used_memory(gpu.handle)
    except Unreadable as why:
        faults.append(str(why))
    if holders is None and (used is None or allowed):  # memory in use may be the server's own: only the list would tell
        return [Finding(Fault("gpu_unseen", f"{who}: expected to see who holds it, found: {'; '.join(faults)}"))]
    strangers = foreign(holders or [], allowed, number, comparable)
    if strangers:
        rest = f" and {len(strangers) - SHOWN} more" if len(strangers) > SHOWN else ""
        found = ", ".join(describe(one, comparable) for one in strangers[:SHOWN]) + rest
        expected = "no process but the server's own" if allowed else "no process"
        text = f"{who}: expected {expected}, found {found}; end it, or wait until it is gone"
        return [Finding(Fault("gpu_busy", text), not comparable or not any(lives(one.pid) for one in strangers))]
    held = [one.memory for one in holders or []]
    known = [memory for memory in held if memory is not None]
    if used is None or len(known) < len(held):
        return []  # everybody on it may be there, and what they hold is not told
    left = used - sum(known)
    if left < IN_USE:
        return []
    text = (
        f"{who}: expected less than {IN_USE / GIB:g} GiB in use by nobody, found {left / GIB:.1f} GiB; end what was left of an "
        "earlier server (in a container: outside it), or wait until the driver has taken it back"
    )
    return [Finding(Fault("gpu_memory_in_use", text), True)]


def lives(pid: int) -> bool:
    found = process.stat(pid)
    return found is not None and found.alive


def describe(one: Holder, comparable: bool) -> str:
    """A process for a message: its program's name, never its arguments."""
    name = named(one.pid, comparable)
    where = f" ({name})" if name else "" if comparable else " on the host"
    memory = f" with {one.memory / GIB:.1f} GiB" if one.memory is not None else ""
    return f"pid {one.pid}{where}{memory}"
