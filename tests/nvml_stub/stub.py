"""A libnvidia-ml.so.1 for machines without a GPU: compiled by the tests, scripted by a text file (see nvml.c), and driven
through the real nvidia-ml-py, so that its ctypes and its error classes are what is tested.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAME = "libnvidia-ml.so.1"
GIB = 1 << 30

# A healthy GPU under load, as far as anything is asked; each test changes lines of it.
HEALTHY = f"""\
* nvmlDeviceGetCount * 1
* nvmlSystemGetDriverVersion * 580.65.06
* nvmlSystemGetCudaDriverVersion * 13000
* nvmlDeviceGetName * Stub PRO 6000
0 nvmlDeviceGetUUID * GPU-00000000-aaaa
1 nvmlDeviceGetUUID * GPU-11111111-bbbb
0 nvmlDeviceGetPciInfo * 00000000:3B:00.0
1 nvmlDeviceGetPciInfo * 00000000:AF:00.0
* nvmlDeviceGetVbiosVersion * 98.02.52.00.02
* nvmlDeviceGetGspFirmwareMode * 1 1
* nvmlDeviceGetGspFirmwareVersion * 580.65.06
* nvmlDeviceGetEnforcedPowerLimit * 600000
* nvmlDeviceGetPowerManagementDefaultLimit * 600000
* nvmlDeviceGetPowerManagementLimitConstraints * 150000 600000
* nvmlDeviceGetMaxClockInfo 1 3090
* nvmlDeviceGetMaxClockInfo 2 14001
* nvmlDeviceGetPersistenceMode * 1
* nvmlDeviceGetEccMode * 1 0
* nvmlDeviceGetMigMode * 0 0
* nvmlDeviceGetMaxPcieLinkGeneration * 5
* nvmlDeviceGetMaxPcieLinkWidth * 16
* nvmlDeviceGetGpuMaxPcieLinkGeneration * 5
* nvmlDeviceGetClockInfo 1 2400
* nvmlDeviceGetClockInfo 2 14001
* nvmlDeviceGetTemperature 0 61
* nvmlDeviceGetPowerUsage * 412345
* nvmlDeviceGetCurrentClocksEventReasons * 0
* nvmlDeviceGetCurrPcieLinkGeneration * 5
* nvmlDeviceGetCurrPcieLinkWidth * 16
* nvmlDeviceGetPerformanceState * 0
* nvmlDeviceGetUtilizationRates * 97 40
* nvmlDeviceGetFieldValues 82 1 78
* nvmlDeviceGetFieldValues 74 3 1000
* nvmlDeviceGetFieldValues 75 3 2000
* nvmlDeviceGetFieldValues 269 3 3000
* nvmlDeviceGetFieldValues 270 3 4000
* nvmlDeviceGetFieldValues 271 3 5000
* nvmlDeviceGetTotalEnergyConsumption * 1000000
* nvmlDeviceGetPcieReplayCounter * 7
* nvmlDeviceGetTotalEccErrors 0 3
* nvmlDeviceGetTotalEccErrors 1 0
* nvmlDeviceGetRemappedRows * 0 0 0 0
* nvmlDeviceGetComputeRunningProcesses *
* nvmlDeviceGetMPSComputeRunningProcesses *
* nvmlDeviceGetMemoryInfo * {96 * GIB} {GIB} {GIB // 2}
* nvmlDeviceGetTopologyCommonAncestor * 40
* nvmlDeviceGetP2PStatus * 0
* nvmlDeviceGetP2PStatus 2 5
"""


def build(folder: Path, without: Sequence[str] = ()) -> Path:
    """Compile the library into ``folder``; ``without``: functions an older driver does not have. Skips without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc) to build the stub library with")
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wno-format-truncation", f"-Wl,-soname,{NAME}"]
    if without:
        hidden = folder / "hidden.map"
        hidden.write_text(f"{{ local: {'; '.join(without)}; }};")
        words.append(f"-Wl,--version-script={hidden}")
    subprocess.run([*words, "-o", str(folder / NAME), str(HERE / "nvml.c")], check=True)
    return folder / NAME


def ask(library: Path | None, script: Path, code: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run ``code`` in a Python of its own that finds this library and no other; the JSON it prints last."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_"))}
    given |= {"NVML_STUB": str(script), "PYTHONPATH": str(ROOT), **(environment or {})}
    if library is not None:
        given["LD_LIBRARY_PATH"] = str(library.parent)
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
