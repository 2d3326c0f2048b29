"""The rules of a campaign that need no server: what is held against what, when a launch is finished, what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.bench.campaigns import campaign, launch, looks, servers
from sglang_ext.bench.campaigns.campaign import _Campaign
from sglang_ext.bench.campaigns.journal import Journal, JournalError
from sglang_ext.bench.campaigns.launch import Refused
from sglang_ext.bench.campaigns.record import status_of, taken_again
from sglang_ext.bench.fingerprint import SECRET_VALUE
from sglang_ext.bench.suites.suite import Suite, parse_suite
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.bench.truth import in_effect
from sglang_ext.bench.truth.sameness import with_environment
from sglang_ext.run.process import Stat
from sglang_ext.verify.discover import Process, Rank, Server
from sglang_ext.verify.expected import Expected
from sglang_ext.verify.witnesses import Block

SUITE = """
[suite]
name = "s"
summary = "S"
[workload]
prompt = "a river, a mill and those who worked there"
[campaign]
blocks = 5
under_test = ["arguments.speculative_*"]
[server]
arguments = ["--model-path", "m"]
set = { CUDA_VISIBLE_DEVICES = "1", NCCL_PROTO = "LL" }
[[arm]]
name = "base"
baseline = true
[[arm]]
name = "two"
arguments = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2"]
[[arm]]
name = "three"
arguments = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"]
"""
PRINTS: dict[str, dict[str, Any]] = {
    "base": {"arguments": {"speculative_algorithm": None, "max_running_requests": 2048}},
    "base-again": {"arguments": {"speculative_algorithm": None, "max_running_requests": 2048}},
    # Both follow their draft, each in its own way.
    "two": {"arguments": {"speculative_algorithm": "EAGLE3", "max_running_requests": 48}},
    "three": {"arguments": {"speculative_algorithm": "EAGLE3", "max_running_requests": 32}},
}


@pytest.fixture
def suite() -> Suite:
    return parse_suite(SUITE.encode(), "s.toml")


def under_way(suite: Suite, *finished: str, **prints: Any) -> _Campaign:
    """A campaign some of whose arms have a finished launch."""
    found = object.__new__(_Campaign)
    found.suite, found.expected = suite, {}
    found.launches = [
        {"arm": name, "state": "finished", "fingerprint": {**PRINTS, **prints}[name], "machine": machine()}
        for name in finished
    ]
    return found


def machine(**cpu: Any) -> dict[str, Any]:
    return {"gpus": [], "cpu": cpu, "unknown": {}, "marks": []}


def hold(found: _Campaign, name: str, fingerprint: dict[str, Any]) -> None:
    arm = next(one for one in found.suite.arms if one.name == name)
    found._hold_against_the_others(arm, {"fingerprint": fingerprint, "machine": machine()})


def test_arms_are_held_against_the_baseline_and_no_other(suite: Suite) -> None:
    """Whichever comes first: what follows a draft is bound to it against the baseline only."""
    for order in (("two", "three", "base", "base-again"), ("base", "two", "three", "base-again")):
        for at, name in enumerate(order):
            hold(under_way(suite, *order[:at]), name, PRINTS[name])


@pytest.mark.parametrize("order", [("two", "three", "base"), ("base", "two", "three"), ("three", "base", "two")])
def test_an_arm_that_differs_is_found_once_the_baseline_is_known(suite: Suite, order: tuple[str, ...]) -> None:
    odd = {**PRINTS["two"], "driver": {"version": "580.2"}}
    rest = {name: {**one, "driver": {"version": "580.1"}} for name, one in PRINTS.items()} | {"two": odd}
    codes = []
    for at, name in enumerate(order):
        try:
            hold(under_way(suite, *order[:at], **rest), name, rest[name])
        except Refused as refused:
            codes.append(refused.fault)
    assert [fault.code for fault in codes] == ["arms_differ"]
    assert codes[0].text.startswith("base / two: ") and "driver 580.1 / 580.2" in codes[0].text


def test_the_control_is_the_baseline_whichever_comes_first(suite: Suite) -> None:
    other = {"arguments": {"speculative_algorithm": None, "speculative_num_steps": 9, "max_running_requests": 2048}}
    for first, last in (("base", "base-again"), ("base-again", "base")):
        with pytest.raises(Refused) as caught:
            hold(under_way(suite, first), last, other)
        assert caught.value.fault.code == "launch_differs"
    # A later launch of the baseline is held against its own first one.
    with pytest.raises(Refused, match="base before / base now"):
        hold(under_way(suite, "base", "two"), "base", other)


def test_machines_of_running_servers_are_each_held_against_their_own(suite: Suite) -> None:
    def gpu(index: int, **static: Any) -> dict[str, Any]:
        return {"index": index, "static": {"uuid": f"GPU-{index}", "power_limit_w": 600.0, **static}, "samples": {}}

    found = under_way(suite, "base", "two")
    for number, one in enumerate(found.launches):
        one["machine"]["gpus"] = [gpu(number)]
    running, started = (suite.arms[1]._replace(address=address) for address in ("http://h:1", None))
    now = {**machine(), "gpus": [gpu(1)]}
    assert found._moved(running, now) == []
    assert [one["code"] for one in found._moved(started, now)] == ["machine_changed"]
    weaker = {**machine(), "gpus": [gpu(1, power_limit_w=450.0)]}
    own, other = found._moved(running, weaker)
    assert own["text"].startswith("GPU 1 is not as in") and other["text"].startswith("GPU 1 is not like GPU 0")


def test_a_launch_is_finished_when_it_has_been_compared(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt or a crash in between must not leave one that nobody has held against the others."""
    serving: Any = type("Serving", (), {"ready": 0.0, "pid": None, "log": None, "address": type("A", (), {"port": 1})})
    monkeypatch.setattr(launch, "_serving", lambda *_: nullcontext(serving))
    monkeypatch.setattr(launch, "_measure", lambda *_: None)
    made: dict[str, Any] = {}

    def compare(error: type[BaseException] | None) -> None:
        assert made["state"] == "abandoned"
        if error is not None:
            raise error

    for error, state in ((KeyboardInterrupt, "abandoned"), (KeyError, "abandoned"), (None, "finished")):
        try:
            launch.launch(made, suite.arms[0], suite, "/c/logs/x.log", lambda _: None, partial(compare, error))
        except BaseException as caught:
            assert type(caught) is error
        assert made["state"] == state and (made["reason"] is None) == (state == "finished")
    monkeypatch.setattr(launch, "_measure", lambda *_: Fault("server_error", "x"))
    launch.launch(made, suite.arms[0], suite, "/c/logs/x.log", lambda _: None, lambda: pytest.fail("compared"))
    assert (made["state"], made["reason"]) == ("failed", "server_error: x")
    log = tmp_path / "x.log"
    log.write_text("")
    launch.launch(made, suite.arms[0], suite, str(log), lambda _: None, lambda: pytest.fail("compared"))
    assert made["reason"] == f"server_error: x (log: {log})"


def test_what_the_contract_says_of_the_gpus_is_seen(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is told on its command line; preflight and observer look at the GPUs the workers will have."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    seen: list[str | None] = []

    def look(environment: dict[str, str]) -> None:
        seen.append(environment.get("CUDA_VISIBLE_DEVICES"))
        raise Refused(Fault("gpu_busy", "enough"))

    monkeypatch.setattr(launch, "_preflight", look)
    absent = {**suite.arms[0].contract, "variables": {"CUDA_VISIBLE_DEVICES": None}}
    for arm in (suite.arms[0], suite.arms[0]._replace(patches=False), suite.arms[0]._replace(contract=absent)):
        with pytest.raises(Refused), launch._serving(arm, suite, "log", lambda _: None):
            pass
    assert seen == ["1", "1", None]


@pytest.mark.parametrize(("url", "why"), [("http://192.0.2.7:1", "192.0.2.7"), ("http://127.0.0.1:1", "no SGLang")])
def test_gpus_of_a_server_that_cannot_be_looked_into_are_not_watched(url: str, why: str) -> None:
    found = launch._running(url)
    assert found.blind is not None and why in found.blind and found.pids() == set() and not found.alone


def test_variables_that_only_look_right_are_found_in_the_ranks() -> None:
    """SIMULATE_ACC_LEN, exported in the shell: no report shows it, as nothing of its name tunes."""
    environment = {**os.environ, "SIMULATE_ACC_LEN": "3", "SGLANG_SIMULATE_ACC_LEN": "3"}
    code = "import time; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"up\n"
            report = {"workers": [{"pid": child.pid, "counts": True, "variables": {}, "extras": {}}]}
            assert looks.names_held(report, in_effect.DEAD_NAMES) == {"SIMULATE_ACC_LEN"}
            assert looks.environment_of(child.pid)["SIMULATE_ACC_LEN"] == "3"
            made: dict[str, Any] = {}
            arm = parse_suite(SUITE.encode(), "s.toml").arms[0]
            with pytest.raises(Refused) as caught:
                launch._effect(made, arm._replace(arguments=()), {"tp_size": 1}, report, None)
            assert caught.value.fault.code == "variable_without_effect"
        finally:
            child.kill()
    assert looks.names_held({"workers": [{"pid": child.pid, "counts": True}]}, in_effect.DEAD_NAMES) == set()
    assert looks.environment_of(child.pid) == {}


def test_blocks_that_were_taken_again_are_counted() -> None:
    def one(block: int, state: str, *runs: int) -> dict[str, Any]:
        return {"block": block, "state": state, "runs": list(runs)}

    assert taken_again([one(0, "finished", 1), one(1, "failed")]) == []
    (note,) = taken_again([one(0, "abandoned", 1), one(0, "abandoned"), one(0, "finished", 1), one(3, "abandoned", 1)])
    assert note == (
        "block_unfinished: 3 launches were given up and count for nothing, 2 of them with runs that had been taken; begun more "
        "than once for it: block 1, 4"
    )


@pytest.mark.parametrize(
    ("code", "verdict", "status"),
    [
        ("not_verified", "UNKNOWN", 3), ("not_verified", "FAIL", 1), ("not_verified", None, 1), ("no_endpoint", "PASS", 3),
        ("verdict_lost", "PASS", 4), ("campaign_folder", None, 1), ("of_a_later_release", None, 1),
    ],
)  # fmt: skip
def test_the_status_of_a_launch_that_ends_it(code: str, verdict: str | None, status: int) -> None:
    assert status_of(code, {"verify": {"before": verdict and {"verdict": verdict}}}) == status


def test_a_refusal_over_what_could_not_be_seen_ends_with_3(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(made: dict[str, Any], *_: Any) -> None:
        made.update(
            state="abandoned", time={"began": 1.0}, verify={"before": {"verdict": "UNKNOWN"}}, runs=[], output_sha256=[]
        )
        raise Refused(Fault("not_verified", "UNKNOWN: no_server: it is gone"))

    monkeypatch.setattr(campaign, "launch", unseen)
    found = campaign.run(suite, str(tmp_path / "c"), lambda _: None, lambda one: one, lambda _: None)
    assert (found["state"], found["exit"]) == ("INVALID", 3) and found["reason"].startswith("not_verified: arm ")
    assert json.loads((tmp_path / "c" / "receipt.json").read_text())["exit"] == 3


def finish(made: dict[str, Any], *_: Any) -> None:
    made.update(
        state="finished",
        reason=None,
        time={"began": 1.0, "ended": 2.0},
        verify={"before": None},
        runs=[],
        output_sha256=[],
    )
    made.update(fingerprint=None, machine=machine(), reconciliation=None)


def test_a_verdict_of_before_is_gone_once_it_goes_on(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted again, the folder must not show the end that was mended."""
    folder, derived, number = tmp_path / "c", ("receipt.json", "report.html"), 0

    def go() -> dict[str, Any]:
        return campaign.run(suite, str(folder), lambda _: None, lambda one: {**one, "state": "VALID"}, lambda _: None)

    def refuse(made: dict[str, Any], *words: Any) -> None:
        finish(made, *words)
        raise Refused(Fault("arms_differ", "x"))

    def interrupted(made: dict[str, Any], *words: Any) -> None:
        nonlocal number
        assert not [name for name in derived if (folder / name).exists()]
        number += 1
        finish(made, *words)
        if number == len(suite.arms) + 1:  # in the second block
            made["state"] = "abandoned"
            raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "launch", refuse)
    assert go()["state"] == "INVALID" and (folder / "receipt.json").exists()
    (folder / "report.html").write_text("INVALID")
    monkeypatch.setattr(campaign, "launch", interrupted)
    with pytest.raises(campaign.Interrupted) as caught:
        go()
    assert caught.value.finished == 1 and not [name for name in derived if (folder / name).exists()]
    monkeypatch.setattr(campaign, "launch", finish)
    assert go()["state"] == "VALID"
    # Once finished it is only judged again: the page stays until it is written anew.
    (folder / "report.html").write_text("VALID")
    monkeypatch.setattr(campaign, "launch", lambda *_: pytest.fail("launched"))
    assert go()["state"] == "VALID" and all((folder / name).exists() for name in derived)


def test_an_interrupt_counts_what_was_written(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, number = Journal.keep, 0

    def interrupted(own: Journal, made: dict[str, Any]) -> None:
        nonlocal number
        number += 1
        if number == 2 * len(suite.arms):  # the last launch of the second block
            raise KeyboardInterrupt
        real(own, made)

    monkeypatch.setattr(campaign, "launch", finish)
    monkeypatch.setattr(Journal, "keep", interrupted)
    with pytest.raises(campaign.Interrupted) as caught:
        campaign.run(suite, str(tmp_path / "c"), lambda _: None, lambda one: one, lambda _: None)
    assert caught.value.finished == 1


def test_a_verdict_of_before_that_cannot_be_removed(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o700)
    own = Journal.open(str(tmp_path / "c"))
    (tmp_path / "c" / "receipt.json").mkdir()
    with pytest.raises(JournalError, match=r"receipt\.json of before cannot be removed") as caught:
        own.forget_verdict()
    own.close()
    assert caught.value.code == "campaign_folder"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "sglang-ext: server_ended: SGLang ended with status 1 before its workers were ready; see its log above",
            "server_ended: SGLang ended with status 1 before its workers were ready",
        ),
        ("nothing of ours", "server_ended: the server ended with status 1"),
    ],
)
def test_a_server_that_failed_names_its_log(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, text: str
) -> None:
    """In the folder as it was named, with the last error in it."""
    monkeypatch.chdir(tmp_path)
    told: list[str] = []

    @contextmanager
    def ends(_arm: Any, _suite: Any, log: str, _tell: Any) -> Iterator[Any]:
        Path(log).write_text(f"ValueError: the first\n[2026-11-30 TP0] RuntimeError: the last\n  raise x\n{words}\n")
        server = servers.Server(None, log)  # type: ignore[arg-type]
        server.status = 1
        raise servers.LaunchError(*server.why_it_ended())
        yield

    monkeypatch.setattr(launch, "_serving", ends)
    found = campaign.run(suite, "my/../c", lambda _: None, lambda one: one, told.append)
    first = next(one for arm in found["arms"] for one in arm["launches"] if one["attempt"] == 0)
    log = f"c/logs/000-0-{first['arm']}.log"
    assert first["reason"] == f"{text}; its last error: RuntimeError: the last (log: {log})"
    assert first["server"]["log"] == f"logs/000-0-{first['arm']}.log"
    assert f"{first['arm']} failed: {first['reason']}" in told and f"-{first['arm']}-1.log)" in found["reason"]


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory\nbye", "torch.OutOfMemoryError: CUDA out of memory"),
        ("an Error: no\nErrors: 3\n    raise ValueError(x)", None),
        ("[x] ValueError: \x1b[31mred", "ValueError: \\x1b[31mred"),
        ("ValueError: " + "x" * 250, "ValueError: " + "x" * 185 + "..."),
        ("OSError: https://me:pass@host/x", SECRET_VALUE),
        ("OSError: no such token: hf_" + "aB3dE5gH7j" * 4, SECRET_VALUE),
        ("", None),
    ],
)
def test_the_error_of_a_log_that_is_quoted(words: str, quoted: str | None) -> None:
    assert servers.last_error(words) == quoted


def test_ranks_of_an_arm_that_demands_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot be read is not one that holds nothing."""
    ranks = tuple(
        Process(Stat(pid, "S", 1, 1, 5), "scheduler", f"sglang::scheduler_TP{number}", Rank(tp=number))
        for number, pid in enumerate((11, 12))
    )
    server = Server(None, (), ranks, Expected(tp=2, workers=2, here=2))
    blocks = {11: Block("ok", {"OMP_NUM_THREADS": "1", "HOME": "/"}), 12: Block("denied", {}, "not permitted")}
    monkeypatch.setattr(looks, "read_now", lambda pid: blocks[pid])
    report = looks.unjudged(server, None)
    assert with_environment({}, report)["environment"] == {"TP0": {"OMP_NUM_THREADS": "1"}, "TP1": None}
    assert launch.held(report) is None
    blocks[12] = Block("ok", {})
    report = looks.unjudged(server, None)
    assert with_environment({}, report)["environment"] == {"TP0": {"OMP_NUM_THREADS": "1"}, "TP1": {}}
    assert launch.held(report) == {}


def test_a_running_server_s_gpus_are_those_of_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    code = "print('up', flush=True); input()"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "1"}
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        rank = Process(Stat(child.pid, "S", 1, 1, 5), "scheduler", "sglang::scheduler", Rank())
        server = Server(Stat(os.getpid(), "S", 1, 1, 5), (), (rank,))
        monkeypatch.setattr("sglang_ext.verify.select.by_port", lambda _: server)
        found = launch._running("http://127.0.0.1:30000")
        assert found.environment["CUDA_VISIBLE_DEVICES"] == "1" and found.pids() == {os.getpid(), child.pid}
        assert (found.pid, found.alone, found.blind) == (os.getpid(), False, None)
        child.communicate(b"\n")
