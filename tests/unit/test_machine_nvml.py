"""NVML through the real nvidia-ml-py and a compiled stub of the driver's library: each trap, and each way not to know."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext.bench.machine import nvml, questions
from sglang_ext.bench.machine.nvml import Gpu, Library, selected
from sglang_ext.bench.machine.questions import Unreadable
from tests.nvml_stub.stub import GIB, HEALTHY, ROOT, ask, build

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (sglang brings it)")

EVERY = (*questions.STATIC, *questions.SYSTEM, *questions.SAMPLES, *questions.COUNTS)
READ = """
import json
from sglang_ext.bench.machine import nvml
library = nvml.open_library()
if isinstance(library, str):
    print(json.dumps({"closed": library}))
else:
    unknown = {}
    gpus = library.gpus()
    usable = [gpu for gpu in gpus if gpu.handle is not None]
    now, times = library.sample(usable[0].handle, unknown) if usable else ({}, {})
    found = {
        "gpus": [[g.number, g.uuid, g.name, g.fault] for g in gpus], "now": now, "times": times,
        "static": library.static(usable[0], gpus, unknown) if usable else {},
        "counts": library.read(nvml.questions.COUNTS, unknown, usable[0].handle) if usable else {},
        "unknown": unknown, "whole": library.whole,
    }
    for name in ("holders", "used_memory"):
        try:
            found[name] = getattr(library, name)(usable[0].handle)
        except nvml.Unreadable as why:
            found[name] = str(why)
    library.close()
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def read(library: Path, tmp_path: Path, *lines: str, code: str = READ) -> dict[str, Any]:
    """What our module makes of a healthy GPU whose answers ``lines`` change."""
    script = tmp_path / "script"
    script.write_text(HEALTHY + "\n".join(lines) + "\n")
    found: dict[str, Any] = ask(library, script, code)
    return found


def test_a_healthy_gpu_is_read_whole(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, *(f"* nvmlDeviceGetFieldValues {field} 3 0" for field in (76, 77, 78, 79, 80, 81)))
    assert found["gpus"] == [[0, "GPU-00000000-aaaa", "Stub PRO 6000", ""]]
    assert found["now"] == {
        "sm_mhz": 2400, "mem_mhz": 14001, "temp_c": 61, "power_w": 412.3, "reasons": 0, "pcie_gen": 5, "pcie_width": 16,
        "pstate": 0, "util_pct": 97, "mem_temp_c": 78,
    }  # fmt: skip
    assert found["times"]["power_cap_ns"] == 1000 and found["times"]["power_brake_ns"] == 5000
    static = found["static"]
    assert (static["driver"], static["cuda"], static["vbios"]) == ("580.65.06", "13.0", "98.02.52.00.02")
    assert (static["power_limit_w"], static["power_max_w"], static["ecc_mode"], static["mig_mode"]) == (
        600,
        600,
        True,
        False,
    )
    assert (static["pcie_max_gen"], static["pcie_max_width"], static["gsp"], static["peers"]) == (5, 16, True, {})
    assert found["counts"] == {
        "energy_mj": 1000000, "pcie_replays": 7, "ecc_corrected": 3, "ecc_uncorrected": 0, "rows_corrected": 0,
        "rows_uncorrected": 0, "rows_pending": 0, "rows_failed": 0,
    }  # fmt: skip
    assert found["holders"] == [] and found["used_memory"] == GIB // 2
    # The one thing this machine has not: a memory node of the GPU's own.
    assert list(found["unknown"]) == ["memory_node"] and found["unknown"]["memory_node"].startswith("NotSupported: ")


@pytest.mark.parametrize(
    ("code", "name"), [(3, "NotSupported"), (4, "NoPermission"), (15, "GpuIsLost"), (999, "Unknown"), (77, "Error77")]
)
def test_an_error_makes_one_field_unknown_with_its_name(library: Path, tmp_path: Path, code: int, name: str) -> None:
    found = read(library, tmp_path, f"* nvmlDeviceGetPowerUsage * !{code}", f"* nvmlDeviceGetFieldValues 82 !{code}")
    assert found["now"]["power_w"] is None and found["now"]["mem_temp_c"] is None
    assert found["unknown"]["power_w"].startswith(name) and "nvmlDeviceGetPowerUsage" in found["unknown"]["power_w"]
    assert found["unknown"]["mem_temp_c"].startswith(name) and "82" in found["unknown"]["mem_temp_c"]
    assert found["now"]["sm_mhz"] == 2400, "the others are read all the same"


def test_no_field_is_ever_zero_for_unknown(library: Path, tmp_path: Path) -> None:
    """A GPU that refuses everything: every figure is null, and each has a reason."""
    script = tmp_path / "script"
    script.write_text("* nvmlDeviceGetCount * 1\n")
    found = ask(library, script, READ)
    for part in ("now", "times", "counts"):
        assert set(found[part].values()) == {None}
        assert found[part].keys() <= found["unknown"].keys()
    assert {name for name, value in found["static"].items() if value is not None} == {"peers"}
    assert found["holders"].startswith("NotSupported") and found["used_memory"].startswith("NotSupported")


def test_an_older_driver_lacks_functions(tmp_path: Path) -> None:
    missing = (
        "nvmlDeviceGetGspFirmwareMode", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues",
    )  # fmt: skip
    found = read(
        build(tmp_path, without=missing),
        tmp_path,
        "* nvmlDeviceGetCurrentClocksThrottleReasons * 0x40",
        "* nvmlDeviceGetComputeRunningProcesses * 4242:1024",
        "* nvmlDeviceGetViolationStatus 1 123",
    )
    assert found["static"]["gsp"] is None and found["unknown"]["gsp"].startswith("FunctionNotFound: ")
    # Where an older function answers the same, it does.
    assert found["now"]["reasons"] == 0x40 and found["holders"] == [[4242, 1024]]
    assert found["used_memory"] == GIB + GIB // 2, "the older answer counts what the driver keeps for itself"
    assert found["times"]["thermal_ns"] == 123 and found["times"]["hw_thermal_ns"] is None
    assert found["unknown"]["hw_thermal_ns"].startswith("FunctionNotFound")
    assert found["now"]["mem_temp_c"] is None


def test_one_field_the_driver_does_not_know_may_spoil_the_whole_call(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, "* nvmlDeviceGetFieldValues -1 !2", "* nvmlDeviceGetFieldValues 271 !2")
    assert found["whole"] is False and found["now"]["mem_temp_c"] == 78 and found["times"]["hw_thermal_ns"] == 4000
    assert found["times"]["power_brake_ns"] is None and found["unknown"]["power_brake_ns"].startswith("InvalidArgument")


def test_a_value_is_read_as_the_type_it_has(library: Path, tmp_path: Path) -> None:
    """The stub fills the rest of the union with ones: an unsigned int read as 64 bits would be enormous."""
    found = read(library, tmp_path, "* nvmlDeviceGetFieldValues 82 1 64", "* nvmlDeviceGetFieldValues 74 0 5")
    assert found["now"]["mem_temp_c"] == 64 and found["times"]["power_cap_ns"] == 5
    found = read(library, tmp_path, "* nvmlDeviceGetFieldValues 82 9 64")
    assert found["now"]["mem_temp_c"] is None and "type of value" in found["unknown"]["mem_temp_c"]


def test_all_ones_is_no_value(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, "* nvmlDeviceGetPowerUsage * 0xFFFFFFFF", "* nvmlDeviceGetPerformanceState * 32")
    assert found["now"]["power_w"] is None and "no value" in found["unknown"]["power_w"]
    assert found["now"]["pstate"] is None and "unknown" in found["unknown"]["pstate"]


def test_processes_with_and_without_memory(library: Path, tmp_path: Path) -> None:
    found = read(
        library,
        tmp_path,
        "* nvmlDeviceGetComputeRunningProcesses * 20:1073741824 10:-1",
        "* nvmlDeviceGetMPSComputeRunningProcesses * 30:5 20:1073741824",
    )
    assert found["holders"] == [[10, None], [20, GIB], [30, 5]], "each once; memory that is not told is not 0"


P2P = """
import ctypes, json, pynvml
pynvml.nvmlInit()
one, two = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(1)
try:
    pynvml.nvmlDeviceGetP2PStatus(one, two, pynvml.NVML_P2P_CAPS_INDEX_READ)
    said = "it worked"
except ctypes.ArgumentError:
    said = "ctypes.ArgumentError"
from sglang_ext.bench.machine.nvml import open_library
library = open_library()
gpus, unknown = library.gpus(), {}
print(json.dumps({"theirs": said, "ours": library.static(gpus[0], gpus, unknown)["peers"], "unknown": unknown}))
"""


def test_the_p2p_constant_that_is_a_tuple(library: Path, tmp_path: Path) -> None:
    import pynvml

    found = read(library, tmp_path, "* nvmlDeviceGetCount * 2", "0 nvmlDeviceGetTopologyCommonAncestor 1 30", code=P2P)
    if isinstance(pynvml.NVML_P2P_CAPS_INDEX_READ, tuple):
        assert found["theirs"] == "ctypes.ArgumentError"
    peer = {"path": "host bridge", "read": "ok", "write": "ok", "nvlink": "not supported", "atomics": "ok"}
    assert found["ours"] == {"1": peer}
    assert all(type(index) is int for index in questions.P2P_CAPABILITIES.values())
    found = read(library, tmp_path, "* nvmlDeviceGetCount * 2", "* nvmlDeviceGetP2PStatus 0 !3", code=P2P)
    assert found["ours"]["1"]["read"] is None and found["unknown"]["peers.read"].startswith("NotSupported")


def test_a_gpu_that_does_not_answer_stays_in_the_list(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, "* nvmlDeviceGetCount * 2", "0 nvmlDeviceGetHandleByIndex * !15")
    lost, other = found["gpus"]
    assert lost[:3] == [0, None, None] and lost[3].startswith("GpuIsLost: ") and other[1] == "GPU-11111111-bbbb"


@pytest.mark.skipif(nvml.has_driver(), reason="this machine has a driver of its own")
def test_the_library_that_is_not_there(tmp_path: Path) -> None:
    assert ask(None, tmp_path, READ)["closed"].startswith("LibraryNotFound: libnvidia-ml.so.1 is not found")


@pytest.mark.parametrize(
    ("code", "said"), [(9, "DriverNotLoaded: the NVIDIA"), (18, "LibRmVersionMismatch: "), (4, "NoPermission: ")]
)
def test_a_library_that_does_not_open(library: Path, tmp_path: Path, code: int, said: str) -> None:
    assert read(library, tmp_path, f"0 nvmlInitWithFlags * !{code}")["closed"].startswith(said)


@pytest.mark.parametrize(("text", "said"), [("", "is not NVIDIA's"), ("raise ImportError", "is not installed")])
def test_another_pynvml_or_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "pynvml.py").write_text(text)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    assert said in ask(None, tmp_path, code + READ)["closed"]


def test_opening_is_what_imports_nvidia_ml_py() -> None:
    code = "import sys, json, sglang_ext.bench.machine.observe as o\nprint(json.dumps('pynvml' in sys.modules))"
    assert ask(None, Path("none"), code) is False


def test_a_binding_that_breaks_costs_the_field() -> None:
    """nvidia-ml-py itself fails (here: text that is no UTF-8), or has no such function."""

    class NVMLError(Exception):
        pass

    def name(handle: object) -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")

    unknown: dict[str, str] = {}
    fake = Library(SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetName=name))
    found = fake.read(questions.STATIC[:2], unknown, None)
    assert found == {"name": None, "uuid": None}
    assert unknown["name"].startswith("nvidia-ml-py failed: UnicodeDecodeError")
    assert unknown["uuid"] == "the installed nvidia-ml-py has no nvmlDeviceGetUUID"
    with pytest.raises(Unreadable, match="has no nvmlDeviceGetCount"):
        fake.gpus()


A, B = Gpu(0, 1, "GPU-aa11", "X"), Gpu(1, 1, "GPU-bb22", "X")
OTHER = Gpu(1, 1, "GPU-cc33", "Y")


@pytest.mark.parametrize(
    ("gpus", "environment", "chosen"),
    [
        ([A, B], {}, [A, B]),
        ([A, B], {"CUDA_VISIBLE_DEVICES": "1"}, [B]),
        ([A, B], {"CUDA_VISIBLE_DEVICES": "1, 0,1"}, [B, A]),
        ([A, B], {"CUDA_VISIBLE_DEVICES": "GPU-bb"}, [B]),
        ([A, B], {"CUDA_VISIBLE_DEVICES": ""}, []),
        ([A, B], {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, [A]),
        # Which of two models is CUDA's first: not told by a number, unless CUDA counts as NVML does.
        ([A, OTHER], {"CUDA_VISIBLE_DEVICES": "1"}, [A, OTHER]),
        ([A, OTHER], {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [OTHER]),
        ([A, B], {"CUDA_VISIBLE_DEVICES": "MIG-1234"}, [A, B]),
        ([], {"CUDA_VISIBLE_DEVICES": "0"}, []),
    ],
)
def test_which_gpus_a_server_gets(gpus: list[Gpu], environment: dict[str, str], chosen: list[Gpu]) -> None:
    assert selected(gpus, environment) == chosen


def test_the_numbers_are_those_of_the_installed_binding() -> None:
    """Ours are written out; where the binding has a name for one, both agree."""
    import pynvml

    named = {
        "NVML_CLOCK_SM": questions.SM, "NVML_CLOCK_MEM": questions.MEMORY, "NVML_TEMPERATURE_GPU": questions.GPU_SENSOR,
        "NVML_VOLATILE_ECC": questions.VOLATILE, "NVML_MEMORY_ERROR_TYPE_CORRECTED": questions.CORRECTED,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": questions.UNCORRECTED, "NVML_PSTATE_UNKNOWN": questions.NO_PSTATE,
        "nvmlMemory_v2": questions.MEMORY_V2, "NVML_FI_DEV_MEMORY_TEMP": questions.MEMORY_TEMPERATURE,
        "NVML_P2P_CAPS_INDEX_WRITE": questions.P2P_CAPABILITIES["write"],
    }  # fmt: skip
    assert {name: getattr(pynvml, name) for name in named} == named
    policies = {t.name: (t.field, t.policy) for t in questions.TIMES if t.policy is not None}
    words = {
        "power_cap_ns": "POWER",
        "below_app_clocks_ns": "TOTAL_APP_CLOCKS",
        "below_base_clocks_ns": "TOTAL_BASE_CLOCKS",
    }
    for name, (field, policy) in policies.items():
        word = words.get(name, name.removesuffix("_ns").upper())
        assert getattr(pynvml, f"NVML_FI_DEV_PERF_POLICY_{word}") == field
        assert getattr(pynvml, f"NVML_PERF_POLICY_{word}") == policy
    every = 0
    for event in questions.EVENTS:
        every |= event.bit
    assert every == pynvml.nvmlClocksThrottleReasonAll, "no bit that the binding knows is left out"
    assert ctypes.sizeof(pynvml.c_nvmlFieldValue_t) == 40 and ctypes.sizeof(pynvml.c_nvmlMemory_v2_t) == 40


def test_every_function_is_one_of_the_installed_binding() -> None:
    import pynvml

    asked = [function for question in EVERY for function in question.functions]
    asked += [function for functions in questions.PROCESSES for function in functions]
    asked += [questions.TOPOLOGY, questions.P2P, questions.VIOLATION]
    assert [name for name in asked if not hasattr(pynvml, name)] == []


def test_the_page_names_every_field_and_its_function() -> None:
    text = (ROOT / "docs" / "machine-state.md").read_text(encoding="utf-8")
    fields = [question.field for question in EVERY] + [time.name for time in questions.TIMES] + ["mem_temp_c"]
    missing = [name for name in fields if f"`{name}`" not in text]
    functions = {function.removeprefix("nvml").removeprefix("DeviceGet") for one in EVERY for function in one.functions}
    missing += [name for name in sorted(functions) if name not in text]
    assert missing == []
