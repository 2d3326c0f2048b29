"""Variables that are set beside NCCL's and are read by others: the CUDA driver, and PyTorch's process group.

Only for telling a slip from a name: what they mean is not known here. Sources: CUDA C++ Programming Guide, "CUDA Environment
Variables"; CUDA Driver API, "Coredump Attributes Control API"; PyTorch 2.9 torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, and
the names in torch 2.14.1's libraries; sglang 0.5.23 srt/arg_groups/serving_hook.py:167.
"""

from __future__ import annotations

from sglang_ext.nccl.catalogue import distance

CUDA = frozenset({
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "CUDA_SCALE_LAUNCH_QUEUES", "CUDA_GRAPHS_USE_NODE_PRIORITY", "CUDA_MODULE_LOADING",
    "CUDA_MODULE_DATA_LOADING", "CUDA_BINARY_LOADER_THREAD_COUNT", "CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE",
    "CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT", "CUDA_FORCE_JIT", "CUDA_DISABLE_JIT", "CUDA_MANAGED_FORCE_DEVICE_ALLOC",
    "CUDA_AUTO_BOOST", "CUDA_DISABLE_PERF_BOOST", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_CLIENT_PRIORITY", "CUDA_LOG_FILE",
    "CUDA_COREDUMP_FILE", "CUDA_COREDUMP_PIPE", "CUDA_COREDUMP_SHOW_PROGRESS", "CUDA_COREDUMP_GENERATION_FLAGS",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "CUDA_HOME", "CUDA_PATH", "CUDA_INC_PATH",
})  # fmt: skip
TORCH = frozenset({
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BCAST_UNIQUEID", "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_COORD_CHECK_MILSEC", "TORCH_NCCL_CUDA_EVENT_CACHE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HIGH_PRIORITY",
    "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_NONBLOCKING_TIMEOUT",
    "TORCH_NCCL_PROPAGATE_ERROR", "TORCH_NCCL_RANKS_PER_ROOT", "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_CPP_STACK", "TORCH_NCCL_USE_COMM_NONBLOCKING", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
})  # fmt: skip
READERS = {"CUDA_": CUDA, "TORCH_NCCL_": TORCH}
CLOSE = 2  # changed characters: as far as a finger slips


def slip_of(name: str) -> str | None:
    """The variable that ``name`` is most likely a slip of; None for a known name, or one that resembles none."""
    known = next((names for prefix, names in READERS.items() if name.startswith(prefix)), frozenset())
    if name in known:
        return None
    near = min(known, key=lambda one: (distance(name, one, CLOSE), one), default=None)
    return near if near is not None and distance(name, near, CLOSE) <= CLOSE else None
