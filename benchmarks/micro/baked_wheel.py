"""`sglang-ext build-wheel` from a wheel at hand, against taking it apart and packing it again with the `wheel` tool.

Whole processes, in turns: ours once, then `wheel unpack` and `wheel pack` (which patch nothing). The newest release's wheel
for this Python comes from the store of the tests, or through pip; `wheel` goes into a scratch environment.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.rig.releases import find_wheel, supported

ROOT = Path(__file__).resolve().parents[2]


def seconds(*words: str | Path) -> float:
    """How long a command takes from start to end, without its output."""
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - began


def copied(source: Path, target: Path) -> float:
    """How long reading the file and writing it again takes: no builder can be below it."""
    began = time.perf_counter()
    target.write_bytes(source.read_bytes())
    return time.perf_counter() - began


def table(runs: int = 5, wheels: Sequence[Path] = ()) -> list[str]:
    """The result as Markdown lines; the wheel is looked for in the folders `wheels` first."""
    version = supported()[-1]
    source = find_wheel(version, wheels)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        venv.create(scratch / "venv", with_pip=True)
        python = scratch / "venv" / "bin" / "python"
        seconds(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "wheel")
        bake = (sys.executable, "-m", "sglang_ext", "build-wheel", "--from", source, "--out")
        tool = (python, "-m", "wheel")
        ours: list[float] = []
        unpacked: list[float] = []
        packed: list[float] = []
        plain: list[float] = []
        for run in range(runs + 1):
            place = scratch / str(run)
            place.mkdir()
            timed = (
                seconds(*bake, place / "ours"),
                seconds(*tool, "unpack", source, "--dest", place),
                seconds(*tool, "pack", place / f"sglang-{version}", "--dest-dir", place),
                copied(source, place / "copy"),
            )
            subprocess.run(("rm", "-rf", place), check=True)
            if run:  # the first one warms the page cache
                for values, value in zip((ours, unpacked, packed, plain), timed, strict=True):
                    values.append(value)
    theirs = [one + other for one, other in zip(unpacked, packed, strict=True)]
    base = statistics.median(ours)
    rows = (
        ("sglang-ext build-wheel --from", ours),
        ("wheel unpack + wheel pack", theirs),
        ("of that, wheel unpack", unpacked),
        ("reading and writing the file", plain),
    )
    return [
        f"{source.name}, {os.path.getsize(source) / 1e6:.0f} MB; {runs} runs in turns.",
        "",
        "| command | median s | min | max | ratio to ours |",
        "|---|---|---|---|---|",
        *(
            f"| {label} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} "
            f"| {statistics.median(values) / base:.2f} |"
            for label, values in rows
        ),
    ]


if __name__ == "__main__":
    print("\n".join(table(wheels=[Path(folder) for folder in sys.argv[1:]])))
