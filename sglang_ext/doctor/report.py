"""The report: `sglang-ext/doctor/1` for programs, a table for people, and the exit status both carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_ext.doctor.checks import Check
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import FAIL, GRAVITY, UNKNOWN, WARN, Result

SCHEMA = "sglang-ext/doctor/1"
LONGEST = 12  # lines below one row of the table
COLOURS = {"ok": "32", "note": "36", "warn": "33", "fail": "31", "unknown": "33"}


def status_of(results: Sequence[tuple[Check, Result]]) -> int:
    """1: something fails. 3: something that matters is not known. 0 otherwise; a warning does not change it."""
    if any(result.state == FAIL for _, result in results):
        return 1
    return 3 if any(result.state == UNKNOWN and check.decides for check, result in results) else 0


def report(results: Sequence[tuple[Check, Result]], here: Here) -> dict[str, Any]:
    """The report as data; docs/doctor.md describes it."""
    states = [result.state for _, result in results]
    return {
        "schema": SCHEMA,
        "exit": status_of(results),
        "state": next(state for state in GRAVITY if state in states),
        "counts": {state: states.count(state) for state in GRAVITY},
        "python": {"executable": here.executable, "version": "{}.{}".format(*here.version)},
        "checks": [
            {
                "check": check.name,
                "state": result.state,
                "decides": check.decides,
                "message": result.message,
                "fix": result.fix or None,
                "seen": list(result.seen),
            }
            for check, result in results
        ],
    }


def paint(text: str, state: str, colour: bool) -> str:
    return f"\033[{COLOURS[state]}m{text}\033[0m" if colour else text


def render(found: dict[str, Any], *, colour: bool = False, everything: bool = False) -> str:
    """The table: a row a result, its fix below where it is none to pass over; ``everything``: what each rests on, too."""
    width = max(len(one["check"]) for one in found["checks"])
    out = []
    for one in found["checks"]:
        state = one["state"]
        out.append(f"{one['check']:<{width}}  {paint(f'{state:<7}', state, colour)}  {one['message']}")
        if everything or state in (FAIL, UNKNOWN, WARN):
            lines = (
                one["seen"] if len(one["seen"]) <= LONGEST else [*one["seen"][:LONGEST], "... (--json has them all)"]
            )
            out += [f"{'':<{width}}           {line}" for line in lines]
        if one["fix"]:
            out.append(f"{'':<{width}}  fix:     {one['fix']}")
    counts = ", ".join(f"{number} {state}" for state, number in found["counts"].items() if number)
    verdict = {
        0: "nothing stands in the way of a launch",
        1: "a launch would fail or prove nothing",
        3: "something could not be seen",
    }
    out += ["", f"{paint(found['state'], found['state'], colour)}: {verdict[found['exit']]} ({counts})"]
    return "\n".join(out)
