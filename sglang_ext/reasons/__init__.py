"""Every reason code, once: how grave it is, what it means, what to do. docs/reasons.md is generated from this table.

Codes are stable: users script against them. `severity` is what it does to a verdict; refusals of a launch are "fail".
`consequence` and `exit_of` say what comes of one. One module for each thing that can go wrong. `TABLE`, all of them in the
order of the page, is made when it is first asked for: a verification that finds nothing wrong needs none of it, and would spend
3 ms on it.
"""

from __future__ import annotations

from sglang_ext.quick import TYPE_CHECKING
from sglang_ext.reasons.model import FAIL, NOTE, UNKNOWN, Reason, consequence, exit_of

if TYPE_CHECKING:
    TABLE: dict[str, Reason]

__all__ = ["FAIL", "NOTE", "TABLE", "UNKNOWN", "Reason", "consequence", "exit_of", "severity"]


def __getattr__(name: str) -> dict[str, Reason]:
    if name != "TABLE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sglang_ext.reasons import (
        bench,
        command_line,
        comparison,
        launch,
        nccl_values,
        patches,
        servers,
        variables,
        wheel,
    )

    parts = (variables, nccl_values, servers, command_line, launch, patches, bench, wheel, comparison)
    table = globals()["TABLE"] = {code: reason for part in parts for code, reason in part.ROWS.items()}
    return table


def severity(code: str) -> str:
    """``fail``, ``unknown`` or ``note``."""
    table: dict[str, Reason] = globals().get("TABLE") or __getattr__("TABLE")
    return table[code].severity
