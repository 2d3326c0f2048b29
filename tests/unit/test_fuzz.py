"""Whatever comes in: no crash, no false PASS, in bounded time. SGLANG_EXT_FUZZ=100000 runs that many cases of each kind.

Seeded and made of pieces that look right, so that the cases reach beyond the first check. Names and values of NCCL's, its
configuration files and whole environments have their own in test_nccl_*.py (NCCL_FUZZ).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from sglang_ext.contract.profile import ProfileError, parse_profile
from sglang_ext.nccl import library, log
from sglang_ext.reasons import TABLE
from sglang_ext.verify.inside import same_to
from sglang_ext.verify.judge import PASS, History, Judgement, judge
from sglang_ext.verify.witnesses import Reading, parse_exec
from tests.unit.cases import in_cases

SLOWEST = 2.0  # seconds for one case of some kilobytes: a bound against runaways, not a figure

some_cases = in_cases(3000, asked="SGLANG_EXT_FUZZ")

ENVIRON = [
    b"NCCL_PROTO=LL",
    b"NCCL_PROTO=",
    b"NCCL_PROTO",
    b"=",
    b"=x",
    b"sglang::scheduler_TP0",
    b"PATH=/bin",
    b"\xff=\xfe",
    b" ",
    b"",
]
MAPS = [
    "7f00-7f10 r-xp 00000000 08:01 42 /x/libnccl.so.2",
    "7f00-7f10 r--p 0000 08:01 42 /x/libnccl-net.so (deleted)",
    "zz r-xp",
    "7f 08:01",
    "/libnccl",
    "libnccl.so.2",
    "7f00-7f10 r-xp 0 8:1 x /libnccl.so",
    "ffffffffffffffff-0 r 0 0:0 0 /libnccl.so.2",
    "",
]
LOG = [
    "host:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL",
    "host:1:2 [-1] NCCL WARN x",
    "NCCL version 2.27.7+cuda12.9",
    "host:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x2 - Init COMPLETE",
    "[2026-01-01 00:00:00] ",
    "host:x:y [z] NCCL INFO",
    " NCCL INFO ",
    "\x1b[31m",
    "set by environment to",
    "NCCL_BUFFSIZE set by environment to 4.",
    "| Ring",
    "",
]
PROFILE = [
    "[profile]",
    'name = "x"',
    'summary = "s"',
    "[env]",
    'NCCL_PROTO = "LL"',
    "NCCL_PROTO = 3",
    "[absent]",
    'NCCL_ALGO = "why"',
    "risks = [1]",
    'measured_on = { nccl = ">=2" }',
    "measured_on = 5",
    "x = nan",
    "[env.NCCL]",
    "a.b = 1",
    '"" = ""',
    "\x00",
    "'''",
    "[[profile]]",
    "d = 1979-05-27",
]


def pieces(dice: random.Random, of: list[str], glue: tuple[str, ...]) -> str:
    chosen = [dice.choice(of) for _ in range(dice.randrange(12))]
    text = "".join(piece + dice.choice(glue) for piece in chosen)
    if text and dice.random() < 0.5:  # and a blow with the hammer
        at = dice.randrange(len(text))
        text = (
            text[:at]
            + chr(dice.choice((0, 10, 32, 61, 127, 0xDC80, 0x1F600, dice.randrange(256))))
            + text[at + dice.randrange(3) :]
        )
    return text


def run(kind: str, cases: int, one: Callable[[random.Random], None]) -> None:
    for number in range(cases):
        began = time.monotonic()
        try:
            one(random.Random(f"{kind} {number}"))
        except BaseException as error:
            raise AssertionError(f"case {number} of {kind}") from error
        assert time.monotonic() - began < SLOWEST, f"case {number} of {kind}"


@some_cases
def test_exec_blocks(cases: int) -> None:
    def one(dice: random.Random) -> None:
        raw = b"\0".join(dice.choice(ENVIRON) for _ in range(dice.randrange(8)))
        if dice.random() < 0.3:
            raw = b"\0" * dice.randrange(40) + raw
        block = parse_exec(raw)
        first = raw.partition(b"\0")[0]
        assert (block.state == "ok") == (b"=" in first[1:])
        assert block.state == "ok" or not block.values

    run("exec", cases, one)


@some_cases
def test_maps(cases: int) -> None:
    def one(dice: random.Random) -> None:
        for mapping in library.mapped(pieces(dice, MAPS, ("\n", " ", ""))):
            assert library.kind_of(mapping.path) is not None and mapping.inode >= 0

    run("maps", cases, one)


@some_cases
def test_logs(cases: int) -> None:
    def one(dice: random.Random) -> None:
        text = pieces(dice, LOG, ("\n", "\n", "\r\n", ""))
        found = log.parse(text.encode("utf-8", "surrogateescape") if dice.random() < 0.5 else text)
        for setting in found.settings:
            assert setting.name in text and setting.name.startswith("NCCL_")

    run("log", cases, one)


@some_cases
def test_profiles(cases: int) -> None:
    def one(dice: random.Random) -> None:
        raw = pieces(dice, PROFILE, ("\n", "\n", "\n", "")).encode("utf-8", "surrogateescape")
        try:
            profile = parse_profile(raw, "f.toml")
        except ProfileError as error:
            assert "\n" not in str(error).replace("\\n", "") or "TOML" in str(error)
            return
        assert profile.env or profile.absent

    run("profile", cases, one)


VALUES = ["LL", "ll", "Simple", "SYS", "4", "sys", "", "4M", "08", '"LL"', "^LL", "LL, LL128", "\udc80"]
NAMES = ["NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_BUFFSIZE", "NCCL_ALGO", "CUDA_DEVICE_MAX_CONNECTIONS", "MY_KNOB"]
STATES = ["value", "value", "value", "absent", "clobbered", "denied", "gone", "not_read", "unavailable"]
VERSIONS: list[tuple[int, ...] | None] = [None, (2, 18, 3), (2, 23, 4), (2, 27, 7), (2, 30, 7), (2, 32, 3)]


def reading(dice: random.Random) -> Reading:
    state = dice.choice(STATES)
    return Reading(state, dice.choice(VALUES) if state == "value" else None)


@some_cases
def test_no_false_pass(cases: int) -> None:
    """PASS said otherwise: something was seen now, all that was seen now is right, and history does not contradict it."""

    def one(dice: random.Random) -> None:
        name, want = dice.choice(NAMES), dice.choice([None, *VALUES])
        same = same_to(name, dice.choice(VERSIONS))
        seen = {witness: reading(dice) for witness in ("exec", "live", "attested", "effective")}
        history = History(
            dice.choice([None, reading(dice)]), dice.random() < 0.3, dice.choice([None, Reading("value", "LL")])
        )
        found: Judgement = judge(name, want, seen, history, same)
        assert found.reason is None or found.reason in TABLE
        if found.verdict != PASS:
            assert found.reason is not None
            return
        now = [seen[w] for w in ("live", "attested") if seen[w].says]
        assert now and all(same(want, one.value) for one in now)
        assert not seen["effective"].says or same(want, seen["effective"].value)
        if not history.repaired:
            assert not seen["exec"].says or same(want, seen["exec"].value)
            assert history.entered is None or same(want, history.entered.value)

    run("judge", cases, one)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_the_same_is_so_both_ways(version: tuple[int, ...] | None) -> None:
    for name in NAMES:
        same = same_to(name, version)
        values = [None, *VALUES]
        found = {(one, other): same(one, other) for one in values for other in values}
        for one in values:
            assert found[one, one]
            for other in values:
                assert found[one, other] == found[other, one]
                if found[one, other]:
                    assert all(found[one, third] == found[other, third] for third in VALUES)
