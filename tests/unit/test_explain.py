"""What is said of a variable, a value, a reason code; and of a name that nobody knows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from sglang_ext import cli
from sglang_ext.contract.profile import load_profile, shipped_profiles
from sglang_ext.contract.rules import ALWAYS_SET, FIGHTS, READ_IN
from sglang_ext.explain import DEFAULTS, SCHEMA, explain, render, status, which_nccl
from sglang_ext.hide import HIDDEN
from sglang_ext.nccl.catalogue import get, names
from sglang_ext.reasons import TABLE, consequence, exit_of

V = "2.30.7"


@pytest.mark.parametrize("name", names())
def test_every_variable_of_the_catalogue_is_explained(name: str) -> None:
    found = explain(name, None, V)
    assert (found["schema"], found["kind"], found["suggestion"], status(found)) == (SCHEMA, "variable", None, 0)
    text = render(found)
    variable = get(name)
    assert variable is not None and text.startswith(f"{name}  ({variable.kind}, {variable.subsystem})\n")
    assert variable.effect.split(" ")[0] in text and "  ranks " in text and ": None" not in text
    assert ("no effect on NCCL 2.30.7" in text or "an example plugin" in text) == (
        not found["variable"]["alive"] or variable.by_plugin
    )
    json.dumps(found)


@pytest.mark.parametrize("code", TABLE)
def test_every_reason_code_is_explained(code: str) -> None:
    found = explain(code, None, None)
    reason = TABLE[code]
    assert found["kind"] == "code" and status(found) == 0
    assert found["code"] == {
        "severity": reason.severity, "meaning": reason.meaning, "fix": reason.fix, "exit": exit_of(reason),
    }  # fmt: skip
    said = " ".join(render(found).split())
    assert f"comes of it {consequence(reason)}" in said
    assert reason.meaning in said and reason.fix in said and f"(reason code, {reason.severity})" in said


def test_what_ranks_and_the_log_do() -> None:
    text = " ".join(render(explain("NCCL_BUFFSIZE", None, V)).split())
    assert "must agree (read in the code)" in text and "once, then kept for the process" in text
    assert "NCCL_BUFFSIZE set by environment to %lld." in text
    assert "may differ" in render(explain("NCCL_DEBUG", None, V))
    assert "documented   in NCCL's user guide" in render(explain("NCCL_DEBUG", None, V))
    assert "documented   not in NCCL's user guide" in render(explain("NCCL_AGG_ALLOC_MODE", None, V))


@pytest.mark.parametrize(
    ("name", "value", "means", "code"),
    [
        ("NCCL_P2P_LEVEL", "4", "SYS", None),
        ("NCCL_P2P_LEVEL", "SYS", "SYS", None),
        ("NCCL_P2P_LEVEL", "sys", "", "value_ignored"),
        ("NCCL_BUFFSIZE", "4M", "4", "value_misread"),
        ("NCCL_PROTO", "ll", "LL", None),
    ],
)
def test_what_nccl_makes_of_a_value(name: str, value: str, means: str, code: str | None) -> None:
    found = explain(name, value, V)
    assert found["value"]["text"] == value and found["value"]["means"] == means
    fails = [fault["code"] for fault in found["value"]["faults"] if fault["severity"] == "fail"]
    assert fails == ([code] if code else []) and status(found) == int(code is not None)
    said = render(found).partition("\n\n")[2]
    assert said.startswith(f"{value} is to NCCL 2.30.7 (as asked): {means or 'nothing: as if it were not set'}")
    assert explain(f"{name}={value}", None, V) == found


@pytest.mark.parametrize(
    ("name", "value", "nccl", "expected", "code"),
    [
        # docs/diff.md: 0, NCCL takes the value as it stands; 1, it is ignored, misread or refused.
        ("NCCL_PROTO", "LL", "2.27.7", 0, None),
        ("NCCL_P2P_LEVEL", "4", "2.27.7", 0, "value_unclear"),
        ("NCCL_NET_PLUGIN", "x", "2.27.7", 0, "plugin_present"),
        ("NCCL_AGG_CHANNEL_SIZE", "4", V, 1, None),  # not read any more
        ("NCCL_AGG_CHANNEL_SIZE", "", V, 0, None),
        ("NCCL_CTA_POLICY", "ZERO", "2.26.2", 1, None),  # not read yet
        ("NCCL_DEBUG", "foo", "2.27.7", 1, "value_ignored"),
        ("NCCL_DEBUG", "INFO", "2.27.7", 0, None),
        ("NCCL_PROTO", "^LL", "2.27.7", 1, "ll128_forced"),
        ("NCCL_PROTO", "^LL", "2.32.3", 0, None),
        ("NCCL_ALGO", "Tree", "2.28.9", 1, "no_algorithm"),
        ("NCCL_ALGO", "Ring", "2.28.9", 0, None),
        ("NCCL_COMM_ID", "foo", V, 1, "value_misread"),
    ],
)
def test_the_status_says_whether_a_value_is_taken_as_it_stands(
    name: str, value: str, nccl: str, expected: int, code: str | None
) -> None:
    found = explain(name, value, nccl)
    assert status(found) == expected
    assert [fault["code"] for fault in found["value"]["faults"]] == ([code] if code else [])


@pytest.mark.parametrize(
    ("name", "value", "means"),
    [
        ("NCCL_NTHREADS", "100", "512"),
        ("NCCL_MAX_NCHANNELS", "0", "1"),
        ("NCCL_MAX_NCHANNELS", "64", "64"),
        ("NCCL_MAX_NCHANNELS", "128", "64"),
        ("NCCL_BUFFSIZE", "4294967296", "0"),
    ],
)
def test_what_is_meant_is_what_nccl_goes_on_with(name: str, value: str, means: str) -> None:
    found = explain(name, value, "2.27.7")
    assert found["value"]["means"] == means
    assert f"{value} is to NCCL 2.27.7 (as asked): {means}\n" in render(found) + "\n"


def test_no_credentials_are_shown() -> None:
    url = "http://user:hunter2@h/x"
    for name, value in (("NCCL_NET_PLUGIN", url), ("NCCL_NET", url), ("UCX_X_URL", url), ("CUDA_X", url), (url, None)):
        found = explain(name, value, V)
        assert "hunter2" not in json.dumps(found) + render(found)
    assert explain("NCCL_NET_PLUGIN", url, V)["value"]["means"] == HIDDEN


def test_half_a_version_is_its_last_release() -> None:
    assert which_nccl("2.27") == ((2, 27, 7), "2.27.7", "as asked: the last 2.27")
    found = explain("NCCL_CUMEM_HOST_ENABLE", "1", "2.23")
    assert found["variable"]["alive"] is True and found["nccl"]["version"] == "2.23.4" and status(found) == 0


def test_a_release_that_does_not_read_it() -> None:
    found = explain("NCCL_AGG_CHANNEL_SIZE", "4", V)
    assert found["variable"]["alive"] is False and found["value"]["means"] == ""
    assert "no effect on NCCL 2.30.7 (as asked): not read by it" in " ".join(render(found).split())
    assert explain("NCCL_AGG_CHANNEL_SIZE", "4", "2.19.3")["variable"]["alive"] is True


def test_what_sglang_does() -> None:
    for name, value in ALWAYS_SET.items():
        (sentence,) = explain(name, None, V)["sglang"]
        assert sentence.startswith(f"SGLang sets it to {value} in every launch")
    for rule in FIGHTS:
        said = explain(rule.variable, None, V)["sglang"]
        assert any(rule.flag in s and f"{rule.file}:{rule.line}" in s for s in said)
        if rule.forced_from:
            assert any(rule.variable in s for s in explain(rule.forced_from, None, V)["sglang"])
    assert any("a value of yours stays" in s for s in explain("NCCL_GRAPH_REGISTER", None, V)["sglang"])


def test_profiles_that_name_it() -> None:
    for shipped in map(load_profile, shipped_profiles()):
        for name, want in shipped.wants().items():
            found = [one for one in explain(name, None, V)["profiles"] if one["profile"] == shipped.name]
            assert [one["want"] for one in found] == [want] and (found[0]["reason"] is None) == (want is not None)
    assert "pcie-blackwell must be absent: left over" in render(explain("NCCL_P2P_DISABLE", None, V))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "comes too late"),
        ("CUDA_LAUNCH_BLOCKING", "comes too late"),
        ("TORCH_NCCL_BLOCKING_WAIT", "torch's process group reads it"),
        ("LD_PRELOAD", "no contract can hold it"),
        ("SGLANG_DETERMINISTIC_NCCL_NCHANNELS", "NCCL_MIN_NCHANNELS"),
    ],
)
def test_variables_that_are_not_nccls(name: str, part: str) -> None:
    found = explain(name, "1", None)
    assert found["kind"] == "variable" and status(found) == 0 and found["value"]["means"] is None
    assert part in " ".join(render(found).split()) and "not known here" in render(found)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCLL_PROTO", "NCCL_PROTO"),
        ("NCCL_PROTOS", "NCCL_PROTO"),
        ("nccl_proto", "NCCL_PROTO"),
        ("NCCL_P2P5ISABLE", "NCCL_P2P_DISABLE"),
        ("NCCL_IB-DISABLE", "NCCL_IB_DISABLE"),
        ("CUDA_DEVICE_MAX_CONNECTION", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("maybe_to_late", "maybe_too_late"),
        ("RANKS_DIFFER", "ranks_differ"),
    ],
)
def test_a_slip_is_corrected(name: str, meant: str) -> None:
    found = explain(name, None, None)
    assert (found["kind"], found["suggestion"], status(found)) == ("unknown", meant, 1)
    assert render(found).endswith(f"sglang-ext explain {meant}")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NCCL_XYZZY", "no NCCL from 2.18 to 2.32 reads a variable of that name"),
        ("FOO", "nothing is known of it"),
        ("SGLANG_SOMETHING", "it is a tuning variable to us"),
        ("", "'': nothing is known of it"),
        ("a\nb", "'a\\nb': nothing is known of it"),
    ],
)
def test_a_name_nobody_knows(name: str, part: str) -> None:
    found = explain(name, "hunter2", None)
    assert found["kind"] == "unknown" and status(found) == 1 and found["value"] is None
    assert part in render(found) and "hunter2" not in render(found) and "\n" not in render(found)


def test_which_nccl() -> None:
    assert which_nccl("2.27.7+cuda12.9") == ((2, 27, 7), "2.27.7", "as asked")
    version, text, why = which_nccl(None)
    assert text == ".".join(map(str, version)) and why in ("installed here", "the newest known; none is installed here")


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "NCCL_P2P_LEVEL", "sys", "--nccl", V]) == 1
    assert "fail         value_ignored: " in capsys.readouterr().out
    assert cli.main(["explain", "NCCL_P2P_LEVEL", "SYS", "--nccl", V, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["value"]["means"], found["nccl"]["version"]) == (SCHEMA, "SYS", V)
    assert cli.main(["explain", "NCCL_P2P_LEVEL", "--nccl", "new"]) == 2
    err = capsys.readouterr().err
    assert err == "sglang-ext: --nccl: expected a version like 2.30.7, from 2.18 to 2.32, found 'new'; correct it\n"
    assert cli.main(["explain", "no_server"]) == 0
    assert "status 3" in capsys.readouterr().out


def test_the_lines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NCCL_PROTO", "NCCL_CUMEM_ENABLE", "CUDA_DEVICE_MAX_CONNECTIONS"):
        for line in render(explain(name, None, V)).splitlines():
            assert len(line) <= 80 or " " not in line.strip()[20:]


def test_the_defaults_stand_in_sglang() -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        pytest.skip("no sglang is installed here")
    from importlib.metadata import version

    assert version("sglang") == READ_IN
    for defaults in DEFAULTS.values():
        for default in defaults:
            lines = (Path(spec.origin).parent / default.file).read_text(encoding="utf-8").splitlines()
            assert lines[default.line - 1].strip().startswith(default.text)
