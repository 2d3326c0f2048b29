"""Real SGLang servers for tests and the demo: started, waited for, asked, and ended with everything they started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from tests.rig.environment import rig_environment, rig_flags

LAUNCHER = ("-m", "sglang_ext.launch")
STOCK = ("-m", "sglang.launch_server")
OURS = ("NCCL_", "SGLANG_EXT", "CUDA_DEVICE_MAX_CONNECTIONS", "SPT_NOENV")
START_LIMIT = 240.0  # seconds; 20 when warm, much more when a cold cache is compiled on busy cores


def runs(process: psutil.Process) -> bool:
    """Is it there, and no zombie? It may end between two questions."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """A port nobody listens on. Below Linux's ephemeral range: a connection made meanwhile cannot take it."""
    for port in range(20000 + os.getpid() % 5000, 32000, 7):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 20000 and 32000")


def clean_environment(tp: int, extra: Mapping[str, str]) -> dict[str, str]:
    """What a server gets: this environment without anything the tests are about, the rig's settings, and ``extra``.

    ``extra`` comes first in the block, as a variable of the user's own shell may: setproctitle then overwrites it.
    """
    base = {name: value for name, value in os.environ.items() if not name.startswith(OURS) and name != "PYTHONPATH"}
    return {**extra, **rig_environment(base, tp), **extra}


class Server:
    """One server on the rig. A context manager: leaving it ends the server and checks that nothing is left."""

    def __init__(
        self,
        log: Path,
        *,
        start: Sequence[str] = LAUNCHER,
        options: Sequence[str] = (),
        model: Path,
        environment: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        tp: int = 2,
        python: str = sys.executable,
        **shape: Any,
    ) -> None:
        self.port = free_port()
        self.log = log
        serving = [*rig_flags(model, self.port, tp, **shape), *flags]
        self.command = [python, *start, *options, *serving] if start[0] == "-m" else [*start, *serving]
        self.environment = clean_environment(tp, environment or {})
        self.begun: psutil.Popen | None = None
        self.family: dict[int, psutil.Process] = {}

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self) -> Self:
        """Start it, without waiting. Its own session: a Ctrl-C at the test run ends it through us, not beside us."""
        with self.log.open("wb") as log:
            self.begun = psutil.Popen(
                self.command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self

    @property
    def process(self) -> psutil.Popen:
        assert self.begun is not None
        return self.begun

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(
        self, done: Callable[[], bool], limit: float = START_LIMIT, tick: Callable[[float], None] | None = None
    ) -> Self:
        """Wait until ``done()``; an AssertionError with the log's end when the process ends before, or time is over."""
        began = time.monotonic()
        while not done():
            waited = time.monotonic() - began
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text()[-4000:]}"
            assert waited < limit, f"not there after {limit:.0f} s:\n{self.text()[-4000:]}"
            if tick is not None:
                tick(waited)
            time.sleep(0.2)
            self.note_family()
        return self

    def wait_ready(self, tick: Callable[[float], None] | None = None) -> Self:
        """Wait until it says so itself: /ready is a flag, /health would make it generate a token at every look."""
        return self.wait(self.ready, tick=tick)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)

    def generate(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Greedy, exactly ``tokens`` of them: the server's answer with output_ids and meta_info."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"text": prompt, "sampling_params": sampling}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def note_family(self) -> None:
        """Remember every process below ours, by pid and creation time, so that survivors can be told from strangers."""
        try:
            for child in self.process.children(recursive=True):
                self.family.setdefault(child.pid, child)
        except psutil.NoSuchProcess:
            pass  # it has just ended; what it had is noted

    def left(self) -> list[psutil.Process]:
        """Noted processes that still run."""
        return [process for process in self.family.values() if runs(process)]

    def titled(self, prefix: str) -> list[psutil.Process]:
        """Processes of this server whose title starts so, in order of their titles."""
        self.note_family()
        named = []
        for process in self.left():
            try:
                title = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if title.startswith(prefix):
                named.append((title, process))
        return [process for _, process in sorted(named, key=lambda pair: pair[0])]

    def wait_gone(self, limit: float) -> float:
        """Seconds until nothing of this server is left; an AssertionError after ``limit``."""
        began = time.monotonic()
        while alive := self.left():
            assert time.monotonic() - began < limit, f"still there after {limit:.0f} s: {alive}"
            time.sleep(0.05)
        return time.monotonic() - began

    def stop(self, number: int = signal.SIGTERM, limit: float = 60.0) -> int:
        """End it by a signal to its first process alone; returns that one's exit status (negative: a signal)."""
        if self.begun is None:
            return 0
        self.note_family()
        try:
            if self.process.poll() is None:
                self.process.send_signal(number)
            status = int(self.process.wait(timeout=limit))
            self.wait_gone(10.0)
            return status
        finally:
            for process in self.left():
                process.kill()
            if self.process.poll() is None:
                self.process.kill()
