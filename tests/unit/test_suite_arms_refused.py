"""What a suite with arms may not hold, each refused in one sentence; and what only looks like it is taken."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import strategies as st

from sglang_ext.bench.suites import arms
from sglang_ext.bench.suites import suite as suites
from sglang_ext.bench.suites.suite import SuiteError, command
from tests.unit.cases import given_cases
from tests.unit.suite_texts import CAMPAIGN, GOOD, HEAD, ONE, RUNNING, SERVER, TWO, WORK, arm, parse

TOKEN = "hf_hunter2" + "Ab3" * 9  # hide.py knows URLs; this is known by its beginning


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


def test_harmless_arguments_are_not_taken_for_secrets() -> None:
    words = ["--speculative-token-map", "f", "--max-total-tokens", "5", "--tokenizer-path", "t", "--keyframes", "1"]
    suite = parse(GOOD.replace('"m"]', f'"m", {", ".join(json.dumps(word) for word in words)}]'))
    assert arm(suite, "one").options["max_total_tokens"] == ("5",)


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
