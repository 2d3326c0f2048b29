"""Variables that NCCL compares with words: levels, families, policies, log masks.

Each function takes the variable, its text, the release and the library's name for a sentence, and returns the canonical
value with what is wrong; "" is the value of a text that NCCL passes over. Comments name where NCCL does the same.
"""

from __future__ import annotations

from sglang_ext.nccl.catalogue import Variable
from sglang_ext.nccl.finding import Finding, misfit, shown
from sglang_ext.nccl.integers import BLANKS, integer, strtoll, wrapped
from sglang_ext.nccl.lists import lower
from sglang_ext.quick import NamedTuple

Answer = tuple[str, list[Finding]]
REFUSED = "(refused)"  # of a text with which NCCL does not start, where the text itself would read as "not set"
TYPED_SINCE = (2, 30, 7)  # DEFINE_NCCL_PARAM, src/include/param/parser_*.h: strict words, blanks trimmed

# src/graph/topo.cc topoPathTypeStr, nearest first; the newer ones with their first release.
LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
LEVEL_SINCE = {"C2C": (2, 26), "P2C": (2, 27)}
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")  # src/graph/paths.cc levelsOldToNew


class Words(NamedTuple):
    """A closed set of words; any other text is passed over."""

    words: tuple[str, ...]
    any_case: bool


WORDS = {
    "NCCL_SOCKET_FAMILY": Words(("AF_INET", "AF_INET6"), False),  # src/misc/socket.cc ncclEnvSocketFamily
    "NCCL_IB_ADDR_FAMILY": Words(("AF_INET", "AF_INET6"), False),
    "NCCL_CHECK_MODE": Words(("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"), True),  # src/init.cc
    "NCCL_LAUNCH_MODE": Words(("PARALLEL", "GROUP"), True),
    "NCCL_NET_MERGE_POLICY": Words(("ALL", "RAIL"), True),  # src/graph/topo.cc
    "NCCL_NETDEVS_POLICY": Words(("AUTO", "ALL"), True),
    "NCCL_DEBUG": Words(("VERSION", "WARN", "INFO", "ABORT", "TRACE"), True),  # src/debug.cc
}
MERGE_LEVELS = ("LOC", "PORT", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")  # src/graph/topo.cc nicPathKvList
CTA_POLICIES = ("DEFAULT", "EFFICIENCY", "ZERO")  # bits 0, 1, 2
LOG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE", "ALL")
SUBSYSTEMS = ("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "ALL")
SUBSYSTEM_SINCE = {
    "BOOTSTRAP": (2, 21), "REG": (2, 21), "PROFILE": (2, 22), "RAS": (2, 24), "DESTROY": (2, 30), "ALLOC_HOST": (2, 30, 7),
}  # fmt: skip
ATTN_SINCE = (2, 32)
_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false")


def levels(version: tuple[int, ...]) -> tuple[str, ...]:
    """The distances that release knows by name."""
    return tuple(level for level in LEVELS if version >= LEVEL_SINCE.get(level, (0,)))


def level(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """src/graph/paths.cc ncclGetLevel: an exact name, or a number of an older scale; anything else is passed over."""
    names = levels(version)
    if text in names or text == "":
        return text, []
    expected = f"one of {', '.join(names)} in exactly these letters"
    if text[0].isascii() and text[0].isdigit():
        number = strtoll(text)
        old = wrapped(number.value)
        if old < 0:
            becomes = f"a number {who} cannot hold, so that it reads past its table"
            return text, [misfit("value_refused", variable.name, expected, text, becomes, "write SYS")]
        found = OLD_LEVELS[min(old, len(OLD_LEVELS) - 1)]
        code = "value_unclear" if text == str(old) else "value_misread"
        return found, [misfit(code, variable.name, expected, text, f"which means {found}", f"write {found}")]
    meant = text.strip(BLANKS + "\"'").upper()
    meant = {"SYSTEM": "SYS", "NVLINK": "NVL", "NET": "SYS"}.get(meant, meant)
    fix = f"write {meant}" if meant in names else "write one of them"
    return "", [misfit("value_ignored", variable.name, expected, text, f"which {who} ignores in silence", fix)]


def only_one(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_P2P_DISABLE, in ncclGetLevel: strtol must say exactly 1; nothing else does anything."""
    number = strtoll(text)
    if wrapped(number.value) == 1:
        if text == "1":
            return "1", []
        code = "value_misread" if number.rest.strip(BLANKS) else "value_unclear"
        return "1", [misfit(code, variable.name, "0 or 1", text, f"which {who} reads as 1", "write 1")]
    if text == "" or (number.digits and number.value == 0 and not number.rest.strip(BLANKS)):
        return "", []
    becomes = f"which {who} ignores: only 1 switches anything"
    return "", [misfit("value_ignored", variable.name, "0 or 1", text, becomes, "write 1, or leave it out")]


def word(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """One word of a closed set."""
    name, (words, any_case) = variable.name, WORDS[variable.name]
    if name == "NCCL_DEBUG":
        words = (*words, "ATTN") if version >= ATTN_SINCE else words
        plain = text.strip(BLANKS) if version >= TYPED_SINCE else text
    else:
        plain = text
    for one in words:
        if plain == one or (any_case and lower(plain) == lower(one)):
            return one, []
    if text == "":
        return "", []
    if (
        name == "NCCL_NETDEVS_POLICY"
        and lower(text[:4]) == "max:"
        and (most := wrapped(strtoll(text[4:], 10).value)) > 0
    ):
        return f"MAX:{most}", []
    meant = next((one for one in words if lower(one) == lower(text.strip(BLANKS + "\"'"))), None)
    becomes = f"which {who} ignores"
    fix = f"write {meant}" if meant else "write one of them"
    expected = f"one of {', '.join(words)}{'' if any_case else ' in exactly these letters'}"
    return "", [misfit("value_ignored", name, expected, text, becomes, fix)]


def prefix(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_NET_MERGE_LEVEL, src/graph/xml.h kvConvertToInt: the start counts; no match is LOC, which fuses nothing."""
    expected = f"one of {', '.join(MERGE_LEVELS)} in exactly these letters"
    for one in MERGE_LEVELS:
        if text.startswith(one):
            longer = misfit(
                "value_unclear", variable.name, expected, text, f"which {who} takes for {one}", f"write {one}"
            )
            return one, [] if text == one else [longer]
    meant = text.strip(BLANKS + "\"'").upper()
    fix = f"write {meant}" if meant in MERGE_LEVELS else "write one of them, or leave it out"
    return "LOC", [misfit("value_misread", variable.name, expected, text, f"which {who} takes for LOC", fix)]


def cta_policy(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_CTA_POLICY, src/init.cc: a number in 2.27 and 2.28, from 2.29 on words joined by ``|`` or one old digit."""
    if version < (2, 29):
        return integer(variable, text, version, who)
    expected = f"{' or '.join(CTA_POLICIES)} (two of them joined by |)"
    name, choose = variable.name, "write one of them"
    if text[:1].isascii() and text[:1].isdigit():
        if int(text[0]) >= len(CTA_POLICIES):
            return "", [misfit("value_ignored", name, expected, text, f"which {who} ignores", choose)]
        found = CTA_POLICIES[int(text[0])]
        code = "value_unclear" if len(text) == 1 else "value_misread"
        return found, [misfit(code, name, expected, text, f"which means {found}", f"write {found}")]
    tokens = [lower(token) for token in text.split("|") if token]
    chosen = [policy for policy in CTA_POLICIES if lower(policy) in tokens]
    unknown = [token for token in tokens if token not in map(lower, CTA_POLICIES)]
    faults = []
    if unknown:
        faults.append(
            misfit("value_ignored", name, expected, text, f"of which {who} ignores {shown(unknown[0])}", choose)
        )
    if "EFFICIENCY" in chosen and "ZERO" in chosen:
        faults.append(
            misfit("value_misread", name, expected, text, f"of which {who} drops EFFICIENCY", "write one of the two")
        )
    return (chosen[-1] if chosen else ""), faults  # DEFAULT is no bit: it adds nothing to another


def mask(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """A set of log subsystems or levels, ``^`` in front meaning all but these. An empty one is a set too: nothing is logged."""
    words = mask_words(variable.name, version)
    typed = version >= TYPED_SINCE
    all_but = text.startswith("^")
    tokens = [token.strip(BLANKS) if typed else token for token in text[all_but:].split(",")]
    known = {lower(one): one for one in words}
    unknown = [token for token in tokens if token and lower(token) not in known]
    chosen = {known[lower(token)] for token in tokens if lower(token) in known}
    faults = []
    if unknown:
        odd = shown(unknown[0])
        becomes = f"which {who} drops because of {odd}" if typed else f"of which {who} ignores {odd}"
        expected = f"words out of {', '.join(words)}, joined by commas"
        faults = [misfit("value_ignored", variable.name, expected, text, becomes, f"take {odd} out")]
        if typed:
            return "", faults
    if "ALL" in chosen:
        chosen = {"ALL"}
    listing = ",".join(one for one in words if one in chosen)
    return (f"^{listing}" if all_but else listing or "none"), faults


def mask_words(name: str, version: tuple[int, ...]) -> tuple[str, ...]:
    """The words that release knows in one of the three log masks."""
    if name == "NCCL_DEBUG_SUBSYS":
        return (*SUBSYSTEMS, *(one for one, since in SUBSYSTEM_SINCE.items() if version >= since))
    return (*LOG_LEVELS, "ATTN") if version >= ATTN_SINCE else LOG_LEVELS


def flag(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """A switch that is an integer up to 2.30.4 and one of six words from 2.30.7 on."""
    if version < TYPED_SINCE and variable.name != "NCCL_PARAM_DUMP_ALL":
        return integer(variable, text, version, who)
    if lower(text) in _TRUE:
        return "1", []
    if lower(text) in _FALSE:
        return "0", []
    if text == "":
        return "", []
    becomes = f"which {who} ignores"
    return "", [misfit("value_ignored", variable.name, "1 or TRUE, 0 or FALSE", text, becomes, "write 1 or 0")]


def strtol(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_COLLNET_ENABLE, src/init.cc: strtol cast to int, without a test whether there is a number at all."""
    value = str(wrapped(strtoll(text).value))
    if text == "":
        return value, []
    _, faults = integer(variable, text, (0,), who)
    return value, faults


def folded(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_NET: a network's name in any case, compared with what is there; only the running library can know which are."""
    if text == "":
        becomes = f"which is the name of no network, so that {who} does not start"
        return REFUSED, [misfit("value_refused", variable.name, "the name of a network", text, becomes, "unset it")]
    if text != text.strip():
        return lower(text), [_edge(variable, text, who)]
    return lower(text), []


def magic(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_SOCKET_MAGIC, src/misc/socket.cc: the one number of which all must be digits."""
    if text == "":
        return "", []
    number = strtoll(text)
    if not number.digits or number.rest:
        becomes, fix = f"which {who} ignores", "write plain digits or 0x..."
        return "", [misfit("value_ignored", variable.name, "a 64-bit number", text, becomes, fix)]
    return str(number.value % 2**64), []


def factor(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_RAS_TIMEOUT_FACTOR: an integer up to 2.30, a decimal number from 2.31 on."""
    if version < (2, 31):
        return integer(variable, text, version, who)
    try:
        return (f"{float(text):g}" if text else ""), []
    except ValueError:
        becomes = f"which {who} ignores"
        return "", [misfit("value_ignored", variable.name, "a number", text, becomes, "write one like 1.5")]


def interface(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_SOCKET_IFNAME, src/misc/socket.cc ncclFindInterfaces: one character is as good as none."""
    if len(text) == 1:
        becomes = f"which {who} ignores, as it is a single character"
        return "", [
            misfit("value_ignored", variable.name, "an interface's name", text, becomes, "write the whole name")
        ]
    return name_list(variable, text, version, who)


def name_list(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL 2.30.7 src/misc/utils.cc:189 parseStringList, with ^ and = in front taken off: names, or name:port, letter by letter.

    Nothing is trimmed: "a, b" names "a" and " b". Only the numbers after a colon go through atoi, which skips blanks.
    """
    grouped = variable.name == "NCCL_NET_FORCE_MERGE"  # joined by ";", without ^ and =: src/graph/topo.cc:1319
    listed = text if grouped else text.removeprefix("^").removeprefix("=")
    names = [entry.partition(":")[0] for entry in (listed.replace(";", ",") if grouped else listed).split(",")]
    odd = next((name for name in names if name != name.strip(BLANKS)), None)
    if odd is None:
        return text, []
    front, plain = text[: len(text) - len(listed)], ";".join(map(_trimmed, listed.split(";") if grouped else [listed]))
    what = "the carriage return" if odd.endswith("\r") else "the blank"
    becomes = f"where {who} takes {what} as part of a name"
    return text, [misfit("value_misread", variable.name, shown(front + plain), text, becomes, f"take {what} out")]


def _trimmed(names: str) -> str:
    return ",".join(name.strip(BLANKS) for name in names.split(",") if name.strip(BLANKS))


def rendezvous(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_COMM_ID, NCCL 2.30.7 src/misc/socket.cc:233 ncclSocketGetAddrFromString: without a port it takes 65535, or 0."""
    expected, fix = "an address and a port", "write it like 10.0.0.1:29500, [fe80::1]:29500 or a-host:29500"
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port, broken = rest[1:], not closed  # what stands between "]" and the port is passed over, whatever it is
    else:
        host, _, port = next((entry for entry in text.split(",") if entry), "").partition(":")
        broken = host == "" or host != host.strip(BLANKS)
    if broken or len(text) < 2:
        becomes = f"which {who} refuses when a communicator is made"
        return text or REFUSED, [misfit("value_refused", variable.name, expected, text, becomes, fix)]
    number = strtoll(port, 10)
    skipped = text.startswith("[") and not rest.startswith(":")
    if number.digits and not skipped and not number.rest.strip(BLANKS) and 0 < number.value < 2**16:
        return text, []
    becomes = f"of which {who} takes {number.value} for the port" if number.digits else f"in which {who} finds no port"
    return text, [misfit("value_misread", variable.name, expected, text, becomes, fix)]


def cpus(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_PROXY_CPUSET, NCCL 2.30.7 src/include/cpuset.h:76 ncclStrListToCpuset: strtoull of each entry; 0-7 is CPU 0 alone."""
    numbers = [strtoll(entry) for entry in text.split(",") if entry]
    value = ",".join(map(str, sorted({number.value for number in numbers})))
    if all(number.digits and not number.octal and not number.rest.strip(BLANKS) for number in numbers):
        return value, []
    becomes, fix = f"which {who} reads as {shown(value)}", "write each number, in plain digits"
    return value, [misfit("value_misread", variable.name, "numbers of CPUs joined by commas", text, becomes, fix)]


# Before, src/transport/net_ib.cc adds 1 to what strstr returns, and only then asks whether that was NULL (2.21.5, 2.22.3).
SLASH_LOOKED_FOR_SINCE = (2, 23)


def address_range(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """NCCL_IB_ADDR_RANGE, NCCL 2.30.7 src/transport/net_ib/connect.cc:120: one address and the length of its prefix."""
    if text == "":
        return "", []
    import socket

    address, slash, length = text[:127].partition("/")
    longest = 0
    for family, bits in ((socket.AF_INET, 32), (socket.AF_INET6, 128)):  # which counts is NCCL_IB_ADDR_FAMILY's
        try:
            socket.inet_pton(family, address)
        except (OSError, ValueError):
            continue
        longest = bits
    number = strtoll(length, 10)
    name, expected, fix = variable.name, "an address range", "write it like 10.1.0.0/16"
    if not slash and version < SLASH_LOOKED_FOR_SINCE:
        becomes = f"in which {who} looks for a slash and ends over its lack"
        return text, [misfit("value_refused", name, expected, text, becomes, fix)]
    if not (slash and longest and number.value <= longest):
        return "", [misfit("value_ignored", name, expected, text, f"which {who} ignores", fix)]
    value = f"{address}/{number.value}"
    if number.digits and not number.rest and number.value >= 0:
        return value, []
    return value, [misfit("value_misread", name, expected, text, f"which {who} reads as {shown(value)}", fix)]


# Texts in which a blank at an end has a use, or does no harm.
BLANK_ENDS = frozenset({"NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_THREAD_THRESHOLDS", "NCCL_HOSTID"})


def as_it_is(variable: Variable, text: str, version: tuple[int, ...], who: str) -> Answer:
    """A text that NCCL takes letter by letter."""
    if text != text.strip(BLANKS) and variable.name not in BLANK_ENDS and not variable.by_plugin:
        return text, [_edge(variable, text, who)]
    return text, []


def _edge(variable: Variable, text: str, who: str) -> Finding:
    what = "the carriage return" if text.endswith("\r") else "the blank"
    becomes = f"where {who} takes {what} as part of it"
    return misfit("value_misread", variable.name, shown(text.strip(BLANKS)), text, becomes, "take it out")
