"""The overlay: making it once, and what a process pays to find it again, hashes checked.

Measured in fresh interpreters, for the sglang installed here: `prepare` cold (nothing there yet: patch, compile, write) and warm.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

ONCE = """
import os, sys, time
began = time.perf_counter()
from sglang_ext.patchset.overlay import prepare
imported = time.perf_counter()
prepare(sys.argv[1], cache=sys.argv[2])
print((imported - began) * 1e3, (time.perf_counter() - imported) * 1e3)
"""


def once(root: str, cache: str) -> tuple[float, float]:
    """Milliseconds of the import and of `prepare` in a fresh interpreter."""
    out = subprocess.check_output([sys.executable, "-c", ONCE, root, cache], text=True)
    imported, prepared = out.split()
    return float(imported), float(prepared)


def table(runs: int = 15) -> list[str]:
    """The result as Markdown lines."""
    spec = PathFinder.find_spec("sglang")
    if spec is None or spec.origin is None:
        return ["sglang is not installed here."]
    root = os.path.dirname(os.path.dirname(spec.origin))
    cold, warm, imports = [], [], []
    with tempfile.TemporaryDirectory() as name:
        for run in range(runs):
            cache = str(Path(name) / str(run))
            cold.append(once(root, cache)[1])
            imported, found = once(root, cache)
            imports.append(imported)
            warm.append(found)
    return [
        "| step | median ms | min | max |",
        "|---|---|---|---|",
        *(
            f"| {label} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |"
            for label, values in (("import", imports), ("prepare, cold", cold), ("prepare, warm", warm))
        ),
    ]


if __name__ == "__main__":
    print("\n".join(table()))
