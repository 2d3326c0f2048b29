"""The gate while its command runs: a worker that ends is named at once. What it decides is shown on real servers (tests/e2e)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from sglang_ext.bench.gate import LOST, gate, pass_through
from sglang_ext.contract.model import ContractError
from sglang_ext.run.directory import RunError
from sglang_ext.run.process import stat
from sglang_ext.verify.check import NoContractError, exit_code
from sglang_ext.verify.select import SeveralServersError


def report(*pids: int) -> dict[str, Any]:
    workers = []
    for number, pid in enumerate(pids):
        found = stat(pid)
        assert found is not None
        workers.append({"label": f"TP{number}", "pid": pid, "start_time": found.start_time, "counts": True})
    return {"verdict": "PASS", "main": None, "workers": workers}


def test_a_worker_that_ends_while_the_command_runs_is_named_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stays:
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"]) as goes:
            said: list[str] = []
            before = report(stays.pid, goes.pid)
            command = [sys.executable, "-c", "import time; time.sleep(3)"]
            status, result = gate(lambda: before, exit_code, command, said.append)
        stays.kill()
    assert said == [f"ended while the command runs, whose result will not count: TP1 (pid {goes.pid})"]
    assert result["command"]["exit"] == 0
    assert status == 0  # `check` here says PASS of the same workers: the verdicts decide, not what was said meanwhile


def test_nothing_is_said_while_all_live() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stays:
        said: list[str] = []
        before = report(stays.pid)
        assert (
            gate(lambda: before, exit_code, [sys.executable, "-c", "import time; time.sleep(1.5)"], said.append)[0] == 0
        )
        stays.kill()
    assert said == []


def test_a_command_that_does_not_run_has_every_key_and_no_value() -> None:
    refused: dict[str, Any] = {"verdict": "FAIL", "main": None, "workers": []}
    status, result = gate(lambda: refused, exit_code, ["false"])
    assert status == 1 and result["after"] is None and result["same_server"] is None
    assert result["command"] == {"ran": False, "exit": None, "seconds": None, "told_to_end": None}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoContractError("no run of ours"), "no_contract"),
        (ContractError("it was edited"), "contract_invalid"),
        (RunError("it is not believed"), "run_dir_unusable"),
        (SeveralServersError("two"), "several_servers"),
        (OSError("too many open files"), "no_server"),
    ],
)
def test_a_second_look_that_is_refused_keeps_the_commands_status(error: Exception, code: str) -> None:
    """The command has run, perhaps for hours: its status and the first verdict are told, and that the result does not count."""
    said: list[str] = []
    first = iter([report(os.getpid())])

    def look() -> dict[str, Any]:
        return next(first, None) or raising(error)

    status, result = gate(look, exit_code, [sys.executable, "-c", "raise SystemExit(7)"], said.append)
    assert status == LOST and result["exit"] == LOST
    assert result["command"]["ran"] and result["command"]["exit"] == 7 and result["command"]["told_to_end"] is False
    assert result["after"]["verdict"] == "UNKNOWN" and result["same_server"] is False
    (problem,) = result["after"]["problems"]
    assert problem["code"] == code and str(error) in problem["message"]
    assert said == [f"{code}: {problem['message']}"]


def raising(error: Exception) -> dict[str, Any]:
    raise error


def test_a_first_look_that_is_refused_runs_nothing() -> None:
    with pytest.raises(NoContractError):
        gate(lambda: raising(NoContractError("none")), exit_code, ["false"])


@pytest.mark.parametrize(("before", "ignores"), [(signal.SIG_IGN, 1), (signal.default_int_handler, 0)])
def test_a_command_ignores_sigint_where_the_gate_was_told_to(before: Any, ignores: int) -> None:
    """As the shell of a script has it for what it starts with "&"."""
    ours = signal.signal(signal.SIGINT, before)
    try:
        code = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
        assert pass_through([sys.executable, "-c", code]) == (ignores, False)
        assert signal.getsignal(signal.SIGINT) == before
    finally:
        signal.signal(signal.SIGINT, ours)
