"""What a server was asked for, held against what upstream made of it. Pure.

Not a parser: upstream's has 546 options and changes with every release. An option is looked up by its argument's name in the
answer of /server_info, and what is not found there is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_ext.bench.suites.server_words import argument_of

# Values that upstream writes in another way when it resolves them: asked for -> also right.
SPELLINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # One name for what the draft turns out to be; sglang 0.5.23 srt/arg_groups/speculative_hook.py:81.
    "speculative_algorithm": {"NEXTN": ("EAGLE", "FROZEN_KV_MTP"), "EAGLE": ("FROZEN_KV_MTP",)},
    "dtype": {"half": ("float16",), "float": ("float32",)},
}
LEFT_TO_UPSTREAM = ("auto", "None", "none")


def requested(words: Sequence[str]) -> dict[str, str | bool]:
    """Argument -> its text, or whether a flag was given. Of one given twice the last counts, as with argparse."""
    found: dict[str, str | bool] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or word == "--":
            continue
        option, equals, value = word.partition("=")
        values = [value] if equals else []
        while not equals and index < len(words) and not words[index].startswith("--"):
            values.append(words[index])
            index += 1
        if not values and option.startswith("--no-"):
            found[argument_of("--" + option[5:])] = False
        else:
            found[argument_of(option)] = " ".join(values) if values else True
    return found


def same(name: str, asked: str | bool, resolved: Any) -> bool:
    """Is ``resolved`` what was asked for? What is left to upstream is whatever it made of it."""
    if isinstance(asked, bool) or isinstance(resolved, bool):
        return asked is resolved or (isinstance(asked, str) and asked.lower() == str(resolved).lower())
    if asked in LEFT_TO_UPSTREAM:
        return True
    if isinstance(resolved, int | float):
        try:
            return float(asked) == resolved
        except ValueError:
            return False
    if isinstance(resolved, list):
        return asked.split() == [str(one) for one in resolved]
    return resolved is not None and str(resolved) in (asked, *SPELLINGS.get(name, {}).get(asked, ()))
