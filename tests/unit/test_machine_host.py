"""The host's side: what the kernel's files say, what they do not say, and whose work it was. Files made up, then real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.bench.machine import host, kernel
from sglang_ext.bench.machine.kernel import Limits, Snapshot, Spent, family

SPIN = """
import sys, time
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    pass
print("spent", flush=True)
sys.stdin.read()
"""


def place(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def stat_line(pid: int, parent: int, used: int, children: int = 0, name: str = "python", started: int = 5) -> str:
    return f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {used} 0 {children} 0 20 0 1 0 {started} 0 0\n"


def snap(at: float, **given: Any) -> Snapshot:
    base = Snapshot(at, (0,) * 10, {}, {}, {}, Limits(None, None, 0))
    return base._replace(**given)


def between(before: Snapshot, after: Snapshot, tmp_path: Path, *ours: int) -> tuple[dict[str, Any], dict[str, str]]:
    unknown: dict[str, str] = {}
    return host.state(before, after, ours, unknown, str(tmp_path / "proc"), str(tmp_path / "sys")), unknown


def test_governor_clocks_and_boost(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for cpu, governor in enumerate(("performance", "performance", "powersave")):
        at = f"devices/system/cpu/cpu{cpu}/cpufreq"
        files |= {
            f"{at}/scaling_governor": governor, f"{at}/scaling_cur_freq": str(2000000 + cpu), f"{at}/cpuinfo_min_freq": "800000",
            f"{at}/cpuinfo_max_freq": "4000000", f"{at}/scaling_driver": "intel_pstate",
        }  # fmt: skip
    place(
        tmp_path / "sys",
        {**files, "devices/system/cpu/intel_pstate/no_turbo": "0", "devices/system/cpu/smt/active": "1"},
    )
    found, unknown = between(snap(0), snap(1), tmp_path)
    assert found["governor"] == "performance on 2, powersave on 1" and found["driver"] == "intel_pstate"
    assert found["mhz"] == {"now_least": 2000, "now_most": 2000, "least": 800, "most": 4000}
    assert found["boost"] is True and found["smt"] is True
    assert not {"cpu.governor", "cpu.boost", "cpu.smt"} & unknown.keys()


def test_what_the_kernel_does_not_show_is_null_with_a_reason(tmp_path: Path) -> None:
    """An empty /proc and /sys: nothing is known, nothing is 0."""
    found, unknown = between(snap(0, ticks=None), snap(1, ticks=None, limits=Limits(None, None, None)), tmp_path)
    names = "governor driver mhz boost smt load memory busy_share steal_share others pressure throttled"
    for name in names.split():
        assert found[name] is None, name
        assert unknown[f"cpu.{name}"], name
    assert (
        found["numa"] == {"nodes": None, "balancing": None}
        and unknown["cpu.numa.nodes"]
        and unknown["cpu.numa.balancing"]
    )
    assert found["limits"]["held_share"] is None and unknown["cpu.limits.held_share"]


def test_load_numa_and_memory(tmp_path: Path) -> None:
    place(tmp_path / "proc", {
        "loadavg": "1.50 2.00 3.25 4/108 23351\n", "sys/kernel/numa_balancing": "1\n",
        "meminfo": "MemTotal: 100 kB\nMemFree: 20 kB\nMemAvailable: 60 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
    })  # fmt: skip
    place(tmp_path / "sys", {f"devices/system/node/node{node}/cpulist": "" for node in range(2)})
    found, _ = between(snap(0), snap(1), tmp_path)
    assert found["load"] == [1.5, 2.0, 3.25] and found["numa"] == {"nodes": 2, "balancing": True}
    assert found["memory"] == {
        "total_bytes": 102400,
        "available_bytes": 61440,
        "free_bytes": 20480,
        "swap_used_bytes": 6144,
    }


def test_shares_steal_and_the_work_of_others(tmp_path: Path) -> None:
    second = os.sysconf("SC_CLK_TCK")
    # Ten seconds of two CPUs: 8 busy (3 ours), 1 stolen, the rest idle; guest time is in user time and not counted again.
    after = (7 * second, 0, second, 11 * second, 0, 0, 0, second, 5 * second, 0)
    first = {1: Spent(1, 0, "init", 0, 0), 10: Spent(5, 1, "server", 0, 0), 20: Spent(5, 1, "cc1plus", 100, 0)}
    second_look = {
        1: Spent(1, 0, "init", 0, 0),
        10: Spent(5, 1, "server", 2 * second, second),  # one second of it by a child that has ended
        20: Spent(5, 1, "cc1plus", 100 + 4 * second, 9 * second),
        30: Spent(77, 1, "new one", second, 0),
    }
    found, unknown = between(snap(0, processes=first), snap(10, ticks=after, processes=second_look), tmp_path, 10)
    assert found["busy_share"] == 0.4 and found["steal_share"] == 0.05
    assert found["others"] == {
        "cores": 0.5,
        "count": 2,
        "programs": [{"program": "cc1plus", "pid": 20, "cores": 0.4}, {"program": "new one", "pid": 30, "cores": 0.1}],
    }
    assert "cpu.steal_share" not in unknown


def test_a_pid_that_was_used_again_is_another_process(tmp_path: Path) -> None:
    second = os.sysconf("SC_CLK_TCK")
    before = snap(0, processes={20: Spent(5, 1, "old", 50 * second, 0)})
    after = snap(10, ticks=(second * 20,) + (0,) * 9, processes={20: Spent(900, 1, "new", 2 * second, 0)})
    found, _ = between(before, after, tmp_path)
    assert found["others"]["programs"] == [{"program": "new", "pid": 20, "cores": 0.2}]


def test_pressure_and_throttling(tmp_path: Path) -> None:
    cool = {"cpu1.core.events": 0, "cpu1.core.ms": 0}
    before = snap(0, pressure={"cpu": 100}, heat={"cpu0.core.events": 3, "cpu0.core.ms": 100, **cool})
    after = snap(10, pressure={"cpu": 2000100, "io": 5}, heat={"cpu0.core.events": 5, "cpu0.core.ms": 600, **cool})
    found, unknown = between(before, after, tmp_path)
    assert found["pressure"] == {"cpu": 0.2, "io": 0.0} and found["throttled"] == {"events": 2, "share": 0.05}
    found, unknown = between(snap(0, heat={"cpu0.core.events": 1}), snap(10, heat={"cpu0.core.events": 4}), tmp_path)
    assert found["throttled"] == {"events": 3, "share": None} and "not their time" in unknown["cpu.throttled.share"]


def test_heat_and_pressure_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    sys_root = place(tmp_path / "sys", {
        "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "4",
        "devices/system/cpu/cpu0/thermal_throttle/core_throttle_total_time_ms": "12",
        "devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "1",
    })  # fmt: skip
    proc = place(tmp_path / "proc", {
        "stat": "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n", "7/stat": stat_line(7, 1, 12, 3, "a) (b"),
        "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
    })  # fmt: skip
    found = kernel.snapshot(7, proc, sys_root)
    assert found.heat == {"cpu0.core.events": 4, "cpu0.core.ms": 12, "cpu0.package.events": 1}
    assert found.pressure == {"cpu": 42} and found.ticks == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert found.processes == {7: Spent(5, 1, "a) (b", 12, 3)} and found.limits == Limits(None, None, None)


@pytest.mark.parametrize(
    ("files", "cgroup", "expected"),
    [
        ({"kube/pod/cpu.max": "400000 100000", "kube/cpu.max": "max 100000", "kube/pod/memory.max": "max",
          "kube/memory.max": "1000", "kube/pod/cpu.stat": "usage_usec 1\nthrottled_usec 250"},
         "0::/kube/pod", Limits(4.0, 1000, 250000)),
        ({"a/cpu.max": "max 100000", "cpu.max": "150000 100000", "cpu.stat": "throttled_usec 2"},
         "0::/a", Limits(1.5, None, 2000)),
        ({"cpu,cpuacct/d/cpu.cfs_quota_us": "50000", "cpu,cpuacct/d/cpu.cfs_period_us": "100000",
          "cpu,cpuacct/d/cpu.stat": "throttled_time 9", "memory/d/memory.limit_in_bytes": "9223372036854771712",
          "memory/memory.limit_in_bytes": "77"},
         "3:cpu,cpuacct:/d\n2:memory:/d\n1:name=systemd:/d", Limits(0.5, 77, 9)),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", Limits(None, None, 0)),
        ({"a/cpu.max": "100000 100000"}, "0::/a", Limits(1.0, None, None)),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, "1:memory:/", Limits(None, None, 0)),
    ],
)  # fmt: skip
def test_the_tightest_control_group(tmp_path: Path, files: dict[str, str], cgroup: str, expected: Limits) -> None:
    sys_root = place(tmp_path / "sys", {f"fs/cgroup/{name}": text for name, text in files.items()})
    proc = place(tmp_path / "proc", {"9/cgroup": cgroup + "\n"})
    assert kernel.limits(9, proc, sys_root) == expected


def test_what_descends_from_ours_is_ours() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1}
    processes = {pid: Spent(1, parent, "x", 0, 0) for pid, parent in parents.items()}
    assert family([2], processes) == {2, 3, 4, os.getpid()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1\n", 1), ("-1\n", "the firmware names no node"), (None, "does not show the card's device")],
)
def test_the_node_of_a_card(tmp_path: Path, text: str | None, expected: int | str) -> None:
    if text is not None:
        place(tmp_path, {"bus/pci/devices/0000:3b:00.0/numa_node": text})
    found = kernel.numa_node("00000000:3B:00.0", str(tmp_path))
    assert found == expected if isinstance(expected, int) else expected in str(found)
    assert "does not say where" in str(kernel.numa_node(None))


def test_this_machine_for_real() -> None:
    """A stranger that works is seen by its program's name and nothing more; one of ours is not a stranger."""
    secret = "hunter2-in-an-argument"
    before = kernel.snapshot(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", SPIN, "0.4", secret], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        after = kernel.snapshot(os.getpid())
        unknown: dict[str, str] = {}
        found = host.state(before, after, {os.getpid()}, unknown)
        strangers = {one["pid"]: one for one in found["others"]["programs"]}
        assert child.pid in strangers and strangers[child.pid]["program"] == kernel.program(child.pid)
        assert secret not in repr(found)
        ours = host.state(before, after, family([], after.processes), unknown)
        assert child.pid not in {one["pid"] for one in ours["others"]["programs"]}
        assert found["others"]["cores"] >= ours["others"]["cores"]
    finally:
        child.communicate()
    for name, value in found.items():
        assert value is not None or unknown.get(f"cpu.{name}"), f"{name} has neither a value nor a reason"
