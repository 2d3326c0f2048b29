"""Is what was asked for in effect: on what real servers answered and wrote (tests/data/reconcile), and on changes to that.

Lines about an all-reduce on GPUs are as sglang's sources make them: no such machine was at hand. tests/e2e/test_reconciled.py
holds their words to the installed sources.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sglang_ext.bench.fingerprint import SECRET_VALUE
from sglang_ext.bench.suites.arms import Arm
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.bench.truth import in_effect
from sglang_ext.bench.truth.requested import requested, same
from sglang_ext.reasons import TABLE

DATA = Path(__file__).resolve().parents[1] / "data" / "reconcile"
SECRET = "hunter2-not-for-sharing"


class Case(NamedTuple):
    """A server of the rig."""

    arm: Arm
    info: dict[str, Any]
    log: str

    def check(self, **variables: str) -> tuple[dict[str, Any], list[Fault]]:
        return in_effect.check(self.arm, self.info, self.log, variables)

    def codes(self, **variables: str) -> list[str]:
        return [fault.code for fault in self.check(**variables)[1]]

    def with_info(self, **other: Any) -> Case:
        info = {**self.info, **other}
        info["internal_states"] = [
            {**state, **{k: v for k, v in other.items() if k in state}} for state in info["internal_states"]
        ]
        return self._replace(info=info)

    def with_words(self, *words: str, **other: Any) -> Case:
        return self._replace(arm=self.arm._replace(arguments=(*self.arm.arguments, *words), **other))


def arm(words: tuple[str, ...]) -> Arm:
    return Arm(
        "arm",
        "",
        False,
        False,
        words,
        {"profile": None, "set": {}, "absent": (), "variables": {}},
        {},
        True,
        (),
        None,
        None,
    )


def case(name: str) -> Case:
    """``drafting`` asks for five draft tokens, of which upstream makes three; here it asks for three."""
    found = json.loads((DATA / f"{name}.server.json").read_text())
    words = [word if word != "5" else "3" for word in found["words"]]
    decoded = (DATA / f"{'drafts' if name == 'drafting' else 'one'}.log").read_text()
    return Case(arm(tuple(words)), found["server_info"], (DATA / f"{name}.start.log").read_text() + decoded)


def on_gpus(**other: Any) -> Case:
    """The baseline as it would be on two GPUs, as far as arguments and lines go."""
    of_a_cpu = ("Setup Custom allreduce failed", "AllReduce is disabled")
    found = case("baseline").with_info(device="cuda", disable_cuda_graph=False, **other)
    words = tuple(word if word != "cpu" else "cuda" for word in found.arm.arguments)
    log = "\n".join(line for line in found.log.splitlines() if not any(words in line for words in of_a_cpu)).replace(
        "cpu graph: False", "cuda graph: True"
    )
    return found._replace(arm=found.arm._replace(arguments=words), log=log)


# --- nothing wrong


def test_a_plain_server() -> None:
    found, faults = case("baseline").check()
    assert faults == [] and found["changed"] == {} and found["simulated_acceptance"] is None
    assert found["requested"]["tp_size"] == "2" and found["effective"]["tp_size"] == 2
    assert (found["all_reduce"]["path"], found["all_reduce"]["inferred"]) == ("gloo", False)
    assert "shared memory based AllReduce is disabled" in found["all_reduce"]["evidence"]
    assert found["graphs"]["decode_lines"] >= 50 and found["graphs"]["captured"] == 0
    json.dumps(found)


def test_a_server_that_drafts() -> None:
    found, faults = case("drafting").check()
    assert faults == []
    assert (
        found["effective"]["speculative_algorithm"] == "EAGLE3"
        and found["effective"]["speculative_num_draft_tokens"] == 3
    )


def test_every_code_is_known() -> None:
    codes = {*in_effect.ARGUMENTS.values(), in_effect.VARIABLE, in_effect.GRAPHS, in_effect.ALL_REDUCE}
    assert codes <= TABLE.keys()


# --- arguments


def test_draft_tokens_that_upstream_changed() -> None:
    found = case("drafting").with_words("--speculative-num-draft-tokens", "5")
    told, (fault,) = found.check()
    assert fault.code == "steps_not_in_effect"
    assert fault.text == (
        "--speculative-num-draft-tokens: expected 5, found 3 in effect (with a top-k of 1 upstream takes steps + 1, whatever is "
        "asked for)"
    )
    assert told["changed"] == {"speculative_num_draft_tokens": {"requested": "5", "effective": 3}}


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("speculative_num_steps", 3, "steps_not_in_effect"),
        ("speculative_eagle_topk", 4, "steps_not_in_effect"),
        ("speculative_draft_model_path", "/models/another", "speculation_not_in_effect"),
        ("speculative_algorithm", "NGRAM", "speculation_not_in_effect"),
        ("speculative_algorithm", None, "speculation_not_in_effect"),
        ("speculative_adaptive", True, "speculation_adapts"),
        ("decode_attention_backend", "torch_native", "attention_not_in_effect"),
        ("tp_size", 1, "parallel_not_in_effect"),
        ("dtype", "bfloat16", "argument_not_in_effect"),
        ("model_path", "/models/deepseek", "argument_not_in_effect"),
    ],
)
def test_an_argument_that_is_another_one(name: str, value: Any, code: str) -> None:
    assert case("drafting").with_info(**{name: value}).codes() == [code]


def test_steps_that_adapt_may_be_asked_for() -> None:
    assert case("drafting").with_words("--speculative-adaptive").with_info(speculative_adaptive=True).codes() == []


def test_a_rank_that_has_another_one() -> None:
    found = case("drafting")
    states = [{**state, "speculative_num_steps": 1} for state in found.info["internal_states"]]
    _, (fault,) = found._replace(info={**found.info, "internal_states": states}).check()
    assert (fault.code, fault.text) == (
        "steps_not_in_effect", "DP0: speculative_num_steps: expected 2 as in /server_info, found 1",
    )  # fmt: skip


def test_other_changes_are_listed_and_not_refused() -> None:
    found = case("baseline").with_info(max_total_tokens=4096)
    told, faults = found.check()
    assert faults == [] and told["changed"] == {"max_total_tokens": {"requested": "8192", "effective": 4096}}


def test_what_a_release_does_not_tell_is_unknown() -> None:
    found = case("baseline")
    info = {name: value for name, value in found.info.items() if name not in ("dtype", "internal_states")}
    told, faults = found._replace(info=info).check()
    assert faults == [] and told["unknown"].keys() >= {"dtype", "internal_states"}


def test_a_running_server_is_held_against_its_own_words() -> None:
    found = case("drafting")
    running = found._replace(arm=arm(())._replace(address="http://127.0.0.1:1"))
    assert running.check()[0]["requested"]["speculative_num_draft_tokens"] == "5"  # as it was really started
    assert running.codes() == ["steps_not_in_effect"]
    silent = running._replace(info={k: v for k, v in found.info.items() if k != "launch_command"})
    assert silent.check()[0]["requested"] == {} and silent.codes() == []


def test_no_secret_gets_through() -> None:
    found = case("baseline").with_words("--api-key", SECRET, "--admin-api-key", SECRET).with_info(api_key="another")
    assert SECRET not in json.dumps(found.check())


URL, TOKEN = f"http://user:{SECRET}@proxy:1", "hf_AbCdEfGh12345678"


@pytest.mark.parametrize("value", [URL, TOKEN, json.dumps({"access_key": SECRET})])
def test_no_secret_under_a_harmless_name(value: str) -> None:
    """Of values that came from elsewhere than a suite, which is read for such."""
    words = (
        f"python -m sglang.launch_server --model-path {value!r} --proxy {value!r} --my-own {SECRET} --api-ke {SECRET}"
    )
    running = case("baseline").with_info(launch_command=words, proxy="none", my_own="else")
    running = running._replace(arm=arm(())._replace(address="http://127.0.0.1:1"))
    told, faults = running.check()
    assert [fault.code for fault in faults] == ["argument_not_in_effect"]  # it is compared all the same
    assert told["requested"] == {"model_path": SECRET_VALUE} and told["changed"].keys() == {"model_path"}
    said = json.dumps([told, faults])
    assert SECRET not in said and TOKEN not in said
    # Nor where the server's own word has it: as resolved, and as one of its ranks says it.
    own = case("baseline").with_info(model_path=value, speculative_draft_model_path=value)
    own.info["internal_states"] = [{"model_path": f"{value}x"}]
    told, faults = own.check(SGLANG_SIMULATE_ACC_METHOD=value)
    assert len(faults) == 2 and told["effective"]["speculative_draft_model_path"] == SECRET_VALUE
    said = json.dumps([told, faults])
    assert SECRET not in said and TOKEN not in said


def test_words_as_upstream_takes_them() -> None:
    words = [
        "--tp",
        "2",
        "--dp-size=4",
        "--enable-metrics",
        "--no-speculative-adaptive",
        "--lora-paths",
        "a",
        "b",
        "--tp",
        "8",
    ]
    assert requested(words) == {
        "tp_size": "8", "dp_size": "4", "enable_metrics": True, "speculative_adaptive": False, "lora_paths": "a b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "asked", "resolved", "right"),
    [
        ("tp_size", "2", 2, True),
        ("tp_size", "2", 4, False),
        ("mem_fraction_static", "0.80", 0.8, True),
        ("tp_size", "two", 2, False),
        ("disable_cuda_graph", True, True, True),
        ("disable_cuda_graph", True, False, False),
        ("enable_x", "True", True, True),
        ("dtype", "auto", "bfloat16", True),
        ("dtype", "half", "float16", True),
        ("speculative_algorithm", "NEXTN", "EAGLE", True),
        ("speculative_algorithm", "EAGLE3", "EAGLE", False),
        ("speculative_algorithm", "EAGLE3", None, False),
        ("lora_paths", "a b", ["a", "b"], True),
        ("cuda_graph_bs", "1 2", [1, 2], True),
    ],
)
def test_what_is_the_same(name: str, asked: str | bool, resolved: Any, right: bool) -> None:
    assert same(name, asked, resolved) is right


# --- what shows while it serves


def test_decode_lines_without_an_accept_length() -> None:
    found = case("drafting")
    broken = found._replace(log=re.sub(r"accept len: [\d.]+, ", "", found.log))
    assert broken.codes() == ["speculation_not_in_effect"]


def test_graphs_that_do_not_run() -> None:
    found = on_gpus()
    assert found.codes() == [] and found.check()[0]["graphs"]["captured"] > 0
    log = re.sub(r"(Decode batch.*)cuda graph: True", r"\1cuda graph: False", found.log, count=3)
    _, (fault,) = found._replace(log=log).check()
    assert fault.code == "graphs_not_in_effect" and "found 3 of " in fault.text
    assert found._replace(log=log).with_info(disable_cuda_graph=True).codes() == []  # nobody asked for them


def test_without_a_log() -> None:
    told, faults = in_effect.check(case("baseline").arm, case("baseline").info, None)
    assert faults == [] and told["unknown"].keys() >= {"all_reduce", "graphs", "speculation", "variables"}
    assert told["all_reduce"]["path"] is None


def test_the_end_of_a_log_says_nothing_of_the_way() -> None:
    found = on_gpus()
    tail = found.log[found.log.index("Decode batch") :]
    told, _ = found._replace(log=tail).check()
    assert told["all_reduce"]["path"] is None and "beginning" in told["unknown"]["all_reduce"]


# --- the way of the all-reduce

PCIE = {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}
ON = "[2026-11-30 04:40:00 TP0] FlashInfer PCIe-IPC all-reduce enabled (world=2, workspace sized on first reduction)\n"
MISSING = (
    "[2026-11-30 04:40:00 TP0] SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is set but this FlashInfer build has no pcie_ipc_comm; "
    "falling back to NCCL all-reduce.\n"
)
HALF = "[2026-11-30 04:40:01 TP0] FlashInfer PCIe-IPC all-reduce serves bf16 only; torch.float16 reductions stay on NCCL.\n"
NO_CUSTOM = (
    "[2026-11-30 04:40:00 TP1] {} is disabled because it's not supported on more than two PCIe-only GPUs. "
    "To silence this warning, specify disable_custom_all_reduce=True explicitly.\n"
)


@pytest.mark.parametrize(
    ("lines", "info", "path", "inferred"),
    [
        ("", {}, "custom", True),
        (NO_CUSTOM.format("CustomAllreduce"), {}, "nccl", False),
        (NO_CUSTOM.format("Custom allreduce"), {}, "nccl", False),
        (NO_CUSTOM.format("CustomAllReduceV2"), {}, "nccl", False),
        ("", {"disable_custom_all_reduce": True}, "nccl", False),
        (ON, {}, "pcie_ipc", False),
        (ON + HALF + NO_CUSTOM.format("CustomAllreduce"), {}, "nccl", False),
        ("", {"enable_torch_symm_mem": True}, "torch_symm_mem", True),
        ("", {"tp_size": 1}, "none", False),
        ("", {"device": "npu"}, None, False),
    ],
)
def test_the_way_by_lines_and_arguments(lines: str, info: dict[str, Any], path: str | None, inferred: bool) -> None:
    found = on_gpus().with_info(**info)
    told = found._replace(log=lines + found.log).check()[0]["all_reduce"]
    assert (told["path"], told["inferred"]) == (path, inferred) and told["evidence"]


@pytest.mark.parametrize("lines", ["", MISSING, ON + HALF])
def test_a_way_that_was_asked_for_and_is_not_taken(lines: str) -> None:
    found = on_gpus()
    (fault,) = found._replace(log=lines + found.log).check(**PCIE)[1]
    assert fault.code == "wrong_all_reduce" and fault.text.startswith(
        "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1: expected the all-reduce"
    )
    assert found._replace(log=ON + found.log).codes(**PCIE) == []
    assert found.codes(SGLANG_ENABLE_PCIE_IPC_ALLREDUCE="0") == []


def test_symmetric_memory_that_is_not_available() -> None:
    line = "[2026-11-30 04:40:00 TP0] TorchSymmMemCommunicator: World size 2 not supported, communicator is not available.\n"
    found = on_gpus(enable_torch_symm_mem=True)
    assert found._replace(log=line + found.log).codes() == ["wrong_all_reduce"]


# --- acceptance that is made up


def test_simulated_acceptance_is_labelled() -> None:
    found = case("drafting")
    told, faults = found.check(SGLANG_SIMULATE_ACC_LEN="2.5")
    assert faults == [] and told["simulated_acceptance"] == {
        "length": 2.5,
        "method": "match-expected",
        "tokens": "fixed",
        "note": "every accepted token is the same one: experts are routed as by no text",
    }
    real = found.check(SGLANG_SIMULATE_ACC_LEN="2.5", SGLANG_SIMULATE_ACC_TOKEN_MODE="real-draft-token")[0]
    assert real["simulated_acceptance"]["note"] is None
    for value in ("-1", "0", "", "nonsense"):
        assert found.check(SGLANG_SIMULATE_ACC_LEN=value)[0]["simulated_acceptance"] is None
    assert (
        case("baseline").check(SGLANG_SIMULATE_ACC_LEN="2.5")[0]["simulated_acceptance"] is None
    )  # it does not speculate


def test_simulated_acceptance_as_the_arm_or_the_server_says_it() -> None:
    found = case("drafting")
    own = found._replace(arm=found.arm._replace(environment={"SGLANG_SIMULATE_ACC_LEN": "3"}))
    assert own.check()[0]["simulated_acceptance"]["length"] == 3.0
    contract = {**found.arm.contract, "variables": {"SGLANG_SIMULATE_ACC_LEN": "2", "NCCL_PROTO": None}}
    assert found._replace(arm=found.arm._replace(contract=contract)).check()[0]["simulated_acceptance"]["length"] == 2.0
    states = [{**state, "env_vars": {"SGLANG_SIMULATE_ACC_LEN": "1.5"}} for state in found.info["internal_states"]]
    exposed = found._replace(info={**found.info, "internal_states": states})
    assert exposed.check()[0]["simulated_acceptance"]["length"] == 1.5


def test_a_name_that_nobody_reads() -> None:
    (fault,) = case("drafting").check(SIMULATE_ACC_LEN="2.5")[1]
    assert fault.code == "variable_without_effect" and "SGLANG_SIMULATE_ACC_LEN" in fault.text
