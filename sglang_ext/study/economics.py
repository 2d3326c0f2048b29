"""Does speculating pay? A verify step brings L tokens and takes T: the rate is L / T, exactly, and each can be blamed by itself.

    ln(rate ratio) = ln(L ratio) - ln(T ratio)      where a change of the rate comes from
    L* = T / t1                                     the accept length at which speculating breaks even; t1: a plain decode step
    T* = L * t1                                     the longest step that still pays at this L
    k -> k+1 pays while T(k+1)/T(k) < L(k+1)/L(k)   one more draft step

L counts the tokens of the decode span per verify step: 3.0 where a draft of two is always right. SGLang's own accept length
has the prefill's token as well (sglang 0.5.23 srt/managers/tokenizer_manager.py:3155), 1/steps more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

HALVINGS = 60


class Step(NamedTuple):
    """Tokens a step brings, and the milliseconds it takes. A decoder that does not speculate: 1 token."""

    tokens: float
    ms: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return 1000 * self.tokens / self.ms


class Attribution(NamedTuple):
    """Where a change of the rate comes from, in logs: ``rate`` = ``accept`` - ``step``."""

    rate: float
    accept: float
    step: float


def attribution(base: Step, arm: Step) -> Attribution:
    """What became of the rate from ``base`` to ``arm``, and why."""
    accept, step = math.log(arm.tokens / base.tokens), math.log(arm.ms / base.ms)
    return Attribution(accept - step, accept, step)


def break_even(ms: float, base: Step) -> float:
    """L*: the accept length at which steps of ``ms`` are as fast as ``base``."""
    return ms * base.tokens / base.ms


def longest_step(tokens: float, base: Step) -> float:
    """T*: the milliseconds a step of ``tokens`` may take to be as fast as ``base``."""
    return tokens * base.ms / base.tokens


def accept_length(chance: float, steps: int) -> float:
    """L of a draft of ``steps`` tokens, each right with ``chance`` as long as those before it were."""
    return sum(chance**i for i in range(steps + 1))


def chance_needed(tokens: float, steps: int) -> float | None:
    """The chance that gives an L of ``tokens``; None where not even a perfect draft of ``steps`` does."""
    if not 1 <= tokens <= steps + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if accept_length(middle, steps) >= tokens else (middle, high)
    return high


def step_of(run: Mapping[str, Any]) -> Step | None:
    """The step of one RUN, or None where it does not show. Its rate is the run's decode rate, whatever was told."""
    rate, ms, accept = run.get("decode_tok_s"), run.get("step_ms"), run.get("accept_length")
    if not rate:
        return None
    if ms:
        return Step(rate * ms / 1000, ms)
    return Step(accept, 1000 * accept / rate) if accept else None


def mean_step(launches: Iterable[Sequence[Mapping[str, Any]]]) -> Step | None:
    """The step of several launches, each its runs that count: the mean of logs within a launch, then over launches.

    None where one run does not show its step: a mean over the others would be the mean of something else.
    """
    logs: list[tuple[float, float]] = []
    for runs in launches:
        steps = [step for run in runs if (step := step_of(run)) is not None]
        if not steps or len(steps) < len(runs):
            return None
        logs.append((_mean(math.log(s.tokens) for s in steps), _mean(math.log(s.ms) for s in steps)))
    if not logs:
        return None
    return Step(math.exp(_mean(tokens for tokens, _ in logs)), math.exp(_mean(ms for _, ms in logs)))


def economics(base: Step, arm: Step) -> dict[str, float]:
    """What a comparison of the record says of a speculative arm."""
    change = attribution(base, arm)
    return {
        "dln_rate": change.rate,
        "dln_accept": change.accept,
        "dln_step": change.step,
        "accept": arm.tokens,
        "base_accept": base.tokens,
        "step_ms": arm.ms,
        "base_step_ms": base.ms,
        "break_even_accept": break_even(arm.ms, base),
        "longest_step_ms": longest_step(arm.tokens, base),
    }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)
