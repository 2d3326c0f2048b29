"""The one server that a user means: by any pid of it, by port, by run, or the only one; where it is none, a sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.delivery.context import new_run
from sglang_ext.run.directory import RunError
from sglang_ext.run.process import all_stats, stat
from sglang_ext.verify import select
from sglang_ext.verify.discover import Server, children, descendants, find_servers
from tests.unit.stand_ins import BASH, STAND_IN, python, stand_in, started, titled, until


def test_by_pid_of_main_and_of_any_worker() -> None:
    with stand_in("sglang::scheduler_TP0", "sglang::detokenizer") as own:
        for pid in (own.pid, *own.workers):
            server, is_server = select.by_pid(pid)
            assert is_server and server.pids == {own.pid, *own.workers}


def test_of_several_none_is_taken_and_the_verb_that_takes_all_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in("sglang::scheduler_TP0") as one, stand_in("sglang::scheduler_TP0") as other:
        found = [select.by_pid(own.pid)[0] for own in (one, other)]
    monkeypatch.setattr(select, "every", lambda: found)
    with pytest.raises(
        select.SeveralServersError, match=r"name one with --pid, or look at each with verify-env --all$"
    ):
        select.only()


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
