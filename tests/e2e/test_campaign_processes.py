"""A campaign on scripted servers: order, resume, what goes wrong, what is kept. Real HTTP, real folders."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext import cli
from sglang_ext.bench import receipt, verb
from sglang_ext.bench.campaigns import campaign, journal, launch, servers
from sglang_ext.bench.campaigns.journal import JournalError
from sglang_ext.bench.campaigns.launch import Refused
from sglang_ext.bench.suites.suite import Suite, SuiteError, parse_suite
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.bench.truth import sameness
from sglang_ext.reasons import TABLE
from tests.scripted.child import Child
from tests.scripted.script import Script, steady

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 8
TEXT = """
[suite]
name = "scripted"
summary = "Two servers that follow a script"
[workload]
prompt = "story of a river, a mill and those who worked there"
tokens = 8
runs = 2
warmup_tokens = 8
timeout_s = 20
[campaign]
blocks = {blocks}
seed = 7
control = false
under_test = ["arguments.schedule_policy"]
rule = "{rule}"
[[arm]]
name = "plain"
baseline = true
address = "http://{plain}"
[[arm]]
name = "fast"
address = "http://{fast}"
"""
ANSWER = Script(steady(TOKENS, 200.0, first=0.01))


@pytest.fixture
def children() -> Iterator[Callable[..., Child]]:
    with contextlib.ExitStack() as stack:
        yield lambda script: stack.enter_context(Child({"story": script}, paths=["/generate"]))


@pytest.fixture
def pair(children: Callable[..., Child]) -> tuple[str, str]:
    """Two servers that answer alike."""
    return str(children(ANSWER).address), str(children(ANSWER).address)


@pytest.fixture
def suite(tmp_path: Path, pair: tuple[str, str]) -> Callable[..., Suite]:
    def make(blocks: int = 2, rule: str = "fixed", places: tuple[str, str] | None = None) -> Suite:
        plain, fast = places or pair
        path = tmp_path / "scripted.toml"
        path.write_text(TEXT.format(blocks=blocks, rule=rule, plain=plain, fast=fast))
        return parse_suite(path.read_bytes(), str(path))

    return make


def judge(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "state": "VALID", "exit": 0}


def never(_: dict[str, Any]) -> None:
    return None


def run(suite: Suite, folder: Path, told: list[str] | None = None, **other: Any) -> dict[str, Any]:
    say = told.append if told is not None else lambda _: None
    stop = other.pop("stop", never)
    return campaign.run(suite, str(folder), stop, other.pop("judge", judge), say, **other)


def launches(found: dict[str, Any]) -> list[dict[str, Any]]:
    every = [one for arm in found["arms"] for one in arm["launches"]]
    return sorted(every, key=lambda one: (one["time"]["began"], one["attempt"]))


def test_every_arm_once_in_each_block_as_planned(suite: Callable[..., Suite], tmp_path: Path) -> None:
    found = run(suite(blocks=3), tmp_path / "c")
    made = launches(found)
    assert [(one["block"], one["arm"]) for one in made] == [
        (block, arm) for block, order in enumerate(found["plan"]["blocks"]) for arm in order
    ]
    assert (
        found["schema"] == "sglang-ext/campaign/1" and found["plan"]["seed"] == 7 and found["plan"]["stopped"] is None
    )
    for one in made:
        assert (one["state"], one["reason"], len(one["runs"]), len(one["warmups"])) == ("finished", None, 2, 1)
        assert one["time"]["began"] <= one["time"]["ready"] <= one["runs"][0]["began"] <= one["time"]["ended"]
        assert [run["tokens"] for run in one["runs"]] == [TOKENS, TOKENS]
        # Nobody of this host's servers listens there: nothing is proven, and nothing is claimed to be.
        assert one["verify"]["before"]["verdict"] == "NOT_ASKED" and one["server"]["pid"] is None
        assert one["reconciliation"]["state"] == "UNKNOWN" and one["counters"] is None and "counters" in one["unknown"]
        # Nor is it known which GPUs are its own, so that none is watched, and none of another arm's server is a stranger.
        assert one["machine"]["gpus"] == [] and "is not known" in one["machine"]["unknown"]["gpus"]
    kept = json.loads((tmp_path / "c" / "receipt.json").read_text())
    assert kept == json.loads(json.dumps(found))
    assert sorted(path.name for path in (tmp_path / "c").glob("launch-*")) == sorted(map(journal.launch_name, made))


def test_several_streams_at_once_are_runs_and_a_round(suite: Callable[..., Suite], tmp_path: Path) -> None:
    path = Path(suite().path)
    path.write_text(path.read_text().replace("runs = 2", "runs = 2\nstreams = 3"))
    found = run(parse_suite(path.read_bytes(), str(path)), tmp_path / "c")
    for one in launches(found):
        assert [run["stream"] for run in one["runs"]] == [0, 1, 2] * 2 and len(one["warmups"]) == 3
        assert [(each["streams"], each["tokens"]) for each in one["together"]] == [(3, 3 * TOKENS)] * 2
        first, second = one["runs"][:3], one["runs"][3:]
        assert max(run["began"] for run in first) < min(run["began"] for run in second)


def test_texts_that_differ_are_told(
    suite: Callable[..., Suite], children: Callable[..., Child], tmp_path: Path
) -> None:
    other = Script((*steady(TOKENS - 1, 200.0, first=0.01), ANSWER.steps[-1]._replace(silent=True)))
    places = (str(children(ANSWER).address), str(children(other).address))
    found = run(suite(places=places), tmp_path / "c")
    assert [note for note in found["notes"] if note.startswith("outputs_differ: expected the same greedy text")]
    assert not [note for note in run(suite(), tmp_path / "d")["notes"] if note.startswith("outputs_differ")]


def test_a_finished_campaign_is_only_judged_again(suite: Callable[..., Suite], tmp_path: Path) -> None:
    told: list[str] = []
    first = run(suite(), tmp_path / "c")
    again = run(suite(), tmp_path / "c", told)
    assert launches(again) == launches(first) and told[1:] == ["going on: 2 of 2 blocks are finished"]


def test_an_interrupted_block_is_repeated_as_a_whole(
    suite: Callable[..., Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0
    real = launch._measure

    def interrupted(*words: Any) -> Any:
        nonlocal number
        number += 1
        if number == 4:  # the second launch of the second block
            raise KeyboardInterrupt
        return real(*words)

    monkeypatch.setattr(launch, "_measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(suite(), tmp_path / "c")
    assert not (tmp_path / "c" / "receipt.json").exists()
    found = run(suite(), tmp_path / "c")
    states = [(one["block"], one["arm"], one["attempt"], one["state"]) for one in launches(found)]
    first, second = found["plan"]["blocks"]
    assert states == [
        *((0, arm, 0, "finished") for arm in first),
        *((1, arm, 0, "abandoned") for arm in second),
        *((1, arm, 1, "finished") for arm in second),
    ]
    assert {one["reason"].partition(":")[0] for one in launches(found) if one["state"] == "abandoned"} == {
        "block_unfinished"
    }
    # Whoever interrupts a block that displeases cannot hide it: one of its launches had been measured.
    (note,) = [note for note in found["notes"] if note.startswith("block_unfinished: ")]
    assert note.startswith("block_unfinished: 2 launches were given up") and ", 1 of them with runs" in note
    assert note.endswith(": block 2")


def test_a_launch_that_nobody_compared_is_taken_again(
    suite: Callable[..., Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted, or crashed, after its last run and before it was held against the others."""
    real, number = sameness.differences, 0

    def interrupted(*words: Any) -> Any:
        nonlocal number
        number += 1
        if number == 1:
            raise KeyboardInterrupt
        return real(*words)

    monkeypatch.setattr(campaign, "differences", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(suite(), tmp_path / "c")
    (kept,) = [json.loads(path.read_text()) for path in (tmp_path / "c").glob("launch-000-1-*")]
    assert kept["state"] == "abandoned" and len(kept["runs"]) == 2
    found = run(suite(), tmp_path / "c")
    assert [one["state"] for one in launches(found)] == ["abandoned"] * 2 + ["finished"] * 4


def test_a_failed_launch_of_an_interrupted_block_is_given_up_too(
    suite: Callable[..., Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, then = launch._measure, iter([Fault("server_error", "it said no"), None, KeyboardInterrupt()])

    def measure(*words: Any) -> Any:
        match next(then, None):
            case KeyboardInterrupt() as error:
                raise error
            case Fault() as fault:
                return fault
        return real(*words)

    monkeypatch.setattr(launch, "_measure", measure)
    with pytest.raises(KeyboardInterrupt):
        run(suite(), tmp_path / "c")
    found = run(suite(), tmp_path / "c")
    states = [(one["block"], one["attempt"], one["state"]) for one in launches(found)]
    assert states[:3] == [(0, 0, "abandoned"), (0, 1, "abandoned"), (0, 0, "abandoned")]
    assert [state for _, _, state in states[3:]] == ["finished"] * 4
    (failed,) = [one for one in launches(found) if "server_error" in (one["reason"] or "")]
    assert failed["reason"].startswith("block_unfinished: ") and failed["reason"].endswith("server_error: it said no")


def test_a_launch_that_fails_is_repeated_and_a_second_failure_ends_it(
    suite: Callable[..., Suite], children: Callable[..., Child], tmp_path: Path
) -> None:
    bad = Script(ANSWER.steps, ending="refuse")
    places = (str(children(ANSWER).address), str(children(bad).address))
    found = run(suite(places=places), tmp_path / "c")
    assert (found["state"], found["exit"]) == ("INVALID", 1)
    assert found["reason"].startswith(
        "launch_failed_twice: arm fast, the last time: server_error: the server answered HTTP 400"
    )
    own = [one for one in launches(found) if one["arm"] == "fast"]
    assert [(one["attempt"], one["state"]) for one in own] == [(0, "failed"), (1, "failed")]
    assert json.loads((tmp_path / "c" / "receipt.json").read_text())["reason"] == found["reason"]


def test_a_refusal_ends_it_at_once_and_can_be_mended(
    suite: Callable[..., Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise Refused(Fault("arms_differ", "plain / fast: expected the same, found another"))

    with monkeypatch.context() as patch:
        patch.setattr(launch, "_measure", refuse)
        found = run(suite(), tmp_path / "c")
    assert found["state"] == "INVALID" and found["reason"].startswith("arms_differ: arm ")
    assert [one["state"] for one in launches(found)] == ["refused"]
    again = run(suite(), tmp_path / "c")
    assert again["state"] == "VALID" and [one["state"] for one in launches(again)] == ["abandoned"] + ["finished"] * 4


def test_arms_that_differ_in_more_than_is_under_test(
    suite: Callable[..., Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_ext.bench import fingerprint

    real, drivers = fingerprint.collect, iter(["580.1", "580.2"])
    monkeypatch.setattr(
        fingerprint, "collect", lambda *words: {**real(*words), "driver": {"version": next(drivers), "reason": None}}
    )
    found = run(suite(), tmp_path / "c")
    assert found["state"] == "INVALID" and "580.1" in found["reason"] and "580.2" in found["reason"]
    assert [one["state"] for one in launches(found)] == ["finished", "refused"]


def test_the_rule_to_stop_is_asked_before_a_block_and_after_a_crash(
    suite: Callable[..., Suite], tmp_path: Path
) -> None:
    def enough(found: dict[str, Any]) -> str | None:
        return "the planned look" if len(launches(found)) >= 2 else None

    first = run(suite(blocks=3, rule="sequential"), tmp_path / "c", stop=enough)
    assert first["plan"]["stopped"] == "the planned look" and len(launches(first)) == 2
    again = run(suite(blocks=3, rule="sequential"), tmp_path / "c", stop=enough)
    assert again["plan"]["stopped"] == "the planned look" and launches(again) == launches(first)
    fixed = run(suite(blocks=2), tmp_path / "d", stop=enough)
    assert len(launches(fixed)) == 4


def test_another_suite_is_not_gone_on_with(suite: Callable[..., Suite], tmp_path: Path) -> None:
    run(suite(), tmp_path / "c")
    with pytest.raises(JournalError) as caught:
        run(suite(blocks=4), tmp_path / "c")
    assert caught.value.code == "campaign_differs" and "blocks: expected 2, found 4" in str(caught.value)
    text = Path(suite().path)
    text.write_text(text.read_text() + "# a comment\n")
    with pytest.raises(JournalError, match="suite sha256: expected"):
        run(parse_suite(text.read_bytes(), str(text)), tmp_path / "c")


def test_a_receipt_that_is_to_be_repeated_binds_the_first_launch(suite: Callable[..., Suite], tmp_path: Path) -> None:
    first = run(suite(), tmp_path / "c")
    prints = {arm["name"]: arm["fingerprint"] for arm in first["arms"]}
    assert run(suite(), tmp_path / "d", expected=prints)["state"] == "VALID"
    moved = {name: {**one, "machine": {**one["machine"], "cores": 4096}} for name, one in prints.items()}
    found = run(suite(), tmp_path / "e", expected=moved)
    assert found["state"] == "INVALID" and "machine.cores" in found["reason"] and "in the receipt" in found["reason"]


def test_what_a_rerun_repeats_binds_whoever_goes_on_with_it(
    suite: Callable[..., Suite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(suite(), tmp_path / "c")
    prints = {arm["name"]: arm["fingerprint"] for arm in first["arms"]}
    moved = {name: {**one, "machine": {**one["machine"], "cores": 4096}} for name, one in prints.items()}

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(launch, "_measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(suite(), tmp_path / "d", expected=moved)
    found = run(suite(), tmp_path / "d")  # by `bench run`, as the command that was printed says
    assert found["state"] == "INVALID" and "in the receipt" in found["reason"]
    assert run(suite(), tmp_path / "d", expected=moved)["state"] == "INVALID"
    for folder, other in (("d", "one of another receipt"), ("c", "one that repeats none")):
        with pytest.raises(JournalError, match=f"repeats this receipt, found {other}") as caught:
            run(suite(), tmp_path / folder, expected=prints)
        assert caught.value.code == "campaign_differs"


def test_a_server_that_no_arm_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_ext.run.process import Stat
    from sglang_ext.verify.discover import Server

    other = Server(Stat(4711, "S", 1, 4711, 5), ("python",), ())
    monkeypatch.setattr(servers, "every", lambda: [other])
    found = servers.leftovers()
    assert found is not None and found.code == "server_left_over" and "pid 4711" in found.text
    assert servers.leftovers(frozenset({4711})) is None


def test_an_arm_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("SGLANG_EXT_API_KEY", "hunter2")
    made = launch.environment({"NCCL_PROTO": None, "SGLANG_X": "1"})
    assert "NCCL_PROTO" not in made and made["SGLANG_X"] == "1" and "hunter2" not in made.values()
    assert made["PATH"] == os.environ["PATH"]


# ---- the command line


def test_the_verbs_on_a_campaign(
    suite: Callable[..., Suite], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, kept = suite().path, tmp_path / "c", tmp_path / "r.json"
    status = cli.main(
        ["bench", "run", path, "--out", str(out), "--json", str(kept), "--html", str(tmp_path / "p.html")]
    )
    said = capsys.readouterr()
    # Nobody could confirm the rates of a scripted server: that is the verdict, and the numbers are kept all the same.
    assert status == 3 and "UNRECONCILED" in said.out and said.out.rstrip().endswith(f"page: {tmp_path / 'p.html'}"), (
        said
    )
    assert "block 1 of 2" in said.err
    assert json.loads(kept.read_text()) == json.loads((out / "receipt.json").read_text())
    assert (out / "report.html").read_text() == (tmp_path / "p.html").read_text() != ""

    assert cli.main(["bench", "report", str(kept)]) == 3
    assert "UNRECONCILED" in capsys.readouterr().out
    assert cli.main(["bench", "rerun", str(kept), "--out", str(tmp_path / "again"), "--json"]) == 3
    again = json.loads(capsys.readouterr().out)
    assert again["suite"]["sha256"] == json.loads(kept.read_text())["suite"]["sha256"]
    changed = Path(path)
    changed.write_text(changed.read_text().replace("runs = 2", "runs = 3"))
    assert cli.main(["bench", "rerun", str(kept)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(
        f"rerun_differs: {kept} cannot be repeated here:\n  [workload] runs: expected 2, found 3"
    )

    assert cli.main(["bench", "rerun", str(kept), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["differences"][0] == "[workload] runs: expected 2, found 3"

    assert cli.main(["bench", "plan", path]) == 0
    said = capsys.readouterr()
    assert "2 arms x 2 blocks" in said.out and "block 2" in said.out and said.err == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "{suite}", "--port", "30000"], "suite_invalid: --port: expected none, as the arms of "),
        (["run", "{plain}", "--out", "x"], "suite_invalid: --out x: expected a suite with arms, found none in "),
        (["run", "{suite}", "--out", "/proc/no"], "campaign_folder: campaign folder /proc/no cannot be made"),
        (["run", "{suite}", "--json", "/proc/no/r.json"], "receipt_unwritable: receipt /proc/no/r.json"),
        (["plan", "{plain}"], "suite_invalid: suite "),
        (["report", "/no/receipt"], "receipt_unreadable: receipt /no/receipt: expected a file, found none"),
        (["report", "{plain}"], "receipt_unreadable: "),
        (["rerun", "/no/receipt"], "receipt_unreadable: receipt /no/receipt: expected a file, found none"),
    ],
)
def test_wrong_input_is_one_sentence(
    suite: Callable[..., Suite], capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    places = {"suite": suite().path, "plain": str(ROOT / "benchmarks" / "rig.toml")}
    assert cli.main(["bench", *(word.format(**places) for word in words)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"sglang-ext: {text}") and said.err.count("\n") == 1


def test_a_campaign_that_is_killed_goes_on(suite: Callable[..., Suite], tmp_path: Path) -> None:
    out = tmp_path / "c"
    command = [sys.executable, "-m", "sglang_ext", "bench", "run", suite(blocks=4).path, "--out", str(out)]
    for signal_ in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        before = len(list(out.glob("launch-*")))
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            while len(list(out.glob("launch-*"))) < before + 1:  # at least one more launch, then at any moment
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.005)
            process.send_signal(signal_)
            _, told = process.communicate(timeout=60)
        assert process.returncode == (130 if signal_ == signal.SIGINT else -signal_), told
        if signal_ != signal.SIGKILL:
            assert f"variables, with: sglang-ext bench run {suite(blocks=4).path} --out {out}" in told
            kept = [json.loads(path.read_text()) for path in out.glob("launch-*")]
            whole = journal.finished_blocks(json.loads((out / "campaign.json").read_text())["plan"], kept)
            assert f"interrupted; {len(whole)} of 4 blocks " in told
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3, done.stdout + done.stderr
    found = json.loads((out / "receipt.json").read_text())
    whole = journal.finished_blocks(found["plan"], launches(found))
    assert sorted(whole) == [0, 1, 2, 3]
    # What was finished before a kill was not taken again; what was under way was.
    assert all(
        len([one for one in launches(found) if one["block"] == b and one["state"] == "finished"]) == 2 for b in whole
    )


# ---- a receipt that counts is not replaced by one that does not


def test_an_invalid_receipt_does_not_replace_a_valid_one(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    valid, invalid = ({"schema": receipt.SCHEMA, "state": state} for state in ("VALID", "INVALID"))
    assert verb._keep(invalid, str(file)) == str(file)
    assert verb._keep(valid, str(file)) == str(file)  # it replaces one that does not count
    assert verb._keep(invalid, str(file)) == str(tmp_path / "r.invalid.json")
    assert json.loads(file.read_text()) == valid and json.loads((tmp_path / "r.invalid.json").read_text()) == invalid
    assert verb._keep(valid, str(file)) == str(file)
    (tmp_path / "notes.json").write_text("mine")
    assert verb._keep(invalid, str(tmp_path / "notes.json")) == str(tmp_path / "notes.json")


def test_every_reason_is_in_the_table() -> None:
    codes = (
        "server_not_ready", "server_left_over", "keeper_lost", "launch_failed_twice", "block_unfinished", "outputs_differ",
        "campaign_folder", "campaign_differs", "journal_damaged", "receipt_unreadable", "rerun_differs", "server_ended",
        "port_taken", "arms_differ", "launch_differs", "unreconciled",
    )  # fmt: skip
    assert [code for code in codes if code not in TABLE] == []


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside.txt", "link.txt"])
def test_a_prompt_elsewhere_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.txt").write_text("somebody else's text")
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    text = f'[suite]\nname = "s"\nsummary = "S"\n[workload]\nprompt_file = "{name}"\n'
    with pytest.raises(SuiteError, match="prompt_file: expected a file beside the suite or below, found "):
        parse_suite(text.encode(), str(folder / "s.toml"))
