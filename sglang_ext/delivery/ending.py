"""Ending a launch: everything it started, nothing else. By session and run id, each process by pid and start time.

Upstream's main process is asked first and alone: signalling the whole group makes sglang 0.5.23 wait five seconds for
crash diagnostics. What is still there after the grace is killed. Schedulers that are still importing have not armed
their PDEATHSIG yet and would outlive their parent by 20-30 s, so waiting for them to notice is not enough.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from sglang_ext.run.directory import RUN_ID
from sglang_ext.run.process import Identity, Stat, all_stats, is_alive

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the signals that ask a command to end
IGNORABLE = (signal.SIGINT, signal.SIGHUP)


def listen(note: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Have ``note`` called when this process is asked to end; returns the handlers of before, of the signals taken.

    What was ignored from the start stays so, and whoever started us meant it: nohup has SIGHUP ignored, a shell without job
    control SIGINT for what it starts with "&". SIGTERM is taken always: it is meant for this process, not for its terminal.
    """
    hear_children()
    taken = [number for number in ASKING if number not in IGNORABLE or signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, note) for number in taken}


def hear_children() -> None:
    """Let the kernel keep how a child ended until it is asked: whoever started us with SIGCHLD ignored has it forget."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def open_pidfd(pid: int) -> int | None:
    """A pidfd; None where it is gone, or where there are none: a Python built for an older kernel, as conda's, or a sandbox that
    forbids the call.
    """
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def send(identity: Identity, number: int) -> bool:
    """Signal exactly this process. False when it is gone, or not ours to signal.

    A pidfd closes the gap between looking and signalling. Without one the gap of some microseconds stays: a process is rather
    ended so than left running.
    """
    handle = open_pidfd(identity.pid)
    try:
        if identity.pid <= 0 or not is_alive(identity):  # looked at after the pidfd: it is this process or none
            return False
        try:
            signal.pidfd_send_signal(-1 if handle is None else handle, number)
        except ProcessLookupError:
            return False
        except (OSError, AttributeError):
            os.kill(identity.pid, number)
        return True
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)


def carries_run(pid: int, run_id: str) -> bool:
    """Was ``pid`` started with this run id in its environment? (Readable, as the run sets SPT_NOENV.)"""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{RUN_ID}={run_id}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def members(main: Identity, run_id: str, spare: frozenset[int]) -> list[Stat]:
    """The living processes of a launch: its main's session, and whoever left the session but carries its run id."""
    stats = all_stats()
    leader = stats.get(main.pid)
    # A leader of another age: everybody of the old session is gone and a stranger got its number. Session 0 is nobody's we
    # could name: the kernel's, or that of processes from another pid namespace.
    session = main.pid if main.pid and (leader is None or leader.start_time == main.start_time) else None
    return [
        entry
        for entry in stats.values()
        if entry.alive and entry.pid not in spare and (entry.session == session or carries_run(entry.pid, run_id))
    ]


def end(main: Identity, run_id: str, *, grace: float, spare: frozenset[int] = frozenset(), hurry: object = None) -> int:
    """End the launch whose main process (its session's leader) is ``main``; returns how many had to be killed.

    ``grace``: seconds between asking and killing. ``hurry``: a callable; once it says True the grace is over.
    """
    spare = spare | {os.getpid()}
    send(main, signal.SIGTERM)
    deadline = time.monotonic() + grace
    left = members(main, run_id, spare)
    while left and time.monotonic() < deadline and not (callable(hurry) and hurry()):
        if not is_alive(main) and time.monotonic() > deadline - grace + 1.0:
            break  # nobody is left who would end the others in order
        time.sleep(0.05)
        left = members(main, run_id, spare)
    killed = 0
    deadline = time.monotonic() + 5.0
    while left and time.monotonic() < deadline:
        killed += sum(send(entry.identity, signal.SIGKILL) for entry in left)
        time.sleep(0.05)
        left = members(main, run_id, spare)
    return killed
