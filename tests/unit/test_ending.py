"""Ending a launch on real process groups: everything it started, nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from sglang_ext.delivery.ending import carries_run, end, members, send
from sglang_ext.run.process import Identity, is_alive, stat

RUN = "run-of-the-test"
NAMED = {**os.environ, "SGLANG_EXT_RUN_ID": RUN}
STRANGER = {name: value for name, value in os.environ.items() if name != "SGLANG_EXT_RUN_ID"}


def identity(pid: int) -> Identity:
    found = stat(pid)
    assert found is not None
    return found.identity


def until(true: Callable[[], Any], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


@contextlib.contextmanager
def session(script: str, env: dict[str, str] | None = None) -> Iterator[list[Identity]]:
    """A bash in a session of its own; its script prints pids. Gives the identities: the leader's first."""
    process = subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, env=env or STRANGER, start_new_session=True
    )
    assert process.stdout is not None
    everybody = [identity(process.pid)]
    try:
        everybody += [identity(int(word)) for word in process.stdout.readline().split()]
        yield everybody
    finally:
        for one in everybody:
            send(one, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def living(everybody: list[Identity]) -> list[bool]:
    return [is_alive(one) for one in everybody]


QUIET = ">/dev/null 2>&1 &"


def test_a_main_that_ends_in_order_is_only_asked() -> None:
    with session(f"sleep 60 {QUIET} child=$!; trap 'kill $child; exit 0' TERM; echo $child; wait") as everybody:
        began = time.monotonic()
        assert end(everybody[0], RUN, grace=20.0) == 0
        assert time.monotonic() - began < 5.0
        assert living(everybody) == [False, False]


def test_only_the_main_is_asked() -> None:
    # The child would say so if it were signalled: it is the main's to end.
    script = (
        "(trap 'echo signalled; exit' TERM; while :; do sleep 0.05; done) & child=$!; "
        "trap 'sleep 0.3; kill -KILL $child; exit 0' TERM; echo $child; wait; wait"
    )
    process = subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, env=STRANGER, start_new_session=True
    )
    assert process.stdout is not None
    child = identity(int(process.stdout.readline()))
    try:
        assert end(identity(process.pid), RUN, grace=20.0) == 0
        assert not is_alive(child)
        assert process.stdout.read() == ""
    finally:
        send(child, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_what_ignores_sigterm_is_killed_after_the_grace() -> None:
    script = f"trap '' TERM; sleep 60 {QUIET} echo $!; wait"
    with session(script) as everybody:
        began = time.monotonic()
        assert end(everybody[0], RUN, grace=0.3) == 2
        assert 0.3 <= time.monotonic() - began < 5.0
        assert living(everybody) == [False, False]


def test_members_whose_main_is_gone_do_not_get_the_whole_grace() -> None:
    script = f"(trap '' TERM; exec sleep 60) {QUIET} one=$!; sleep 60 {QUIET} echo $one $!; wait"
    with session(script) as everybody:
        began = time.monotonic()
        assert end(everybody[0], RUN, grace=30.0) == 2
        assert time.monotonic() - began < 10.0
        assert living(everybody) == [False] * 3


def test_who_left_the_session_is_known_by_the_run() -> None:
    with session(f"setsid sleep 60 {QUIET} echo $!; wait", env=NAMED) as everybody:
        assert until(lambda: os.getsid(everybody[1].pid) != everybody[0].pid)
        assert {entry.pid for entry in members(everybody[0], RUN, frozenset())} == {one.pid for one in everybody}
        assert end(everybody[0], RUN, grace=0.2) >= 1
        assert living(everybody) == [False, False]


def test_bystanders_are_left_alone() -> None:
    other_run = {**STRANGER, "SGLANG_EXT_RUN_ID": RUN + "-2"}
    sleeper = f"sleep 60 {QUIET} echo $!; wait"
    with session(sleeper, env=other_run) as bystander, session(sleeper) as stranger, session(sleeper) as everybody:
        assert end(everybody[0], RUN, grace=0.2) >= 1
        assert living(everybody) == [False, False]
        assert living(bystander) == living(stranger) == [True, True]


def test_whoever_is_spared_is_not_touched() -> None:
    with session(f"sleep 60 {QUIET} echo $!; wait") as everybody:
        main, spared = everybody
        end(main, RUN, grace=0.2, spare=frozenset({spared.pid}))
        assert living(everybody) == [False, True]


def test_a_session_that_got_the_number_of_ours_is_a_stranger_s() -> None:
    with session(f"sleep 60 {QUIET} echo $!; wait") as stranger:
        leader = stranger[0]
        ours = Identity(leader.pid, leader.start_time - 100)  # ended before; the pid is used again
        assert members(ours, RUN, frozenset()) == []
        assert end(ours, RUN, grace=0.2) == 0
        assert living(stranger) == [True, True]


def test_a_signal_reaches_exactly_one_process() -> None:
    process = subprocess.Popen(["sleep", "60"])
    one = identity(process.pid)
    assert not send(Identity(one.pid, one.start_time + 1), signal.SIGKILL)
    assert process.poll() is None
    assert send(one, signal.SIGTERM)
    assert process.wait(5) == -signal.SIGTERM
    assert not send(one, signal.SIGTERM)


def test_a_zombie_is_neither_signalled_nor_waited_for() -> None:
    process = subprocess.Popen(["true"], start_new_session=True)
    one = identity(process.pid)
    assert until(lambda: not is_alive(one))
    assert not send(one, signal.SIGKILL)
    assert members(one, RUN, frozenset()) == []
    process.wait()


def test_a_second_signal_of_the_user_ends_the_grace() -> None:
    with session("trap '' TERM; echo; sleep 60") as everybody:
        began = time.monotonic()
        assert end(everybody[0], RUN, grace=30.0, hurry=lambda: time.monotonic() - began > 0.2) >= 1
        assert time.monotonic() - began < 5.0
        assert living(everybody) == [False]


def test_we_never_end_ourselves() -> None:
    # It carries the run id itself, as `sglang-ext launch` below a launch would.
    code = (
        "import os, sys; sys.path[:0] = [sys.argv[1]]\n"
        "from sglang_ext.delivery.ending import end\n"
        "from sglang_ext.run.process import Identity, stat\n"
        "import subprocess; child = subprocess.Popen(['sleep', '60'])\n"
        "end(Identity(child.pid, stat(child.pid).start_time), os.environ['SGLANG_EXT_RUN_ID'], grace=0.2)\n"
        "print(child.wait(), 'still here')"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root], env=NAMED, capture_output=True, text=True, check=False
    )
    assert done.stdout == "-15 still here\n", done.stderr


def test_carries_run() -> None:
    one = subprocess.Popen(["sleep", "60"], env={"SGLANG_EXT_RUN_ID": RUN, "A": "1"})
    two = subprocess.Popen(["sleep", "60"], env={"SGLANG_EXT_RUN_ID": RUN + "x", "A": f"SGLANG_EXT_RUN_ID={RUN}"})
    try:
        assert until(lambda: carries_run(one.pid, RUN))
        assert not carries_run(one.pid, RUN[:-1])
        assert until(lambda: carries_run(two.pid, RUN + "x"))
        assert not carries_run(two.pid, RUN)
    finally:
        for process in (one, two):
            process.kill()
            process.wait()
    assert not carries_run(one.pid, RUN)
