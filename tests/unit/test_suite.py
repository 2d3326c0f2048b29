"""Suites: what is read, what is refused, and that a refusal says where, what was expected, found, and the fix."""

from __future__ import annotations

import hashlib
import os
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
        (
            "\ufeff" + HEAD + WORK,
            "expected UTF-8, found a byte order mark before it; save the file as UTF-8 without one",
        ),
        (HEAD + '[workload]\nprompt = " \\n"\n', "prompt: expected some text, found blanks only"),
        (
            HEAD + WORK + "runs = 99999999999999999999999\n",
            "runs: expected 1000 at most, found a larger number; correct it",
        ),
        (HEAD + WORK + "runs = 1001\n", "runs: expected 1000 at most, found 1001"),
        (HEAD + WORK + f"runs = {'9' * 5000}\n", "expected TOML, found a number or nesting without end"),
        (HEAD + WORK + "tokens = 1000001\n", "tokens: expected 1000000 at most, found 1000001"),
        (HEAD + WORK + "timeout_s = 1e300\n", "timeout_s: expected seconds, 604800 at most, found 1e+300"),
        (HEAD + WORK + f"timeout_s = {'9' * 400}\n", "timeout_s: expected seconds, 604800 at most, found inf"),
        (HEAD.replace('"s"', '".."') + WORK, "[suite] name: expected a letter, digit, _ or - first, found '..'"),
        (
            HEAD.replace('"s"', f'"{"s" * 61}"') + WORK,
            "[suite] name: expected 60 letters at most, found 61; shorten it",
        ),
        (
            HEAD.replace('"S"', '"a\\nb"') + WORK,
            "[suite] summary: expected one line of visible characters, found U+000A in it",
        ),
        (
            HEAD.replace('"S"', '"a\\u001B[2Jb"') + WORK,
            "summary: expected one line of visible characters, found U+001B in it",
        ),
        (
            HEAD.replace('"S"', '"a\\u202Eb"') + WORK,
            "summary: expected one line of visible characters, found U+202E in it",
        ),
        (
            HEAD.replace('"S"', '"a\\u2028b"') + WORK,
            "summary: expected one line of visible characters, found U+2028 in it",
        ),
        (
            HEAD.replace('"S"', '"http://u:p@h"') + WORK,
            "summary: expected a text without a password in it, found a URL",
        ),
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


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        load_suite("/dev/zero")
    assert str(caught.value) == "suite /dev/zero: expected a regular file, found a folder, device or pipe; name a file"
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SuiteError, match="expected a regular file, found a folder, device or pipe"):
        load_suite(str(tmp_path / "fifo"))
    with pytest.raises(SuiteError, match="expected a regular file, found a folder"):
        load_suite(str(tmp_path))
    file = tmp_path / "s.toml"
    text = HEAD + '[workload]\nprompt_file = "p"\n'
    file.write_text(text + "#" * ((1 << 20) - len(text)))
    for size, good in ((4 << 20, True), ((4 << 20) + 1, False)):
        (tmp_path / "p").write_text("x" * size)
        if good:
            assert len(load_suite(str(file)).workload.prompt) == size
        else:
            with pytest.raises(
                SuiteError, match=r"prompt_file p: expected 4 MiB at most, found more; name the file that was"
            ):
                load_suite(str(file))
    with file.open("a") as more:
        more.write("#")
    with pytest.raises(SuiteError, match=r"s\.toml: expected 1 MiB at most, found more; name the file that was meant"):
        load_suite(str(file))


def test_a_prompt_file_of_blanks_or_with_a_mark_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(HEAD + '[workload]\nprompt_file = "p"\n')
    (tmp_path / "p").write_text(" \n")
    with pytest.raises(SuiteError, match="prompt_file p: expected some text, found an empty file"):
        load_suite(str(file))
    (tmp_path / "p").write_text("\ufeffhello")
    with pytest.raises(SuiteError, match="prompt_file p: expected UTF-8, found a byte order mark before it"):
        load_suite(str(file))


def test_summaries_may_be_of_any_language() -> None:
    assert (
        parse_suite((HEAD.replace('"S"', '"Größe, 速度 · α ≤ β"') + WORK).encode(), "s.toml").summary
        == "Größe, 速度 · α ≤ β"
    )


def test_whole_numbers_are_seconds_too_and_zero_temperature_may_be_said() -> None:
    suite = parse_suite((HEAD + WORK + "timeout_s = 30\ntemperature = 0\nignore_eos = true\n").encode(), "s.toml")
    assert suite.workload.timeout_s == 30.0
