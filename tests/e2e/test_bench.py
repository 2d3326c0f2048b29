"""A bench run on a real TP=2 server: a number with its receipt, and no number where nothing is proven."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.rig.server import Server, clean_environment

from .conftest import CONTRACT, ROOT, cli, sets

RIG_SUITE = str(ROOT / "benchmarks" / "rig.toml")
KEY = "e2e-hunter2"
FIGURES = ("ttft_s", "decode_tok_s", "e2e_tok_s", "step_ms")


@pytest.fixture(scope="module")
def server(models: dict[str, Path], logs: Callable[[str], Path]) -> Iterator[Server]:
    """Tiny DeepSeek under the launcher, with a key: nothing of it may show."""
    options = sets(CONTRACT)
    with Server(logs("bench"), options=options, model=models["deepseek"], flags=["--api-key", KEY]) as running:
        yield running.wait_ready()


def bench(*words: str, verb: str = "run") -> Any:
    return cli("bench", verb, *words, env={**clean_environment(1, {}), "SGLANG_EXT_API_KEY": KEY})


@pytest.fixture(scope="module")
def first(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A run, and its receipt."""
    kept = tmp_path_factory.mktemp("kept") / "receipt.json"
    return bench(RIG_SUITE, "--json", str(kept), "--port", str(server.port)), kept


def runs(found: dict[str, Any]) -> list[dict[str, Any]]:
    ((launch,),) = [arm["launches"] for arm in found["arms"]]
    return list(launch["runs"])


def test_a_valid_run_and_its_receipt(first: tuple[Any, Path]) -> None:
    done, file = first
    assert done.status == 0, done.out + done.err
    last = done.out.splitlines()
    assert last[0].split()[:2] == ["run", "tokens"] and any(line.startswith("VALID: median decode ") for line in last)
    assert last[-1] == f"receipt: {file}" and done.err.count("PASS: 2 of 2 workers") == 2
    text = file.read_text()
    assert KEY not in text + done.out + done.err
    found = json.loads(text)
    assert (found["schema"], found["state"], found["reason"]) == ("sglang-ext/bench/1", "VALID", None)
    assert found["arms"][0]["launches"][0]["verified"] and [run["tokens"] for run in runs(found)] == [64, 64, 64]
    for run in runs(found):
        assert all(run[name] > 0 for name in FIGURES) and run["e2e_tok_s"] < run["decode_tok_s"]
        assert run["accept_length"] is None and run["unknown"]["accept_length"] == "the server does not speculate"
        assert run["chunks"] <= 64 and run["prompt_tokens"] > 0
    # 64 tokens are more than a window of 40 steps: at least one ended in some run, and the server told it.
    assert any(run["server_gen_tok_s"] for run in runs(found))
    assert {w["verdict"] for w in found["verify"]["after"]["workers"]} == {"PASS"}


def test_a_receipt_is_repeated(first: tuple[Any, Path], tmp_path: Path) -> None:
    """Where the same server runs. What one that is not the same comes to: test_a_worker_that_dies_while_measured."""
    _, kept = first
    done = bench(str(kept), "--json", str(tmp_path / "again.json"), verb="rerun")
    assert done.status == 0, done.out + done.err
    was, now = json.loads(kept.read_text()), json.loads((tmp_path / "again.json").read_text())
    assert now["state"] == "VALID" and now["suite"] == was["suite"] and now["time"] != was["time"]
    assert [run["tokens"] for run in runs(now)] == [run["tokens"] for run in runs(was)]
    done = bench(str(kept), "--set", "NCCL_PROTO=Simple", verb="rerun")
    assert done.status == 1 and "INVALID: not_verified" in done.out and "tok/s" not in done.out


def test_the_fingerprint_is_that_of_the_workers(server: Server, tmp_path: Path) -> None:
    done = bench(RIG_SUITE, "--json", "-", "--port", str(server.port))
    assert done.status == 0, done.out + done.err
    made = done.report["fingerprint"]
    versions = made["server"]["packages"]
    frozen = [version(name) for name in ("torch", "sglang", "nvidia-nccl-cu13")]
    assert [versions[name] for name in ("torch", "sglang", "nvidia-nccl-cu13")] == frozen
    assert [one["worker"] for one in made["nccl"]] == ["TP0", "TP1"]
    for one in made["nccl"]:
        assert (one["file"], len(one["sha256"]), one["reason"]) == ("libnccl.so.2", 64, None)
        assert frozen[2].startswith(one["version"])
    assert {name: v["want"] for name, v in made["contract"]["variables"].items()} == CONTRACT
    assert made["patches"]["mode"] == "overlay" and len(made["patches"]["patchset"]) == 64
    assert {Path(name).name for name in made["patches"]["imported"]} == {"engine.py", "scheduler.py", "deepseek_v2.py"}
    assert made["arguments"]["tp_size"] == 2 and made["arguments"]["max_total_tokens"] == 8192
    assert "api_key" not in made["arguments"] and made["arguments_left_out"] > 0


def test_the_other_endpoint_agrees_on_what_is_counted(server: Server, tmp_path: Path) -> None:
    suite = tmp_path / "completions.toml"
    suite.write_text(Path(RIG_SUITE).read_text().replace("runs = 3", "runs = 1") + 'endpoint = "completions"\n')
    done = bench(str(suite), "--json", "-")
    assert done.status == 0, done.out + done.err
    (run,) = done.report["arms"][0]["launches"][0]["runs"]
    assert run["tokens"] == 64 and run["decode_tok_s"] > 0


def test_a_contract_that_does_not_hold_gives_no_number(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    done = bench(RIG_SUITE, "--set", "NCCL_PROTO=Simple", "--json", str(file))
    assert done.status == 1 and "INVALID: not_verified" in done.out and "tok/s" not in done.out
    found = json.loads(file.read_text())
    assert found["state"] == "INVALID" and found["arms"][0]["launches"][0] == {
        "verified": False,
        "runs": [],
        "warmups": [],
    }


def test_a_server_that_refuses_gives_no_number(server: Server) -> None:
    done = cli("bench", "run", RIG_SUITE)  # without the key
    assert done.status == 3 and "no_endpoint" in done.out and "HTTP 401" in done.out and "tok/s" not in done.out


def test_the_servers_own_limit_makes_a_run_invalid(server: Server, tmp_path: Path) -> None:
    suite = tmp_path / "long.toml"
    suite.write_text(Path(RIG_SUITE).read_text().replace("tokens = 64", "tokens = 100000"))
    done = bench(str(suite))
    assert done.status == 1, done.out + done.err
    assert "INVALID: server_error" in done.out or "INVALID: wrong_length" in done.out
    assert "tok/s" not in done.out


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    done = bench(str(tmp_path / "nowhere.toml"))
    assert done.status == 2 and done.err.startswith("sglang-ext: suite_invalid: suite ") and done.err.count("\n") == 1
    done = bench(RIG_SUITE, "--json", str(tmp_path / "no" / "r.json"))
    assert done.status == 2 and done.err.startswith("sglang-ext: receipt_unwritable: ") and done.err.count("\n") == 1


def test_a_worker_that_dies_while_measured(
    models: dict[str, Path], logs: Callable[[str], Path], first: tuple[Any, Path], tmp_path: Path
) -> None:
    suite, file = tmp_path / "long.toml", tmp_path / "receipt.json"
    suite.write_text(Path(RIG_SUITE).read_text().replace("tokens = 64", "tokens = 3000"))
    fewer = ["--max-running-requests", "4"]
    with Server(logs("killed"), options=sets(CONTRACT), model=models["deepseek"], flags=fewer) as server:
        server.wait_ready()
        console = str(Path(sys.executable).with_name("sglang-ext"))
        which = ["--port", str(server.port)]  # the module's own server is still there
        done = bench(str(first[1]), *which, verb="rerun")
        assert done.status == 1 and "INVALID: rerun_differs: " in done.out, done.out + done.err
        assert "max_running_requests" in done.out
        assert "bench: run 1" not in done.err and "tok/s" not in done.out
        command = [console, "bench", "run", str(suite), *which, "--json", str(file)]
        with subprocess.Popen(
            command, env=clean_environment(1, {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None and running.stderr is not None
            told = []
            for line in running.stderr:
                told.append(line)
                if line.startswith("bench: run 1 of 3"):
                    break
            assert running.poll() is None, "".join(told)
            server.titled("sglang::scheduler")[1].kill()
            out, err = running.communicate(timeout=120)
        assert running.returncode == 4, out + err
        assert out.startswith("INVALID: verdict_lost: expected PASS after the last run") and "tok/s" not in out
        found = json.loads(file.read_text())
        launch = found["arms"][0]["launches"][0]
        assert (found["state"], found["exit"], launch["verified"]) == ("INVALID", 4, False)
        assert [run["valid"] for run in launch["runs"]] == [False]
        server.process.wait(timeout=60)
        server.wait_gone(10.0)
