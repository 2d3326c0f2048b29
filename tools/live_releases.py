"""Run supported releases of SGLang for real, stock and patched, on the CPU rig, and write what came of it.

    python tools/live_releases.py 0.5.9 0.5.15 --wheels FOLDER      # these
    python tools/live_releases.py                                   # all of the lock, oldest first

Each needs about a minute, and a Python that has the newest release installed. One at a time: two servers starve each other.
`docs/releases-live.md` keeps the rows of releases that were not run this time.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.tiny_models import make  # noqa: E402

# By name: types are checked in tools/, and not in what only the environment of the tests has.
rig = import_module("tests.rig.releases")

PAGE = ROOT / "docs" / "releases-live.md"
RIG = ROOT / ".rig"
HEAD = f"""# Releases of SGLang that ran

Written by `tools/live_releases.py`: each release's own wheel, from its hash in the lock, started on the CPU rig with two
tensor-parallel ranks and a tiny DeepSeek; first stock, with the contract in its shell, then by the launcher.

*stock*: the verdict of `verify-env` on the stock server. FAIL is right: every release overwrites
CUDA_DEVICE_MAX_CONNECTIONS. *patched*: the same contract ({len(rig.CONTRACT)} variables) by the launcher.
*tokens*: are the greedy answers ({len(rig.PROMPTS)} prompts, {rig.TOKENS} tokens each) equal. *private*: does what the server
publishes of its arguments hold nothing of ours. *seconds*: both servers, from the start of the first to the end of the second.

The releases run on the newest one's libraries (torch, transformers, ...), not on those they ask for. What had to be
adapted for that is in `tests/rig/older/`.

| sglang | stock | patched | tokens | private | seconds | run on | remark |
|---|---|---|---|---|---|---|---|
"""


def row(found: Any, today: str) -> str:
    """One line of the table."""
    said = {True: "equal", False: "**differ**", None: "-"}[found.equal]
    private = {True: "yes", False: "**no**", None: "-"}[found.private]
    why = " ".join(found.why.split())[-160:].replace("|", "/")
    cells = (found.version, found.stock or "-", found.patched or "-", said, private, f"{found.seconds:.0f}", today, why)
    return "| " + " | ".join(cells) + " |"


def rows(page: str) -> dict[str, str]:
    """The rows of a page by release."""
    lines = [line for line in page.splitlines() if line.startswith("| 0.")]
    return {line.split("|")[1].strip(): line for line in lines}


def page(known: Mapping[str, str]) -> str:
    """The page with these rows, newest release first, and the names of those that have none."""
    newest_first = list(reversed(rig.supported()))
    table = "".join(known[version] + "\n" for version in newest_first if version in known)
    missing = ", ".join(version for version in newest_first if version not in known)
    return HEAD + table + (f"\nNot run by this tool yet: {missing}.\n" if missing else "")


def note(found: Any) -> None:
    """Put one row in its place on the page."""
    known = rows(PAGE.read_text()) if PAGE.exists() else {}
    known[found.version] = row(found, datetime.datetime.now(datetime.UTC).date().isoformat())
    PAGE.write_text(page(known))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run releases of SGLang, stock and patched, on the CPU rig.")
    parser.add_argument("versions", nargs="*", metavar="RELEASE", help="default: all of the lock")
    parser.add_argument("--wheels", type=Path, action="append", default=[], help="a folder to look for wheels in")
    parser.add_argument(
        "--logs", type=Path, default=RIG / "logs", help="where the servers' logs go (default: .rig/logs)"
    )
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a timeout ends the servers as well
    options.logs.mkdir(parents=True, exist_ok=True)
    model = make(RIG / "models")["deepseek"]
    bad = 0
    for version in options.versions or rig.supported():
        found = rig.trial(rig.prepare(version, RIG / "releases", options.wheels), model, options.logs)
        note(found)
        print(row(found, ""), flush=True)
        bad += (found.stock, found.patched, found.equal, found.private) != ("FAIL", "PASS", True, True)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
