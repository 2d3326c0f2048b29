"""What the end-to-end tests share: the models, the command line, and one stock server's answers to compare with."""

from __future__ import annotations

import filecmp
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.rig.server import STOCK, Server, clean_environment
from tools.tiny_models import make

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ("hello world the quick brown fox", "the quick", "fox fox fox hello brown world 1234")
TOKENS = 24
NCCL = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}
CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
CONTRACT = {**NCCL, **CONNECTIONS}


# A test run in the background of a script is started with SIGINT ignored, one under nohup with SIGHUP: servers started by it
# would keep that, and tests that send them would wait for ever. A handler that does nothing is not handed on.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)


def sets(variables: Mapping[str, str]) -> list[str]:
    """``--set`` options for variables."""
    return [word for name, value in variables.items() for word in ("--set", f"{name}={value}")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


class Done(NamedTuple):
    """A finished command."""

    status: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


def run(*words: str, env: Mapping[str, str] | None = None, cwd: str = "/", timeout: float = 120) -> Done:
    """Run a command away from the checkout, so that what is installed is what is tried."""
    finished = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
    return Done(finished.returncode, finished.stdout, finished.stderr)


def cli(*words: str, env: Mapping[str, str] | None = None) -> Done:
    """The console script of this environment, in a shell that holds none of the variables under test."""
    return run(str(Path(sys.executable).with_name("sglang-ext")), *words, env=env or clean_environment(1, {}))


@pytest.fixture(scope="session", autouse=True)
def installed_is_this_checkout() -> None:
    """The servers run what is installed: it must be what is being tested."""
    spec = PathFinder.find_spec("sglang_ext", [p for p in sys.path if p and Path(p).resolve() != ROOT])
    assert spec is not None and spec.origin is not None, "sglang-ext is not installed here; run: make install"
    site = Path(spec.origin).parent
    ours = {p.relative_to(ROOT / "sglang_ext") for p in (ROOT / "sglang_ext").rglob("*.py")}
    stale = [
        str(p) for p in ours if not (site / p).is_file() or not filecmp.cmp(site / p, ROOT / "sglang_ext" / p, False)
    ]
    assert not stale, f"the installed sglang-ext is not this checkout ({', '.join(stale[:3])}); run: make install"


@pytest.fixture(scope="session", autouse=True)
def private_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run directories and overlays of the tests stay out of the user's."""
    home = tmp_path_factory.mktemp("home", numbered=False)
    (home / "runtime").mkdir(mode=0o700)
    before = {name: os.environ.get(name) for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME")}
    os.environ["XDG_RUNTIME_DIR"] = str(home / "runtime")
    os.environ["XDG_CACHE_HOME"] = str(home / "cache")
    yield
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session")
def models() -> dict[str, Path]:
    """The tiny models, made once and kept in the checkout."""
    return make(ROOT / ".rig" / "models")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A log file by name; kept by pytest, named in failures."""
    folder = tmp_path_factory.mktemp("logs")
    return lambda name: folder / f"{name}.log"


def answers(server: Server) -> dict[str, Any]:
    """What must not change by patching: greedy tokens and the KV capacity."""
    return {
        "tokens": [server.generate(prompt, TOKENS)["output_ids"] for prompt in PROMPTS],
        "capacity": server.get("/server_info")["max_total_num_tokens"],
    }


class StockFacts(NamedTuple):
    """Everything asked of one stock server, so that it runs once."""

    answers: dict[str, Any]
    environ: list[bytes]  # /proc/PID/environ of each scheduler
    asked_three: Done  # verify-env for the NCCL variables
    asked_four: Done  # ... and CUDA_DEVICE_MAX_CONNECTIONS
    asked_nothing: Done
    all_processes: Done
    by_port: Done
    by_pid: Done
    gate: Done
    log: str


@pytest.fixture(scope="session")
def stock(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> StockFacts:
    """Tiny DeepSeek on stock SGLang, hook off, the variables in its shell; nothing cooperates."""
    log = tmp_path_factory.mktemp("stock") / "server.log"
    environment = {**CONTRACT, "SGLANG_EXT": "0"}
    with Server(log, start=STOCK, model=models["deepseek"], environment=environment) as server:
        server.wait_ready()
        workers = server.titled("sglang::scheduler")
        four = sets(CONTRACT)
        return StockFacts(
            answers(server),
            [Path(f"/proc/{p.pid}/environ").read_bytes() for p in workers],
            cli("verify-env", *sets(NCCL), "--json"),
            cli("verify-env", *four, "--json"),
            cli("verify-env"),
            cli("verify-env", *sets(NCCL), "--all-processes", "--json"),
            cli("verify-env", *sets(NCCL), "--port", str(server.port), "--json"),
            cli("verify-env", *sets(NCCL), "--pid", str(workers[1].pid), "--json"),
            cli("gate", *four, "--", "touch", str(log.with_name("ran"))),
            server.text(),
        )


def by_witness(report: dict[str, Any], witness: str) -> list[dict[str, tuple[str, str | None]]]:
    """For each deciding worker: variable -> (state, value) by one witness."""
    return [
        {
            name: (v["witnesses"][witness]["state"], v["witnesses"][witness]["value"])
            for name, v in w["variables"].items()
        }
        for w in report["workers"]
        if w["counts"]
    ]


def values(variables: Sequence[tuple[str, str]] | Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """What a witness that sees these values says."""
    return {name: ("value", value) for name, value in dict(variables).items()}
