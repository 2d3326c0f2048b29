"""The texts of NCCL's messages, version by version: what stands behind the prefix of a line. Pure.

Sources: the INFO and WARN calls of the tags 2.18.3 to 2.30.7; 2.31 and 2.32 from the strings of their wheels. A text that begins
like a message and goes on unlike it raises ValueError, IndexError or KeyError: `log.parse` counts such a line as damaged.
"""

from __future__ import annotations

from sglang_ext.nccl.testimony import CONFIG, FILE, LEVEL, NUMBER, TEXT, Channels, Choice, Init, Invalid
from sglang_ext.quick import NamedTuple

TYPE_CHECKING = False  # mypy treats this name as true
if TYPE_CHECKING:
    from collections.abc import Iterable

# Printed as numbers up to 2.23, in the order of src/include/nccl_common.h; since then like COLLNET_DIRECT and SIMPLE.
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")

# Printed with the value they came to. All else that ends in a number and a dot is an integer variable.
_LEVELS = frozenset({"NCCL_LAUNCH_MODE", "NCCL_NET_GDR_LEVEL", "NCCL_NET_MERGE_POLICY", "NCCL_P2P_LEVEL"})
_NUMBERS_WITHOUT_DOT = frozenset({"NCCL_P2P_DISABLE", "NCCL_RAS_TIMEOUT_FACTOR"})
# Texts that may well end in a dot, so that it is theirs.
_TEXTS = frozenset({
    "NCCL_ALGO", "NCCL_CHECK_MODE", "NCCL_COMM_ID", "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN", "NCCL_GRAPH_DUMP_FILE",
    "NCCL_GRAPH_FILE", "NCCL_HOSTID", "NCCL_IBVERBS_LIB", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_HCA",
    "NCCL_IB_RAIL_POLICY", "NCCL_NETDEVS_POLICY", "NCCL_NET_PLUGIN",
    "NCCL_OOB_NET_IFNAME", "NCCL_PROFILER_PLUGIN", "NCCL_PROTO", "NCCL_RMA_PLUGIN", "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME", "NCCL_SYM_KERNEL", "NCCL_THREAD_THRESHOLDS", "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_FILE",
    "NCCL_TUNER_PLUGIN",
})  # fmt: skip
# Names that messages get wrong: 2.28 to 2.31, src/init.cc.
_MISNAMED = {"NCCL_MAX_CGA_CLUSTER_SIZE": "NCCL_CGA_CLUSTER_SIZE", "NCCL_MAX_P2P_PEERS": "NCCL_P2P_MAX_PEERS"}
# "... Plugin name set by env to FILE", up to 2.27: who says it -> which variable it was.
_BY_SPEAKER = {
    "": "NCCL_NET_PLUGIN", "NET/Plugin": "NCCL_NET_PLUGIN", "TUNER/Plugin": "NCCL_TUNER_PLUGIN",
    "PROFILER/Plugin": "NCCL_PROFILER_PLUGIN",
}  # fmt: skip
PLUGIN_WORDS = ("/Plugin: ", "external network plugin", "external tuner plugin", "external profiler plugin",
                 "external env plugin", "Opened tuner: ", "Tuner: ")  # fmt: skip


class Origin(NamedTuple):
    host: str
    pid: int
    level: str
    text: str
    place: str


def is_int(word: str) -> bool:
    return word.removeprefix("-").isdigit() and word.isascii() and len(word) <= 20


def setting_of(text: str) -> tuple[str, str, str] | None:
    """(name, value, how) where the text is one of the ways in which NCCL says that a variable was set."""
    before, middle, value = text.partition(" set by environment to ")
    if middle:
        name = before.rpartition(" ")[2]  # "NET/IB: NCCL_IB_RAIL_POLICY set by ..."
        return (name, *_value(name, value)) if name.startswith("NCCL_") else None
    before, middle, value = text.partition(" set to ")
    if middle:  # NCCL_IB_HCA, NCCL_OOB_NET_IFNAME, NCCL_SOCKET_IFNAME, NCCL_TUNER_PLUGIN: always a text
        name = before.removeprefix("TUNER/Plugin: ")
        return (name, value, TEXT) if name in _TEXTS else None
    before, middle, value = text.partition("Plugin name set by env to ")
    if middle:
        name = _BY_SPEAKER.get(before.removesuffix(": "), "")
        return (name, value, FILE) if name else None
    if text.startswith("NCCL_PROXY_CPUSET = "):
        value, middle, _ = text[len("NCCL_PROXY_CPUSET = ") :].rpartition(": ")
        return ("NCCL_PROXY_CPUSET", value, TEXT) if middle else None
    if text.startswith("Parsed environment variable NCCL_CTA_POLICY="):
        value, middle, number = text.partition("=")[2].rpartition(" to ")
        return ("NCCL_CTA_POLICY", number, NUMBER) if middle and is_int(number) else None
    if text.startswith("TOPO/NET : Force-fusing NICs using NCCL_NET_FORCE_MERGE="):
        return "NCCL_NET_FORCE_MERGE", text.partition("=")[2], TEXT
    if text.startswith("Comm config ") and (" reset to NCCL_" in text or " by NCCL_" in text):
        name, _, value = text[text.rindex(" NCCL_") + 1 :].partition("=")
        return _MISNAMED.get(name, name), value, CONFIG
    if text.startswith("Socket handshake magic ") and text.endswith(" (NCCL_SOCKET_MAGIC)"):
        return "NCCL_SOCKET_MAGIC", str(int(text.split()[3], 16)), NUMBER
    before, middle, value = text.partition("Disabling caching for environment variable ")
    if middle and before in ("", "PARAM: "):
        return "NCCL_NO_CACHE", value.removesuffix("."), TEXT  # one line per variable it names, when that is read
    return None


def _value(name: str, value: str) -> tuple[str, str]:
    """The value behind "set by environment to", and how it was printed."""
    if name in _LEVELS:
        return value, LEVEL
    if name in _TEXTS:
        return value, TEXT
    if value.endswith(".") and is_int(value[:-1]):
        return value[:-1], NUMBER
    if name == "NCCL_COLLNET_ENABLE":  # up to 2.26 its text, and a dot
        return value.removesuffix("."), TEXT
    return value, NUMBER if name in _NUMBERS_WITHOUT_DOT else TEXT


def init_of(origin: Origin) -> Init:
    said, _, stage = origin.text.rpartition("Init ")
    words = said.rstrip("- ").replace("- ", " ").split()
    words = words[words.index("comm") :]
    fields = dict(zip(words[::2], words[1::2], strict=False))
    return Init(
        origin.pid, fields["comm"], int(fields["rank"]), int(fields["nranks"]), int(fields["cudaDev"]), fields["busId"],
        fields.get("commId"), stage, origin.host,
    )  # fmt: skip


def choice_of(origin: Origin) -> Choice | None:
    before, _, after = origin.text.partition(" Bytes -> ")
    function, _, size = before.rpartition(" ")
    function = function.removesuffix(":")
    kind = ""
    if function.endswith("]"):  # "AllReduce [Symmetric]"
        function, _, kind = function[:-1].partition(" [")
    words = after.split()
    if words[:1] == ["Algo"]:
        algorithm, protocol = words[1], words[3]
        algorithm, protocol = _named(ALGORITHMS, algorithm), _named(PROTOCOLS, protocol)
        return Choice(origin.pid, function, int(size), algorithm, protocol, _span(words[4:]), origin.host)
    if not kind:
        return None
    protocol = words[1] if words[0] == "Kernel" else after
    return Choice(origin.pid, function, int(size), kind, protocol, None, origin.host)


def _named(names: tuple[str, ...], word: str) -> str:
    """The name as NCCL_ALGO and NCCL_PROTO spell it, so that choices of all versions compare."""
    if word.isascii() and word.isdigit() and int(word[:9]) < len(names):
        return names[int(word[:9])]
    plain = word.replace("_", "").lower()
    return next((name for name in names if name.lower() == plain), word)


def _span(words: Iterable[str]) -> tuple[int, int] | None:
    for word in words:
        if word.startswith("channel{Lo..Hi}={"):
            low, _, high = word[word.index("=") + 2 :].rstrip("}").partition("..")
            return int(low), int(high)
    return None


def channels_of(origin: Origin) -> Channels:
    counts: dict[str, int] = {}
    for part in origin.text.split(", "):
        number, _, what = part.partition(" ")
        counts[what] = int(number)
    return Channels(
        origin.pid, counts["coll channels"], counts.get("collnet channels", 0), counts.get("nvls channels", 0),
        counts["p2p channels"], counts["p2p channels per peer"], origin.host,
    )  # fmt: skip


def invalid_of(origin: Origin) -> Invalid | None:
    text = origin.text
    name, value, default = "", "", None
    if text.startswith("Invalid value ") and ", using default " in text:  # src/misc/param.cc
        said, _, default = text.rpartition(", using default ")
        value, _, name = said[len("Invalid value ") :].rpartition(" for ")
        default = default.removesuffix(".")
    elif text.startswith("Invalid NCCL_"):  # src/graph/tuning.cc: "Invalid NCCL_NTHREADS 100 (must be ...)."
        name, value = text.replace("=", " ", 1).split()[1:3]  # "Invalid NCCL_X=7; expected 0, 1, or 2"
        value = value.removesuffix(";")
    elif "CTA polic" in text:
        name = "NCCL_CTA_POLICY"
        value = text.partition("NCCL_CTA_POLICY=")[2].removesuffix(".")
        value = value or text.partition("Unknown CTA policy ")[2].partition(" passed")[0]
    elif "=" in text and "failed to decode NCCL_" in text:
        name, _, value = text.partition("failed to decode ")[2].removesuffix(". Ignoring").partition("=")
    elif text.startswith("NCCL_") and ' invalid value "' in text:
        name, _, value = text.partition(' invalid value "')
        value = value.rpartition('"')[0]
    if not name.startswith("NCCL_"):
        return None
    return Invalid(origin.pid, name, value, default, text, origin.host)
