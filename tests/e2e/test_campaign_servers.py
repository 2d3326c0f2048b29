"""Servers and their keeper, on real processes: started, waited for, ended with everything they started, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.bench.campaigns import servers
from sglang_ext.bench.campaigns.keeper import Order
from sglang_ext.bench.campaigns.servers import LaunchError
from sglang_ext.delivery.ending import send
from sglang_ext.run.process import Identity, is_alive, stat

ROOT = Path(__file__).resolve().parents[2]
# A process that serves on a port; told "family", with a child that left its session and an orphan, as stock SGLang may leave.
SERVER = """
import http.server, os, signal, subprocess, sys
port, notes, *words = sys.argv[1:]
if "deaf" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
people = [os.getpid()]
if "family" in words:
    people.append(subprocess.Popen(["sleep", "300"], start_new_session=True).pid)
    orphan = subprocess.Popen(["sh", "-c", "setsid sleep 301 & echo $!"], stdout=subprocess.PIPE, text=True)
    people.append(int(orphan.stdout.readline()))
print(*people, file=open(notes, "w"), flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = {"/ready": 404 if "old" in words else 200, "/health": 200}
        self.send_response(known.get(self.path, 404) if "unready" not in words else 503)
        self.end_headers()
    def log_message(self, *_):
        print("asked", self.path, flush=True)
print("sglang-ext: sglang 0.0, overlay", flush=True)
if "refuse" in words:
    print("sglang-ext: contract_invalid: NCCL_PROTO: expected a value, found none; give it", flush=True)
    sys.exit(2)
http.server.HTTPServer(("127.0.0.1", int(port)), Answer).serve_forever()
"""


class Stand:
    """A server in the making: its command, its log, and who it consists of once it has said so."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.port = servers.free_port()
        self.notes, self.log = folder / "pids", str(folder / "server.log")
        self.argv = [sys.executable, "-c", SERVER, str(self.port), str(self.notes), *words]

    def begin(self) -> servers.Server:
        return servers.start(self.argv, dict(os.environ), self.log)

    def people(self) -> list[Identity]:
        """First process; and child, orphan where it has them."""
        assert until(lambda: self.notes.exists() and self.notes.read_text().endswith("\n"))
        found = [stat(int(word)) for word in self.notes.read_text().split()]
        return [one.identity for one in found if one is not None]


def until(true: Callable[[], Any], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(true())


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Callable[..., Stand]]:
    """Makes stands, and ends what a failed test leaves."""
    made: list[Stand] = []

    def make(*words: str) -> Stand:
        made.append(Stand(tmp_path, *words))
        return made[-1]

    yield make
    for one in made:
        if one.notes.exists():
            for word in one.notes.read_text().split():
                if (found := stat(int(word))) is not None and found.alive:
                    send(found.identity, signal.SIGKILL)


def quiet(_: str) -> None:
    pass


def test_it_serves_and_nothing_is_left(stand: Callable[..., Stand]) -> None:
    one = stand("family")
    with one.begin() as server:
        began = time.time()
        assert server.wait_until_it_serves(one.port, 30, quiet) >= began
        people = one.people()
        assert len(people) == 3 and all(map(is_alive, people))
        assert {identity.pid for identity in people} <= server.pids
        assert (orphan := stat(people[2].pid)) and orphan.ppid == server.keeper.pid  # the orphan has not got away
        assert os.getsid(server.main.pid) == server.main.pid != os.getsid(0)
    assert not any(map(is_alive, people)) and server.left == servers.Left(2, ())
    assert "asked /ready" in Path(one.log).read_text() and os.stat(one.log).st_mode & 0o077 == 0


def test_a_release_without_ready_is_asked_for_its_health(stand: Callable[..., Stand]) -> None:
    one = stand("old")
    with one.begin() as server:
        server.wait_until_it_serves(one.port, 30, quiet)
    assert "asked /health" in Path(one.log).read_text()


def test_one_that_ends_gives_its_own_reason(stand: Callable[..., Stand]) -> None:
    one = stand("refuse")
    with one.begin() as server, pytest.raises(LaunchError) as caught:
        server.wait_until_it_serves(one.port, 30, quiet)
    assert str(caught.value.fault) == "contract_invalid: NCCL_PROTO: expected a value, found none; give it"


def test_one_that_is_killed_says_by_what(stand: Callable[..., Stand]) -> None:
    one = stand()
    with one.begin() as server:
        server.wait_until_it_serves(one.port, 30, quiet)
        people = one.people()
        send(server.main, signal.SIGKILL)
        with pytest.raises(LaunchError) as caught:
            server.check(10)
    assert str(caught.value.fault) == "server_ended: the server ended with signal 9"
    assert not any(map(is_alive, people))


def test_one_that_is_not_ready_in_time(stand: Callable[..., Stand]) -> None:
    one = stand("unready")
    with one.begin() as server, pytest.raises(LaunchError) as caught:
        server.wait_until_it_serves(one.port, 1.0, quiet)
    assert caught.value.fault.code == "server_not_ready"
    assert not any(map(is_alive, one.people()))


def test_somebody_else_on_its_port_is_not_taken_for_it(stand: Callable[..., Stand], tmp_path: Path) -> None:
    one = stand()
    one.argv = ["sleep", "300"]
    stranger = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(one.port)]
    with subprocess.Popen(stranger, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        try:
            assert until(lambda: servers.listening(one.port))
            with one.begin() as server, pytest.raises(LaunchError) as caught:
                server.wait_until_it_serves(one.port, 30, quiet)
            assert caught.value.fault.code == "port_taken"
        finally:
            other.kill()


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"/no/such/program cannot be started \(No such file or directory\)"):
        servers.start(["/no/such/program"], {}, str(tmp_path / "log"))
    (tmp_path / "there").write_text("a log of before")
    with pytest.raises(LaunchError, match="File exists"):
        servers.start(["sleep", "1"], {}, str(tmp_path / "there"))
    assert (tmp_path / "there").read_text() == "a log of before"


def test_one_that_does_not_listen_is_killed_when_nobody_waits(stand: Callable[..., Stand]) -> None:
    one = stand("deaf", "family")
    server = one.begin()
    server.wait_until_it_serves(one.port, 30, quiet)
    people = one.people()
    server._say(b"kill\n")  # what a second Ctrl-C comes to
    assert server.stop().there == () and not any(map(is_alive, people))


def test_an_interrupt_while_it_is_ended_is_raised_once_nothing_is_left(stand: Callable[..., Stand]) -> None:
    one = stand("deaf", "family")
    began = time.monotonic()
    server = one.begin()
    server.wait_until_it_serves(one.port, 30, quiet)
    people, main = one.people(), threading.main_thread().ident
    assert main is not None
    threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert server.left is not None and server.left.there == () and server.keeper.poll() is not None
    assert not any(map(is_alive, people)) and time.monotonic() - began < 40  # and no grace was waited for
    assert server.stop() == server.left


HARNESS = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from sglang_ext.bench.campaigns import servers
told = json.loads(sys.argv[2])
server = servers.start(told["argv"], dict(os.environ), told["log"])
print(server.keeper.pid, flush=True)
time.sleep(300)
"""


def test_the_harness_is_killed_and_nothing_is_left(stand: Callable[..., Stand]) -> None:
    one = stand("family")
    command = [sys.executable, "-c", HARNESS, str(ROOT), json.dumps({"argv": one.argv, "log": one.log})]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            keeper = stat(int(process.stdout.readline()))
            people = one.people()
            assert keeper is not None and all(map(is_alive, people))
        finally:
            process.kill()
    assert until(lambda: not any(map(is_alive, [*people, keeper.identity])))


def test_the_keeper_is_killed_and_the_first_process_is_told(stand: Callable[..., Stand]) -> None:
    one = stand()
    server = one.begin()
    server.wait_until_it_serves(one.port, 30, quiet)
    first, *_ = one.people()
    os.kill(server.keeper.pid, signal.SIGKILL)
    with pytest.raises(LaunchError) as caught:
        server.check(10)
    assert caught.value.fault.code == "keeper_lost"
    server.stop()
    assert not is_alive(first)


def test_the_terminals_signals_do_not_end_a_keeper(stand: Callable[..., Stand]) -> None:
    one = stand()
    with one.begin() as server:
        server.wait_until_it_serves(one.port, 30, quiet)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(server.keeper.pid, number)
        server.check(0.3)
        assert all(map(is_alive, one.people()))
        with open(f"/proc/{server.main.pid}/status", encoding="ascii") as file:
            ignored = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
        assert not ignored >> (signal.SIGTERM - 1) & 1  # it would never hear that it should end


def test_a_keeper_whose_harness_is_gone_at_once_starts_nothing(tmp_path: Path) -> None:
    order = json.dumps(Order(["touch", str(tmp_path / "started")], {}, str(tmp_path / "log"))._asdict())
    done = subprocess.run(
        [sys.executable, "-m", "sglang_ext.bench.campaigns.keeper"],
        cwd=ROOT,
        input=order[:-5].encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"") and os.listdir(tmp_path) == []


def test_a_free_port_is_free() -> None:
    import socket

    port = servers.free_port()
    with socket.create_server((servers.HOST, port)):
        assert servers.free_port() != port
        with pytest.raises(LaunchError, match="found every one taken"):
            servers.free_port(range(port, port + 1))
