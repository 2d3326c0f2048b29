"""Which way the ranks add their tensors up, as far as a server's log and arguments tell. Pure.

There is no field for it: a rank tries one implementation after the other when its group is made, and says in its log which of
them is off and why. That one is on is mostly not said at all. So a path has its evidence beside it, and what was inferred from
silence says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

NCCL, CUSTOM, PCIE_IPC, SYMMETRIC, CPU, CPU_SHARED = (
    "nccl",
    "custom",
    "pcie_ipc",
    "torch_symm_mem",
    "gloo",
    "cpu_shared_memory",
)
NONE = "none"  # one rank: nothing to add up


class Line(NamedTuple):
    """A line that tells about one implementation: it has ``words`` in it, and ``also``, where that is not empty."""

    path: str
    on: bool
    words: str
    also: str = ""


# sglang 0.5.9-0.5.23 srt/distributed: bootstrap.py, parallel_state.py, device_communicators/{custom_all_reduce,
# custom_all_reduce_utils,pcie_ipc_ar,torch_symm_mem}.py. The last line that matches for an implementation counts.
LINES = (
    Line(PCIE_IPC, True, "FlashInfer PCIe-IPC all-reduce enabled"),
    Line(PCIE_IPC, False, "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is set but"),
    Line(PCIE_IPC, False, "Setup FlashInfer PCIe-IPC allreduce failed with"),
    Line(PCIE_IPC, False, "FlashInfer PCIe-IPC workspace", " failed: "),
    Line(PCIE_IPC, False, "FlashInfer PCIe-IPC all-reduce serves bf16 only;"),
    Line(PCIE_IPC, False, "Deterministic inference is on; leaving PCIe-IPC all-reduce off."),
    Line(CUSTOM, False, "CustomAllreduce is disabled "),
    Line(CUSTOM, False, "CustomAllReduceV2 is disabled "),
    Line(CUSTOM, False, "Custom allreduce is disabled "),  # 0.5.9
    Line(CUSTOM, False, "Setup Custom allreduce failed with"),
    Line(CUSTOM, False, "[AR] All-reduce call path: NCCL (custom AR disabled)"),
    Line(SYMMETRIC, False, "TorchSymmMemCommunicator: ", " not supported"),
    Line(CPU_SHARED, False, "shared memory based AllReduce is disabled,"),
)
# What asks for a path: a variable of the ranks, or an argument. Arguments that switch one off are in `in_effect.ARGUMENTS`.
BY_VARIABLE: Mapping[str, str] = {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": PCIE_IPC}
BY_ARGUMENT: Mapping[str, str] = {"enable_torch_symm_mem": SYMMETRIC}
STARTED = "server_args="  # upstream's first words; a log without them is not whole, and its silence says nothing
TRUE = ("1", "true", "yes", "y")


class Path(NamedTuple):
    """``path`` None: not known. ``off``: implementations that a line of the log says are off, with that line."""

    path: str | None
    evidence: str
    inferred: bool
    off: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "off": dict(self.off)}


def path(log: str | None, arguments: Mapping[str, Any], wanted: Mapping[str, str]) -> Path:
    """The path of the tensor-parallel group. ``wanted``: path -> what asked for it."""
    ranks = arguments.get("tp_size")
    if ranks == 1:
        return Path(NONE, "tp_size 1: one rank has nothing to add up", False, {})
    if log is None:
        return Path(None, "no log of the server is at hand", False, {})
    on, off = _said(log)
    if STARTED not in log and PCIE_IPC not in on:
        return Path(None, "the beginning of its log is not at hand", False, off)
    if arguments.get("device") == "cpu":
        if CPU_SHARED in off:
            return Path(CPU, off[CPU_SHARED], False, off)
        return Path(CPU_SHARED, "no line says that it is off", True, off)
    if PCIE_IPC in on:
        return Path(PCIE_IPC, on[PCIE_IPC], False, off)
    if SYMMETRIC in wanted and SYMMETRIC not in off:
        return Path(SYMMETRIC, f"asked for by {wanted[SYMMETRIC]}, and no line says that it is off", True, off)
    if arguments.get("disable_custom_all_reduce") is True:
        return Path(NCCL, "disable_custom_all_reduce is set", False, off)
    if CUSTOM in off:
        return Path(NCCL, off[CUSTOM], False, off)
    if arguments.get("device") != "cuda":
        return Path(None, f"nothing is known of device {arguments.get('device')}", False, off)
    return Path(CUSTOM, "upstream's default, and no line says that it is off", True, off)


def _said(log: str) -> tuple[dict[str, str], dict[str, str]]:
    """Implementations a line says are on, and those one says are off; each with the line."""
    on: dict[str, str] = {}
    off: dict[str, str] = {}
    for text in log.splitlines():
        for line in LINES:
            if line.words in text and line.also in text:
                here, there = (on, off) if line.on else (off, on)
                here[line.path] = text[text.index(line.words) :].strip()
                there.pop(line.path, None)
    return on, off


def wanted(arguments: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Paths that were asked for, and by what."""
    found = {p: f"{name}={variables[name]}" for name, p in BY_VARIABLE.items() if is_true(variables.get(name))}
    return found | {p: f"--{name.replace('_', '-')}" for name, p in BY_ARGUMENT.items() if arguments.get(name) is True}


def is_true(value: str | None) -> bool:
    """As upstream reads a switch (sglang 0.5.23 srt/environ.py:143)."""
    return value is not None and value.strip().lower() in TRUE
