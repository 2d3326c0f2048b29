"""The witness `effective` on real libnccl: what the library logged in a worker, against what the worker holds now.

The workers are small scripts with a scheduler's title; the library is the one torch brings, and it is called for real
(ncclGetUniqueId needs no GPU). What a communicator of two ranks logs needs two GPUs: tools/gpu_check.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.nccl.library import installed
from sglang_ext.nccl.version import version_text

pytestmark = pytest.mark.e2e

WORKER = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
assert library.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
os.environ.update(item.split("=", 1) for item in sys.argv[2:])
print("ready", flush=True)
sys.stdin.read()
"""
MAIN = """
import subprocess, sys
words = sys.argv[1:sys.argv.index("-m")]
workers = [
    subprocess.Popen([f"sglang::scheduler_TP{rank}", "-c", words[0], *words[1:]], executable=sys.executable,
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for rank in range(2)
]
for worker in workers:
    assert worker.stdout.readline() == "ready\\n"
print("ready", flush=True)
sys.stdin.read()
for worker in workers:
    worker.communicate()
"""
LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_SOCKET_IFNAME": "lo", "NCCL_GDRCOPY_ENABLE": "0"}
WANTED = ("--set", "NCCL_SOCKET_IFNAME=lo", "--set", "NCCL_GDRCOPY_ENABLE=0")


@contextmanager
def family(*changes: str, **environment: str) -> Iterator[int]:
    """The pid of a server whose two workers have called NCCL, and changed their environment after that."""
    library = installed(sys.path)[0].library.path
    command = [sys.executable, "-c", MAIN, WORKER, library, *changes, "-m", "sglang.launch_server", "--tp", "2"]
    base = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**base, **environment}
    ) as main:
        try:
            assert main.stdout is not None and main.stdout.readline() == "ready\n"
            yield main.pid
        finally:
            assert main.stdin is not None
            main.stdin.close()
            main.wait(timeout=20)


def verify(pid: int, *words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "sglang-ext"), "verify-env", "--pid", str(pid), *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def effective(report: dict[str, Any], name: str) -> list[tuple[str, str | None]]:
    found = [worker["variables"][name]["witnesses"]["effective"] for worker in report["workers"]]
    return [(witness["state"], witness["value"]) for witness in found]


def test_nccl_s_own_log_speaks_for_each_rank(tmp_path: Path) -> None:
    with family(**LOGGED, NCCL_DEBUG_FILE=f"{tmp_path}/nccl.%h.%p.log") as pid:
        status, report = verify(pid, *WANTED, "--require", "effective")
    assert (status, report["verdict"]) == (0, "PASS"), report["problems"]
    assert effective(report, "NCCL_SOCKET_IFNAME") == [("value", "lo")] * 2
    assert effective(report, "NCCL_GDRCOPY_ENABLE") == [("value", "0")] * 2
    assert {worker["nccl"]["log"].rpartition(".")[0].rpartition(".")[2] for worker in report["workers"]} == {
        str(worker["pid"]) for worker in report["workers"]
    }


def test_the_mapped_library_is_named_with_its_version(tmp_path: Path) -> None:
    with family(**LOGGED, NCCL_DEBUG_FILE=f"{tmp_path}/%p.log") as pid:
        _, report = verify(pid, *WANTED)
    expected = installed(sys.path)[0].library
    assert expected.version is not None
    for worker in report["workers"]:
        (library,) = worker["nccl"]["libraries"]
        assert (library["path"], library["version"]) == (expected.path, version_text(expected.version))


def test_a_value_that_was_set_after_nccl_read_it_is_not_in_effect(tmp_path: Path) -> None:
    environment = {**LOGGED, "NCCL_SOCKET_IFNAME": "=lo", "NCCL_DEBUG_FILE": f"{tmp_path}/%p.log"}
    with family("NCCL_SOCKET_IFNAME=lo", **environment) as pid:
        status, report = verify(pid, *WANTED)
    assert (status, report["verdict"]) == (1, "FAIL")
    assert {(p["code"], p["variable"]) for p in report["problems"]} == {("not_in_effect", "NCCL_SOCKET_IFNAME")}
    assert "expected lo, found =lo in NCCL's own log; lo in the worker now" in report["problems"][0]["message"]


def test_what_nccl_does_not_mention_it_says_nothing_of(tmp_path: Path) -> None:
    """NCCL_PROTO is read for a communicator of two ranks: without one a missing line proves nothing, and PASS stays PASS."""
    with family(**LOGGED, NCCL_PROTO="LL", NCCL_DEBUG_FILE=f"{tmp_path}/%p.log") as pid:
        status, report = verify(pid, "--set", "NCCL_PROTO=LL")
        demanded, strict = verify(pid, "--set", "NCCL_PROTO=LL", "--require", "effective")
    assert (status, report["verdict"]) == (0, "PASS")
    assert effective(report, "NCCL_PROTO") == [("not_read", None)] * 2
    assert (demanded, {p["code"] for p in strict["problems"]}) == (3, {"witness_missing"})


@pytest.mark.parametrize(
    ("changes", "detail"),
    [({"NCCL_DEBUG": "WARN"}, "keeps no NCCL log"), ({"NCCL_DEBUG_FILE": "/all.log"}, "one file for every process")],
)
def test_a_log_that_cannot_speak_for_one_process_is_none(tmp_path: Path, changes: dict[str, str], detail: str) -> None:
    environment = {**LOGGED, "NCCL_DEBUG_FILE": "/%p.log", **changes}
    environment["NCCL_DEBUG_FILE"] = f"{tmp_path}{environment['NCCL_DEBUG_FILE']}"
    with family(**environment) as pid:
        status, report = verify(pid, *WANTED)
    assert status == 0
    for worker in report["workers"]:
        found = worker["variables"]["NCCL_SOCKET_IFNAME"]["witnesses"]["effective"]
        assert found["state"] == "unavailable" and detail in found["detail"]


def test_two_texts_of_one_meaning_are_the_same_value(tmp_path: Path) -> None:
    """The worker holds 4 and the contract says SYS: NCCL's level in old numbers."""
    with family(**LOGGED, NCCL_P2P_LEVEL="4", NCCL_ALGO="ring", NCCL_DEBUG_FILE=f"{tmp_path}/%p.log") as pid:
        status, report = verify(pid, "--set", "NCCL_P2P_LEVEL=SYS", "--set", "NCCL_ALGO=Ring")
        wrong, _ = verify(pid, "--set", "NCCL_P2P_LEVEL=sys")
    assert (status, report["verdict"]) == (0, "PASS")
    assert {p["variable"] for p in report["problems"] if p["code"] == "same_meaning"} == {"NCCL_P2P_LEVEL", "NCCL_ALGO"}
    assert wrong == 1


def test_two_copies_of_the_library_in_one_worker_fail(tmp_path: Path) -> None:
    library = Path(installed(sys.path)[0].library.path)
    copy = tmp_path / "libnccl.so.2"
    copy.write_bytes(library.read_bytes())
    environment = {**LOGGED, "LD_PRELOAD": str(copy), "NCCL_DEBUG_FILE": f"{tmp_path}/%p.log"}
    with family(**environment) as pid:
        status, report = verify(pid, *WANTED)
    assert status == 1
    assert {p["code"] for p in report["problems"]} >= {"nccl_two_copies"}
