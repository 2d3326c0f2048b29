"""What a reason code is made of."""

from __future__ import annotations

from sglang_ext.quick import NamedTuple

FAIL, UNKNOWN, NOTE = "fail", "unknown", "note"


class Reason(NamedTuple):
    """One code. ``exit`` is the status of a launch that is refused for it, where it can refuse one."""

    severity: str
    meaning: str
    fix: str
    exit: int = 1
