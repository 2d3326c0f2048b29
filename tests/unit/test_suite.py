"""Suites: what is read, what is refused, and that a refusal says where, what was expected, found, and the fix."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sglang_ext.bench.suites.suite import SuiteError, load_suite, parse_suite

ROOT = Path(__file__).resolve().parents[2]
HEAD = '[suite]\nname = "s"\nsummary = "S"\n'
WORK = '[workload]\nprompt = "hello"\n'


def parse(text: str) -> object:
    return parse_suite(text.encode(), "s.toml")


def test_defaults_are_the_baseline() -> None:
    suite = parse_suite((HEAD + WORK).encode(), "some/s.toml")
    work = suite.workload
    assert (suite.name, suite.summary, work.prompt) == ("s", "S", "hello")
    assert (work.tokens, work.runs, work.endpoint, work.temperature, work.ignore_eos) == (
        2048,
        5,
        "generate",
        0.0,
        True,
    )
    assert suite.sha256 == hashlib.sha256((HEAD + WORK).encode()).hexdigest()
    stored = suite.to_json()
    assert (stored["file"], stored["workload"]["prompt"]) == ("s.toml", "hello")


def test_the_shipped_suites_are_read() -> None:
    baseline, rig = (load_suite(str(ROOT / "benchmarks" / f"{name}.toml")) for name in ("baseline", "rig"))
    assert (baseline.workload.runs, baseline.workload.tokens) == (5, 2048)
    assert rig.workload.runs * rig.workload.tokens < 500


def test_a_prompt_file_is_found_beside_the_suite_and_stays_out_of_the_receipt(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("a long private prompt")
    file = tmp_path / "s.toml"
    file.write_text(HEAD + '[workload]\nprompt_file = "prompt.txt"\n')
    suite = load_suite(str(file))
    assert suite.workload.prompt == "a long private prompt"
    stored = suite.to_json()["workload"]
    assert "prompt" not in stored and stored["prompt_file"] == "prompt.txt"
    assert stored["prompt_sha256"] == hashlib.sha256(b"a long private prompt").hexdigest()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (WORK, "[suite]: expected the key name, found none"),
        (HEAD + "[workload]\n", "expected one of prompt and prompt_file, found neither"),
        (HEAD + WORK + 'prompt_file = "x"\n', "expected one of prompt and prompt_file, found both"),
        (HEAD + WORK + "token = 5\n", "found token; correct or remove it"),
        (HEAD + WORK + "[works]\n", "expected [suite] or [workload], found [works]"),
        (HEAD + "workload = 3\n" + WORK, "[suite]: expected name or summary, found workload"),
        ("workload = 3\n" + HEAD, "expected workload to be a table, found an integer"),
        (HEAD + WORK + 'tokens = "5"\n', "tokens: expected an integer, found a string"),
        (HEAD + WORK + "tokens = true\n", "tokens: expected an integer, found a boolean"),
        (HEAD + WORK + "tokens = 1\n", "tokens: expected 2 or more, found 1"),
        (HEAD + WORK + "runs = 0\n", "runs: expected 1 or more, found 0"),
        (HEAD + WORK + "timeout_s = 0\n", "timeout_s: expected seconds, more than 0, found 0"),
        (HEAD + WORK + "timeout_s = inf\n", "timeout_s: expected seconds"),
        (HEAD + WORK + "timeout_s = nan\n", "timeout_s: expected seconds"),
        (HEAD + WORK + "temperature = 0.7\n", "temperature: expected 0.0, as every run is greedy"),
        (HEAD + WORK + "ignore_eos = false\n", "ignore_eos: expected true"),
        (HEAD + WORK + 'endpoint = "chat"\n', "endpoint: expected generate or completions, found 'chat'"),
        (HEAD + '[workload]\nprompt = ""\n', "prompt: expected a string, found an empty string"),
        (HEAD + '[workload]\nprompt_file = "nowhere"\n', "prompt_file nowhere: expected a readable file"),
        (HEAD.replace('"s"', '"a b"') + WORK, "[suite] name: expected letters"),
        ("\xff", "expected TOML"),
    ],
)
def test_a_refusal_is_one_sentence(text: str, part: str) -> None:
    with pytest.raises(SuiteError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("suite s.toml") and part in message and "\n" not in message
    assert ": expected " in message and ", found " in message and "; " in message


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="expected a readable file, found No such file"):
        load_suite(str(tmp_path / "s.toml"))
    with pytest.raises(SuiteError, match="expected UTF-8, found another byte in line 2"):
        parse_suite(b'[suite]\nname = "\xff"\n', "s.toml")


def test_whole_numbers_are_seconds_too_and_zero_temperature_may_be_said() -> None:
    suite = parse_suite((HEAD + WORK + "timeout_s = 30\ntemperature = 0\nignore_eos = true\n").encode(), "s.toml")
    assert suite.workload.timeout_s == 30.0
