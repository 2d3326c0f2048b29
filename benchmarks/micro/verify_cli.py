"""`sglang-ext verify-env` as a whole process, Python's start included, against scheduler-like workers; and `--help`.

The workers hold a contract, are titled as SGLang titles them and attest as its scheduler seam does, so that exec, live and
attested are heard of each. They are Python processes with torch imported where there is torch: their memory maps are as long as
a real worker's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKER = """
import sys, time
try:
    import torch
except ImportError:
    pass
import setproctitle
from sglang_ext.delivery.context import current
from sglang_ext.delivery.witness import Witness, read_now
context, tp = current(), int(sys.argv[1])
witness = Witness(context, {"node": 0, "dp": None, "pp": 0, "tp": tp})
witness.record["hook"]["mode"] = "overlay"  # no SGLang is imported here, so nothing was patched
witness.entered(read_now(context), [])
witness.serve()
setproctitle.setproctitle(f"sglang::scheduler_TP{tp}")
print("ready", flush=True)
time.sleep(600)
"""
MAIN = """
import os, subprocess, sys
from sglang_ext.contract.decide import decide
from sglang_ext.delivery.context import new_run
from sglang_ext.run.process import myself
worker, number, path, *terms = sys.argv[1:]
context = new_run(decide(None, terms, (), {}), mode="launcher", policy="strict", path=path)
context.contract.apply_to(os.environ)
context.mark(os.environ)
number = int(number)
sizes = {"tp": number, "pp": 1, "dp": 1, "nnodes": 1, "workers": number, "here": number}
context.directory.write("server.json", {"expected": sizes, "main": myself()._asdict()})
workers = [subprocess.Popen([sys.executable, "-c", worker, str(i)], stdout=subprocess.PIPE) for i in range(number)]
for one in workers:
    one.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
for one in workers:
    one.kill()
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
    lines = ["| command | workers | median ms | bare start ms | ratio |", "|---|---|---|---|---|"]

    def measure(label: str, workers: int, command: list[str]) -> None:
        pairs = [(once(command), once([sys.executable, "-c", "pass"])) for _ in range(runs + 1)][1:]
        value, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        lines.append(f"| {label} | {workers or ''} | {value:.1f} | {bare:.1f} | {ratio:.2f} |")

    measure("sglang-ext --help", 0, [*ours, "--help"])
    measure("sglang-ext verify-env --help", 0, [*ours, "verify-env", "--help"])
    for workers in (2, 8):
        with tempfile.TemporaryDirectory() as folder:
            run = str(Path(folder, "run"))
            terms = [f"{name}={value}" for name, value in CONTRACT.items()]
            command = [sys.executable, "-c", MAIN, WORKER, str(workers), run, *terms]
            main = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert main.stdout is not None
            main.stdout.readline()
            try:
                verify = [*ours, "verify-env", "--run", run]
                subprocess.run(verify, stdout=subprocess.DEVNULL, check=True)  # PASS by three witnesses, or no figure
                measure("sglang-ext verify-env", workers, verify)
            finally:
                main.communicate()
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
