"""Scripts: when a made-up server sends which tokens, and what it says of them. Plain data: they cross to another process."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

USAGE = ("each", "late", "never")  # the count: in every event, as it should be; in the last one only; nowhere
ENDING = ("done", "no_done", "cut", "error", "refuse")


class Step(NamedTuple):
    """Some tokens that come at once."""

    after: float  # seconds since the step before; of the first one, since the request came
    tokens: int
    thought: bool = False  # they are reasoning
    silent: bool = False  # they have no text: half a character, or what a parser holds back


class Script(NamedTuple):
    """One answer."""

    steps: tuple[Step, ...]
    usage: str = "each"
    ending: str = "done"
    tail: float = 0.0  # seconds between the last token and whatever closes the answer
    verify_steps: int | None = None
    counts_thoughts: bool = True  # the server counts reasoning tokens
    prompt_tokens: int = 6
    cached_tokens: int = 5

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self.steps)

    @property
    def seconds(self) -> float:
        return sum(step.after for step in self.steps) + self.tail

    @property
    def text(self) -> str:
        """All of it, reasoning included."""
        return "".join(text for _, text in spoken(self.steps))

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Script:
        return cls(**{**found, "steps": tuple(Step(*step) for step in found["steps"])})


def spoken(steps: Iterable[Step]) -> Iterable[tuple[Step, str]]:
    """Each step with its text: a word a token; what was silent comes out with the next step that is not."""
    number, held = 0, ""
    for step in steps:
        held += "".join(f" {number + index}" for index in range(step.tokens))
        number += step.tokens
        yield step, "" if step.silent else held
        held = held if step.silent else ""


def steady(
    tokens: int,
    rate: float,
    *,
    first: float = 2.0,
    ahead: int = 1,
    together: int = 1,
    jitter: float = 0.0,
    pauses: dict[int, float] | None = None,
    seed: int = 1,
) -> tuple[Step, ...]:
    """``tokens`` at ``rate`` tok/s, the first ``ahead`` of them after ``first`` seconds, then ``together`` a step.

    ``jitter``: relative, of each gap; ``pauses``: seconds more before that step.
    """
    chance = random.Random(seed)
    steps, left = [Step(first, ahead)], tokens - ahead
    while left > 0:
        some = min(together, left)
        gap = some / rate * (1 + jitter * chance.uniform(-1, 1)) + (pauses or {}).get(len(steps), 0.0)
        steps.append(Step(gap, some))
        left -= some
    return tuple(steps)
