"""A receipt as the pages need it: typed, bounded, and lenient, since a report must come out of a damaged receipt too.

What has another type than schema sglang-ext/campaign/1 says is taken for not there, and what is not there is None; nothing is
guessed. Texts stay as they are: who prints them escapes them (`html.py`) or makes them printable (`text.py`).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sglang_ext.reasons import TABLE

COUNTING = ("VALID", "INCONCLUSIVE")  # the states in which figures mean something
FINISHED = "finished"
MOST = 200  # arms, launches of an arm, runs of a launch, blocks: a page is for people
LONGEST = 2000  # characters of one text
LARGEST = 1e15  # what is beyond was never measured, and has no place on a scale
# What cannot be seen, or turns the text around it: controls, zero widths, the marks of writing direction, lone surrogates, tags.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
FARTHEST = 20.0  # the same for a logarithm of a ratio


class Trace(NamedTuple):
    """When tokens came: seconds since sent, and how many there were by then, for each chunk that brought some."""

    seconds: tuple[float, ...]
    tokens: tuple[float, ...]


class Run(NamedTuple):
    """One streamed request."""

    number: int  # in its launch, from 1
    counts: bool
    reason: str | None
    began: float | None
    seconds: float | None
    rate: float | None
    ttft_s: float | None
    accept: float | None
    step_ms: float | None
    tokens: float | None
    raw: Mapping[str, Any]

    @property
    def trace(self) -> Trace | None:
        """Its token times. Read when they are wanted: they are most of a receipt, and of an arm one is shown."""
        return _trace(mapping(self.raw.get("trace")))


class Launch(NamedTuple):
    """One server start. ``excluded``: why its pair does not count; ``raw`` has the rest."""

    block: int
    order: int
    arm: str
    state: str
    reason: str | None
    began: float | None
    ready: float | None
    ended: float | None
    runs: tuple[Run, ...]
    simulated: bool
    excluded: str | None
    raw: Mapping[str, Any]

    @property
    def counts(self) -> bool:
        return self.state == FINISHED and self.excluded is None and self.log_rate is not None

    @property
    def log_rate(self) -> float | None:
        """The launch's figure: the mean of ln(decode_tok_s) over its runs that count."""
        logs = [math.log(run.rate) for run in self.runs if run.counts and run.rate]
        return statistics.fmean(logs) if logs else None


class Arm(NamedTuple):
    """A configuration under test; ``series``: which colour and mark it has (0: the baseline, 1: its control)."""

    name: str
    summary: str
    baseline: bool
    control: bool
    series: int
    fingerprint: Mapping[str, Any]
    launches: tuple[Launch, ...]

    @property
    def simulated(self) -> bool:
        return any(launch.simulated for launch in self.launches)

    @property
    def speculates(self) -> bool:
        """Unless its runs say that it does not: then it has no accept length, and else an unknown one."""
        runs = [mapping(run.raw.get("unknown")) for launch in self.launches for run in launch.runs]
        return any("does not speculate" not in text(why.get("accept_length")) for why in runs)

    def counting(self) -> list[Launch]:
        """The launches whose figure counts; of a block that was taken again, the last."""
        found = {launch.block: launch for launch in self.launches if launch.counts}
        return list(found.values())


class Comparison(NamedTuple):
    """One arm against the baseline."""

    arm: str
    baseline: str
    control: bool
    pairs: tuple[tuple[int, float], ...]  # block, ln(arm) - ln(baseline)
    ratio: float | None
    low: float | None
    high: float | None
    p_t: float | None
    p_sign_flip: float | None
    p_holm: float | None
    verdict: str
    confidence: float  # of the interval
    p_same: float | None
    p_no_regression: float | None
    mde: float | None
    economics: Mapping[str, float | None] | None


class Campaign(NamedTuple):
    """The whole receipt; ``raw`` is what it was read from."""

    state: str
    reason: str | None
    began: float | None
    ended: float | None
    name: str
    summary: str
    blocks: int
    stopped: str | None
    margin: float | None
    effect: float | None  # what the campaign was planned to find
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    excluded: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    cut: bool  # there is more in the receipt than is shown
    raw: Mapping[str, Any]

    @property
    def counts(self) -> bool:
        return self.state in COUNTING

    @property
    def fix(self) -> str | None:
        """What to do about the reason, where its code is one of ours."""
        code = (self.reason or "").partition(":")[0]
        return TABLE[code].fix if code in TABLE else None

    def launches(self) -> list[Launch]:
        """All of them, in the order they ran."""
        found = [launch for arm in self.arms for launch in arm.launches]
        return sorted(found, key=lambda launch: (launch.block, launch.order, launch.began or 0.0))

    def arm(self, name: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)


def number(value: object) -> float | None:
    """A number that can be one of a measurement, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON has integers of any length
        return None
    return found if abs(found) <= LARGEST else None  # neither for NaN


def log(value: object) -> float | None:
    """The logarithm of a ratio."""
    found = number(value)
    return found if found is not None and abs(found) <= FARTHEST else None


def ratio(value: object) -> float | None:
    found = positive(value)
    return found if found is not None and abs(math.log(found)) <= FARTHEST else None


def whole(value: object) -> int:
    """A small integer, 0 where there is none."""
    found = number(value)
    return int(found) if found is not None and abs(found) < 1e9 else 0


def positive(value: object) -> float | None:
    found = number(value)
    return found if found is not None and found > 1 / LARGEST else None


def clean(value: str) -> str:
    """What cannot be seen as its escape: a page has no place for it."""
    return value if value.isprintable() else UNSEEN.sub(lambda found: ascii(found[0])[1:-1], value)


def text(value: object) -> str:
    """A text, cut where it is longer than anybody reads."""
    found = clean(value) if isinstance(value, str) else ""
    return found if len(found) <= LONGEST else f"{found[:LONGEST]}... ({len(found)} characters)"


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def listing(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _run(index: int, raw: Mapping[str, Any]) -> Run:
    rate, whole_rate, tokens = (positive(raw.get(k)) for k in ("decode_tok_s", "e2e_tok_s", "tokens"))
    seconds = tokens / whole_rate if tokens and whole_rate else None
    times = listing(mapping(raw.get("trace")).get("t"))
    return Run(
        index,
        raw.get("valid") is not False,
        text(raw.get("reason")) or None,
        number(raw.get("began")),
        (positive(times[-1]) if times else None) or seconds,
        rate,
        positive(raw.get("ttft_s")),
        positive(raw.get("accept_length")),
        positive(raw.get("step_ms")),
        tokens,
        raw,
    )


def _trace(raw: Mapping[str, Any]) -> Trace | None:
    pairs = [(number(t), number(n)) for t, n in zip(listing(raw.get("t")), listing(raw.get("tokens")), strict=False)]
    known = [(t, n) for t, n in pairs if t is not None and n is not None]
    rising = all(a <= b and m <= n for (a, m), (b, n) in pairwise(known))
    if len(known) < 2 or len(known) != len(pairs) or not rising or known[0][1] < 0 or known[-1][1] < 1:
        return None
    return Trace(tuple(t for t, _ in known), tuple(n for _, n in known))


def _launch(raw: Mapping[str, Any], name: str, excluded: Mapping[tuple[int, str], str]) -> Launch:
    time, block = mapping(raw.get("time")), whole(raw.get("block"))
    runs = [mapping(run) for run in listing(raw.get("runs"))[:MOST]]
    return Launch(
        block,
        whole(raw.get("order")),
        name,
        text(raw.get("state")) or ("finished" if runs else "unknown"),
        text(raw.get("reason")) or None,
        number(time.get("began")),
        number(time.get("ready")),
        number(time.get("ended")),
        tuple(_run(index, run) for index, run in enumerate(runs, 1)),
        raw.get("simulated_acceptance") is True,
        excluded.get((block, name)),
        raw,
    )


def _arm(raw: Mapping[str, Any], series: int, excluded: Mapping[tuple[int, str], str]) -> Arm:
    name = text(raw.get("name"))
    launches = [_launch(mapping(one), name, excluded) for one in listing(raw.get("launches"))[:MOST]]
    prints = [raw, *(launch.raw for launch in launches)]
    return Arm(
        name,
        text(raw.get("summary")),
        raw.get("baseline") is True,
        raw.get("control") is True,
        series,
        next((found for one in prints if (found := mapping(one.get("fingerprint")))), {}),
        tuple(launches),
    )


def _comparison(raw: Mapping[str, Any], alpha: float) -> Comparison:
    blocks = [whole(block) for block in listing(raw.get("blocks"))]
    logs = [log(one) for one in listing(raw.get("pair_logs"))[:MOST]]
    equivalence = mapping(raw.get("equivalence"))
    economics = raw.get("economics")
    return Comparison(
        text(raw.get("arm")),
        text(raw.get("baseline")),
        raw.get("control") is True,
        tuple((blocks[i] if i < len(blocks) else i, one) for i, one in enumerate(logs) if one is not None),
        ratio(raw.get("ratio")),
        ratio(raw.get("low")),
        ratio(raw.get("high")),
        number(raw.get("p_t")),
        number(raw.get("p_sign_flip")),
        number(raw.get("p_holm")),
        text(raw.get("verdict")),
        positive(raw.get("confidence")) or 1 - alpha,  # where it looked halfway, it is at another level than the plan's
        number(equivalence.get("p")),
        number(equivalence.get("p_no_regression")),
        positive(raw.get("mde")),
        {k: (log if k.startswith("dln") else positive)(v) for k, v in economics.items()}
        if isinstance(economics, Mapping)
        else None,
    )


def _series(arms: Iterable[Mapping[str, Any]]) -> list[int]:
    """0 for the baseline, 1 for its control, 2 and on for what is under test."""
    found, following = [], 2
    for arm in arms:
        fixed = 1 if arm.get("control") is True else 0 if arm.get("baseline") is True else None
        found.append(following if fixed is None else fixed)
        following += fixed is None
    return found


def _add_baseline(excluded: dict[tuple[int, str], str], arms: list[Mapping[str, Any]]) -> None:
    """A pair is excluded under its arm's name; a block in which every pair is has lost its baseline too."""
    names = {text(arm.get("name")) for arm in arms if arm.get("baseline") is not True}
    base = next((text(arm.get("name")) for arm in arms if arm.get("baseline") is True), None)
    for block in {block for block, _ in excluded}:
        if base is not None and names and all((block, name) in excluded for name in names):
            excluded.setdefault((block, base), excluded[block, min(names)])


def campaign(raw: Mapping[str, Any]) -> Campaign:
    """Read a receipt of schema sglang-ext/campaign/1; also one of sglang-ext/bench/1, which has one arm and no comparison."""
    plan, suite, time = (mapping(raw.get(key)) for key in ("plan", "suite", "time"))
    excluded = tuple(mapping(one) for one in listing(raw.get("excluded"))[: MOST * 10])
    why = {(whole(one.get("block")), text(one.get("arm"))): text(one.get("text")) or "excluded" for one in excluded}
    arms = [mapping(arm) for arm in listing(raw.get("arms"))]
    if len(arms) == 1 and "fingerprint" in raw:  # bench/1 keeps it beside the arms
        arms = [{"fingerprint": raw["fingerprint"], **arms[0]}]
    _add_baseline(why, arms)
    read = tuple(_arm(arm, series, why) for arm, series in zip(arms, _series(arms), strict=True))[:MOST]
    alpha = positive(plan.get("alpha")) or 0.05
    sizes = [len(arms), *(len(listing(arm.get("launches"))) for arm in arms)]
    sizes += [len(listing(launch.raw.get("runs"))) for arm in read for launch in arm.launches]
    return Campaign(
        text(raw.get("state")) or "UNKNOWN",
        text(raw.get("reason")) or None,
        number(time.get("began")),
        number(time.get("ended")),
        text(suite.get("name")) or "unnamed",
        text(suite.get("summary")),
        len(listing(plan.get("blocks"))),
        text(plan.get("stopped")) or None,
        positive(plan.get("margin")),
        positive(plan.get("effect")),
        read,
        tuple(_comparison(mapping(one), alpha) for one in listing(raw.get("comparisons"))[:MOST]),
        excluded,
        tuple(text(note) for note in listing(raw.get("notes"))[:MOST]),
        max(sizes) > MOST,
        raw,
    )


class Means(NamedTuple):
    """What an arm comes to. Geometric means over its launches, each of them over its runs that count, so that
    accept / step = rate holds among them too; the time to the first token is a median, as the first run often stands out."""

    launches: int
    planned: int
    rate: float | None
    cv: float | None  # of launches
    ttft_ms: float | None
    accept: float | None
    step_ms: float | None


def means(arm: Arm, planned: int) -> Means:
    counting = arm.counting()
    logs = [log for launch in counting if (log := launch.log_rate) is not None]
    first = [run.ttft_s for launch in counting for run in launch.runs if run.counts and run.ttft_s]

    def geometric(figure: str) -> float | None:
        each = [[getattr(run, figure) for run in launch.runs if run.counts] for launch in counting]
        if not each or any(not runs or None in runs for runs in each):
            return None  # of some runs only, it would be a mean of others than the rate is
        return math.exp(statistics.fmean(statistics.fmean(map(math.log, runs)) for runs in each))

    return Means(
        len(counting),
        planned,
        math.exp(statistics.fmean(logs)) if logs else None,
        statistics.stdev(logs) if len(logs) > 1 else None,
        1000 * statistics.median(first) if first else None,
        geometric("accept"),
        geometric("step_ms"),
    )
