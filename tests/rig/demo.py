"""The main job on a CPU, start to end: a tiny DeepSeek, TP=2, launched with a contract, asked behind the gate, measured,
verified, ended.

make demo
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.rig.server import Server
from tools.tiny_models import make

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ("NCCL_PROTO=LL", "NCCL_ALGO=Ring", "NCCL_P2P_LEVEL=SYS", "CUDA_DEVICE_MAX_CONNECTIONS=32")
CLI = str(Path(sys.executable).with_name("sglang-ext"))
STEPS = 7

ASK = """
import json, sys, urllib.request
body = json.dumps({"text": "the quick", "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}})
request = urllib.request.Request(sys.argv[1], data=body.encode(), headers={"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=120))
meta = answer["meta_info"]
print(f"{meta['completion_tokens']} tokens in {meta['e2e_latency']:.2f} s")
"""


class Progress:
    """One line a step; a long one says every few seconds that it lives."""

    def __init__(self) -> None:
        self.number, self.told = 0, 0.0

    def step(self, text: str) -> None:
        self.number, self.told = self.number + 1, 0.0
        print(f"[{self.number}/{STEPS}] {text}", flush=True)

    def tick(self, waited: float) -> None:
        if waited - self.told >= 5.0:
            self.told = waited
            print(f"      ... {waited:.0f} s", flush=True)


def main() -> int:
    """Run the demo; returns 0 when everything passed."""
    progress = Progress()
    began = time.monotonic()
    progress.step("making the tiny models (once)")
    model = make(ROOT / ".rig" / "models", only=["deepseek"])["deepseek"]
    with tempfile.TemporaryDirectory(prefix="sglang-ext-demo-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder  # the run directory goes with the demo
        options = [word for variable in CONTRACT for word in ("--set", variable)]
        server = Server(Path(folder) / "server.log", options=options, model=model)
        shown = " ".join(["python -m sglang_ext.launch", *options, "--model-path", model.name, "--tp 2 ..."])
        progress.step(shown)
        with server:
            server.wait_ready(tick=progress.tick)
            progress.step("what the launcher said")
            print("\n".join(line for line in server.text().splitlines() if "sglang-ext:" in line), flush=True)
            progress.step("sglang-ext gate -- (ask for 32 tokens)")
            gate = [CLI, "gate", "--", sys.executable, "-c", ASK, f"http://127.0.0.1:{server.port}/generate"]
            asked = subprocess.run(gate, stderr=subprocess.PIPE, text=True, check=False)
            progress.step("sglang-ext bench run benchmarks/rig.toml")
            bench = [CLI, "bench", "run", str(ROOT / "benchmarks" / "rig.toml")]
            measured = subprocess.run(bench, capture_output=True, text=True, check=False)
            progress.step("sglang-ext verify-env")
            verified = subprocess.run([CLI, "verify-env"], capture_output=True, text=True, check=False)
            progress.step("ending the server")
            server.stop()
    print(f"      nothing of it is left; {time.monotonic() - began:.0f} s in all\n")
    print(verified.stdout or verified.stderr)
    print(measured.stdout or measured.stderr)
    print("Such a server to try things on: " + f"{os.path.relpath(sys.executable)} -m tests.rig.serve --help")
    if asked.returncode:
        print(asked.stderr, file=sys.stderr)
    return max(asked.returncode, verified.returncode, measured.returncode)


if __name__ == "__main__":
    sys.exit(main())
