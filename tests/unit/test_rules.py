"""Server flags against a contract: who fights whom, what a command line says, is upstream as cited."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract
from sglang_ext.contract.profile import load_profile
from sglang_ext.contract.rules import (
    ALWAYS_SET,
    ENGINE,
    EVER_SET,
    FIGHTS,
    OPTIONS,
    PLACES,
    READ_IN,
    SETTINGS,
    always_set,
    fights,
    flag_settings,
    rules_of,
)
from sglang_ext.patchset.lock import load_lock

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


@pytest.mark.parametrize(
    ("release", "sets", "settings", "fought_over"),
    [
        # The channel count is pinned from 0.5.18 on.
        ("0.5.17", ["NCCL_MIN_NCHANNELS=4", "NCCL_ALGO=Ring"], DETERMINISTIC, ["NCCL_ALGO"]),
        ("0.5.18", ["NCCL_MIN_NCHANNELS=4", "NCCL_ALGO=Ring"], DETERMINISTIC, ["NCCL_ALGO", "NCCL_MIN_NCHANNELS"]),
        # Decode context parallelism, and with it this one, came with 0.5.15.
        ("0.5.14", ["NCCL_GRAPH_MIXING_SUPPORT=1"], {"enable_symm_mem": True, "dcp_size": 2}, []),
        ("0.5.15", ["NCCL_GRAPH_MIXING_SUPPORT=1"], {"enable_symm_mem": True, "dcp_size": 2},
         ["NCCL_GRAPH_MIXING_SUPPORT"]),
        # Symmetric memory is switched off elsewhere than on cuda from 0.5.19 on.
        ("0.5.18", ["NCCL_CUMEM_ENABLE=0"], {"enable_symm_mem": True, "device": "cpu"}, ["NCCL_CUMEM_ENABLE"]),
        ("0.5.19", ["NCCL_CUMEM_ENABLE=0"], {"enable_symm_mem": True, "device": "cpu"}, []),
        # Unknown: as the newest.
        ("9.9.9", ["NCCL_MIN_NCHANNELS=4"], DETERMINISTIC, ["NCCL_MIN_NCHANNELS"]),
    ],
)  # fmt: skip
def test_releases_differ(release: str, sets: list[str], settings: dict[str, object], fought_over: list[str]) -> None:
    assert [fight.variable for fight in fights(contract(*sets), settings, release=release)] == fought_over


def test_the_sentence_names_the_release_it_was_read_in() -> None:
    for release, said in (
        ("0.5.9", "srt/server_args.py:2791 in 0.5.9"),
        ("9.9.9", f"attention_hook.py:676 in {READ_IN}"),
    ):
        [fight] = fights(contract("NCCL_ALGO=Ring"), DETERMINISTIC, release=release)
        assert said in fight.sentence


def test_what_is_always_set() -> None:
    assert always_set("0.5.18") == EVER_SET
    assert always_set("0.5.19") == always_set(None) == ALWAYS_SET == {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert rules_of(None) == rules_of("9.9.9") == FIGHTS


def test_every_release_of_the_lock_has_its_row() -> None:
    assert set(PLACES) == set(load_lock(str(ROOT / "patches" / "upstream.toml")).supported())


ROOT = Path(__file__).resolve().parents[2]
# Where upstream's text may lie: wheels (RIG_WHEELS names a folder of them; .rig/wheels keeps fetched ones), environments that
# tests/rig/releases.py made, and what is installed here. Text only: importing sglang would take seconds, and prove no more.
ASSIGNED = re.compile(r'^\s*os\.environ\["((?:NCCL|CUDA)_\w+)"\] = ')


def upstream(release: str) -> Callable[[str], str] | None:
    """A reader of one release's files; None where it is nowhere here."""
    lock = load_lock(str(ROOT / "patches" / "upstream.toml"))
    for name, sha256 in lock.get(release).wheels.items() if release in lock.supported() else ():
        for wheel in (Path(os.environ.get("RIG_WHEELS", ""), name), ROOT / ".rig" / "wheels" / sha256 / name):
            if wheel.is_file():
                return partial(_from_wheel, wheel)
    folders = list(ROOT.glob(f".rig/releases/{release}/lib/*/site-packages/sglang"))
    spec = importlib.util.find_spec("sglang")
    if spec is not None and spec.submodule_search_locations and _installed() == release:
        folders += map(Path, spec.submodule_search_locations)
    return next((lambda file, f=f: (f / file).read_text() for f in folders if (f / ENGINE).is_file()), None)


def _from_wheel(wheel: Path, file: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"sglang/{file}").decode()


def _installed() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


@pytest.mark.parametrize("release", PLACES)
def test_upstream_assigns_what_we_cite_and_no_more(release: str) -> None:
    read = upstream(release)
    if read is None:
        pytest.skip(f"the text of sglang {release} is not here")
    at = PLACES[release]
    cited: dict[str, dict[int, str]] = {ENGINE: {}, at.deterministic: {}}
    for rule in rules_of(release):
        cited[rule.file][rule.line] = rule.text
    lines = {"CUDA_DEVICE_MAX_CONNECTIONS": at.connections, "CUDA_MODULE_LOADING": at.module_loading}
    for name, value in always_set(release).items():
        cited[ENGINE][lines[name]] = f'    os.environ["{name}"] = "{value}"'
    for file, places in cited.items():
        found = {n: line for n, line in enumerate(read(file).splitlines(), 1) if ASSIGNED.match(line)}
        assert found.keys() == places.keys(), file
        assert all(text in found[n] for n, text in places.items())
