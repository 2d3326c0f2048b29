"""What may be concluded about one variable of one worker. Pure: readings in, verdict out.

Now = live, or the worker's own answer where live cannot be had. PASS needs a reading taken now that equals the contract,
and no witness against it. What a process was started with, and what it attested earlier, is history: it can explain or
cast doubt, never pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sglang_ext.contract.names import shown
from sglang_ext.contract.rules import ALWAYS_SET
from sglang_ext.verify.witnesses import Reading

PASS, FAIL, UNKNOWN = "PASS", "FAIL", "UNKNOWN"
NOT_HEARD = Reading("unavailable")


class History(NamedTuple):
    """What is known about earlier: each None when nobody tells."""

    entered: Reading | None = None  # what the worker found at its first line
    repaired: bool = False  # ... and set right then, before a communicator existed
    main: Reading | None = None  # what the server's main process was started with


class Judgement(NamedTuple):
    """``reason`` is a code of `reasons.TABLE`; ``message`` one clause: found, and who did it where that is known."""

    verdict: str
    reason: str | None = None
    message: str = ""


def judge(name: str, want: str | None, readings: Mapping[str, Reading], history: History = History()) -> Judgement:
    """The verdict on one variable. ``readings`` maps witness to reading."""
    live, attested = readings.get("live", NOT_HEARD), readings.get("attested", NOT_HEARD)
    now = [reading for reading in (live, attested) if reading.says]
    if not now:
        why = (live.detail or attested.detail).rstrip(".")
        return Judgement(
            UNKNOWN, "not_seen", f"nothing could be read now ({why})" if why else "nothing could be read now"
        )
    wrong = next((reading for reading in now if reading.value != want), None)
    if wrong is not None:
        return _wrong(name, want, wrong, readings, history)
    return _right(want, readings.get("exec", NOT_HEARD), history)


def _wrong(name: str, want: str | None, now: Reading, readings: Mapping[str, Reading], history: History) -> Judgement:
    found = shown(now.value)
    if history.entered is not None and (history.entered.value == want or history.repaired):
        return Judgement(FAIL, "changed_in_process", f"found {found}; it was right at the worker's first line")
    started = readings.get("exec", NOT_HEARD)
    if started.says and started.value == want:
        return Judgement(FAIL, "changed_in_process", f"found {found}; the worker was started with the wanted value")
    if now.value is None:
        return Judgement(FAIL, "missing", "found none")
    if ALWAYS_SET.get(name) == now.value:
        return Judgement(FAIL, "overwritten", f"found {found}, which stock SGLang sets in every launch")
    if history.main is not None and history.main.says and history.main.value == want and want is not None:
        return Judgement(FAIL, "overwritten", f"found {found}; the server was started with the wanted value")
    if want is None:
        return Judgement(FAIL, "unwanted", f"found {found}")
    return Judgement(FAIL, "different", f"found {found}")


def _right(want: str | None, started: Reading, history: History) -> Judgement:
    late_start = started if started.says and started.value != want else None
    if history.entered is not None and history.entered.value != want:
        if history.repaired:
            found = shown(history.entered.value)
            return Judgement(PASS, "repaired", f"came as {found}, set right before anybody read it")
        late_start = late_start or history.entered
    if late_start is None:
        return Judgement(PASS)
    if history.repaired:
        return Judgement(PASS, "repaired", f"came as {shown(late_start.value)}, set right before anybody read it")
    return Judgement(UNKNOWN, "maybe_too_late", f"started with {shown(late_start.value)}, right only since then")


def worst(verdicts: list[str]) -> str:
    """FAIL over UNKNOWN over PASS; nothing judged is UNKNOWN."""
    return next((v for v in (FAIL, UNKNOWN) if v in verdicts), PASS if verdicts else UNKNOWN)
