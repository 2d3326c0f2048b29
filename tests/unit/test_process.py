"""One process by its number: what /proc says of it, and that it is itself only together with its start time."""

from __future__ import annotations

import os
import subprocess

import pytest

from sglang_ext.run.process import Identity, all_stats, command_line, inner_pid, is_alive, parse_stat, root_of, stat
from tests.unit.stand_ins import SLEEP, until


@pytest.mark.parametrize("name", ["python3", "a) R 1 1", "(((", "x y z", ")"])
def test_parse_stat_whatever_the_command_is_called(name: str) -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    found = parse_stat(f"4711 ({name}) S {fields}\n")
    assert (found.pid, found.state, found.ppid, found.session, found.start_time) == (4711, "S", 4, 6, 22)
    assert found.alive
    assert not parse_stat(f"4711 ({name}) Z {fields}").alive


def test_a_process_is_itself_only_with_its_start_time() -> None:
    me = stat(os.getpid())
    assert me is not None
    assert (me.pid, me.ppid, me.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert is_alive(me.identity)
    assert not is_alive(Identity(me.pid, me.start_time + 1))


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    assert until(lambda: stat(process.pid).state == "Z")  # type: ignore[union-attr]
    entry = all_stats()[process.pid]
    assert not entry.alive and not is_alive(entry.identity)
    process.wait()
    assert stat(process.pid) is None


def test_command_line_of_a_title_and_of_nobody() -> None:
    process = subprocess.Popen(["sglang::scheduler_TP0", "60"], executable=SLEEP)
    try:
        assert until(lambda: command_line(process.pid) == ["sglang::scheduler_TP0", "60"])
    finally:
        process.kill()
        process.wait()
    assert command_line(process.pid) == []


def test_outside_of_containers_nothing_changes() -> None:
    assert inner_pid(os.getpid()) == os.getpid() and root_of(os.getpid()) == ""
    assert inner_pid(2**22 + 1) == 2**22 + 1 and root_of(2**22 + 1) == "", "nobody"
