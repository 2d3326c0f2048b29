"""What whoever started us left behind must not cost a guardian, an exit status, or the end of a server."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.console import Stream
from sglang_ext.delivery import preflight
from sglang_ext.delivery.ending import send
from sglang_ext.run.directory import default_base
from sglang_ext.run.process import Identity, ancestors, is_alive, stat
from tests.unit.stand_ins import until

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *words: str, before: Callable[[], None] | None = None, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}", *words]
    return subprocess.Popen(command, preexec_fn=before, text=True, **more)


# A launcher in small, from the console's `run` on: it starts something, has it guarded, and is killed without a word.
GUARDED = """
import os, signal, subprocess
from sglang_ext.console import run
from sglang_ext.delivery.guardian import Guardian
from sglang_ext.run.process import Identity, stat
def main():
    guardian, quiet = Guardian(), subprocess.DEVNULL
    guardian.expect("run-of-a-test")
    child = subprocess.Popen(["sleep", "60"], start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
    begun = stat(child.pid)
    guardian.watch(Identity(child.pid, begun.start_time), "run-of-a-test")
    print("said to whoever listens")
    with open(sys.argv[1] + ".tmp", "w") as file:
        file.write(f"{child.pid} {begun.start_time}")
    os.rename(sys.argv[1] + ".tmp", sys.argv[1])
    os.kill(os.getpid(), signal.SIGKILL)
run(main)
"""


@pytest.mark.parametrize("closed", [(), (0,), (0, 1), (0, 2), (0, 1, 2)])
def test_closed_handles_cost_no_guardian(closed: tuple[int, ...], tmp_path: Path) -> None:
    """`launch <&- &`: the guardian's pipe would get the number 0, and the guardian would close it as its stdin."""

    def closing() -> None:
        for handle in closed:
            os.close(handle)

    place = tmp_path / "begun"
    with python(GUARDED, str(place), before=closing) as launcher:
        assert launcher.wait(30) == -signal.SIGKILL
    child = Identity(*map(int, place.read_text().split()))
    try:
        assert until(lambda: not is_alive(child), 15.0), "nobody guarded it"
    finally:
        send(child, signal.SIGKILL)


FORGETFUL = """
import subprocess
from sglang_ext.delivery.supervisor import Supervisor
one = Supervisor(None, [], print)
print(subprocess.Popen(["sh", "-c", "exit 3"]).wait())
one.guardian.dismiss()
"""


def test_a_child_s_end_is_known_where_sigchld_was_ignored() -> None:
    def ignoring() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    with python(FORGETFUL, before=ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        assert launcher.communicate(timeout=30) == ("3\n", "")
    assert launcher.returncode == 0


# --- no pidfds: a Python built for an older kernel, an older kernel, a sandbox ----------------------------


def refused(*_: object) -> int:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


NO_PIDFDS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "none in this Python": lambda patch: patch.delattr(os, "pidfd_open"),
    "forbidden": lambda patch: patch.setattr(os, "pidfd_open", refused),
    "no signals by them": lambda patch: patch.delattr(signal, "pidfd_send_signal"),
    "signals by them forbidden": lambda patch: patch.setattr(signal, "pidfd_send_signal", refused),
}


@pytest.mark.parametrize("how", NO_PIDFDS)
def test_a_signal_reaches_exactly_one_process_without_pidfds(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    NO_PIDFDS[how](monkeypatch)
    with subprocess.Popen(["sleep", "60"]) as process:
        entry = stat(process.pid)
        assert entry is not None
        one = entry.identity
        assert not send(Identity(one.pid, one.start_time + 1), signal.SIGKILL) and process.poll() is None
        assert not send(Identity(0, 0), signal.SIGTERM)  # to kill(2) that is this process's whole group
        assert send(one, signal.SIGTERM)
        assert process.wait(5) == -signal.SIGTERM
    assert not send(one, signal.SIGTERM)


KEEPER = """
import os
del os.pidfd_open
from sglang_ext.bench.campaigns.keeper import main
sys.exit(main())
"""


@pytest.mark.parametrize(("script", "killed"), [("exit 3", 0), ("trap '' TERM; sleep 60 & echo ready; wait", 2)])
def test_a_keeper_without_pidfds(script: str, killed: int, tmp_path: Path) -> None:
    order = {"argv": ["sh", "-c", script], "environment": dict(os.environ), "log": str(tmp_path / "log")}
    with python(KEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None
        keeper.stdin.write(json.dumps(order) + "\n")
        keeper.stdin.flush()
        first = json.loads(keeper.stdout.readline())
        if killed:
            assert until(
                lambda: (tmp_path / "log").read_text() == "ready\n", 15.0
            )  # it does not hear SIGTERM from now on
        else:
            assert json.loads(keeper.stdout.readline()) == {"ended": 3}
        keeper.stdin.write("kill")
        keeper.stdin.close()
        assert json.loads(keeper.stdout.readline()) == {"killed": killed, "left": []}
        assert keeper.wait(30) == 0
    assert not is_alive(Identity(first["pid"], first["start_time"]))


# --- streams -----------------------------------------------------------------------------------------------


def test_a_terminal_that_does_not_wait_loses_nothing() -> None:
    """O_NONBLOCK belongs to the open terminal, and any program that shares it may set it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text, got = "a verdict\n" * 50_000, bytearray()

    def read() -> None:
        while piece := os.read(reader, 1 << 16):
            got.extend(piece)

    listening = threading.Thread(target=read)
    time.sleep(0.05)
    try:
        listening.start()
        assert Stream(writer).write(text) == len(text)
    finally:
        os.close(writer)
        listening.join(30)
        os.close(reader)
    assert got.decode() == text


def test_a_log_on_a_full_disk_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sglang_ext.console.os.write", full)
    assert Stream(2).write("ready\n") == 6
    with pytest.raises(OSError, match="No space left"):
        Stream(1).write("a report\n")


# --- places and parents ------------------------------------------------------------------------------------


def test_a_run_outlives_its_user_s_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """logind removes /run/user/UID as the user logs out, and nohup lets the server go on."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os.path, "realpath", lambda path: "/run/user/1000" if path == str(tmp_path) else path)
    assert default_base() == f"/tmp/sglang-ext-{os.geteuid()}"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_another_user_s_runtime_directory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo -E`: after one such launch its owner could start nothing more."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_base() == str(tmp_path / "sglang-ext")
    os.chown(tmp_path, 1000, -1)
    assert default_base() == "/tmp/sglang-ext-0"


WRAPPED = """
import multiprocessing, os, sys
sys.path.insert(0, sys.argv[1])
from sglang_ext.delivery.seams.scheduler import orphaned

def worker(answers):
    answers.put((orphaned(), os.getppid() == multiprocessing.parent_process().pid))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    context.set_executable(sys.argv[2])
    answers = context.SimpleQueue()
    one = context.Process(target=worker, args=(answers,))
    one.start()
    print(*answers.get())
    one.join()
"""


def test_a_wrapper_between_makes_no_orphan(tmp_path: Path) -> None:
    wrapper, program = tmp_path / "wrapper", tmp_path / "program.py"
    wrapper.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    program.write_text(WRAPPED)
    command = [sys.executable, str(program), str(ROOT), str(wrapper)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n", done.stderr  # no orphan, although its parent is the wrapper


def test_ancestors() -> None:
    assert ancestors(os.getpid())[0] == os.getppid()
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        below = int(shell.stdout.readline())
        try:
            assert ancestors(below)[:3] == [shell.pid, os.getpid(), os.getppid()]
        finally:
            os.kill(below, signal.SIGKILL)
    assert multiprocessing.parent_process() is None and ancestors(2**22 + 1) == []


def test_a_port_in_a_configuration_file(tmp_path: Path) -> None:
    """As sglang's ConfigArgumentMerger reads it: the command line's own words win."""
    pytest.importorskip("yaml")
    file = tmp_path / "server.yaml"
    file.write_text("host: 0.0.0.0\nport: 31000\nmem-fraction-static: 0.8\n")
    words = ["--model-path", "m", "--config", str(file)]
    assert preflight.address(words) == ("0.0.0.0", 31000)
    assert preflight.address([*words, "--port", "32000"]) == ("0.0.0.0", 32000)
    assert preflight.configured(words)["mem_fraction_static"] == 0.8
    for text in ("- a\n- list\n", "{", ""):
        file.write_text(text)
        assert preflight.address(words) == ("127.0.0.1", 30000)
    assert preflight.address(["--config", str(tmp_path / "none.yaml")]) == ("127.0.0.1", 30000)
