"""Suites with arms: what a campaign is made of, what is refused and in which words, and what starts each arm's server."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from sglang_ext.bench.suites import arms, prompts
from sglang_ext.bench.suites import suite as suites
from sglang_ext.bench.suites.prompts import Prompt, distinct_pairs
from sglang_ext.bench.suites.suite import Arm, Suite, SuiteError, changed, command, load_suite, missing, parse_suite
from sglang_ext.bench.suites.under_test import covers
from sglang_ext.contract.decide import decide
from sglang_ext.contract.profile import load_profile
from sglang_ext.delivery.options import launcher_parser, split
from tests.unit.cases import given_cases

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SHIPPED = sorted(path.name for path in BENCHMARKS.glob("*.toml"))
HEAD = '[suite]\nname = "s"\nsummary = "S"\n'
WORK = '[workload]\nprompt = "hello"\n'
CAMPAIGN = '[campaign]\nunder_test = ["arguments.tp_size"]\n'
SERVER = '[server]\narguments = ["--model-path", "m"]\n'
ONE = '[[arm]]\nname = "one"\nbaseline = true\narguments = ["--tp", "1"]\n'
TWO = '[[arm]]\nname = "two"\narguments = ["--tp=2"]\n'
GOOD = HEAD + WORK + CAMPAIGN + SERVER + ONE + TWO
TOKEN = "hf_hunter2" + "Ab3" * 9  # hide.py knows URLs; this is known by its beginning
LOOP = "again and again " * 100
DRAFTED = '[[arm]]\nname = "d"\ndraft = "x"\narguments = ["--tp", "1"]\n'
RUNNING = "".join(f'[[arm]]\nname = "r{port}"\naddress = "http://127.0.0.1:{port}"\n' for port in (1, 2))
RUNNING = RUNNING.replace('name = "r1"', 'name = "r1"\nbaseline = true')


def parse(text: str, path: str = "s.toml") -> Suite:
    return parse_suite(text.encode(), path)


def filled(name: str) -> Suite:
    """A shipped suite, with its [paths] filled in where it leaves that to the user."""
    text = (BENCHMARKS / name).read_text()
    text = text.replace('model = ""', 'model = "/models/m"').replace('draft = ""', 'draft = "/models/d"')
    return parse(text, str(BENCHMARKS / name))


def arm(suite: Suite, name: str) -> Arm:
    (found,) = (one for one in suite.arms if one.name == name)
    return found


def test_defaults_and_the_control() -> None:
    suite = parse(GOOD)
    campaign = suite.campaign
    assert campaign is not None
    assert campaign._replace(under_test=()) == (8, None, True, 0.02, 0.01, 0.05, (), "fixed", 3600.0, 0.0)
    assert [one.name for one in suite.arms] == ["one", "two", "one-again"]
    one, two, again = suite.arms
    assert (one.baseline, one.control, again.baseline, again.control) == (True, False, False, True)
    assert again == one._replace(name="one-again", summary="the baseline again", baseline=False, control=True)
    assert two.arguments == ("--model-path", "m", "--tp=2") and two.options == {"model_path": ("m",), "tp_size": ("2",)}
    assert (two.patches, two.without, two.draft, two.address, two.variables) == (True, (), None, None, {})
    assert not two.speculative
    without = parse(GOOD.replace("[campaign]", "[campaign]\ncontrol = false"))
    assert [one.name for one in without.arms] == ["one", "two"]


def test_a_suite_without_arms_has_no_campaign() -> None:
    suite = parse(HEAD + WORK)
    assert suite.campaign is None and suite.arms == ()
    assert {"campaign", "arms", "path"}.isdisjoint(suite.to_json())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_suite_is_read(name: str) -> None:
    suite = filled(name)
    assert suite.name == name.removesuffix(".toml")
    if suite.campaign is None:
        return
    starts = [one for one in suite.arms if not one.control]
    argv = {one.name: command(one, 30000)[0] for one in starts}
    assert len({tuple(words) for words in argv.values()}) == len(starts) >= 2
    assert not any("{" in word for words in argv.values() for word in words)
    assert json.loads(json.dumps(suite.to_json())) == suite.to_json()


def test_the_shipped_suites_are_those_of_the_page() -> None:
    """docs/suites.md tells of each; the two that ask a running server are not campaigns."""
    page = (ROOT / "docs" / "suites.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and ".toml`" in line]
    assert sorted(row.split("`")[1] for row in rows) == SHIPPED
    for row in rows:
        suite = filled(row.split("`")[1])
        size = row.rpartition("|")[0].rpartition("|")[2].strip().replace(" arms", "").replace(" blocks", "")
        assert size == (f"{len(suite.arms)} x {suite.campaign.blocks}" if suite.campaign else "none"), row


def test_the_page_has_every_key() -> None:
    page = (ROOT / "docs" / "suites.md").read_text()
    rows = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    keys = [*suites.SUITE, *suites.WITH_ARMS, *suites.CAMPAIGN, *arms.SHARED, *arms.ARM]
    assert [key for key in keys if f"`{key}`" not in rows] == []


def test_the_kimi_suite_is_the_question_it_asks() -> None:
    suite = filled("kimi-k2.5-eagle3.toml")
    campaign, work = suite.campaign, suite.workload
    assert campaign is not None
    assert (campaign.blocks, work.runs, work.tokens, len(work.prompts)) == (8, 5, 2048, 5)
    plain, two, three, again = suite.arms
    assert (plain.baseline, again.control, plain.draft, two.draft) == (True, True, None, "/models/d")
    assert [one.speculative for one in suite.arms] == [False, True, True, False]
    for one, steps in ((two, 2), (three, 3)):
        assert one.options["speculative_num_steps"] == (str(steps),)
        # sglang 0.5.23 would correct it with a warning only.
        assert one.options["speculative_num_draft_tokens"] == (str(steps + 1),)
        assert {k: v for k, v in one.options.items() if not k.startswith("speculative_")} == plain.options
    assert plain.options["tp_size"] == ("8",) and plain.variables["NCCL_PROTO"] == "LL"


@pytest.mark.parametrize("name", [name for name in SHIPPED if 'model = ""' in (BENCHMARKS / name).read_text()])
def test_a_shipped_suite_names_what_is_to_be_filled_in(name: str) -> None:
    with pytest.raises(SuiteError) as caught:
        load_suite(str(BENCHMARKS / name))
    assert str(caught.value) == (
        f"suite {BENCHMARKS / name}: [paths] model: expected where that is on this machine, found an empty string; fill it in"
    )


def test_the_shipped_prompts_are_of_different_kinds_and_natural() -> None:
    texts = {path.name: path.read_text() for path in (BENCHMARKS / "prompts").glob("*.txt")}
    assert len(texts) == 5
    for name, text in texts.items():
        assert 200 < len(text.split()) < 800 and distinct_pairs(text) > 0.9, name
    assert set(texts) == {str(one.file).rpartition("/")[2] for one in filled("kimi-k2.5-eagle3.toml").workload.prompts}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        # what belongs together
        (HEAD + WORK + CAMPAIGN, "expected an [[arm]] where there is [campaign], found none"),
        (HEAD + WORK + SERVER, "expected an [[arm]] where there is [server], found none"),
        (HEAD + WORK + SERVER + ONE + TWO, "[campaign]: expected the key under_test, found none"),
        (HEAD + WORK + CAMPAIGN + "[arm]\nname = 'x'\n", "expected arm to be an array of tables, found a table"),
        (HEAD + WORK + CAMPAIGN + ONE, "expected two arms or more, found one alone"),
        (GOOD.replace("baseline = true\n", ""), "expected one arm with baseline = true, found none"),
        (GOOD + "baseline = true\n", "expected one arm with baseline = true, found one, two"),
        (GOOD.replace('"two"', '"one"'), "expected a name of its own, found one again"),
        (GOOD.replace('"two"', '"one-again"'), "expected that name left to the control"),
        (GOOD.replace('"two"', '"t/o"'), "expected letters, digits and . _ - only, found 't/o'"),
        (GOOD + "port = 1\n", "expected name or summary or baseline"),
        (GOOD + "[[arms]]\n", "expected [suite] or [workload] or [paths] or [campaign] or [server] or [arm], found [arms]"),
        (GOOD.replace("[server]", '[server]\ncommand = "docker"'), "[server] command: expected launch, found 'docker'"),
        # the campaign's figures
        (GOOD.replace("[campaign]", "[campaign]\nblocks = 1"), "blocks: expected 2 or more, found 1"),
        (GOOD.replace("[campaign]", "[campaign]\nseed = -1"), "seed: expected 0 or more, found -1"),
        (GOOD.replace("[campaign]", "[campaign]\nalpha = 0.5"), "alpha: expected 0.001 or more and less than 0.5"),
        (GOOD.replace("[campaign]", "[campaign]\neffect = 0"), "effect: expected 0.001 or more and less than 1, found 0"),
        (GOOD.replace("[campaign]", "[campaign]\nmargin = nan"), "margin: expected 0.001 or more"),
        (GOOD.replace("[campaign]", '[campaign]\nrule = "peek"'), "rule: expected fixed or sequential, found 'peek'"),
        (GOOD.replace("[campaign]", "[campaign]\nready_timeout_s = inf"), "ready_timeout_s: expected seconds, 604800 at most"),
        (GOOD.replace("[campaign]", "[campaign]\nsettle_s = -1"), "settle_s: expected seconds, 0 or more, found -1"),
        (GOOD.replace("[campaign]", "[campaign]\nblocks = 1001"), "blocks: expected 1000 at most, found 1001"),
        (GOOD.replace("[campaign]", "[campaign]\nready_timeout_s = 1e300"), "expected seconds, 604800 at most, found 1e+300"),
        # names and summaries
        (GOOD.replace('"two"', '".."'), "[[arm]] number 2 name: expected a letter, digit, _ or - first, found '..'"),
        (GOOD.replace('"two"', f'"{"t" * 300}"'), "[[arm]] number 2 name: expected 60 letters at most, found 300"),
        (GOOD + "port = 1\n", "suite s.toml: arm two: expected name or summary"),
        (GOOD.replace('name = "two"', "port = 1"), "[[arm]] number 2: expected name or summary"),
        (GOOD + 'summary = "a\\u001B[31m"\n', "arm two summary: expected one line of visible characters, found U+001B in it"),
        (GOOD + 'summary = "a\\u202Eb"\n', "arm two summary: expected one line of visible characters, found U+202E in it"),
        # what is under test
        (GOOD.replace('"arguments.tp_size"', ""), "under_test: expected the thing under test, found an empty array"),
        (GOOD.replace('"arguments.tp_size"', '"tp"'), "under_test: expected arguments.NAME, contract.NAME"),
        (GOOD.replace('"arguments.tp_size"', '"arguments.*"'), "under_test: expected arguments.NAME"),
        (GOOD.replace('"arguments.tp_size"', '"patches", "patches"'), "expected each name once, found patches twice"),
        (GOOD.replace('"arguments.tp_size"', '"draft"'), "arm two against one: expected a difference in nothing but what is"),
        (GOOD.replace('"--tp=2"', '"--tp", "1"'), "arm two: expected another server than that of one, found the same one"),
        (GOOD + "patches = false\n", "found patches off against on; make it the same, or name patches in under_test"),
        (GOOD + 'without = ["mine"]\n', "found patches on without mine against on"),
        (GOOD + 'set = { NCCL_PROTO = "LL" }\n', "found contract.NCCL_PROTO LL against not given"),
        (GOOD + 'environment = { SGLANG_X = "1" }\n', "found environment.SGLANG_X 1 against not given"),
        (GOOD + 'draft = "x"\n', "found arguments.speculative_draft_model_path x against not given"),
        (
            GOOD.replace("arguments.tp_size", "contract.NCCL_*").replace('"--tp=2"', '"--tp=1"')
            + 'set = { NCCL_PROTO = "LL" }\n',
            "arm one: expected it to decide NCCL_PROTO, as another arm does, found nothing, so that the shell would",
        ),
        # arguments
        (GOOD.replace('"--tp=2"', '"two"'), "arm two arguments: expected an option (--...), found 'two'"),
        (GOOD.replace('"--tp=2"', "2"), "arm two arguments, number 1: expected a string, found an integer"),
        (GOOD.replace('"--tp=2"', '"--model=x"'), "arm two arguments: expected each option once, found --model again"),
        (GOOD.replace('"--tp=2"', '"--port", "1"'), "found --port, which is the campaign's to choose; leave it out"),
        (GOOD.replace('"--tp=2"', '"--por=1"'), "found --por, which is the campaign's to choose"),
        (GOOD.replace('"--tp=2"', '"--api-key", "hunter2"'), "found --api-key, which is a secret"),
        (GOOD.replace('"--tp=2"', '"--admin-api-k=hunter2"'), "found --admin-api-k, which is a secret"),
        (GOOD.replace('"--tp=2"', '"--watermark-key=hunter2"'), "found --watermark-key, which looks like one"),
        (GOOD.replace('"--tp=2"', '"--watermark-key-b=hunter2"'), "found --watermark-key-b, which looks like one"),
        (GOOD.replace('"--tp=2"', '"--hf-token=hunter2"'), "found --hf-token, which looks like one"),
        (GOOD.replace('"--tp=2"', '"--otlp=http://u:hunter2@h"'), "expected a value without a password in it"),
        (GOOD.replace('"--tp=2"', '"--config", "f"'), "found --config, which is a file of arguments"),
        (GOOD.replace('"--tp=2"', '"--nnodes=2"'), "found --nnodes, which is a server of several hosts"),
        (GOOD.replace('"--tp=2"', '"--set=A=b"'), "found --set, which is a key of the suite; write set = "),
        (GOOD.replace('"--tp=2"', '"--speculative-draft-model-path=d"'), "which is a key of the arm; write draft ="),
        (GOOD.replace('"--tp=2"', '"--accept", "conflict"') + "patches = false\n", "found --accept, the launcher's"),
        # the contract and the environment
        (GOOD + 'profile = "none-such"\n', "arm two: profile 'none-such': expected one of"),
        (GOOD + 'profile = "./none.toml"\n', "expected a readable file, found No such file"),
        (GOOD.replace("[server]", '[server]\nprofile = "cpu-rig"') + 'profile = "cpu-rig"\n', "expected one profile"),
        (GOOD + "set = { NCCL_PROTO = 1 }\n", "set NCCL_PROTO: expected a string, found an integer"),
        (GOOD + 'set = { "A=B" = "c" }\n', "expected a variable name (letters, digits"),
        (GOOD + 'set = { MY_TOKEN = "hunter2" }\n', "expected a name that holds no secret"),
        (GOOD + 'set = { SGLANG_EXT = "0" }\n', "found SGLANG_EXT (the launcher sets it itself"),
        (GOOD + 'set = { NCCL_X = "1" }\nabsent = ["NCCL_X"]\n', "--absent NCCL_X: expected a variable that is not set as"),
        (GOOD.replace("[server]", '[server]\nset = {NCCL_X="1"}') + 'set = {NCCL_X="2"}\n', "found NCCL_X in [server] too"),
        (GOOD + 'environment = { HOME = "/" }\n', "expected names that tune (NCCL_, SGLANG_, CUDA_, ...), found HOME"),
        (GOOD + 'environment = { MY_API_KEY = "hunter2" }\n', "found one that looks like a secret"),
        (GOOD + 'environment = { NCCL_X = "1" }\n', "expected no NCCL_ name, found NCCL_X; write it under set"),
        (GOOD + 'environment = { "SGLANG_A=B" = "1" }\n', "names that tune (NCCL_, SGLANG_, CUDA_, ...), found SGLANG_A=B"),
        (GOOD + "environment = { SGLANG_X = true }\n", "environment SGLANG_X: expected a string, found a boolean"),
        (GOOD + 'environment = { SGLANG_X = "http://u:hunter2@h" }\n', "expected a value without a password in it"),
        (GOOD + 'environment = {SGLANG_X = "1"}\nset = {SGLANG_X = "1"}\n', "expected SGLANG_X once, found it in environment"),
        (GOOD + 'patches = false\nwithout = ["x"]\n', "expected without or patches = false, found both"),
        # [paths]
        (GOOD + '[paths]\nmodel = "m"\n', "[paths] model: expected {model} in some argument, found none"),
        (GOOD + "[paths]\nmodel = 3\n", "[paths] model: expected a string, found an integer"),
        (GOOD + '[paths]\n"Mo del" = "m"\n', "expected a key of small letters, digits and _"),
        (GOOD.replace('"m"]', '"{model}"]'), "expected [paths] to have model, as {model} is used, found none"),
        (
            GOOD.replace('"m"]', '"{model}/x"]') + '[paths]\nmodel = "m"\n',
            "expected {model} to be a whole value, found '{model}/x'",
        ),
        (
            GOOD.replace('"m"]', '"{model}"]') + '[paths]\nmodel = "https://user:hunter2@h/x"\n',
            "[paths] model: expected a value without a password in it, found a URL that holds one; leave it out",
        ),
        (GOOD.replace('"m"]', '"{model}"]') + '[paths]\nmodel = "~/llama"\n', "[paths] model: expected a path as it is, or"),
        (GOOD.replace('"m"]', '"$HOME/x"]'), "found $HOME/x, which no shell fills in here; write it out"),
        (GOOD + 'draft = "~/x"\n', "arm two draft: expected a path as it is, or a name on a hub, found ~/x"),
        (GOOD + 'draft = "https://user:hunter2@h/x"\n', "arm two draft: expected a value without a password in it"),
        # secrets under harmless names
        (
            GOOD.replace('"--tp=2"', "'--json-model-override-args', '{\"a\": [{\"token\": \"hunter2\"}]}'"),
            "--json-model-override-args: expected a value without a password in it, found JSON that has one under 'token'",
        ),
        (GOOD.replace('"--tp=2"', "'--x={\"apiKey\": \"hunter2\"}'"), "found JSON that has one under 'apiKey'"),
        (GOOD + f'set = {{ NCCL_X = "{TOKEN}" }}\n', "arm two set NCCL_X: expected a value without a password in it"),
        (GOOD + f'environment = {{ SGLANG_X = "{TOKEN}" }}\n', "arm two environment SGLANG_X: expected a value without"),
        (GOOD.replace('"--tp=2"', f'"--x", "{TOKEN}"'), "found what looks like an access token"),
        # where a shared key is at fault
        (GOOD.replace("[server]", '[server]\nset = {NCCL_X = 1}'), "suite s.toml: [server] set NCCL_X: expected a string"),
        (GOOD.replace("[server]", "[server]\nenvironment = {SGLANG_X = 1}"), "suite s.toml: [server] environment SGLANG_X: expe"),
        # running servers
        (HEAD + WORK + CAMPAIGN + RUNNING + TWO, "found r1 and two; give every arm an address, or none"),
        (HEAD + WORK + CAMPAIGN + SERVER + RUNNING, "expected no [server], as every arm has an address, found one"),
        (HEAD + WORK + CAMPAIGN + RUNNING + "patches = true\n", "expected nothing but the address of a running server"),
        (HEAD + WORK + CAMPAIGN + RUNNING.replace(":2", ":1"), "expected a server of its own, found http://127.0.0.1:1 again"),
        (HEAD + WORK + CAMPAIGN + RUNNING.replace(":2", ":2/v1"), "expected http://HOST:PORT, found another text"),
        (HEAD + WORK + CAMPAIGN + RUNNING.replace("127.0.0.1:2", "u:hunter2@h:2"), "expected http://HOST:PORT, found another"),
        (HEAD + WORK + CAMPAIGN + RUNNING.replace(":2", ":70000"), "expected http://HOST:PORT"),
        # the workload
        (GOOD.replace('prompt = "hello"', ""), "expected one of prompt, prompt_file and prompts, found none"),
        (GOOD.replace('"hello"', '"hello"\nprompts = ["a"]'), "found prompt and prompts; give exactly one"),
        (GOOD.replace('prompt = "hello"', "prompts = []"), "prompts: expected one file or more, found an empty array"),
        (GOOD.replace('prompt = "hello"', 'prompts = ["a", "a"]'), "expected each file once, found a again"),
        (GOOD.replace('prompt = "hello"', 'runs = 1\nprompts = ["a", "b"]'), "expected no more files than requests of a"),
        (GOOD.replace('prompt = "hello"', 'prompts = ["nowhere"]'), "prompts nowhere: expected a readable file"),
        (GOOD.replace('"hello"', '"hello"\nstreams = 0'), "streams: expected 1 or more, found 0"),
        (GOOD.replace('"hello"', '"hello"\nendpoint = "x"'), "endpoint: expected generate or completions or chat, found 'x'"),
        (HEAD + WORK + "streams = 2\n", "found streams; correct or remove it"),
        (HEAD + WORK + "prompts = ['a']\n", "found prompts; correct or remove it"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence(text: str, part: str) -> None:
    with pytest.raises(SuiteError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("suite s.toml") and part in message and "\n" not in message
    assert "expected " in message and ", found " in message and "; " in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "value",
    [
        '{"bos_token": "<s>", "pad_token": "<p>", "num_key_value_heads": 8, "max_position_embeddings": 4096}',
        '{"rope_scaling": {"type": "yarn", "factor": 4.0}}', "{not JSON", "hf_transfer", "/models/hf_Llama3Model/x", "task-1234",
        "https://host/x", "meta-llama/Llama-3.1-8B", '{"token": 1}', '{"token": ""}',
    ],
)  # fmt: skip
def test_what_is_no_secret_is_taken(value: str) -> None:
    text = GOOD.replace('"--tp=2"', f"'--tp=2', '--x', '{value}'").replace('size"', 'size", "arguments.x"')
    assert arm(parse(text), "two").options["x"] == (value,)


def test_a_dollar_in_another_argument_is_taken() -> None:
    text = GOOD.replace('"--tp=2"', "'--tp=2', '--stop', '$x'").replace('size"', 'size", "arguments.stop"')
    assert arm(parse(text), "two").options["stop"] == ("$x",)


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


def test_paths_are_looked_for_beside_the_suite() -> None:
    text = GOOD.replace('"m"]', '"{model}", "--load={other}"]') + '[paths]\nmodel = "../m"\nother = "org/name"\n'
    text += '[[arm]]\nname = "three"\ndraft = "./d"\narguments = ["--tp", "1"]\n'
    text = text.replace('"arguments.tp_size"', '"arguments.tp_size", "draft"')
    suite = parse(text, "/some/where/s.toml")
    assert arm(suite, "one").options == {"model_path": ("/some/m",), "load": ("org/name",), "tp_size": ("1",)}
    three = arm(suite, "three")
    assert three.draft == "/some/where/d" and three.speculative
    assert three.arguments[-2:] == ("--speculative-draft-model-path", "/some/where/d")


def test_braces_that_are_no_placeholder_stay() -> None:
    text = GOOD.replace('"--tp=2"', """'--json-model-override-args={"a": {"b": 1}}'""").replace('"--tp", "1"', "")
    suite = parse(text.replace("tp_size", "json_model_override_args"))
    assert arm(suite, "two").options["json_model_override_args"] == ('{"a": {"b": 1}}',)


def test_harmless_arguments_are_not_taken_for_secrets() -> None:
    words = ["--speculative-token-map", "f", "--max-total-tokens", "5", "--tokenizer-path", "t", "--keyframes", "1"]
    suite = parse(GOOD.replace('"m"]', f'"m", {", ".join(json.dumps(word) for word in words)}]'))
    assert arm(suite, "one").options["max_total_tokens"] == ("5",)


def test_what_starts_a_patched_arm() -> None:
    text = GOOD.replace("[server]", '[server]\nprofile = "pcie-blackwell"\nabsent = ["NCCL_DEBUG"]')
    text = text.replace("[server]", '[server]\nset = { NCCL_PROTO = "Simple" }\nenvironment = { SGLANG_X = "1" }')
    text = text.replace('"arguments.tp_size"', '"arguments.tp_size", "patches"') + 'without = ["mine"]\n'
    two = arm(parse(text), "two")
    argv, changes = command(two, 1234, "/py", ["--run-dir=/r"])
    assert argv == [
        "/py", "-m", "sglang_ext.launch", "--profile=pcie-blackwell", "--set=NCCL_PROTO=Simple", "--absent=NCCL_DEBUG",
        "--without=mine", "--run-dir=/r", "--model-path", "m", "--tp=2", "--host", "127.0.0.1", "--port", "1234",
    ]  # fmt: skip
    assert changes == {"SGLANG_X": "1"}
    # The launcher reads it as it is meant, and comes to the contract that the suite says.
    ours, theirs = split(argv[3:])
    options = launcher_parser("launch").parse_args(ours)
    assert (options.without, options.run_dir, theirs[:2]) == (["mine"], "/r", ["--model-path", "m"])
    decided = decide(load_profile(options.profile), options.sets, options.absents, {})
    assert {term.name: term.want for term in decided.terms.values()} == two.variables
    assert (two.variables["NCCL_PROTO"], two.variables["NCCL_ALGO"], two.variables["NCCL_DEBUG"]) == (
        "Simple",
        "Ring",
        None,
    )


def test_what_starts_a_stock_arm() -> None:
    text = GOOD.replace("arguments.tp_size", "patches").replace("--tp=2", "--tp=1") + "patches = false\n"
    text = text.replace("[server]", '[server]\nset = { NCCL_PROTO = "LL" }\nabsent = ["NCCL_ALGO"]')
    stock = arm(parse(text.replace("[server]", '[server]\nenvironment = { SGLANG_X = "1" }')), "two")
    argv, changes = command(stock, 1234, "/py", ["--run-dir=/r"])
    assert argv[:4] == ["/py", "-m", "sglang.launch_server", "--model-path"]
    assert argv[-4:] == ["--host", "127.0.0.1", "--port", "1234"] and "--run-dir=/r" not in argv
    assert changes == {"SGLANG_X": "1", "NCCL_PROTO": "LL", "NCCL_ALGO": None, "SGLANG_EXT": "0"}


def test_a_running_arm_has_an_address_and_nothing_else() -> None:
    suite = parse(HEAD + WORK + CAMPAIGN + RUNNING)
    assert [(one.address, one.arguments, one.control) for one in suite.arms] == [
        ("http://127.0.0.1:1", (), False),
        ("http://127.0.0.1:2", (), False),
        ("http://127.0.0.1:1", (), True),
    ]


def test_a_profile_is_looked_for_beside_the_suite(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[profile]\nname = "own"\nsummary = "S"\n[env]\nNCCL_PROTO = "LL"\n')
    text = GOOD.replace("[server]", '[server]\nprofile = "own.toml"')
    one = arm(parse(text, str(tmp_path / "s.toml")), "one")
    assert one.contract["profile"] == str(tmp_path / "own.toml") and one.variables == {"NCCL_PROTO": "LL"}


def test_a_variable_that_one_arm_decides_may_be_absent_in_the_other() -> None:
    text = GOOD.replace("arguments.tp_size", "contract.NCCL_*").replace('"--tp=2"', '"--tp=1"')
    text = text.replace("baseline = true", 'baseline = true\nabsent = ["NCCL_PROTO"]') + 'set = { NCCL_PROTO = "LL" }\n'
    suite = parse(text)
    assert [one.variables["NCCL_PROTO"] for one in suite.arms] == [None, "LL", None]


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


def test_what_changed_since_a_receipt(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text a")
    (tmp_path / "own.toml").write_text('[profile]\nname = "own"\nsummary = "S"\n[env]\nNCCL_PROTO = "LL"\n')
    text = GOOD.replace('prompt = "hello"', 'prompt_file = "a"').replace("[server]", '[server]\nprofile = "own.toml"')
    path = str(tmp_path / "s.toml")
    stored = json.loads(json.dumps(parse(text, path).to_json()))
    assert stored["path"] == path and changed(stored, parse(text, path)) == []
    assert changed(stored, parse(text + "# a remark\n", path)) == []
    assert changed(stored, parse(text.replace("[campaign]", "[campaign]\nblocks = 9"), path)) == [
        "[campaign] blocks: expected 8, found 9"
    ]
    found = changed(stored, parse(text.replace("two", "three"), path))
    assert found == ["arm three: expected no such arm, found it", "arm two: expected it, found none"]
    (said,) = changed(stored, parse(text.replace("--tp=2", "--tp=4"), path))
    assert said.startswith("arm two arguments: expected ['--model-path', 'm', '--tp=2'], found")
    (tmp_path / "a").write_text("text b")
    assert any(line.startswith("[workload] prompt_sha256: expected ") for line in changed(stored, parse(text, path)))
    (tmp_path / "a").write_text("text a")
    (tmp_path / "own.toml").write_text('[profile]\nname = "own"\nsummary = "S"\n[env]\nNCCL_PROTO = "LL128"\n')
    found = changed(stored, parse(text, path))
    assert len(found) == 3 and all(" contract: expected " in line and "LL128" in line for line in found)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    text = GOOD.replace('"m"]', '"{model}"]') + f'[paths]\nmodel = "{tmp_path}/m"\n'
    suite = parse(text)
    assert missing(suite.arms) == (
        f"arm one model path: expected a folder or file, found none at {tmp_path}/m; correct it under [paths] or in the arm"
    )
    (tmp_path / "m").mkdir()
    assert missing(suite.arms) is None
    assert missing(parse(GOOD).arms) is None  # "m": a name on a hub


@pytest.mark.parametrize(
    ("entry", "fact", "covered"),
    [
        ("arguments.tp_size", "arguments.tp_size", True),
        ("arguments.tp", "arguments.tp_size", False),
        ("arguments.speculative_*", "arguments.speculative_draft_model_path", True),
        ("arguments.speculative_*", "arguments.tp_size", False),
        ("arguments.speculative_*", "contract.speculative_x", False),
        ("draft", "arguments.speculative_draft_model_path", True),
        ("draft", "arguments.speculative_num_steps", False),
        ("contract.NCCL_*", "contract.NCCL_PROTO", True),
        ("contract.NCCL_*", "environment.NCCL_PROTO", False),
        ("patches", "patches", True),
    ],
)
def test_what_an_entry_covers(entry: str, fact: str, covered: bool) -> None:
    assert covers([entry], fact) is covered and covers(["patches", entry], fact) is (covered or fact == "patches")


def test_no_secret_is_stored() -> None:
    suite = filled("kimi-k2.5-eagle3.toml")
    stored = json.dumps(suite.to_json())
    assert "Harrow" not in stored  # a prompt's text
    assert suite.workload.prompts[0].sha256 in stored and "pcie-blackwell" in stored


KEYS = [*arms.ARM, *arms.SHARED, *suites.CAMPAIGN, *suites.WITH_ARMS, "model", "x"]
WORDS = [
    "", "a", "a\nb", "one", "launch", "--tp", "--tp=1", "--set", "{model}", "draft", "arguments.x*", "http://h:1",
    "NCCL_PROTO", "\0", "../x",
]  # fmt: skip
PLAIN = st.one_of(st.sampled_from(WORDS), st.integers(-2, 9), st.floats(), st.booleans(), st.text(max_size=5))
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3), st.dictionaries(st.sampled_from(WORDS), PLAIN, max_size=2))
EMPTY: dict[str, Any] = {}
TABLE = st.just(EMPTY) | st.dictionaries(st.sampled_from([*KEYS, "a\nb"]), VALUES, max_size=3)
TABLES = st.fixed_dictionaries(dict.fromkeys(("campaign", "server", "paths", "workload"), TABLE))


def toml(value: object) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    if isinstance(value, float):
        return (
            "nan"
            if math.isnan(value)
            else ("-inf" if value < 0 else "inf")
            if math.isinf(value)
            else repr(float(value))
        )
    return json.dumps(value).replace("\\ud", "\\u0")  # no lone surrogates


@given_cases(300, st.lists(TABLE, min_size=1, max_size=2), TABLES)
def test_whatever_a_file_holds_it_is_a_suite_or_one_sentence(
    more: list[dict[str, object]], tables: dict[str, dict[str, object]]
) -> None:
    """Each table is a good one with any keys put over it."""
    good: dict[str, dict[str, object]] = {
        "suite": {"name": "s", "summary": "S"},
        "workload": {"prompt": "hello"},
        "campaign": {"under_test": ["arguments.x*", "patches", "draft", "contract.NCCL_*"]},
        "server": {},
        "paths": {},
    }
    lines = [f"{name} = {toml({**table, **tables.get(name, {})})}" for name, table in good.items()]
    given_arms = [
        {"name": "a", "baseline": True},
        *({"name": f"b{i}", "arguments": [f"--x={i}"], **one} for i, one in enumerate(more)),
    ]
    lines.append(f"arm = {toml(given_arms)}")
    try:
        suite = parse("\n".join(lines))
    except SuiteError as refusal:
        assert "\n" not in str(refusal) and str(refusal).startswith("suite s.toml")
    else:
        assert json.loads(json.dumps(suite.to_json())) == suite.to_json()
        assert all(command(one, 1) for one in suite.arms if one.address is None)
