"""Servers and their ranks are found by their titles, whatever tree of processes they stand in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ext.run.process import Stat, command_line, in_session
from sglang_ext.verify import select
from sglang_ext.verify.discover import Rank, descendants, find_servers, parse_rank, role_of
from tests.unit.stand_ins import BASH, SLEEP, holding, python, stand_in, started, titled, until


@pytest.mark.parametrize(
    ("title", "rank", "label"),
    [
        ("sglang::scheduler", Rank(tp=0), "TP0"),
        ("sglang::scheduler_TP0", Rank(tp=0), "TP0"),
        ("sglang::scheduler_TP15", Rank(tp=15), "TP15"),
        ("sglang::scheduler_PP1_TP3", Rank(pp=1, tp=3), "PP1 TP3"),
        ("sglang::scheduler_DP2", Rank(dp=2, tp=0), "DP2 TP0"),
        ("sglang::scheduler_DP0_PP1_TP1_EP1", Rank(dp=0, pp=1, tp=1), "DP0 PP1 TP1"),
        # ATTN_CP and MOE_DP are other kinds of rank: their DP must not be taken for the replica's.
        ("sglang::scheduler_DP0_PP1_ATTN_CP0_MOE_DP0_TP15_EP15", Rank(dp=0, pp=1, tp=15), "DP0 PP1 TP15"),
        ("sglang::scheduler_DP3_MOE_DP1_TP7", Rank(dp=3, tp=7), "DP3 TP7"),
        ("sglang::scheduler_MOE_DP1", Rank(tp=0), "TP0"),
    ],
)
def test_parse_rank(title: str, rank: Rank, label: str) -> None:
    assert parse_rank(title) == rank
    assert parse_rank(title).label == label


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("sglang::scheduler_DP0_TP1", "scheduler"),
        ("sglang::detokenizer", "detokenizer"),
        ("sglang::detokenizer_router", "detokenizer"),
        ("sglang::data_parallel_controller", "dp_controller"),
        ("sglang::tokenizer_worker:4711", "tokenizer"),
        ("sgl_diffusion::scheduler_TP0", "other"),
        ("/usr/bin/python3", "other"),
        ("grep sglang::scheduler", "other"),
        ("", "other"),
    ],
)
def test_role_of(title: str, role: str) -> None:
    assert role_of(title) == role


# --- servers ----------------------------------------------------------------------------------------------


def test_a_server_is_found_with_its_main_and_every_process() -> None:
    titles = ("sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer")
    with stand_in("sglang.launch_server", "--tp", "2", *titles) as own:
        (server,) = own.found()
        assert server.main is not None and server.main.pid == own.pid
        assert server.arguments[-6:] == ("sglang.launch_server", "--tp", "2", *titles)
        roles = [(p.stat.pid, p.role, p.title, p.rank) for p in server.processes]
        assert roles == [
            (own.workers[0], "scheduler", "sglang::scheduler_TP0", Rank(tp=0)),
            (own.workers[1], "scheduler", "sglang::scheduler_TP1", Rank(tp=1)),
            (own.workers[2], "detokenizer", "sglang::detokenizer", Rank()),
        ]
        assert server.pids == {own.pid, *own.workers}


def test_workers_below_a_titled_controller_belong_to_its_parent() -> None:
    controller = 'exec -a "sglang::scheduler_DP1_TP0" sleep 60 & echo $!; wait'
    code = f"""
import os, subprocess, sys
child = subprocess.Popen(["sglang::data_parallel_controller", "-c", {controller!r}], executable={BASH!r},
                         stdout=subprocess.PIPE)
print(os.getpid(), child.pid, int(child.stdout.readline()), flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    main, middle, worker = (int(word) for word in process.stdout.readline().split())
    try:
        assert until(lambda: role_of("".join(command_line(worker)[:1])) == "scheduler")
        (server,) = (s for s in find_servers() if worker in s.pids)
        assert server.main is not None and server.main.pid == main
        assert [(p.stat.pid, p.role) for p in server.processes] == [(middle, "dp_controller"), (worker, "scheduler")]
        assert server.processes[1].rank == Rank(dp=1, tp=0)
    finally:
        for pid in (worker, middle, main):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_two_servers_are_two() -> None:
    with stand_in("sglang::scheduler_TP0") as one, stand_in("sglang::scheduler_TP0") as two:
        ours = {one.pid, two.pid}
        mains = [s.main.pid for s in find_servers() if s.main and s.main.pid in ours]
        assert sorted(mains) == sorted(ours)
        with pytest.raises(select.SeveralServersError) as error:
            select.only()
        assert f"pid {one.pid} (1 processes)" in str(error.value) and f"pid {two.pid} " in str(error.value)


def test_orphans_stay_together_by_session() -> None:
    with (
        stand_in("sglang::scheduler_TP0", "sglang::scheduler_TP1") as one,
        stand_in("sglang::scheduler_TP0") as two,
    ):
        for server in (one, two):
            server.process.kill()
            server.process.wait()
        (first,) = one.found()
        (second,) = two.found()
        assert first.main is None and second.main is None
        assert first.pids == set(one.workers) and second.pids == set(two.workers)
        assert f"orphans {one.workers}" in select.names([first])
        found, is_server = select.by_pid(one.workers[1])
        assert is_server and found.pids == set(one.workers)
        # Their main is gone: their own session still tells them apart from strangers.
        assert {s.pid for s in in_session(one.pid)} == set(one.workers)


def test_a_process_without_a_title_is_no_server() -> None:
    with stand_in() as own:
        assert own.found() == []


# --- trees that are not plain ------------------------------------------------------------------------------


# Each prints the pids it makes; everything it starts dies with its session.
NESTED = f"""
import os, subprocess, sys
helper = '''
import os, subprocess, sys
inner = [subprocess.Popen([f"sglang::scheduler_TP{{n}}", "60"], executable={SLEEP!r}) for n in range(2)]
print(os.getpid(), *(p.pid for p in inner), flush=True)
sys.stdin.read()
'''
own = subprocess.Popen(["sglang::scheduler_TP0", "60"], executable={SLEEP!r})
command = [sys.executable, "-I", "-S", "-c", helper]
helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(os.getpid(), own.pid, helper.stdout.readline().strip(), flush=True)
sys.stdin.read()
"""
FORKING = f"""
import multiprocessing, os, sys
def worker(title):
    os.execv({SLEEP!r}, [title, "60"])
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    started = [context.Process(target=worker, args=(f"sglang::scheduler_TP{{n}}",)) for n in range(2)]
    for process in started:
        process.start()
    print(os.getpid(), *(process.pid for process in started), flush=True)
    sys.stdin.read()
    for process in started:
        process.kill()
"""
# numactl and the like exec, and are seen no more; a script that does not stands between.
WRAPPED = f"""
import os, subprocess, sys
script = 'exec -a "sglang::scheduler_TP0" {SLEEP} 60 & echo $!; wait'
wrapper = subprocess.Popen([{BASH!r}, "-c", script, "sglang_temp_file.sh"], stdout=subprocess.PIPE)
print(os.getpid(), wrapper.pid, int(wrapper.stdout.readline()), flush=True)
sys.stdin.read()
"""


def test_a_server_below_another_one_is_its_own() -> None:
    with started(*python(NESTED)) as (main, worker, helper, *inner):
        assert titled(worker, *inner)
        outer, nested = holding(worker), holding(inner[0])
        assert outer.main is not None and (outer.main.pid, outer.pids) == (main, {main, worker})
        assert nested.main is not None and (nested.main.pid, nested.pids) == (helper, {helper, *inner})
        for pid, server in ((main, outer), (worker, outer), (helper, nested), (inner[1], nested)):
            found, is_server = select.by_pid(pid)
            assert is_server and found.pids == server.pids


def test_a_worker_of_a_fork_server_is_told(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(FORKING)
    with started(sys.executable, str(script)) as (main, *workers):
        assert titled(*workers)
        server = holding(main)
        assert server.main is not None and server.main.pid == main
        schedulers = [(p.stat.pid, p.forked) for p in server.processes if p.role == "scheduler"]
        assert schedulers == [(worker, True) for worker in workers]
        assert not any(p.forked for p in server.processes if p.role != "scheduler")


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_a_wrapper_that_stays_is_no_server() -> None:
    with started(*python(WRAPPED)) as (main, wrapper, worker):
        assert titled(worker)
        server = holding(worker)
        assert server.main is not None and (server.main.pid, server.pids) == (main, {main, wrapper, worker})


def test_descendants_without_some() -> None:
    below: dict[int, list[Stat]] = {}
    for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1)):
        below.setdefault(parent, []).append(Stat(pid, "S", parent, 1, pid))
    assert [s.pid for s in descendants(1, below)] == [2, 3, 4, 5]
    assert [s.pid for s in descendants(1, below, without=frozenset({3}))] == [2, 5]
