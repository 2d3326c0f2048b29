"""`verify` on a run of ours: a worker passes by what it attests and what is seen of it, and never by one of them alone.

The workers are small scripts that use the seams' own witness.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.delivery.context import Context, new_run
from sglang_ext.run import attestation
from sglang_ext.run.process import stat
from sglang_ext.verify import report
from sglang_ext.verify.carried import run_of
from sglang_ext.verify.check import Request, verify
from sglang_ext.verify.select import by_pid, by_run
from tests.unit.checked_children import (
    GOOD,
    HEAD,
    SECRETS,
    STOCK,
    TP2,
    WAIT,
    WANTED,
    child,
    codes,
    contract,
    verify_pid,
)

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
