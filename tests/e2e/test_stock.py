"""Stock SGLang, hook off, no cooperation: what can be concluded all the same, and nothing more."""

from __future__ import annotations

from .conftest import CONTRACT, NCCL, StockFacts, by_witness, values


def test_its_environ_is_overwritten(stock: StockFacts) -> None:
    assert len(stock.environ) == 2
    for block in stock.environ:
        assert block.startswith(b"\0" * 100)
        assert b"NCCL_PROTO" not in block


def test_the_three_variables_pass_by_live_alone(stock: StockFacts) -> None:
    report = stock.asked_three.report
    assert (stock.asked_three.status, report["verdict"]) == (0, "PASS")
    assert report["expected"]["here"] == 2
    assert by_witness(report, "live") == [values(NCCL)] * 2
    assert by_witness(report, "exec") == [dict.fromkeys(NCCL, ("clobbered", None))] * 2, "never absent: it says nothing"
    assert by_witness(report, "attested") == [dict.fromkeys(NCCL, ("unavailable", None))] * 2
    assert report["run"] is None
    assert {w["hook"]["mode"] for w in report["workers"]} == {"none"}


def test_connections_were_overwritten(stock: StockFacts) -> None:
    report = stock.asked_four.report
    assert (stock.asked_four.status, report["verdict"]) == (1, "FAIL")
    for worker in [w for w in report["workers"] if w["counts"]]:
        found = worker["variables"]["CUDA_DEVICE_MAX_CONNECTIONS"]
        assert (found["verdict"], found["reason"]) == ("FAIL", "overwritten")
        assert found["witnesses"]["live"]["value"] == "8"
        assert {worker["variables"][name]["verdict"] for name in NCCL} == {"PASS"}
    failures = [p for p in report["problems"] if p["severity"] == "fail"]
    assert [p["variable"] for p in failures] == ["CUDA_DEVICE_MAX_CONNECTIONS"] * 2
    for problem, rank in zip(failures, ("TP0", "TP1"), strict=True):
        assert problem["message"].startswith(rank)
        assert "expected 32, found 8" in problem["message"]
        assert problem["fix"]


def test_without_a_contract_nothing_is_claimed(stock: StockFacts) -> None:
    assert stock.asked_nothing.status == 2
    assert "no_contract: " in stock.asked_nothing.err
    assert "--profile" in stock.asked_nothing.err


def test_it_is_found_by_port_and_by_any_of_its_pids(stock: StockFacts) -> None:
    for done in (stock.by_port, stock.by_pid, stock.all_processes):
        assert (done.status, done.report["verdict"]) == (0, "PASS"), done.err
    pids = {w["pid"] for w in stock.asked_three.report["workers"]}
    assert {w["pid"] for w in stock.by_port.report["workers"]} == pids
    assert len(stock.all_processes.report["workers"]) > len(pids)


def test_the_gate_stays_shut(stock: StockFacts) -> None:
    assert stock.gate.status == 1
    assert "not run: the verdict is FAIL" in stock.gate.err


def test_the_hook_was_off(stock: StockFacts) -> None:
    assert "sglang-ext" not in stock.log
    assert CONTRACT["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
