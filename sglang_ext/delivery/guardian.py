"""The guardian: a small process that ends the launch when the supervisor dies without saying goodbye (SIGKILL, OOM).

It is forked before anything is started and sleeps on a pipe. The kernel closes the pipe when the supervisor ends, however
it ends; "done" on it before that means there is nothing left to do. The run's id is on it before anything is started: the
supervisor may die before it can tell what that was.
"""

from __future__ import annotations

import os
import signal
import time

from sglang_ext.delivery.ending import end, members
from sglang_ext.run.process import Identity

GRACE = 3.0  # seconds for upstream to end in order once nobody supervises it
STARTING = 2.0  # seconds from fork to exec, at most
NOBODY = Identity(0, 0)


class Guardian:
    """The supervisor's handle on its guardian. Create it while the supervisor has one thread."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _live(reader)
        os.close(reader)

    def expect(self, run_id: str) -> None:
        """Tell it that something of this run is about to be started: its pid may come too late."""
        self._tell(run_id)

    def watch(self, main: Identity, run_id: str) -> None:
        """Tell it what to end."""
        self._tell(f"{main.pid} {main.start_time} {run_id}")

    def dismiss(self) -> None:
        """Nothing is left to guard."""
        self._tell("done")
        os.close(self._writer)
        os.waitpid(self.pid, 0)

    def _tell(self, line: str) -> None:
        try:
            os.write(self._writer, f"{line}\n".encode())
        except BrokenPipeError:
            pass  # it is gone: somebody killed it


def _await_carrier(run_id: str) -> None:
    """The supervisor died while it started upstream: until exec nothing shows that a process is of the run."""
    deadline = time.monotonic() + STARTING
    while not members(NOBODY, run_id, frozenset()) and time.monotonic() < deadline:
        time.sleep(0.02)


def _live(reader: int) -> None:
    """The guardian's whole life; never returns."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it goes when the supervisor goes, not when the terminal does
        with open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write("sglang-ext-grd")
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):  # holding the supervisor's pipes open would keep `launch | tee` from ending
            os.dup2(null, handle)
        with open(reader, encoding="ascii") as pipe:
            lines = pipe.read().splitlines()
        if lines and lines[-1] != "done":
            *main, run_id = lines[-1].split()
            if not main:
                _await_carrier(run_id)
            end(Identity(int(main[0]), int(main[1])) if main else NOBODY, run_id, grace=GRACE)
        status = 0
    finally:
        os._exit(status)
