"""`sglang-ext doctor`: look, tell, and nothing else. It removes nothing and signals nobody."""

from __future__ import annotations

import json
import sys

from sglang_ext.doctor import checks, here
from sglang_ext.doctor.report import render, report

STDOUT = "-"


def run(where: str | None, *, everything: bool = False) -> int:
    """Examine this environment. ``where``: a file for the report as JSON, "-" for stdout instead of the table.

    Returns the exit status. Raises OSError where the file cannot be written.
    """
    now = here.here()
    found = report(checks.examine(now), now)
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if where == STDOUT:
        sys.stdout.write(text)
        return int(found["exit"])
    if where is not None:
        with open(where, "w", encoding="utf-8") as file:
            file.write(text)
    print(render(found, colour=sys.stdout.isatty(), everything=everything))
    return int(found["exit"])
