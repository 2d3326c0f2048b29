"""Finding what is to be verified: a plain torchrun job, and a server in a container, by real programs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_ext.run.process import all_stats, command_line, inner_pid
from sglang_ext.verify.discover import children, descendants
from tests.rig.server import Server, clean_environment, free_port

from .conftest import CONTRACT, NCCL, by_witness, cli, sets, values

JOB = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == dist.get_world_size()
open(os.path.join(os.environ["HERE"], os.environ["RANK"]), "w").close()
if os.environ["RANK"] == os.environ.get("CHANGED"):
    os.environ["NCCL_ALGO"] = "Tree"
    open(os.path.join(os.environ["HERE"], "changed"), "w").close()
time.sleep(600)
"""
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def may_unshare() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def torchrun(folder: Path, **more: str) -> Iterator[int]:
    """Two ranks that have made a process group and reduced over it; nothing of ours is in them. Yields torchrun's pid."""
    (folder / "job.py").write_text(JOB)
    started = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    environment = clean_environment(2, {**NCCL, "SGLANG_EXT": "0", "HERE": str(folder), **more})
    with (folder / "log").open("wb") as log:
        agent = subprocess.Popen(
            [*started, str(folder / "job.py")], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    wanted = {"0", "1"} | ({"changed"} if "CHANGED" in more else set())
    try:
        until = time.monotonic() + 120
        while not wanted <= set(os.listdir(folder)):
            assert agent.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-3000:]
            time.sleep(0.1)
        yield agent.pid
    finally:
        family = descendants(agent.pid, children(all_stats()))  # ranks have sessions of their own, and soon no parent
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        for entry in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGKILL)
        agent.wait()


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@needs_torch
def test_a_plain_torchrun_job(tmp_path: Path) -> None:
    with torchrun(tmp_path) as agent:
        done = cli("verify-env", "--pid", str(agent), *sets(NCCL), "--json")
        report = done.report
        assert (done.status, report["verdict"]) == (0, "PASS"), done.out
        ranks = [worker for worker in report["workers"] if worker["counts"]]
        assert [(worker["label"], worker["role"]) for worker in ranks] == [("rank 0", "rank"), ("rank 1", "rank")]
        assert by_witness(report, "live") == [values(NCCL)] * 2
        assert (report["expected"]["workers"], report["expected"]["here"], report["run"]) == (2, 2, None)
        # Any rank stands for its job; a contract it does not hold is named by rank.
        done = cli("verify-env", "--pid", str(ranks[1]["pid"]), *sets({**NCCL, "NCCL_BUFFSIZE": "1"}), "--json")
        assert (done.status, done.report["verdict"]) == (1, "FAIL")
        failures = [p["message"] for p in done.report["problems"] if p["severity"] == "fail"]
        assert [text.split(" (pid")[0] for text in failures] == ["rank 0", "rank 1"]


@needs_torch
def test_a_torchrun_job_whose_ranks_differ(tmp_path: Path) -> None:
    with torchrun(tmp_path, CHANGED="1") as agent:
        done = cli("verify-env", "--pid", str(agent), "--set", "NCCL_PROTO=LL", "--json")
        problems = {p["code"]: p["message"] for p in done.report["problems"]}
        assert done.status == 1 and "Ring on rank 0, Tree on rank 1" in problems["ranks_differ"]


@needs_torch
def test_a_torchrun_job_that_lost_a_rank(tmp_path: Path) -> None:
    with torchrun(tmp_path) as agent:
        report = cli("verify-env", "--pid", str(agent), *sets(NCCL), "--json").report
        lost = next(worker for worker in report["workers"] if worker["label"] == "rank 1")
        os.kill(agent, signal.SIGSTOP)  # it would end the job at once
        os.kill(lost["pid"], signal.SIGKILL)
        until = time.monotonic() + 10
        while command_line(lost["pid"]) and time.monotonic() < until:
            time.sleep(0.01)
        done = cli("verify-env", "--pid", str(agent), *sets(NCCL), "--json")
        os.kill(agent, signal.SIGCONT)
        problems = {p["code"]: p["message"] for p in done.report["problems"]}
        assert done.status == 1 and "rank 1 missing" in problems["missing_ranks"]


@pytest.mark.skipif(not may_unshare(), reason="unshare --pid --mount-proc is not permitted here")
def test_a_server_of_ours_in_a_container_is_verified_from_outside(
    models: dict[str, Path], logs: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its pids, its record names and what it says of its main process are its own; its run directory is in its mounts."""
    where = tmp_path / "mounted"
    where.mkdir()
    mount = f'mount -t tmpfs -o mode=0777 tmpfs {where} && exec "$@"'
    start = (*CONTAINER, "sh", "-c", mount, "-", sys.executable, "-m", "sglang_ext.launch")
    options = ["--run-dir", str(where / "run"), *sets(CONTRACT)]
    with Server(logs("container"), start=[*start, *options], model=models["deepseek"]) as server:
        try:
            server.wait_ready()
            scheduler = server.titled("sglang::scheduler")[0].pid
            assert inner_pid(scheduler) != scheduler and not (where / "run").exists()
            done = cli("verify-env", "--pid", str(scheduler), "--json")
            report = json.loads(done.out)
            assert (done.status, report["verdict"]) == (0, "PASS"), done.out
            for witness in ("exec", "live", "attested"):
                assert by_witness(report, witness) == [values(CONTRACT)] * 2, witness
            assert report["run"]["dir"].endswith("/root" + str(where / "run"))
            by_port = cli("verify-env", "--port", str(server.port), "--json")
            assert (by_port.status, by_port.report["verdict"]) == (0, "PASS")
        finally:
            for inside in children(all_stats()).get(server.pid, ()):
                os.kill(inside.pid, signal.SIGTERM)  # unshare itself does not mind one
