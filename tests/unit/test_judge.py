"""`judge`: every row of its table, and what must hold for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.reasons import TABLE
from sglang_ext.verify.judge import FAIL, PASS, UNKNOWN, History, judge, worst
from sglang_ext.verify.witnesses import Reading

ABSENT = Reading("absent")
DENIED = Reading("denied", None, "permission denied")
NOT_READ = Reading("not_read", None, "it did not answer within 1 s")
SILENT = Reading("unavailable")
CLOBBERED = Reading("clobbered", None, "overwritten by setproctitle")
GONE = Reading("gone", None, "the process has ended")


def is_(value: str) -> Reading:
    return Reading("value", value)


LL, RING, EIGHT, MANY = is_("LL"), is_("Ring"), is_("8"), is_("32")
PROTO, CONNECTIONS = "NCCL_PROTO", "CUDA_DEVICE_MAX_CONNECTIONS"

# (case, variable, want, exec, live, attested, history, verdict, reason, a part of the message)
# fmt: off
ROWS = [
    # PASS: now is right and nothing speaks against it.
    ("all agree", PROTO, "LL", LL, LL, LL, History(), PASS, None, ""),
    ("stock, intact exec", PROTO, "LL", LL, LL, SILENT, History(), PASS, None, ""),
    ("exec clobbered", PROTO, "LL", CLOBBERED, LL, SILENT, History(), PASS, None, ""),
    ("exec denied", PROTO, "LL", DENIED, LL, SILENT, History(), PASS, None, ""),
    ("live denied, worker answers", PROTO, "LL", CLOBBERED, DENIED, LL, History(), PASS, None, ""),
    ("entered right", PROTO, "LL", CLOBBERED, LL, LL, History(entered=LL), PASS, None, ""),
    ("absent as wanted", PROTO, None, ABSENT, ABSENT, ABSENT, History(entered=ABSENT), PASS, None, ""),
    ("absent, exec clobbered", PROTO, None, CLOBBERED, ABSENT, SILENT, History(), PASS, None, ""),
    ("empty is a value", PROTO, "", is_(""), is_(""), SILENT, History(), PASS, None, ""),
    ("main was started with another", PROTO, "LL", LL, LL, LL, History(main=RING), PASS, None, ""),
    # PASS with a note: it came wrong, and the seam attests that it was repaired first.
    ("repaired", PROTO, "LL", RING, LL, LL, History(entered=RING, repaired=True), PASS, "repaired", "came as Ring"),
    ("repaired from nothing", PROTO, "LL", ABSENT, LL, LL,
        History(entered=ABSENT, repaired=True), PASS, "repaired", "came as (absent)"),
    ("repaired to absent, exec clobbered", PROTO, None, CLOBBERED, ABSENT, ABSENT,
        History(entered=RING, repaired=True), PASS, "repaired", "came as Ring"),
    # UNKNOWN: right now, but perhaps too late.
    ("exec differs, nobody attests", PROTO, "LL", RING, LL, SILENT,
        History(), UNKNOWN, "maybe_too_late", "started with Ring"),
    ("exec had it, wanted absent", PROTO, None, RING, ABSENT, SILENT,
        History(), UNKNOWN, "maybe_too_late", "started with Ring"),
    ("exec lacked it", PROTO, "LL", ABSENT, LL, SILENT, History(), UNKNOWN, "maybe_too_late", "(absent)"),
    ("attested wrong at entry, not repaired", PROTO, "LL", CLOBBERED, LL, LL,
        History(entered=RING), UNKNOWN, "maybe_too_late", "started with Ring"),
    ("exec differs though entered right", PROTO, "LL", RING, LL, LL,
        History(entered=LL), UNKNOWN, "maybe_too_late", "started with Ring"),
    # UNKNOWN: nobody saw it now.
    ("denied and no answer", PROTO, "LL", LL, DENIED, NOT_READ,
        History(entered=LL), UNKNOWN, "not_seen", "permission denied"),
    ("no answer only", PROTO, "LL", LL, SILENT, NOT_READ, History(), UNKNOWN, "not_seen", "did not answer"),
    ("gone", PROTO, None, GONE, GONE, GONE, History(), UNKNOWN, "not_seen", "has ended"),
    ("exec wrong is history", PROTO, "LL", ABSENT, DENIED, NOT_READ, History(main=ABSENT), UNKNOWN, "not_seen", ""),
    # FAIL: now is wrong.
    ("missing", PROTO, "LL", ABSENT, ABSENT, SILENT, History(), FAIL, "missing", "found none"),
    ("missing, exec clobbered", PROTO, "LL", CLOBBERED, ABSENT, ABSENT, History(), FAIL, "missing", "none"),
    ("unwanted", PROTO, None, RING, RING, SILENT, History(), FAIL, "unwanted", "found Ring"),
    ("unwanted, main had none", PROTO, None, RING, RING, RING, History(main=ABSENT), FAIL, "unwanted", "Ring"),
    ("different", PROTO, "LL", RING, RING, RING, History(entered=RING), FAIL, "different", "found Ring"),
    ("empty is different", PROTO, "LL", CLOBBERED, is_(""), SILENT, History(), FAIL, "different", "''"),
    ("upstream always sets it", CONNECTIONS, "32", CLOBBERED, EIGHT, SILENT,
        History(), FAIL, "overwritten", "every launch"),
    ("upstream sets it, wanted absent", CONNECTIONS, None, EIGHT, EIGHT, SILENT, History(), FAIL, "overwritten", "8"),
    ("not what upstream sets", CONNECTIONS, "8", MANY, MANY, SILENT, History(), FAIL, "different", "found 32"),
    ("always-set one missing", CONNECTIONS, "8", ABSENT, ABSENT, SILENT, History(), FAIL, "missing", "found none"),
    ("main was started right", "NCCL_ALGO", "Ring", CLOBBERED, is_("Tree"), SILENT,
        History(main=RING), FAIL, "overwritten", "the server was started with"),
    ("dropped below main", "NCCL_ALGO", "Ring", ABSENT, ABSENT, SILENT,
        History(main=RING), FAIL, "missing", "found none"),
    ("main clobbered says nothing", "NCCL_ALGO", "Ring", CLOBBERED, is_("Tree"), SILENT,
        History(main=CLOBBERED), FAIL, "different", ""),
    ("changed since exec", PROTO, "LL", LL, RING, SILENT, History(), FAIL, "changed_in_process", "started with"),
    ("changed since entry", PROTO, "LL", CLOBBERED, RING, RING,
        History(entered=LL), FAIL, "changed_in_process", "first line"),
    ("set since exec", PROTO, None, ABSENT, RING, SILENT, History(), FAIL, "changed_in_process", "started"),
    ("changed after repair", PROTO, "LL", RING, ABSENT, ABSENT,
        History(entered=RING, repaired=True), FAIL, "changed_in_process", "first line"),
    # FAIL: two readings of now contradict each other; one right one does not outvote the other.
    ("live right, worker wrong", PROTO, "LL", CLOBBERED, LL, RING, History(), FAIL, "different", "found Ring"),
    ("live wrong, worker right", PROTO, "LL", CLOBBERED, ABSENT, LL, History(), FAIL, "missing", "found none"),
]
# fmt: on


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_row(row: tuple[Any, ...]) -> None:
    _, name, want, started, live, attested, history, verdict, reason, part = row
    found = judge(name, want, {"exec": started, "live": live, "attested": attested}, history)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert part in found.message


def test_rows_show_every_reason_judge_can_give() -> None:
    shown = {row[8] for row in ROWS} - {None}
    assert shown == {
        "missing",
        "unwanted",
        "different",
        "overwritten",
        "changed_in_process",
        "maybe_too_late",
        "not_seen",
        "repaired",
    }


def test_witnesses_not_asked_say_nothing() -> None:
    assert judge(PROTO, "LL", {}).reason == "not_seen"
    assert judge(PROTO, None, {"exec": ABSENT}).verdict == UNKNOWN
    assert judge(PROTO, "LL", {"live": LL}) == (PASS, None, "")


values = st.sampled_from(["LL", "Ring", "8", ""])
wants = st.none() | values
readings = st.sampled_from([ABSENT, DENIED, NOT_READ, SILENT, CLOBBERED, GONE]) | values.map(is_)
histories = st.builds(
    History,
    entered=st.none() | st.just(ABSENT) | values.map(is_),
    repaired=st.booleans(),
    main=st.none() | readings,
)


@given(st.sampled_from([PROTO, CONNECTIONS]), wants, readings, readings, readings, histories)
def test_pass_needs_a_right_reading_now_and_none_against_it(
    name: str, want: str | None, started: Reading, live: Reading, attested: Reading, history: History
) -> None:
    found = judge(name, want, {"exec": started, "live": live, "attested": attested}, history)
    now = [r.value for r in (live, attested) if r.state in ("value", "absent")]
    if found.verdict == PASS:
        assert now and set(now) == {want}
        came_wrong = started.says and started.value != want
        if came_wrong:
            assert found.reason == "repaired" and history.repaired
    if not now:
        assert (found.verdict, found.reason) == (UNKNOWN, "not_seen")
    elif set(now) != {want}:
        assert found.verdict == FAIL
    if found.verdict == UNKNOWN:
        assert found.reason in ("not_seen", "maybe_too_late")


@given(st.sampled_from([PROTO, CONNECTIONS]), wants, readings, readings, readings, histories)
def test_the_reason_is_as_grave_as_the_verdict(
    name: str, want: str | None, started: Reading, live: Reading, attested: Reading, history: History
) -> None:
    verdict, reason, message = judge(name, want, {"exec": started, "live": live, "attested": attested}, history)
    if reason is None:
        assert (verdict, message) == (PASS, "")
    else:
        assert {PASS: "note", UNKNOWN: "unknown", FAIL: "fail"}[verdict] == TABLE[reason].severity
        assert "\n" not in message
    if reason == "missing":
        assert want is not None and ABSENT in (live, attested)
    if reason == "unwanted":
        assert want is None


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], UNKNOWN),
        ([PASS, PASS], PASS),
        ([PASS, UNKNOWN], UNKNOWN),
        ([UNKNOWN, FAIL, PASS], FAIL),
        ([FAIL], FAIL),
    ],
)
def test_worst(verdicts: list[str], expected: str) -> None:
    assert worst(verdicts) == expected
