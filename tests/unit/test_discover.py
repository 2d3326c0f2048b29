"""Finding servers, ranks, ports and expected sizes: titles and tables as data, and stand-ins as real processes.

A stand-in server is a Python process that starts `sleep` under SGLang's titles. Other servers may run on the host:
what is looked for is always picked out by our own pids.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.delivery.context import new_run
from sglang_ext.run.directory import RunError
from sglang_ext.run.listeners import listeners, parse_table
from sglang_ext.run.process import (
    Identity,
    Stat,
    all_stats,
    command_line,
    in_session,
    inner_pid,
    is_alive,
    parse_stat,
    root_of,
    stat,
)
from sglang_ext.verify import select
from sglang_ext.verify.discover import (
    Host,
    Process,
    Rank,
    Server,
    children,
    descendants,
    find_servers,
    parse_rank,
    role_of,
)
from sglang_ext.verify.expected import Expected, count, from_arguments, from_record, from_world, labels, of
from sglang_ext.verify.job import seat_of

ROOT = Path(__file__).resolve().parents[2]
SLEEP, BASH = shutil.which("sleep"), shutil.which("bash")

# Starts one `sleep` per title, prints its own pid, a port it listens on, and theirs; ends with its stdin.
STAND_IN = f"""
import os, signal, socket, subprocess, sys
listener = socket.create_server(("", 0))  # no address: in a fresh network namespace the loopback is down
titles = [word for word in sys.argv[1:] if word.startswith("sglang::")]
children = [
    subprocess.Popen([title, "60"], executable={SLEEP!r}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for title in titles
]
print(os.getpid(), listener.getsockname()[1], *(child.pid for child in children), flush=True)
sys.stdin.read()
for child in children:
    child.kill()
"""


class StandIn:
    """One of them: ``pid``, ``port``, ``workers``."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", STAND_IN, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.pid, self.port, *self.workers = (int(word) for word in self.process.stdout.readline().split())
        # Popen returns when exec has begun: for a moment the new command line is not there yet.
        assert until(lambda: all(role_of("".join(command_line(pid)[:1])) != "other" for pid in self.workers))

    def found(self) -> list[Server]:
        """The servers that hold one of our processes."""
        return [s for s in find_servers() if s.pids & {self.pid, *self.workers}]


@contextlib.contextmanager
def stand_in(*words: str) -> Iterator[StandIn]:
    server = StandIn(words)
    try:
        yield server
    finally:
        server.process.communicate()
        for worker in server.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def until(true: Callable[[], Any], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


# --- titles -----------------------------------------------------------------------------------------------


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


@contextlib.contextmanager
def started(*command: str) -> Iterator[list[int]]:
    """A command in a session of its own, and the pids on its first line."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield [int(word) for word in process.stdout.readline().split()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def python(code: str, *words: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", code, *words


def titled(*pids: int) -> bool:
    """Have all of them come as far as their titles?"""
    return until(lambda: all(role_of("".join(command_line(pid)[:1])) != "other" for pid in pids))


def holding(pid: int) -> Server:
    (found,) = (server for server in find_servers() if pid in server.pids)
    return found


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


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_by_pid_of_what_stands_in_front() -> None:
    stays = '"$@"; true'  # bash has more to do, so it does not exec
    with started(str(BASH), "-c", stays, "-", *python(STAND_IN, "sglang::scheduler_TP0")) as (main, _port, worker):
        assert titled(worker)
        entry = stat(main)
        assert entry is not None and entry.ppid == entry.session
        server, is_server = select.by_pid(entry.ppid)
        assert is_server and server.pids == {main, worker}


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_by_pid_of_what_stands_in_front_of_two() -> None:
    both = '"$@" <&0 & "$@" <&0 & wait'
    with started(str(BASH), "-c", both, "-", *python(STAND_IN, "sglang::scheduler_TP0")) as (main, *_):
        entry = stat(main)
        assert entry is not None
        session = entry.session

        def under() -> set[int]:
            return {p.pid for p in descendants(session, children(all_stats()))}

        assert until(lambda: len([s for s in find_servers() if s.pids & under()]) == 2)
        with pytest.raises(
            select.SeveralServersError, match=f"2 servers or jobs run under pid {entry.session}: .*{main}"
        ):
            select.by_pid(entry.session)


# --- containers --------------------------------------------------------------------------------------------

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _may_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "--net", "true"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


needs_namespaces = pytest.mark.skipif(
    not _may_unshare(), reason="unshare --pid --mount-proc --net is not permitted here"
)
LOOKING = STAND_IN.replace(
    "sys.stdin.read()",
    f"""
sys.path.insert(0, {str(ROOT)!r})
from sglang_ext.verify.discover import find_servers
while not (found := [(s.main and s.main.pid, *(p.stat.pid for p in s.processes)) for s in find_servers()]):
    pass
print(found, flush=True)
""",
)


@contextlib.contextmanager
def contained(*titles: str, flags: tuple[str, ...] = ()) -> Iterator[tuple[int, list[int], list[int]]]:
    """A stand-in that is pid 1 of a pid namespace: its pid for us, its workers for us, and what it says of itself."""
    with started(*UNSHARE, *flags, *python(STAND_IN, *titles)) as said:
        assert until(lambda: len(_within(titles)) == len(titles))
        workers = _within(titles)
        entry = stat(workers[0])
        assert entry is not None
        yield entry.ppid, workers, said


def _within(titles: tuple[str, ...]) -> list[int]:
    """The processes with these titles that are in another pid namespace, in their order there."""
    pids = [pid for pid in all_stats() if "".join(command_line(pid)[:1]) in titles and inner_pid(pid) != pid]
    return sorted(pids, key=inner_pid)


@needs_namespaces
def test_a_server_in_a_container() -> None:
    titles = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
    with contained(*titles) as (main, workers, (inner, _port, *inside)):
        assert (inner, inside) == (1, [inner_pid(pid) for pid in workers]), "what they call themselves"
        server = holding(main)
        assert server.main is not None and server.main.pid == main
        seen = [(p.stat.pid, p.ns_pid, p.title) for p in server.processes]
        assert seen == list(zip(workers, inside, titles, strict=True))
        assert select.by_pid(workers[1])[0].pids == server.pids
        assert f"pid {main} (2 processes, in a container as pid 1)" in select.names([server])
        assert root_of(main) == f"/proc/{main}/root"
        assert os.path.samefile(f"{root_of(main)}/etc", "/etc"), "other mounts, the same root: both ways lead there"


@needs_namespaces
def test_a_pid_of_a_container_is_explained() -> None:
    server = Server(None, (), (Process(Stat(4711, "S", 1, 1, 1), "scheduler", "t", Rank(), ns_pid=2**22 + 7),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "servers", lambda _: [server])
        with pytest.raises(select.NoServerError, match="in its own pid namespace, process 4711 is called that"):
            select.by_pid(2**22 + 7)


@needs_namespaces
def test_a_server_that_is_pid_1_is_found_from_inside_its_container() -> None:
    done = subprocess.run(
        [*UNSHARE, *python(LOOKING, "sglang::scheduler_TP0", "sglang::detokenizer")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines()[1:] == ["[(1, 2, 3)]"], done.stdout + done.stderr


@needs_namespaces
def test_by_port_of_a_container() -> None:
    with contained("sglang::scheduler_TP0", flags=("--net",)) as (main, workers, (_inner, port, *_)):
        assert listeners(port, [main]) == set(), "it does not listen in our network"
        assert listeners(port, [main], anywhere=True) == {main}
        assert select.by_port(port).pids == {main, *workers}
        with stand_in("sglang::scheduler_TP0") as own:
            assert select.by_port(own.port).pids == {own.pid, *own.workers}


@needs_namespaces
def test_by_run_of_a_container(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    directory = new_run(decide(None, ["NCCL_PROTO=LL"], [], {}), mode="launcher", policy="strict", path=path).directory
    with contained("sglang::scheduler_TP0") as (main, workers, _):
        entry = stat(main)
        assert entry is not None
        directory.write("server.json", {"main": {"pid": 1, "start_time": entry.start_time}})
        assert select.by_run(path)[0].pids == {main, *workers}


def test_outside_of_containers_nothing_changes() -> None:
    assert inner_pid(os.getpid()) == os.getpid() and root_of(os.getpid()) == ""
    assert inner_pid(2**22 + 1) == 2**22 + 1 and root_of(2**22 + 1) == "", "nobody"


# --- jobs that are no servers ------------------------------------------------------------------------------

SEATS = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
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


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SEATS, Expected(0, 0, 0, 1, 2, 2)),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}, Expected(0, 0, 0, 2, 16, 8)),
        ({"WORLD_SIZE": "2"}, Expected(0, 0, 0, 1, 2, 2)),
        ({"WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, Expected(0, 0, 0, 2, 4, None)),
        ({"WORLD_SIZE": "x"}, Expected(0, 0, 0, 0)),
        ({}, Expected(0, 0, 0, 0)),
    ],
)
def test_from_world(environment: dict[str, str], expected: Expected) -> None:
    assert from_world(environment) == expected


# --- selectors --------------------------------------------------------------------------------------------


def test_by_pid_of_main_and_of_any_worker() -> None:
    with stand_in("sglang::scheduler_TP0", "sglang::detokenizer") as own:
        for pid in (own.pid, *own.workers):
            server, is_server = select.by_pid(pid)
            assert is_server and server.pids == {own.pid, *own.workers}


def test_by_pid_of_no_server_takes_its_family() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    try:
        server, is_server = select.by_pid(process.pid)
        assert not is_server and server.main is not None and server.main.pid == process.pid
        assert [(p.stat.pid, p.role) for p in server.processes] == [(process.pid, "other"), (grandchild, "other")]
    finally:
        os.kill(grandchild, signal.SIGKILL)
        process.communicate()
    with pytest.raises(select.NoServerError, match=f"no process {process.pid}"):
        select.by_pid(process.pid)


def test_by_port() -> None:
    with stand_in("sglang::scheduler_TP0") as one, stand_in("sglang::scheduler_TP0") as two:
        for own in (one, two):
            server = select.by_port(own.port)
            assert server.main is not None and server.main.pid == own.pid
        with socket.create_server(("127.0.0.1", 0)) as ours:  # listened on, but by no server
            port = ours.getsockname()[1]
            with pytest.raises(select.NoServerError, match=f"listens on port {port}; servers found: .*pid {one.pid} "):
                select.by_port(port)


def test_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in("sglang::scheduler_TP0") as own:
        # The host may have servers of others: they are left out, ours are found as ever.
        monkeypatch.setattr(select, "find_servers", own.found)
        assert select.only().pids == {own.pid, *own.workers}
    assert until(lambda: own.found() == [])
    with pytest.raises(select.NoServerError, match="no SGLang server is running on this host"):
        select.only()


def test_by_run(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    directory = new_run(decide(None, ["NCCL_PROTO=LL"], [], {}), mode="launcher", policy="strict", path=path).directory
    with pytest.raises(select.NoServerError, match="has not come as far as starting its workers"):
        select.by_run(path)
    with stand_in("sglang::scheduler_TP0") as own:
        main = stat(own.pid)
        assert main is not None
        directory.write("server.json", {"main": main.identity._asdict()})
        server, found = select.by_run(path)
        assert server.pids == {own.pid, *own.workers} and found.path == path
        # The pid is another process's by now: not our server.
        directory.write("server.json", {"main": {"pid": main.pid, "start_time": main.start_time - 1}})
        with pytest.raises(select.NoServerError, match=rf"\(pid {main.pid}\) has ended"):
            select.by_run(path)
        directory.write("server.json", {"main": main.identity._asdict()})
    with pytest.raises(select.NoServerError, match="has ended"):
        select.by_run(path)
    for damaged in ({}, {"main": 4711}, {"main": {"pid": 1}}):
        directory.write("server.json", damaged)
        with pytest.raises(RunError, match="another shape than ours"):
            select.by_run(path)
    os.chmod(path, 0o755)
    with pytest.raises(RunError, match="mode 0755"):
        select.by_run(path)


def test_wait_for() -> None:
    empty, full = Server(None, (), ()), Server(None, ("full",), ())
    answers: Iterator[Server | Exception] = iter([select.NoServerError("not yet"), empty, full])

    def find() -> Server:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert select.wait_for(find, lambda server: server is full, 30.0) is full
    # When the time is over: whatever is there, or why nothing is.
    assert select.wait_for(lambda: empty, lambda _: False, 0.0) is empty
    with pytest.raises(select.NoServerError, match="never"):
        select.wait_for(_never, lambda _: True, 0.0)


def _never() -> Server:
    raise select.NoServerError("never")


# --- ports ------------------------------------------------------------------------------------------------

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0000 100 0 0 10 0
   1: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 222 1 0000 100 0 0 10 0
   2: 0100007F:7530 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 333 1 0000 100 0 0 10 0
   3: 0100007F:C001 0100007F:7530 0A 00000000:00000000 00:00000000 00000000     0        0 444 1 0000 100 0 0 10 0
   4: torn
"""
TABLE6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 0 0 0 555
"""


def test_parse_table() -> None:
    assert parse_table(TABLE, 0x7530) == {"111", "222"}  # 333 is connected, 444 has the port at the other end
    assert parse_table(TABLE, 0xC001) == {"444"}
    assert parse_table(TABLE, 1) == set()
    assert parse_table(TABLE6, 0x7530) == {"555"}
    assert parse_table("", 0x7530) == set()


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = [(socket.AF_INET, "127.0.0.1"), *([(socket.AF_INET6, "::1")] if _has_ipv6() else [])]


@pytest.mark.parametrize(("family", "host"), HOSTS)
def test_listeners_of_a_real_socket(family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as server, stand_in() as other:
        port = server.getsockname()[1]
        assert listeners(port, [os.getpid(), other.pid, 2**22 + 1]) == {os.getpid()}
        assert listeners(port, [other.pid]) == set()
        assert listeners(other.port, [os.getpid(), other.pid]) == {other.pid}
    assert listeners(port, [os.getpid()]) == set()


# --- sizes ------------------------------------------------------------------------------------------------

UNKNOWN = Expected()
NSA, ATTENTION = "--enable-nsa-prefill-context-parallel", "--enable-dp-attention"


def sizes(tp: int = 1, pp: int = 1, dp: int = 1, nnodes: int = 1, *, workers: int, here: int) -> Expected:
    return Expected(tp, pp, dp, nnodes, workers, here)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m sglang.launch_server --model-path m", sizes(workers=1, here=1)),
        ("python /usr/bin/sglang serve --model-path m --tp 2", sizes(tp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --tp 8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --tp=8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --tp-size 8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --tensor-parallel-size=8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --pp 2 --tp 2", sizes(tp=2, pp=2, workers=4, here=4)),
        ("python -m sglang.launch_server --pp-size=2", sizes(pp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --pipeline-parallel-size 2", sizes(pp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --dp 2 --tp 2", sizes(tp=2, dp=2, workers=4, here=4)),
        ("python -m sglang.launch_server --dp-size 2", sizes(dp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --data-parallel-size 2", sizes(dp=2, workers=2, here=2)),
        # With DP attention the DP ranks share the TP x PP schedulers.
        ("python -m sglang.launch_server --dp 4 --tp 8 --enable-dp-attention", sizes(8, 1, 4, workers=8, here=8)),
        ("python -m sglang.launch_server --tp 8 --attn-dp-size 4", sizes(8, 1, 4, workers=8, here=8)),
        ("python -m sglang.launch_server --tp 8 --attention-data-parallel-size=4", sizes(8, 1, 4, workers=8, here=8)),
        (
            "python -m sglang.launch_server --tp 8 --attn-dp-size 4 --enable-dp-attention",
            sizes(8, 1, 4, workers=8, here=8),
        ),
        # Context parallelism is inside the TP group; DeepSeek's older flags for it switch DP attention on.
        ("python -m sglang.launch_server --tp 8 --attn-cp-size 2", sizes(8, workers=8, here=8)),
        ("python -m sglang.launch_server --tp 8 --enable-prefill-cp --cp-strategy zigzag", sizes(8, workers=8, here=8)),
        (
            "python -m sglang.launch_server --tp 8 --enable-prefill-cp --attn-dp-size 2",
            sizes(8, 1, 2, workers=8, here=8),
        ),
        (f"python -m sglang.launch_server --tp 8 --dp 2 {NSA}", sizes(8, 1, 2, workers=8, here=8)),
        # With the newer one it is the model that says whether --dp means DP attention.
        ("python -m sglang.launch_server --tp 8 --dp 2 --enable-prefill-cp", UNKNOWN),
        (
            f"python -m sglang.launch_server --tp 8 --dp 2 --enable-prefill-cp {ATTENTION}",
            sizes(8, 1, 2, workers=8, here=8),
        ),
        ("python -m sglang.launch_server --tp 16 --nnodes 2 --node-rank 1", sizes(16, nnodes=2, workers=16, here=8)),
        ("python -m sglang.launch_server --tp 1 --nnodes=2", sizes(1, nnodes=2, workers=1, here=1)),
        # A node has whole stages, or a part of one.
        ("python -m sglang.launch_server --tp 8 --pp 2 --nnodes 2", sizes(8, 2, nnodes=2, workers=16, here=8)),
        ("python -m sglang.launch_server --tp 8 --pp 2 --nnodes 4", sizes(8, 2, nnodes=4, workers=16, here=4)),
        ("python -m sglang.launch_server --tp 8 --pp 4 --nnodes 2", sizes(8, 4, nnodes=2, workers=32, here=16)),
        # argparse: the last one counts.
        ("python -m sglang.launch_server --tp 8 --tp-size 4", sizes(tp=4, workers=4, here=4)),
        ("python -m sglang.launch_server --served-model-name x=--tp", sizes(workers=1, here=1)),
        # What cannot be told is not guessed.
        ("python -m sglang.launch_server --config c.yaml --tp 8", UNKNOWN),
        ("python -m sglang.launch_server --config=c.yaml", UNKNOWN),
        ("python -m sglang.launch_server --tp 8 --use-ray", UNKNOWN),
        ("python -m sglang.launch_server --encoder-only", UNKNOWN),
        ("python -m sglang.launch_server --tp 8 --elastic-ep-join-mode scale", UNKNOWN),
        ("python -m sglang.launch_server --tp", UNKNOWN),
        ("python -m sglang.launch_server --tp eight", UNKNOWN),
        ("python -m sglang.launch_server --tp=", UNKNOWN),
        ("python -m sglang.launch_server --tp 0", UNKNOWN),
        ("python -m sglang.launch_server --tp -1", UNKNOWN),
        # argparse completes beginnings: --tensor-parallel 8 is TP 8 to upstream, --conf is --config.
        ("python -m sglang.launch_server --tensor-parallel 8", UNKNOWN),
        ("python -m sglang.launch_server --data-par=2", UNKNOWN),
        ("python -m sglang.launch_server --conf c.yaml", UNKNOWN),
        ("python engine_script.py --tp 8", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_from_arguments(line: str, expected: Expected) -> None:
    assert from_arguments(line.split()) == expected


def test_from_record() -> None:
    record: dict[str, Any] = {
        "expected": {"tp": 8, "pp": 1, "dp": 4, "nnodes": 1, "workers": 8, "here": 8},
        "port": 30000,
    }
    assert from_record(record) == Expected(8, 1, 4, 1, 8, 8)
    for damaged in ({}, {"expected": None}, {"expected": {"tp": 8}}, {"expected": {**record["expected"], "tp": "x"}}):
        with pytest.raises(RunError, match=r"server\.json has another shape"):
            from_record(damaged)


def test_labels() -> None:
    assert labels(count(2, 1, 1, 1, False)) == ["TP0", "TP1"]
    assert labels(count(2, 2, 1, 1, False)) == ["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]
    # Not told: which ranks are on this node, or which DP rank goes with which TP rank.
    assert labels(count(4, 1, 1, 2, False)) == labels(count(4, 1, 2, 1, True)) == labels(UNKNOWN) == []


def test_of() -> None:
    server = Server(None, ("sglang", "serve", "--tp", "4"), ())
    assert of(server, None) == count(4, 1, 1, 1, False)
    assert of(server._replace(told=from_world(SEATS)), None).here == 2
    assert of(server, {"expected": sizes(8, workers=8, here=8)._asdict()}).here == 8
