"""The guardian: a small process that ends the launch when the supervisor dies without saying goodbye (SIGKILL, OOM).

It is forked before anything is started and sleeps on a pipe. The kernel closes the pipe when the supervisor ends, however
it ends; "done" on it before that means there is nothing left to do.
"""

from __future__ import annotations

import os
import signal

from sglang_ext.delivery.ending import end
from sglang_ext.run.process import Identity

GRACE = 3.0  # seconds for upstream to end in order once nobody supervises it


class Guardian:
    """The supervisor's handle on its guardian. Create it while the supervisor has one thread."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _live(reader)
        os.close(reader)

    def watch(self, main: Identity, run_id: str) -> None:
        """Tell it what to end."""
        os.write(self._writer, f"{main.pid} {main.start_time} {run_id}\n".encode())

    def dismiss(self) -> None:
        """Nothing is left to guard."""
        try:
            os.write(self._writer, b"done\n")
        except BrokenPipeError:
            pass  # it is gone already: somebody killed it
        os.close(self._writer)
        os.waitpid(self.pid, 0)


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
            words = pipe.read().split()
        if words and words[-1] != "done":
            end(Identity(int(words[0]), int(words[1])), words[2], grace=GRACE)
        status = 0
    finally:
        os._exit(status)
