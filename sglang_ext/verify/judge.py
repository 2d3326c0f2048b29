"""What may be concluded about one variable of one worker. Pure: readings in, verdict out.

Now = live, or the worker's own answer where live cannot be had. PASS needs a reading taken now that equals the contract,
and no witness against it. What a process was started with, what it attested earlier, and what NCCL logged when it started,
is history: it can explain, cast doubt or contradict, never pass. Values are compared as whoever reads them does: to NCCL
`ring` and `Ring` are one algorithm, and `SYS` and `sys` are not one level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sglang_ext.contract.names import shown
from sglang_ext.contract.rules import EVER_SET
from sglang_ext.quick import NamedTuple
from sglang_ext.verify.witnesses import Reading

PASS, FAIL, UNKNOWN = "PASS", "FAIL", "UNKNOWN"
NOT_HEARD = Reading("unavailable")

# same(one, other): do two values of the variable at hand mean the same to whoever reads it? None is absence.
Same = Callable[[str | None, str | None], bool]


def literally(one: str | None, other: str | None) -> bool:
    """Values that nobody is known to interpret are the same where their text is."""
    return one == other


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


def judge(
    name: str, want: str | None, readings: Mapping[str, Reading], history: History = History(), same: Same = literally
) -> Judgement:
    """The verdict on one variable. ``readings`` maps witness to reading."""
    live, attested = readings.get("live", NOT_HEARD), readings.get("attested", NOT_HEARD)
    now = [reading for reading in (live, attested) if reading.says]
    if not now:
        why = (live.detail or attested.detail).rstrip(".")
        return Judgement(
            UNKNOWN, "not_seen", f"nothing could be read now ({why})" if why else "nothing could be read now"
        )
    wrong = next((reading for reading in now if not same(want, reading.value)), None)
    if wrong is not None:
        return _wrong(name, want, wrong, readings, history, same)
    effective = readings.get("effective", NOT_HEARD)
    if effective.says and not same(want, effective.value):
        said = "no line of it" if effective.value is None else shown(effective.value)
        return Judgement(
            FAIL, "not_in_effect", f"found {said} in NCCL's own log; {shown(now[0].value)} in the worker now"
        )
    return _right(want, now[0], readings.get("exec", NOT_HEARD), history, same)


def _wrong(
    name: str, want: str | None, now: Reading, readings: Mapping[str, Reading], history: History, same: Same
) -> Judgement:
    found = shown(now.value)
    if history.entered is not None and (same(want, history.entered.value) or history.repaired):
        return Judgement(FAIL, "changed_in_process", f"found {found}; it was right at the worker's first line")
    started = readings.get("exec", NOT_HEARD)
    if started.says and same(want, started.value):
        return Judgement(FAIL, "changed_in_process", f"found {found}; the worker was started with the wanted value")
    if now.value is None:
        return Judgement(FAIL, "missing", "found none")
    if EVER_SET.get(name) == now.value:
        return Judgement(FAIL, "overwritten", f"found {found}, which stock SGLang sets in every launch")
    if history.main is not None and history.main.says and want is not None and same(want, history.main.value):
        return Judgement(FAIL, "overwritten", f"found {found}; the server was started with the wanted value")
    if want is None:
        return Judgement(FAIL, "unwanted", f"found {found}")
    if len(now.value) > 1 and now.value[0] == now.value[-1] and now.value[0] in "\"'" and same(want, now.value[1:-1]):
        return Judgement(FAIL, "quoted", f"found {now.value} with the quotes in it")
    return Judgement(FAIL, "different", f"found {found}")


def _right(want: str | None, now: Reading, started: Reading, history: History, same: Same) -> Judgement:
    late_start = started if started.says and not same(want, started.value) else None
    if history.entered is not None and not same(want, history.entered.value):
        if history.repaired:
            found = shown(history.entered.value)
            return Judgement(PASS, "repaired", f"came as {found}, set right before anybody read it")
        late_start = late_start or history.entered
    if late_start is not None and history.repaired:
        return Judgement(PASS, "repaired", f"came as {shown(late_start.value)}, set right before anybody read it")
    if late_start is not None:
        return Judgement(UNKNOWN, "maybe_too_late", f"started with {shown(late_start.value)}, right only since then")
    if now.value != want:
        return Judgement(PASS, "same_meaning", f"found {shown(now.value)}, which NCCL takes for the same")
    return Judgement(PASS)


def worst(verdicts: list[str]) -> str:
    """FAIL over UNKNOWN over PASS; nothing judged is UNKNOWN."""
    return next((v for v in (FAIL, UNKNOWN) if v in verdicts), PASS if verdicts else UNKNOWN)
