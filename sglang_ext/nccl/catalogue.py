"""The variables libnccl reads, as data: `variables.json`, read once and only when somebody asks.

A line of that file is one variable. Its fields are those of `Variable`; a field that is left out is None or False.
"""

from __future__ import annotations

from sglang_ext.nccl.version import parse_version
from sglang_ext.quick import Any, NamedTuple

PREFIX = "NCCL_"
INTEGER_RULE = (
    "strtoll with base 0, which stops at what it does not like: 4M is 4, 010 is 8, 0x10 is 16; a text without digits is 0, from "
    "2.32 on the default, as is a number beyond 64 bits"
)


class Variable(NamedTuple):
    """One variable. Versions are the first release that reads it, and the first that does not any more.

    ``parser`` names the reading rule (`understand.RULES`). ``must_match`` says whether ranks that differ in it break a
    communicator, None where nobody knows; ``evidence`` is "code" where that was read in the source, else it was inferred
    from where the value is used. ``values`` and ``defaults`` (per version) are for people.
    """

    name: str
    kind: str  # bool, int, size, enum, list, string, path
    parser: str
    subsystem: str
    effect: str
    default: str = ""
    introduced: str | None = None  # None: older than 2.3.5
    removed: str | None = None
    must_match: bool | None = None
    reason: str = ""
    evidence: str = "inferred"
    values: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    read_when: str = ""
    cached: bool = False
    source: str = ""
    log_line: str | None = None
    invalid_value: str = ""
    deprecated: str = ""
    note: str = ""
    unused: bool = False  # defined or named somewhere, and read nowhere
    documented: bool = False  # in NCCL's user guide

    @property
    def by_plugin(self) -> bool:
        """True where an example plugin of NCCL's tree reads it, and libnccl never does."""
        return self.subsystem.startswith("plugin:")


_rows: dict[str, dict[str, Any]] = {}
_made: dict[str, Variable] = {}


def _table() -> dict[str, dict[str, Any]]:
    if not _rows:
        import json

        with open(
            __file__.rpartition("/")[0] + "/variables.json", encoding="utf-8"
        ) as stream:  # importlib.resources is slower
            _rows.update(json.load(stream)["variables"])
    return _rows


def names() -> tuple[str, ...]:
    """Every name any known release reads, in order."""
    return tuple(_table())


def get(name: str) -> Variable | None:
    """The variable of that exact name, or None."""
    found = _made.get(name)
    if found is None and name.startswith(PREFIX) and (row := _table().get(name)) is not None:
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        if fields.get("log_line") == "%":  # what every integer parameter prints
            fields["log_line"] = f"{name} set by environment to %lld."
            fields.setdefault("invalid_value", INTEGER_RULE)
        found = _made[name] = Variable(name, **fields)
    return found


def _at(text: str | None) -> tuple[int, ...]:
    return parse_version(text) or (0,) if text else (0,)


def alive(variable: Variable, version: tuple[int, ...]) -> bool:
    """True where that release reads the variable (or, for a plugin's, comes with the plugin)."""
    return not gone(variable, version) and not too_new(variable, version) and not variable.unused


def gone(variable: Variable, version: tuple[int, ...]) -> bool:
    """True where the release dropped it, or an earlier one did."""
    return variable.removed is not None and version >= _at(variable.removed)


def too_new(variable: Variable, version: tuple[int, ...]) -> bool:
    """True where only a later release brought it."""
    return version < _at(variable.introduced)


def must_match(name: str, version: tuple[int, ...] | None) -> bool | None:
    """Whether ranks must hold the same value: False where the release does not read it, None where nobody knows."""
    variable = get(name)
    if variable is None:
        return None
    if version is not None and not alive(variable, version):
        return False
    return variable.must_match


def suggest(name: str, version: tuple[int, ...] | None = None) -> str | None:
    """The known name that was most likely meant, or None; of two as near the one that ``version`` reads.

    Never a known name itself.
    """
    if len(name) > 80 or name in _table():
        return None
    plain = name.removeprefix("export ").strip().replace("-", "_").upper()
    if plain in _table():
        return plain
    if (other := opposite(name)) in _table():
        return other
    if name.startswith(PREFIX):
        return _nearest(name, version)
    return _nearest(plain, version) if plain.startswith(PREFIX) else _slip_of_prefix(plain)


def opposite(name: str) -> str | None:
    """NCCL_IB_DISABLE for NCCL_IB_ENABLE, and the other way round: what people take for granted and NCCL has only one of."""
    for one, other in (("_ENABLE", "_DISABLE"), ("_DISABLE", "_ENABLE")):
        if name.endswith(one):
            return name.removesuffix(one) + other
    return None


def _nearest(name: str, version: tuple[int, ...] | None) -> str | None:
    # Short names lie close together: NCCL_NOT is not a slip of NCCL_NET that anybody can know.
    limit = 2 if len(name) >= len(PREFIX) + 5 else 1
    best: tuple[int, bool, str] | None = None
    letters = set(name)
    for known in _table():
        # A change takes one letter away and adds one: a quick look spares most comparisons.
        if abs(len(known) - len(name)) <= limit and len(letters ^ set(known)) <= 2 * limit:
            far = distance(name[len(PREFIX) :], known[len(PREFIX) :], limit)
            if far > limit:
                continue
            variable = get(known)
            unread = version is not None and variable is not None and not alive(variable, version)
            if best is None or (far, unread) < best[:2]:
                best = far, unread, known
    return best[2] if best else None


def _slip_of_prefix(plain: str) -> str | None:
    """NCLL_PROTO, NCC_PROTO, NCCLPROTO. Other libraries' prefixes (RCCL_, HCCL_, CCL_) are none: an N comes first."""
    if not plain.startswith("N"):
        return None
    for known in _table():
        tail = known[len(PREFIX) :]
        if plain.endswith(tail) and 3 <= len(plain) - len(tail) <= 6:
            head = plain[: len(plain) - len(tail)]
            if distance(head, PREFIX, 1) <= 1:
                return known
    return None


def distance(one: str, other: str, limit: int) -> int:
    """How many characters must be changed, added, dropped or swapped with their neighbour; above ``limit`` any larger number."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, ch in enumerate(one, 1):
        two_before, before, row = before, row, [i]
        for j, ch2 in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (ch != ch2))
            if i > 1 and j > 1 and ch == other[j - 2] and one[i - 2] == ch2:
                cost = min(cost, two_before[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
    return row[-1]
