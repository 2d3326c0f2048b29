"""The main path: launched by us, every variable proven in both ranks by every witness, and the model's answers unchanged."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig.server import Server

from .conftest import CONTRACT, NCCL, StockFacts, answers, by_witness, cli, sets, values


@pytest.fixture(scope="module")
def server(stock: StockFacts, models: dict[str, Path], logs: Callable[[str], Path]) -> Iterator[Server]:
    # After the stock server has ended: two rigs at once starve each other.
    with Server(logs("patched"), options=sets(CONTRACT), model=models["deepseek"]) as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def run_dir(server: Server) -> Path:
    found = re.search(r"; run (\S+)", server.text())
    assert found
    return Path(found.group(1))


def test_both_ranks_pass_by_every_witness(server: Server) -> None:
    done = cli("verify-env", "--json")
    report = done.report
    assert (done.status, report["verdict"]) == (0, "PASS"), done.out
    assert report["expected"] == {"tp": 2, "pp": 1, "dp": 1, "nnodes": 1, "workers": 2, "here": 2}
    for witness in ("exec", "live", "attested"):
        assert by_witness(report, witness) == [values(CONTRACT)] * 2, witness
    assert [w["label"] for w in report["workers"] if w["counts"]] == ["TP0", "TP1"]
    assert {w["hook"]["mode"] for w in report["workers"] if w["counts"]} == {"overlay"}
    assert [p for p in report["problems"] if p["severity"] != "note"] == []


@pytest.mark.parametrize("witness", ["exec", "live", "attested"])
def test_each_witness_can_be_demanded(server: Server, witness: str) -> None:
    assert cli("verify-env", "--require", witness).status == 0


def test_greedy_tokens_and_capacity_equal_stock(server: Server, stock: StockFacts) -> None:
    assert answers(server) == stock.answers


def test_the_launcher_printed_the_table_and_who_changed_what(server: Server) -> None:
    log = server.text()
    assert re.search(r"^TP0, TP1 +\d+, \d+ +NCCL_PROTO +LL +LL +LL +LL +PASS$", log, re.M)
    assert "PASS: 2 of 2 workers hold the contract (4 variables); hook overlay" in log
    assert "CUDA_DEVICE_MAX_CONNECTIONS 32 -> 8 (by sglang's _set_envs_and_config); restored to 32" in log


def test_another_contract_fails_by_name(server: Server) -> None:
    done = cli("verify-env", "--set", "NCCL_PROTO=Simple", "--absent", "NCCL_ALGO", "--json")
    assert done.status == 1
    assert {(p["code"], p["variable"]) for p in done.report["problems"] if p["severity"] == "fail"} == {
        ("different", "NCCL_PROTO"),
        ("unwanted", "NCCL_ALGO"),
    }


def test_the_verifiers_own_shell_is_no_evidence(server: Server) -> None:
    done = cli("verify-env", "--set", "NCCL_BUFFSIZE=8388608", "--json", env={**os.environ, "NCCL_BUFFSIZE": "8388608"})
    assert done.status == 1
    assert {p["code"] for p in done.report["problems"] if p["severity"] == "fail"} == {"missing"}


def test_the_gate_opens_and_hands_the_status_on(server: Server, tmp_path: Path) -> None:
    done = cli("gate", "--json", str(tmp_path / "gate.json"), "--", "sh", "-c", "echo measured; exit 7")
    assert (done.status, done.out) == (7, "measured\n")
    report = json.loads((tmp_path / "gate.json").read_text())
    assert (report["before"]["verdict"], report["after"]["verdict"], report["same_server"]) == ("PASS", "PASS", True)


def test_the_run_directory_is_private(run_dir: Path) -> None:
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    files = [p for p in run_dir.rglob("*") if not p.is_dir()]
    assert len([p for p in files if p.suffix == ".json" and p.parent.name == "workers"]) == 2
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_attestations_say_what_happened(run_dir: Path) -> None:
    for path in (run_dir / "workers").glob("*.json"):
        record = json.loads(path.read_text())
        assert record["entered"]["repaired"] == []
        assert {n: record["entered"]["values"][n] for n in CONTRACT} == CONTRACT
        agreement = {"code": None, "message": "2 ranks hold the same", "world": 2, "rank": record["rank"]["tp"]}
        assert record["ready"]["agreement"] == agreement
        assert record["ready"]["shape"] == {
            "architecture": "DeepseekV3ForCausalLM",
            "hidden_size": 256,
            "layers": 3,
            "all_reduces_per_token": 7,
            "all_gathers_per_token": 1,
        }
        assert len(record["hook"]["imported"]) == 3


def test_a_value_changed_in_a_worker_is_seen(server: Server) -> None:
    """The last one: it damages the server. gdb-free: the worker's own C environment is written through /proc/PID/mem."""
    worker = server.titled("sglang::scheduler")[1]
    memory = Path(f"/proc/{worker.pid}/mem")
    with memory.open("r+b", buffering=0) as file:
        for line in Path(f"/proc/{worker.pid}/maps").read_text().splitlines():
            span, mode = line.split()[:2]
            if not line.endswith(("[stack]", "[heap]")) or "w" not in mode:
                continue
            start, end = (int(x, 16) for x in span.split("-"))
            file.seek(start)
            data = file.read(end - start)
            at = -1
            while (at := data.find(b"NCCL_PROTO=LL\0", at + 1)) >= 0:
                file.seek(start + at)
                file.write(b"NCCL_PROTO=XX\0")
    done = cli("verify-env", "--json")
    assert done.status == 1
    failures = [p for p in done.report["problems"] if p["severity"] == "fail"]
    assert {(p["worker"], p["variable"]) for p in failures} == {(worker.pid, "NCCL_PROTO")}
    # What it holds is wrong, and no word NCCL knows besides.
    by_code = {p["code"]: p["message"] for p in failures}
    assert by_code.keys() == {"changed_in_process", "value_refused"}
    assert "TP1" in by_code["changed_in_process"] and "expected LL, found XX" in by_code["changed_in_process"]
    assert NCCL["NCCL_PROTO"] == "LL"


def test_sigterm_ends_it_all(server: Server) -> None:
    assert server.stop(signal.SIGTERM) == -signal.SIGTERM
    assert "sglang::" not in " ".join(" ".join(p.cmdline()) for p in server.left())
