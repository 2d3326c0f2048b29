"""The keeper: a process that starts one server, and ends all of it when it is told to, or when whoever told it is gone.

    python -m sglang_ext.bench.campaigns.keeper

stdin: one line of JSON (`Order`), later "end" or "kill"; stdout: lines of JSON.

The harness may die at any moment, by SIGKILL or for want of memory: the kernel then closes its end of the pipe, and that means
"end". Whatever the server starts stays below the keeper, whichever session it goes to: orphans go to the nearest subreaper
(prctl(2), PR_SET_CHILD_SUBREAPER), which the keeper is. Stock SGLang leaves such orphans; a launcher of ours ends its own.
Should the keeper itself be killed, the server's first process is sent SIGTERM by the kernel (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

from sglang_ext.delivery.ending import open_pidfd, send
from sglang_ext.run.process import Identity, Stat, all_stats, is_alive, stat
from sglang_ext.verify.discover import children, descendants

GRACE = 45.0  # seconds between asking and killing; the launcher itself gives upstream 30
HURRIED = 10.0  # the same where nobody waits for the end any more
ORPHANS = 5.0  # seconds the rest gets once the first process is gone: a launcher's guardian ends it in order
KILLING = 30.0  # seconds after SIGKILL; a driver that frees a GPU's memory takes some
TICK = 0.05
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class Order(NamedTuple):
    """What to start: the first line on stdin."""

    argv: list[str]
    environment: dict[str, str]
    log: str  # a file that is not there yet: nobody's log is written over


def start(order: Order) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own: a Ctrl-C reaches the harness, which decides."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = os.getpid()

    def bound() -> None:
        for number in IGNORED:  # what is ignored stays so across exec
            signal.signal(number, signal.SIG_DFL)
        prctl(SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != keeper:  # killed before the kernel was told
            os._exit(1)

    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            order.argv,
            env=order.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=bound,
        )
    finally:
        os.close(log)


def family() -> list[Stat]:
    """Every living process below this one."""
    return descendants(os.getpid(), children(all_stats()))


def reap() -> dict[int, int]:
    """The exit status of every child that has ended, by pid: adopted orphans too, which nobody else would bury."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def finish(main: Identity, grace: float, commands: int) -> tuple[int, list[int]]:
    """End everything below this process: ask the first one alone, then kill what is left.

    Returns how many had to be killed, and who is there all the same. Word on ``commands`` shortens the grace: "kill" to
    nothing, its end (the harness went while it waited) to what is given where nobody waits.
    """
    send(main, signal.SIGTERM)
    deadline = time.monotonic() + grace
    listening, orphaned = [commands], False
    while family() and time.monotonic() < deadline:
        if not orphaned and not is_alive(main):
            orphaned = True
            deadline = min(deadline, time.monotonic() + ORPHANS)
        if select.select(listening, [], [], TICK)[0]:
            word = os.read(commands, 64)
            listening = listening if word else []
            deadline = min(deadline, time.monotonic() + (0.0 if b"kill" in word else grace if word else HURRIED))
        reap()
    killed: set[Identity] = set()
    deadline = time.monotonic() + KILLING
    while (left := family()) and time.monotonic() < deadline:
        killed |= {entry.identity for entry in left if send(entry.identity, signal.SIGKILL)}
        time.sleep(TICK)
        reap()
    return len(killed), [entry.pid for entry in left]


def say(value: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(value).encode() + b"\n")
    except OSError:
        pass  # nobody listens any more


def first_line(handle: int) -> bytes:
    """The first line, or what came of it before the end."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(handle, 1)
        if not piece:
            break
        line += piece
    return line


def main() -> int:
    """Keep one server; returns 0 when nothing of it is left."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)  # it goes when the harness goes, not when the terminal does
    line = first_line(0)
    if not line.endswith(b"\n"):
        return 0  # the harness went before it had said what to start
    try:
        child = start(Order(**json.loads(line)))
    except OSError as error:
        say({"failed": f"{error.filename or 'it'} cannot be started ({error.strerror})"})
        return 1
    entry = stat(child.pid)
    first = Identity(child.pid, entry.start_time if entry else 0)
    say({"pid": first.pid, "start_time": first.start_time})
    handle = open_pidfd(first.pid)
    watched, told = [0] if handle is None else [0, handle], False
    while True:
        ready = select.select(watched, [], [], TICK if handle is None and not told else None)[0]
        if not told and (handle in ready or (handle is None and not is_alive(first))):
            say({"ended": reap().get(first.pid)})
            watched, told = [0], True
        if 0 in ready:
            break
    word = os.read(0, 64)
    child.returncode = 0  # `reap` is who waits for it
    killed, left = finish(first, 0.0 if b"kill" in word else GRACE if word else HURRIED, 0)
    say({"killed": killed, "left": left})
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
