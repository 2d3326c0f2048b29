"""The gate while its command runs: a worker that ends is named at once. What it decides is shown on real servers (tests/e2e)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from sglang_ext.bench.gate import gate
from sglang_ext.run.process import stat
from sglang_ext.verify.check import exit_code


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
