"""Suites with arms: what a campaign is made of, what starts each arm's server, and what changed since a receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_ext.bench.suites.suite import changed, command, missing
from sglang_ext.bench.suites.under_test import covers
from sglang_ext.contract.decide import decide
from sglang_ext.contract.profile import load_profile
from sglang_ext.delivery.options import launcher_parser, split
from tests.unit.suite_texts import CAMPAIGN, GOOD, HEAD, RUNNING, WORK, arm, parse


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
