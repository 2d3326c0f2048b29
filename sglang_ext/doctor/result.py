"""What a check says: how grave it is, one sentence, the fix, and what it looked at."""

from __future__ import annotations

from typing import NamedTuple

OK, NOTE, WARN, FAIL, UNKNOWN = "ok", "note", "warn", "fail", "unknown"
GRAVITY = (FAIL, UNKNOWN, WARN, NOTE, OK)  # worst first


class Result(NamedTuple):
    """``message``: what, expected, found. ``seen``: what it rests on, in order, a line each."""

    state: str
    message: str
    fix: str = ""
    seen: tuple[str, ...] = ()


def from_sentence(state: str, sentence: str) -> Result:
    """From a refusal elsewhere in the package, where the fix is the last clause of the sentence."""
    message, _, fix = sentence.rpartition("; ")
    return Result(state, message, fix) if message else Result(state, sentence)


def listed(names: list[str] | tuple[str, ...], most: int = 5) -> str:
    """`a, b, c and 4 more`: sentences stay sentences."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
