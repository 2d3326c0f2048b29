"""tools/gpu_check.py without a GPU: what it concludes from readings, and that it says so when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.nccl.library import LibraryFile, Loaded
from sglang_ext.nccl.log import parse
from sglang_ext.verify.live import LiveEnviron
from tools import gpu_check
from tools.gpu_check import GIVEN, OPEN, RIGHT, WRONG, NoGpu, judge, usable

PID = 41
NEW = (2, 27, 7)


def log(ranks: int = 2, **changed: str | None) -> str:
    """What NCCL 2.27.7 writes for rank 0 when it takes GIVEN; ``changed`` is printed instead, None not at all."""
    say = "n:41:41 [0] NCCL INFO "
    lines = [
        say + f"c comm 0x1 rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init COMPLETE",
        say + "AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}",
    ]
    alone = {"NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_LEVEL"} if ranks == 1 else set()
    for name, value in {**GIVEN, **changed}.items():
        if value is not None and name not in alone:
            dot = "." if value.isdigit() else ""
            lines.append(f"{say}{name} set by environment to {value}{dot}")
    return "\n".join(lines) + "\n"


def verdicts(
    text: str, ranks: int = 2, live: LiveEnviron | None = None, version: tuple[int, ...] = NEW, total: float = 3.0
) -> dict[str, str]:
    told: dict[str, Any] = {"pid": PID, "rank": 0, "low": total, "high": total, "nccl": list(NEW)}
    file = LibraryFile("/x/libnccl.so.2", 1, 1, 1, 1, "", version, "12.9")
    live = live or LiveEnviron("ok", dict(GIVEN), "")
    lines = judge(told, ranks, max(ranks, 1), live, Loaded("ok", (file,)), parse(text))
    return {line.what.removeprefix("rank 0: "): line.verdict for line in lines}


def test_all_is_right() -> None:
    found = verdicts(log())
    assert set(found.values()) == {RIGHT} and len(found) == len(GIVEN) + 6


def test_one_rank_leaves_open_what_nccl_does_not_read() -> None:
    found = verdicts(log(1), ranks=1, total=1.0)
    left = {name for name, verdict in found.items() if verdict == OPEN}
    assert left == {"NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_LEVEL"} and WRONG not in found.values()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (log(NCCL_BUFFSIZE="4"), {"NCCL_BUFFSIZE"}),
        (log(NCCL_PROTO=None), {"NCCL_PROTO"}),
        (log(NCCL_P2P_LEVEL="PXB"), {"NCCL_P2P_LEVEL"}),
        (log() + "n:41:41 [0] NCCL INFO torn", {"log"}),
        (log().replace("proto SIMPLE", "proto LL"), {"all-reduce"}),
        (log().replace("rank 0 nranks", "rank 1 nranks"), {"Init COMPLETE"}),
        ("", {"log", "Init COMPLETE", *GIVEN}),
    ],
)
def test_what_is_wrong_is_said(text: str, wrong: set[str]) -> None:
    assert {name for name, verdict in verdicts(text).items() if verdict == WRONG} == wrong


def test_the_other_witnesses() -> None:
    assert verdicts(log(), live=LiveEnviron("denied", {}, "no"))["live reader"] == WRONG
    assert verdicts(log(), live=LiveEnviron("ok", {**GIVEN, "NCCL_PROTO": "LL"}, ""))["live reader"] == WRONG
    assert verdicts(log(), version=(2, 28, 9))["mapped libnccl"] == WRONG
    assert verdicts(log(), total=2.0)["sum"] == WRONG


def test_no_gpu_is_one_sentence_and_status_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usable(True, 2, [2, 27, 7]) == (2, NEW)
    for built, gpus in ((False, 0), (True, 0)):
        with pytest.raises(NoGpu, match=r"expected .*, found .*; run it "):
            usable(built, gpus, [])

    def none() -> tuple[int, tuple[int, ...]]:
        return usable(True, 0, [])

    monkeypatch.setattr(gpu_check, "machine", none)
    assert gpu_check.main([]) == 3
    out = capsys.readouterr()
    assert out.out == "" and out.err.count("\n") == 1 and out.err.startswith("gpu_check: expected a visible NVIDIA GPU")


@pytest.mark.parametrize("torch", [False, pytest.param(True, marks=pytest.mark.e2e)])
def test_a_python_without_torch(tmp_path: Path, torch: bool) -> None:
    """And this Python, whose torch, where it has one, sees no GPU: it takes seconds to say so."""
    env = dict(os.environ)
    if not torch:
        (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
        env["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-S", gpu_check.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 3 and done.stdout == "" and "expected" in done.stderr and done.stderr.count("\n") == 1
    assert torch or "found: ModuleNotFoundError: No module named 'torch'" in done.stderr


def test_the_exit_status_and_the_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[int, int]] = []

    def check(ranks: int, gpus: int, version: tuple[int, ...]) -> list[gpu_check.Line]:
        asked.append((ranks, gpus))
        return [gpu_check.Line(RIGHT, "x", "y"), *([gpu_check.Line(WRONG, "z", "")] if gpus == 2 else [])]

    monkeypatch.setattr(gpu_check, "check", check)
    monkeypatch.setattr(gpu_check, "machine", lambda: (1, NEW))
    assert (
        gpu_check.main(["--ranks", "2", "--json"]) == 0
    )  # 2.27 cannot put two ranks on one GPU: said, and done with one
    report = json.loads(capsys.readouterr().out)
    assert report[0]["verdict"] == OPEN and "2.30.3" in report[0]["seen"] and asked == [(1, 1)]
    monkeypatch.setattr(gpu_check, "machine", lambda: (1, (2, 30, 7)))
    assert gpu_check.main(["--ranks", "2"]) == 0 and asked[-1] == (2, 1)
    monkeypatch.setattr(gpu_check, "machine", lambda: (2, NEW))
    assert gpu_check.main([]) == 1 and asked[-1] == (2, 2)
    assert "1 right, 1 wrong, 0 open" in capsys.readouterr().out


def test_a_rank_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "rank0.out").write_text("Traceback\nRuntimeError: Duplicate GPU detected\n")
    with subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(5)"], stdin=subprocess.PIPE) as child:
        child.wait()
        told, trouble = gpu_check.wait([child], tmp_path)
        gpu_check.end([child])
    assert told == [] and trouble == "rank 0 ended with 5: RuntimeError: Duplicate GPU detected"
