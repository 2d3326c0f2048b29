"""What variables do to one another: the ones that beat, empty or hide others. Pure: values in, findings out."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_ext.nccl import lists
from sglang_ext.nccl.catalogue import alive, get
from sglang_ext.nccl.finding import FAIL, NOTE, UNKNOWN, Finding, library, shown
from sglang_ext.nccl.understand import taken, understand
from sglang_ext.nccl.version import NEWEST_KNOWN

# Up to 2.23 Ring makes up for an algorithm that is missing; in between, with every protocol (NVIDIA/nccl issue 1304).
PROTOCOL_LOST_SINCE, PROTOCOL_KEPT_SINCE = (2, 19), (2, 22)
RING_MADE_UP_BEFORE = lists.PER_FUNCTION_SINCE
ALIASES = {"NCCL_MIN_NRINGS": "NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS"}
# NCCL 2.30.7 src/graph/connect.cc:503: the channels are cut to the smaller maximum, then copied up to the larger minimum.
# Of two names for one bound the first counts.
LEAST, MOST = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"), ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
MOST_SOCKETS = 64  # NCCL 2.30.7 src/transport/net_socket.cc:391, per connection
# What a loaded plugin can do, for those named by a variable; NCCL also looks for one of each kind by itself.
PLUGINS = {
    "NCCL_ENV_PLUGIN": "it answers every look-up of a variable and may override all of them",
    "NCCL_TUNER_PLUGIN": "it may choose another algorithm and protocol per collective",
    "NCCL_NET_PLUGIN": "it brings its own network and may have rules of its own for these variables",
    "NCCL_PROFILER_PLUGIN": "it sees every collective and costs time",
    "NCCL_GIN_PLUGIN": "it brings its own GPU-initiated network",
    "NCCL_RMA_PLUGIN": "it brings its own one-sided network",
}


def combinations(env: Mapping[str, str], version: tuple[int, ...] | None) -> list[Finding]:
    """The findings that need more than one variable, or are about what one does to all."""
    rules = NEWEST_KNOWN if version is None else version
    live = {name: text for name, text in env.items() if (found := get(name)) is not None and alive(found, rules)}
    return [
        *_peer_to_peer(live, version),
        *_lists(live, version),
        *_plugins(live),
        *_aliases(live, version),
        *_channels(live, version),
        *_sockets(live, version),
        *_log(live, version),
    ]


def _peer_to_peer(env: Mapping[str, str], version: tuple[int, ...] | None) -> list[Finding]:
    disabled = understand("NCCL_P2P_DISABLE", env.get("NCCL_P2P_DISABLE", ""), version).value == "1"
    # LOC is what NCCL_P2P_DISABLE=1 sets the level to: src/graph/paths.cc:251.
    if not disabled or understand("NCCL_P2P_LEVEL", env.get("NCCL_P2P_LEVEL", ""), version).value in ("", "LOC"):
        return []
    message = (
        "NCCL_P2P_DISABLE: expected it absent beside NCCL_P2P_LEVEL, found 1, which beats "
        f"NCCL_P2P_LEVEL={shown(env['NCCL_P2P_LEVEL'])}; unset one of the two"
    )
    return [Finding("conflict", FAIL, "NCCL_P2P_DISABLE", message)]


def _lists(env: Mapping[str, str], version: tuple[int, ...] | None) -> list[Finding]:
    rules = NEWEST_KNOWN if version is None else version
    texts = {name: env[name] for name in ("NCCL_ALGO", "NCCL_PROTO") if name in env}
    parsed = {name: lists.parse(name, text, rules) for name, text in texts.items()}
    if any(one.refused or lists.canonical(name, one, rules) == "none" for name, one in parsed.items()):
        return []  # that is said of the one variable already
    said_nothing = lists.Parsed({})
    protocols, algorithms = parsed.get("NCCL_PROTO", said_nothing), parsed.get("NCCL_ALGO", said_nothing)
    return [
        *_ll128(texts.get("NCCL_PROTO"), protocols, version),
        *_ring_missing(texts, protocols, algorithms, version, "NCCL_SYM_KERNEL" in env),
    ]


def _ll128(text: str | None, protocols: lists.Parsed, version: tuple[int, ...] | None) -> list[Finding]:
    if text is None:
        return []
    rules = version or (2, 30, 7)  # unknown: the last release in which it happens
    parsed = protocols if version is not None else lists.parse("NCCL_PROTO", text, rules)
    functions = lists.forces_ll128(parsed, rules)
    if not functions:
        return []
    where = "" if len(functions) == len(lists.FUNCTIONS) else f" for {', '.join(functions)}"
    who = library(version) if version is not None else "NCCL up to 2.30.7"
    message = (
        f"NCCL_PROTO: expected LL128 left to NCCL's own check of the hardware, found {shown(text)}, with which {who} forces "
        f"it{where}: where the links do not keep its stores in order, as on PCIe, data can be corrupted in silence; leave "
        "LL128 out"
    )
    return [Finding("ll128_forced", FAIL if version is not None else NOTE, "NCCL_PROTO", message)]


def _ring_missing(
    texts: Mapping[str, str],
    protocols: lists.Parsed,
    algorithms: lists.Parsed,
    version: tuple[int, ...] | None,
    symmetric: bool,
) -> list[Finding]:
    rules = NEWEST_KNOWN if version is None else version
    empty = lists.left_without(protocols, algorithms, rules)
    if not empty or (symmetric and rules >= lists.CHECKED_LL128_SINCE):
        return []  # kernels for symmetric memory may serve the function then, which nobody can tell from here
    name = "NCCL_ALGO" if texts.get("NCCL_ALGO") else "NCCL_PROTO"
    found = " with ".join(f"{one}={shown(text)}" for one, text in texts.items() if text)
    functions = ", ".join(empty)
    if rules < RING_MADE_UP_BEFORE:
        # Ring is made up for them. For all but AllReduce that is what everybody wants, as long as NCCL_PROTO holds.
        lost = "NCCL_PROTO" in texts and PROTOCOL_LOST_SINCE <= rules < PROTOCOL_KEPT_SINCE
        if not lost and "AllReduce" not in empty:
            return []
        so = ", with protocols that NCCL_PROTO leaves out" if lost else ""
        who = library(version)
        message = (
            f"{name}: expected Ring in it, found {found}: {who} takes Ring for {functions} all the same{so}; add Ring"
        )
        return [Finding("conflict", FAIL, name, message)]
    # Since 2.31 a function loses its algorithms by not being named. That was read in a source that is no release.
    doubtful = version is None or any(function not in algorithms.enabled for function in empty)
    message = (
        f"{name}: expected an algorithm and a protocol for every function, found {found}, which leaves none for {functions}: "
        f'the first one fails with "no algorithm/protocol available"; {_more(empty, algorithms)}'
    )
    severity = UNKNOWN if doubtful and rules >= lists.CHECKED_LL128_SINCE and algorithms.enabled else FAIL
    return [Finding("no_algorithm", severity, name, message)]


def _more(empty: tuple[str, ...], algorithms: lists.Parsed) -> str:
    if algorithms.enabled and not set(empty) <= algorithms.enabled.keys():
        return "begin NCCL_ALGO with a list for all functions (Ring;allreduce:Tree)"
    without_ring = [one for one in empty if "Ring" not in algorithms.enabled.get(one, ("Ring",))]
    if len(without_ring) == len(empty):
        return "add Ring, or name the functions it is for (allreduce:Tree)"
    return "name algorithms and protocols that go together (all but Tree and Ring need Simple)"


def _plugins(env: Mapping[str, str]) -> list[Finding]:
    found = []
    for name, what in PLUGINS.items():
        text = env.get(name, "")
        if text and lists.lower(text) != "none":
            also = [other for other in ("NCCL_ALGO", "NCCL_PROTO") if env.get(other)]
            if also and name == "NCCL_TUNER_PLUGIN":
                what = f"{what}, within or beside {' and '.join(also)}, or step back because of it"
            message = f"{name}: found {shown(text)}: a plugin is asked for; {what}"
            found.append(Finding("plugin_present", NOTE, name, message))
    return found


def _aliases(env: Mapping[str, str], version: tuple[int, ...] | None) -> list[Finding]:
    found = []
    for old, new in ALIASES.items():
        if not env.get(old) or not env.get(new):
            continue
        one, other = taken(old, env[old], version), taken(new, env[new], version)
        if one != other and other not in ("", "-2"):
            message = (
                f"{old}: expected it absent beside {new}, found {shown(env[old])}, which "
                f"{new}={shown(env[new])} overrides; unset it"
            )
            found.append(Finding("conflict", FAIL, old, message))
    return found


def _channels(env: Mapping[str, str], version: tuple[int, ...] | None) -> list[Finding]:
    """Bounds on the number of channels of which one undoes another."""
    bounds = [_bound(env, names, version) for names in (LEAST, MOST, ("NCCL_MIN_CTAS",), ("NCCL_MAX_CTAS",))]
    least, most, least_ctas, most_ctas = bounds
    found = []
    if least_ctas and most_ctas and least_ctas[1] > most_ctas[1]:  # src/init.cc:2190
        becomes = f"which {library(version)} lowers to {most_ctas[1]}"
        found.append(
            _bounds(FAIL, least_ctas[0], f"no more than {most_ctas[0]}={shown(env[most_ctas[0]])}", env, becomes)
        )
        least_ctas = None  # it asks for no more than the maximum now
    for high in (most, most_ctas):
        for low in (least, least_ctas):
            if low and high and low[1] > high[1]:
                becomes = (
                    f"which {low[0]}={shown(env[low[0]])} beats: {library(version)} keeps the first {high[1]} channels, and "
                    f"copies them until there are {low[1]}"
                )
                # A note: NCCL's guide has it as a way to use the first channels only, and more than once.
                found.append(_bounds(NOTE, high[0], f"no less than {low[0]}", env, becomes))
    return found


def _bound(env: Mapping[str, str], names: tuple[str, ...], version: tuple[int, ...] | None) -> tuple[str, int] | None:
    """The first of these names that says something, and the number NCCL takes it for."""
    for name in names:
        value = taken(name, env.get(name, ""), version)
        if value not in ("", "-2"):  # -2: automatic
            return name, int(value)
    return None


def _bounds(severity: str, name: str, expected: str, env: Mapping[str, str], becomes: str) -> Finding:
    message = f"{name}: expected {expected}, found {shown(env[name])}, {becomes}; change one of the two"
    return Finding("conflict", severity, name, message)


def _sockets(env: Mapping[str, str], version: tuple[int, ...] | None) -> list[Finding]:
    """Threads times sockets: too many of them take sockets away."""
    name, other = "NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"
    each, threads = _bound(env, (name,), version), _bound(env, (other,), version)
    if not each or not threads or threads[1] < 1 or each[1] * threads[1] <= MOST_SOCKETS:
        return []
    most = MOST_SOCKETS // threads[1]
    message = (
        f"{name}: expected at most {MOST_SOCKETS} sockets with {other}={shown(env[other])}, found {shown(env[name])} for each, "
        f"for which {library(version)} takes {most}; write {most}"
    )
    return [Finding("conflict", FAIL, name, message)]


def _log(env: Mapping[str, str], version: tuple[int, ...] | None) -> list[Finding]:
    text = env.get("NCCL_DEBUG_SUBSYS")
    level = understand("NCCL_DEBUG", env.get("NCCL_DEBUG", ""), version).value
    if text is None or level not in ("INFO", "TRACE", "ABORT"):
        return []
    value = understand("NCCL_DEBUG_SUBSYS", text, version).value
    if value == "":
        return []
    named = value.removeprefix("^").split(",")
    if ("ENV" in named or "ALL" in named) != value.startswith("^"):
        return []
    fix = "take ENV out of what it excludes" if value.startswith("^") else "add ENV (and INIT, TUNING)"
    hides = "which hides the lines that say what NCCL has read"
    message = f"NCCL_DEBUG_SUBSYS: expected ENV in it, found {shown(text)}, {hides}; {fix}"
    return [Finding("log_hidden", NOTE, "NCCL_DEBUG_SUBSYS", message)]
