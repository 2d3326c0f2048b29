"""Stand-ins for servers, as real processes: a Python process that starts `sleep` under SGLang's titles.

Other servers may run on the host: what is looked for is always picked out by our own pids.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sglang_ext.run.process import command_line
from sglang_ext.verify.discover import Server, find_servers, role_of

ROOT = Path(__file__).resolve().parents[2]
SLEEP, BASH = shutil.which("sleep"), shutil.which("bash")

# What torchrun tells every rank of a job.
SEATS = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

# Starts one `sleep` per title, prints its own pid, a port it listens on, and theirs; ends with its stdin.
STAND_IN = f"""
import os, signal, socket, subprocess, sys
listener = socket.create_server(("", 0))  # no address: in a fresh network namespace the loopback is down
titles = [word for word in sys.argv[1:] if word.startswith("sglang::")]
children = [
    subprocess.Popen([title, "60"], executable={SLEEP!r}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for title in titles
]
print(os.getpid(), listener.getsockname()[1], *(child.pid for child in children), flush=True)
sys.stdin.read()
for child in children:
    child.kill()
"""


class StandIn:
    """One of them: ``pid``, ``port``, ``workers``."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", STAND_IN, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.pid, self.port, *self.workers = (int(word) for word in self.process.stdout.readline().split())
        # Popen returns when exec has begun: for a moment the new command line is not there yet.
        assert until(lambda: all(role_of("".join(command_line(pid)[:1])) != "other" for pid in self.workers))

    def found(self) -> list[Server]:
        """The servers that hold one of our processes."""
        return [s for s in find_servers() if s.pids & {self.pid, *self.workers}]


@contextlib.contextmanager
def stand_in(*words: str) -> Iterator[StandIn]:
    server = StandIn(words)
    try:
        yield server
    finally:
        server.process.communicate()
        for worker in server.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def until(true: Callable[[], Any], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


@contextlib.contextmanager
def started(*command: str) -> Iterator[list[int]]:
    """A command in a session of its own, and the pids on its first line."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield [int(word) for word in process.stdout.readline().split()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def python(code: str, *words: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", code, *words


def titled(*pids: int) -> bool:
    """Have all of them come as far as their titles?"""
    return until(lambda: all(role_of("".join(command_line(pid)[:1])) != "other" for pid in pids))


def holding(pid: int) -> Server:
    (found,) = (server for server in find_servers() if pid in server.pids)
    return found
