"""Integers as NCCL reads them: C's strtoll with base 0, which stops at the first character it does not like.

Source: NCCL 2.18 to 2.30.7 src/misc/param.cc ncclLoadParam. Nothing is reported by NCCL but a number that does not fit;
so ``4M`` is 4 bytes, ``08`` is 0 and ``010`` is 8, and only we can say so.
"""

from __future__ import annotations

from sglang_ext.nccl.catalogue import Variable
from sglang_ext.nccl.finding import Finding, misfit, shown
from sglang_ext.quick import NamedTuple

BLANKS = " \t\n\v\f\r"  # what C's isspace knows
STRICTER_SINCE = (2, 32)  # a text without digits is the default from here on, 0 before
_LOW, _HIGH = -(2**63), 2**63 - 1
_SIZES = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_ON, _OFF = ("true", "yes", "on", "y", "t"), ("false", "no", "off", "n", "f", "none")

# Switches for which only 1 means on: every other number is off, whatever it looks like.
ONLY_ONE = frozenset({
    "NCCL_SHM_DISABLE", "NCCL_RAS_ENABLE", "NCCL_GDRCOPY_ENABLE", "NCCL_NET_DISABLE_INTRA", "NCCL_CHECK_POINTERS",
})  # fmt: skip
# Those that pass over any other number than the listed ones, and the first release that does.
OTHERS_IGNORED: dict[str, tuple[int, ...]] = {
    "NCCL_GRAPH_MIXING_SUPPORT": (2, 29),
    "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE": (2, 28, 9),
    "NCCL_GRAPH_STREAM_ORDERING": (2, 30, 7),
    "NCCL_RMA_EAGER_INIT": (2, 31),
    "NCCL_COMM_BLOCKING": (2, 14),
    "NCCL_SHM_LOCALITY": (2, 13),
    "NCCL_GDRCOPY_USE_INTERNAL_DMABUF": (2, 31),
}


REFUSED = "no number"  # instead of what is taken: NCCL ends
UNDEFINED = "anything"  # it goes on with the number as it is


class Limit(NamedTuple):
    """What NCCL does with a number outside of low..high: takes ``below`` or ``above`` for it, its default where that is "".

    It holds these numbers in 32 bits, so a longer one is another one.
    """

    low: int
    high: int | None = None
    below: str = ""
    above: str = ""


_CHANNELS = Limit(1, 64, below="1", above="64")
LIMITS = {
    "NCCL_MAX_NCHANNELS": _CHANNELS,
    "NCCL_MAX_NRINGS": _CHANNELS,
    "NCCL_MIN_NCHANNELS": Limit(0, 64, below="0", above="64"),
    "NCCL_MIN_NRINGS": Limit(0, 64, below="0", above="64"),
    "NCCL_MAX_CTAS": Limit(1, 64, above="64"),
    "NCCL_MIN_CTAS": Limit(1, 64, above="64"),
    "NCCL_NUM_RMA_CTX": Limit(0),
    "NCCL_NCHANNELS_PER_NET_PEER": Limit(1),  # NCCL 2.30.7 src/init.cc:2040
    "NCCL_P2P_MAX_PEERS": Limit(1),  # src/init.cc:2092
    "NCCL_CGA_CLUSTER_SIZE": Limit(0, 8, above="8"),
    "NCCL_SOCKET_NTHREADS": Limit(0, 16, below=UNDEFINED, above="16"),
    "NCCL_NTHREADS": Limit(64, 512, below="64", above="512"),
    "NCCL_LL128_NTHREADS": Limit(160, 640, below="160", above="640"),
    "NCCL_IB_SUBNET_PREFIX_LEN": Limit(1, 32, below=REFUSED, above=REFUSED),
}
# Before, 0 was a number like others: src/graph/paths.cc.
LIMITED_SINCE: dict[str, tuple[int, ...]] = {"NCCL_NCHANNELS_PER_NET_PEER": (2, 28)}
AUTOMATIC = {"NCCL_NCHANNELS_PER_NET_PEER": -1}  # its default, and so documented, up to 2.27
# Kept in an int, which is all that is done to them: src/include/comm.h buffSizes, p2pChunkSize.
KEPT_IN_INT = frozenset({
    "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
    "NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE",
})  # fmt: skip
# NCCL_WORK_FIFO_BYTES, src/init.cc devCommSetup: a uint32_t, but for two releases; no larger than this in any.
LARGEST_FIFO, LONG_FIFO = 2**30, ((2, 26, 5), (2, 27))
FEWER_CHANNELS_BEFORE, FEWER_CHANNELS = (2, 25), 32
THREADS = frozenset({"NCCL_NTHREADS", "NCCL_LL128_NTHREADS"})


class Number(NamedTuple):
    """``value`` is what strtoll returns, ``rest`` where it stopped; ``digits`` is False where it found none."""

    value: int
    rest: str
    digits: bool
    fits: bool
    octal: bool


def strtoll(text: str, base: int = 0) -> Number:
    """C's strtoll(text, &rest, base), for the bases 0 and 10."""
    body = text.lstrip(BLANKS)
    sign = -1 if body.startswith("-") else 1
    body = body[1:] if body[:1] in ("-", "+") else body
    allowed = "0123456789"
    if base == 10:
        pass
    elif body[:2] in ("0x", "0X") and body[2:3] and body[2] in "0123456789abcdefABCDEF":
        base, allowed, body = 16, "0123456789abcdefABCDEF", body[2:]
    elif body.startswith("0"):
        base, allowed = 8, "01234567"
    else:
        base = 10
    rest = body.lstrip(allowed)
    digits = body[: len(body) - len(rest)]
    if not digits:
        return Number(0, text, False, True, False)
    # Python refuses to convert very long texts; beyond 64 bits only "too large" is of interest.
    short = digits.lstrip("0")
    value = sign * int(short or "0", base) if len(short) <= 64 else sign * 2**70
    fits = _LOW <= value <= _HIGH
    return Number(value if fits else (_LOW if sign < 0 else _HIGH), rest, True, fits, base == 8 and len(digits) > 1)


def wrapped(value: int) -> int:
    """A long cast to int."""
    return (value + 2**31) % 2**32 - 2**31


def meant(text: str, kind: str) -> str | None:
    """The number a person means by a text that strtoll reads otherwise, in digits, or None where that is a guess."""
    plain = text.strip(BLANKS + "\"'").lower().replace("_", "")
    if plain in _ON or plain in _OFF:
        return None if kind != "bool" else "1" if plain in _ON else "0"
    sign, plain = ("-" if plain.startswith("-") else ""), plain[plain.startswith(("-", "+")) :]
    rest = plain.lstrip("0123456789")
    digits = plain[: len(plain) - len(rest)]
    if not digits or len(digits) > 18:
        return None
    number, unit = int(digits), rest.strip()
    sign = sign if number else ""
    if not unit:
        return sign + str(number)
    if unit[0] == "e" and unit[1:].isdecimal() and unit.isascii() and len(unit) <= 3 and int(unit[1:]) <= 15:
        return sign + str(number * 10 ** int(unit[1:]))
    if kind in ("size", "int") and unit[0] in _SIZES and unit[1:] in ("", "b", "ib"):
        return sign + str(number * _SIZES[unit[0]])
    return sign + str(number) if unit.isalpha() and unit.isascii() else None


def integer(variable: Variable, text: str, version: tuple[int, ...], who: str) -> tuple[str, list[Finding]]:
    """The canonical value of an integer variable and what is wrong with its text. ``who`` is the library in a sentence."""
    if text == "":
        return "", []
    number, name, wanted = strtoll(text), variable.name, _expected(variable)
    better = meant(text, variable.kind)
    write = f"write {better}" if better is not None else "write the number in plain digits"
    if not number.fits:
        becomes = f"which does not fit into 64 bits: {who} takes its default"
        return "", [misfit("value_ignored", name, wanted, text, becomes, "write a smaller number")]
    if not number.digits and version >= STRICTER_SINCE:
        becomes = f"which has no digits: {who} takes its default"
        return "", [misfit("value_ignored", name, wanted, text, becomes, write)]
    value = str(number.value)
    reads = f"which {who} reads as {value}"
    if not number.digits:
        return value, [misfit("value_misread", name, wanted, text, reads, write)]
    if number.rest.strip(BLANKS):
        return value, [misfit("value_misread", name, wanted, text, f"{reads}: it stops at {shown(number.rest)}", write)]
    faults = []
    if number.octal and better != value:
        fix = f"write {better}, or {value} if octal is meant" if better else f"write {value} if octal is meant"
        faults.append(misfit("value_misread", name, wanted, text, f"{reads}: a leading 0 means octal", fix))
    elif number.octal or number.rest or text[0] in BLANKS or text[0] == "+":
        faults.append(misfit("value_unclear", name, wanted, text, reads, f"write {value}"))
    code, becomes, _ = _range(variable, number.value, version, who)
    if becomes:
        faults.append(misfit(code, name, wanted, text, becomes, f"write {_example(variable)}"))
    return ("" if code == "value_ignored" else value), faults


def taken(variable: Variable, value: int, version: tuple[int, ...]) -> str:
    """What NCCL goes on with, of a number that it has read: 512 of NCCL_NTHREADS=100. "" where it ignores it."""
    return _range(variable, value, version, "")[2]


def _expected(variable: Variable) -> str:
    if variable.kind == "bool":
        return "0 or 1"
    numbers = listed(variable)
    if numbers:
        return "one of " + ", ".join(map(str, numbers))
    return "a number of bytes in plain digits" if variable.kind == "size" else "a plain integer"


def _example(variable: Variable) -> str:
    limit = LIMITS.get(variable.name)
    if variable.name in THREADS and limit is not None:
        return f"a multiple of 32 from {limit.low} to {limit.high}"
    if limit is not None:
        return f"a number from {limit.low} on" if limit.high is None else f"a number from {limit.low} to {limit.high}"
    if variable.name in KEPT_IN_INT:
        return f"a number below {2**31}"
    if variable.name == "NCCL_WORK_FIFO_BYTES":
        return f"a power of two up to {LARGEST_FIFO}"
    return _expected(variable)


def listed(variable: Variable) -> tuple[int, ...]:
    """The numbers an enum lists, where it lists numbers."""
    if variable.kind != "enum":
        return ()
    heads = [value.split()[0] for value in variable.values]
    return tuple(int(head) for head in heads if head.lstrip("-").isdecimal())


def _range(variable: Variable, value: int, version: tuple[int, ...], who: str) -> tuple[str, str, str]:
    """Of a number that is read rightly: code and clause where it is not taken as it is, or two empty texts; what is taken."""
    name, same = variable.name, str(value)
    good = "", "", same
    allowed = (0, 1) if variable.kind == "bool" else listed(variable)
    if name in OTHERS_IGNORED and version >= OTHERS_IGNORED[name]:
        return good if value in allowed else ("value_ignored", f"which {who} ignores", "")
    if name in ONLY_ONE:
        return good if value in allowed else ("value_misread", f"which {who} takes for off: only 1 means on", "0")
    if name == "NCCL_WORK_FIFO_BYTES":
        return _fifo(value, version, who)
    if same == variable.default:  # -1 or -2, where that is how "automatic" is written; anywhere else it is a number
        return good
    limited = name in LIMITS and version >= LIMITED_SINCE.get(name, (0,))
    if (limited or name in KEPT_IN_INT) and (short := wrapped(value)) != value:
        becomes = f"which does not fit into 32 bits: {who} takes it for {short}"
        return "value_misread", becomes, _limit(name, short, version, who)[2] if limited else str(short)
    if limited and value == AUTOMATIC.get(name):
        return (
            "value_unclear",
            f"which was automatic to earlier releases and which {who} passes over, to the same end",
            "",
        )
    if limited:
        return _limit(name, value, version, who)
    if allowed and value not in allowed:
        meaning = (
            f"which {who} takes for on" if variable.kind == "bool" else f"which {who} has no documented meaning for"
        )
        return "value_unclear", meaning, same
    return good


def _fifo(value: int, version: tuple[int, ...], who: str) -> tuple[str, str, str]:
    if LONG_FIFO[0] <= version < LONG_FIFO[1]:
        return _long_fifo(value, who)
    short = value % 2**32
    if short & (short - 1):
        return "value_ignored", f"which is no power of two: {who} takes its default", ""
    most = str(min(short, LARGEST_FIFO))
    if short != value:
        return "value_misread", f"which does not fit into 32 bits: {who} takes it for {most}", most
    return ("", "", most) if short <= LARGEST_FIFO else ("value_misread", f"which {who} takes for {most}", most)


def _long_fifo(value: int, who: str) -> tuple[str, str, str]:
    """src/init.cc:461-475 of 2.26.5: -1 is automatic, and what is no power of two is "being ignored" and taken all the same."""
    most = str(min(value % 2**64, LARGEST_FIFO))
    if value == -1 or (str(value) == most and not value & (value - 1)):
        return "", "", str(value)
    return "value_misread", f"which {who} takes for {most}", most


def _limit(name: str, value: int, version: tuple[int, ...], who: str) -> tuple[str, str, str]:
    low, high, below, above = LIMITS[name]
    same, ignored = str(value), ("value_ignored", f"which {who} ignores", "")
    if high == _CHANNELS.high and version < FEWER_CHANNELS_BEFORE:
        high, above = FEWER_CHANNELS, str(FEWER_CHANNELS)
    if name in THREADS and value <= 0:
        below = ""
    elif name in THREADS and value % 32:
        return "value_misread", f"which is no multiple of 32: {who} takes {above}", above
    if below == UNDEFINED and value < low:
        return "value_unclear", f"for which {who} has no documented meaning", same
    if REFUSED in (below, above) and (value < low or (high is not None and value > high)):
        return "value_refused", f"with which {who} refuses to connect", same
    if value < low:
        return ("value_misread", f"which {who} takes for {below}", below) if below else ignored
    if high is not None and value > high:
        # More channels than there can be is what people write for "all of them"; anything else was meant.
        code = "value_unclear" if name.endswith(("CHANNELS", "NRINGS", "CTAS")) else "value_misread"
        return (code, f"which {who} takes for {above}", above) if above else ignored
    return "", "", same
