"""A rank that loses its environment on the way; arguments that fight the contract; a repair that would come too late."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.rig.environment import RIG
from tests.rig.server import STOCK, Server, clean_environment

from .conftest import CONTRACT, NCCL, cli, run, sets

STRIP = RIG / "strip"


def stripping(nth: int) -> dict[str, str]:
    """Lets the N-th spawned process (1: TP0, 2: TP1, 3: the detokenizer) lose its environment."""
    return {
        "RIG_STRIP_NTH": str(nth),
        "RIG_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(STRIP), str(RIG))),
        "SGLANG_CPU_OMP_THREADS_BIND": "0|0",
    }


def test_a_stripped_rank_is_repaired_and_noted(
    models: dict[str, Path], logs: Callable[[str], Path], tmp_path: Path
) -> None:
    with Server(logs("stripped"), options=sets(NCCL), model=models["deepseek"], environment=stripping(2)) as server:
        server.wait_ready()
        done = cli("verify-env", "--json")
        report = done.report
        assert (done.status, report["verdict"]) == (0, "PASS"), done.out
        first, second = [w for w in report["workers"] if w["counts"]]
        assert {v["reason"] for v in first["variables"].values()} == {None}
        assert {v["reason"] for v in second["variables"].values()} == {"repaired"}
        assert {v["witnesses"]["exec"]["state"] for v in second["variables"].values()} == {"absent"}
        notes = [p for p in report["problems"] if p["code"] == "repaired" and p["worker"] == second["pid"]]
        assert {p["variable"] for p in notes} == set(NCCL)
        assert all(p["severity"] == "note" and p["message"].startswith("TP1") for p in notes)
        # What upstream had set for every rank came back with it.
        assert first["extras"]["NCCL_CUMEM_ENABLE"] == second["extras"]["NCCL_CUMEM_ENABLE"] == "0"


def test_a_stripped_rank_of_stock_is_named(
    models: dict[str, Path], logs: Callable[[str], Path], tmp_path: Path
) -> None:
    environment = {**NCCL, "SGLANG_EXT": "0", **stripping(2)}
    with Server(logs("stripped-stock"), start=STOCK, model=models["deepseek"], environment=environment) as server:
        server.wait_ready()
        done = cli("verify-env", *sets(NCCL), "--json")
        assert (done.status, done.report["verdict"]) == (1, "FAIL"), done.out
        failures = [p for p in done.report["problems"] if p["severity"] == "fail"]
        missing = [p for p in failures if p["code"] == "missing"]
        assert {p["variable"] for p in missing} == set(NCCL)
        assert all(p["message"].startswith("TP1") for p in missing)
        # What upstream itself had set for every rank is lost as well, and NCCL would not notice.
        assert {p["variable"] for p in failures if p["code"] == "ranks_differ"} >= {"NCCL_CUMEM_ENABLE"}
        good = next(w for w in done.report["workers"] if w["label"] == "TP0")
        assert good["verdict"] == "PASS"


def test_deterministic_inference_is_refused_at_once(models: dict[str, Path], logs: Callable[[str], Path]) -> None:
    server = Server(
        logs("deterministic"), options=sets(NCCL), model=models["deepseek"], flags=["--enable-deterministic-inference"]
    )
    done = run(*server.command, env=server.environment)
    assert done.status == 2
    assert "arguments_fight_contract: NCCL_ALGO: expected Ring (flag)" in done.err
    assert "allreduce:tree" in done.err and "drop --enable-deterministic-inference" in done.err
    assert "server_args" not in done.out + done.err, "upstream was not started"


def test_an_argument_that_only_upstream_sees_is_refused_before_the_model_loads(
    models: dict[str, Path], logs: Callable[[str], Path], tmp_path: Path
) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("enable-nccl-nvls: true\n")
    with Server(
        logs("config"),
        options=["--set", "NCCL_NVLS_ENABLE=0"],
        model=models["deepseek"],
        flags=["--config", str(config)],
    ) as server:
        assert server.process.wait(timeout=240) == 2
        server.wait_gone(10.0)
        assert "arguments_fight_contract: NCCL_NVLS_ENABLE: expected 0 (flag)" in server.text()
        assert "sglang::scheduler" not in server.text() and "Load weight" not in server.text()


DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* As much of libcuda as lets cudart look for a device and find none; it notes when it is first initialised. */
int cuInit(unsigned flags) {
    FILE *log = getenv("STUB_LOG") ? fopen(getenv("STUB_LOG"), "a") : 0;
    const char *value = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (log) { fprintf(log, "cuInit %s\\n", value ? value : "unset"); fclose(log); }
    return 100; /* CUDA_ERROR_NO_DEVICE */
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
static int no_device(void) { return 100; }
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, void *status) {
    *found = !strcmp(name, "cuInit") ? (void *)cuInit : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
           : !strncmp(name, "cuGetProcAddress", 16) ? (void *)cuGetProcAddress_v2 : (void *)no_device;
    if (status) *(int *)status = 0;
    return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stub libcuda.so.1."""
    assert shutil.which("gcc"), "gcc is needed to build the stub driver; install it"
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda.c").write_text(DRIVER)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", folder / "cuda.c"],
        check=True,
    )
    return folder


def with_driver(driver: Path) -> Mapping[str, str]:
    return {"LD_LIBRARY_PATH": str(driver), "STUB_LOG": str(driver / "log")}


def test_importing_sglang_initialises_the_driver_before_the_seam(driver: Path) -> None:
    """The fact `delivery/repair.py` rests on: by the worker's first line the driver has read CUDA_*."""
    code = (
        "import torch\n"
        "print(any('/libcuda.so' in line for line in open('/proc/self/maps')))\n"
        "import sglang.srt.managers.scheduler\n"
    )
    environment = clean_environment(1, {**with_driver(driver), "CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    done = run(sys.executable, "-c", code, env=environment)
    assert done.status == 0, done.err[-2000:]
    assert done.out.splitlines()[0] == "True", "importing torch maps libcuda"
    assert "cuInit 8" in (driver / "log").read_text().splitlines()


def test_a_repair_that_comes_too_late_is_refused(
    driver: Path, models: dict[str, Path], logs: Callable[[str], Path], tmp_path: Path
) -> None:
    with Server(
        logs("too-late"),
        options=[*sets(CONTRACT), "--dry-run"],
        model=models["deepseek"],
        environment={**stripping(2), **with_driver(driver)},
    ) as server:
        assert server.process.wait(timeout=240) == 1
        server.wait_gone(10.0)
        sentence = "too_late: CUDA_DEVICE_MAX_CONNECTIONS: expected 32, found (absent) in this worker"
        assert sentence in server.text()
        assert "the CUDA driver is loaded" in server.text()
