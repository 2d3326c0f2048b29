"""What a look at NCCL's variables brings to light, and how a value is put into a sentence."""

from __future__ import annotations

from sglang_ext.hide import HIDDEN, holds_credentials
from sglang_ext.quick import NamedTuple

FAIL, UNKNOWN, NOTE = "fail", "unknown", "note"
LONGEST_SHOWN = 120


class Finding(NamedTuple):
    """``code`` has a row in `sglang_ext.reasons`; ``message`` is one sentence: variable, expected, found, fix.

    The severity is here too, as one code can be grave in one place and harmless in another: a dead name is a
    note in a shell and a failure in a contract that demands it.
    """

    code: str
    severity: str
    variable: str | None
    message: str


def shown(text: str) -> str:
    """A value for a sentence: quoted where blanks or invisible characters would be missed, cut where it is long."""
    if holds_credentials(text):
        return HIDDEN
    if len(text) > LONGEST_SHOWN:
        text = text[:LONGEST_SHOWN] + "..."
    plain = text.isprintable() and text != "" and not any(ch.isspace() or ch in "\"'" for ch in text)
    return text if plain else repr(text)


def library(version: tuple[int, ...] | None) -> str:
    """The library as the subject of a sentence; without a version it is the newest whose rules are known."""
    return "NCCL" if version is None else "NCCL " + ".".join(map(str, version))


def misfit(code: str, name: str, expected: str, text: str, becomes: str, fix: str) -> Finding:
    """A finding about one value. ``becomes`` continues "found 4M, " and ``fix`` is what to write instead."""
    severity = NOTE if code == "value_unclear" else FAIL
    return Finding(code, severity, name, f"{name}: expected {expected}, found {shown(text)}, {becomes}; {fix}")
