"""A worker's entry: until when a variable may be repaired, one rule per reader; and what it takes out of its arguments."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from types import SimpleNamespace

import pytest

from sglang_ext.delivery import context
from sglang_ext.delivery.repair import driver_is_mapped, too_late
from sglang_ext.delivery.seams import scheduler
from sglang_ext.delivery.seams.engine import CARRIED

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
