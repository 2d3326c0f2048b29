"""`verify` end to end on real processes: plain children, stand-ins for a stock server, and workers that attest.

The workers are small scripts that use the seams' own witness; nothing of the process tree is faked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext import asking
from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.contract.profile import ProfileError
from sglang_ext.delivery.context import Context, new_run
from sglang_ext.run import attestation
from sglang_ext.run.directory import RunError
from sglang_ext.run.process import all_stats, stat
from sglang_ext.verify import check, report, select
from sglang_ext.verify.carried import run_of
from sglang_ext.verify.check import NoContractError, Request, exit_code, unseen, verify
from sglang_ext.verify.discover import Server, children, descendants
from sglang_ext.verify.live import read_live
from sglang_ext.verify.select import by_pid, by_run

ROOT = Path(__file__).resolve().parents[2]
SLEEP = shutil.which("sleep")
NOBODY = 65534

HEAD = "import ctypes, os, sys; sys.path.insert(0, sys.argv[1]); libc = ctypes.CDLL(None)\n"
WAIT = "\nprint('ready', flush=True); sys.stdin.read()\n"
CLOBBER = """
for name, value in list(os.environb.items()):
    libc.setenv(name, value, 1)
with open("/proc/self/stat") as file:
    fields = file.read().rpartition(")")[2].split()
ctypes.memset(int(fields[47]), 0, int(fields[48]) - int(fields[47]))
"""
NON_DUMPABLE = "\nassert libc.prctl(4, 0, 0, 0, 0) == 0\n"


@contextlib.contextmanager
def child(code: str, *words: object, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A Python process that said "ready"; its group ends with the block."""
    command = [sys.executable, "-I", "-S", "-c", HEAD + code, str(ROOT), *map(str, words)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until_started(process.pid)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()


def wait_until_started(pid: int) -> None:
    """What has just been started below ``pid`` has no environment yet: its C library sets it up first."""
    deadline = time.monotonic() + 10
    below = descendants(pid, children(all_stats()))
    while any(read_live(entry.pid).state == "unavailable" for entry in below) and time.monotonic() < deadline:
        time.sleep(0.01)


def contract(*sets: str, absent: tuple[str, ...] = ()) -> Contract:
    return decide(None, sets, absent, {})


def verify_pid(pid: int, wanted: Contract, require: str | None = None) -> dict[str, Any]:
    """As `verify-env --pid` does."""
    server, is_server = by_pid(pid)
    return verify(server, Request(wanted, require=require, is_server=is_server))


def codes(found: dict[str, Any]) -> list[str]:
    return sorted(problem["code"] for problem in found["problems"])


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


# --- any process: --pid -----------------------------------------------------------------------------------

WANTED = contract("NCCL_PROTO=LL", "NCCL_ALGO=Ring", absent=("NCCL_P2P_DISABLE",))
GOOD = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}


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


SECRETS = {
    "HF_TOKEN": "hf_planted1",
    "SGLANG_API_KEY": "sk-planted2",
    "AWS_SECRET_ACCESS_KEY": "planted3",
    "AWS_ACCESS_KEY_ID": "planted4",
    "DATABASE_PASSWORD": "planted5",
    "NCCL_SECRET_THING": "planted6",
    "CUDA_LICENSE_KEY": "planted7",
    "TORCH_HUB_TOKEN": "planted8",
    "HOME": "/home/planted9",
    "PROXY": "http://user:planted10@proxy",
    "SGLANG_EXT_RUN_ID": "planted11",
}


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


# --- a stock server: titled processes under a Python that was started as one --------------------------------

STOCK = f"""
import subprocess
for title, *changes in (word.split(",") for word in sys.argv[2:] if word.startswith("sglang::")):
    env = os.environ | dict(change.split("=") for change in changes)
    quiet = {{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}}
    started = subprocess.Popen([title, "60"], executable={SLEEP!r}, env=env, **quiet)
    while not open(f"/proc/{{started.pid}}/cmdline").read().startswith("sglang::"):
        pass
"""


def verify_stock(*words: str, start: dict[str, str] | None = None, wanted: Contract = WANTED) -> dict[str, Any]:
    with child(STOCK + WAIT, *words, env=GOOD if start is None else start) as process:
        return verify_pid(process.pid, wanted)


TP2 = ("sglang.launch_server", "--tp", "2")


def test_a_stock_server_passes_by_what_is_seen_now() -> None:
    found = verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer")
    assert found["verdict"] == "PASS" and found["problems"] == [] and found["run"] is None
    assert found["expected"] == {"tp": 2, "pp": 1, "dp": 1, "nnodes": 1, "workers": 2, "here": 2}
    assert [(w["role"], w["label"], w["rank"]["tp"], w["counts"]) for w in found["workers"]] == [
        ("scheduler", "TP0", 0, True),
        ("scheduler", "TP1", 1, True),
        ("detokenizer", "detokenizer", None, False),
    ]
    text = report.render(found)
    assert "what NCCL read at its start was not witnessed" in text.splitlines()[-1]
    assert text.splitlines()[-1].startswith("PASS: 2 of 2 workers hold the contract (3 variables)")


def test_equal_workers_share_a_row() -> None:
    text = report.render(verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1"))
    assert [re.split(r"  +", line)[0] for line in text.splitlines()[:4]] == ["worker", *["TP0, TP1"] * 3]
    (line,) = (line for line in text.splitlines() if "NCCL_PROTO" in line)
    assert re.fullmatch(r"TP0, TP1  \d+, \d+  NCCL_PROTO +LL +LL +LL +n/a +PASS", line)


def test_unequal_workers_have_rows_of_their_own() -> None:
    found = verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1,NCCL_PROTO=Simple")
    assert found["verdict"] == "FAIL" and codes(found) == ["overwritten"]
    lines = [line for line in report.render(found).splitlines() if " NCCL_PROTO " in line]
    assert [line.split()[0] for line in lines[:2]] == ["TP0", "TP1"]
    assert lines[0].endswith("PASS") and lines[1].endswith("FAIL overwritten")
    coloured = report.render(found, colour=True)
    assert "\033[31mFAIL overwritten\033[0m" in coloured and "\033[32mPASS\033[0m" in coloured
    assert re.sub(r"\033\[\d*m", "", coloured) == report.render(found)


def test_a_helper_is_judged_and_decides_nothing() -> None:
    found = verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer,NCCL_PROTO=x")
    assert found["verdict"] == "PASS"
    assert [(p["code"], p["severity"]) for p in found["problems"]] == [("overwritten", "note")]
    assert found["workers"][-1]["verdict"] == "FAIL"
    assert "(FAIL overwritten)" in report.render(found)


def verify_all_processes(*words: str) -> dict[str, Any]:
    with child(STOCK + WAIT, *TP2, *words, env=GOOD) as process:
        server, _ = by_pid(process.pid)
        return verify(server, Request(WANTED, all_processes=True))


def test_all_processes_lets_helpers_decide() -> None:
    ranks = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
    found = verify_all_processes(*ranks, "sglang::detokenizer,NCCL_PROTO=x")
    assert found["verdict"] == "FAIL" and codes(found) == ["overwritten"]
    assert verify_all_processes(*ranks, "sglang::detokenizer")["verdict"] == "PASS"


def test_all_processes_still_needs_every_rank() -> None:
    found = verify_all_processes("sglang::scheduler_TP0", "sglang::detokenizer")
    assert found["verdict"] == "FAIL" and codes(found) == ["missing_ranks"]


# A worker at a time, each some moments later: while there is none, it is no server for whoever looks.
SLOW = f"""
import subprocess, time
print("ready", flush=True)
for title in (word for word in sys.argv[2:] if word.startswith("sglang::")):
    time.sleep(0.3)
    subprocess.Popen([title, "60"], executable={SLEEP!r}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("titles", "wait", "verdict", "problems"),
    [
        (("sglang::scheduler_TP0",), 1.0, "FAIL", ["missing_ranks"]),
        (("sglang::scheduler_TP0", "sglang::scheduler_TP1"), 20.0, "PASS", []),
    ],
)
def test_a_server_that_is_waited_for_must_have_every_rank(
    titles: tuple[str, ...], wait: float, verdict: str, problems: list[str]
) -> None:
    asked = {"run": None, "port": None, "require": None, "all_processes": False, "accepted": ()}
    with child(SLOW, *TP2, *titles, env=GOOD) as process:
        found = asking.check(argparse.Namespace(**asked, pid=process.pid, wait=wait), WANTED)
    assert (found["verdict"], codes(found)) == (verdict, problems)


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


@pytest.mark.parametrize(
    ("words", "verdict", "code", "part"),
    [
        ((*TP2, "sglang::scheduler_TP0"), "FAIL", "missing_ranks", "found 1 of 2 schedulers (TP0)"),
        ((*TP2, "sglang::detokenizer"), "FAIL", "missing_ranks", "found 0 of 2 schedulers (none)"),
        (
            (*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::scheduler_TP1"),
            "FAIL",
            "extra_ranks",
            "found 3 of 2 schedulers (TP0, TP1, TP1)",
        ),
        (
            (*TP2, "sglang::scheduler_TP1", "sglang::scheduler_TP1"),
            "FAIL",
            "extra_ranks",
            "two schedulers claim the same rank (TP1, TP1)",
        ),
        (("script.py", "sglang::scheduler_TP0"), "UNKNOWN", "expected_unknown", "found 1 schedulers (TP0)"),
        (
            ("sglang.launch_server", "--config", "c.yaml", "sglang::scheduler_TP0"),
            "UNKNOWN",
            "expected_unknown",
            "not told by its command line",
        ),
    ],
)
def test_found_ranks_must_be_the_expected_ones(words: tuple[str, ...], verdict: str, code: str, part: str) -> None:
    found = verify_stock(*words)
    assert found["verdict"] == verdict and codes(found) == [code]
    assert part in found["problems"][0]["message"]
    assert found["expected"]["here"] == (2 if verdict == "FAIL" else None)


# --- a server of ours: workers that attest ----------------------------------------------------------------

# argv: run directory, hook mode, what it does before it enters; it repairs as the seam does when told to.
WORKER = """
from sglang_ext import bootstrap
from sglang_ext.delivery.context import open_run
from sglang_ext.delivery.witness import Witness, read_now
context = open_run(sys.argv[2])
bootstrap.STATUS.mode = sys.argv[3]
bootstrap.STATUS.digest = "d" * 64
witness = Witness(context, {"node": 0, "dp": None, "pp": 0, "tp": 0})
found, repaired = read_now(context), []
if "repair" in sys.argv:
    repaired = [n for n, t in context.contract.terms.items() if found[n] != t.want]
    context.contract.apply_to(os.environ)
witness.entered(found, repaired)
witness.serve()
"""


def new_context(path: Path, wanted: Contract = WANTED) -> Context:
    return new_run(wanted, mode="launcher", policy="strict", path=str(path / "run"))


def facts(process: subprocess.Popen[str], context: Context, here: int = 1) -> None:
    """What the engine seam writes; the worker stands in for the main process too."""
    main = stat(process.pid)
    assert main is not None
    expected = {"tp": here, "pp": 1, "dp": 1, "nnodes": 1, "workers": here, "here": here}
    context.directory.write("server.json", {"expected": expected, "main": main.identity._asdict()})


MAIN = f"""
import subprocess
worker = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[3], sys.argv[1], sys.argv[2], *sys.argv[4:]],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert worker.stdout.readline() == b"ready\\n"
{WAIT}"""


@contextlib.contextmanager
def run_of_ours(
    context: Context, *words: str, start: dict[str, str], code: str = WORKER, here: int = 1
) -> Iterator[None]:
    """A main process with one worker below it, both marked as of the run."""
    marked = dict(start)
    context.mark(marked)
    with child(MAIN, context.directory.path, HEAD + code + WAIT, *words, env=marked) as process:
        facts(process, context, here)
        yield


def verify_run(context: Context, wanted: Contract | None = None) -> dict[str, Any]:
    server, directory = by_run(context.directory.path)
    return verify(server, Request(wanted), directory)


def test_a_run_of_ours_passes_by_its_own_contract(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "overlay", start=GOOD | SECRETS):
        found = verify_run(context)
        server, directory = by_run(context.directory.path)
        carried = run_of(server)  # also without being told the directory
    assert found["verdict"] == "PASS" and found["problems"] == []
    assert found["run"] == {"id": context.id, "dir": context.directory.path}
    assert carried is not None and carried.path == directory.path
    (worker,) = found["workers"]
    assert (worker["role"], worker["label"], worker["rank"]["node"]) == ("scheduler", "TP0", 0)
    assert worker["hook"] == {"active": True, "patchset": "d" * 64, "mode": "overlay", "local": []}
    assert {w: v["value"] for w, v in worker["variables"]["NCCL_PROTO"]["witnesses"].items()} == {
        "exec": "LL",
        "live": "LL",
        "attested": "LL",
        "effective": None,
    }
    assert report.render(found).splitlines()[-1] == "PASS: 1 of 1 workers hold the contract (3 variables); hook overlay"
    stored = "".join(path.read_text() for path in Path(context.directory.path).rglob("*.json"))
    for text in (json.dumps(found), report.render(found), stored):
        assert "planted" not in text.replace(context.id, "")


def test_an_attested_repair_is_a_pass_with_a_note(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "overlay", "repair", start={"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}):
        found = verify_run(context)
    assert found["verdict"] == "PASS"
    assert [(p["code"], p["severity"], p["variable"]) for p in found["problems"]] == [
        ("repaired", "note", "NCCL_PROTO")
    ]
    assert "came as Simple" in found["problems"][0]["message"]


def test_a_repair_to_another_value_than_is_asked_for_is_none(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "overlay", "repair", start={"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}):
        found = verify_run(context, contract("NCCL_PROTO=LL128"))
    assert found["verdict"] == "FAIL" and codes(found) == ["different"]


def test_a_wrong_value_is_not_excused_by_an_attestation(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "overlay", start=GOOD | {"NCCL_PROTO": "Simple"}):
        found = verify_run(context)
    assert found["verdict"] == "FAIL" and codes(found) == ["different"]


def test_a_change_after_the_first_line_is_named(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    code = WORKER + "\nos.environ['NCCL_PROTO'] = 'Simple'\n"
    with run_of_ours(context, "overlay", start=GOOD, code=code):
        found = verify_run(context)
    assert found["verdict"] == "FAIL" and codes(found) == ["changed_in_process"]
    assert "right at the worker's first line" in found["problems"][0]["message"]


def test_a_worker_on_stock_files_is_never_a_pass(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "none", start=GOOD):
        found = verify_run(context)
    assert found["verdict"] == "FAIL" and codes(found) == ["hook_inactive"]
    assert "says it runs stock files" in found["problems"][0]["message"]


def test_ranks_that_did_not_agree_when_built_are_never_a_pass(tmp_path: Path) -> None:
    """Where the run only warns they serve all the same, and the other rank may be on another node."""
    context = new_context(tmp_path)
    disagreed = WORKER + (
        "witness.ready(read_now(context), {'code': 'ranks_differ', 'message': 'NCCL_ALGO is Ring on rank 0 but Tree on '\n"
        "              'rank 1', 'world': 2, 'rank': 0}, None)\n"
    )
    with run_of_ours(context, "overlay", start=GOOD, code=disagreed):
        found = verify_run(context)
    assert found["verdict"] == "FAIL" and codes(found) == ["ranks_differ"]
    assert "NCCL_ALGO is Ring on rank 0 but Tree on rank 1" in found["problems"][0]["message"]


def test_a_worker_that_attests_nothing_is_never_a_pass(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    marked = dict(GOOD)
    context.mark(marked)
    with child(STOCK + WAIT, *TP2[:1], "sglang::scheduler_TP0", env=marked) as process:
        facts(process, context)
        found = verify_pid(process.pid, WANTED)  # the run is found by what the worker carries
    assert found["run"] is not None and found["run"]["id"] == context.id
    assert found["verdict"] == "FAIL" and codes(found) == ["hook_inactive"]
    assert f"belongs to run {context.id} and attests nothing" in found["problems"][0]["message"]


@pytest.mark.parametrize("damage", [{"start_time": 1}, {"hook": []}, {"entered": {"values": {}, "repaired": 1}}])
def test_a_record_that_is_not_believed_is_unknown(tmp_path: Path, damage: dict[str, Any]) -> None:
    context = new_context(tmp_path)
    marked = dict(GOOD)
    context.mark(marked)
    with child(STOCK + WAIT, *TP2[:1], "sglang::scheduler_TP0", env=marked) as process:
        facts(process, context)
        server, _ = by_pid(process.pid)
        worker = server.processes[0].stat
        record = {
            "schema": attestation.SCHEMA,
            "pid": worker.pid,
            "start_time": worker.start_time,
            "rank": {},
            "hook": {"mode": "overlay"},
            "entered": {"values": {}, "repaired": []},
        }
        context.directory.write(attestation.record_name(worker.pid), record | damage)
        found = verify(server, Request(WANTED))
    assert found["verdict"] == "UNKNOWN" and codes(found) == ["attestation_bad"]


def test_a_name_outside_the_run_s_contract_is_judged_by_the_live_witness(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    wanted = contract("MY_KNOB=1", absent=("OTHER_KNOB",))
    with run_of_ours(context, "overlay", start=GOOD | {"MY_KNOB": "1", "OTHER_KNOB": "2"}):
        found = verify_run(context, wanted)
    seen = found["workers"][0]["variables"]
    assert (seen["MY_KNOB"]["verdict"], seen["MY_KNOB"]["witnesses"]["attested"]["state"]) == ("PASS", "not_read")
    assert (seen["OTHER_KNOB"]["verdict"], seen["OTHER_KNOB"]["reason"]) == ("FAIL", "unwanted")


def test_ranks_that_are_not_there_are_missed(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "overlay", start=GOOD, here=2):
        found = verify_run(context)
    assert found["verdict"] == "FAIL" and codes(found) == ["missing_ranks"]


# Answers only when it is dead: a helper holds its connection, and tells the truth of a moment ago.
DYING = """
import json, socket, time
from sglang_ext import bootstrap
from sglang_ext.delivery.context import open_run
from sglang_ext.delivery.witness import Witness, read_now
from sglang_ext.run import attestation
from sglang_ext.run.directory import RunError
from sglang_ext.run.process import all_stats, stat
from sglang_ext.run.process import is_alive, myself
context = open_run(sys.argv[2])
bootstrap.STATUS.mode = "overlay"
witness = Witness(context, {"node": 0, "dp": None, "pp": 0, "tp": 0})
witness.entered(read_now(context), [])
listener = socket.socket(socket.AF_UNIX)
handle, path = attestation.short_path(context.directory, attestation.socket_name(os.getpid()))
listener.bind(path)
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
me, answer = myself(), witness.answer()
if os.fork() == 0:
    while is_alive(me):
        time.sleep(0.005)
    connection.sendall(answer)
os._exit(0)
"""


def test_a_worker_that_ends_while_it_is_read_is_never_a_pass(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "overlay", start=GOOD, code=DYING):
        found = verify_run(context)
    assert found["verdict"] == "UNKNOWN" and codes(found) == ["worker_gone"]
    assert {seen["reason"] for seen in found["workers"][0]["variables"].values()} == {"worker_gone"}
    (worker,) = found["workers"]
    assert worker["verdict"] == "UNKNOWN" and worker["extras"] == {}
    for seen in worker["variables"].values():
        states = {name: witness["state"] for name, witness in seen["witnesses"].items()}
        assert {states[name] for name in ("exec", "live", "attested")} == {"gone"}
        assert states.get("effective", "unavailable") == "unavailable"


def test_a_worker_of_another_patch_set_fails(tmp_path: Path) -> None:
    context = new_run(WANTED, mode="launcher", policy="strict", path=str(tmp_path / "run"), patchset="e" * 64)
    with run_of_ours(context, "overlay", start=GOOD):
        found = verify_run(context)
    assert (found["verdict"], codes(found)) == ("FAIL", ["wrong_copy"])
    assert (
        f"expected patch set {'e' * 12}, which the run was started with, found {'d' * 12}"
        in found["problems"][0]["message"]
    )


def test_a_worker_older_than_its_launch_fails_though_its_values_are_right(tmp_path: Path) -> None:
    """A pool's worker, found below the main process of a run that began later: it never attested to it."""
    context = new_context(tmp_path)
    with child(STOCK + WAIT, "sglang::scheduler_TP0", env=GOOD) as process:
        facts(process, context)
        run = context.directory.read("run.json")
        assert run is not None
        context.directory.write("run.json", {**run, "created": time.time() + 60})
        found = verify_run(context)
    assert (found["verdict"], codes(found)) == ("FAIL", ["stale_worker"])
    assert all(variable["verdict"] == "PASS" for variable in found["workers"][0]["variables"].values())


def test_a_run_s_damaged_contract_is_an_input_error(tmp_path: Path) -> None:
    context = new_context(tmp_path)
    with run_of_ours(context, "overlay", start=GOOD):
        path = Path(context.directory.file("contract.json"))
        path.write_text(path.read_text().replace('"LL"', '"Simple"'))
        with pytest.raises(ContractError, match="it was edited or damaged"):
            verify_run(context)


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
