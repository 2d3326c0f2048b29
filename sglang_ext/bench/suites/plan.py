"""The design of a campaign: which server is started when, how long it takes, what it may find. Nothing is started here."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sglang_ext.bench.suites.refusals import refusals
from sglang_ext.bench.suites.server_words import PLACES
from sglang_ext.bench.suites.under_test import unvaried

if TYPE_CHECKING:
    from sglang_ext.bench.suites.suite import Suite

SEEDS = 1 << 32
SEQUENTIAL, FIXED = "sequential", "fixed"
EARLY = 0.1  # of alpha, which rule "sequential" spends halfway
HALFWAY_LEAST = 4  # pairs, for rule "sequential"'s look halfway: with three, the spread itself is a guess
Row = tuple[str, str]


def draw_seed() -> int:
    """A seed for a campaign whose suite names none: to be stored with it, as the order follows from it alone."""
    return secrets.randbelow(SEEDS)


def order(arms: Iterable[str], blocks: int, seed: int) -> list[list[str]]:
    """Randomised complete blocks: every arm once in each block, in an order drawn for that block alone.

    Blocks, because a server's speed drifts with temperature and neighbours: what is compared is measured close together.
    Random within a block, because any fixed order has the drift for or against the same arm each time; tools/error_rates.py
    shows what AAAABBBB, ABAB and ABBA cost. Two arms are not balanced any further than that: the coin of each block is
    independent of all others, and it is this that makes the sign-flip test exact.

    An order is the sha256 of seed, block and name, sorted. `random.shuffle` promises the same result to no other version of
    Python; this is the same everywhere, and more blocks leave those before them as they were.
    """
    names = list(arms)
    assert len(set(names)) == len(names), "arms have names of their own"
    return [sorted(names, key=lambda name: _draw(seed, block, name)) for block in range(blocks)]


def _draw(seed: int, block: int, name: str) -> bytes:
    return hashlib.sha256(f"sglang-ext/order/1\n{seed}\n{block}\n{name}".encode()).digest()


def halfway(blocks: int) -> int | None:
    """After how many of so many blocks rule "sequential" looks before the end; None: they are too few for that."""
    half = (blocks + 1) // 2
    return half if half >= HALFWAY_LEAST else None


def at_the_end(rule: str, blocks: int) -> float:
    """The share of alpha that is left for the look at the end: all of it where there is no other look."""
    return 1.0 if rule != SEQUENTIAL or halfway(blocks) is None else 1 - EARLY


def launches(suite: Suite) -> int:
    """How many servers are started; those that run already count as often as they are asked."""
    assert suite.campaign is not None
    return len(suite.arms) * suite.campaign.blocks


def estimate(suite: Suite, ready_s: float, tok_s: float) -> float:
    """Seconds the campaign takes where a server is ready after ``ready_s`` and one stream gets ``tok_s`` tokens a second."""
    assert suite.campaign is not None
    work = suite.workload
    tokens = work.warmup_runs * work.warmup_tokens + work.runs * work.tokens
    return launches(suite) * (ready_s + suite.campaign.settle_s + tokens / tok_s)


def longest(suite: Suite) -> float:
    """Seconds after which every launch and every run has reached the suite's limit for it, and each arm's one repetition too.

    An arm's second failure ends the campaign.
    """
    assert suite.campaign is not None
    work, campaign = suite.workload, suite.campaign
    ready = 0.0 if suite.arms[0].address else campaign.ready_timeout_s
    return (launches(suite) + len(suite.arms)) * (
        ready + campaign.settle_s + (work.warmup_runs + work.runs) * work.timeout_s
    )


def describe(
    suite: Suite,
    seed: int,
    *,
    ready_s: float | None = None,
    tok_s: float | None = None,
    detectable: Sequence[tuple[float, float]] = (),
) -> list[Row]:
    """What `bench plan` shows: a label and a text in each row.

    ``detectable``: (spread of launches, smallest change the plan finds in 8 of 10 cases), both relative. It is worked out by
    who knows statistics and handed in.
    """
    campaign, work = suite.campaign, suite.workload
    assert campaign is not None
    count = launches(suite)
    drawn = "" if campaign.seed is not None else " (drawn now: a campaign draws its own)"
    streams = f", {work.streams} streams each" if work.streams > 1 else ""
    ask = f"{work.warmup_runs} warm-up of {work.warmup_tokens} tokens, then {work.runs} runs of {work.tokens}{streams}"
    compared = sum(not (arm.baseline or arm.control) for arm in suite.arms)
    corrected = f", corrected for {compared} arms compared with the baseline" if compared > 1 else ""
    idle = unvaried(suite.arms, campaign.under_test)
    named = (value for arm in suite.arms for key in PLACES for value in arm.options.get(key, ()))
    hub = dict.fromkeys(value for value in named if not value.startswith("/"))
    files = [prompt.file or "in the suite" for prompt in work.all_prompts()]
    rows = [
        ("suite", f"{suite.name}: {suite.summary}"),
        *(("arm", _arm(suite, index)) for index in range(len(suite.arms))),
        *(
            (
                "",
                f"{name} is a name on a hub, or a folder below where the campaign is started: it is not looked for here",
            )
            for name in hub
        ),
        *(("refused", f"arm {one.arm}: {one.code}: {one.sentence}") for one in refusals(suite.arms)),
        ("under test", ", ".join(campaign.under_test)),
        *(
            ("", f"no arm varies {entry}: only what the servers resolve by themselves may differ in it")
            for entry in idle
        ),
        ("a launch", f"{ask}; prompts: {', '.join(files)}"),
        ("launches", f"{count}: {len(suite.arms)} arms x {campaign.blocks} blocks"),
        ("rule", _rule(campaign.rule, campaign.blocks)),
        ("time", _time(suite, ready_s, tok_s)),
        ("question", f"a change of {100 * campaign.effect:g}%, at {100 * campaign.alpha:g}% of false verdicts"),
        *(
            ("finds", f"{effect:.1%} where launches of one arm spread by {cv:.1%}{corrected}")
            for cv, effect in detectable
        ),
        ("seed", f"{seed}{drawn}"),
    ]
    plan = order([arm.name for arm in suite.arms], campaign.blocks, seed)
    return rows + [(f"block {number}", ", ".join(block)) for number, block in enumerate(plan, 1)]


def _arm(suite: Suite, index: int) -> str:
    arm = suite.arms[index]
    role = " (baseline)" if arm.baseline else " (control)" if arm.control else ""
    how = arm.address or ("" if arm.patches else "stock SGLang")
    return f"{arm.name}{role}" + "".join(f": {part}" for part in (arm.summary, how) if part)


def _rule(rule: str, blocks: int) -> str:
    if rule == FIXED:
        return f"all {blocks} blocks, judged once at the end"
    half = halfway(blocks)
    if half is None:
        fewest = 2 * HALFWAY_LEAST - 1
        return f"all {blocks} blocks, judged once at the end: with fewer than {fewest} there is no early look"
    return f"judged after {half} blocks, where only a large difference stops it, and at the end, after {blocks}"


def _time(suite: Suite, ready_s: float | None, tok_s: float | None) -> str:
    assert suite.campaign is not None
    at_most = f"at most {duration(longest(suite))}, every limit reached and a failed launch of each arm repeated"
    if ready_s is None or tok_s is None:
        return f"{at_most}; how long it will be is not known before a launch was timed"
    guess = duration(estimate(suite, ready_s, tok_s))
    limit = suite.campaign.ready_timeout_s
    if suite.arms[0].address is None and ready_s > limit:
        at_most += (
            f"; but a server that is not ready after {limit:g} s (ready_timeout_s) is given up: raise it in the suite"
        )
    return f"about {guess}, with {ready_s:g} s until ready and {tok_s:g} tok/s; {at_most}"


def duration(seconds: float) -> str:
    """3 h 05 min, 12 min, 40 s: as one says it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
