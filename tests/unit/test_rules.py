"""Server flags against a contract: who fights whom, what a command line says, is upstream as cited."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract
from sglang_ext.contract.profile import load_profile
from sglang_ext.contract.rules import (
    ALWAYS_SET,
    ENGINE,
    FIGHTS,
    OPTIONS,
    READ_IN,
    SETTINGS,
    fights,
    flag_settings,
)

DETERMINISTIC = {"enable_deterministic_inference": True, "tp_size": 8}


def contract(*sets: str, absent: tuple[str, ...] = ()) -> Contract:
    return decide(None, sets, absent, {})


def fought(made: Contract, settings: Mapping[str, object], env: dict[str, str] | None = None) -> list[tuple[str, ...]]:
    return [(fight.flag, fight.variable, str(fight.forced)) for fight in fights(made, settings, env)]


@pytest.mark.parametrize(
    ("sets", "settings", "expected"),
    [
        # Deterministic inference needs the tree, but only between tensor-parallel ranks.
        (["NCCL_ALGO=Ring"], DETERMINISTIC, [("NCCL_ALGO", "allreduce:tree")]),
        (["NCCL_ALGO=allreduce:tree"], DETERMINISTIC, []),
        (["NCCL_ALGO=Allreduce:Tree"], DETERMINISTIC, [("NCCL_ALGO", "allreduce:tree")]),
        (["NCCL_ALGO=Ring"], {**DETERMINISTIC, "tp_size": 1}, []),
        (["NCCL_ALGO=Ring"], {"enable_deterministic_inference": True}, []),
        (["NCCL_ALGO=Ring"], {**DETERMINISTIC, "enable_deterministic_inference": False}, []),
        (["NCCL_MIN_NCHANNELS=4", "NCCL_MAX_NCHANNELS=8"], DETERMINISTIC, [("NCCL_MIN_NCHANNELS", "8")]),
        (["NCCL_PROTO=LL"], DETERMINISTIC, []),
        (["NCCL_ALGO=Ring"], {"rl_on_policy_target": "fsdp", "tp_size": 2},
         [("NCCL_ALGO", "allreduce:tree")]),
        (["NCCL_ALGO=Ring"], {"rl_on_policy_target": None, "tp_size": 2}, []),
        # Symmetric memory.
        (["NCCL_CUMEM_ENABLE=0", "NCCL_NVLS_ENABLE=0"], {"enable_symm_mem": True},
         [("NCCL_CUMEM_ENABLE", "1"), ("NCCL_NVLS_ENABLE", "1")]),
        (["NCCL_CUMEM_ENABLE=1", "NCCL_NVLS_ENABLE=1"], {"enable_symm_mem": True}, []),
        (["NCCL_CUMEM_ENABLE=0"], {"enable_symm_mem": True, "device": "cpu"}, []),
        (["NCCL_CUMEM_ENABLE=0"], {"enable_symm_mem": True, "device": "cuda"}, [("NCCL_CUMEM_ENABLE", "1")]),
        (["NCCL_CUMEM_ENABLE=0"], {"enable_symm_mem": True, "device": None}, [("NCCL_CUMEM_ENABLE", "1")]),
        (["NCCL_GRAPH_MIXING_SUPPORT=1"], {"enable_symm_mem": True, "dcp_size": 2},
         [("NCCL_GRAPH_MIXING_SUPPORT", "0")]),
        (["NCCL_GRAPH_MIXING_SUPPORT=1"], {"enable_symm_mem": True, "dcp_size": 1}, []),
        (["NCCL_GRAPH_MIXING_SUPPORT=1"], {"dcp_size": 2}, []),
        # NVLS.
        (["NCCL_NVLS_ENABLE=0"], {"enable_nccl_nvls": True}, [("NCCL_NVLS_ENABLE", "1")]),
        (["NCCL_NVLS_ENABLE=0", "NCCL_CUMEM_ENABLE=0"], {}, []),
        # Set for no one's sake: the seam repairs it, no flag needs it.
        (["CUDA_DEVICE_MAX_CONNECTIONS=32"], {**DETERMINISTIC, "enable_symm_mem": True}, []),
    ],
)  # fmt: skip
def test_who_fights(sets: list[str], settings: dict[str, object], expected: list[tuple[str, str]]) -> None:
    assert [(variable, forced) for _, variable, forced in fought(contract(*sets), settings)] == expected


def test_absence_fights_too() -> None:
    made = contract(absent=("NCCL_ALGO", "NCCL_NVLS_ENABLE"))
    settings = {**DETERMINISTIC, "enable_nccl_nvls": True}
    assert [fight.variable for fight in fights(made, settings)] == ["NCCL_ALGO", "NCCL_NVLS_ENABLE"]
    assert all(fight.want is None and "(absent)" in fight.sentence for fight in fights(made, settings))


@pytest.mark.parametrize(
    ("sets", "env", "forced"),
    [
        ((), {}, "8"),
        ((), {"SGLANG_DETERMINISTIC_NCCL_NCHANNELS": "4"}, "4"),
        ((), {"SGLANG_DETERMINISTIC_NCCL_NCHANNELS": "08"}, "8"),
        ((), {"SGLANG_DETERMINISTIC_NCCL_NCHANNELS": "many"}, "8"),
        (("SGLANG_DETERMINISTIC_NCCL_NCHANNELS=2",), {"SGLANG_DETERMINISTIC_NCCL_NCHANNELS": "4"}, "2"),
    ],
)
def test_the_channel_count_follows_upstreams_variable(sets: tuple[str, ...], env: dict[str, str], forced: str) -> None:
    made = contract("NCCL_MAX_NCHANNELS=64", *sets)
    assert fought(made, DETERMINISTIC, env) == [("--enable-deterministic-inference", "NCCL_MAX_NCHANNELS", forced)]
    assert fought(contract(f"NCCL_MAX_NCHANNELS={forced}", *sets), DETERMINISTIC, env) == []


def test_the_sentence_names_both_sides_the_place_and_the_way_out() -> None:
    made = decide(load_profile("pcie-blackwell"), [], [], {})
    [fight] = fights(made, DETERMINISTIC)
    assert fight.sentence == (
        "NCCL_ALGO: expected Ring (profile:pcie-blackwell), found --enable-deterministic-inference "
        "with tp_size 8, which makes sglang set it to allreduce:tree "
        "(srt/arg_groups/attention_hook.py:676 in 0.5.23); drop --enable-deterministic-inference, "
        "or launch with --set NCCL_ALGO=allreduce:tree"
    )
    # The way out is one: taking the advice ends the fight.
    advised = decide(load_profile("pcie-blackwell"), ["NCCL_ALGO=allreduce:tree"], [], {})
    assert fights(advised, DETERMINISTIC) == []


def test_an_empty_contract_fights_no_one() -> None:
    everything: dict[str, object] = dict.fromkeys(SETTINGS, 8)
    assert fights(Contract(), everything) == []


def test_following_every_advice_ends_every_fight() -> None:
    settings: dict[str, object] = {**dict.fromkeys(SETTINGS, 8), "device": "cuda"}
    wrong = contract(*(f"{rule.variable}=wrong" for rule in FIGHTS))
    found = fights(wrong, settings)
    assert len(found) == len(FIGHTS)
    advised = sorted({f"{fight.variable}={fight.forced}" for fight in found})
    assert len(advised) == len({fight.variable for fight in found})  # no two flags force different values
    assert fights(contract(*advised), settings) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("--model-path M --port 1", {}),
        ("--tp 8", {"tp_size": 8}),
        ("--tp=8", {"tp_size": 8}),
        ("--tp-size 8", {"tp_size": 8}),
        ("--tensor-parallel-size=8", {"tp_size": 8}),
        ("--tensor-par 8", {"tp_size": 8}),
        ("--tp 2 --tp-size=4", {"tp_size": 4}),
        ("--tp eight", {}),
        ("--tp", {}),
        ("--tp --enable-symm-mem", {"enable_symm_mem": True}),
        ("--tp-", {"tp_size": None}),
        ("--dcp-size 2 --device cpu", {"dcp_size": 2, "device": "cpu"}),
        ("--enable-deterministic-inference", {"enable_deterministic_inference": True}),
        ("--enable-determ --tp 2", {"enable_deterministic_inference": True, "tp_size": 2}),
        ("--enable-deterministic-inference=1", {}),
        ("--enable-nccl-nvls --enable-symm-mem", {"enable_nccl_nvls": True, "enable_symm_mem": True}),
        ("--enable-", {}),
        ("--", {}),
        ("-- --tp 8", {}),
        ("--rl-on-policy-target fsdp", {"rl_on_policy_target": "fsdp"}),
        ("--tpx 8 --enable-symm-memory tp 8", {}),
    ],
)
def test_settings_from_a_command_line(line: str, expected: dict[str, object]) -> None:
    expected = {name: value for name, value in expected.items() if value is not None}
    assert flag_settings(line.split()) == expected


def test_a_command_line_is_refused_before_a_model_loads() -> None:
    made = decide(load_profile("pcie-blackwell"), [], [], {})
    argv = ["--model-path", "M", "--tp", "8", "--enable-deterministic-inference"]
    assert [fight.variable for fight in fights(made, flag_settings(argv))] == ["NCCL_ALGO"]


def test_the_tables_fit_each_other() -> None:
    attributes = {attribute for attribute, _ in OPTIONS.values()}
    assert attributes == set(SETTINGS)
    assert {rule.flag for rule in FIGHTS} <= set(OPTIONS)
    for rule in FIGHTS:
        assert OPTIONS[rule.flag][0] in {attribute for attribute, _ in rule.needs}


_SPEC = importlib.util.find_spec("sglang")
_ROOT = next(iter(_SPEC.submodule_search_locations or ()), "") if _SPEC else ""

if _ROOT and os.path.isfile(os.path.join(_ROOT, ENGINE)):
    # Text only: importing sglang would take seconds, and a patched one would prove nothing else.

    def _lines(file: str) -> list[str]:
        with open(os.path.join(_ROOT, file), encoding="utf-8") as source:
            return source.read().splitlines()

    def _installed() -> str:
        try:
            return importlib.metadata.version("sglang")
        except importlib.metadata.PackageNotFoundError:
            return ""

    @pytest.mark.parametrize("rule", FIGHTS, ids=lambda rule: f"{rule.flag}:{rule.variable}")
    def test_upstream_still_assigns_what_we_cite(rule: object) -> None:
        rule = next(r for r in FIGHTS if r == rule)
        lines = _lines(rule.file)
        assert any(rule.text in line for line in lines)
        if _installed() == READ_IN:
            assert rule.text in lines[rule.line - 1]

    def test_upstream_still_always_sets() -> None:
        for name, value in ALWAYS_SET.items():
            assert any(line == f'    os.environ["{name}"] = "{value}"' for line in _lines(ENGINE))
