"""What arms may differ in: the names a suite puts under test, and whether its arms keep to them as far as the suite shows.

A campaign says something about the thing under test only where everything else is the same. What the suite cannot show, such
as the arguments a server resolves by itself, is compared once the servers run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from sglang_ext.bench.suites.server_words import DRAFT_ARGUMENT
from sglang_ext.bench.suites.strict import error
from sglang_ext.contract.names import shown

if TYPE_CHECKING:
    from sglang_ext.bench.suites.arms import Arm

ARGUMENTS, CONTRACT, ENVIRONMENT = "arguments", "contract", "environment"
DRAFT, PATCHES = "draft", "patches"
# One thing by name, or all that begin alike. A bare "*" would put everything under test.
ENTRY = re.compile(
    r"(?:arguments\.[a-z][a-z0-9_]*\*?|(?:contract|environment)\.[A-Za-z_][A-Za-z0-9_]*\*?|draft|patches)"
)
GRAMMAR = "arguments.NAME, contract.NAME, environment.NAME (NAME may end in *), draft or patches"
NOT_GIVEN = "not given"
Facts = Mapping[str, object]  # "arguments.tp_size" -> what the arm says of it


def check_entries(entries: Sequence[str], place: str) -> None:
    """Raises SuiteError."""
    for entry in entries:
        if not ENTRY.fullmatch(entry):
            raise error(place, GRAMMAR, repr(entry), "correct it")
    if not entries:
        raise error(place, "the thing under test", "an empty array", f"name what the arms differ in: {GRAMMAR}")
    doubled = {one for one, other in pairwise(sorted(entries)) if one == other}
    if doubled:
        raise error(place, "each name once", f"{min(doubled)} twice", "remove one")


def covers(entries: Iterable[str], fact: str) -> bool:
    """Is ``fact`` ("arguments.tp_size", "contract.NCCL_PROTO", "patches", ...) under test?

    "draft" is short for the argument that names the draft model.
    """
    for entry in entries:
        name = f"{ARGUMENTS}.{DRAFT_ARGUMENT}" if entry == DRAFT else entry
        if fact == name or (name.endswith("*") and fact.startswith(name[:-1])):
            return True
    return False


def facts(arm: Arm) -> dict[str, object]:
    """Everything the suite says of an arm's server, by the names that ``under_test`` has for it."""
    return {
        **{f"{ARGUMENTS}.{name}": given for name, given in arm.options.items()},
        **{f"{CONTRACT}.{name}": want for name, want in arm.variables.items()},
        **{f"{ENVIRONMENT}.{name}": value for name, value in arm.environment.items()},
        PATCHES: (arm.patches, arm.without),
    }


def check_arms(arms: Sequence[Arm], entries: Sequence[str], where: str) -> None:
    """Refuse arms that differ in more than is under test, that leave it to the shell, or that are the same. Raises SuiteError."""
    said = {arm.name: facts(arm) for arm in arms}
    baseline = next(arm.name for arm in arms if arm.baseline)
    for name, own in said.items():
        for fact in sorted(own.keys() | said[baseline].keys()):
            mine, theirs = (side.get(fact, NOT_GIVEN) for side in (own, said[baseline]))
            if mine != theirs and not covers(entries, fact):
                raise error(
                    f"{where}: arm {name} against {baseline}",
                    "a difference in nothing but what is under test",
                    f"{fact} {_word(fact, mine)} against {_word(fact, theirs)}",
                    f"make it the same, or name {fact} in under_test",
                )
    _check_said_by_all(said, where)
    names = list(said)
    for index, name in enumerate(names):
        for other in names[:index]:
            if said[name] == said[other]:
                raise error(
                    f"{where}: arm {name}", f"another server than that of {other}", "the same one",
                    "change or remove it: the control is the baseline once more, by itself",
                )  # fmt: skip


def unvaried(arms: Sequence[Arm], entries: Sequence[str]) -> list[str]:
    """The entries that no arm varies as far as the suite says. Of running servers it says nothing."""
    if any(arm.address is not None for arm in arms):
        return []
    said = [facts(arm) for arm in arms]
    differ = [
        f
        for f in {f for own in said for f in own}
        if any(own.get(f, NOT_GIVEN) != said[0].get(f, NOT_GIVEN) for own in said)
    ]
    return [entry for entry in entries if not any(covers((entry,), fact) for fact in differ)]


def _check_said_by_all(said: Mapping[str, Facts], where: str) -> None:
    """A variable one arm decides, every arm decides. Where an arm is silent the launching shell would, and it may agree."""
    variables = sorted({f for own in said.values() for f in own if f.startswith((f"{CONTRACT}.", f"{ENVIRONMENT}."))})
    for fact in variables:
        kind, _, name = fact.partition(".")
        for arm, own in said.items():
            if fact not in own:
                how = f"set or absent = [{name!r}]" if kind == CONTRACT else "a value in environment, or set and absent"
                raise error(
                    f"{where}: arm {arm}", f"it to decide {name}, as another arm does", "nothing, so that the shell would",
                    f"write {how} in every arm",
                )  # fmt: skip


def _word(fact: str, value: object) -> str:
    if value == NOT_GIVEN:
        return NOT_GIVEN
    if fact == PATCHES and isinstance(value, tuple):
        patched, without = value
        left = f" without {', '.join(without)}" if without else ""
        return f"on{left}" if patched else "off"
    if isinstance(value, tuple):
        return " ".join(value) or "given"
    return shown(value) if isinstance(value, str) else "absent"
