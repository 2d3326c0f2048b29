"""`sglang-ext lint` as a command, and the launcher's refusal by the same look. The rules themselves: test_nccl_*.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ext.cli import main
from sglang_ext.contract.decide import decide
from sglang_ext.contract.profile import load_profile
from sglang_ext.delivery import preflight
from sglang_ext.delivery.options import ACCEPTABLE
from sglang_ext.nccl.ahead import look_ahead
from sglang_ext.reasons import TABLE

ROOT = Path(__file__).resolve().parents[2]


def lint(*words: str, home: Path | None = None, **shell: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "SGLANG_EXT"))}
    environment = {**base, "PYTHONPATH": str(ROOT), "HOME": str(home or "/nowhere"), **shell}
    command = [sys.executable, "-m", "sglang_ext", "lint", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("words", "status", "code", "parts"), [
    (["--profile", "pcie-blackwell", "--nccl", "2.28.9"], 0, None, ("PASS: 6 variables by the rules of NCCL 2.28.9",)),
    (["--set", "NCCL_BUFFSIZE=4M"], 1, "value_misread", ("expected a number of bytes", "found 4M", "write 4194304")),
    (["--set", "NCCL_P2P_LEVEL=sys"], 1, "value_ignored", ("found sys", "write SYS")),
    (["--set", "NCCL_PROTO=LL, LL128", "--nccl", "2.27.7"], 1, "value_refused", ("'LL, LL128'", "write LL,LL128")),
    (["--set", "NCCL_PROTO=^LL", "--nccl", "2.27.7"], 1, "ll128_forced", ("found ^LL", "leave LL128 out")),
    (["--set", "NCCL_PROTO=^LL", "--nccl", "2.27.7", "--accept", "ll128_forced"], 0, "ll128_forced", ("(accepted)",)),
    (["--set", "NCCL_ALGO=Tree", "--nccl", "2.28.9"], 1, "no_algorithm", ("Broadcast", "add Ring")),
    (["--set", "NCCL_ALGOS=Ring"], 1, "name_misspelt", ("write NCCL_ALGO",)),
    (["--set", "NCLL_PROTO=LL"], 1, "name_misspelt", ("write NCCL_PROTO",)),
    (["--set", "NCCL_SOCKET_IFNAME=nosuch, lo"], 1, "value_misread", ("expected nosuch,lo", "take the blank out")),
    (["--set", "NCCL_CTA_POLICY=ZERO", "--nccl", "2.27"], 1, "value_misread", ("by the rules of NCCL 2.27.7",)),
    (["--set", "NCCL_CTA_POLICY=2", "--nccl", "2.27"], 0, None, ("PASS: 1 variables by the rules of NCCL 2.27.7",)),
    (["--set", "CUDA_COREDUMP_PIPE=/tmp/x"], 0, None, ("PASS",)),
    (["--set", "NCCL_MIN_CTAS=32", "--set", "NCCL_MAX_CTAS=8"], 1, "conflict", ("lowers to 8",)),
    (["--set", "NCCL_MIN_NCHANNELS=32", "--set", "NCCL_MAX_NCHANNELS=8"], 0, "conflict", ("until there are 32",)),
    (["--set", "NCCL_FUTURE_KNOB=7"], 0, "name_unknown", ("passed on as it is",)),
    (["--profile", "pcie-blackwell", "--nccl", "2.32.3"], 0, "unqualified", ("measured with NCCL >=2.26,<2.31, found 2.32.3",)),
])  # fmt: skip
def test_what_lint_says(
    words: list[str],
    status: int,
    code: str | None,
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = lint(*words)
    assert done.returncode == status, done.stdout + done.stderr
    for part in parts:
        assert part in done.stdout
    for name in [name for name in os.environ if name.startswith(("NCCL_", "SGLANG_EXT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nowhere")
    assert main(["lint", *words, "--json"]) == status  # without a process of its own
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "sglang-ext/lint/1"
    assert (code is None and not found["findings"]) or code in {one["code"] for one in found["findings"]}


def test_the_shell_is_asked_about_and_no_secret_of_it_shown() -> None:
    done = lint(NCCL_BUFFSIZE="1e6", NCCL_AUTH_TOKEN="planted")
    assert (done.returncode, "NCCL_BUFFSIZE" in done.stdout) == (1, True)
    assert "planted" not in done.stdout + done.stderr + lint("--json", NCCL_AUTH_TOKEN="planted").stdout


def test_a_configuration_file_counts(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_GRAPH_FILE=/g.xml\nNCCL_PROTO=Simple\n")
    done = lint("--profile", "pcie-blackwell", "--nccl", "2.30.7", home=tmp_path)
    assert done.returncode == 1
    assert "fail conf_sets: NCCL_GRAPH_FILE: expected it absent" in done.stdout
    assert "note conf_overridden: NCCL_PROTO" in done.stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--nccl", "new"], "expected a version"),
        (["--nccl", "9.9"], "from 2.18 to 2.32, found '9.9'"),
        (["--nccl", "2.17.1"], "from 2.18 to 2.32"),
        (["--accept", "nothing"], "expected one of"),
        (["--profile", "cpu-rig", "--profile", "pcie-blackwell"], "keep one"),
        (["--json", "/nowhere/x"], "cannot be written"),
    ],
)
def test_a_wrong_command_line(words: list[str], part: str) -> None:
    done = lint(*words)
    assert done.returncode == 2 and part in done.stderr


def test_a_library_newer_than_the_rules_is_not_a_pass(tmp_path: Path) -> None:
    library = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF" + b"\0" * 100 + b"NCCL version 9.9.1+cuda19.0\0" + b"\0" * 100)
    (finding,) = look_ahead({"NCCL_PROTO": "LL"}, {}, [str(tmp_path)]).findings
    assert (finding.code, finding.severity) == ("nccl_unknown", "unknown")
    assert finding.message.startswith("NCCL 9.9.1: its rules are not known, those of 2.18 to 2.32 are")


def test_a_file_that_is_named_and_not_there(tmp_path: Path) -> None:
    done = lint("--set", "NCCL_PROTO=LL", NCCL_CONF_FILE="/nope")
    assert (
        done.returncode == 0
        and "note conf_missing: NCCL_CONF_FILE: expected a file, found none at /nope" in done.stdout
    )


def test_a_release_that_does_not_know_the_file_variable(tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.write_text("NCCL_PROTO=LL\n")
    done = lint("--nccl", "2.21.5", NCCL_CONF_FILE=str(file))
    assert "conf_missing" not in done.stdout and "name_too_new" in done.stdout


def test_credentials_in_the_shell_are_no_wrong_command_line() -> None:
    done = lint("--set", "NCCL_PROTO=LL", NCCL_HOSTID="http://u:planted@h")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planted" not in done.stdout + done.stderr


def test_every_code_that_can_be_accepted_is_one_that_would_refuse() -> None:
    assert all(TABLE[code].severity == "fail" for code in ACCEPTABLE)
    assert all(TABLE[code].exit == 2 for code in ACCEPTABLE)


def test_the_launcher_refuses_by_the_same_look_and_says_the_notes() -> None:
    wrong = decide(None, ["NCCL_BUFFSIZE=4M"], [], {})
    with pytest.raises(preflight.Refused, match="write 4194304") as refused:
        preflight.check_values(wrong, {}, [], [])
    assert refused.value.code == "value_misread"
    (note,) = preflight.check_values(wrong, {}, ["value_misread"], [])
    assert note.startswith("value_misread: NCCL_BUFFSIZE") and note.endswith("(accepted)")
    profile = load_profile("pcie-blackwell")
    assert preflight.check_values(decide(profile, [], [], {}), {}, [], [], profile) == []


def test_a_sitecustomize_in_front_of_ours_is_named(tmp_path: Path) -> None:
    class Theirs:
        __file__ = str(tmp_path / "sitecustomize.py")

    class Ours:
        __file__ = str(ROOT / "sitecustomize" / "sitecustomize.py")

    path = f"{tmp_path}:{ROOT / 'sitecustomize'}"
    assert preflight.hides_ours(Theirs, path) == Theirs.__file__
    assert preflight.hides_ours(Ours, path) is None
    assert preflight.hides_ours(Theirs, str(tmp_path)) is None
    assert preflight.hides_ours(None, path) is None


def test_the_contract_is_applied_before_it_is_read() -> None:
    ahead = look_ahead(
        {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": None}, [], version=(2, 28, 9)
    )
    assert ahead.findings == ()
    ahead = look_ahead({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "SYS"}, [], version=(2, 28, 9))
    assert [one.code for one in ahead.findings] == ["conflict"]
