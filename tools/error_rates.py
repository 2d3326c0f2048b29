#!/usr/bin/env python3
"""How often our statistics are wrong: put simulated campaigns through the shipped code, and write what came out.

    python tools/error_rates.py            simulate and print; are the promises kept?
    python tools/error_rates.py --write    and write the tables into docs/statistics.md

The order of launches is bench/suites/plan.py's, the looks are study/sequential.py's, every verdict is study/decision.py's, on
arrays of campaigns instead of one. Simulated is only the machine: launches that scatter, and a drift under them. Designs that
are not ours stand beside it, so that one sees what they would have said of the same machine. Exit codes: 0 good, 1 a rate is
beyond what docs/statistics.md promises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sglang_ext.bench.suites.plan import order  # noqa: E402
from sglang_ext.study import decision, paired, power, sequential  # noqa: E402
from sglang_ext.study.distributions import t_below  # noqa: E402

PAGE = ROOT / "docs" / "statistics.md"
BEGIN, END = "<!-- simulated: begin -->\n", "<!-- simulated: end -->\n"

Array = npt.NDArray[np.float64]
Drift = Callable[[np.random.Generator, int, Array], Array]  # campaigns, moments from 0 to 1 -> logs

CV, BLOCKS, ALPHA, MARGIN, EFFECT = 0.007, 8, 0.05, 0.01, 0.02
REPEATS, SEED = 20_000, 20_260
MOST_FALSE, LEAST_POWER = 0.06, 0.9  # what we promise
WARM_UP = 0.2  # of the campaign: the time in which a thermal soak comes within 37 % of its end
BASE, CONTROL = "baseline", "control"


def none(rng: np.random.Generator, repeats: int, moments: Array) -> Array:
    return np.zeros((repeats, moments.size))


def linear(rng: np.random.Generator, repeats: int, moments: Array) -> Array:
    return np.log1p(-0.05 * moments) + np.zeros((repeats, 1))


def soak(rng: np.random.Generator, repeats: int, moments: Array) -> Array:
    return np.log1p(-0.05 * (1 - np.exp(-moments / WARM_UP))) + np.zeros((repeats, 1))


def walk(rng: np.random.Generator, repeats: int, moments: Array) -> Array:
    return np.cumsum(rng.normal(0, 0.03 / np.sqrt(moments.size), (repeats, moments.size)), axis=1)


DRIFTS: Mapping[str, Drift] = {
    "none": none,
    "linear, -5 % from first to last launch": linear,
    "thermal soak, -5 %": soak,
    "random walk, 3 % at the end": walk,
}


def ordered(arms: Sequence[str], repeats: int, seed: int) -> npt.NDArray[np.intp]:
    """When each arm is launched: (campaign, block, arm) -> number of the launch, as bench/suites/plan.py draws it."""
    places = np.empty((repeats, BLOCKS, len(arms)), dtype=np.intp)
    index = {name: i for i, name in enumerate(arms)}
    for campaign in range(repeats):
        for block, names in enumerate(order(arms, BLOCKS, seed + campaign)):
            for place, name in enumerate(names):
                places[campaign, block, index[name]] = block * len(arms) + place
    return places


def launches(drift: Drift, rng: np.random.Generator, repeats: int, number: int) -> Array:
    """ln(rate) of the launches of each campaign in the order of time; the arms are all the same."""
    return rng.normal(0, CV, (repeats, number)) + drift(rng, repeats, np.linspace(0, 1, number))


def shipped_logs(drift: Drift, rng: np.random.Generator, places: npt.NDArray[np.intp]) -> Array:
    """Pair logs of our design: (arm, campaign, block), the control first."""
    repeats, blocks, arms = places.shape
    rates = launches(drift, rng, repeats, blocks * arms)
    taken = np.take_along_axis(rates, places.reshape(repeats, -1), axis=1).reshape(places.shape)
    return np.moveaxis(taken[..., 1:] - taken[..., :1], -1, 0)


class Outcome(NamedTuple):
    """What our code says of each campaign."""

    verdicts: Any  # (arm, campaign)
    control_failed: npt.NDArray[np.bool_]
    blocks: npt.NDArray[np.intp]  # launched until it stopped


def shipped(logs: Array, rule: str) -> Outcome:
    """Pair logs through the looks and decisions that `bench run` takes."""
    verdicts: Any = None
    failed = over = np.zeros(logs.shape[1], dtype=bool)
    blocks = np.full(logs.shape[1], BLOCKS)
    for look in sequential.looks(rule, BLOCKS, ALPHA):
        seen = logs[..., : look.blocks]
        made = np.stack([one.verdict for one in decision.decide(list(seen[1:]), look.level, MARGIN)])
        control = paired.paired(seen[0], look.level)
        fails = (control.low > 0) | (control.high < 0)
        verdicts = made if verdicts is None else np.where(over, verdicts, made)
        failed = np.where(over, failed, fails)
        blocks = np.where(over, blocks, look.blocks)
        over = over | fails | np.isin(made, [decision.FASTER, decision.SLOWER]).all(axis=0)
    return Outcome(verdicts, failed, blocks)


def two_samples(a: Array, b: Array) -> tuple[Array, Array]:
    """Not ours: Welch's t test of two samples; the difference and its p."""
    va, vb = a.var(axis=-1, ddof=1) / a.shape[-1], b.var(axis=-1, ddof=1) / b.shape[-1]
    df = (va + vb) ** 2 / (va**2 / (a.shape[-1] - 1) + vb**2 / (b.shape[-1] - 1))
    difference = b.mean(axis=-1) - a.mean(axis=-1)
    return difference, 2 * t_below(-np.abs(difference) / np.sqrt(va + vb), df)


def one_after_the_other(drift: Drift, rng: np.random.Generator, repeats: int) -> tuple[Array, Array]:
    """Not ours: all launches of A, then all of B."""
    rates = launches(drift, rng, repeats, 2 * BLOCKS)
    return rates[:, :BLOCKS], rates[:, BLOCKS:]


def stale(drift: Drift, rng: np.random.Generator, repeats: int) -> tuple[Array, Array]:
    """Not ours: A is what the files say, taken when the machine was as it is at the start; only B is launched."""
    return rng.normal(0, CV, (repeats, BLOCKS)), launches(drift, rng, repeats, BLOCKS)


def alternating(drift: Drift, rng: np.random.Generator, repeats: int, *, mirrored: bool) -> Array:
    """Not ours: A B A B, or mirrored A B B A, without a lot; the pair logs."""
    rates = launches(drift, rng, repeats, 2 * BLOCKS)
    pairs = rates[:, 1::2] - rates[:, 0::2]
    return pairs * np.where(np.arange(BLOCKS) % 2, -1, 1) if mirrored else pairs


def peeking(logs: Array) -> npt.NDArray[np.bool_]:
    """Not ours: a look after every block from the third on, and a stop at the first p below alpha."""
    looks = [paired.paired(logs[:, :blocks], ALPHA).p <= ALPHA for blocks in range(3, BLOCKS + 1)]
    return np.asarray(np.any(looks, axis=0))


class Rates(NamedTuple):
    """Shares of the simulated campaigns, per drift."""

    false: dict[str, float]
    power: dict[str, float]
    claims: dict[str, float]


def simulate(drift: Drift, rng: np.random.Generator, one: npt.NDArray[np.intp], two: npt.NDArray[np.intp]) -> Rates:
    """All rates under one drift; ``one`` and ``two``: the orders with one arm and with two, besides baseline and control."""
    repeats = one.shape[0]
    logs, many = shipped_logs(drift, rng, one), shipped_logs(drift, rng, two)
    gain = np.array([0.0, np.log1p(EFFECT)])[:, None, None]  # of the arm; the control has none
    loss = np.array([0.0, np.log1p(-MARGIN)])[:, None, None]

    def said(outcome: Outcome, *words: str) -> npt.NDArray[np.bool_]:
        return np.asarray(np.isin(outcome.verdicts, words).any(axis=0))

    fixed, early = shipped(logs, "fixed"), shipped(logs, sequential.SEQUENTIAL)
    wrong = (decision.FASTER, decision.SLOWER)
    alone = np.stack([paired.paired(arm, ALPHA).p <= ALPHA for arm in many[1:]]).any(axis=0)
    one_by_one, old = one_after_the_other(drift, rng, repeats), stale(drift, rng, repeats)
    turns, mirrored = (alternating(drift, rng, repeats, mirrored=kind) for kind in (False, True))
    false = {
        "fixed": said(fixed, *wrong),
        "sequential": said(early, *wrong),
        "two arms, Holm": said(shipped(many, "fixed"), *wrong),
        "A/A fails": fixed.control_failed,
        "two arms, no Holm": alone,
        "a look after every block": peeking(logs[1]),
        "ABAB": paired.paired(turns, ALPHA).p <= ALPHA,
        "ABBA": paired.paired(mirrored, ALPHA).p <= ALPHA,
        "AAAABBBB": two_samples(*one_by_one)[1] <= ALPHA,
        "stale baseline": two_samples(*old)[1] <= ALPHA,
    }
    better, better_early = shipped(logs + gain, "fixed"), shipped(logs + gain, sequential.SEQUENTIAL)

    def found(a: Array, b: Array) -> npt.NDArray[np.bool_]:
        difference, p = two_samples(a, b + np.log1p(EFFECT))
        return np.asarray((p <= ALPHA) & (difference > 0))

    mirrored_better = paired.paired(mirrored + np.log1p(EFFECT), ALPHA)
    wins = {
        "fixed": said(better, decision.FASTER),
        "fixed, and A/A holds": said(better, decision.FASTER) & ~better.control_failed,
        "sequential": said(better_early, decision.FASTER),
        "ABBA": (mirrored_better.p <= ALPHA) & (mirrored_better.mean > 0),
        "AAAABBBB": found(*one_by_one),
        "stale baseline": found(*old),
    }
    worse, worse_early = shipped(logs + loss, "fixed"), shipped(logs + loss, sequential.SEQUENTIAL)
    kind = (decision.NO_REGRESSION, decision.SAME, decision.FASTER)
    claims = {
        "fixed": said(worse, *kind),
        "sequential": said(worse_early, *kind),
        "AAAABBBB": two_samples(one_by_one[0], one_by_one[1] + np.log1p(-MARGIN))[1] > ALPHA,
        "stale baseline": two_samples(old[0], old[1] + np.log1p(-MARGIN))[1] > ALPHA,
    }
    return Rates(*({name: float(np.mean(hits)) for name, hits in group.items()} for group in (false, wins, claims)))


class Stop(NamedTuple):
    """What the early stop does for arms that are so much faster."""

    effect: float
    halfway: float  # share stopped there
    faster: float  # share with the right verdict
    blocks: float  # on average


def stops(rng: np.random.Generator, places: npt.NDArray[np.intp]) -> list[Stop]:
    made = []
    for effect in (0.0, 0.02, 0.05, 0.10, 0.30):
        logs = shipped_logs(none, rng, places) + np.array([0.0, np.log1p(effect)])[:, None, None]
        outcome = shipped(logs, sequential.SEQUENTIAL)
        faster = float(np.mean(outcome.verdicts[0] == decision.FASTER))
        made.append(Stop(effect, float(np.mean(outcome.blocks < BLOCKS)), faster, float(outcome.blocks.mean())))
    return made


def run(repeats: int, seed: int) -> tuple[dict[str, Rates], list[Stop]]:
    """Everything that is simulated."""
    one, two = (ordered(arms, repeats, seed) for arms in ((BASE, CONTROL, "B"), (BASE, CONTROL, "B", "C")))
    rates = {
        name: simulate(drift, np.random.default_rng([seed, number]), one, two)
        for number, (name, drift) in enumerate(DRIFTS.items())
    }
    return rates, stops(np.random.default_rng([seed, len(DRIFTS)]), one)


OURS = ("fixed", "sequential", "two arms, Holm", "A/A fails")


def broken(rates: Mapping[str, Rates]) -> list[str]:
    """Promises that do not hold, one sentence each."""
    faults = []
    for drift, found in rates.items():
        for group in (found.false, found.claims):
            for name, share in group.items():
                if name in OURS and share > MOST_FALSE:
                    faults.append(f"drift {drift}, {name}: expected {MOST_FALSE:.0%} false at most, found {share:.2%}")
        for name in ("fixed", "fixed, and A/A holds", "sequential"):
            if found.power[name] < LEAST_POWER:
                faults.append(f"drift {drift}, {name}: expected power {LEAST_POWER}, found {found.power[name]:.3f}")
    return faults


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def by_drift(group: str, rates: Mapping[str, Rates]) -> str:
    names = list(getattr(next(iter(rates.values())), group))
    rows = [[drift, *(f"{getattr(found, group)[name]:.1%}" for name in names)] for drift, found in rates.items()]
    return table(["drift", *names], rows)


def render(rates: Mapping[str, Rates], early: Sequence[Stop], repeats: int, seed: int) -> str:
    """The simulated part of the page, and the tables that are computed."""
    worst = 100 * np.sqrt(0.25 / repeats)
    usual = 100 * np.sqrt(ALPHA * (1 - ALPHA) / repeats)
    cvs, pairs = (0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03), (2, 3, 4, 6, 8, 12, 16, 24)
    shown = [[f"{cv:.1%}", *(f"{power.detectable(cv * 2**0.5, n, ALPHA):.1%}" for n in pairs)] for cv in cvs]
    needed = [
        [
            f"{cv:.2%}",
            *(f"{power.launches_for(EFFECT, cv, ALPHA, p)}" for p in (0.8, 0.9)),
            *(f"{power.plan(EFFECT, cv, ALPHA, p)}" for p in (0.8, 0.9)),
            f"{power.pairs_for_same(MARGIN, cv, ALPHA, 0.8)}",
        ]
        for cv in (0.005, 0.0075, 0.01, 0.015, 0.02, 0.03)
    ]
    return "\n".join(
        [
            f"{repeats} campaigns for each figure (seed {seed}), {BLOCKS} blocks, launches that scatter by {CV:.1%}, "
            f"alpha {ALPHA:g}, margin {MARGIN:.0%}.\nMonte-Carlo standard error: {usual:.2f} points near {ALPHA:.0%}, "
            f"{worst:.2f} at most.\n",
            "**False verdicts**: the arms are the same, and a difference is claimed. Ours are the first four; `A/A fails` is\n"
            "how often a sound campaign is thrown away. The others are what is usually done.\n",
            by_drift("false", rates),
            f"**Power**: the arm is {EFFECT:.0%} faster, and `faster` is said.\n",
            by_drift("power", rates),
            f'**False "no regression"**: the arm is slower by the whole margin of {MARGIN:.0%}, and `no regression`, `same` or '
            '`faster` is said.\nFor designs that are not ours: "no significant difference", which is often taken for that; '
            "where it is 0, they\ntake the drift for a loss whatever is compared.\n",
            by_drift("claims", rates),
            '**The early stop** (rule "sequential", no drift).\n',
            table(
                ["true effect", "stopped halfway", "`faster` said", f"blocks of {BLOCKS}, on average"],
                [[f"{s.effect:+.0%}", f"{s.halfway:.1%}", f"{s.faster:.1%}", f"{s.blocks:.2f}"] for s in early],
            ),
            f"**Minimal detectable effect** at alpha {ALPHA:g}, power {power.POWER:g} (computed), by pairs and the scatter of a "
            "launch.\n",
            table(["scatter", *map(str, pairs)], shown),
            f"**Needed for {EFFECT:.0%}** at alpha {ALPHA:g} (computed): launches per arm if nothing drifted and nothing were "
            f'paired, pairs,\nand pairs that show "same" within {MARGIN:.0%} where it is true.\n',
            table(["scatter", "per arm, 80 %", "per arm, 90 %", "pairs, 80 %", "pairs, 90 %", '"same", 80 %'], needed),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print, maybe write; returns the exit code."""
    parser = argparse.ArgumentParser(description="Simulate how often the shipped statistics are wrong.")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/statistics.md")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"simulated campaigns for each figure ({REPEATS})")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(argv)
    rates, early = run(options.repeats, options.seed)
    text = render(rates, early, options.repeats, options.seed)
    print(text)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        head, tail = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text(f"{head}\n{text}\n{tail}", encoding="utf-8")
    faults = broken(rates)
    for fault in faults:
        print(f"error_rates: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
