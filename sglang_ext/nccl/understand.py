"""What NCCL takes a variable's text for: the rule is the variable's, and the release's.

Two texts with the same `Meaning.value` mean the same to that release. The value of a text NCCL passes over is "", as of a
variable that is not set; what it does not read at all is passed over.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang_ext.hide import holds_credentials
from sglang_ext.nccl import integers, lists, words
from sglang_ext.nccl.catalogue import Variable, alive, distance, get
from sglang_ext.nccl.finding import NOTE, Finding, library, misfit, shown
from sglang_ext.nccl.integers import BLANKS, integer
from sglang_ext.nccl.version import NEWEST_KNOWN
from sglang_ext.quick import NamedTuple

# From where to where NCCL makes up for a list that enables nothing: with Ring and Tree, with every protocol (of Ring).
MADE_UP = {"NCCL_ALGO": ((2, 0), lists.PER_FUNCTION_SINCE), "NCCL_PROTO": ((2, 19), (2, 22))}
LONGEST_READ = 65536  # characters; nothing any rule can use is longer


class Meaning(NamedTuple):
    """``value`` is canonical, of a number what NCCL reads and logs; `taken` says what it goes on with.

    ``faults`` say where it is not what the text seems to say, or where NCCL ends over it.
    """

    value: str
    faults: tuple[Finding, ...] = ()


def understand(name: str, text: str, version: tuple[int, ...] | None) -> Meaning:
    """``text`` as that release reads it; without a version as the newest known one. A name it does not know: the text."""
    variable = get(name)
    if variable is None:
        return Meaning(text)
    rules = NEWEST_KNOWN if version is None else version
    if not alive(variable, rules):
        return Meaning("")
    text = text.partition("\0")[0][:LONGEST_READ]
    who = library(version)
    value, faults = RULES[variable.parser](variable, text, rules, who)
    faults = _quotes(variable, text, value, who) or faults
    if variable.subsystem == "debug":  # a log that does not come changes no communication
        faults = [fault._replace(severity=NOTE) for fault in faults]
    return Meaning(value, tuple(faults))


def taken(name: str, text: str, version: tuple[int, ...] | None) -> str:
    """What that release goes on with: `Meaning.value`, and of a number what its bounds leave of it."""
    value, variable = understand(name, text, version).value, get(name)
    if variable is None or variable.parser != "integer" or value == "":
        return value
    return integers.taken(variable, int(value), NEWEST_KNOWN if version is None else version)


def _quotes(variable: Variable, text: str, value: str, who: str) -> list[Finding]:
    """Quotes that a shell would have taken off, and an env-file or a configuration file leaves on."""
    bare = text.strip(BLANKS)
    inner = bare.strip("\"'")
    if len(bare) < 2 or (bare[0] not in "\"'" and bare[-1] not in "\"'"):
        return []
    if value == text:
        becomes = f"where {who} takes the quotes as part of it"
    else:
        becomes = f"which {who} " + (f"reads as {shown(value)}" if value else "does not take for a value")
    plain = inner.isprintable() and 0 < len(inner) <= 60 and not holds_credentials(inner)
    fix = f"write {inner} without quotes" if plain else "write it without quotes"
    return [misfit("quoted", variable.name, "a value without quotes", text, becomes, fix)]


def tuning_list(variable: Variable, text: str, version: tuple[int, ...], who: str) -> tuple[str, list[Finding]]:
    """NCCL_PROTO and NCCL_ALGO."""
    name = variable.name
    parsed = lists.parse(name, text, version)
    known = lists.words_of(name, version)
    expected = f"a list out of {', '.join(known)}, joined by commas without blanks"
    if parsed.refused:
        becomes = f"which {who} refuses when a communicator is made: {parsed.refused}"
        return text, [misfit("value_refused", name, expected, text, becomes, _better_list(text, known, version))]
    value = lists.canonical(name, parsed, version)
    if not parsed.ignored and value != "none":
        return value, []
    if value == "none":
        made_up = MADE_UP[name][0] <= version < MADE_UP[name][1]
        ends = f"{who} falls back to others" if made_up else f"{who} fails at the first collective"
        passed = f" (it passes over {shown(parsed.ignored[0])})" if parsed.ignored else ""
        code = "value_ignored" if made_up else "no_algorithm"
        becomes = f"which enables nothing{passed}: {ends}"
        return value, [misfit(code, name, expected, text, becomes, _better_list(text, known, version))]
    becomes = f"of which {who} passes over {shown(parsed.ignored[0])} in silence"
    return value, [misfit("value_ignored", name, expected, text, becomes, _better_list(text, known, version))]


def _better_list(text: str, known: tuple[str, ...], version: tuple[int, ...]) -> str:
    """What to write instead: the text without blanks and quotes where that is well-formed, else a hint for its first odd word."""
    name = "NCCL_PROTO" if "LL" in known else "NCCL_ALGO"
    plain = "".join(ch for ch in text if ch not in " \t\n\v\f\r\"'")
    parsed = lists.parse(name, plain, version)
    if plain and plain != text and len(plain) <= 60 and not parsed.refused and not parsed.ignored:
        if name == "NCCL_PROTO" and lists.forces_ll128(parsed, version):
            return f"write {plain}, better without LL128, which a list forces past NCCL's own check of the hardware"
        return f"write {plain}"
    if version < lists.PER_FUNCTION_SINCE and (":" in text or ";" in text):
        return "leave the functions out, as lists per function came with 2.24"
    for piece in plain[:200].replace(";", ",").replace(":", ",").replace("^", ",").split(","):
        low = lists.lower(piece)
        if not piece or low in map(lists.lower, (*known, *lists.FUNCTIONS)):
            continue
        return f"write {near} for {shown(piece)}" if (near := _near(low, known)) else f"take {shown(piece)} out"
    return 'write it like LL,Simple or Ring;allreduce:Tree, with "^" only in front of a whole list'


def _near(low: str, known: tuple[str, ...]) -> str | None:
    if low in ("collnet", "nvls_tree", "collnet_direct", "collnet_chain"):
        return {"nvls_tree": "NVLSTree", "collnet_chain": "CollNetChain"}.get(low, "CollNetDirect")
    near = [(distance(low, word.lower(), 2), word) for word in known if len(low) >= 3]
    return min(near)[1] if near and min(near)[0] <= 2 else None


# Per parser of the catalogue: (variable, text, release, library's name) to the canonical value and what is wrong.
RULES: dict[str, Callable[[Variable, str, tuple[int, ...], str], tuple[str, list[Finding]]]] = {
    "integer": integer,
    "tuning_list": tuning_list,
    "level": words.level,
    "only_one": words.only_one,
    "word": words.word,
    "prefix": words.prefix,
    "cta_policy": words.cta_policy,
    "mask": words.mask,
    "flag": words.flag,
    "strtol": words.strtol,
    "folded": words.folded,
    "magic": words.magic,
    "factor": words.factor,
    "interface": words.interface,
    "name_list": words.name_list,
    "rendezvous": words.rendezvous,
    "cpus": words.cpus,
    "address_range": words.address_range,
    "text": words.as_it_is,
}
