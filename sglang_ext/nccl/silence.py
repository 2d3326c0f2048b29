"""How a variable that is set shows up in NCCL's log, and so what it proves when no such line is there. Pure.

Sources: the ncclGetEnv and NCCL_PARAM places of NCCL 2.18.3, 2.21.5, 2.24.3, 2.27.7 and 2.30.7, and of the unreleased 2.31;
what is said of 2.31 and 2.32 as released is from their wheels. Only what was found to be read on every way through a
communicator's start is in `_ON_EVERY_WAY`; of everything else a missing line may just mean that the feature was not used.
"""

from __future__ import annotations

from sglang_ext.nccl.testimony import FILE, LEVEL, NUMBER, TEXT
from sglang_ext.quick import NamedTuple

TYPE_CHECKING = False  # mypy treats this name as true
if TYPE_CHECKING:
    from collections.abc import Collection

    Version = tuple[int, ...]

NEVER = "never"
# Printed in any communicator; in one of two ranks or more; in one of two ranks or more on one host.
ALONE, PEERS, NEIGHBOURS = 1, 2, 3
_ALWAYS: Version = (0,)
_LATER: Version = (10**6,)


class Expected(NamedTuple):
    """How a set variable shows up.

    how         as `testimony.Setting.how`, or "never"
    name        the variable the line names: another one for NCCL_P2P_DISABLE up to 2.22
    subsystems  one of them in NCCL_DEBUG_SUBSYS prints the line (ALL always does); none named: any does
    needs       ALONE, PEERS or NEIGHBOURS: the smallest communicator in which it is read
    certain     it is read on every way through such a communicator's start
    once        only the first reader in the process prints it, so only a log from its first line on can lack it
    only        the only value that is printed, where there is one
    """

    how: str
    name: str
    subsystems: tuple[str, ...] = ("ENV",)
    needs: int = ALONE
    certain: bool = False
    once: bool = True
    only: str | None = None


_ENV, _ANY = ("ENV",), ()
_PLUGIN_ENV = ("ENV", "NET")
# (name, from, before, how, subsystems). What is not here is as the catalogue's line says.
_ROWS: tuple[tuple[str, Version, Version, str, tuple[str, ...]], ...] = (
    ("NCCL_COLLNET_ENABLE", _ALWAYS, (2, 27), TEXT, _ANY),
    ("NCCL_CTA_POLICY", _ALWAYS, _LATER, NUMBER, _ENV),
    ("NCCL_GIN_PLUGIN", _ALWAYS, _LATER, TEXT, _PLUGIN_ENV),
    ("NCCL_IBVERBS_LIB", _ALWAYS, _LATER, TEXT, ("ENV", "INIT")),
    ("NCCL_IB_HCA", _ALWAYS, _LATER, TEXT, ("NET", "ENV")),
    ("NCCL_IB_RAIL_POLICY", _ALWAYS, _LATER, TEXT, ("NET", "ENV")),
    ("NCCL_LAUNCH_MODE", _ALWAYS, _LATER, LEVEL, _ENV),
    ("NCCL_NET_FORCE_MERGE", _ALWAYS, _LATER, TEXT, _PLUGIN_ENV),
    ("NCCL_NET_GDR_LEVEL", _ALWAYS, _LATER, LEVEL, _ANY),
    ("NCCL_NET_MERGE_POLICY", _ALWAYS, _LATER, LEVEL, _ENV),
    ("NCCL_NET_PLUGIN", _ALWAYS, (2, 21), FILE, ("INIT",)),
    ("NCCL_NET_PLUGIN", (2, 21), (2, 28), FILE, ("INIT", "NET")),
    ("NCCL_NET_PLUGIN", (2, 28), _LATER, TEXT, _PLUGIN_ENV),
    ("NCCL_OOB_NET_IFNAME", _ALWAYS, _LATER, TEXT, ("BOOTSTRAP", "ENV")),
    ("NCCL_P2P_DISABLE", _ALWAYS, (2, 23), LEVEL, _ANY),
    ("NCCL_P2P_DISABLE", (2, 23), _LATER, NUMBER, _ANY),
    ("NCCL_P2P_LEVEL", _ALWAYS, _LATER, LEVEL, _ANY),
    ("NCCL_PROFILER_PLUGIN", _ALWAYS, (2, 26), FILE, ("INIT", "ENV")),
    ("NCCL_PROFILER_PLUGIN", (2, 26), (2, 28), FILE, ("INIT",)),
    ("NCCL_RAS_ADDR", _ALWAYS, _LATER, NEVER, _ANY),  # the socket it listens at is printed, set or not
    ("NCCL_RAS_TIMEOUT_FACTOR", _ALWAYS, _LATER, NUMBER, _ENV),
    ("NCCL_RMA_PLUGIN", _ALWAYS, _LATER, TEXT, _PLUGIN_ENV),
    ("NCCL_SET_THREAD_NAME", _ALWAYS, (2, 30, 7), NUMBER, _ENV),
    ("NCCL_SET_THREAD_NAME", (2, 30, 7), _LATER, NEVER, _ANY),
    ("NCCL_SOCKET_MAGIC", _ALWAYS, _LATER, NUMBER, _ENV),
    ("NCCL_SYM_KERNEL", _ALWAYS, (2, 31), NEVER, _ANY),
    ("NCCL_TUNER_PLUGIN", _ALWAYS, (2, 21), TEXT, ("TUNING",)),
    ("NCCL_TUNER_PLUGIN", (2, 21), (2, 26), TEXT, ("ENV", "TUNING")),
    ("NCCL_TUNER_PLUGIN", (2, 26), (2, 28), FILE, ("INIT", "TUNING")),
    ("NCCL_TUNER_PLUGIN", (2, 28), _LATER, TEXT, ("ENV", "TUNING")),
    ("NCCL_WARN_ENABLE_DEBUG_INFO", _ALWAYS, (2, 22), NUMBER, _ENV),
)  # fmt: skip

# Read by ncclInit, alone or not: src/init.cc and src/bootstrap.cc.
_ON_EVERY_WAY = {
    "NCCL_GDRCOPY_ENABLE": ALONE,
    # src/init.cc commAlloc, computeBuffSizes, envConfigOverride; src/graph/connect.cc ncclTopoPostset; src/graph/tuning.cc
    "NCCL_BUFFSIZE": PEERS, "NCCL_LL_BUFFSIZE": PEERS, "NCCL_LL128_BUFFSIZE": PEERS,
    "NCCL_CGA_CLUSTER_SIZE": PEERS, "NCCL_COMM_BLOCKING": PEERS, "NCCL_MAX_CTAS": PEERS, "NCCL_MIN_CTAS": PEERS,
    "NCCL_MAX_NCHANNELS": PEERS, "NCCL_MIN_NCHANNELS": PEERS, "NCCL_MAX_NRINGS": PEERS, "NCCL_MIN_NRINGS": PEERS,
    "NCCL_NTHREADS": PEERS, "NCCL_LL128_NTHREADS": PEERS, "NCCL_CUMEM_ENABLE": PEERS,
    "NCCL_ALGO": PEERS, "NCCL_PROTO": PEERS, "NCCL_ALLOC_P2P_NET_LL_BUFFERS": PEERS,
    # src/graph/paths.cc ncclTopoCheckP2p: for each pair of GPUs of a host, unless containers part them
    "NCCL_P2P_LEVEL": NEIGHBOURS, "NCCL_P2P_DISABLE": NEIGHBOURS,
}  # fmt: skip
_EVERY_COMMUNICATOR = frozenset({
    "NCCL_ALGO", "NCCL_CHECK_MODE", "NCCL_COLLNET_ENABLE", "NCCL_COMM_ID", "NCCL_LAUNCH_MODE", "NCCL_PROTO",
    "NCCL_THREAD_THRESHOLDS",
})  # fmt: skip
_ONLY = {"NCCL_NET_MERGE_POLICY": "RAIL", "NCCL_P2P_DISABLE": "1"}


def expected_line(name: str, version: tuple[int, ...]) -> Expected:
    """How ``name`` shows up in a log of that release when it is set to something it takes."""
    from sglang_ext.nccl import catalogue

    variable = catalogue.get(name)
    if variable is None or variable.by_plugin or not catalogue.alive(variable, version):
        return Expected(NEVER, name)
    how = _by_catalogue(variable.log_line)
    subsystems: tuple[str, ...] = _ENV
    for row_name, since, before, row_how, row_subsystems in _ROWS:
        if row_name == name and since <= version < before:
            how, subsystems = row_how, row_subsystems
    if how == NEVER:
        return Expected(NEVER, name)
    shown, only = name, _ONLY.get(name)
    if name == "NCCL_P2P_DISABLE" and how == LEVEL:
        shown, only = "NCCL_P2P_LEVEL", "LOC"
    needs = _ON_EVERY_WAY.get(name, PEERS if name == "NCCL_THREAD_THRESHOLDS" else ALONE)
    return Expected(how, shown, subsystems, needs, name in _ON_EVERY_WAY, name not in _EVERY_COMMUNICATOR, only)


def _by_catalogue(line: str | None) -> str:
    if line is None or line == "plugin specific":
        return NEVER
    return NUMBER if line.endswith((" %lld.", " %d.", " %g")) else TEXT


def prints(expected: Expected, subsystems: Collection[str]) -> bool:
    """Whether NCCL_DEBUG=INFO with these subsystems prints that line: upper-case names of NCCL_DEBUG_SUBSYS."""
    if expected.how == NEVER or not subsystems:
        return False
    return "ALL" in subsystems or not expected.subsystems or any(s in subsystems for s in expected.subsystems)


def silence_proves(expected: Expected, subsystems: Collection[str], nranks: int, neighbours: int) -> bool:
    """Whether a whole log of a process without that line proves that no value was taken.

    ``nranks`` is the size of its largest communicator that reached "Init COMPLETE", ``neighbours`` how many of those ranks
    share its host. A whole log starts with the process's first NCCL line and has neither torn nor mixed lines.
    """
    if not expected.certain or not prints(expected, subsystems):
        return False
    return {ALONE: nranks >= 1, PEERS: nranks > 1, NEIGHBOURS: nranks > 1 and neighbours > 1}[expected.needs]
