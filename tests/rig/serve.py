"""A server on the rig, in the foreground, to try things on: python -m tests.rig.serve [launcher options] [--stock]

    .venv/bin/python -m tests.rig.serve --set NCCL_PROTO=LL --set CUDA_DEVICE_MAX_CONNECTIONS=32
    .venv/bin/sglang-ext verify-env                                     # in another shell

Tiny DeepSeek, TP=2, port 30000. `--stock` starts plain SGLang with the shell's NCCL_* instead. Ctrl-C ends it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.rig.environment import rig_environment, rig_flags
from tests.rig.server import LAUNCHER, STOCK
from tools.tiny_models import make

ROOT = Path(__file__).resolve().parents[2]
PORT, TP = 30000, 2


def main() -> None:
    words = sys.argv[1:]
    if words in (["-h"], ["--help"]):
        print(__doc__)
        return
    stock = "--stock" in words
    options = [word for word in words if word != "--stock"]
    model = make(ROOT / ".rig" / "models", only=["deepseek"])["deepseek"]
    environment = rig_environment(os.environ, TP)
    if stock:
        environment["SGLANG_EXT"] = "0"
    start = STOCK if stock else LAUNCHER
    os.execve(sys.executable, [sys.executable, *start, *options, *rig_flags(model, PORT, TP)], environment)


if __name__ == "__main__":
    main()
