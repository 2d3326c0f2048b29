"""The grammar of NCCL_PROTO and NCCL_ALGO, and what such a list leaves enabled.

Source: parseList in NCCL 2.18 to 2.30.7 src/graph/tuning.cc, from 2.31 on src/tuning/cost_model.cc. Two grammars:

up to 2.23  ``[^]word,word``: one list for all functions; a word NCCL does not know is passed over in silence.
from 2.24   ``[function:][^]word,word;function:[^]word,...``: only the first entry may lack its function; a word NCCL
            does not know ends the initialisation.

In both, case does not matter, blanks do, empty words are skipped, and ``^`` counts at the start of a list only.
"""

from __future__ import annotations

from sglang_ext.quick import NamedTuple

PROTOCOLS = ("LL", "LL128", "Simple")
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree")
PER_FUNCTION_SINCE, PAT_SINCE, CHECKED_LL128_SINCE = (2, 24), (2, 23), (2, 31)

# The algorithms each function is written for (ncclTopoTuneModel), and those that know another protocol than Simple.
WRITTEN_FOR = {
    "Broadcast": frozenset({"Ring"}),
    "Reduce": frozenset({"Ring"}),
    "AllGather": frozenset({"Ring", "CollNetDirect", "NVLS", "PAT"}),
    "ReduceScatter": frozenset({"Ring", "CollNetDirect", "NVLS", "PAT"}),
    "AllReduce": frozenset({"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"}),
}
ANY_PROTOCOL = frozenset({"Tree", "Ring"})


class Parsed(NamedTuple):
    """What a list says. ``enabled`` has the functions it speaks about; the others stay as they are without a list.

    ``refused`` is why NCCL ends there (the end of a sentence), ``ignored`` the words it passes over; ``named`` the
    functions for which it has at least one word.
    """

    enabled: dict[str, frozenset[str]]
    refused: str = ""
    ignored: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()


def words_of(name: str, version: tuple[int, ...]) -> tuple[str, ...]:
    """The words that release knows in that variable."""
    if name == "NCCL_PROTO":
        return PROTOCOLS
    return (*_ALGORITHMS, "PAT") if version >= PAT_SINCE else _ALGORITHMS


def lower(text: str) -> str:
    """As strcasecmp compares: only ASCII letters have a case."""
    return text.lower() if text.isascii() else text


def parse(name: str, text: str, version: tuple[int, ...]) -> Parsed:
    """``text`` as that release reads it. Total: every text has an answer."""
    known = {lower(word): word for word in words_of(name, version)}
    if version >= PER_FUNCTION_SINCE:
        return _per_function(text, known)
    enabled, ignored = _one_list(text, known)
    return Parsed(dict.fromkeys(FUNCTIONS, enabled), "", tuple(ignored))


def _one_list(text: str, known: dict[str, str]) -> tuple[frozenset[str], list[str]]:
    """What one list enables, and its unknown words."""
    all_but = text.startswith("^")
    words = [word for word in text[all_but:].split(",") if word]
    named = frozenset(known[lower(word)] for word in words if lower(word) in known)
    return (frozenset(known.values()) - named if all_but else named), [w for w in words if lower(w) not in known]


def _per_function(text: str, known: dict[str, str]) -> Parsed:
    functions = {lower(function): function for function in FUNCTIONS}
    enabled: dict[str, frozenset[str]] = {}
    named: set[str] = set()
    for index, entry in enumerate(part for part in text.split(";") if part):
        # strtok skips separators in front, but only the very first character may begin the entry without a function.
        first = index == 0 and not text.startswith(";")
        pieces = [piece for piece in entry.split(":") if piece]
        if len(pieces) < 2 and not first:
            return Parsed(
                enabled, f'every entry but the first must name its function ("function:list"), {entry[:60]!r} does not'
            )
        if not pieces:
            return Parsed(enabled, 'it follows an empty pointer at a ":" without words, and crashes')
        function = pieces[0] if len(pieces) > 1 else None
        if function is not None and lower(function) not in functions:
            return Parsed(enabled, f"{function[:60]!r} is no function it knows (it knows {', '.join(FUNCTIONS)})")
        words = pieces[min(1, len(pieces) - 1)]
        listed, unknown = _one_list(words, known)
        if unknown:
            return Parsed(enabled, f"{unknown[0][:60]!r} is no word it knows")
        for name in (functions[lower(function)],) if function is not None else FUNCTIONS:
            enabled[name] = listed
            if words.strip("^,"):
                named.add(name)
    return Parsed(enabled, named=frozenset(named))


def canonical(name: str, parsed: Parsed, version: tuple[int, ...]) -> str:
    """One text for everything that means the same: free of order and case, and "" for what changes nothing."""
    order = words_of(name, version)
    # Before 2.31 all algorithms are as good as no list. All protocols are not: naming LL128 forces it.
    plain = frozenset(order) if name == "NCCL_ALGO" and version < CHECKED_LL128_SINCE else None
    lists = {
        function: ",".join(word for word in order if word in parsed.enabled[function]) or "none"
        for function in FUNCTIONS
        if function in parsed.enabled and parsed.enabled[function] != plain
    }
    if len(lists) == len(FUNCTIONS) and len(set(lists.values())) == 1:
        return next(iter(lists.values()))
    return ";".join(f"{function}:{words}" for function, words in lists.items())


def forces_ll128(parsed: Parsed, version: tuple[int, ...]) -> tuple[str, ...]:
    """The functions for which a NCCL_PROTO list switches LL128 on past NCCL's check of the hardware.

    Without a list LL128 is "automatic". Any list turns that into on or off, and one that only excludes others turns it on;
    from 2.31 on the check is applied all the same.
    """
    if version >= CHECKED_LL128_SINCE:
        return ()
    return tuple(function for function in FUNCTIONS if "LL128" in parsed.enabled.get(function, ()))


def left_without(protocols: Parsed, algorithms: Parsed, version: tuple[int, ...]) -> tuple[str, ...]:
    """The functions for which no pair of algorithm and protocol is left, whatever the hardware.

    From 2.31 on a list of algorithms first clears the algorithms of every function, the ones it does not name as well;
    that takes effect for the functions any of the two lists has a word for.
    """
    words = frozenset(words_of("NCCL_ALGO", version))
    cleared = version >= CHECKED_LL128_SINCE and bool(algorithms.enabled)
    empty = []
    for function in FUNCTIONS:
        if version >= CHECKED_LL128_SINCE and function not in protocols.named | algorithms.named:
            continue
        may = algorithms.enabled.get(function, frozenset() if cleared else words) & WRITTEN_FOR[function]
        wire = protocols.enabled.get(function, frozenset(PROTOCOLS))
        if not (wire and may and ("Simple" in wire or may & ANY_PROTOCOL)):
            empty.append(function)
    return tuple(empty)
