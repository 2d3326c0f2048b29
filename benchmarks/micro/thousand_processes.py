"""`sglang-ext verify-env` on a host with a thousand processes beside the server, against one with fifty; time and memory.

The crowd are `sleep`s; the server is that of `verify_cli`, eight workers as SGLang titles them. Both arms run the same server and
take turns; only the crowd differs. Memory is the peak of the whole command, as the kernel counts it (getrusage, ru_maxrss).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.micro.verify_cli import CONTRACT, MAIN, WORKER

CROWDS = (50, 1000)
WORKERS = 8
CROWD = """
import os, sys
devnull = os.open("/dev/null", os.O_RDWR)
actions = [(os.POSIX_SPAWN_DUP2, devnull, n) for n in (0, 1, 2)]
words, path = ["sleep", "3600"], {"PATH": os.environ["PATH"]}
pids = [os.posix_spawnp("sleep", words, path, file_actions=actions) for _ in range(int(sys.argv[1]))]
print("ready", flush=True)
sys.stdin.read()
for pid in pids:
    os.kill(pid, 9)
for pid in pids:
    os.waitpid(pid, 0)
"""


class Started:
    """A Python that has done its code and said so; it ends, with what it started, when it is told to."""

    def __init__(self, code: str, *words: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-c", code, *words]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def once(command: list[str]) -> tuple[float, float, float]:
    """Milliseconds, those of the processor, and MiB of one whole process.

    A child inherits its parent's peak until it execs; this one is smaller than what it measures.
    """
    began = time.perf_counter()
    pid = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(pid, 0)
    elapsed = (time.perf_counter() - began) * 1e3
    assert os.waitstatus_to_exitcode(status) in (0, 1, 3), "verify-env itself failed"
    return elapsed, (usage.ru_utime + usage.ru_stime) * 1e3, usage.ru_maxrss / 1024


def processes() -> int:
    return sum(name.isdigit() for name in os.listdir("/proc"))


def table(runs: int = 11) -> list[str]:
    """The result as Markdown lines; a row for each way to name the server."""
    ours = [str(Path(sys.executable).with_name("sglang-ext")), "verify-env"]
    asked = [word for name, value in CONTRACT.items() for word in ("--set", f"{name}={value}")]
    figures: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    seen: dict[int, int] = {}
    with Started(MAIN, WORKER, str(WORKERS), env={**os.environ, **CONTRACT}) as server:
        ways = {"--pid": [*ours, "--pid", str(server.process.pid), *asked], "--port": [*ours, "--port", "1", *asked]}
        for way, command in ways.items():
            for round_ in range(runs + 1):
                for crowd in CROWDS if round_ % 2 else reversed(CROWDS):
                    with Started(CROWD, str(crowd)):
                        seen[crowd] = processes()
                        figure = once(command)
                    if round_:  # the first warms the page cache
                        figures.setdefault((way, crowd), []).append(figure)
    lines = [
        "| verify-env | processes | median ms | worst ms | processor ms | peak MiB | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in ways:
        few, many = figures[way, CROWDS[0]], figures[way, CROWDS[1]]
        ratio = statistics.median(b[0] / a[0] for a, b in zip(few, many, strict=True))
        for crowd, taken in ((CROWDS[0], few), (CROWDS[1], many)):
            elapsed, processor, memory = zip(*taken, strict=True)
            lines.append(
                f"| {way} | {seen[crowd]} | {statistics.median(elapsed):.1f} | {max(elapsed):.1f} | "
                f"{statistics.median(processor):.1f} | {max(memory):.1f} | {'1.00' if crowd == CROWDS[0] else f'{ratio:.2f}'} |"
            )
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
