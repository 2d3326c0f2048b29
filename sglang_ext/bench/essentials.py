"""What a number keeps of the verify reports it was taken between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def essentials(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a verify report comes to: who was judged how, and every problem. The full one is verify-env --json's."""
    workers = [
        {key: worker[key] for key in ("label", "role", "pid", "start_time", "counts", "verdict", "hook", "extras")}
        for worker in report["workers"]
    ]
    problems = [{k: p[k] for k in ("code", "severity", "worker", "variable", "message")} for p in report["problems"]]
    keys = ("schema", "verdict", "host", "time", "run", "main", "contract", "expected", "require")
    return {**{key: report[key] for key in keys}, "workers": workers, "problems": problems}
