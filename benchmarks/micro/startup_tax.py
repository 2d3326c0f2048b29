"""What the `.pth` line adds to every start of Python.

Two views: inside `site.addpackage`, where only the line is timed (each figure from fresh interpreters), and the whole start,
where a bare interpreter and one that reads the line alternate. `noop` is the least any `.pth` import line costs.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSIDE = """
import site, sys, time
folder, name = sys.argv[1:]
began = time.perf_counter()
site.addpackage(folder, name, None)
print((time.perf_counter() - began) * 1e6)
"""


def inside(folder: Path, name: str, runs: int) -> float:
    """Median microseconds of `site.addpackage` for one `.pth` file."""
    command = [sys.executable, "-I", "-S", "-c", INSIDE, str(folder), name]
    return statistics.median(float(subprocess.check_output(command)) for _ in range(runs))


def whole(runs: int) -> tuple[float, float, float]:
    """Milliseconds of a whole start without and with the line (medians), and the median of the paired differences."""
    with tempfile.TemporaryDirectory() as name:
        pythons = []
        for label in ("bare", "hooked"):
            venv = Path(name) / label
            subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", str(venv)])
            if label == "hooked":
                shutil.copy(ROOT / "sglang_ext.pth", next((venv / "lib").glob("python3*/site-packages")))
            pythons.append(str(venv / "bin" / "python"))
        times: list[tuple[float, float]] = []
        for round_ in range(runs + 3):
            pair = [0.0, 0.0]
            for index in (0, 1) if round_ % 2 else (1, 0):
                began = time.perf_counter()
                subprocess.check_call([pythons[index], "-c", "pass"])
                pair[index] = (time.perf_counter() - began) * 1e3
            times.append((pair[0], pair[1]))
        times = times[3:]  # the first ones fill caches
    bare, hooked = (statistics.median(column) for column in zip(*times, strict=True))
    return bare, hooked, statistics.median(b - a for a, b in times)


def table(runs: int = 60) -> list[str]:
    """The result as Markdown lines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.pth").write_text("")
        (folder / "noop.pth").write_text("import sys\n")
        shutil.copy(ROOT / "sglang_ext.pth", folder / "ours.pth")
        inner = {label: inside(folder, f"{label}.pth", runs) for label in ("empty", "noop", "ours")}
    bare, hooked, difference = whole(runs)
    return [
        "| inside site.addpackage | median us | ratio to no-op |",
        "|---|---|---|",
        *(f"| {label} | {value:.0f} | {value / inner['noop']:.2f} |" for label, value in inner.items()),
        "",
        "| whole `python -c pass` | median ms | ratio |",
        "|---|---|---|",
        f"| bare | {bare:.2f} | 1.00 |",
        f"| with the line | {hooked:.2f} | {hooked / bare:.3f} |",
        "",
        f"Median of the paired differences: {difference * 1e3:.0f} us ({runs} pairs).",
    ]


if __name__ == "__main__":
    print("\n".join(table()))
