"""A server in a container is found from outside and from inside, by its pid, its port and its run."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.delivery.context import new_run
from sglang_ext.run.listeners import listeners
from sglang_ext.run.process import Stat, all_stats, command_line, inner_pid, root_of, stat
from sglang_ext.verify import select
from sglang_ext.verify.discover import Host, Process, Rank, Server
from tests.unit.stand_ins import ROOT, STAND_IN, holding, python, stand_in, started, until

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
