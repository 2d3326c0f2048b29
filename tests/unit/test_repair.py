"""A worker's entry: until when a variable may be repaired, one rule per reader; and what it takes out of its arguments."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.delivery import context
from sglang_ext.delivery.repair import driver_is_mapped, too_late
from sglang_ext.delivery.seams import engine, scheduler
from sglang_ext.delivery.seams.engine import CARRIED, keeps_contract
from sglang_ext.delivery.witness import read_now
from sglang_ext.hide import HIDDEN
from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.verify.judge import FAIL, judge
from sglang_ext.verify.witnesses import Block

MAPS = """\
7f1c8a000000-7f1c8a021000 rw-p 00000000 00:00 0
7f1c90000000-7f1c91000000 r-xp 00000000 08:01 1  /usr/lib/x86_64-linux-gnu/libcuda.so.570.86.10
7f1c92000000-7f1c92001000 r-xp 00000000 08:01 2  /usr/lib/x86_64-linux-gnu/libc.so.6
"""


@pytest.mark.parametrize(
    ("name", "communicator", "driver", "reader"),
    [
        ("NCCL_PROTO", False, False, None),
        ("NCCL_PROTO", False, True, None),  # libcuda reads no NCCL_*
        ("NCCL_PROTO", True, False, "a communicator exists"),
        ("TORCH_NCCL_BLOCKING_WAIT", False, True, None),
        ("TORCH_NCCL_BLOCKING_WAIT", True, False, "a communicator exists"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", False, False, None),
        ("CUDA_DEVICE_MAX_CONNECTIONS", True, False, None),
        ("CUDA_DEVICE_MAX_CONNECTIONS", False, True, "the CUDA driver"),
        ("SGLANG_ENABLE_X", False, False, "a module imported before"),
        ("OMP_NUM_THREADS", False, False, "a module imported before"),
        ("TORCH_LOGS", False, False, "a module imported before"),
        ("MY_NCCL_PROTO", False, False, "a module imported before"),
    ],
)
def test_too_late(name: str, communicator: bool, driver: bool, reader: str | None) -> None:
    found = too_late(name, communicator_exists=communicator, driver_mapped=driver)
    assert found is None if reader is None else found is not None and found.startswith(reader)


@pytest.mark.parametrize(
    ("maps", "mapped"),
    [
        (MAPS, True),
        (MAPS.replace("libcuda.so.570.86.10", "libcuda.so.1"), True),
        (MAPS.replace("libcuda.so.570.86.10", "libcuda.so.1 (deleted)"), True),
        # libcudart is the runtime, brought by torch: without the driver it reads nothing.
        (MAPS.replace("libcuda.so.570.86.10", "libcudart.so.12"), False),
        (MAPS.replace("libcuda.so.570.86.10", "libcudadebugger.so.1"), False),
        ("", False),
    ],
)
def test_driver_is_mapped(maps: str, mapped: bool) -> None:
    assert driver_is_mapped(maps) is mapped


def test_this_process_has_no_driver() -> None:
    with open(f"/proc/{os.getpid()}/maps", encoding="utf-8") as maps:
        text = maps.read()
    assert "libc" in text and not driver_is_mapped(text)


def test_what_rode_along_in_the_arguments_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to sglang 0.5.18 a worker publishes its arguments' dictionary as it is."""
    seen: list[object] = []
    monkeypatch.setattr(scheduler, "current", seen.append)
    arguments = SimpleNamespace(tp_size=2, **{CARRIED: "/run/here"})
    assert scheduler.enter(arguments, {}) is None
    assert seen == ["/run/here"] and vars(arguments) == {"tp_size": 2}
    assert scheduler.enter(object(), {}) is None
    assert seen == ["/run/here", None]


@dataclasses.dataclass
class Arguments:
    tp_size: int = 2


def test_a_run_outlives_a_copy_of_the_fields_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray actors of sglang 0.5.10-0.5.18 make one of what they were sent (ray/scheduler_actor.py)."""
    monkeypatch.setattr(context, "_received", None)
    monkeypatch.setattr(context, "_current", None)
    monkeypatch.delenv("SGLANG_EXT_RUN_DIR", raising=False)
    opened: list[str] = []
    monkeypatch.setattr(context, "open_run", opened.append)
    sent = Arguments()
    vars(sent)[CARRIED] = context.Carried("/run/here")
    assert context.current() is None and opened == []
    arrived = pickle.loads(pickle.dumps(sent))
    assert vars(arrived)[CARRIED] == "/run/here" and CARRIED not in vars(dataclasses.replace(arrived, tp_size=4))
    assert context.current() is None and opened == ["/run/here"]
    assert json.dumps(vars(arrived)) == json.dumps({"tp_size": 2, CARRIED: "/run/here"})
    monkeypatch.setattr(context, "_received", None)
    pickle.loads(pickle.dumps(arrived))  # and on from there
    assert context._received == "/run/here"


# --- a stock server is stopped by nothing of ours ---------------------------------------------------------


def own_run(tmp_path: Path, mode: str, *sets: str, absents: tuple[str, ...] = ()) -> context.Context:
    contract = decide(None, sets, absents, {})
    return context.new_run(contract, mode=mode, policy="strict", path=str(tmp_path / mode))


def full(directory: RunDirectory, name: str, value: dict[str, Any]) -> None:
    raise RunError(f"{directory.file(name)} cannot be written (No space left on device)")


def test_a_full_disk_does_not_stop_a_server_nobody_demanded_anything_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An argument that wins over the shell's value takes it out of the contract, which cannot be stored: no run is told of."""
    one = own_run(tmp_path, "engine", "NCCL_ALGO=Ring")
    monkeypatch.setattr(engine, "current_or_own", lambda: one)
    monkeypatch.setattr(RunDirectory, "write", full)
    monkeypatch.setenv("NCCL_ALGO", "allreduce:tree")
    monkeypatch.delenv("SGLANG_EXT_RUN_DIR", raising=False)
    arguments = SimpleNamespace(enable_deterministic_inference=True, tp_size=2)
    assert keeps_contract(lambda server_args: "upstream's")(arguments) == "upstream's"
    assert "workers are neither checked nor repaired" in caplog.text and "No space left" in caplog.text
    assert os.environ["NCCL_ALGO"] == "allreduce:tree" and "SGLANG_EXT_RUN_DIR" not in os.environ
    assert CARRIED not in vars(arguments)


def test_what_is_left_over_of_another_run_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers believe the variable, as the engine is their parent: a stranger's contract would be theirs."""

    def fails() -> None:
        raise RunError("run directory X cannot be created")

    monkeypatch.setattr(engine, "current_or_own", fails)
    monkeypatch.setenv("SGLANG_EXT_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("SGLANG_EXT_RUN_ID", "20260101-000000-abcdef")
    assert keeps_contract(lambda server_args: "upstream's")(SimpleNamespace()) == "upstream's"
    assert not {"SGLANG_EXT_RUN_DIR", "SGLANG_EXT_RUN_ID"} & os.environ.keys()


def test_a_torn_record_does_not_stop_one_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = own_run(tmp_path, "engine")
    Path(one.directory.file("server.json")).write_text("{")
    assert scheduler.repair_contract(one, {}) == []
    assert "holds no whole JSON object" in caplog.text
    launched = own_run(tmp_path, "launcher")
    Path(launched.directory.file("server.json")).write_text("{")
    with pytest.raises(SystemExit, match="run_dir_unusable"):
        scheduler.repair_contract(launched, {})


# --- what a worker says of itself -------------------------------------------------------------------------

URL = "http://user:hunter2@host/x"


def test_a_value_with_credentials_is_said_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out it would be absent to whoever asks: with its memory closed, `--absent UCX_X_URL` would pass."""
    monkeypatch.setenv("UCX_X_URL", URL)
    monkeypatch.setenv("MY_OWN_URL", URL)
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    said = read_now(own_run(tmp_path, "launcher", "NCCL_PROTO=LL", absents=("MY_OWN_URL",)))
    assert said["UCX_X_URL"] == said["MY_OWN_URL"] == HIDDEN and "hunter2" not in repr(said)
    held = {name: value for name, value in said.items() if value is not None}
    reading = Block("ok", held, "", frozenset(said)).reading("UCX_X_URL")
    found = judge("UCX_X_URL", None, {"attested": reading})
    assert (found.verdict, found.reason) == (FAIL, "unwanted") and HIDDEN in found.message
    assert judge("UCX_X_URL", "x", {"attested": reading}).verdict == FAIL


def test_what_upstream_changed_is_stored_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = own_run(tmp_path, "launcher", absents=("UCX_X_URL",))
    monkeypatch.setattr(engine, "current_or_own", lambda: one)
    monkeypatch.setattr(one, "mark", lambda environment: None)
    monkeypatch.setenv("UCX_X_URL", URL)
    keeps_contract(lambda server_args: None)(SimpleNamespace(tp_size=2))
    (change,) = (one.directory.read("server.json") or {})["changes"]
    assert (change["name"], change["found"]) == ("UCX_X_URL", HIDDEN) and "UCX_X_URL" not in os.environ
