"""Run every micro-benchmark and write RESULTS.md: `python -m benchmarks.micro [--no-servers]`."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.micro import (
    baked_wheel,
    client_cost,
    live_reader,
    overlay_lookup,
    startup_tax,
    stock_vs_patched,
    verify_cli,
)


def machine() -> str:
    """What the figures were taken on: nothing that names the machine."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine()
        )
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(file.readline().split()[1]) / 2**20
    try:
        sglang = version("sglang")
    except PackageNotFoundError:
        sglang = "not installed"
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, sglang {sglang}; a shared machine: compare ratios, not times"
    )


def apart(module: str) -> list[str]:
    """A table made in a process of its own: a child's peak memory starts at its parent's, and we have grown by then."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.micro.{module}"], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument(
        "--no-servers", action="store_true", help="leave out stock_vs_patched, which takes a quarter of an hour"
    )
    options = parser.parse_args()
    parts = [
        "# Results",
        "",
        "Written by `make bench`. " + machine() + ".",
    ]
    tables: tuple[tuple[str, Callable[[], list[str]]], ...] = (
        ("Start-up tax of the hook", startup_tax.table),
        ("Live reader", live_reader.table),
        ("verify-env as a whole process", verify_cli.table),
        ("verify-env among a thousand processes", lambda: apart("thousand_processes")),
        ("Overlay", overlay_lookup.table),
        ("Baked wheel", baked_wheel.table),
        ("The client of the bench", client_cost.table),
        ("Stock and patched SGLang", stock_vs_patched.table),
    )
    for title, table in tables:
        if options.no_servers and table is stock_vs_patched.table:
            parts += ["", f"## {title}", "", "Not run."]
            continue
        print(f"running: {title} ...", file=sys.stderr, flush=True)
        parts += ["", f"## {title}", "", *table()]
    text = "\n".join(parts) + "\n"
    print(text)
    Path(__file__).with_name("RESULTS.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
