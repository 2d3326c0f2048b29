"""What is asked of NVML, as tables: one row is one field, the functions that answer it, and what is made of the answer.

Names and numbers are those of NVIDIA's nvml.h, as nvidia-ml-py 13.615 carries them (`pynvml.py`). They are written out here: that
module's own constant for "P2P read" is a tuple (`NVML_P2P_CAPS_INDEX_READ = 0,`), which ctypes refuses, and NVIDIA has renumbered
field values between releases (the three slowdown times were 251-253 in one, and are 269-271 since).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

SM, MEMORY = 1, 2  # nvmlClockType_t
GPU_SENSOR = 0
VOLATILE = 0  # since the driver was loaded
CORRECTED, UNCORRECTED = 0, 1
NOT_AVAILABLE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # all bits set: NVML's own "no value" in some answers
NO_PSTATE = 32
MEMORY_V2 = 0x02000028  # nvmlMemory_v2_t: `used` without what the driver keeps for itself


class Unreadable(Exception):
    """There is no value; the message says why, by NVML's own name for it."""


class Question(NamedTuple):
    """``functions``: the newest first, as older drivers lack it; each takes the GPU and ``arguments``."""

    field: str
    functions: tuple[str, ...]
    convert: Callable[[Any], Any]
    arguments: tuple[Any, ...] = ()


def number(value: Any) -> int:
    if value in NOT_AVAILABLE:
        raise Unreadable("the driver answers that there is no value")
    return int(value)


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def switch(value: Any) -> bool:
    """A mode: of a pair (now, after the next reset), what it is now."""
    return bool(value[0] if isinstance(value, list | tuple) else value)


def watts(value: Any) -> float:
    return round(number(value) / 1000, 1)


def pstate(value: Any) -> int:
    if value == NO_PSTATE:
        raise Unreadable("the driver answers that the state is unknown")
    return number(value)


def cuda(value: Any) -> str:
    """13000 is 13.0."""
    return f"{int(value) // 1000}.{int(value) % 1000 // 10}"


def part(index: int) -> Callable[[Any], int]:
    return lambda value: number(value[index])


# Facts that hold for a whole launch.
STATIC: tuple[Question, ...] = (
    Question("name", ("nvmlDeviceGetName",), text),
    Question("uuid", ("nvmlDeviceGetUUID",), text),
    Question("pci", ("nvmlDeviceGetPciInfo",), lambda value: text(value.busId)),
    Question("vbios", ("nvmlDeviceGetVbiosVersion",), text),
    Question("gsp", ("nvmlDeviceGetGspFirmwareMode",), switch),
    Question("gsp_version", ("nvmlDeviceGetGspFirmwareVersion",), text),
    Question("power_limit_w", ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"), watts),
    Question("power_default_w", ("nvmlDeviceGetPowerManagementDefaultLimit",), watts),
    Question("power_max_w", ("nvmlDeviceGetPowerManagementLimitConstraints",), lambda value: watts(value[1])),
    Question("sm_max_mhz", ("nvmlDeviceGetMaxClockInfo",), number, (SM,)),
    Question("mem_max_mhz", ("nvmlDeviceGetMaxClockInfo",), number, (MEMORY,)),
    Question("persistence", ("nvmlDeviceGetPersistenceMode",), switch),
    Question("ecc_mode", ("nvmlDeviceGetEccMode",), switch),
    Question("mig_mode", ("nvmlDeviceGetMigMode",), switch),
    # What the GPU and its slot can do together, then what the GPU alone could.
    Question("pcie_max_gen", ("nvmlDeviceGetMaxPcieLinkGeneration",), number),
    Question("pcie_max_width", ("nvmlDeviceGetMaxPcieLinkWidth",), number),
    Question("pcie_gpu_gen", ("nvmlDeviceGetGpuMaxPcieLinkGeneration",), number),
    # Only where the GPU's memory is a node of its own (Grace); which CPU a card is near is host.py's.
    Question("memory_node", ("nvmlDeviceGetNumaNodeId",), number),
)
SYSTEM: tuple[Question, ...] = (
    Question("driver", ("nvmlSystemGetDriverVersion",), text),
    Question("cuda", ("nvmlSystemGetCudaDriverVersion_v2",), cuda),
)
# What changes from second to second. The link falls back to its first generation at idle: what is read here means something
# only under load, so `reasons` (its idle bit) and `util_pct` stand beside it.
SAMPLES: tuple[Question, ...] = (
    Question("sm_mhz", ("nvmlDeviceGetClockInfo",), number, (SM,)),
    Question("mem_mhz", ("nvmlDeviceGetClockInfo",), number, (MEMORY,)),
    Question("temp_c", ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), number, (GPU_SENSOR,)),
    Question("power_w", ("nvmlDeviceGetPowerUsage",), watts),
    Question("reasons", ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), int),
    Question("pcie_gen", ("nvmlDeviceGetCurrPcieLinkGeneration",), number),
    Question("pcie_width", ("nvmlDeviceGetCurrPcieLinkWidth",), number),
    Question("pstate", ("nvmlDeviceGetPerformanceState",), pstate),
    Question("util_pct", ("nvmlDeviceGetUtilizationRates",), lambda value: number(value.gpu)),
)
MEMORY_TEMPERATURE = 82  # a field value; it and the times below come in one call
SAMPLED = (*(question.field for question in SAMPLES), "mem_temp_c")


class Time(NamedTuple):
    """A time in nanoseconds that only grows: how long something held the clocks down. ``policy``: the older way to ask."""

    name: str
    field: int
    policy: int | None = None


TIMES: tuple[Time, ...] = (
    Time("power_cap_ns", 74, 0),
    Time("thermal_ns", 75, 1),
    Time("sync_boost_ns", 76, 2),
    Time("board_limit_ns", 77, 3),
    Time("low_utilization_ns", 78, 4),
    Time("reliability_ns", 79, 5),
    Time("below_app_clocks_ns", 80, 10),
    Time("below_base_clocks_ns", 81, 11),
    Time("sw_thermal_ns", 269),
    Time("hw_thermal_ns", 270),
    Time("power_brake_ns", 271),
)
VIOLATION = "nvmlDeviceGetViolationStatus"
# Counts since the driver was loaded; read at both ends of an observation.
COUNTS: tuple[Question, ...] = (
    Question("energy_mj", ("nvmlDeviceGetTotalEnergyConsumption",), number),
    Question("pcie_replays", ("nvmlDeviceGetPcieReplayCounter",), number),
    Question("ecc_corrected", ("nvmlDeviceGetTotalEccErrors",), number, (CORRECTED, VOLATILE)),
    Question("ecc_uncorrected", ("nvmlDeviceGetTotalEccErrors",), number, (UNCORRECTED, VOLATILE)),
    Question("rows_corrected", ("nvmlDeviceGetRemappedRows",), part(0)),
    Question("rows_uncorrected", ("nvmlDeviceGetRemappedRows",), part(1)),
    Question("rows_pending", ("nvmlDeviceGetRemappedRows",), part(2)),
    Question("rows_failed", ("nvmlDeviceGetRemappedRows",), part(3)),
)
ECC = tuple(question.field for question in COUNTS if question.field.startswith(("ecc_", "rows_")))

TOPOLOGY = "nvmlDeviceGetTopologyCommonAncestor"
PATHS = {0: "same board", 10: "one switch", 20: "switches", 30: "host bridge", 40: "node", 50: "system"}
P2P = "nvmlDeviceGetP2PStatus"
P2P_CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}  # plain integers: see above
P2P_STATES = {
    0: "ok", 1: "chipset not supported", 2: "gpu not supported", 3: "topology not supported", 4: "disabled by registry key",
    5: "not supported",
}  # fmt: skip
# By the C functions' versions: an older driver has only the older one.
PROCESSES = (
    ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"),
)
USED_MEMORY: tuple[Question, ...] = (
    Question("used", ("nvmlDeviceGetMemoryInfo",), lambda value: number(value.used), (MEMORY_V2,)),
    Question("used", ("nvmlDeviceGetMemoryInfo",), lambda value: number(value.used)),
)


class Event(NamedTuple):
    """A bit of the event reasons. ``throttles``: something outside the work held the clocks down."""

    bit: int
    name: str
    throttles: bool


IDLE, POWER_CAP = 0x1, 0x4
# An idle GPU, clocks that somebody set, a display: these bits are set on healthy machines. The power cap is how a GPU keeps
# its limit under the work it is given; it is judged on its own (marks.py).
EVENTS: tuple[Event, ...] = (
    Event(IDLE, "idle", False),
    Event(0x2, "set clocks", False),
    Event(POWER_CAP, "power cap", False),
    Event(0x8, "hardware slowdown", True),
    Event(0x10, "sync boost", False),
    Event(0x20, "software thermal slowdown", True),
    Event(0x40, "hardware thermal slowdown", True),
    Event(0x80, "power brake", True),
    Event(0x100, "display clocks", False),
    Event(0x200, "board limit", True),  # these two are missing from NVML's own mask of "all" reasons
    Event(0x400, "reliability", False),
)
THROTTLING_TIMES = ("thermal_ns", "board_limit_ns", "sw_thermal_ns", "hw_thermal_ns", "power_brake_ns")
