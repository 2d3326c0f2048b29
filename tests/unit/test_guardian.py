"""The guardian: when the supervisor is killed without a word, what it started goes; when it is dismissed, nothing does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sglang_ext.delivery.ending import send
from sglang_ext.run.process import Identity, is_alive, stat

ROOT = Path(__file__).resolve().parents[2]

# Starts a guardian and a `sleep` in a session of its own; then does what its stdin says.
SUPERVISOR = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
from sglang_ext.delivery.guardian import Guardian
from sglang_ext.run.process import Identity, stat
guardian = Guardian()
quiet = subprocess.DEVNULL
if "expect" in sys.argv:
    guardian.expect("run-of-the-guardian-test")
marked = os.environ | {"SGLANG_EXT_RUN_ID": "run-of-the-guardian-test"}
main = subprocess.Popen(["sleep", "60"], env=marked, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
if "watch" in sys.argv:
    guardian.watch(Identity(main.pid, stat(main.pid).start_time), "run-of-the-guardian-test")
print(guardian.pid, main.pid, flush=True)
for line in sys.stdin:
    guardian.dismiss()
    print("dismissed", flush=True)
"""


class Supervised:
    """A supervisor with its guardian and what it started."""

    def __init__(self, process: subprocess.Popen[str], guardian: Identity, main: Identity) -> None:
        self.process, self.guardian, self.main = process, guardian, main


def identity(pid: int) -> Identity:
    found = stat(pid)
    assert found is not None
    return found.identity


def until(true: Callable[[], Any], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


@contextlib.contextmanager
def supervised(*words: str) -> Iterator[Supervised]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SUPERVISOR, str(ROOT), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    guardian, main = (identity(int(word)) for word in process.stdout.readline().split())
    try:
        yield Supervised(process, guardian, main)
    finally:
        for one in (main, guardian):
            send(one, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_a_killed_supervisor_takes_its_launch_along() -> None:
    with supervised("watch") as own:
        assert is_alive(own.main) and is_alive(own.guardian)
        own.process.kill()
        assert until(lambda: not is_alive(own.main))
        assert until(lambda: not is_alive(own.guardian))


def test_a_dismissed_guardian_leaves_it_alone() -> None:
    with supervised("watch") as own:
        assert own.process.stdin is not None and own.process.stdout is not None
        own.process.stdin.write("\n")
        own.process.stdin.flush()
        assert own.process.stdout.readline() == "dismissed\n"
        assert not is_alive(own.guardian)
        own.process.kill()
        own.process.wait()
        time.sleep(0.3)
        assert is_alive(own.main)


def test_a_guardian_that_was_told_nothing_ends_nothing() -> None:
    with supervised() as own:
        own.process.kill()
        assert until(lambda: not is_alive(own.guardian))
        assert is_alive(own.main)


def test_a_supervisor_killed_before_it_could_tell_the_pid_takes_its_launch_along() -> None:
    with supervised("expect") as own:
        own.process.kill()
        assert until(lambda: not is_alive(own.main))
        assert until(lambda: not is_alive(own.guardian))


def test_the_terminal_s_signals_do_not_end_it() -> None:
    with supervised("watch") as own:
        # It ignores them from its first moment on or was not there yet: ask until they are seen as ignored.
        assert until(lambda: _ignores(own.guardian.pid, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            send(own.guardian, number)
        time.sleep(0.1)
        assert is_alive(own.guardian)
        assert os.getsid(own.guardian.pid) == own.guardian.pid  # a closing terminal does not reach it
        own.process.kill()
        assert until(lambda: not is_alive(own.main))


def _ignores(pid: int, *numbers: int) -> bool:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
    return all(mask >> (number - 1) & 1 for number in numbers)


def test_it_holds_no_pipe_of_the_supervisor_open() -> None:
    with supervised("watch") as own:
        assert until(lambda: _ignores(own.guardian.pid, signal.SIGHUP))
        assert until(lambda: os.readlink(f"/proc/{own.guardian.pid}/fd/1") == os.devnull)
        assert [os.readlink(f"/proc/{own.guardian.pid}/fd/{handle}") for handle in (0, 2)] == [os.devnull] * 2


def test_it_is_named_and_small() -> None:
    with supervised("watch") as own:

        def called() -> str:
            return Path(f"/proc/{own.guardian.pid}/comm").read_text().strip()

        assert until(lambda: called() == "sglang-ext-grd")


def test_dismissing_one_that_was_killed_is_no_error() -> None:
    with supervised("watch") as own:
        assert own.process.stdin is not None and own.process.stdout is not None
        send(own.guardian, signal.SIGKILL)
        assert until(lambda: not is_alive(own.guardian))
        own.process.stdin.write("\n")
        own.process.stdin.flush()
        assert own.process.stdout.readline() == "dismissed\n"
