"""A job that is no server: ranks told by what torchrun gives them, and two jobs are two."""

from __future__ import annotations

import pytest

from sglang_ext.run.process import all_stats
from sglang_ext.verify import select
from sglang_ext.verify.discover import children, descendants
from sglang_ext.verify.expected import Expected, labels, of
from sglang_ext.verify.job import seat_of
from tests.unit.stand_ins import SEATS, SLEEP, python, started, until

# As torchrun does: an agent, ranks told by their environment, and what a rank starts inherits it.
TORCHRUN = f"""
import os, subprocess, sys
code = "import subprocess; subprocess.run([{SLEEP!r}, '60'])"
ranks = [
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        env=dict(os.environ) | {SEATS!r} | {{"MASTER_PORT": sys.argv[1], "RANK": str(n), "LOCAL_RANK": str(n)}},
        stdin=subprocess.DEVNULL,
    )
    for n in range(2)
]
print(os.getpid(), *(p.pid for p in ranks), flush=True)
sys.stdin.read()
"""
TWO_JOBS = f"""
import os, subprocess, sys
command = [sys.executable, "-I", "-S", "-c", {TORCHRUN!r}]
jobs = [subprocess.Popen([*command, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for port in ("1", "2")]
print(*(job.stdout.readline().strip() for job in jobs), os.getpid(), flush=True)
sys.stdin.read()
"""


def below(pid: int) -> list[int]:
    return [s.pid for s in descendants(pid, children(all_stats()))]


def test_seat_of() -> None:
    seat = seat_of({**SEATS, "RANK": "3", "LOCAL_RANK": "1"})
    assert seat is not None and seat.rank == 3 and seat.job == ("", "127.0.0.1", "29500", "2")
    assert seat_of({**SEATS, "RANK": "3"}) is None, "a pod of an operator: torchrun itself, not a rank of it"
    assert seat_of({**SEATS, "RANK": "x", "LOCAL_RANK": "1"}) is None
    assert seat_of({}) is None


def test_by_pid_of_a_torchrun_job() -> None:
    with started(*python(TORCHRUN, "29500")) as (agent, *ranks):
        assert until(lambda: all(len(below(rank)) == 1 for rank in ranks))
        for pid in (agent, *ranks, *below(ranks[1])):
            server, is_server = select.by_pid(pid)
            assert is_server and server.main is not None and server.main.pid == agent
            named = [(p.stat.pid, p.name) for p in server.processes if p.role == "rank"]
            assert named == [(ranks[0], "rank 0"), (ranks[1], "rank 1")]
            assert len(server.processes) == 5, "what the ranks started is there, and is no rank"
            assert of(server, None) == Expected(0, 0, 0, 1, 2, 2)
            assert labels(of(server, None)) == ["rank 0", "rank 1"]


def test_two_jobs_under_one_pid_are_two() -> None:
    with started(*python(TWO_JOBS)) as (one, *first, two, _rank0, rank1, top):
        assert until(lambda: len(below(top)) == 10)  # every rank has come as far as starting something
        with pytest.raises(select.SeveralServersError, match=f"2 servers or jobs run under pid {top}: pid {one} "):
            select.by_pid(top)
        server, _ = select.by_pid(rank1)
        assert server.main is not None and server.main.pid == two and not server.pids & set(first)
