"""A launch interrupted in each of its phases, and workers that lose the hook: nothing is left, nothing is claimed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.e2e.conftest import NCCL, Done, sets
from tests.rig.environment import RIG
from tests.rig.server import Server

from .matrix import Matrix, Row, fault, judged

MEDDLER = Path(__file__).parent / "meddler"
Until = Callable[[Server, Path], bool]


def spawned(server: Server) -> int:
    found = 0
    for process in server.left():
        try:
            found += "--multiprocessing-fork" in process.cmdline()
        except psutil.Error:
            continue
    return found


def attested(run: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in (run / "workers").glob("*.json")]


def importing(server: Server, run: Path) -> bool:
    """The guardian and upstream's main process are there, no worker is."""
    return len(server.left()) >= 2 and spawned(server) == 0


def workers_importing(server: Server, run: Path) -> bool:
    server.note_family()
    return spawned(server) >= 2 and not attested(run)


def loading(server: Server, run: Path) -> bool:
    """The worker has been at its first line, and does not say yet that it is built."""
    records = attested(run)
    return len(records) >= 1 and not any("ready" in record for record in records)


def serving(server: Server, run: Path) -> bool:
    return server.ready()


PHASES = {
    importing: "upstream imports",
    workers_importing: "workers import",
    loading: "the model loads",
    serving: "it serves",
}
NUMBERS = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM, signal.SIGKILL: -signal.SIGKILL}


class Ended(NamedTuple):
    """How a launch ended that was sent a signal."""

    status: int
    said: list[str]
    log: str


def interrupt(server: Server, run: Path, until: Until, number: signal.Signals) -> Ended:
    """Start it, wait for the phase, signal the launcher alone; everything it started must go."""
    with server:
        server.wait(lambda: until(server, run))
        assert server.process is not None
        server.note_family()
        server.process.send_signal(number)
        status = server.process.wait(timeout=60)
        server.wait_gone(10.0)
        lines = [text for text in server.text().splitlines() if text.startswith("sglang-ext: ended by")]
        return Ended(status, lines, server.text()[-3000:])


@pytest.fixture(scope="module")
def ended(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Until], dict[int, Ended]]:
    """What became of one launch for each signal in a phase: started together, as most of a start waits for one core."""

    @functools.cache
    def phase(until: Until) -> dict[int, Ended]:
        folder = tmp_path_factory.mktemp(until.__name__)
        with contextlib.ExitStack() as ports, ThreadPoolExecutor(len(NUMBERS)) as pool:
            waiting = []
            for number in NUMBERS:
                run = folder / f"run-{number}"
                options = [*sets(NCCL), "--run-dir", str(run)]
                tp = 2 if until is workers_importing else 1
                server = Server(folder / f"{number}.log", options=options, model=models["llama"], tp=tp)
                held = ports.enter_context(socket.socket())  # until the others have chosen theirs
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", server.port))
                waiting.append((server, run, number))
            ports.close()
            started = {n: pool.submit(interrupt, server, run, until, n) for server, run, n in waiting}
            return {number: future.result() for number, future in started.items()}

    return phase


def interrupted() -> list[object]:
    rows = []
    for until, phase in PHASES.items():
        for number, status in NUMBERS.items():
            says = () if number == signal.SIGKILL else (number.name, "nothing of this launch is left")

            def act(until: Until = until, number: signal.Signals = number) -> tuple[Until, signal.Signals]:
                return until, number

            act.__name__ = f"{number.name}_{until.__name__}"
            rows.append(fault(f"the launcher gets {number.name} while {phase}", "stopped", None, status, says, act))
    return rows


@pytest.mark.parametrize(("row", "act"), interrupted())
def test_interrupted(
    row: Row,
    act: Callable[[], tuple[Until, signal.Signals]],
    ended: Callable[[Until], dict[int, Ended]],
    matrix: Matrix,
    request: pytest.FixtureRequest,
) -> None:
    until, number = act()
    found = ended(until)[number]
    assert found.status == row.exit, found.log
    assert len(found.said) == (0 if number == signal.SIGKILL else 1), found.log
    said = found.said[0].removeprefix("sglang-ext: ") if found.said else "nothing: its guardian ended the rest"
    matrix.add(request, row, said)


def _hook_lost(models: dict[str, Path], folder: Path) -> Done:
    """SGLANG_EXT=0 comes in between the launcher and the workers: stock code runs in them, and they serve."""
    run = folder / "run"
    environment = {"RIG_HOOKLESS": "1", "PYTHONPATH": os.pathsep.join((str(MEDDLER), str(RIG)))}
    options = [*sets(NCCL), "--run-dir", str(run)]
    with Server(folder / "log", options=options, model=models["llama"], environment=environment, tp=1) as server:
        assert server.process is not None
        status = server.process.wait(timeout=240)
        server.wait_gone(10.0)
        assert "stopping the server: the verdict is FAIL" in server.text()
        return Done(status, (run / "verified.json").read_text(), server.text())


@pytest.mark.parametrize(
    ("row", "act"),
    [
        fault("workers run stock files: the hook got lost on the way", "FAIL", "hook_inactive", 1, ("TP0", "attests nothing", "expected"), _hook_lost)
    ],
)  # fmt: skip
def test_hook_lost(
    row: Row,
    act: Callable[[dict[str, Path], Path], Done],
    models: dict[str, Path],
    tmp_path: Path,
    matrix: Matrix,
    request: pytest.FixtureRequest,
) -> None:
    done = act(models, tmp_path)
    upstream_said = done._replace(err=done.err.replace("Traceback", "traceback"))  # its own, on being ended
    matrix.add(request, row, judged(row, upstream_said._replace(out=""), json.loads(done.out)), {str(tmp_path): "DIR"})
