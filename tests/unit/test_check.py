"""`verify` on any process, end to end: each verdict for its reason, and nothing told that is a secret."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from sglang_ext import asking
from sglang_ext.contract.model import Contract
from sglang_ext.contract.profile import ProfileError
from sglang_ext.run.directory import RunError
from sglang_ext.run.process import stat
from sglang_ext.verify import check, report, select
from sglang_ext.verify.check import NoContractError, Request, exit_code, unseen, verify
from sglang_ext.verify.discover import Server
from sglang_ext.verify.select import by_pid
from tests.unit.checked_children import GOOD, SECRETS, SLEEP, WAIT, WANTED, child, codes, contract, verify_pid

NOBODY = 65534
CLOBBER = """
for name, value in list(os.environb.items()):
    libc.setenv(name, value, 1)
with open("/proc/self/stat") as file:
    fields = file.read().rpartition(")")[2].split()
ctypes.memset(int(fields[47]), 0, int(fields[48]) - int(fields[47]))
"""
NON_DUMPABLE = "\nassert libc.prctl(4, 0, 0, 0, 0) == 0\n"


def as_another(function: Callable[[], Any]) -> Any:
    """``function()`` in a fork without the right to look into a non-dumpable process: no longer root, if we are."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            with open(writer, "wb") as file:
                file.write(pickle.dumps(function()))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return pickle.loads(answer)


@pytest.mark.parametrize(
    ("start", "code", "verdict", "problems"),
    [
        (GOOD, "", "PASS", []),
        (GOOD, CLOBBER, "PASS", []),
        (GOOD | {"NCCL_PROTO": "Simple"}, "", "FAIL", [("different", "NCCL_PROTO", "expected LL, found Simple")]),
        ({"NCCL_PROTO": "LL"}, "", "FAIL", [("missing", "NCCL_ALGO", "expected Ring, found none")]),
        ({"NCCL_PROTO": "LL"}, CLOBBER, "FAIL", [("missing", "NCCL_ALGO", "expected Ring, found none")]),
        (
            GOOD | {"NCCL_P2P_DISABLE": "1"},
            "",
            "FAIL",
            [("unwanted", "NCCL_P2P_DISABLE", "expected (absent), found 1")],
        ),
        (
            GOOD,
            "os.environ['NCCL_PROTO'] = 'LL128'",
            "FAIL",
            [("changed_in_process", "NCCL_PROTO", "found LL128; the worker was started with the wanted value")],
        ),
        (
            GOOD,
            "libc.unsetenv(b'NCCL_ALGO')",
            "FAIL",
            [("changed_in_process", "NCCL_ALGO", "found (absent); the worker was started with the wanted value")],
        ),
        (
            GOOD | {"NCCL_PROTO": "Simple"},
            "os.environ['NCCL_PROTO'] = 'LL'",
            "UNKNOWN",
            [("maybe_too_late", "NCCL_PROTO", "expected LL, started with Simple, right only since then")],
        ),
    ],
    ids=[
        "pass",
        "pass clobbered",
        "different",
        "missing",
        "missing clobbered",
        "unwanted",
        "changed",
        "unset",
        "too late?",
    ],
)
def test_verdicts(start: dict[str, str], code: str, verdict: str, problems: list[tuple[str, str, str]]) -> None:
    with child(code + WAIT, env=start) as process:
        found = verify_pid(process.pid, WANTED)
    assert found["verdict"] == verdict
    assert [(p["code"], p["variable"]) for p in found["problems"]] == [(code, name) for code, name, _ in problems]
    for problem, (_, _, part) in zip(found["problems"], problems, strict=True):
        assert part in problem["message"] and problem["worker"] == process.pid and problem["fix"]
    assert exit_code(verdict) == {"PASS": 0, "FAIL": 1, "UNKNOWN": 3}[verdict]


def test_denied_is_unknown_and_nothing_is_called_missing() -> None:
    with child(NON_DUMPABLE + WAIT, env=GOOD) as process:
        pid = process.pid
        found = as_another(lambda: verify_pid(pid, WANTED))
    assert found["verdict"] == "UNKNOWN" and codes(found) == ["not_seen"] * 3
    (worker,) = found["workers"]
    assert worker["extras"] == {}
    for name in WANTED.terms:
        seen = worker["variables"][name]
        assert (seen["verdict"], seen["reason"]) == ("UNKNOWN", "not_seen")
        assert seen["witnesses"]["live"]["state"] == seen["witnesses"]["exec"]["state"] == "denied"
        assert seen["witnesses"]["live"]["value"] is None
    text = report.render(found)
    assert "UNKNOWN: 0 of 1 processes hold the contract (3 variables)" in text
    assert "missing" not in text and "PASS" not in text and "[denied]" in text


@pytest.mark.parametrize(
    ("require", "code", "verdict", "problem"),
    [
        ("live", CLOBBER, "PASS", None),
        ("exec", "", "PASS", None),
        ("exec", CLOBBER, "UNKNOWN", "exec was demanded and says nothing"),
        ("attested", "", "UNKNOWN", "attested was demanded and says nothing: the worker attests nothing"),
    ],
)
def test_require(require: str, code: str, verdict: str, problem: str | None) -> None:
    with child(code + WAIT, env={"NCCL_PROTO": "LL"}) as process:
        found = verify_pid(process.pid, contract("NCCL_PROTO=LL"), require)
    assert (found["verdict"], found["require"]) == (verdict, require)
    if problem is None:
        assert found["problems"] == []
    else:
        assert codes(found) == ["witness_missing"] and problem in found["problems"][0]["message"]


def test_json_has_the_keys_users_script_against() -> None:
    with child(WAIT, env=GOOD | {"NCCL_DEBUG": "INFO"}) as process:
        found = verify_pid(process.pid, contract("NCCL_PROTO=Simple", absent=("NCCL_ALGO",)))
        started = stat(process.pid)
    assert started is not None
    found = json.loads(json.dumps(found))
    assert found.keys() >= {"schema", "verdict", "host", "time", "run", "contract", "expected", "workers", "problems"}
    assert found["schema"] == "sglang-ext/verify/1" and found["run"] is None
    assert found["contract"]["digest"] == contract("NCCL_PROTO=Simple", absent=("NCCL_ALGO",)).digest
    assert found["contract"]["variables"] == {
        "NCCL_ALGO": {"want": None, "source": "flag"},
        "NCCL_PROTO": {"want": "Simple", "source": "flag"},
    }
    assert found["expected"].keys() >= {"tp", "pp", "dp", "nnodes", "workers"}
    (worker,) = found["workers"]
    assert worker["pid"] == started.pid and worker["start_time"] == started.start_time
    assert worker.keys() >= {"role", "title", "rank", "verdict", "hook", "variables", "extras"}
    assert worker["rank"].keys() == {"node", "dp", "pp", "tp"} and worker["role"] == "other"
    assert worker["hook"] == {"active": False, "patchset": None, "mode": "none", "local": []}
    assert worker["extras"] == {"NCCL_DEBUG": "INFO"}
    seen = worker["variables"]["NCCL_PROTO"]
    assert seen.keys() >= {"verdict", "reason", "witnesses"} and seen["verdict"] == "FAIL"
    assert seen["witnesses"].keys() >= {"exec", "live", "attested"}
    for witness in seen["witnesses"].values():
        assert witness.keys() == {"state", "value", "detail"}
    assert seen["witnesses"]["live"]["state"] == "value" and seen["witnesses"]["live"]["value"] == "LL"
    assert seen["witnesses"]["attested"]["state"] == "unavailable"
    for problem in found["problems"]:
        assert problem.keys() == {"code", "severity", "worker", "variable", "message", "fix"}
        assert problem["severity"] in ("fail", "unknown", "note")


def test_secrets_never_leave_the_process() -> None:
    tuning = {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0", "SGLANG_USE_X": "1", "OMP_NUM_THREADS": "1"}
    with child(WAIT, env=GOOD | SECRETS | tuning) as process:
        passing = verify_pid(process.pid, WANTED)
        failing = verify_pid(process.pid, contract("NCCL_PROTO=Simple"))
    assert passing["verdict"] == "PASS" and failing["verdict"] == "FAIL"
    assert passing["workers"][0]["extras"] == tuning
    assert failing["workers"][0]["extras"] == tuning | {"NCCL_ALGO": "Ring"}
    for found in (passing, failing):
        for text in (json.dumps(found), report.render(found), report.render(found, colour=True)):
            assert "planted" not in text


def test_extras_that_differ_between_ranks_fail() -> None:
    code = f"""
import subprocess
below = subprocess.Popen([{SLEEP!r}, "60"], env=os.environ | {{"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "2"}})
"""
    with child(code + WAIT, env=GOOD) as process:
        found = verify_pid(process.pid, contract("NCCL_PROTO=LL"))
    assert found["verdict"] == "FAIL" and codes(found) == ["ranks_differ"]
    (problem,) = found["problems"]
    assert problem["variable"] == "NCCL_ALGO" and problem["severity"] == "fail"
    assert re.fullmatch(r"NCCL_ALGO is Ring on pid \d+, Tree on pid \d+", problem["message"])
    assert [worker["verdict"] for worker in found["workers"]] == ["PASS", "PASS"]


def test_one_process_of_two_is_enough_to_fail() -> None:
    code = f"import subprocess; below = subprocess.Popen([{SLEEP!r}, '60'], env={{'NCCL_PROTO': 'Simple'}})"
    with child(code + WAIT, env={"NCCL_PROTO": "LL"}) as process:
        found = verify_pid(process.pid, contract("NCCL_PROTO=LL"))
    assert found["verdict"] == "FAIL"
    assert sorted(worker["verdict"] for worker in found["workers"]) == ["FAIL", "PASS"]
    # Its parent was started right: somebody on the way changed it.
    assert codes(found) == ["overwritten"]


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    code = "libc.setenv(b'NCCL_PROTO', b'\\xff\\n\\x1b[31m', 1); libc.setenv(b'NCCL_NET', b'\\xfe', 1)"
    with child(code + WAIT, env={"NCCL_PROTO": "LL"}) as process:
        found = verify_pid(process.pid, contract("NCCL_PROTO=LL"))
    text = report.render(found)
    assert text.encode()  # it can be printed
    assert "\\udcff\\n\\x1b[31m" in text and "NCCL_NET='\\udcfe'" in text
    assert found["workers"][0]["variables"]["NCCL_PROTO"]["witnesses"]["live"]["value"] == "\udcff\n\x1b[31m"


def test_no_contract_is_an_input_error() -> None:
    with child(WAIT, env=GOOD) as process:
        server, _ = by_pid(process.pid)
        for empty in (None, Contract()):
            with pytest.raises(NoContractError, match="--profile, --set or --absent"):
                verify(server, Request(empty))


def test_one_that_cannot_be_judged_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter((NoContractError("none"), ProfileError("a slip"), RunError("not ours")))

    def judged(server: Server, request: Request) -> dict[str, Any]:
        if (error := next(errors, None)) is not None:
            raise error
        return {"verdict": "PASS"}

    monkeypatch.setattr(select, "every", lambda: [Server(None, (), ())] * 4)
    monkeypatch.setattr(check, "verify", judged)
    options = argparse.Namespace(require=None, all_processes=False, accepted=(), wait=0.0)
    found = asking.check_all(options, WANTED)
    assert found["verdict"] == "UNKNOWN" and found["servers"][3] == {"verdict": "PASS"}
    told = ["no_contract", "contract_invalid", "run_dir_unusable"]
    assert [one["problems"][0]["code"] for one in found["servers"][:3]] == told


def test_no_server_is_unknown_in_the_same_shape() -> None:
    found = unseen("no_server", "nothing here")
    assert found["verdict"] == "UNKNOWN" and codes(found) == ["no_server"]
    with child(WAIT, env=GOOD) as process:
        assert found.keys() == verify_pid(process.pid, WANTED).keys()
    assert report.render(found).splitlines() == [
        "unknown no_server: nothing here",
        "    fix: Start one, or name it by --port, --pid or --run.",
        "",
        "UNKNOWN: 0 of 0 workers hold the contract (0 variables)",
    ]
    assert check.exit_code(found["verdict"]) == 3
