#!/usr/bin/env python3
"""What only a machine with a GPU can prove about this project: one command, under three minutes.

    python tools/gpu_check.py                all visible GPUs, one rank each
    python tools/gpu_check.py --ranks 2      so many; on fewer GPUs two ranks share one, where NCCL can do that (2.30 on)

Each rank is a real torch process that sets NCCL variables through os.environ, makes a communicator and sums a tensor. Then,
from outside: is each variable in the process's memory (the live reader), did NCCL's own log say it took it, is the mapped
libnccl the version torch says it is, do the ranks stand where the log says they stand, and is the sum right? And of the
machine's state (`sglang_ext/bench/machine`): is each GPU read, are its times in nanoseconds, are the ranks seen on it?

A line of the report is *right*, *wrong*, or *open* where this machine cannot tell: with one rank NCCL does not look at
NCCL_PROTO, NCCL_ALGO and NCCL_P2P_LEVEL at all. Exit codes: 0 nothing wrong, 1 something wrong, 3 no GPU, or no torch for one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from sglang_ext.bench.machine.nvml import Gpu, Library
    from sglang_ext.nccl.library import Loaded
    from sglang_ext.nccl.testimony import Testimony
    from sglang_ext.verify.live import LiveEnviron

ROOT = Path(__file__).resolve().parent.parent
# Set in each rank by os.environ: values that no default is, and each in a spelling of its own kind.
GIVEN = {
    "NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_BUFFSIZE": "2097152",
    "NCCL_MAX_NCHANNELS": "2", "NCCL_NTHREADS": "256", "NCCL_GDRCOPY_ENABLE": "0",
}  # fmt: skip
SUBSYSTEMS = ("INIT", "ENV", "TUNING")
SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"
SHARED_SINCE = (2, 30, 3)
ELEMENTS = 1 << 20
PATIENCE = 120.0  # seconds for all ranks to come up
RIGHT, WRONG, OPEN = "right", "wrong", "open"


class Line(NamedTuple):
    """One thing that was looked at."""

    verdict: str
    what: str
    seen: str


class NoGpu(Exception):
    """There is nothing to check here; the message is one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check, print the report, return the exit code."""
    parser = argparse.ArgumentParser(description="Prove on a GPU what a CPU cannot: see the top of this file.")
    parser.add_argument("--ranks", type=int, default=0, help="ranks to start (default: one for each visible GPU)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--worker", nargs=3, metavar=("RANK", "RANKS", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    if args.worker:
        return worker(int(args.worker[0]), int(args.worker[1]), Path(args.worker[2]))
    if args.ranks < 0:
        parser.error(f"--ranks: expected 1 or more, found {args.ranks}; give a number of ranks, or leave it out")
    try:
        gpus, version = machine()
    except NoGpu as reason:
        print(f"gpu_check: {reason}", file=sys.stderr)
        return 3
    ranks = args.ranks or gpus
    lines = [Line(OPEN, "two ranks on one GPU", no_sharing(version))] if ranks > gpus and version < SHARED_SINCE else []
    ranks = min(ranks, gpus) if version < SHARED_SINCE else ranks
    lines += check(ranks, gpus, version)
    print(json.dumps([line._asdict() for line in lines], indent=2) if args.json else table(lines, ranks, gpus, version))
    return 1 if any(line.verdict == WRONG for line in lines) else 0


def no_sharing(version: tuple[int, ...]) -> str:
    """Why it was not tried."""
    return f"NCCL {'.'.join(map(str, version))} cannot; 2.30.3 is the first that can ({SHARED}=1)"


def machine() -> tuple[int, tuple[int, ...]]:
    """(visible GPUs, the version of torch's NCCL), asked in another process: CUDA must not start in this one.

    Raises:
        NoGpu: there is none, or this Python's torch has no CUDA.
    """
    code = (
        "import json, torch\n"
        "built = torch.version.cuda is not None and torch.distributed.is_nccl_available()\n"
        "gpus = torch.cuda.device_count() if built and torch.cuda.is_available() else 0\n"
        "print(json.dumps([built, gpus, list(torch.cuda.nccl.version())[:3] if built else []]))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NoGpu(f"expected a Python that has torch, found: {last}; run it with the Python that serves SGLang")
    built, gpus, version = json.loads(done.stdout.strip().splitlines()[-1])
    return usable(built, gpus, version)


def usable(built: bool, gpus: int, version: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """The machine's answer, or why there is nothing to check."""
    if not built:
        raise NoGpu("expected torch with CUDA and NCCL, found one without; run it with the Python that serves SGLang")
    if gpus < 1:
        raise NoGpu("expected a visible NVIDIA GPU and its driver, found none; run it on the machine that has one")
    return gpus, tuple(version)


def worker(rank: int, ranks: int, folder: Path) -> int:
    """One rank: set, start, sum, tell, and stay until stdin ends."""
    for name, value in GIVEN.items():  # here, and not in the parent: /proc/PID/environ will not have them
        os.environ[name] = value
    import torch
    import torch.distributed as dist

    gpus = torch.cuda.device_count()
    if ranks > gpus:
        os.environ[SHARED] = "1"
    torch.cuda.set_device(rank % gpus)
    dist.init_process_group("nccl", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    tensor = torch.full((ELEMENTS,), float(rank + 1), device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    told = {
        "pid": os.getpid(), "rank": rank, "low": tensor.min().item(), "high": tensor.max().item(),
        "nccl": list(torch.cuda.nccl.version())[:3], "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip
    part = folder / f"rank{rank}.part"
    part.write_text(json.dumps(told))
    part.rename(folder / f"rank{rank}.json")
    sys.stdin.read()  # the parent reads this process now
    dist.destroy_process_group()
    return 0


def check(ranks: int, gpus: int, version: tuple[int, ...]) -> list[Line]:
    """Start the ranks, look at them from outside, stop them."""
    from tempfile import TemporaryDirectory

    from sglang_ext.nccl import library, log
    from sglang_ext.verify.live import read_live

    with TemporaryDirectory() as place:
        folder = Path(place)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
        # The log's own variables must be there when NCCL is first called; NCCL_CONF_FILE keeps ~/.nccl.conf out.
        environment |= {
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": ",".join(SUBSYSTEMS), "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p",
            "NCCL_CONF_FILE": f"{folder}/no.conf",
        }  # fmt: skip
        children: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                with open(folder / f"rank{rank}.out", "wb") as out:
                    words = [sys.executable, os.path.abspath(__file__), "--worker", str(rank), str(ranks), str(folder)]
                    children.append(
                        subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out)
                    )
            told, trouble = wait(children, folder)
            if trouble:
                return [Line(WRONG, "ranks come up and sum", trouble)]
            lines = []
            for one in told:
                text = b"".join(path.read_bytes() for path in sorted(folder.glob(f"nccl.*.{one['pid']}")))
                lines += judge(one, ranks, gpus, read_live(one["pid"]), library.of_process(one["pid"]), log.parse(text))
            return lines + state([one["pid"] for one in told])
        finally:
            end(children)


def wait(children: Sequence[subprocess.Popen[bytes]], folder: Path) -> tuple[list[dict[str, Any]], str]:
    """What the ranks told, or what went wrong."""
    deadline = time.monotonic() + PATIENCE
    while True:
        files = [folder / f"rank{rank}.json" for rank in range(len(children))]
        if all(file.exists() for file in files):
            return [json.loads(file.read_text()) for file in files], ""
        for rank, child in enumerate(children):
            if child.poll() is not None and not files[rank].exists():
                return [], f"rank {rank} ended with {child.returncode}: {last_words(folder / f'rank{rank}.out')}"
        if time.monotonic() > deadline:
            missing = [rank for rank, file in enumerate(files) if not file.exists()]
            return (
                [],
                f"expected every rank within {PATIENCE:.0f} s, rank {missing[0]} is not there: it may hang in NCCL",
            )
        time.sleep(0.2)


def last_words(path: Path) -> str:
    """The last line a rank printed."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1][:300] if lines else "it printed nothing"


def end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let the ranks go, then make them."""
    for child in children:
        if child.stdin is not None:
            child.stdin.close()
    deadline = time.monotonic() + 15
    for child in children:
        try:
            child.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def judge(
    told: Mapping[str, Any], ranks: int, gpus: int, live: LiveEnviron, loaded: Loaded, said: Testimony
) -> list[Line]:
    """The lines about one rank: what it told, against what was read from outside."""
    who, version = f"rank {told['rank']}", tuple(told["nccl"])
    total = float(ranks * (ranks + 1) // 2)
    lines = [
        Line(RIGHT if told["low"] == told["high"] == total else WRONG, f"{who}: sum", f"{told['high']:g} of {total:g}")
    ]
    if live.state != "ok":
        lines.append(Line(WRONG, f"{who}: live reader", live.detail))
    else:
        missed = [name for name, value in GIVEN.items() if live.values.get(name) != value]
        seen = (
            f"{len(GIVEN)} of {len(GIVEN)} variables set by os.environ"
            if not missed
            else f"not as set: {', '.join(missed)}"
        )
        lines.append(Line(WRONG if missed else RIGHT, f"{who}: live reader", seen))
    lines.append(same_library(who, version, loaded))
    place = said.of(told["pid"]).ranks().get(told["pid"], ())
    stands = (told["rank"], ranks) in place
    lines.append(Line(RIGHT if stands else WRONG, f"{who}: Init COMPLETE", f"{place[0]}" if place else "no such line"))
    lines.append(whole(who, said))
    lines += [one for name, value in GIVEN.items() for one in [taken(who, name, value, version, ranks, gpus, said)]]
    if told["rank"] == 0:
        lines.append(chosen(who, ranks, said))
    return lines


def whole(who: str, said: Testimony) -> Line:
    """Was every line of the log understood?"""
    good = said.lines > 0 and not said.mixed and not said.torn
    return Line(
        RIGHT if good else WRONG, f"{who}: log", f"{said.lines} lines, {said.mixed} damaged{', torn' * said.torn}"
    )


def same_library(who: str, version: tuple[int, ...], loaded: Loaded) -> Line:
    """Is the mapped file what torch says it is?"""
    what = f"{who}: mapped libnccl"
    if loaded.state != "ok" or not loaded.libraries:
        return Line(WRONG, what, loaded.detail or "none is mapped (torch may have NCCL linked in)")
    found = {".".join(map(str, one.version)) if one.version else one.detail for one in loaded.libraries}
    good = {one.version for one in loaded.libraries} == {version}
    return Line(RIGHT if good else WRONG, what, f"{', '.join(sorted(found))}; torch says {'.'.join(map(str, version))}")


def taken(who: str, name: str, value: str, version: tuple[int, ...], ranks: int, gpus: int, said: Testimony) -> Line:
    """Does NCCL's log say that it took the value?"""
    from sglang_ext.nccl import silence
    from sglang_ext.nccl.understand import understand

    expected = silence.expected_line(name, version)
    values = said.values().get(expected.name)
    meant = understand(name, value, version).value
    if values is not None:
        good = all(understand(name, shown, version).value == meant for shown in values)
        return Line(RIGHT if good else WRONG, f"{who}: {name}", f"NCCL took {', '.join(values)}; given {value}")
    # Ranks that share a GPU are neighbours too, but NCCL checks peers between GPUs.
    if silence.silence_proves(expected, SUBSYSTEMS, ranks, min(ranks, gpus)):
        return Line(WRONG, f"{who}: {name}", f"given {value}, and no line of NCCL's says that it was taken")
    why = f"NCCL does not read it with {ranks} rank{'s' * (ranks > 1)} on {gpus} GPU{'s' * (gpus > 1)}"
    return Line(OPEN, f"{who}: {name}", why if expected.needs > silence.ALONE else "no line, and none is due")


def chosen(who: str, ranks: int, said: Testimony) -> Line:
    """Was the collective launched as NCCL_ALGO and NCCL_PROTO say?"""
    what = f"{who}: all-reduce"
    runs = {(one.algorithm, one.protocol) for one in said.choices if one.function in ("AllReduce", "")}
    if not runs:
        return Line(OPEN, what, "no TUNING line" + (": one rank copies, nothing is chosen" if ranks == 1 else ""))
    good = runs == {(GIVEN["NCCL_ALGO"], GIVEN["NCCL_PROTO"])}
    return Line(
        RIGHT if good or ranks == 1 else WRONG, what, ", ".join(f"{algo}/{proto}" for algo, proto in sorted(runs))
    )


def state(pids: Sequence[int], seconds: float = 2.0) -> list[Line]:
    """What NVML says of the GPUs while the ranks hold them."""
    from sglang_ext.bench.machine import nvml, observe

    found = {fault.code for fault in observe.preflight([], patience=0)}
    observer = observe.start(pids, every=seconds / 10)
    time.sleep(seconds)
    lines = watched(observer.stop(), found)
    opened = nvml.open_library()
    if not isinstance(opened, str):
        lines += [in_nanoseconds(opened, gpu) for gpu in nvml.selected(opened.gpus()) if gpu.handle is not None]
        opened.close()
    return lines


def watched(seen: Mapping[str, Any], found: set[str]) -> list[Line]:
    """The lines about one watch over ranks that do nothing; ``found``: what a preflight said of them."""
    if not seen["gpus"]:
        return [Line(WRONG, "NVML", seen["unknown"].get("gpus", "it shows no GPU"))]
    looks, cost = seen["observer"]["looks"], seen["observer"]["cpu_s"]
    said = f"of GPUs that ranks hold: {', '.join(sorted(found)) or 'free'}"
    lines = [
        Line(RIGHT if "gpu_busy" in found else WRONG, "preflight", said),
        Line(
            RIGHT if looks > 1 else WRONG,
            "watching",
            f"{looks} looks, {cost / max(looks, 1) * 1000:.2f} ms of CPU each",
        ),
    ]
    for gpu in seen["gpus"]:
        who, samples, energy = f"GPU {gpu['index']}", gpu["samples"], gpu["deltas"].get("energy_mj")
        last = {name: values[-1] for name, values in samples.items() if values and name != "t"}
        missed = [name for name in ("sm_mhz", "temp_c", "power_w", "reasons") if last.get(name) is None]
        told = ", ".join(f"{name} {value}" for name, value in last.items() if value is not None)
        lines.append(
            Line(WRONG if missed else RIGHT, f"{who}: figures", f"not read: {', '.join(missed)}" if missed else told)
        )
        grown = OPEN if energy is None else RIGHT if energy > 0 else WRONG
        lines.append(Line(grown, f"{who}: energy", "not told" if energy is None else f"{energy} mJ in the watch"))
        strangers = ", ".join(f"pid {one['pid']}" for one in gpu["strangers"])
        lines.append(Line(WRONG if strangers else RIGHT, f"{who}: strangers", strangers or "none beside the ranks"))
        lines += [Line(OPEN, f"{who}: {name}", why) for name, why in gpu["unknown"].items()]
    return lines


def in_nanoseconds(library: Library, gpu: Gpu) -> Line:
    """Field 74 has no unit in NVML's header; the violation status, documented in nanoseconds, counts the same thing."""
    from sglang_ext.bench.machine import questions

    what, power = f"GPU {gpu.number}: unit of times", questions.TIMES[0]
    field = library.fields(gpu.handle, [power.field])[power.field]
    try:
        status = library.ask((questions.VIOLATION,), gpu.handle, power.policy).violationTime
    except questions.Unreadable as why:
        return Line(OPEN, what, str(why))
    if not isinstance(field, int) or 0 in (field, status):
        return Line(OPEN, what, f"nothing to compare: field {field}, status {status}")
    good = abs(field - status) <= 0.01 * status
    return Line(RIGHT if good else WRONG, what, f"field {field}, violation status {status} ns")


def table(lines: Sequence[Line], ranks: int, gpus: int, version: tuple[int, ...]) -> str:
    """The report for people."""
    wide = max(len(line.what) for line in lines)
    head = f"NCCL {'.'.join(map(str, version))}, {ranks} rank{'s' * (ranks != 1)}, {gpus} GPU{'s' * (gpus != 1)}"
    counts = {verdict: sum(1 for line in lines if line.verdict == verdict) for verdict in (RIGHT, WRONG, OPEN)}
    rows = [f"  {line.verdict:5}  {line.what:{wide}}  {line.seen}" for line in lines]
    return "\n".join([head, *rows, ", ".join(f"{count} {verdict}" for verdict, count in counts.items())])


if __name__ == "__main__":
    sys.exit(main())
