"""What differs between two sides. Pure: facts in, differences out.

A side states facts by group, rank and name, or why it cannot. Two facts are equal, different, *noted* (they differ and it
does not count, with the reason), or not comparable. What one side cannot know is never equal and never different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sglang_ext import hide
from sglang_ext.contract.names import is_nccl

CONTRACT, ENVIRONMENT, ARGUMENTS, VERSIONS, NCCL = "contract", "environment", "arguments", "versions", "nccl"
DRIVER, PATCHES, MODEL, SIZES, HOST = "driver", "patches", "model", "sizes", "host"
GROUPS: Mapping[str, str] = {  # in the order they are printed
    CONTRACT: "contract terms",
    ENVIRONMENT: "environment of the ranks",
    ARGUMENTS: "server arguments, as resolved",
    MODEL: "model",
    VERSIONS: "versions",
    NCCL: "NCCL, by the file the ranks have mapped",
    DRIVER: "driver",
    PATCHES: "patches",
    SIZES: "sizes",
    HOST: "host",
}

# (group, name) -> why it differs between any two launches, and says nothing about how they are set up.
BY_NATURE: Mapping[tuple[str, str], str] = {
    (ARGUMENTS, "port"): "only where it listens",
    (ARGUMENTS, "nccl_port"): "only where the ranks meet",
    (ARGUMENTS, "dist_init_addr"): "only where the ranks meet",
    (ARGUMENTS, "random_seed"): "drawn at each launch where it is not given; at temperature 0 it has no effect",
    (ARGUMENTS, "status"): "what the server is doing now",
    (HOST, "name"): "its parts are compared below, and a container gets a new name each time",
}
# What a record has in place of a value: sglang's own mark, that of our receipts (bench/fingerprint.py), and that of whatever
# else we show or store (hide.py).
HIDDEN = ("<redacted>", "(left out: it looks like it holds a secret)", hide.HIDDEN)
CUT = " characters)"  # how a text ends that a receipt has cut


class _Missing:
    """A name that a side knows not to be there; None is a value (an argument that was not given, a term "absent")."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Known(NamedTuple):
    """What a side knows of one group, or of one rank in it: facts, names it cannot tell, or why it can tell nothing."""

    facts: Mapping[str, Any] = {}
    unknown: Mapping[str, str] = {}
    why: str | None = None

    def reason(self, name: str) -> str | None:
        """Why nothing is known of ``name``; None where it is known, be it as missing."""
        return self.why if self.why is not None else self.unknown.get(name)


class Side(NamedTuple):
    """One side of a comparison. ``groups``: group -> rank ("" where it has none) -> what is known."""

    given: str  # as on the command line
    kind: str  # server, run, receipt, report
    what: str  # for people
    groups: Mapping[str, Mapping[str, Known]]

    def nccl_version(self) -> str | None:
        """The version of NCCL that all its ranks have mapped, where that is known and one."""
        found = {known.facts.get("version") for known in self.groups.get(NCCL, {}).values()}
        version = found.pop() if len(found) == 1 else None
        return version if isinstance(version, str) else None


class Difference(NamedTuple):
    """One name that is not the same. ``ranks`` empty: for all of them. ``why`` is set where it does not count."""

    group: str
    name: str
    ranks: tuple[str, ...]
    a: Any
    b: Any
    why: str | None = None


class NotComparable(NamedTuple):
    """Names of a group that one side or both cannot tell; no names: the whole group."""

    group: str
    names: tuple[str, ...]
    why: str


class Comparison(NamedTuple):
    """Everything two sides come to."""

    differences: tuple[Difference, ...]
    notes: tuple[Difference, ...]
    not_comparable: tuple[NotComparable, ...]
    equal: Mapping[str, int]  # group -> names that are the same

    @property
    def compared(self) -> int:
        return sum(self.equal.values()) + len({(d.group, d.name) for d in (*self.differences, *self.notes)})


# (name, a, b) -> why NCCL takes both for the same, or None. Only asked where the texts differ.
Same = Callable[[str, "str | None", "str | None"], "str | None"]


def never(name: str, a: str | None, b: str | None) -> str | None:
    """For a comparison by text alone."""
    return None


def compare(a: Side, b: Side, same: Same = never) -> Comparison:
    """Compare all groups of both sides."""
    comparing = _Comparing(same)
    for group in GROUPS:
        comparing.group(group, a.groups.get(group, {}), b.groups.get(group, {}))
    return comparing.done()


class _Comparing:
    """Collects while it goes from group to group."""

    def __init__(self, same: Same) -> None:
        self.same = same
        self.differences: list[Difference] = []
        self.notes: list[Difference] = []
        self.unknown: dict[tuple[str, str], list[str]] = {}  # (group, why) -> names
        self.equal = dict.fromkeys(GROUPS, 0)

    def group(self, group: str, a: Mapping[str, Known], b: Mapping[str, Known]) -> None:
        blind = _blind(a, b)
        if blind is not None:
            self.unknown[group, blind] = []
            return
        names = dict.fromkeys(n for side in (a, b) for known in side.values() for n in (*known.facts, *known.unknown))
        for name in sorted(names):
            self.name(group, name, a, b)

    def name(self, group: str, name: str, a: Mapping[str, Known], b: Mapping[str, Known]) -> None:
        values = [_told(side, name) for side in (a, b)]
        why = _reasons(name, a, b)
        if not all(values):
            self.cannot(group, name, why)
            return
        if all(_uniform(side) for side in values):
            pairs = [((), *(next(iter(side.values())) for side in values))]
        else:
            ranks = [rank for rank in values[0] if rank in values[1]]
            pairs = [((rank,), values[0][rank], values[1][rank]) for rank in ranks]
            alone = [rank for rank in (*values[0], *values[1]) if rank not in ranks]
            if alone:
                why = "; ".join(filter(None, (why, f"{', '.join(alone)}: no such rank on the other side")))
        if why:
            self.cannot(group, name, why)
        self.pairs(group, name, pairs)

    def pairs(self, group: str, name: str, pairs: list[tuple[tuple[str, ...], Any, Any]]) -> None:
        """Compare, and put ranks together that differ in the same way."""
        found: list[Difference] = []
        known = False
        for ranks, a, b in pairs:
            if isinstance(a, Mapping) and isinstance(b, Mapping):  # a big one: what differs in it is then one line
                for key in sorted({*a, *b}):
                    self.pairs(group, f"{name}.{key}", [(ranks, a.get(key, MISSING), b.get(key, MISSING))])
                continue
            if doubt := _doubt(a, b):
                self.cannot(group, name, doubt)
                continue
            known = True
            if _equal(a, b):
                continue
            why = BY_NATURE.get((group, name)) or self.meaning(group, name, a, b)
            for at, other in enumerate(found):
                if _equal(other.a, a) and _equal(other.b, b):
                    found[at] = other._replace(ranks=(*other.ranks, *ranks))
                    break
            else:
                found.append(Difference(group, name, ranks, a, b, why))
        self.notes += [d for d in found if d.why is not None]
        self.differences += [d for d in found if d.why is None]
        self.equal[group] += known and not found

    def meaning(self, group: str, name: str, a: Any, b: Any) -> str | None:
        """Why an NCCL variable whose text differs is the same to NCCL, or None."""
        if group not in (ENVIRONMENT, CONTRACT) or not is_nccl(name):
            return None
        if group == CONTRACT and (a is MISSING or b is MISSING):
            return None  # not required is another thing than required to be absent
        return self.same(name, *(v if isinstance(v, str) else None for v in (a, b)))

    def cannot(self, group: str, name: str, why: str) -> None:
        names = self.unknown.setdefault((group, why), [])
        if name not in names:
            names.append(name)

    def done(self) -> Comparison:
        order = list(GROUPS)
        unknown = [NotComparable(group, tuple(names), why) for (group, why), names in self.unknown.items()]
        return Comparison(
            tuple(self.differences),
            tuple(self.notes),
            tuple(sorted(unknown, key=lambda u: order.index(u.group))),
            self.equal,
        )


def _blind(a: Mapping[str, Known], b: Mapping[str, Known]) -> str | None:
    """Why a whole group cannot be compared, or None."""
    whys = []
    for letter, side in (("A", a), ("B", b)):
        if all(known.why is not None for known in side.values()):
            said = dict.fromkeys(known.why for known in side.values() if known.why)
            whys.append((letter, "; ".join(said) or "it has none"))
    return _both(whys)


def _reasons(name: str, a: Mapping[str, Known], b: Mapping[str, Known]) -> str:
    """Why some ranks of a side say nothing of ``name``; empty where all do."""
    whys = []
    for letter, side in (("A", a), ("B", b)):
        said: dict[str, list[str]] = {}
        for rank, known in side.items():
            if (why := known.reason(name)) is not None:
                said.setdefault(why, []).append(rank)
        texts = [why if len(ranks) == len(side) else f"{', '.join(ranks)}: {why}" for why, ranks in said.items()]
        if texts:
            whys.append((letter, "; ".join(texts)))
    return _both(whys) or ""


def _both(whys: list[tuple[str, str]]) -> str | None:
    """`A: why`, `A: why; B: why`, or `why` where both say the same."""
    if len(whys) == 2 and whys[0][1] == whys[1][1]:
        return f"A and B: {whys[0][1]}"
    return "; ".join(f"{letter}: {why}" for letter, why in whys) or None


def _told(side: Mapping[str, Known], name: str) -> dict[str, Any]:
    """What each rank that knows it says of ``name``."""
    return {rank: known.facts.get(name, MISSING) for rank, known in side.items() if known.reason(name) is None}


def _uniform(values: Mapping[str, Any]) -> bool:
    first = next(iter(values.values()))
    return all(_equal(first, value) for value in values.values())


def _equal(a: Any, b: Any) -> bool:
    """Python calls True and 1 equal, and JSON does not: an argument that became a number has changed."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return bool(a == b)


def _doubt(a: Any, b: Any) -> str | None:
    """Why two readings prove nothing, equal or not; None where they do."""
    if any(text in HIDDEN for value in (a, b) for text in _texts(value)):
        return "the value is hidden: it may be a secret"
    if _equal(a, b) and any(text.endswith(CUT) and "... (" in text for text in _texts(a)):
        return "the beginnings are the same; the rest is kept nowhere"
    return None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value: a list of arguments may have a hidden one in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
