"""The supervisor and the launcher around it, without a server: signals that stay ignored, ends that do not come, what is said.

What they do with real servers is shown in tests/e2e (test_endings.py, test_delivery.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext import launch
from sglang_ext.bench import verb
from sglang_ext.delivery import preflight, supervisor, vigil
from sglang_ext.delivery.ending import listen
from sglang_ext.delivery.old_runs import ENDED
from sglang_ext.delivery.options import launcher_parser
from sglang_ext.delivery.supervisor import Supervisor
from sglang_ext.reasons import TABLE
from sglang_ext.run import attestation
from sglang_ext.run.directory import RunDirectory
from sglang_ext.run.process import Identity, Stat, stat
from sglang_ext.verify import records
from sglang_ext.verify.discover import Rank
from sglang_ext.verify.expected import Expected

ROOT = Path(__file__).resolve().parents[2]
ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A supervisor that is sent every signal; it prints those it heard.
HEARS = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from sglang_ext.delivery.supervisor import Supervisor
one = Supervisor(None, [], print)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
one.guardian.dismiss()
print(*map(int, one.signals))
"""


@pytest.mark.parametrize(
    ("ignored", "heard"),
    [
        ((), [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]),
        ((signal.SIGHUP,), [signal.SIGINT, signal.SIGTERM]),  # nohup
        ((signal.SIGINT,), [signal.SIGHUP, signal.SIGTERM]),  # "&" in a script
        (ALL, [signal.SIGTERM]),
    ],
)
def test_what_was_ignored_stays_ignored(ignored: tuple[signal.Signals, ...], heard: list[signal.Signals]) -> None:
    def as_started() -> None:  # whatever this test run was started with
        for number in ALL:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    done = subprocess.run(
        [sys.executable, "-c", HEARS], preexec_fn=as_started, capture_output=True, text=True, timeout=60, check=True
    )
    assert [int(word) for word in done.stdout.split()] == heard, done.stderr


@pytest.fixture
def as_before() -> Any:
    handlers = {number: signal.getsignal(number) for number in ALL}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("as_before")
def test_a_campaign_under_nohup_does_not_hear_its_terminal_close() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with verb._told() as told:
        os.kill(os.getpid(), signal.SIGHUP)
        assert told == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), verb._told() as told:
        os.kill(os.getpid(), signal.SIGHUP)
    assert told == [signal.SIGHUP] and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.usefixtures("as_before")
def test_what_is_listened_to_is_given_back() -> None:
    for number, handler in zip(ALL, (signal.SIG_IGN, signal.SIG_DFL, signal.SIG_DFL), strict=True):
        signal.signal(number, handler)
    assert listen(lambda number, frame: None) == {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


# --- an end that does not come ----------------------------------------------------------------------------


class Stuck:
    """A child that waits in the kernel: it has been killed and cannot be waited for."""

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "the launcher would wait for ever"
        raise subprocess.TimeoutExpired("sglang", timeout)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(supervisor, "end", lambda *_, **__: 1)
    monkeypatch.setattr(supervisor, "members", lambda *_: [Stat(4711, "D", 1, 4711, 5)])
    one = object.__new__(Supervisor)
    one.__dict__ |= {
        "child": Stuck(),
        "main": Identity(4711, 5),
        "signals": [],
        "context": SimpleNamespace(id="r"),
        "guardian": SimpleNamespace(pid=0, dismiss=lambda: None),
        "say": launch.say,
    }
    return one


def test_a_child_that_does_not_end_does_not_hold_the_launcher(
    stuck: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stuck.stop(0.0) == [4711]
    said = capsys.readouterr().err
    assert "not_ended: expected nothing left of this launch, found 4711 (state D)" in said


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize(
    ("left", "signals", "exit_", "part"),
    [
        ([], [], 0, ""),
        ([4711], [], 1, ""),
        ([], [signal.SIGINT], 130, "ended by SIGINT; nothing of this launch is left"),
        ([4711], [signal.SIGINT], 130, "ended by SIGINT; still there: 4711"),
    ],
)
def test_the_end_of_a_launch_is_noted_where_all_of_it_has_ended(
    left: list[int],
    signals: list[int],
    exit_: int,
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepared = SimpleNamespace(release="1", mode="overlay", digest="d" * 64, local=())
    for name, value in (("upstream_root", "r"), ("check_upstream", prepared), ("was_replaced", None)):
        monkeypatch.setattr(preflight, name, lambda *_, value=value: value)
    monkeypatch.setattr(preflight, "check_arguments", lambda *_: None)
    monkeypatch.setattr(preflight, "check_port", lambda *_: None)
    one = SimpleNamespace(start=lambda: None, stop=lambda grace: left, signals=signals, interrupted=bool(signals))
    monkeypatch.setattr(launch, "Supervisor", lambda *_, **__: one)
    monkeypatch.setattr(launch, "prove", lambda *_: (0, False))
    words = ["--set", "NCCL_PROTO=LL", "--run-dir", str(tmp_path / "run"), "--model-path", "m"]
    assert launch.main(words) == exit_
    assert (tmp_path / "run" / ENDED).exists() == (not left)
    assert part in capsys.readouterr().err


# --- who ended first --------------------------------------------------------------------------------------


class Serving:
    """A supervisor whose SGLang, a main process and two workers, are three real processes that sleep."""

    def __init__(self, directory: RunDirectory) -> None:
        self.main, self.tp0, self.tp1 = self.children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
        self.said: list[str] = []
        self.directory = directory
        directory.write("server.json", {"expected": {"tp": 2, "pp": 1, "dp": 1}})
        for tp, child in enumerate((self.tp0, self.tp1)):
            self.attest(child.pid, {"node": 0, "dp": None, "pp": 0, "tp": tp})
        self.one = object.__new__(Supervisor)
        context = SimpleNamespace(id="r", directory=directory)
        own = {"child": self.main, "signals": [], "gone": [], "context": context, "say": self.said.append}
        self.one.__dict__ |= own

    def attest(self, pid: int, rank: dict[str, Any], **other: Any) -> None:
        found = stat(pid)
        record = {
            "schema": attestation.SCHEMA,
            "pid": pid,
            "start_time": found.start_time if found else 1,
            "rank": rank,
            "hook": {},
            "entered": {"values": {}, "repaired": []},
            "ready": {},
        }
        self.directory.write(attestation.record_name(pid), record | other)

    def serve(self, act: Callable[[], object]) -> str:
        """What serving comes to while ``act`` is done, and the main process killed after it."""

        def acting() -> None:
            time.sleep(0.15)
            act()
            self.main.kill()

        actor = threading.Thread(target=acting)
        actor.start()
        try:
            return self.one.wait_until_ended()
        finally:
            actor.join()

    def heard(self) -> None:
        """Wait until something has been said."""
        deadline = time.monotonic() + 10.0
        while not self.said and time.monotonic() < deadline:
            time.sleep(0.01)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    one = Serving(RunDirectory.create(str(tmp_path / "run")))
    yield one
    for child in one.children:
        child.kill()
        child.wait()


def no_pidfd(_pid: int) -> int:
    raise OSError(38, "Function not implemented")


@pytest.mark.parametrize("pidfds", [True, False])
def test_the_worker_that_ended_first_is_named(
    pidfds: bool, serving: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not pidfds:
        monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    before = len(os.listdir("/proc/self/fd"))

    def act() -> None:
        serving.tp1.kill()
        serving.heard()
        serving.tp0.kill()  # upstream's doing
        time.sleep(0.15)

    assert serving.serve(act) == "ended"
    who = f"TP1 (pid {serving.tp1.pid})"
    assert serving.said == [f"ended while the server serves: {who}"]
    assert launch.ended(serving.one) == 1
    said = f"server_ended: SGLang ended with signal 9 while serving; {who} had ended before it; see its log above"
    assert capsys.readouterr().err == f"sglang-ext: {said}\n"
    assert len(os.listdir("/proc/self/fd")) == before


def test_nobody_is_named_where_all_end_at_once(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "SETTLE", 0.5)

    def act() -> None:
        serving.tp0.kill()
        serving.tp1.kill()

    assert serving.serve(act) == "ended"
    assert launch.ended(serving.one) == 1 and serving.said == []
    assert "signal 9 while serving; see its log above" in capsys.readouterr().err


def test_nothing_is_said_of_workers_on_a_stop(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SETTLE", 0.5)

    def act() -> None:  # as where a whole control group is signalled: in any order
        serving.tp1.terminate()
        serving.one.signals.append(signal.SIGTERM)
        time.sleep(0.7)

    assert serving.serve(act) == "interrupted"
    assert serving.said == [] and serving.one.gone == []


def test_a_worker_that_had_ended_when_serving_began(serving: Serving) -> None:
    serving.tp0.kill()
    serving.tp0.wait()  # there is no pidfd of it any more
    serving.attest(serving.tp1.pid, {"tp": 1}, start_time=1)  # a stranger has its number
    assert serving.serve(serving.heard) == "ended"
    who = {f"TP0 (pid {serving.tp0.pid})", f"TP1 (pid {serving.tp1.pid})"}
    assert set(serving.one.gone) == who and len(serving.said) == 1


def test_a_vigil_reads_once_and_looks_at_nothing_in_a_tick(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = vigil.Vigil(serving.directory)
    monkeypatch.setattr(vigil, "is_alive", lambda _: pytest.fail("looked"))
    monkeypatch.setattr(RunDirectory, "read", lambda *_: pytest.fail("read"))
    assert [watch.wait(0.01) for _ in range(3)] == [[], [], []]
    serving.tp0.kill()
    assert watch.wait(10.0) == [f"TP0 (pid {serving.tp0.pid})"]
    serving.tp1.kill()
    serving.tp1.wait()
    began = time.monotonic()
    assert watch.wait(0.05) == [] and time.monotonic() - began >= 0.04, "it is over, and sleeps"


def test_only_a_whole_record_of_a_worker_that_was_built_is_watched(serving: Serving) -> None:
    both = {f"TP0 (pid {serving.tp0.pid})", f"TP1 (pid {serving.tp1.pid})"}
    assert {who for who, _ in vigil.attested(serving.directory)} == both
    for name, torn in (("server.json", "{"), (attestation.record_name(serving.tp0.pid), "[1")):
        Path(serving.directory.file(name)).write_text(torn)
    serving.directory.write("workers/1.json", {"pid": "1", "start_time": 1, "ready": {}})
    serving.attest(serving.tp1.pid, {})
    assert [who for who, _ in vigil.attested(serving.directory)] == [f"pid {serving.tp1.pid}"]


@pytest.mark.parametrize(
    ("sizes", "label"),
    [({"dp": 1, "pp": 1}, "TP3"), ({"dp": 2, "pp": 1}, "DP0 TP3"), ({"dp": 2, "pp": 2}, "DP0 PP1 TP3")],
)
def test_a_worker_is_called_what_verify_env_calls_it(sizes: dict[str, int], label: str) -> None:
    rank = {"node": 0, "dp": 0, "pp": 1, "tp": 3}
    assert vigil.label_of(rank, sizes) == label
    assert records.rank_of({"rank": rank}, Rank(), Expected(**sizes)).label == label


# --- what the launcher says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "early", "exit_", "part"),
    [
        (0, True, 1, "server_ended: SGLang ended with status 0 before its workers were ready; see its log above"),
        (1, True, 1, "server_ended: SGLang ended with status 1 before its workers were ready"),
        (2, True, 2, "server_ended: SGLang refused its command line"),
        (-9, False, 1, "server_ended: SGLang ended with signal 9 while serving"),
        (0, False, 0, ""),
        (None, False, 0, ""),  # we were told to end
    ],
)
def test_no_end_but_an_ordered_one_goes_without_a_sentence(
    status: int | None, early: bool, exit_: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one: Any = SimpleNamespace(ended=lambda: status, gone=[])
    assert launch.ended(one, early=early) == exit_
    said = capsys.readouterr().err
    assert part in said and bool(said) == bool(part)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell without NCCL_*, in which a launch comes as far as its port, and not to its end."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(preflight, "check_hook", lambda *_: None)
    monkeypatch.setattr(preflight, "check_values", lambda *_: [])

    def refused() -> str:
        raise preflight.Refused("sglang_missing", "so far and no further")

    monkeypatch.setattr(preflight, "upstream_root", refused)


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("policy", ["strict", "warn"])
def test_a_dry_run_of_nothing_is_no_pass(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["--dry-run", "--verify", policy, "--model-path", "m"]) == TABLE["no_contract"].exit == 2
    assert "no_contract: expected a contract" in capsys.readouterr().err


@pytest.mark.usefixtures("begun")
def test_a_dry_run_that_is_not_to_be_verified_and_a_launch_need_no_contract(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--dry-run", "--verify", "off"], []):
        assert launch.main([*words, "--model-path", "m"]) == 1
        assert "so far and no further" in capsys.readouterr().err
    assert "with --verify off as well" in launcher_parser("x").format_help()


# --- ports ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("port", ["70000", "65536", "0", "-1", "³", "３００００", "abc", "", "3e4", "9" * 5000])
def test_a_port_that_is_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["--set", "NCCL_PROTO=LL", "--model-path", "m", f"--port={port}"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"sglang-ext: port_invalid: --port: expected a number from 1 to 65535, found {port[:40]!r}; correct it"
    ]


@pytest.mark.parametrize(("words", "port"), [([], 30000), (["--port", "1"], 1), (["--port=65535"], 65535)])
def test_a_port(words: list[str], port: int) -> None:
    assert preflight.address(words) == ("127.0.0.1", port)


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "::1%none", "127.0.0.1"])
def test_a_host_nobody_resolves_is_upstreams_to_refuse(host: str) -> None:
    preflight.check_port(host, 65000)
    one: Any = SimpleNamespace(arguments=["--host", host, "--port", "65000"])
    assert Supervisor._serves(one) is False
