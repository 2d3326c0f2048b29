"""Real processes for `verify` to judge: plain children, and titled ones as a stock server has them.

Nothing of the process tree is faked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract
from sglang_ext.run.process import all_stats
from sglang_ext.verify.check import Request, verify
from sglang_ext.verify.discover import children, descendants
from sglang_ext.verify.live import read_live
from sglang_ext.verify.select import by_pid

ROOT = Path(__file__).resolve().parents[2]
SLEEP = shutil.which("sleep")

HEAD = "import ctypes, os, sys; sys.path.insert(0, sys.argv[1]); libc = ctypes.CDLL(None)\n"
WAIT = "\nprint('ready', flush=True); sys.stdin.read()\n"

STOCK = f"""
import subprocess
for title, *changes in (word.split(",") for word in sys.argv[2:] if word.startswith("sglang::")):
    env = os.environ | dict(change.split("=") for change in changes)
    quiet = {{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}}
    started = subprocess.Popen([title, "60"], executable={SLEEP!r}, env=env, **quiet)
    while not open(f"/proc/{{started.pid}}/cmdline").read().startswith("sglang::"):
        pass
"""

TP2 = ("sglang.launch_server", "--tp", "2")


@contextlib.contextmanager
def child(code: str, *words: object, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A Python process that said "ready"; its group ends with the block."""
    command = [sys.executable, "-I", "-S", "-c", HEAD + code, str(ROOT), *map(str, words)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until_started(process.pid)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()


def wait_until_started(pid: int) -> None:
    """What has just been started below ``pid`` has no environment yet: its C library sets it up first."""
    deadline = time.monotonic() + 10
    below = descendants(pid, children(all_stats()))
    while any(read_live(entry.pid).state == "unavailable" for entry in below) and time.monotonic() < deadline:
        time.sleep(0.01)


def contract(*sets: str, absent: tuple[str, ...] = ()) -> Contract:
    return decide(None, sets, absent, {})


WANTED = contract("NCCL_PROTO=LL", "NCCL_ALGO=Ring", absent=("NCCL_P2P_DISABLE",))
GOOD = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}

SECRETS = {
    "HF_TOKEN": "hf_planted1",
    "SGLANG_API_KEY": "sk-planted2",
    "AWS_SECRET_ACCESS_KEY": "planted3",
    "AWS_ACCESS_KEY_ID": "planted4",
    "DATABASE_PASSWORD": "planted5",
    "NCCL_SECRET_THING": "planted6",
    "CUDA_LICENSE_KEY": "planted7",
    "TORCH_HUB_TOKEN": "planted8",
    "HOME": "/home/planted9",
    "PROXY": "http://user:planted10@proxy",
    "SGLANG_EXT_RUN_ID": "planted11",
}


def verify_pid(pid: int, wanted: Contract, require: str | None = None) -> dict[str, Any]:
    """As `verify-env --pid` does."""
    server, is_server = by_pid(pid)
    return verify(server, Request(wanted, require=require, is_server=is_server))


def codes(found: dict[str, Any]) -> list[str]:
    return sorted(problem["code"] for problem in found["problems"])


def verify_stock(*words: str, start: dict[str, str] | None = None, wanted: Contract = WANTED) -> dict[str, Any]:
    with child(STOCK + WAIT, *words, env=GOOD if start is None else start) as process:
        return verify_pid(process.pid, wanted)
