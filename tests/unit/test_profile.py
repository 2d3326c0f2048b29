"""Profiles: what a file may say, the sentence for each thing it may not, and the ones that ship."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import ContractError
from sglang_ext.contract.names import looks_secret
from sglang_ext.contract.profile import (
    MeasuredOn,
    ProfileError,
    load_profile,
    parse_profile,
    shipped_profiles,
)

SECRET = "s3cr3t-value"
HEAD = '[profile]\nname = "p"\nsummary = "s"\n'
WHOLE = """\
[profile]
name = "p.1_a-b"
summary = "what it is for"
measured_on = { gpu = "G", count = 8, link = "PCIe", nccl = ">=2.26,<2.31", concurrency = 1, model = "M" }
risks = ["one", "two"]
[env]
NCCL_PROTO = "LL"
NCCL_ALGO = "Ring"
[absent]
NCCL_P2P_DISABLE = "why"
"""


def refusal(text: str | bytes) -> str:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text if isinstance(text, bytes) else text.encode(), "some/p.toml")
    message = str(caught.value)
    assert message.startswith("profile some/p.toml") and "\n" not in message
    assert "expected" in message and "found" in message and "; " in message
    assert SECRET not in message
    return message


def test_a_whole_profile() -> None:
    read = parse_profile(WHOLE.encode(), "some/p.toml")
    assert (read.name, read.summary, read.path) == ("p.1_a-b", "what it is for", "some/p.toml")
    assert read.source == "profile:p.1_a-b"
    assert read.measured_on == MeasuredOn("G", 8, "PCIe", ">=2.26,<2.31", 1, "M")
    assert read.risks == ("one", "two")
    assert dict(read.env) == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert dict(read.absent) == {"NCCL_P2P_DISABLE": "why"}
    assert read.wants() == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_DISABLE": None}
    assert read.sha256 == hashlib.sha256(WHOLE.encode()).hexdigest()
    with pytest.raises(TypeError):
        read.env["NCCL_X"] = "1"  # type: ignore[index]


def test_the_least_a_profile_says() -> None:
    read = parse_profile((HEAD + '[absent]\nNCCL_X = "why"\n').encode(), "p.toml")
    assert read.measured_on == MeasuredOn() and read.risks == () and dict(read.env) == {}
    assert read.measured_on.covers_nccl("2.30.7") is None


@pytest.mark.parametrize(
    ("text", "named", "fix"),
    [
        ("[profile\n", "line 1", "correct that line"),
        (HEAD + "[env]\nNCCL_A = LL\n", "line 5", "correct that line"),
        (HEAD + '[env]\nNCCL_A = "1"\nNCCL_A = "1"\n', "line 6", "correct that line"),
        (HEAD.encode() + b'[env]\nNCCL_A = "\xff"\n', "line 5", "UTF-8"),
        ("", "name", "add name"),
        ('[profile]\nname = "p"\n[env]\nA = "1"\n', "summary", "add summary"),
        ('profile = "p"\n', "profile", "[profile]"),
        ("env = 1\n" + HEAD, "env", "[env]"),
        (HEAD + "[enf]\nA = 1\n", "[enf]", "correct or remove"),
        ('NCCL_PROTO = "LL"\n' + HEAD, "[NCCL_PROTO]", "correct or remove"),
        (HEAD + 'sumary = "s"\n[env]\nA = "1"\n', "sumary", "correct or remove"),
        (HEAD + "measured_on = { gpus = 8 }\n", "gpus", "correct or remove"),
        (HEAD + 'measured_on = "8 GPUs"\n', "measured_on", "write a table"),
        (HEAD + 'measured_on = { count = "8" }\n', "count", "write an integer"),
        (HEAD + "measured_on = { count = true }\n", "found a boolean", "write an integer"),
        (HEAD + "measured_on = { count = 0 }\n", "count", "1 or more"),
        (HEAD + "measured_on = { nccl = 2.26 }\n", "found a float", "in quotes"),
        (HEAD + 'measured_on = { nccl = "2.26 or so" }\n', "nccl", ">=2.26,<2.31"),
        (HEAD + 'measured_on = { gpu = "" }\n', "gpu", "remove the key"),
        (HEAD + 'risks = "one"\n', "risks", "write an array"),
        (HEAD + 'risks = ["one", 2]\n', "number 2", "write or remove"),
        (HEAD + 'risks = [" "]\n', "number 1", "write or remove"),
        ('[profile]\nname = "a b"\nsummary = "s"\n', "'a b'", "rename it"),
        ('[profile]\nname = 1\nsummary = "s"\n', "name", "in quotes"),
        ('[profile]\nname = ""\nsummary = "s"\n', "name", "fill it in"),
        (HEAD, "none", "[env] or [absent]"),
        (HEAD + "[env]\nNCCL_NTHREADS = 256\n", "NCCL_NTHREADS: expected a string, found an integer",
         "write it as a string"),
        (HEAD + "[env]\nNCCL_X = true\n", "NCCL_X: expected a string, found a boolean",
         "write it as a string"),
        (HEAD + "[env]\nNCCL_X = 1.5\n", "found a float", "write it as a string"),
        (HEAD + "[env]\nNCCL_X = 2024-01-01\n", "NCCL_X", "write it as a string"),
        (HEAD + '[env]\nNCCL_X = ["LL"]\n', "found an array", "write it as a string"),
        (HEAD + '[env.NCCL_X]\na = "1"\n', "found a table", "write it as a string"),
        (HEAD + '[env]\nNCCL_X = ""\n', "NCCL_X", "[absent]"),
        (HEAD + "[env]\nNCCL_X = '\"LL\"'\n", "NCCL_X", "write NCCL_X = 'LL'"),
        (HEAD + "[env]\nNCCL_X = \"'LL'\"\n", "NCCL_X", "write NCCL_X = 'LL'"),
        (HEAD + '[env]\nNCCL_X = "a\\nb"\n', "NCCL_X", "remove it"),
        (HEAD + '[env]\nNCCL_X = "a\\u0000b"\n', "NCCL_X", "remove it"),
        (HEAD + '[env]\n"NCCL-X" = "1"\n', "'NCCL-X'", "write it like NCCL_PROTO"),
        (HEAD + '[env]\nPYTHONPATH = "/x"\n', "PYTHONPATH", "leave it out"),
        (HEAD + f'[env]\nHF_TOKEN = "{SECRET}"\n', "HF_TOKEN", "leave it to the launching shell"),
        (HEAD + '[absent]\nSPT_NOENV = "why"\n', "SPT_NOENV", "leave it out"),
        (HEAD + '[absent]\nNCCL_X = ""\n', "NCCL_X", 'NCCL_X = "why"'),
        (HEAD + "[absent]\nNCCL_X = true\n", "NCCL_X", 'NCCL_X = "why"'),
        (HEAD + '[env]\nNCCL_X = "1"\n[absent]\nNCCL_X = "why"\n', "NCCL_X", "keep one"),
    ],
)  # fmt: skip
def test_what_is_no_profile_is_refused_by_name_and_with_the_fix(text: str | bytes, named: str, fix: str) -> None:
    message = refusal(text)
    assert named in message and fix in message


def test_a_quote_inside_is_no_quoting() -> None:
    read = parse_profile((HEAD + "[env]\nA = 'x\"y'\nB = '\"'\nC = '\"a\" b'\n").encode(), "p.toml")
    assert dict(read.env) == {"A": 'x"y', "B": '"', "C": '"a" b'}


@pytest.mark.parametrize(
    ("nccl", "inside", "outside"),
    [
        (
            ">=2.26,<2.31",
            ["2.26", "2.26.0", "2.30.7", "2.30.7-1", "2.30.7+cuda13"],
            ["2.25.9", "2.31", "2.31.0"],
        ),
        ("==2.28.9", ["2.28.9"], ["2.28", "2.28.10"]),
        ("> 2.26 , <= 2.27.3", ["2.26.2", "2.27.3"], ["2.26", "2.26.0", "2.27.4", "2.9"]),
        (">=0", ["0", "2.30.7"], []),
    ],
)
def test_the_measured_nccl_range(nccl: str, inside: list[str], outside: list[str]) -> None:
    measured = parse_profile(
        (HEAD + f'measured_on = {{ nccl = "{nccl}" }}\n[env]\nA = "1"\n').encode(), "p.toml"
    ).measured_on
    assert [v for v in inside if not measured.covers_nccl(v)] == []
    assert [v for v in outside if measured.covers_nccl(v)] == []


def test_load_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(WHOLE)
    (tmp_path / "no_suffix").write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / "mine.toml"), "mine.toml", "./no_suffix"):
        assert load_profile(path).path == path


@pytest.mark.parametrize("name", ["nope", "", "..", "pcie-blackwell.tom"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(name)
    assert repr(name) in str(caught.value) and "cpu-rig, pcie-blackwell" in str(caught.value)
    assert "by its path" in str(caught.value)


@pytest.mark.parametrize("path", ["./missing.toml", "missing.toml", "./", "a\0b.toml"])
def test_an_unreadable_file_is_named(path: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert path in str(caught.value) and "correct the path" in str(caught.value)


def test_a_profile_error_is_a_contract_error() -> None:
    assert issubclass(ProfileError, ContractError)


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profiles_are_sound(name: str) -> None:
    read = load_profile(name)
    assert read.name == name
    assert not any(looks_secret(variable) for variable in read.wants())
    made = decide(read, [], [], {})
    assert {t.name: t.want for t in made.terms.values()} == read.wants()
    assert made.warnings == () and {t.source for t in made.terms.values()} == {f"profile:{name}"}


def test_pcie_blackwell_is_the_recipe_and_says_what_it_may_cost() -> None:
    read = load_profile("pcie-blackwell")
    assert dict(read.env) == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}
    assert "NCCL_P2P_DISABLE" in read.absent
    assert (read.measured_on.gpu_count, read.measured_on.link, read.measured_on.concurrency) == (8, "PCIe", 1)
    assert read.measured_on.covers_nccl("2.30.7") and not read.measured_on.covers_nccl("2.31.2")
    assert "not reproduced" in read.summary
    for word in ("concurrency", "socket", "deterministic", "IOMMU"):
        assert any(word in risk for risk in read.risks), word


def test_cpu_rig_proves_delivery_of_what_stock_sglang_overwrites() -> None:
    read = load_profile("cpu-rig")
    assert dict(read.env) == {
        "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }  # fmt: skip
    assert "delivery" in read.summary and "not speed" in read.summary
