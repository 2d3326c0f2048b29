"""However a launch ends, everything it started ends with it, and nothing else is touched."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.rig.server import Server

from .conftest import NCCL, cli, sets


@pytest.fixture
def bystander() -> Iterator[psutil.Popen]:
    """A process like ours in all but the run: it must survive."""
    process = psutil.Popen(["bash", "-c", "exec -a sglang::scheduler_TP9 sleep 600"])
    yield process
    alive = process.poll() is None
    process.kill()
    process.wait()
    assert alive, "a process that was not ours was ended"


def test_supervisor_killed_while_serving(
    models: dict[str, Path], logs: Callable[[str], Path], bystander: psutil.Popen
) -> None:
    with Server(logs("serving"), options=sets(NCCL), model=models["llama"]) as server:
        server.wait_ready()
        server.note_family()
        assert len(server.family) >= 5  # guardian, upstream, two schedulers, detokenizer
        server.process.kill()
        server.process.wait()
        assert server.wait_gone(10.0) < 10.0


def test_supervisor_killed_while_workers_import(
    models: dict[str, Path], logs: Callable[[str], Path], bystander: psutil.Popen
) -> None:
    with Server(logs("importing"), options=sets(NCCL), model=models["llama"]) as server:

        def spawned() -> bool:
            server.note_family()
            return sum("--multiprocessing-fork" in " ".join(cmdline(p)) for p in server.left()) >= 2

        server.wait(spawned)
        server.process.kill()
        server.process.wait()
        assert server.wait_gone(10.0) < 10.0


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_interrupted_while_upstream_imports(
    models: dict[str, Path], logs: Callable[[str], Path], number: int, status: int
) -> None:
    with Server(logs(f"interrupted-{number}"), options=sets(NCCL), model=models["llama"]) as server:
        server.wait(lambda: len(server.left()) >= 2)  # guardian and upstream
        assert server.stop(number) == status


def test_a_taken_port_is_refused_at_once(models: dict[str, Path], logs: Callable[[str], Path]) -> None:
    server = Server(logs("taken"), options=sets(NCCL), model=models["llama"])
    with subprocess.Popen(["python3", "-m", "http.server", "--bind", "127.0.0.1", str(server.port)]) as other:
        try:
            import socket
            import time

            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", server.port)) == 0:
                        break
                time.sleep(0.05)
            server.begin()
            assert server.process.wait(timeout=30) == 1
            assert f"port_taken: port {server.port} on 127.0.0.1 is taken already by pid {other.pid};" in server.text()
        finally:
            other.kill()


def test_no_server_is_unknown() -> None:
    done = cli("verify-env", *sets(NCCL), "--port", "1", "--json")
    assert (done.status, done.report["verdict"]) == (3, "UNKNOWN")
    assert [p["code"] for p in done.report["problems"]] == ["no_server"]
