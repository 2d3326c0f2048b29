"""diff on real TP=2 servers: a server is the same as its receipt; another one differs in what it was started with alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.server import STOCK, Server, clean_environment

from .conftest import CONTRACT, ROOT, Done, cli, sets

RIG_SUITE = str(ROOT / "benchmarks" / "rig.toml")
KEY = "e2e-hunter2"
OTHER = {**CONTRACT, "NCCL_PROTO": "Simple"}


@pytest.fixture(scope="module")
def server(models: dict[str, Path], logs: Callable[[str], Path]) -> Iterator[Server]:
    """Tiny DeepSeek under the launcher, with a key: nothing of it may show."""
    options = [*sets(CONTRACT), "--run-dir", str(logs("run").with_suffix(""))]
    with Server(logs("one"), options=options, model=models["deepseek"], flags=["--api-key", KEY]) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def receipt(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A receipt of that server."""
    file = tmp_path_factory.mktemp("receipts") / "one.json"
    done = keyed("bench", "run", RIG_SUITE, "--port", str(server.port), "--json", str(file))
    assert done.status == 0, done.out + done.err
    return file


def keyed(*words: str) -> Done:
    return cli(*words, env={**clean_environment(1, {}), "SGLANG_EXT_API_KEY": KEY})


def named(found: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["group"], one["name"]) for one in found}


def test_a_server_against_its_own_receipt_is_the_same(server: Server, receipt: Path) -> None:
    done = keyed("diff", str(receipt), f"port:{server.port}", "--json")
    assert done.status == 0, done.out + done.err
    found = done.report
    assert (found["verdict"], found["differences"], found["notes"]) == ("SAME", [], [])
    for group in ("contract", "environment", "arguments", "versions", "nccl", "patches", "sizes", "host", "model"):
        assert found["equal"][group] > 0, group
    assert found["equal"]["arguments"] > 400 and found["equal"]["contract"] == len(CONTRACT)
    assert all(one["names"] or one["group"] == "driver" for one in found["not_comparable"])  # no driver on the rig
    again = keyed("diff", f"pid:{server.titled('sglang::scheduler')[1].pid}", str(receipt))
    assert again.status == 0 and again.out.splitlines()[-1].startswith("SAME: ")
    assert KEY not in done.out + done.err + again.out + again.err


def test_exactly_what_was_changed_in_a_receipt_differs(server: Server, receipt: Path, tmp_path: Path) -> None:
    found = json.loads(receipt.read_text())
    found["fingerprint"]["arguments"]["chunked_prefill_size"] = 8192
    for worker in found["verify"]["before"]["workers"]:
        worker["extras"]["NCCL_CUMEM_ENABLE"] = "1"
    (tmp_path / "edited.json").write_text(json.dumps(found))
    done = keyed("diff", f"port:{server.port}", str(tmp_path / "edited.json"), "--json")
    assert done.status == 1, done.out + done.err
    differences = {
        (d["group"], d["name"]): (d["ranks"], d["a"]["value"], d["b"]["value"]) for d in done.report["differences"]
    }
    assert differences == {
        ("arguments", "chunked_prefill_size"): ([], 4096, 8192),
        ("environment", "NCCL_CUMEM_ENABLE"): ([], "0", "1"),
    }


def test_what_nccl_takes_for_the_same_is_noted(server: Server, receipt: Path, tmp_path: Path) -> None:
    found = json.loads(receipt.read_text())
    for worker in found["verify"]["before"]["workers"]:
        worker["extras"]["NCCL_CUMEM_ENABLE"] = "0x0"
    (tmp_path / "edited.json").write_text(json.dumps(found))
    done = keyed("diff", f"port:{server.port}", str(tmp_path / "edited.json"))
    assert done.status == 0 and "note: environment NCCL_CUMEM_ENABLE: 0 / 0x0: NCCL 2." in done.out


def test_without_its_key_a_server_is_compared_without_its_arguments(server: Server, receipt: Path) -> None:
    done = cli("diff", f"port:{server.port}", str(receipt), "--json")
    assert done.status == 0, done.out + done.err
    (why,) = [one["why"] for one in done.report["not_comparable"] if one["group"] == "arguments"]
    assert why.startswith("A: the server could not be asked: ") and "HTTP 401" in why
    assert done.report["equal"]["environment"] > 5


def test_a_verify_report_is_a_side(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert cli("verify-env", "--port", str(server.port), "--json", str(file)).status == 0
    done = keyed("diff", str(file), f"port:{server.port}", "--json")
    assert done.status == 0, done.out + done.err
    assert done.report["equal"]["environment"] > 5 and done.report["a"]["kind"] == "report"


def test_another_server_differs_in_what_it_was_started_with(
    server: Server, models: dict[str, Path], logs: Callable[[str], Path]
) -> None:
    folder = logs("other-run").with_suffix("")
    options = [*sets(OTHER), "--run-dir", str(folder)]
    flags = ["--api-key", KEY, "--max-running-requests", "7"]
    with Server(logs("other"), options=options, model=models["deepseek"], flags=flags) as other:
        other.wait_ready()
        done = keyed("diff", f"port:{server.port}", f"run:{folder}", "--json")
        assert done.status == 1, done.out + done.err
        assert done.report["b"]["kind"] == "server"
        assert named(done.report["differences"]) == {
            ("contract", "NCCL_PROTO"),
            ("environment", "NCCL_PROTO"),
            ("arguments", "max_running_requests"),
        }
        assert named(done.report["notes"]) <= {
            ("arguments", "port"),
            ("arguments", "random_seed"),
            ("arguments", "nccl_port"),
        }
        assert other.stop() in (0, -15)
    ended = keyed("diff", f"run:{folder}", f"port:{server.port}", "--json")
    assert ended.status == 1 and ended.report["a"]["kind"] == "run", ended.out + ended.err
    assert named(ended.report["differences"]) == {("contract", "NCCL_PROTO"), ("environment", "NCCL_PROTO")}


def test_a_stock_server_gets_what_can_be_seen(
    receipt: Path, models: dict[str, Path], logs: Callable[[str], Path]
) -> None:
    environment = {**CONTRACT, "SGLANG_EXT": "0"}
    with Server(logs("stock"), start=STOCK, model=models["deepseek"], environment=environment) as stock:
        stock.wait_ready()
        done = keyed("diff", str(receipt), f"port:{stock.port}", "--json")
    assert done.status == 1, done.out + done.err
    found = done.report
    # Stock SGLang overwrites one of the contract's variables; nothing else of what can be seen is another.
    assert named(found["differences"]) == {("environment", "CUDA_DEVICE_MAX_CONNECTIONS"), ("patches", "a run of ours")}
    whole = {one["group"] for one in found["not_comparable"] if not one["names"]}
    assert "contract" in whole and not whole & {"environment", "arguments", "nccl", "versions"}


def test_what_is_no_side(receipt: Path, tmp_path: Path) -> None:
    done = cli("diff", str(receipt), str(tmp_path))
    assert done.status == 2 and done.err.count("\n") == 1, done.err
    done = cli("diff", str(receipt), "port:1")
    assert done.status == 3 and done.err.startswith("sglang-ext: no_server: ")
