"""What is asked: prompts as texts with their hashes, and whether a text can be asked where acceptance of drafts matters.

How much of a draft is accepted depends on the text. On one server 3.93 tokens a step were reported for a loop of two
tokens and 1.94 for a chat (tokenspeed#1305), so a prompt that repeats itself measures the loop and not the draft model.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from sglang_ext.bench.suites.strict import error, read, text

WINDOW = 200  # words: over more of them natural text repeats itself too
LEAST_DISTINCT = 0.5  # of a window's pairs of neighbours; the shipped prompts, code among them, have 0.9 and more
BIGGEST = 4 << 20  # bytes of a prompt's file; no model takes as much
FEWEST_WORDS = 3  # fewer: a language without blanks, or hardly a text; its characters are looked at instead


class Prompt(NamedTuple):
    """One prompt. ``file`` is how the suite named it, None where the text stands in the suite."""

    file: str | None
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "sha256": self.sha256, "characters": len(self.text)}


def read_prompt(name: str, suite: str, place: str, key: str) -> Prompt:
    """The prompt in the file ``name``, beside the suite or below. Raises SuiteError.

    Nowhere else, links included: a suite from somebody else must not send another file of this machine to a server.
    """
    folder = os.path.dirname(os.path.abspath(suite))
    file = os.path.join(folder, name)
    if not os.path.realpath(file).startswith(os.path.realpath(folder).rstrip("/") + "/"):
        raise error(f"{place} {key}", "a file beside the suite or below", name, "move it there")
    found = text(read(file, f"{place} {key} {name}", BIGGEST), f"{place} {key} {name}")
    if not found.strip():
        raise error(f"{place} {key} {name}", "some text", "an empty file", "write the prompt into it")
    return Prompt(name, found)


def distinct_pairs(found: str) -> float:
    """The share of distinct pairs of neighbouring words, in the stretch of the text that has the fewest; 1.0 is no repetition."""
    words = found.casefold().split()
    units = words if len(words) >= FEWEST_WORDS else list(found.strip())
    return min((_share(stretch) for stretch in _stretches(units)), default=1.0)


def _share(units: list[str]) -> float:
    pairs = list(pairwise(units))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def _stretches(units: list[str]) -> Iterator[list[str]]:
    """Windows one after the other. The last one reaches back, so that a short rest is not judged by itself."""
    for start in range(0, max(len(units), WINDOW), WINDOW):
        yield units[max(min(start, len(units) - WINDOW), 0) : start + WINDOW]


def check_natural(prompt: Prompt, place: str) -> None:
    """Refuse a prompt that mostly repeats itself. Raises SuiteError."""
    share = distinct_pairs(prompt.text)
    if share < LEAST_DISTINCT:
        what = f"{place} prompt" if prompt.file is None else f"{place} prompt {prompt.file}"
        raise error(
            what,
            "natural text, as a speculative arm's rate depends on it",
            f"a stretch that repeats itself (distinct pairs of words: {share:.0%})",
            "take one of benchmarks/prompts/, or write a prompt as your users do",
        )
