"""`sglang-ext verify-env` as a whole process, Python's start included, against scheduler-like workers; and `--help`.

The workers are titled as SGLang titles them (where setproctitle is there) and hold a contract; exec and live are read of each.
They are Python processes with torch imported where there is torch, so that their memory maps are as long as a real worker's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

WORKER = """
import sys, time
try:
    import torch
except ImportError:
    pass
import setproctitle
setproctitle.setproctitle(f"sglang::scheduler_TP{sys.argv[1]}")
print("ready", flush=True)
time.sleep(600)
"""
MAIN = """
import os, subprocess, sys
workers = [subprocess.Popen([sys.executable, "-c", sys.argv[1], str(i)], stdout=subprocess.PIPE) for i in range(int(sys.argv[2]))]
for worker in workers:
    worker.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
for worker in workers:
    worker.kill()
"""
CONTRACT = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}


def once(command: list[str]) -> float:
    """Milliseconds of one whole process."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return (time.perf_counter() - began) * 1e3


def table(runs: int = 15) -> list[str]:
    """The result as Markdown lines; each figure beside a bare Python start of the same round."""
    ours = [str(Path(sys.executable).with_name("sglang-ext"))]  # the console script, as a user calls it
    asked = [word for name, value in CONTRACT.items() for word in ("--set", f"{name}={value}")]
    lines = ["| command | workers | median ms | bare start ms | ratio |", "|---|---|---|---|---|"]

    def measure(label: str, workers: int, command: list[str]) -> None:
        pairs = [(once(command), once([sys.executable, "-c", "pass"])) for _ in range(runs + 1)][1:]
        value, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        lines.append(f"| {label} | {workers or ''} | {value:.1f} | {bare:.1f} | {ratio:.2f} |")

    measure("sglang-ext --help", 0, [*ours, "--help"])
    measure("sglang-ext verify-env --help", 0, [*ours, "verify-env", "--help"])
    for workers in (2, 8):
        main = subprocess.Popen(
            [sys.executable, "-c", MAIN, WORKER, str(workers)],
            env={**os.environ, **CONTRACT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert main.stdout is not None
        main.stdout.readline()
        try:
            measure("sglang-ext verify-env", workers, [*ours, "verify-env", "--pid", str(main.pid), *asked])
        finally:
            main.communicate()
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
