"""Watching: the record of the campaign's shape, with a GPU (the stub) and without; who may hold a GPU before a launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.bench.machine import free, kernel, nvml, observe
from sglang_ext.bench.machine.marks import marks
from sglang_ext.bench.machine.nvml import Gpu, Holder
from sglang_ext.bench.machine.questions import SAMPLED, Unreadable
from sglang_ext.reasons import TABLE
from tests.nvml_stub.stub import GIB, HEALTHY, ask, build

SAMPLES = {
    "t",
    "sm_mhz",
    "mem_mhz",
    "temp_c",
    "mem_temp_c",
    "power_w",
    "pcie_gen",
    "pcie_width",
}  # what the record promises
# Watches while the script changes: once for each text, until a look has been taken after the change.
WATCH = """
import json, os, sys, time
from pathlib import Path
from sglang_ext.bench.machine import observe
script, texts = Path(os.environ["NVML_STUB"]), json.loads(os.environ["TEXTS"])

def turn(text):
    part = script.with_suffix(".part")
    part.write_text(text)
    part.rename(script)

turn(texts[0])
observer = observe.start([os.getpid()], every=0.01)
for text in texts[1:]:
    turn(text)
    seen = observer.looks
    while observer.looks < seen + 2:
        time.sleep(0.005)
print(json.dumps(observer.stop()))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (sglang brings it)")
    return build(tmp_path_factory.mktemp("nvml"))


def watch(library: Path, tmp_path: Path, *changes: str, **environment: str) -> dict[str, Any]:
    """The record over a healthy GPU that changes by each of ``changes`` in turn."""
    texts = [HEALTHY] + [HEALTHY + change + "\n" for change in changes]
    found: dict[str, Any] = ask(library, tmp_path / "script", WATCH, {"TEXTS": json.dumps(texts), **environment})
    return found


def test_the_record_of_a_healthy_gpu(library: Path, tmp_path: Path) -> None:
    found = watch(library, tmp_path, "")
    assert found.keys() == {"span", "gpus", "cpu", "observer", "unknown", "marks"}
    (gpu,) = found["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["name"]) == (0, "GPU-00000000-aaaa", "Stub PRO 6000")
    assert gpu["samples"].keys() == {*SAMPLED, "t"} and gpu["samples"].keys() >= SAMPLES
    assert {len(values) for values in gpu["samples"].values()} == {found["observer"]["looks"]} != {0}
    assert found["span"]["began"] <= gpu["samples"]["t"][0] <= gpu["samples"]["t"][-1] <= found["span"]["ended"]
    assert gpu["deltas"]["hw_thermal_ns"] == 0 and gpu["deltas"]["energy_mj"] == 0, "known, and nothing happened"
    assert gpu["ecc"] == {
        "ecc_corrected": 3, "ecc_uncorrected": 0, "rows_corrected": 0, "rows_uncorrected": 0, "rows_pending": 0, "rows_failed": 0,
    }  # fmt: skip
    assert gpu["strangers"] == [] and found["marks"] == []
    assert [one for one in marks(found) if one["code"].startswith(("cpu", "machine"))] == marks(found)


def test_counters_are_deltas_and_changes_keep_their_moment(library: Path, tmp_path: Path) -> None:
    """Ten thousand nanoseconds of hardware slowdown are in the delta; the reason bit of one look is in the samples."""
    slow = "* nvmlDeviceGetFieldValues 270 3 14000"
    found = watch(
        library,
        tmp_path,
        f"{slow}\n* nvmlDeviceGetCurrentClocksEventReasons * 0x48\n* nvmlDeviceGetClockInfo 1 1200",
        f"{slow}\n* nvmlDeviceGetTotalEnergyConsumption * 1500000\n* nvmlDeviceGetTotalEccErrors 0 5",
    )
    gpu = found["gpus"][0]
    assert gpu["deltas"]["hw_thermal_ns"] == 10000 and [v for _, v in gpu["times"]["hw_thermal_ns"]] == [4000, 14000]
    assert (
        gpu["deltas"]["energy_mj"] == 500000
        and gpu["deltas"]["ecc_corrected"] == 2
        and gpu["ecc"]["ecc_corrected"] == 5
    )
    assert {0, 0x48} == set(gpu["samples"]["reasons"]) and {1200, 2400} == set(gpu["samples"]["sm_mhz"])
    codes = {one["code"] for one in marks(found)}
    assert {"throttled", "ecc_corrected"} <= codes and "power_capped" not in codes


def test_a_counter_that_cannot_be_a_time_is_unknown(library: Path, tmp_path: Path) -> None:
    hour = 3600 * 10**9
    gpu = watch(library, tmp_path, f"* nvmlDeviceGetFieldValues 270 3 {hour}\n* nvmlDeviceGetFieldValues 269 3 1")[
        "gpus"
    ][0]
    assert gpu["deltas"]["hw_thermal_ns"] is None and "faster than time" in gpu["unknown"]["hw_thermal_ns"]
    assert gpu["deltas"]["sw_thermal_ns"] is None and gpu["unknown"]["sw_thermal_ns"].startswith("it fell")
    assert not {"hw_thermal_ns", "sw_thermal_ns"} & gpu["times"].keys(), "what is no time marks nothing"
    gpu = watch(library, tmp_path, "* nvmlDeviceGetPcieReplayCounter * 2")["gpus"][0]
    assert gpu["deltas"]["pcie_replays"] is None and gpu["unknown"]["pcie_replays"].startswith("it fell")


def test_others_on_the_gpu_are_seen_when_they_come_and_go(library: Path, tmp_path: Path) -> None:
    if kernel.in_a_container():
        pytest.skip("pids cannot be compared in a pid namespace")
    me = os.getpid()
    found = watch(library, tmp_path, f"* nvmlDeviceGetComputeRunningProcesses * {me}:1024 4000000:-1")
    assert found["gpus"][0]["strangers"][0] == {"pid": me, "program": kernel.program(me), "memory_bytes": 1024}
    (mark,) = [one for one in marks(found) if one["code"] == "co_tenant"]
    assert "4000000" in mark["text"] and mark["excludes"]


def test_what_cannot_be_read_is_null_with_a_reason_in_every_sample(library: Path, tmp_path: Path) -> None:
    gpu = watch(library, tmp_path, "* nvmlDeviceGetPowerUsage * !15")["gpus"][0]
    assert None in gpu["samples"]["power_w"] and 0 not in gpu["samples"]["power_w"]
    assert gpu["unknown"]["power_w"].startswith("GpuIsLost")
    for name, values in gpu["samples"].items():
        assert None not in values or name in gpu["unknown"]


def test_only_the_servers_gpus_are_watched(library: Path, tmp_path: Path) -> None:
    two = "* nvmlDeviceGetCount * 2"
    texts = {"TEXTS": json.dumps([HEALTHY + two + "\n"])}
    seen = ask(library, tmp_path / "script", WATCH, {**texts, "CUDA_VISIBLE_DEVICES": "1"})
    assert [gpu["index"] for gpu in seen["gpus"]] == [1]
    assert seen["gpus"][0]["static"]["peers"].keys() == {"0"}


def test_without_a_gpu_it_works_and_says_why() -> None:
    if nvml.has_driver():
        pytest.skip("this machine has a driver of its own")
    threads = threading.active_count()
    found = observe.start([os.getpid()]).stop()
    assert found["gpus"] == [] and ": " in found["unknown"]["gpus"]
    assert found["cpu"]["usable"] == len(os.sched_getaffinity(0)) and found["observer"]["looks"] == 0
    assert threading.active_count() == threads and observe.preflight([]) == []
    assert json.loads(json.dumps(found)) == found


BESIDE = """
import json, os
from sglang_ext.bench.machine import kernel, observe
kernel.in_a_container = lambda: False
own, environment = int(os.environ["OWN"]), json.loads(os.environ["ITS"])
seen = [observe.start([own], environment=environment, alone=alone).stop() for alone in (True, False)]
seen.append(observe.start([os.getpid()], alone=False).stop())
seen.append(observe.start([], alone=False, blind="it is of another host").stop())
print(json.dumps(seen))
"""


def test_beside_another_server_only_the_gpus_it_holds_are_watched(library: Path, tmp_path: Path) -> None:
    """Two servers that run side by side, each on a GPU of its own: neither is the other's co-tenant."""
    with subprocess.Popen(["sleep", "60"]) as other, subprocess.Popen(["sleep", "60"]) as own:
        try:
            script = tmp_path / "script"
            held = "".join(
                f"{gpu} nvmlDeviceGetComputeRunningProcesses * {one.pid}:{GIB}\n"
                for gpu, one in enumerate((other, own))
            )
            script.write_text(f"{HEALTHY}* nvmlDeviceGetCount * 2\n{held}")
            for its, everything in (({}, [0, 1]), ({"CUDA_VISIBLE_DEVICES": "1"}, [1])):
                found = ask(library, script, BESIDE, {"OWN": str(own.pid), "ITS": json.dumps(its)})
                alone, beside, nobody, blind = found
                assert [gpu["index"] for gpu in alone["gpus"]] == everything
                assert "co_tenant" in {one["code"] for one in marks(alone)} or everything == [1]
                assert [gpu["index"] for gpu in beside["gpus"]] == [1] and beside["gpus"][0]["strangers"] == []
                assert "gpus" not in beside["unknown"] and not {"co_tenant"} & {one["code"] for one in marks(beside)}
                assert (nobody["gpus"], nobody["unknown"]["gpus"]) == ([], "the server holds no GPU of this machine")
                assert (blind["gpus"], blind["unknown"]["gpus"]) == ([], "it is of another host") and blind["cpu"]
        finally:
            own.kill()
            other.kill()


@pytest.mark.parametrize(
    ("holders", "container", "kept"),
    [([os.getpid()], False, True), ([1], False, False), ([], False, False), (None, False, True), ([1], True, True)],
)
def test_a_gpu_of_which_it_cannot_be_told_who_holds_it_is_watched(
    holders: list[int] | None, container: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "in_a_container", lambda: container)
    library: Any = Fake(None if holders is None else [Holder(pid, GIB) for pid in holders], 0)
    gpus = [Gpu(0, 1, "GPU-x", "X"), Gpu(1, None, None, None, "GpuIsLost")]
    found = free.held_by(library, gpus, [os.getpid()])
    assert found == (gpus if kept else gpus[1:])


class Fake:
    """A library whose answers are given; what it is asked for last is what matters here."""

    def __init__(self, holders: list[Holder] | None, used: int | None) -> None:
        self._holders, self._used = holders, used

    def holders(self, handle: object) -> list[Holder]:
        if self._holders is None:
            raise Unreadable("NotSupported: no list")
        return self._holders

    def used_memory(self, handle: object) -> int:
        if self._used is None:
            raise Unreadable("NotSupported: no memory")
        return self._used


@pytest.mark.parametrize(
    ("holders", "used", "allowed", "comparable", "code", "part"),
    [
        ([], GIB, (), True, None, ""),
        ([Holder(41, 3 * GIB)], 3 * GIB, (), True, "gpu_busy", "pid 41 with 3.0 GiB"),
        ([Holder(41, None)], None, (), True, "gpu_busy", "expected no process, found pid 41; end it"),
        # The server's own, and somebody beside it.
        ([Holder(41, 3 * GIB)], 3 * GIB, (41,), True, None, ""),
        (
            [Holder(41, 3 * GIB), Holder(9, GIB)],
            4 * GIB,
            (41,),
            True,
            "gpu_busy",
            "no process but the server's own, found pid 9",
        ),
        # Nobody is listed and memory is in use: what a dead server left.
        ([], 40 * GIB, (), True, "gpu_memory_in_use", "found 40.0 GiB"),
        ([Holder(41, 30 * GIB)], 70 * GIB, (41,), True, "gpu_memory_in_use", "found 40.0 GiB"),
        ([Holder(41, None)], 70 * GIB, (41,), True, None, ""),  # all of it may be its own
        # In a container the pids are the host's: any process before a launch is one too many, later their number counts.
        ([Holder(80123, GIB)], GIB, (), False, "gpu_busy", "pid 80123 on the host with 1.0 GiB"),
        ([Holder(80123, GIB)], GIB, (41,), False, None, ""),
        ([Holder(80123, GIB), Holder(9, 1)], GIB, (41,), False, "gpu_busy", "pid 80123 on the host"),
        ([], 40 * GIB, (41,), False, "gpu_memory_in_use", "in a container: outside it"),
        # What cannot be seen is not free.
        (None, None, (), True, "gpu_unseen", "no list; NotSupported: no memory"),
        (None, GIB, (41,), True, "gpu_unseen", "no list"),
        (None, GIB, (), True, None, ""),
        (None, 40 * GIB, (), True, "gpu_memory_in_use", "40.0 GiB"),
        ([], None, (), True, None, ""),
    ],
)
def test_is_a_gpu_free(
    holders: list[Holder] | None, used: int | None, allowed: tuple[int, ...], comparable: bool, code: str | None, part: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(kernel, "program", lambda pid: None)
    library: Any = Fake(holders, used)
    faults = [one.fault for one in free._look(library, Gpu(3, 1, "GPU-x", "X"), set(allowed), len(allowed), comparable)]
    assert [fault.code for fault in faults] == ([code] if code else [])
    for fault in faults:
        assert fault.text.startswith("GPU 3: expected ") and part in fault.text and fault.code in TABLE


PREFLIGHT = """
import json, os
from sglang_ext.bench.machine import observe
given = os.environ.get("ALLOWED", "")
print(json.dumps([list(fault) for fault in observe.preflight(map(int, filter(None, given.split(","))), patience=0)]))
"""


@pytest.mark.parametrize("allow", [False, True])
def test_preflight_through_the_library(library: Path, tmp_path: Path, allow: bool) -> None:
    """A process that runs, with its program's name; allowed, with what descends from it, it is no fault."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "a-secret-argument"], stdin=subprocess.PIPE
    )
    try:
        script = tmp_path / "script"
        holds = f"* nvmlDeviceGetComputeRunningProcesses * {child.pid}:{3 * GIB}"
        script.write_text(f"{HEALTHY}{holds}\n* nvmlDeviceGetMemoryInfo * {96 * GIB} 0 {3 * GIB}\n")
        faults = ask(library, script, PREFLIGHT, {"ALLOWED": str(os.getpid()) if allow else ""})
        name = "" if kernel.in_a_container() else f" ({kernel.program(child.pid)})"
    finally:
        child.communicate()
    if allow:
        assert faults == []
    else:
        ((code, text),) = faults
        assert (
            code == "gpu_busy"
            and f"pid {child.pid}{name or ' on the host'} with 3.0 GiB" in text
            and "secret" not in text
        )


class Ending(Fake):
    """A server that has ended: for some looks the driver still has its memory, and its pid on the list."""

    def __init__(self, looks: int, pid: int) -> None:
        super().__init__([Holder(pid, 30 * GIB)], 70 * GIB)
        self.left = looks
        self.looks = 0

    def gpus(self) -> list[Gpu]:
        return [Gpu(0, 1, "GPU-x", "X")]

    def close(self) -> None:
        pass

    def used_memory(self, handle: object) -> int:
        self.looks += 1
        self.left -= 1
        if self.left <= 1:
            self._holders = []
        if self.left <= 0:
            self._used = 0
        return super().used_memory(handle)


@pytest.mark.parametrize(
    ("looks", "patience", "code"), [(4, 60.0, None), (10**9, 0.1, "gpu_busy"), (2, 0.0, "gpu_busy")]
)
def test_what_a_dead_server_still_holds_is_waited_for(
    looks: int, patience: float, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        child.wait()
    library = Ending(looks, child.pid)
    monkeypatch.setattr(nvml, "open_library", lambda: library)
    monkeypatch.setattr(kernel, "in_a_container", lambda: False)
    monkeypatch.setattr(free, "POLL", 0.01)
    faults = observe.preflight([], environment={}, patience=patience)
    assert [fault.code for fault in faults] == ([code] if code else [])
    assert library.looks >= (looks if code is None else 1)


def test_a_process_that_lives_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Ending(10**9, os.getpid())
    monkeypatch.setattr(nvml, "open_library", lambda: library)
    monkeypatch.setattr(kernel, "in_a_container", lambda: False)
    (fault,) = observe.preflight([], environment={}, patience=3600.0)
    assert fault.code == "gpu_busy" and library.looks == 1


def test_preflight_where_a_driver_is_and_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed() -> str:
        return "LibraryNotFound: it is not here"

    monkeypatch.setattr(nvml, "open_library", closed)
    monkeypatch.setattr(nvml, "has_driver", lambda: True)
    (fault,) = observe.preflight([])
    assert fault.code == "gpu_unseen" and fault.text.endswith("found: LibraryNotFound: it is not here")


def broken(change: Callable[[], None]) -> str:
    """Why the samples ended when a look does ``change``."""
    observer = observe.Observer.__new__(observe.Observer)
    observer.unknown, observer.every, observer.looks, observer.busy = {}, 0.0, 0, 0.0
    observer._over = threading.Event()
    observer._look = change  # type: ignore[method-assign]
    observer._watch()
    return observer.unknown["samples"]


def test_a_look_that_fails_ends_the_watch_and_not_the_run() -> None:
    def fail() -> None:
        raise RuntimeError("the driver went away")

    assert broken(fail) == "the look at the GPUs ended early (RuntimeError: the driver went away)"


def test_a_gpu_that_never_answers_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    closed: list[bool] = []

    class Library:
        def gpus(self) -> list[Gpu]:
            return [Gpu(0, None, None, None, "GpuIsLost: gone")]

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(nvml, "open_library", Library)
    monkeypatch.setattr(observe, "PATIENCE", 0.05)
    try:
        observer = observe.start([os.getpid()])
        monkeypatch.setattr(observer, "_look", hang.wait)
        found = observer.stop()
    finally:
        hang.set()
    assert "did not answer" in found["unknown"]["samples"] and not closed, (
        "a library in use is not closed under the thread"
    )
    assert found["gpus"][0]["unknown"]["gpu"] == "GpuIsLost: gone"


STATE = """
import json, os
from tools import gpu_check
print(json.dumps([list(line) for line in gpu_check.state([os.getpid()], 0.2)]))
"""


@pytest.mark.parametrize("unit", [1, 1000])
def test_the_check_for_a_real_gpu_on_the_stub(library: Path, tmp_path: Path, unit: int) -> None:
    """What tools/gpu_check.py says of a machine's state: here one GPU whose energy stands still, held by the check's child."""
    script = tmp_path / "script"
    script.write_text(
        f"{HEALTHY}* nvmlDeviceGetComputeRunningProcesses * {os.getpid()}:1\n* nvmlDeviceGetViolationStatus 0 {1000 * unit}\n"
    )
    lines = {what: (verdict, seen) for verdict, what, seen in ask(library, script, STATE)}
    assert lines["preflight"] == ("right", "of GPUs that ranks hold: gpu_busy") and lines["watching"][0] == "right"
    assert lines["GPU 0: figures"][0] == "right" and "sm_mhz 2400" in lines["GPU 0: figures"][1]
    assert lines["GPU 0: energy"] == ("wrong", "0 mJ in the watch")
    assert lines["GPU 0: memory_node"][0] == "open"
    assert lines["GPU 0: unit of times"][0] == ("right" if unit == 1 else "wrong")
    if not kernel.in_a_container():
        assert lines["GPU 0: strangers"] == ("wrong", f"pid {os.getpid()}")


def test_the_check_where_nvml_shows_nothing() -> None:
    from tools import gpu_check

    (line,) = gpu_check.watched({"gpus": [], "unknown": {"gpus": "LibraryNotFound: none"}}, set())
    assert line == (gpu_check.WRONG, "NVML", "LibraryNotFound: none")
