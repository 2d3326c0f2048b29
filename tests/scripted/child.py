"""The scripted server as a child process: started, asked for its stamps, ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.client import Address
from tests.scripted.formats import FORMATS
from tests.scripted.script import Script
from tests.scripted.server import STAMPS

ROOT = Path(__file__).resolve().parents[2]
INFO: dict[str, Any] = {"speculative_algorithm": None, "internal_states": [{"last_gen_throughput": 0.0}]}


class Child:
    """A context manager. ``paths``: what it has the answers of ready from the start; ``core``: the only one it may run on."""

    def __init__(
        self,
        scripts: Mapping[str, Script],
        *,
        paths: Iterable[str] = FORMATS,
        info: Mapping[str, Any] = INFO,
        core: int | None = None,
    ) -> None:
        self.told = {"scripts": {name: one.to_json() for name, one in scripts.items()}, "paths": [*paths], "info": info}
        self.core = core

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.scripted.server"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.core is not None:
            os.sched_setaffinity(self.process.pid, {self.core})
        self.process.stdin.write(json.dumps(self.told) + "\n")
        self.process.stdin.flush()
        self.address = Address("127.0.0.1", int(self.process.stdout.readline()))
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=20)

    def answers(self) -> list[dict[str, Any]]:
        """Every answer so far: script, path, request, when it came, and ``sent``: [(stamp, tokens in all by then)]."""
        found: list[dict[str, Any]] = json.loads(client.get_text(self.address, STAMPS))
        return found
