"""The environment and the flags that make SGLang's CPU engine serve on a few cores, without a GPU.

Pure functions over plain mappings: whoever starts the server decides how.

    environment = rig_environment(os.environ, tp=2)
    command = [sys.executable, "-m", "sglang.launch_server", *rig_flags(model, port=30000, tp=2)]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Final

RIG: Final = Path(__file__).resolve().parent

SETTINGS: Final[Mapping[str, str]] = {
    # Makes SGLang pick its CPU platform; `--device cpu` alone does not decide what gets imported.
    "SGLANG_USE_CPU_ENGINE": "1",
    # Otherwise pynccl finds the libnccl that torch brings along and dies on the missing CUDA device.
    # A path that does not exist makes it switch itself off.
    "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",
    # libgomp's threads spin while they wait. With several ranks on few cores that costs more than nine
    # tenths of the speed.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Otherwise the first speculative request spends its time compiling.
    "TORCHDYNAMO_DISABLE": "1",
    # The tiny models are local directories; nothing may be asked of a network.
    "HF_HUB_OFFLINE": "1",
}

REMOVED: Final[tuple[str, ...]] = (
    # Without bytecode caches each of a server's four processes compiles some 7,000 modules anew.
    "PYTHONDONTWRITEBYTECODE",
)

SERVING_FLAGS: Final[tuple[str, ...]] = (
    "--device", "cpu",
    # Greedy tokens are compared between runs; bfloat16 flips near-ties when the batch shape changes.
    "--dtype", "float32",
    # Setting only `--attention-backend intel_amx` falls back to torch_native, which has no speculative
    # verify and gets MLA prefill wrong. Naming it for both phases apart is not overruled.
    "--attention-backend", "torch_native",
    "--prefill-attention-backend", "intel_amx",
    "--decode-attention-backend", "intel_amx",
    # Sized by the machine's memory the KV cache would take most of it; tiny models need a few MiB.
    "--mem-fraction-static", "0.2",
    "--max-total-tokens", "8192",
    # The warm-up request is one more thing that can time out; the tests send requests of their own.
    "--skip-server-warmup",
    # A scheduler with nothing to do asks for work without a pause, and takes a core from whatever starts beside it.
    "--sleep-on-idle",
    "--host", "127.0.0.1",
)  # fmt: skip


def available_cores() -> list[int]:
    """The cores this process may run on, which in a container are fewer than the machine has."""
    return sorted(os.sched_getaffinity(0))


def rig_environment(base: Mapping[str, str], tp: int, *, cores: Sequence[int] | None = None) -> dict[str, str]:
    """`base` changed so that a server with `tp` ranks in all comes up on `cores` (default: those available).

    The rig's folder goes first on PYTHONPATH, so that its `sgl_kernel` is found before the native one.
    """
    if tp < 1:
        raise ValueError(f"tp must be at least 1, not {tp}")
    cores = available_cores() if cores is None else cores
    environment = {name: value for name, value in base.items() if name not in REMOVED}
    environment.update(SETTINGS)
    # One entry per rank. Left out, SGLang wants a NUMA node for each. Ranks share cores where there are few.
    environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in islice(cycle(cores), tp))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(RIG), base.get("PYTHONPATH"))))
    return environment


def eagle3_flags(draft: Path, steps: int) -> list[str]:
    """EAGLE-3 drafting a plain chain of `steps` tokens, which are verified along with the last known one."""
    return [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(draft),
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(steps + 1),
    ]  # fmt: skip


def rig_flags(
    model: Path,
    port: int,
    tp: int,
    *,
    draft: Path | None = None,
    steps: int = 2,
    trust_remote_code: bool = False,
) -> list[str]:
    """The arguments of `python -m sglang.launch_server` for a tiny model and, if given, its draft."""
    flags = ["--model-path", str(model), "--port", str(port), "--tp", str(tp), *SERVING_FLAGS]
    if draft is not None:
        flags += eagle3_flags(draft, steps)
    if trust_remote_code:
        flags.append("--trust-remote-code")
    return flags
