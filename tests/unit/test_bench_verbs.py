"""The verbs of bench on the command line: what is a receipt, what may be written where, and what a rerun says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_ext import cli, grammar, verbs
from sglang_ext.bench import receipt, verb
from sglang_ext.bench.campaigns import again, campaign, journal
from sglang_ext.bench.suites.suite import load_suite
from sglang_ext.reasons import TABLE
from sglang_ext.reasons.model import FAIL
from tests.unit import sample_campaign

HEAD = '[suite]\nname = "s"\nsummary = "S"\n'
SINGLE = HEAD + '[workload]\nprompt_file = "p.txt"\n'
ARMS = (
    HEAD
    + '[workload]\nprompt = "hello"\n[campaign]\nunder_test = ["arguments.tp_size"]\ncontrol = false\n'
    + '[server]\narguments = ["--model-path", "m"]\n'
    + '[[arm]]\nname = "one"\nbaseline = true\narguments = ["--tp", "1"]\n[[arm]]\nname = "two"\narguments = ["--tp=2"]\n'
)
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def made() -> dict[str, Any]:
    return sample_campaign.campaign(blocks=2, runs=1, tokens=6, gpus=0, throttled=None)


@pytest.fixture
def kept(tmp_path: Path, made: dict[str, Any]) -> Path:
    return keep(tmp_path / "r.json", made)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "p.txt").write_text("a prompt")
    (tmp_path / "single.toml").write_text(SINGLE)
    (tmp_path / "s.toml").write_text(ARMS)
    return tmp_path / "s.toml"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """Runs `bench WORDS` where nothing may be measured; returns status, stdout, stderr."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was measured")

    monkeypatch.setattr(verb, "bench", never)
    monkeypatch.setattr("sglang_ext.bench.campaigns.campaign.run", never)
    monkeypatch.setattr(verbs, "study", lambda: verb.Study(never, never, lambda *_: [(0.01, 0.02)]))

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = cli.main(["bench", *map(str, words)])
        except SystemExit as ended:  # argparse's way
            status = int(str(ended.code))
        return status, *capsys.readouterr()

    return run


def keep(path: Path, value: dict[str, Any]) -> Path:
    path.write_text(json.dumps(value))
    return path


def refused(found: tuple[int, str, str], start: str) -> str:
    status, out, err = found
    assert (status, out) == (2, "") and err.startswith(f"sglang-ext: {start}") and err.count("\n") == 1, found
    return err


# ---- what is a receipt


def test_a_receipt_is_shown_with_its_own_exit(said: Said, kept: Path, made: dict[str, Any]) -> None:
    assert said("report", kept)[0] == 0
    for state, status in (("INVALID", 4), ("UNRECONCILED", 3), ("INCONCLUSIVE", 5)):
        keep(kept, {**made, "state": state, "reason": "not_decided: too small", "exit": status})
        assert said("report", kept)[0] == status


@pytest.mark.parametrize(
    ("change", "names"),
    [
        *(({key: ...}, f"expected the key {key}, found none") for key in ("state", "reason", "exit", "suite", "arms")),
        ({"exit": "0"}, 'exit: expected a number, found "0"'),
        ({"exit": True}, "exit: expected a number, found true"),
        ({"exit": 77}, "exit: expected 0 of a receipt that is VALID, found 77"),
        ({"reason": "not_decided: x"}, 'reason: expected null of a receipt that is VALID, found "not_decided: x"'),
        ({"state": "INVALID"}, "exit: expected 1 or 3 or 4 of a receipt that is INVALID, found 0"),
        ({"state": "INVALID", "exit": 1}, "reason: expected a sentence of a receipt that is INVALID, found null"),
        ({"state": "FINE"}, "state: expected VALID, INVALID, UNRECONCILED, INCONCLUSIVE, found 'FINE'"),
        ({"arms": []}, "arms: expected one or more, each with its name, found none or others"),
        ({"arms": [{}]}, "arms: expected one or more, each with its name, found none or others"),
        ({"schema": "x/1"}, "expected schema sglang-ext/bench/1 or sglang-ext/campaign/1, found 'x/1'"),
    ],
)
def test_what_is_no_result_is_no_receipt(
    said: Said, tmp_path: Path, made: dict[str, Any], change: dict[str, Any], names: str
) -> None:
    changed = {key: value for key, value in {**made, **change}.items() if value is not ...}
    file = keep(tmp_path / "r.json", changed)
    assert names in refused(said("report", file), f"receipt_unreadable: receipt {file}: ")
    assert names in refused(said("rerun", file), f"receipt_unreadable: receipt {file}: ")


def test_a_schema_alone_is_no_receipt(said: Said, tmp_path: Path) -> None:
    file = keep(tmp_path / "r.json", {"schema": receipt.SCHEMA})
    assert "expected the key state, found none" in refused(said("report", file), "receipt_unreadable: ")


@pytest.mark.parametrize("schema", ["sglang-ext/campaign/1", "sglang-ext/campaign-plan/1"])
def test_the_plan_of_a_campaign_is_no_receipt(said: Said, tmp_path: Path, made: dict[str, Any], schema: str) -> None:
    plan = {key: made[key] for key in ("id", "plan", "suite", "time")}
    file = keep(tmp_path / "campaign.json", {**plan, "schema": schema})
    text = "found the plan of a campaign; its receipt is receipt.json beside it, once it has ended"
    assert text in refused(said("report", file), f"receipt_unreadable: receipt {file}: ")


@pytest.mark.parametrize("torn", ["", "{", "[]", "\udcff", "[" * 100_000])
def test_a_torn_receipt_gets_a_sentence_of_its_own(said: Said, tmp_path: Path, torn: str) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(torn.encode("utf-8", "surrogateescape"))
    err = refused(said("report", file), f"receipt_unreadable: receipt {file}: expected one whole JSON object")
    assert "--out" not in err


def test_a_folder_stands_for_the_receipt_in_it(said: Said, tmp_path: Path, made: dict[str, Any]) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    for name in ("report", "rerun"):
        err = refused(said(name, folder), f"receipt_unreadable: receipt {folder}: expected a file, or a folder with")
        assert "let its campaign end" in err
    keep(folder / "receipt.json", made)
    assert said("report", folder) == said("report", folder / "receipt.json")
    assert "suite_invalid: receipt " in refused(said("rerun", folder), "suite_invalid: ")
    (folder / "receipt.json").unlink()
    (folder / "receipt.json").mkdir()
    assert "found no regular file" in refused(said("report", folder), "receipt_unreadable: ")
    (tmp_path / "link").symlink_to(keep(tmp_path / "r.json", made))
    assert said("report", tmp_path / "link")[0] == 0


def test_a_campaign_that_has_not_ended_says_how_far_it_is(said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "my c"
    own = journal.Journal.open(str(folder))
    plan = {"blocks": [["one"], ["one"], ["one"]]}
    own.begin({"id": "c1", "plan": plan, "from": {"suite": "/s/a suite.toml"}})
    for block, state in ((0, "finished"), (1, "abandoned")):
        times = {"time": {"began": 1.0, "ended": 2.0}, "runs": []}
        own.keep({"campaign": "c1", "block": block, "order": 0, "attempt": 0, "arm": "one", "state": state, **times})
    own.close()
    err = refused(said("report", folder), f"receipt_unreadable: receipt {folder}: expected a file, or a folder with")
    command = f"sglang-ext bench run '/s/a suite.toml' --out '{folder}'"
    assert err.endswith(
        f"a campaign that has not ended (1 of 3 blocks finished); let it end, or go on with: {command}\n"
    )
    (folder / "launch-000-0-one.json").write_text("{}")  # how far it is cannot be said then
    err = refused(said("report", folder), "receipt_unreadable: ")
    assert err.endswith("found a folder without one; name another, or let its campaign end\n")


# ---- what may be written where


def test_a_plan_that_cannot_be_written(said: Said, suite: Path, tmp_path: Path) -> None:
    text = "receipt_unwritable: plan /nonexist/x: expected a writable folder"
    refused(said("plan", suite, "--json", "/nonexist/x"), text)
    assert said("plan", suite, "--json", tmp_path / "plan.json")[0] == 0
    assert json.loads((tmp_path / "plan.json").read_text())["schema"] == "sglang-ext/plan/1"
    refused(said("plan", suite, "--json", suite), f"receipt_unwritable: --json {suite}: expected a file of its own")
    assert suite.read_text() == ARMS


def test_a_page_that_cannot_be_written(said: Said, kept: Path, suite: Path) -> None:
    refused(said("report", kept, "--html", "/nonexist/x.html"), "receipt_unwritable: page /nonexist/x.html: expected a")
    refused(said("run", suite, "--html", "/nonexist/x.html"), "receipt_unwritable: page /nonexist/x.html: expected a")
    assert "page" in TABLE["receipt_unwritable"].meaning and "--html" in TABLE["receipt_unwritable"].meaning


def test_a_page_is_a_file(said: Said, kept: Path, tmp_path: Path) -> None:
    status, out, err = said("report", kept, "--html", "-")
    assert status == 2 and out == "" and "expected a file, found '-'; name one" in err and not Path("-").exists()
    status, out, _ = said("report", kept, "--html", tmp_path / "p.html")
    assert status == 0 and out.endswith(f"page: {tmp_path / 'p.html'}\n")
    assert (tmp_path / "p.html").read_text().rstrip().endswith("</html>")


def test_a_page_may_hold_any_text(said: Said, tmp_path: Path, made: dict[str, Any]) -> None:
    made["notes"] = ["half a pair: \ud800, turned: \u202e, joined: \u200d"]
    assert said("report", keep(tmp_path / "r.json", made), "--html", tmp_path / "p.html")[0] == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "half a pair: \\ud800, turned: \\u202e, joined: \\u200d" in page and "\u202e" not in page


def test_no_output_replaces_an_input(said: Said, suite: Path, kept: Path, tmp_path: Path) -> None:
    single, prompt = tmp_path / "single.toml", tmp_path / "p.txt"
    os.link(suite, tmp_path / "same-inode")
    (tmp_path / "link").symlink_to(suite)
    before = {file: file.read_bytes() for file in (single, prompt, suite, kept)}
    cases = [
        *(
            (("run", file, option, file), "found the suite")
            for file in (single, suite)
            for option in ("--json", "--html")
        ),
        *(
            (("run", suite, "--json", tmp_path / name), "found the suite")
            for name in ("same-inode", "link", "./s.toml")
        ),
        (("run", single, "--json", prompt), "found the prompt p.txt"),
        (("run", single, "--json", tmp_path / "x", "--html", tmp_path / "x"), "found --html"),
        (("run", suite, "--json", tmp_path / "x", "--html", tmp_path / "x"), "found --html"),
        (("report", kept, "--html", kept), "found the receipt it is made of"),
        (("rerun", kept, "--suite", suite, "--json", kept), "found the receipt that is repeated"),
        (("rerun", kept, "--suite", suite, "--html", kept), "found the receipt that is repeated"),
        (("rerun", kept, "--suite", suite, "--json", suite), "found the suite"),
    ]
    for words, found in cases:
        err = refused(said(*words), "receipt_unwritable: --")
        assert f"expected a file of its own, {found}; name another file" in err, (words, err)
    assert before == {file: file.read_bytes() for file in before}


def test_a_receipt_put_aside_is_not_replaced_by_its_own_repetition(
    said: Said, suite: Path, tmp_path: Path, made: dict[str, Any]
) -> None:
    """INVALID goes beside a VALID one: to the very file that is being repeated."""
    invalid = keep(tmp_path / "r.invalid.json", {**made, "state": "INVALID", "reason": "launch_refused: x", "exit": 1})
    err = refused(
        said("rerun", invalid, "--suite", suite, "--json", tmp_path / "r.json"), "receipt_unwritable: --json "
    )
    assert "found the receipt that is repeated" in err


@pytest.mark.parametrize("name", ["campaign.json", "launch-000-0-one.json", "receipt.json", "lock", "logs/x.log"])
def test_no_output_replaces_a_file_of_a_campaign(
    said: Said, suite: Path, kept: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "c"
    (folder / "logs").mkdir(parents=True)
    keep(folder / "campaign.json", {"a": 1})
    words = [("run", suite), ("run", suite, "--out", folder), ("report", kept), ("plan", suite)]
    for one in words:
        for option in {"report": ("--html",), "plan": ("--json",)}.get(str(one[0]), ("--json", "--html")):
            if (name, option, folder in one) == ("receipt.json", "--json", True):
                continue  # its own copy of it, there
            err = refused(said(*one, option, folder / name), f"receipt_unwritable: {option} {folder / name}: ")
            assert "found a name that a campaign keeps in its folder" in err
    assert (folder / "campaign.json").read_text() == '{"a": 1}'
    page = str(folder / "report.html")
    assert said("report", kept, "--html", page)[0] == 0
    refused(said("run", suite, "--out", folder, "--json", page), f"receipt_unwritable: --json {page}: ")


def test_what_is_no_conflict(tmp_path: Path) -> None:
    folder = str(tmp_path / "c")
    receipt.check_apart(
        {"--html": f"{folder}/report.html", "--json": f"{folder}/receipt.json"}, {"the suite": "s"}, folder
    )
    receipt.check_apart({"--html": "/dev/null", "--json": "/dev/null"}, {})
    keep(tmp_path / "receipt.json", {})  # a name like a campaign's, in no folder of one
    receipt.check_apart({"--json": str(tmp_path / "receipt.json")}, {})


def test_a_valid_receipt_behind_a_link_is_left_alone(tmp_path: Path, made: dict[str, Any]) -> None:
    (tmp_path / "link.json").symlink_to(keep(tmp_path / "r.json", made))
    assert receipt.place_for(str(tmp_path / "link.json"), "INVALID") == str(tmp_path / "link.invalid.json")
    assert receipt.place_for(str(tmp_path / "link.json"), "VALID") == str(tmp_path / "link.json")


# ---- options


@pytest.mark.parametrize(
    "words",
    [("--require", "live"), ("--wait", "5"), ("--all-processes",), ("--accept", "ll128_forced"), ("--port", "1")],
)
def test_a_suite_with_arms_takes_no_option_of_verify_env(said: Said, suite: Path, words: tuple[str, ...]) -> None:
    refused(
        said("run", suite, *words),
        f"suite_invalid: {words[0]}: expected none, as the arms of {suite} say which servers",
    )


@pytest.mark.parametrize("given", ["-5", "0", "nan", "inf", "fast"])
def test_a_rate_is_tokens_a_second(said: Said, suite: Path, given: str) -> None:
    status, _, err = said("plan", suite, f"--rate={given}")
    assert status == 2 and f"expected tokens a second, more than 0, found {given!r}" in err
    assert said("plan", suite, "--rate", "80.5")[0] == 0


def test_the_overview_has_every_exit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert [
        status for status in (0, 1, 2, 3, 4, 5, 130) if not any(one.startswith(f"  {status}  ") for one in lines)
    ] == []
    assert "INCONCLUSIVE" not in str(grammar.VERBS["verify-env"].text)


# ---- rerun


def stored(suite: Path, **arms: dict[str, Any]) -> dict[str, Any]:
    """The receipt of a campaign of ``suite``, some keys of its arms changed."""
    found = json.loads(json.dumps(load_suite(str(suite)).to_json()))
    found["arms"] = [{**arm, **arms.get(arm["name"], {})} for arm in found["arms"]]
    return {"suite": found, "arms": []}


def test_what_differs_is_the_words_that_do(suite: Path) -> None:
    long = [f"--option-{i}" for i in range(40)]
    suite.write_text(ARMS.replace('"m"]', '"/new/m", ' + ", ".join(f'"{one}"' for one in long) + "]"))
    old = {
        name: ["--model-path", "/old/m", *long, *rest] for name, rest in (("one", ["--tp", "1"]), ("two", ["--tp=3"]))
    }
    taken = stored(suite, **{name: {"arguments": words} for name, words in old.items()})
    assert again.differences(taken, load_suite(str(suite)))[:2] == [
        "every arm's arguments: expected /old/m, found /new/m",
        "arm two arguments: expected --tp=3, found --tp=2",
    ]
    assert not any("arguments" in one for one in again.differences(stored(suite), load_suite(str(suite))))


def test_other_differences_of_arms(suite: Path) -> None:
    taken = stored(suite, one={"environment": {"A": "x", "B": "y"}, "patches": 1, "arguments": ["--model-path", "m"]})
    taken["suite"]["arms"][1]["name"] = "three"
    assert again.differences(taken, load_suite(str(suite)))[:-1] == [
        "arm one arguments: expected nothing, found --tp 1",
        "arm one environment.A: expected x, found none",
        "arm one environment.B: expected y, found none",
        "arm one patches: expected 1, found True",
        "arm three: expected it, found none",
        "arm two: expected no such arm, found it",
    ]


def test_a_rerun_ends_with_what_to_do(said: Said, suite: Path, tmp_path: Path, made: dict[str, Any]) -> None:
    made["suite"] = stored(suite)["suite"]
    made["arms"] = [{**arm, "fingerprint": None} for arm in made["arms"]]
    file = keep(tmp_path / "r.json", made)
    status, out, _ = said("rerun", file)
    assert status == 1 and out.startswith(
        f"rerun_differs: {file} cannot be repeated here:\n  the receipt says of no arm "
    )
    assert out.endswith(f"\n    fix: {TABLE['rerun_differs'].fix}\n")
    status, out, _ = said("rerun", file, "--json")
    assert status == 1 and json.loads(out)["schema"] == "sglang-ext/rerun/1"


def test_a_rerun_says_where_it_looked_for_the_suite(said: Said, tmp_path: Path, made: dict[str, Any]) -> None:
    made["suite"]["path"] = "/was/here.toml"
    file = keep(tmp_path / "r.json", made)
    beside = tmp_path / "kimi-eagle3.toml"
    err = refused(
        said("rerun", file), f"suite_invalid: receipt {file}: expected its suite kimi-eagle3.toml at /was/here.toml"
    )
    assert f" or {beside} or {Path.cwd() / 'kimi-eagle3.toml'}, found none; name it with --suite" in err
    del made["suite"]["file"]
    keep(file, made)
    assert "expected the key file" in refused(said("rerun", file), f"receipt_unreadable: receipt {file}: suite: ")


def test_the_suite_of_a_single_run_is_found_where_it_was(tmp_path: Path) -> None:
    was = tmp_path / "suites" / "small.toml"
    was.parent.mkdir()
    was.write_text(SINGLE)
    taken = {"suite": {"file": was.name}, "from": {"suite": str(was), "sglang_ext": "0"}}
    assert again.suite_of(taken, str(tmp_path / "elsewhere" / "r.json"), None) == str(was)


def test_another_kind_of_suite(said: Said, suite: Path, kept: Path, tmp_path: Path) -> None:
    single = tmp_path / "single.toml"
    err = refused(said("rerun", kept, "--suite", single), f"suite_invalid: suite {single}: expected a suite with arms")
    assert "found a suite without arms; name the one it was taken with" in err
    beside = tmp_path / "kimi-eagle3.toml"
    beside.write_text(SINGLE)
    assert "found a suite without arms; name it with --suite" in refused(said("rerun", kept), "suite_invalid: ")


def test_a_damaged_receipt_is_no_traceback(said: Said, suite: Path, tmp_path: Path, made: dict[str, Any]) -> None:
    whole = stored(suite)["suite"]
    damages: list[dict[str, Any]] = [
        {"workload": 1},
        {"campaign": []},
        {"arms": 3},
        {"arms": [None, {}]},
        {"sha256": None},
    ]
    for damage in damages:
        assert said("rerun", keep(tmp_path / "r.json", {**made, "suite": {**whole, **damage}}))[0] == 1, damage
    prints: list[Any] = ["x", {"driver": 1}, {"machine": None, "server": {"packages": []}}]
    for print_ in prints:
        arms = [{**arm, "fingerprint": print_} for arm in made["arms"]]
        assert said("rerun", keep(tmp_path / "r.json", {**made, "suite": whole, "arms": arms}))[0] == 1, print_


def test_a_campaign_is_not_repeated_into_itself(said: Said, suite: Path, tmp_path: Path, made: dict[str, Any]) -> None:
    (tmp_path / "c").mkdir()
    file = keep(tmp_path / "c" / "receipt.json", made)
    for out in (tmp_path / "c", f"{tmp_path}/c/../c/"):
        err = refused(
            said("rerun", file, "--suite", suite, "--out", out), f"campaign_folder: --out {out}: expected another"
        )
        assert "name a new one" in err


# ---- reasons


def test_a_mark_is_no_verdict() -> None:
    from sglang_ext.bench.machine import marks

    codes = ("throttled", "clock_dropped", "pcie_degraded", "ecc_errors", "co_tenant", "cpu_steal", "cpu_throttled")
    for code in (*codes, "machine_changed"):
        assert marks.excludes(code) and TABLE[code].severity == FAIL
        assert TABLE[code].meaning.endswith("It ends no campaign: the launch's pair is excluded."), code
    for code in ("campaign_unfinished", "too_few_pairs", "not_decided"):
        assert TABLE[code].exit == 5 and TABLE[code].meaning.endswith("INCONCLUSIVE."), code


def test_every_file_of_a_campaign_folder_is_known_for_one() -> None:
    launch = journal.launch_name({"block": 3, "order": 0, "arm": "eagle3", "attempt": 1})
    assert all(receipt.OWN.fullmatch(name) for name in (journal.HEAD, journal.RECEIPT, journal.LOCK, launch))


# ---- interrupted, planned


def test_the_command_that_goes_on_is_whole(
    said: Said, suite: Path, tmp_path: Path, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rerun's too: its folder knows what it repeats (tests/e2e/test_campaign_processes.py)."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sglang_ext.bench.campaigns.campaign.run", interrupted)
    monkeypatch.setattr("sglang_ext.delivery.supervisor.die_as", lambda _: 130)
    monkeypatch.setattr(again, "differences", lambda *_: [])
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "a suite.toml"
    place.write_text(suite.read_text())
    file = keep(tmp_path / "r.json", {**made, "suite": load_suite(str(place)).to_json()})
    how = "interrupted; what is finished is kept; go on, in a shell with the same variables, with"
    common = f"{how}: sglang-ext bench run '{place}' --out '{tmp_path}/my c'"
    for words in (("run", "a suite.toml"), ("rerun", file, "--suite", "a suite.toml")):
        status, _, err = said(*words, "--out", "my c", "--html", "p.html", "--json", "n.json")
        assert status == 130 and err.endswith(f"{common} --html {tmp_path}/p.html --json {tmp_path}/n.json\n")
        assert said(*words, "--out", "my c", "--json")[2].endswith(f"{common} --json -\n")
        assert said(*words, "--out", "my c")[2].endswith(f"{common}\n")


@pytest.mark.parametrize(
    ("finished", "text"),
    [
        (0, "0 of 8 blocks are finished: nothing is kept"),
        (1, "1 of 8 blocks is finished and kept"),
        (2, "2 of 8 blocks are finished and kept"),
    ],
)
def test_an_interrupt_says_what_is_kept(
    said: Said, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: int, text: str
) -> None:
    def interrupted(*_: Any) -> None:
        raise campaign.Interrupted(finished)

    monkeypatch.setattr("sglang_ext.bench.campaigns.campaign.run", interrupted)
    monkeypatch.setattr("sglang_ext.delivery.supervisor.die_as", lambda _: 130)
    err = said("run", suite, "--out", tmp_path / "c")[2]
    assert f"interrupted; {text}; go on, in a shell with the same variables, with: sglang-ext bench run " in err


def test_a_plan_promises_what_the_look_at_its_end_can_find(
    said: Said, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[float] = []

    def outlook(_: int, level: float, __: int) -> list[tuple[float, float]]:
        levels.append(level)
        return []

    monkeypatch.setattr(verbs, "study", lambda: verb.Study(lambda _: None, lambda found: found, outlook))
    text = suite.read_text()
    for rule, blocks in (("fixed", 8), ("sequential", 8), ("sequential", 4)):
        suite.write_text(text.replace("[campaign]\n", f'[campaign]\nrule = "{rule}"\nblocks = {blocks}\n'))
        assert said("plan", suite)[0] == 0
    assert levels == pytest.approx([0.05, 0.045, 0.05])
