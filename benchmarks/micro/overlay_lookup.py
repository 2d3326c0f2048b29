"""The overlay: what patching costs, and what a process pays to find the copies again.

In one process, everything loaded and the files in the page cache: parsing and applying the three patches; a whole look (`prepare`
without a record: hashes of stock and of copies); the look that a record spares; and beside them the least that any whole look
costs, reading and hashing the six files. Then the same looks in fresh interpreters, where the first use of each module counts.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

from sglang_ext.patchset import overlay, seen
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.series import load_patch_set

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


def timed(call: Callable[[], object], runs: int) -> list[float]:
    """Milliseconds of each of ``runs`` calls, after some that do not count."""
    for _ in range(5):
        call()
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def inside(root: str, cache: str, runs: int) -> list[tuple[str, list[float]]]:
    """Everything that is measured in this process; the first row is what the others are compared with."""
    patches = overlay.patches_folder()
    prepared = overlay.prepare(root, cache=cache)
    if prepared.mode != "overlay":
        raise SystemExit(f"expected a stock sglang, found one that is {prepared.mode}; measure it elsewhere")
    files = [os.path.join(root, target) for target in prepared.files] + list(prepared.files.values())
    stock = {target: Path(root, target).read_bytes() for target in prepared.files}
    names = load_lock(os.path.join(patches, "upstream.toml")).get(prepared.release).patches
    patch_set = load_patch_set(patches, names)
    time.sleep(seen.SETTLED / 1e9 + 0.2)
    overlay.prepare(root, cache=cache)  # leaves the record, now that the copies have been there for a while
    if not os.path.isdir(os.path.join(cache, "seen")):
        raise SystemExit("no record was left, so a warm lookup cannot be measured: were packages changed just now?")

    def read_and_hash() -> None:
        for file in files:
            with open(file, "rb") as handle:
                hashlib.sha256(handle.read()).hexdigest()

    return [
        ("reading and hashing the six files", timed(read_and_hash, runs)),
        ("warm lookup, by the record", timed(lambda: overlay.prepare(root, cache=cache), runs)),
        ("warm lookup, a whole look", timed(lambda: overlay._prepare(root, patches, cache), runs)),
        ("parsing the three patches", timed(lambda: load_patch_set(patches, names), runs)),
        ("applying them", timed(lambda: patch_set.apply_all(stock.__getitem__), runs)),
    ]


def fresh(root: str, cache: str, scratch: Path, runs: int) -> list[tuple[str, list[float]]]:
    """The looks in interpreters that have done nothing else; ``cache`` has a record."""
    imports, warm, whole, cold = [], [], [], []
    for run in range(runs):
        imported, found = once(root, cache)
        imports.append(imported)
        warm.append(found)
        place = str(scratch / str(run))
        cold.append(once(root, place)[1])
        whole.append(once(root, place)[1])  # the copies are too young for a record
    return [
        ("import of the module", imports),
        ("lookup by the record", warm),
        ("lookup, a whole look", whole),
        ("no copies yet: patch, compile, write", cold),
    ]


def rows(found: list[tuple[str, list[float]]], base: float | None = None) -> list[str]:
    """Table rows; with a ratio where there is something to compare with."""
    out = []
    for label, values in found:
        ratio = "" if base is None else f" {statistics.median(values) / base:.2f} |"
        out.append(f"| {label} | {statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f} |{ratio}")
    return out


def table(runs: int = 200) -> list[str]:
    """The result as Markdown lines."""
    spec = PathFinder.find_spec("sglang")
    if spec is None or spec.origin is None:
        return ["sglang is not installed here."]
    root = os.path.dirname(os.path.dirname(spec.origin))
    with tempfile.TemporaryDirectory() as name:
        cache = os.path.join(name, "cache")
        here = inside(root, cache, runs)
        apart = fresh(root, cache, Path(name), max(runs // 13, 5))
    return [
        f"In one process, {runs} calls each:",
        "",
        "| step | median ms | min | max | ratio |",
        "|---|---|---|---|---|",
        *rows(here, statistics.median(here[0][1])),
        "",
        f"In fresh interpreters, {len(apart[0][1])} each:",
        "",
        "| step | median ms | min | max |",
        "|---|---|---|---|",
        *rows(apart),
    ]


if __name__ == "__main__":
    print("\n".join(table()))
