"""A host with many processes: each is read once, and what cannot matter is not read at all. Times: `benchmarks/micro`."""

from __future__ import annotations

import collections
import subprocess
from collections.abc import Iterator

import pytest

from sglang_ext.run import process
from sglang_ext.verify import discover, select
from sglang_ext.verify.discover import Host

CROWD = 60


@pytest.fixture
def crowd() -> Iterator[list[int]]:
    """Processes that are nobody's server."""
    started = [subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) for _ in range(CROWD)]
    yield [one.pid for one in started]
    for one in started:
        one.kill()
    for one in started:
        one.wait()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How often each file of /proc was read."""
    counted: collections.Counter[str] = collections.Counter()
    read_whole = process.read_whole

    def counting(path: str) -> bytes:
        counted[path] += 1
        return read_whole(path)

    monkeypatch.setattr(process, "read_whole", counting)
    return counted


def test_a_look_at_the_host_reads_two_small_files_of_each(crowd: list[int], reads: collections.Counter[str]) -> None:
    Host().servers()
    for pid in crowd:
        assert (reads[f"/proc/{pid}/stat"], reads[f"/proc/{pid}/cmdline"]) == (1, 1)
        assert reads[f"/proc/{pid}/status"] == 0


def test_by_pid_looks_once(crowd: list[int], reads: collections.Counter[str]) -> None:
    select.by_pid(crowd[0])
    assert {reads[f"/proc/{pid}/{name}"] for pid in crowd for name in ("stat", "cmdline")} == {1}


def test_threads_of_the_kernel_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = process.Stat(2, "S", 0, 0, 1, process.KERNEL_THREAD)
    zombie = process.Stat(3, "Z", 1, 1, 1)
    monkeypatch.setattr(discover, "all_stats", lambda: {2: thread, 3: zombie})
    monkeypatch.setattr(discover, "command_line", lambda pid: pytest.fail(f"read {pid}"))
    assert Host().servers() == []


def test_kernel_threads_are_told_by_their_flags() -> None:
    fields = "2 (kthreadd) S 0 0 0 0 -1 2129984 " + " ".join("0" for _ in range(43))
    assert process.parse_stat(fields).of_the_kernel
    me = process.stat(__import__("os").getpid())
    assert me is not None and not me.of_the_kernel


def test_read_whole_of_something_long() -> None:
    long = subprocess.Popen(["sleep", *(["60"] + ["0"] * 30000)], stdin=subprocess.DEVNULL)
    try:
        while process.command_line(long.pid)[:1] != ["sleep"]:
            pass
        assert len(process.command_line(long.pid)) == 30002
    finally:
        long.kill()
        long.wait()
