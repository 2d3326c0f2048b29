"""What `read_live` costs: first reading, later readings, and the import, on this machine, now.

    python benchmarks/micro/live_reader.py [--children N] [--rounds N] [--python PATH] [--code CODE]

Starts N children of each size of environment, lets each change its environment through `os.environ`, and
prints one row per size: cold (no file seen before, the first child), warm (median and worst over the other
readings), both in milliseconds per process. Interpret the numbers against a quiet machine only: the state of
the machine is not recorded here. `--code` is run in each child first, e.g. ``"import torch"``: what a reading
costs depends on how many mappings the target has.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sglang_ext.verify import live

CHILD = """
import os, sys
{code}
for index in range({count}): os.environ[f"BENCH_{{index:05}}"] = "v" * {length}
print(len(os.environ), sum(1 for _ in open("/proc/self/maps")), flush=True)
sys.stdin.read()
"""
SIZES = ((0, 0), (100, 60), (1000, 60), (64, 32768))  # (variables added, characters of each)


def milliseconds(pid: int) -> float:
    """The time of one reading, which must succeed."""
    begin = time.perf_counter()
    reading = live.read_live(pid)
    elapsed = time.perf_counter() - begin
    if reading.state != "ok":
        raise SystemExit(f"process {pid}: {reading.state}: {reading.detail}")
    return elapsed * 1e3


def measure(python: str, code: str, children: int, rounds: int, count: int, length: int) -> str:
    """One row of the table."""
    with contextlib.ExitStack() as stack:
        argv = [python, "-c", CHILD.format(code=code, count=count, length=length)]
        processes: list[subprocess.Popen[str]] = []
        lines: list[str] = []
        for _ in range(children):
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        variables, mappings = lines[0].split()
        size = sum(len(k) + len(v) + 2 for k, v in live.read_live(processes[0].pid).values.items())
        cold: list[float] = []
        for _ in range(rounds):
            live.clear_cache()
            cold.append(milliseconds(processes[0].pid))
        warm = [milliseconds(process.pid) for _ in range(rounds) for process in processes]
    return (
        f"| {variables} | {size / 1024:.1f} | {mappings} | {statistics.median(cold):.2f} |"
        f" {statistics.median(warm):.2f} | {max(warm):.2f} |"
    )


def import_milliseconds(repeats: int = 15) -> float:
    """Median time of the import in an isolated interpreter (-I), bytecode cached, by its own clock."""
    root = str(Path(__file__).resolve().parents[2])
    code = (
        f"import sys, time; sys.path.insert(0, {root!r}); import sglang_ext\n"
        "begin = time.perf_counter(); import sglang_ext.verify.live; print(time.perf_counter() - begin)"
    )
    argv = [sys.executable, "-I", "-c", code]
    times = [float(subprocess.run(argv, capture_output=True, check=True).stdout) for _ in range(repeats)]
    return statistics.median(times) * 1e3


def table(children: int = 8, rounds: int = 20, python: str = sys.executable, code: str = "") -> list[str]:
    """The result as Markdown lines; ``code`` is a statement each child runs first (default: import torch, as a worker)."""
    code = code or "try: import torch\nexcept ImportError: pass"
    return [
        f"Importing the reader: {import_milliseconds():.2f} ms. Milliseconds per process, {children} children, {rounds} rounds:",
        "",
        "| variables | KiB | mappings | cold | warm | worst |",
        "|---|---|---|---|---|---|",
        *(measure(python, code, children, rounds, count, length) for count, length in SIZES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--children", type=int, default=8, help="processes per row (default 8)")
    parser.add_argument("--rounds", type=int, default=20, help="readings of each process (default 20)")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the children")
    parser.add_argument("--code", default="pass", help="a statement each child runs first")
    options = parser.parse_args()
    print("\n".join(table(options.children, options.rounds, options.python, options.code)))


if __name__ == "__main__":
    main()
