"""Which states mark a launch, which exclude its pair, and that nothing is made of what is not known."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sglang_ext.bench.machine.marks import CODES, LIMITS, excludes, mark, marks, share
from sglang_ext.bench.machine.moved import changed, unlike
from sglang_ext.reasons import TABLE

SECOND = 10**9
RUNS = [(0, 100.0, 119.0), (1, 120.0, 139.0)]  # forty seconds, a look each


def gpu(**given: Any) -> dict[str, Any]:
    """A healthy GPU, watched for 60 s from t=90 on: idle, then two runs of twenty seconds."""
    t = [90.0 + at for at in range(60)]
    busy = [100 <= at < 140 for at in t]
    samples = {
        "t": t,
        "sm_mhz": [2400 if on else 210 for on in busy],
        "mem_mhz": [14001 if on else 405 for on in busy],
        "reasons": [0 if on else 1 for on in busy],
        "util_pct": [97 if on else 0 for on in busy],
        "pcie_gen": [5 if on else 1 for on in busy],  # it falls asleep with the work
        "pcie_width": [16] * 60,
        "temp_c": [60] * 60,
    }
    made: dict[str, Any] = {
        "index": 0, "uuid": "GPU-0", "name": "X", "samples": samples,
        "times": {"hw_thermal_ns": [[90.0, 5]], "power_cap_ns": [[90.0, 0]]},
        "static": {"pcie_max_gen": 5, "pcie_max_width": 16, "power_limit_w": 600.0, "driver": "580", "sm_max_mhz": 3090},
        "deltas": {"ecc_uncorrected": 0, "ecc_corrected": 0}, "ecc": {"rows_pending": 0, "rows_failed": 0},
        "strangers": [], "unknown": {},
    }  # fmt: skip
    for name, value in given.items():
        if name in made["samples"]:
            made["samples"][name] = value
        else:
            made[name] = value if not isinstance(value, dict) else made[name] | value
    return made


def machine(*gpus: dict[str, Any], **cpu: Any) -> dict[str, Any]:
    return {"gpus": list(gpus), "cpu": cpu, "unknown": {}, "marks": []}


def during(first: int, last: int, inside: Any, outside: Any) -> list[Any]:
    """A sample for each second: ``inside`` from ``first`` to ``last``."""
    return [inside if first <= 90 + at <= last else outside for at in range(60)]


def codes(state: dict[str, Any], spans: Any = RUNS) -> list[tuple[str, int | None]]:
    return [(one["code"], one["run"]) for one in marks(state, spans)]


def test_a_healthy_machine_has_no_mark() -> None:
    quiet: dict[str, Any] = {
        "steal_share": 0.0, "cores": 64, "throttled": {"events": 9, "share": 0.0}, "limits": {"held_share": 0.0},
        "others": {"cores": 1.0, "programs": [], "count": 0},
    }  # fmt: skip
    assert codes(machine(gpu(), **quiet)) == [] and codes(machine(gpu(), **quiet), ()) == []


def test_no_gpu_and_nothing_known_of_the_cpu_is_no_mark() -> None:
    assert codes({"gpus": [], "cpu": {}, "unknown": {}, "marks": []}) == []
    assert codes(machine(steal_share=None, others=None, throttled=None, limits=None, cores=None)) == []


@pytest.mark.parametrize(
    ("bit", "word"),
    [
        (0x8, "hardware slowdown"),
        (0x20, "software thermal"),
        (0x40, "hardware thermal"),
        (0x80, "power brake"),
        (0x200, "board limit"),
    ],
)
def test_reasons_that_throttle(bit: int, word: str) -> None:
    """One look of twenty in the second run: that run, and no other."""
    (found,) = marks(machine(gpu(reasons=during(125, 125, bit | 2, 0))), RUNS)
    assert found["code"] == "throttled" and found["run"] == 1 and found["excludes"] is True
    assert word in found["text"] and "in 1 of 20 samples" in found["text"] and found["text"].startswith("GPU 0: ")


@pytest.mark.parametrize("bit", [0x1, 0x2, 0x10, 0x100, 0x400])
def test_reasons_that_do_not_throttle(bit: int) -> None:
    assert codes(machine(gpu(reasons=[bit] * 60, util_pct=[97] * 60))) == []


def test_throttling_between_runs_excludes_nothing() -> None:
    """While the model loads, say; without the runs' times all of it counts."""
    state = machine(gpu(reasons=during(92, 96, 0x40, 0)))
    assert codes(state) == [] and codes(state, ()) == [("throttled", None)]


@pytest.mark.parametrize(("ns", "marked"), [(0.05 * SECOND, True), (0.005 * SECOND, False)])
def test_a_time_marks_from_a_tenth_of_the_margin_on(ns: float, marked: bool) -> None:
    """0.1 % of a run is where it could matter; no look need have seen it."""
    times = {"hw_thermal_ns": [[90.0, 0], [110.0, ns]]}
    assert codes(machine(gpu(times=times))) == ([("throttled", 0)] if marked else [])


def test_the_share_is_of_the_span_between_the_looks_around_it() -> None:
    one = gpu(times={"thermal_ns": [[90.0, 7], [105.0, 7 + SECOND], [130.0, 7 + 3 * SECOND]]})
    assert share(one, "thermal_ns", (0, 100.0, 110.0)) == pytest.approx(0.1)
    assert share(one, "thermal_ns", (0, 99.5, 109.5)) == pytest.approx(1 / 11)
    assert share(one, "thermal_ns", (None, float("-inf"), float("inf"))) == pytest.approx(3 / 59)
    assert share(one, "hw_thermal_ns", (0, 100.0, 110.0)) == 0.0
    assert share(one, "power_brake_ns", (0, 100.0, 110.0)) is None, "never counted is not never happened"


@pytest.mark.parametrize("by", ["times", "reasons"])
def test_the_power_cap_is_told_and_excludes_nothing(by: str) -> None:
    given: dict[str, Any] = {"times": {"power_cap_ns": [[90.0, 0], [110.0, 4 * SECOND]]}}
    if by == "reasons":  # where its time is not known, samples say how often
        given = {"times": {}, "reasons": during(105, 110, 0x4, 0)}
    state = machine(gpu(**given))
    if by == "reasons":
        state["gpus"][0]["times"] = {}
    (found,) = marks(state, RUNS)
    assert (found["code"], found["run"], found["excludes"]) == ("power_capped", 0, False) and "600 W" in found["text"]
    assert marks(state, RUNS, LIMITS._replace(power_capped=0.5)) == []


def test_a_clock_that_fell_without_a_cap_is_a_mark() -> None:
    slower = during(120, 140, 2200, 2400)
    (found,) = marks(machine(gpu(sm_mhz=slower)), RUNS)
    assert (found["code"], found["run"], found["excludes"]) == ("clock_dropped", 1, True) and "8.3% below" in found[
        "text"
    ]
    assert codes(machine(gpu(mem_mhz=during(120, 140, 10000, 14001)))) == [("clock_dropped", 1)]
    # The cap explains a core clock, and is told itself; within three steps of the boost it is the load's.
    capped = {"times": {"power_cap_ns": [[90.0, 0], [121.0, 0], [130.0, 9 * SECOND]]}}
    assert codes(machine(gpu(sm_mhz=slower, **capped))) == [("power_capped", 1)]
    assert codes(machine(gpu(sm_mhz=during(120, 140, 2370, 2400)))) == []
    assert codes(machine(gpu(sm_mhz=slower)), ()) == [], "one span has nothing to be compared with"


def test_idle_moments_are_no_drop() -> None:
    """A pause inside a run: clocks and link fall with it, by the GPU's own idle bit or its utilisation."""
    given: dict[str, Any] = {"sm_mhz": during(120, 132, 210, 2400), "pcie_gen": during(120, 132, 1, 5)}
    assert codes(machine(gpu(reasons=during(120, 132, 1, 0), **given))) == []
    assert codes(machine(gpu(reasons=[None] * 60, util_pct=during(120, 132, 0, 97), **given))) == []


def test_pcie_at_idle_says_nothing() -> None:
    """Generation 1 in every look of a GPU that never worked."""
    idle = gpu(reasons=[1] * 60, util_pct=[0] * 60, pcie_gen=[1] * 60)
    assert codes(machine(idle), ()) == []
    unknown = gpu(reasons=[None] * 60, util_pct=[None] * 60, pcie_gen=[1] * 60)
    assert [code for code, _ in codes(machine(unknown), ()) if code.startswith("pcie")] == []


def test_a_link_slower_in_one_run_than_in_another() -> None:
    (found,) = marks(machine(gpu(pcie_gen=during(120, 140, 1, 5))), RUNS)
    assert (found["code"], found["run"], found["excludes"]) == ("pcie_degraded", 1, True)
    assert found["text"] == "GPU 0: PCIe generation 1 under load, 5 in another run"
    assert codes(machine(gpu(pcie_width=during(120, 140, 4, 16)))) == [("pcie_degraded", 1)]


def test_a_link_that_is_always_slower_than_it_could_be_is_told_only() -> None:
    (found,) = marks(machine(gpu(pcie_width=[8] * 60)), RUNS)
    assert (found["code"], found["excludes"]) == ("pcie_below_maximum", False) and "can do 16" in found["text"]
    assert codes(machine(gpu(pcie_width=[8] * 60, static={"pcie_max_width": None}))) == []


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"deltas": {"ecc_uncorrected": 1}}, "ecc_errors"),
        ({"deltas": {"rows_uncorrected": 1}}, "ecc_errors"),
        ({"ecc": {"rows_pending": 1}}, "ecc_errors"),
        ({"ecc": {"rows_failed": 1}}, "ecc_errors"),
        ({"deltas": {"ecc_corrected": 2}}, "ecc_corrected"),
        ({"strangers": [{"pid": 7, "program": None, "memory_bytes": None}]}, "co_tenant"),
    ],
)
def test_memory_errors_and_company(given: dict[str, Any], code: str) -> None:
    assert codes(machine(gpu(**given))) == [(code, None)]


def test_unknown_counters_are_no_errors() -> None:
    assert (
        codes(machine(gpu(deltas={"ecc_uncorrected": None, "ecc_corrected": None}, ecc={"rows_pending": None}))) == []
    )


def test_a_gpu_that_tells_no_reasons_is_marked_as_unseen() -> None:
    blind = gpu(reasons=[None] * 60, unknown={"reasons": "NotSupported: this GPU or driver does not offer it"})
    blind["times"] = {}
    (found,) = marks(machine(blind), RUNS)
    assert (found["code"], found["excludes"]) == ("throttling_unseen", False) and "NotSupported" in found["text"]
    lost = gpu(unknown={"gpu": "GpuIsLost"})
    lost["samples"], lost["times"] = {"t": []}, {}
    (found,) = marks(machine(lost), RUNS)
    assert found["code"] == "throttling_unseen" and "GpuIsLost" in found["text"]


@pytest.mark.parametrize(
    ("cpu", "code"),
    [
        ({"steal_share": 0.03}, "cpu_steal"),
        ({"throttled": {"events": 3, "share": 0.01}}, "cpu_throttled"),
        ({"cores": 8, "others": {"cores": 1.0, "programs": [{"program": "cc1plus", "cores": 1.0}]}}, "cpu_busy"),
        ({"limits": {"held_share": 0.2}}, "cpu_limited"),
    ],
)
def test_the_hosts_marks(cpu: dict[str, Any], code: str) -> None:
    assert codes(machine(**cpu)) == [(code, None)]
    assert all(one["text"] for one in marks(machine(**cpu)))


@pytest.mark.parametrize(
    "cpu",
    [
        {"steal_share": 0.02},
        {"throttled": {"events": 3, "share": None}},
        {"cores": 64, "others": {"cores": 1.0, "programs": []}},
        {"cores": None, "others": {"cores": 1.0, "programs": []}},
        {"limits": {"held_share": None}},
    ],
)
def test_what_is_below_the_hosts_limits_or_not_known(cpu: dict[str, Any]) -> None:
    assert codes(machine(**cpu)) == []


def test_a_machine_that_is_not_the_first_launchs() -> None:
    before = machine(gpu(), governor="performance", cores=64)
    assert changed(before, copy.deepcopy(before)) == []
    now = copy.deepcopy(before)
    now["gpus"][0]["static"] |= {"driver": "590", "power_limit_w": 450.0, "sm_max_mhz": None}
    now["gpus"][0]["samples"]["pcie_gen"] = [1] * 60
    now["cpu"]["governor"] = "powersave"
    one, two = changed(before, now)
    assert one["code"] == two["code"] == "machine_changed" and one["excludes"]
    assert (
        one["text"]
        == "GPU 0 is not as in the first launch: driver 580 -> 590, power_limit_w 600.0 -> 450.0, pcie_gen 5 -> 1"
    )
    assert two["text"] == "the CPUs are not as in the first launch: governor performance -> powersave"
    (gone,) = changed(before, machine(governor="performance"))
    assert gone["text"] == "expected the GPUs 0 as in the first launch, found none"
    assert changed(machine(), machine()) == []


def test_servers_side_by_side_have_gpus_of_their_own() -> None:
    first, other = gpu(), gpu()
    other |= {"index": 1, "static": {**other["static"], "uuid": "GPU-other", "vbios": "another"}}
    before, now = machine(first, governor="performance"), machine(other, governor="performance")
    assert [one["code"] for one in changed(before, now)] == ["machine_changed"]  # of one arm it would be
    assert unlike(before, now) == []
    other["static"]["power_limit_w"] = 450.0
    (mark_,) = unlike(before, now)
    assert mark_["text"] == "GPU 1 is not like GPU 0 in the first launch: power_limit_w 600.0 -> 450.0"
    (mark_,) = unlike(before, machine(first, other, governor="performance"))
    assert mark_["text"] == "expected 1 GPUs, as many as in the first launch, found 2" and mark_["excludes"]
    unseen = machine(governor="powersave")
    unseen["unknown"] = {"gpus": "the server is not of this host"}
    for one in (unlike(before, unseen), unlike(unseen, before)):
        assert [mark_["text"].partition(":")[0] for mark_ in one] == ["the CPUs are not as in the first launch"]


def test_streams_at_once_are_marked_once() -> None:
    """Two streams of a run overlap: one mark for both, under the first one's index, and the next run is the next."""
    state = machine(gpu(reasons=during(105, 106, 0x40, 0)))
    assert codes(state, [(1, 101.0, 118.0), (0, 100.0, 119.0), (2, 120.0, 139.0)]) == [("throttled", 0)]
    assert codes(state, [(0, 90.0, 104.0), (1, 100.0, 119.0), (2, 120.0, 139.0)]) == [("throttled", 0)]
    assert codes(state, [(0, 90.0, 100.0), (1, 100.0, 119.0), (2, 120.0, 139.0)]) == [("throttled", 1)]


def test_the_codes_and_what_they_exclude() -> None:
    assert set(CODES) <= TABLE.keys()
    assert {code for code in CODES if not excludes(code)} == {
        "throttling_unseen", "power_capped", "pcie_below_maximum", "ecc_corrected", "cpu_busy", "cpu_limited",
    }  # fmt: skip
    assert mark("throttled", "x", 2) == {"code": "throttled", "text": "x", "run": 2, "excludes": True}
