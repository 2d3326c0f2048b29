"""A server on the rig, in the foreground, to try things on: python -m tests.rig.serve [launcher options] [--stock]

    .venv/bin/python -m tests.rig.serve --set NCCL_PROTO=LL --set CUDA_DEVICE_MAX_CONNECTIONS=32
    .venv/bin/sglang-ext verify-env                                     # in another shell

Tiny DeepSeek, TP=2, port 30000. `--stock` starts plain SGLang with the shell's NCCL_* instead. Ctrl-C ends it.

    eval "$(.venv/bin/python -m tests.rig.serve --exports)"             # for servers of your own: benchmarks/rig-*.toml

prints the rig's environment (environment.py) as a shell reads it, and starts nothing.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
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
    if words == ["--exports"]:
        print(exports(rig_environment(os.environ, TP)))
        return
    stock = "--stock" in words
    options = [word for word in words if word != "--stock"]
    model = make(ROOT / ".rig" / "models", only=["deepseek"])["deepseek"]
    environment = rig_environment(os.environ, TP)
    if stock:
        environment["SGLANG_EXT"] = "0"
    start = STOCK if stock else LAUNCHER
    os.execve(sys.executable, [sys.executable, *start, *options, *rig_flags(model, PORT, TP)], environment)


def exports(environment: Mapping[str, str]) -> str:
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(changed.items()))


if __name__ == "__main__":
    main()
