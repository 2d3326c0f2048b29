"""The prompts of a suite: natural text where drafts are measured, and each run takes the next one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_ext.bench.suites import prompts
from sglang_ext.bench.suites.prompts import Prompt, distinct_pairs
from sglang_ext.bench.suites.suite import SuiteError
from tests.unit.suite_texts import BENCHMARKS, CAMPAIGN, GOOD, HEAD, ONE, RUNNING, TWO, WORK, parse

LOOP = "again and again " * 100
DRAFTED = '[[arm]]\nname = "d"\ndraft = "x"\narguments = ["--tp", "1"]\n'


@pytest.mark.parametrize(
    ("prompt", "arms", "natural"),
    [
        (LOOP, ONE + DRAFTED, False),
        (LOOP, RUNNING, False),  # whether they draft is not known
        (LOOP, ONE + TWO, True),
        ("the quick brown fox", ONE + DRAFTED, True),
    ],
)
def test_a_prompt_that_repeats_itself_is_not_for_drafts(prompt: str, arms: str, natural: bool) -> None:
    campaign = CAMPAIGN.replace('"arguments.tp_size"', '"arguments.tp_size", "draft"')
    text = HEAD + f'[workload]\nprompt = "{prompt}"\n' + campaign + arms
    if natural:
        assert parse(text).workload.prompt == prompt
    else:
        with pytest.raises(SuiteError, match=r"expected natural text.*found a stretch that repeats itself"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 1.0),
        ("hello", 1.0),
        ("one two three four", 1.0),
        ("a b a b a b a b a", 2 / 8),
        ("x" * 101, 1 / 100),
        ("The the THE the the", 1 / 4),
    ],
)
def test_the_share_of_distinct_pairs(text: str, share: float) -> None:
    assert distinct_pairs(text) == pytest.approx(share)


def test_a_loop_is_found_wherever_in_the_text_it_is() -> None:
    prose = (BENCHMARKS / "prompts" / "prose.txt").read_text()
    loop = "yes no " * prompts.WINDOW
    for text in (loop + prose, prose + loop, prose + loop + prose):
        with pytest.raises(SuiteError, match="repeats itself"):
            prompts.check_natural(Prompt("p.txt", text), "here")
    prompts.check_natural(Prompt("p.txt", prose * 3), "here")  # a text of its own length again is no loop
    short = " ".join([*prose.split()[: prompts.WINDOW], *["no"] * 9])  # nor is an end of a few words
    prompts.check_natural(Prompt("p.txt", short), "here")


def test_each_run_takes_the_next_prompt(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(f"text {name}")
    text = GOOD.replace('prompt = "hello"', 'prompts = ["a", "b", "c"]\nruns = 4')
    work = parse(text, str(tmp_path / "s.toml")).workload
    assert [work.prompt_of(run) for run in range(4)] == ["text a", "text b", "text c", "text a"]
    assert work.prompt == "text a"
    pairs = work._replace(streams=2)
    assert [pairs.prompt_of(run, stream) for run in range(2) for stream in range(2)] == [
        "text a", "text b", "text c", "text a",
    ]  # fmt: skip
    stored = work.to_json()
    assert "prompt" not in stored and [one["file"] for one in stored["prompts"]] == ["a", "b", "c"]
    assert "text a" not in json.dumps(stored) and stored["prompt_characters"] == 18
    assert parse(HEAD + WORK).workload.prompt_of(3) == "hello"
