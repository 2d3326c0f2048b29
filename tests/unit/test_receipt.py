"""The receipt: what it says of whom, that it holds no secret, and when there is no number."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext import cli
from sglang_ext.bench import fingerprint, gate, receipt, runner, verb
from sglang_ext.bench.campaigns import again, measure
from sglang_ext.bench.show import render
from sglang_ext.bench.suites.suite import parse_suite
from sglang_ext.bench.traffic import client, endpoint
from sglang_ext.bench.traffic.client import Address, Fault, ServerError, Stream
from sglang_ext.bench.traffic.figures import Run
from sglang_ext.reasons import TABLE
from sglang_ext.run.attestation import SCHEMA as ATTESTATION
from sglang_ext.run.attestation import record_name
from sglang_ext.run.directory import RunDirectory
from sglang_ext.run.process import myself
from sglang_ext.verify.check import NoContractError, unseen

SUITE = parse_suite(
    b'[suite]\nname = "s"\nsummary = "S"\n[workload]\nprompt = "hi"\ntokens = 4\nruns = 2\nwarmup_tokens = 2\n',
    "s.toml",
)
SECRET = "hunter2-not-for-sharing"
SERVER_INFO: dict[str, Any] = {
    "model_path": "/models/m",
    "tp_size": 2,
    "max_total_tokens": 8192,
    "speculative_num_draft_tokens": 3,
    "speculative_algorithm": None,
    "tokenizer_path": "/models/m",
    "api_key": SECRET,
    "admin_api_key": SECRET,
    "ssl_keyfile_password": SECRET,
    "watermark_key": 12345678901,
    "some_token": SECRET,
    "launch_command": f"--api-key {SECRET}",
    "model_loader_extra_config": json.dumps({"access_key": SECRET}),
    "proxy": f"http://user:{SECRET}@host/",
    "nested": {"depth": [{"password": SECRET, "kept": 1}]},
    "long": "x" * 5000,
    "_private": SECRET,
    "internal_states": [{"last_gen_throughput": 0.0, "api_key": SECRET}],
}


def report(verdict: str = "PASS", pid: int | None = None, **other: Any) -> dict[str, Any]:
    """A verify report as `check.verify` makes them."""
    me = myself()
    worker = {
        "pid": pid or me.pid, "start_time": me.start_time, "role": "scheduler", "title": "", "label": "TP0", "rank": {},
        "verdict": verdict, "counts": True, "hook": {"mode": "overlay"}, "variables": {}, "extras": {"NCCL_ALGO": "Ring"},
    }  # fmt: skip
    found = {
        "schema": "sglang-ext/verify/1", "verdict": verdict, "host": "h", "time": 1.0, "run": None, "main": me.pid,
        "contract": {"digest": "d", "variables": {"NCCL_PROTO": {"want": "LL", "source": "flag"}}}, "expected": {},
        "require": None, "workers": [worker], "problems": [],
    }  # fmt: skip
    return {**found, **other}


def stream(counts: list[int], *, fault: Fault | None = None) -> Stream:
    events = [{"meta_info": {"completion_tokens": count, "prompt_tokens": 2, "cached_tokens": 1}} for count in counts]
    pieces = [(float(i + 1), f"data: {json.dumps(event)}\n\n".encode()) for i, event in enumerate(events)]
    return Stream(0.0, (*pieces, (9.0, b"data: [DONE]\n\n")), fault)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A server that gives every run what was asked; each look finds a new window. Collects the asked lengths."""
    asked: list[int] = []
    looks = iter(range(1, 1000))

    def ask(_: Address, path: str, timeout: float = 30.0) -> dict[str, Any]:
        if path == "/model_info":
            return {"model_path": "/models/m", "weight_version": "default", "architectures": ["A"], "api_key": SECRET}
        return {**SERVER_INFO, "internal_states": [{"last_gen_throughput": float(next(looks))}]}

    def answer(_: Address, path: str, requests: list[dict[str, Any]], timeout: float) -> list[Stream]:
        (request,) = requests
        asked.append(request["sampling_params"]["max_new_tokens"])
        return [stream(list(range(1, asked[-1] + 1)))]

    monkeypatch.setattr(client, "ask", ask)
    monkeypatch.setattr(client, "run_streams", answer)
    monkeypatch.setattr(endpoint, "find", lambda _: Address("127.0.0.1", 1))
    return asked


def bench(*reports: dict[str, Any], expected: dict[str, Any] | None = None) -> runner.Outcome:
    given = iter(reports)
    return runner.bench(SUITE, lambda _: next(given), lambda _: None, expected)


def test_a_valid_receipt(served: list[int]) -> None:
    outcome = bench(report(), report())
    found = receipt.receipt(outcome)
    assert served == [2, 4, 4]
    assert (found["schema"], found["state"], found["reason"], found["exit"]) == ("sglang-ext/bench/1", "VALID", None, 0)
    assert found["comparisons"] == [] and found["suite"]["sha256"] == SUITE.sha256
    ((arm,), (launch,)) = (found["arms"], found["arms"][0]["launches"])
    assert (arm["name"], launch["verified"], len(launch["runs"]), len(launch["warmups"])) == ("s", True, 2, 1)
    for run in launch["runs"]:
        assert run.keys() >= {
            "tokens", "ttft_s", "decode_tok_s", "e2e_tok_s", "server_gen_tok_s", "reconciled", "accept_length", "step_ms",
            "chunks", "cached_tokens", "valid", "reason", "unknown",
        }  # fmt: skip
        assert (run["tokens"], run["decode_tok_s"], run["e2e_tok_s"], run["step_ms"]) == (4, 1.0, 1.0, 1000.0)
        # Nothing is null without its reason.
        assert {k for k, v in run.items() if v is None} - {"reason"} == run["unknown"].keys()
    assert [run["server_gen_tok_s"] for run in launch["runs"]] == [3.0, 4.0]
    assert found["verify"]["before"]["verdict"] == found["verify"]["after"]["verdict"] == "PASS"
    assert found["verify"]["before"]["workers"][0]["extras"] == {"NCCL_ALGO": "Ring"}
    made = found["fingerprint"]
    assert made["contract"]["digest"] == "d" and made["model"]["weight_version"] == "default"
    assert made["machine"]["cores"] >= 1 and made["machine"]["memory_bytes"] > 1 << 20
    assert made["patches"]["reason"] == "a server not of ours attests nothing"
    text = render(outcome, None)
    assert "VALID: median decode 1.00 tok/s of 2 runs (1.00-1.00), by the client" in text
    assert "up to 50% of the prompt came from the prefix cache" in text and "--json FILE" in text


def test_no_secret_is_in_a_receipt(served: list[int]) -> None:
    found = receipt.receipt(bench(report(), report()))
    assert SECRET not in json.dumps(found) and "12345678901" not in json.dumps(found)
    given = found["fingerprint"]["arguments"]
    assert not {"api_key", "admin_api_key", "ssl_keyfile_password", "watermark_key", "some_token"} & given.keys()
    assert not {"launch_command", "internal_states", "_private"} & given.keys()
    assert found["fingerprint"]["arguments_left_out"] == 5
    # A number of tokens is no token, and the knobs a comparison lives from are kept.
    assert (given["max_total_tokens"], given["speculative_num_draft_tokens"], given["tp_size"]) == (8192, 3, 2)
    assert given["model_loader_extra_config"] == given["proxy"] == fingerprint.SECRET_VALUE
    assert given["nested"] == {"depth": [{"kept": 1}]}
    assert len(given["long"]) < 400 and "5000 characters" in given["long"]


def test_a_single_run_is_repeated_in_the_environment_it_had(served: list[int]) -> None:
    taken = json.loads(json.dumps(receipt.receipt(bench(report(), report()))))
    (expected,) = again.fingerprints(taken).values()
    assert expected["environment"] == {"TP0": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}}
    live = {"NCCL_PROTO": {"witnesses": {"live": {"state": "value", "value": "LL"}}}}
    (worker,) = report()["workers"]
    same = report(workers=[{**worker, "variables": live}])
    assert bench(same, same, expected=expected).state == "VALID"
    del served[:]
    other = report(workers=[{**worker, "extras": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"}}])
    found = bench(other, other, expected=expected)
    assert found.reason is not None and found.reason.code == "rerun_differs" and served == []
    assert "environment.OMP_NUM_THREADS (TP0) (absent) / 1" in found.reason.text
    # A receipt whose report says nothing of the ranks binds them to nothing.
    reports: list[dict[str, Any]] = [{}, {"before": {"workers": [{}]}}, {"before": None}]
    for verify in reports:
        (blind,) = again.fingerprints({**taken, "verify": verify}).values()
        assert bench(other, other, expected=blind).state == "VALID"


def test_long_arguments_that_differ_at_their_end_are_two() -> None:
    one, other = (fingerprint.arguments({"long": "x" * 4999 + end})[0]["long"] for end in "ab")
    assert one != other and len(one) < 400 and one == fingerprint.arguments({"long": "x" * 4999 + "a"})[0]["long"]
    # Of what may be a secret not even a digest is kept.
    hidden = [fingerprint.harmless(f"http://user:hunter{n}@h/{'x' * 400}") for n in (1, 2)]
    assert hidden == [fingerprint.SECRET_VALUE] * 2 and fingerprint.harmless("hf_AbCdEfGh12345678") == hidden[0]


@pytest.mark.parametrize(("verdict", "status"), [("FAIL", 1), ("UNKNOWN", 3)])
def test_no_pass_no_number(served: list[int], verdict: str, status: int) -> None:
    outcome = bench(report(verdict))
    found = receipt.receipt(outcome)
    assert served == [] and outcome.status == status
    assert found["state"] == "INVALID" and found["reason"].startswith("not_verified: ")
    assert found["arms"][0]["launches"] == [{"verified": False, "runs": [], "warmups": []}]
    assert "tok/s" not in render(outcome, "f")


@pytest.mark.parametrize(
    "after",
    [
        report("FAIL"),
        report("UNKNOWN"),
        unseen("no_server", "gone"),
        report(pid=1),
        report(contract={"digest": "other", "variables": {}}),
    ],
)
def test_verified_before_but_not_after(served: list[int], after: dict[str, Any]) -> None:
    outcome = bench(report(), after)
    found = receipt.receipt(outcome)
    assert (outcome.status, found["state"], found["arms"][0]["launches"][0]["verified"]) == (4, "INVALID", False)
    assert found["reason"].startswith("verdict_lost: ")
    text = render(outcome, "f")
    assert text.startswith("INVALID: verdict_lost: ") and "tok/s" not in text


def test_a_server_that_cannot_be_named_any_more_is_lost(served: list[int]) -> None:
    def check(main: int | None) -> dict[str, Any]:
        if main is None:
            return report()
        assert main == myself().pid  # the second look goes to the server of the first
        raise NoContractError("no contract")

    outcome = runner.bench(SUITE, check, lambda _: None)
    assert outcome.status == 4 and outcome.after is not None
    assert outcome.after["problems"][0]["code"] == "no_server"


def test_a_run_that_does_not_count_ends_the_bench(served: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([stream([1, 2]), stream([1, 2, 3])])
    monkeypatch.setattr(client, "run_streams", lambda *_: [next(answers)])
    outcome = bench(report(), report())
    found = receipt.receipt(outcome)
    assert (outcome.status, found["state"]) == (1, "INVALID")
    assert found["reason"] == "wrong_length: expected 4 tokens, found 3"
    (run,) = found["arms"][0]["launches"][0]["runs"]  # the second was not even asked for
    assert (run["valid"], run["reason"], run["tokens"]) == (False, found["reason"], 3)
    assert "tok/s" not in render(outcome, "f")


def test_a_server_that_cannot_be_asked(served: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> dict[str, Any]:
        raise ServerError("does not answer")

    monkeypatch.setattr(client, "ask", refuse)
    outcome = bench(report())
    assert (outcome.status, outcome.state, str(outcome.reason)) == (3, "INVALID", "no_endpoint: does not answer")


def test_every_reason_of_an_outcome_is_in_the_table() -> None:
    for code in (
        "not_verified",
        "no_endpoint",
        "server_error",
        "connection_lost",
        "run_timeout",
        "wrong_length",
        "usage_missing",
    ):
        assert TABLE[code].exit in (1, 3)
    assert TABLE["verdict_lost"].exit == gate.LOST == 4


def test_windows_are_shown_only_where_they_are_of_this_run() -> None:
    assert measure.windows({"internal_states": [{"last_gen_throughput": 1.5}, {"last_gen_throughput": 2}]}) == [
        1.5,
        2.0,
    ]
    assert isinstance(measure.windows({}), str) and isinstance(measure.windows({"internal_states": [{}]}), str)


def test_a_stale_window_is_unknown(served: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        client, "ask", lambda *_, **__: {**SERVER_INFO, "internal_states": [{"last_gen_throughput": 7.0}]}
    )
    outcome = bench(report(), report())
    assert outcome.state == "VALID" and {run.server_gen_tok_s for run in outcome.runs} == {None}
    assert "server_gen_tok_s unknown: no window of the server ended since the last look" in render(outcome, None)


# ---- writing


def test_it_is_written_whole_with_the_mode_of_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    before = os.umask(0o022)
    try:
        receipt.write(str(file), {"a": 1})
        receipt.write(str(file), {"b": 2})
    finally:
        os.umask(before)
    assert json.loads(file.read_text()) == {"b": 2} and stat.S_IMODE(file.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["r.json"]


def test_where_it_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "r.json"):
        with pytest.raises(receipt.ReceiptError, match=r"expected a .*, found .*; "):
            receipt.check_writable(str(path))
    receipt.check_writable(str(tmp_path / "r.json"))
    with pytest.raises(receipt.ReceiptError, match="cannot be written"):
        receipt.write(str(tmp_path / "no" / "r.json"), {})


# ---- the fingerprint


def dist_info(place: Path, name: str, version: str) -> None:
    folder = place / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: 9\n")


def test_versions_come_from_the_environment_the_workers_files_belong_to(tmp_path: Path) -> None:
    site = tmp_path / "venv/lib/python3.12/site-packages"
    for name, version in (
        ("torch", "2.9.0+cu130"),
        ("nvidia-nccl-cu13", "2.30.7"),
        ("sglang", "0.5.23"),
        ("other", "1"),
    ):
        dist_info(site, name, version)
    second = tmp_path / "user/lib/python3.12/site-packages"
    dist_info(second, "sglang", "0.0.1")
    dist_info(second, "triton", "3.8.0")
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    mapped = [f"{second}/a.so", f"{site}/torch/lib/libtorch.so", "/usr/lib/libc.so.6"]
    found = fingerprint.environment(mapped)
    assert found["python"] == "3.12.4"
    versions = {name: version for name, version in found["packages"].items() if version}
    assert versions == {"torch": "2.9.0+cu130", "nvidia-nccl-cu13": "2.30.7", "sglang": "0.5.23", "triton": "3.8.0"}
    assert "not installed there: " in found["reason"] and "transformers" in found["reason"]
    (tmp_path / "venv/pyvenv.cfg").unlink()
    assert fingerprint.environment(mapped)["python"] == "3.12"
    # The same, seen from outside a container.
    assert (
        fingerprint.environment([str(p).removeprefix(str(tmp_path)) for p in mapped], str(tmp_path))["packages"]
        == found["packages"]
    )
    assert fingerprint.environment(["/usr/lib/libc.so.6"])["reason"] is not None


HOLDS = """
import mmap, sys
files = [open(path, "rb") for path in sys.argv[1:]]
held = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(*files: Path) -> Iterator[int]:
    """The pid of a process that has mapped these files."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, *map(str, files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
        process.communicate()


def test_nccl_is_known_by_its_bytes(tmp_path: Path) -> None:
    file, plugin = tmp_path / "libnccl.so.2", tmp_path / "libnccl-net.so"
    file.write_bytes(
        b"\x7fELF" + b"\0" * ((1 << 18) - 20) + b"NCCL version 2.30.7+cuda13.3\0" + b"\1" * 100
    )  # across windows
    plugin.write_bytes(b"\x7fELF NCCL version 1.0.0+cuda1.0\0")
    known: dict[Any, str | None] = {}
    with holding(file, plugin) as pid:
        (found,) = fingerprint.nccl(pid, known)
        assert found == {
            "file": "libnccl.so.2", "sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "version": "2.30.7", "reason": None,
        }  # fmt: skip
        assert len(known) == 1
        file.rename(tmp_path / "old")
        file.write_bytes(b"another")
        (gone,) = fingerprint.nccl(pid, {})
        assert (gone["sha256"], gone["version"]) != (hashlib.sha256(b"another").hexdigest(), None)
    with holding(tmp_path / "libnccl.so.2") as pid:
        (unknown,) = fingerprint.nccl(pid, {})
        assert unknown["version"] is None and unknown["sha256"] and "no version banner" in unknown["reason"]
    with holding(plugin) as pid:
        assert fingerprint.nccl(pid, {}) == [{**fingerprint.NO_LIBRARY, "reason": "no libnccl is mapped"}]


def test_mapped_files_of_this_process() -> None:
    assert any("/python" in path or "libc" in path for path in fingerprint.mapped_files(os.getpid()))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:08:30 UTC 2025\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (x)\n", "570.133.20"),
        ("something else\n", None),
    ],
)
def test_the_driver(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version").write_text(text)
    found = fingerprint.driver(str(tmp_path / "version"))
    assert found["version"] == version and (found["reason"] is None) == (version is not None)
    assert "not there" in fingerprint.driver(str(tmp_path / "nowhere"))["reason"]


@pytest.fixture
def attest(tmp_path: Path) -> tuple[RunDirectory, Callable[..., None]]:
    directory = RunDirectory.create(str(tmp_path / "run"))

    def write(pid: int, imported: str, start_time: int = 5) -> None:
        hook = {"patchset": "p", "mode": "overlay", "imported": {"engine.py": imported}}
        record = {
            "schema": ATTESTATION, "pid": pid, "start_time": start_time, "rank": {}, "hook": hook,
            "entered": {"values": {}, "repaired": []},
        }  # fmt: skip
        directory.write(record_name(pid), record)

    return directory, write


def test_what_the_workers_attest_to_run(attest: tuple[RunDirectory, Callable[..., None]]) -> None:
    directory, write = attest
    write(1, "aa")
    write(2, "aa")
    workers = [("TP0", 1, 5), ("TP1", 2, 5)]
    found = fingerprint.patches(workers, directory)
    assert found == {"patchset": "p", "mode": "overlay", "imported": {"engine.py": "aa"}, "reason": None}
    write(2, "bb")
    assert fingerprint.patches(workers, directory)["reason"] == "the workers attest different files"
    write(2, "aa", start_time=6)
    assert "TP1 (pid 2) has no attestation" in fingerprint.patches(workers, directory)["reason"]


# ---- where the server is


def test_the_endpoint_is_the_verified_server_or_nobody(tmp_path: Path) -> None:
    import socket

    directory = RunDirectory.create(str(tmp_path / "run"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        directory.write("server.json", {"host": "0.0.0.0", "port": port})
        found = report(run={"id": "i", "dir": directory.path})
        assert endpoint.find(found) == Address("127.0.0.1", port)
        with pytest.raises(endpoint.NoEndpointError, match="main process is gone"):
            endpoint.find({**found, "main": None})
    with pytest.raises(endpoint.NoEndpointError, match=f"to listen on port {port}, found no such socket"):
        endpoint.find(found)


def test_a_stock_servers_port_is_that_of_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        endpoint, "command_line", lambda _: ["python", "-m", "x", "--port=1", "--host", "::", "--port", "77"]
    )
    assert endpoint.stated(report()) == ("::", 77)
    monkeypatch.setattr(endpoint, "command_line", lambda _: ["python"])
    assert endpoint.stated(report()) == ("127.0.0.1", 30000)
    monkeypatch.setattr(endpoint, "command_line", lambda _: ["python", "--port", "many"])
    with pytest.raises(endpoint.NoEndpointError):
        endpoint.stated(report())


def test_runs_are_json() -> None:
    run = Run(1, 1, None, None, None, None, None, None, None, None, {}, Fault("server_error", "x"))
    assert json.loads(json.dumps(run.to_json()))["reason"] == "server_error: x"


def test_an_interrupt_leaves_no_number_and_no_receipt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "bench", interrupted)
    file, suite = tmp_path / "r.json", Path(__file__).resolve().parents[2] / "benchmarks/rig.toml"
    assert cli.main(["bench", "run", str(suite), "--json", str(file)]) == 130
    out = capsys.readouterr()
    assert out.out == "" and out.err == "sglang-ext: interrupted: no number, no receipt\n" and not file.exists()
