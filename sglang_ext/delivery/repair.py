"""May a variable still be repaired at a worker's first line, or has somebody read it already? Pure rules, with evidence.

What was found on sglang 0.5.23 (tests/e2e/test_delivery.py repeats it with a stub driver):

* importing torch maps libnccl, but NCCL reads its variables at the first NCCL call, which no worker makes before it
  initialises its process group: NCCL_* can be repaired until then, TORCH_NCCL_* likewise (the process group reads them);
* importing torch maps libcuda where there is one (libcublasLt links it), and importing sglang calls ``cuInit`` (through
  ``torch.cuda.is_available()`` at module level), all before the worker's first line. The driver reads CUDA_* there: a
  repair would show the right value to every witness while the driver runs with the wrong one. So where libcuda is
  mapped, CUDA_* is too late, and we refuse rather than pretend;
* anything else may have been read by any of some 4,000 modules that were imported by then.
"""

from __future__ import annotations

UNTIL_COMMUNICATOR = ("NCCL_", "TORCH_NCCL_")
UNTIL_DRIVER = ("CUDA_",)


def too_late(name: str, *, communicator_exists: bool, driver_mapped: bool) -> str | None:
    """Why repairing ``name`` now would come too late; None when it is in time."""
    if name.startswith(UNTIL_COMMUNICATOR):
        return "a communicator exists already and has read it" if communicator_exists else None
    if name.startswith(UNTIL_DRIVER):
        return "the CUDA driver is loaded and was initialised while sglang was imported" if driver_mapped else None
    return "a module imported before this worker's first line may have read it"


def driver_is_mapped(maps: str) -> bool:
    """Is libcuda in this /proc/PID/maps text? Without it nobody can have called the driver."""
    return "/libcuda.so" in maps
