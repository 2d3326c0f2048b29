"""NCCL's log lines, each version's wording, and everything that comes between them."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from sglang_ext.nccl import catalogue
from sglang_ext.nccl import testimony as records
from sglang_ext.nccl.log import parse
from sglang_ext.nccl.silence import ALONE, NEIGHBOURS, NEVER, PEERS, Expected, expected_line, prints, silence_proves
from sglang_ext.nccl.testimony import (
    CONFIG,
    FILE,
    LEVEL,
    NUMBER,
    TEXT,
    Channels,
    Choice,
    Enabled,
    Init,
    Invalid,
    Library,
    Network,
    Setting,
    Warn,
)
from tests.unit.cases import given_cases

INFO = "gpu01:41:57 [3] NCCL INFO "
NEW, OLD = (2, 32, 3), (2, 18, 3)


def said(text: str, before: str = INFO) -> records.Testimony:
    return parse(f"{before}{text}\n")


@pytest.mark.parametrize(
    ("text", "name", "value", "how"),
    [
        ("NCCL_BUFFSIZE set by environment to 4.", "NCCL_BUFFSIZE", "4", NUMBER),
        ("NCCL_MNNVL_UUID set by environment to -1.", "NCCL_MNNVL_UUID", "-1", NUMBER),
        ("NCCL_NOT_YET_KNOWN set by environment to 7.", "NCCL_NOT_YET_KNOWN", "7", NUMBER),
        ("NCCL_RAS_TIMEOUT_FACTOR set by environment to 1.5", "NCCL_RAS_TIMEOUT_FACTOR", "1.5", NUMBER),
        ("NCCL_P2P_DISABLE set by environment to 1", "NCCL_P2P_DISABLE", "1", NUMBER),
        ("NCCL_PROTO set by environment to LL, Simple ", "NCCL_PROTO", "LL, Simple ", TEXT),
        ("NCCL_PROTO set by environment to ", "NCCL_PROTO", "", TEXT),
        ("NCCL_COMM_ID set by environment to 10.", "NCCL_COMM_ID", "10.", TEXT),  # a text may end in a dot
        ("NCCL_HOSTID set by environment to a set by environment to b", "NCCL_HOSTID", "a set by environment to b", TEXT),
        ("NCCL_P2P_LEVEL set by environment to PXB", "NCCL_P2P_LEVEL", "PXB", LEVEL),
        ("NCCL_LAUNCH_MODE set by environment to GROUP", "NCCL_LAUNCH_MODE", "GROUP", LEVEL),
        ("NCCL_COLLNET_ENABLE set by environment to 1.", "NCCL_COLLNET_ENABLE", "1", NUMBER),
        ("NCCL_COLLNET_ENABLE set by environment to on.", "NCCL_COLLNET_ENABLE", "on", TEXT),
        ("NET/IB: NCCL_IB_RAIL_POLICY set by environment to SAME", "NCCL_IB_RAIL_POLICY", "SAME", TEXT),
        ("NCCL_IB_HCA set to ^mlx5_0,mlx5_1", "NCCL_IB_HCA", "^mlx5_0,mlx5_1", TEXT),
        ("NCCL_OOB_NET_IFNAME set to eth0", "NCCL_OOB_NET_IFNAME", "eth0", TEXT),
        ("NCCL_SOCKET_IFNAME set to lo", "NCCL_SOCKET_IFNAME", "lo", TEXT),
        ("NCCL_TUNER_PLUGIN set to mine", "NCCL_TUNER_PLUGIN", "mine", TEXT),
        ("TUNER/Plugin: NCCL_TUNER_PLUGIN set to mine", "NCCL_TUNER_PLUGIN", "mine", TEXT),
        ("TUNER/Plugin: Plugin name set by env to libnccl-tuner-mine.so", "NCCL_TUNER_PLUGIN", "libnccl-tuner-mine.so", FILE),
        ("Plugin name set by env to libnccl-net-ofi.so", "NCCL_NET_PLUGIN", "libnccl-net-ofi.so", FILE),
        ("NET/Plugin: Plugin name set by env to none", "NCCL_NET_PLUGIN", "none", FILE),
        ("PROFILER/Plugin: Plugin name set by env to p.so", "NCCL_PROFILER_PLUGIN", "p.so", FILE),
        ("NCCL_PROXY_CPUSET = 0-3: 0-63 changed to 0-3", "NCCL_PROXY_CPUSET", "0-3", TEXT),
        ("Parsed environment variable NCCL_CTA_POLICY=ZERO to 2", "NCCL_CTA_POLICY", "2", NUMBER),
        ("TOPO/NET : Force-fusing NICs using NCCL_NET_FORCE_MERGE=a,b;c,d", "NCCL_NET_FORCE_MERGE", "a,b;c,d", TEXT),
        ("Comm config minCTAs reset to NCCL_MIN_CTAS=4", "NCCL_MIN_CTAS", "4", CONFIG),
        ("Comm config cgaClusterSize reset to NCCL_MAX_CGA_CLUSTER_SIZE=2", "NCCL_CGA_CLUSTER_SIZE", "2", CONFIG),
        ("Comm config maxP2pPeers reset to NCCL_MAX_P2P_PEERS=8", "NCCL_P2P_MAX_PEERS", "8", CONFIG),
        ("Comm config graphUsageMode reset to 2 by NCCL_GRAPH_MIXING_SUPPORT=1", "NCCL_GRAPH_MIXING_SUPPORT", "1", CONFIG),
        ("Socket handshake magic 0x000000000000000a (NCCL_SOCKET_MAGIC)", "NCCL_SOCKET_MAGIC", "10", NUMBER),
        ("PARAM: Disabling caching for environment variable NCCL_BUFFSIZE.", "NCCL_NO_CACHE", "NCCL_BUFFSIZE", TEXT),
        ("Disabling caching for environment variable NCCL_BUFFSIZE.", "NCCL_NO_CACHE", "NCCL_BUFFSIZE", TEXT),
    ],
)  # fmt: skip
def test_a_set_variable_in_each_wording(text: str, name: str, value: str, how: str) -> None:
    assert said(text).settings == (Setting(41, name, value, how, "gpu01"),)


@pytest.mark.parametrize(
    "text",
    [
        "Comm config minCTAs set to 4",  # the caller's, not the environment's
        "P2P Chunksize set to 131072",
        "Socket handshake magic 0x0123456789abcdef (built-in default)",
        "MY_VARIABLE set by environment to 4.",
        "NCCL_WHATEVER set to 4",
        "",
    ],
)
def test_what_is_no_variable_from_the_environment(text: str) -> None:
    found = said(text)
    assert found.settings == () and found.lines == 1 and found.mixed == 0


SETTING = Setting(41, "NCCL_PROTO", "LL", TEXT, "gpu01")


@pytest.mark.parametrize(
    "line",
    [
        "gpu01:41:57 [0] NCCL INFO {}",
        "gpu01:41:57 [-1] NCCL INFO {}",
        "gpu01:41:57 [1702240357] NCCL INFO {}",
        "[2026-11-29 14:08:50] gpu01:41:57 [0] NCCL INFO {}",
        "14:08:50 gpu01:41:57 [0] NCCL INFO {}",  # NCCL_DEBUG_TIMESTAMP_FORMAT='%T ': looks like an origin
        "[2026-11-29 14:08:50 TP0] gpu01:41:57 [0] NCCL INFO {}",
        "(TP0) gpu01:41:57 [0] NCCL INFO {}",
        "\x1b[36m(TP0)\x1b[0m gpu01:41:57 [0] NCCL INFO {}",
        "\x1b[1;31mgpu01:41:57 [0] NCCL INFO {}\x1b[0m",
        "\0\0\0\0gpu01:41:57 [0] NCCL INFO {}",  # a hole where several processes truncate one file
        "gpu01:41:57 [0] NCCL INFO {}\r",
        "gpu01:41:57 [0] init.cc:99 NCCL WARN {}",
        "[2026-11-29 14:08:50] gpu01:41:57 [0] init.cc:99 (ncclInit) NCCL WARN {}",
        "gpu01:41:57 [0] init.cc:99 (ncclInit) NCCL ATTN {}",
    ],
)
def test_the_prefix_in_each_form(line: str) -> None:
    assert parse("noise\n" + line.format("NCCL_PROTO set by environment to LL") + "\n").settings == (SETTING,)


def test_a_warning_keeps_its_place() -> None:
    found = parse("\nn:1:2 [0] misc/socket.cc:40 (ncclSocketInit) NCCL WARN Bootstrap : no socket interface found\n")
    assert found.warnings == (
        Warn(1, "WARN", "Bootstrap : no socket interface found", "misc/socket.cc:40 (ncclSocketInit)", "n"),
    )
    assert parse("n:1 NCCL DIAG NCCL environment: consistent\n").warnings[0].level == "DIAG"
    assert parse("n:1:2 NCCL CALL ncclCommInitRank(1)\n").processes == (("n", 1),)


@pytest.mark.parametrize(
    "line",
    [
        "sglang is using NCCL INFO from nowhere",
        "x [0] NCCL INFO NCCL_PROTO set by environment to LL",
        "a:b:c [0] NCCL INFO NCCL_PROTO set by environment to LL",
        "gpu01:41:57 [x] NCCL INFO NCCL_PROTO set by environment to LL",
        "gpu01:41:57 [0] NCCL NEWS NCCL_PROTO set by environment to LL",
        "NCCL_PROTO set by environment to LL",
    ],
)
def test_what_only_looks_like_nccls_line(line: str) -> None:
    assert parse(line + "\n") == records.Testimony()


def test_a_torn_last_line_is_no_evidence() -> None:
    whole = INFO + "NCCL_PROTO set by environment to LL"
    assert parse(whole + "\n").torn is False
    torn = parse(INFO + "NCCL_MAX_NCHANNELS set by environment to 2.\n" + whole)
    assert torn.torn is True and torn.values() == {"NCCL_MAX_NCHANNELS": ("2",)}


def test_two_processes_in_one_line_are_not_believed() -> None:
    found = parse(
        INFO + "NCCL_PROTO set by environment to LLgpu01:42:58 [4] NCCL INFO NCCL_ALGO set by environment to Ring\n"
    )
    assert found.settings == () and found.mixed == 1


def test_a_line_that_breaks_off_like_no_message_we_know_is_counted() -> None:
    for text in ("comm 0x1 rank x - Init COMPLETE", "AllReduce: x Bytes -> Algo Ring proto LL", "a coll channels, b"):
        found = said(text)
        assert found.mixed == 1 and found.inits == () and found.choices == () and found.channels == ()


@pytest.mark.parametrize(
    ("text", "comm_id"),
    [
        ("comm 0x5f rank 1 nranks 8 cudaDev 1 nvmlDev 5 busId d8000 commId 0xab", "0xab"),  # 2.18
        ("ncclCommInitRank comm 0x5f rank 1 nranks 8 cudaDev 1 nvmlDev 5 busId d8000 commId 0xab", "0xab"),
        ("[Rank 1] ncclCommInitRank comm 0x5f rank 1 nranks 8 cudaDev 1 nvmlDev 5 busId d8000 commId 0xab", "0xab"),  # 2.29
        ("ncclCommSplit comm 0x5f rank 1 nranks 8 cudaDev 1 nvmlDev 5 busId d8000 parent 0x4e color 0 key 1 commId 0xab", "0xab"),
        ("ncclCommSplit comm 0x5f rank 1 nranks 8 cudaDev 1 nvmlDev 5 busId d8000 parent 0x4e splitCount 1 color 0 key 1", None),
        ("s comm 0x5f rank 1 nranks 8 cudaDev 1 nvmlDev 5 busId d8000 commId 0xab parent 0x4e color 0 key 1", "0xab"),  # 2.32
        ("ncclCommSplit comm 0x5f rank 1 nranks 8 cudaDev 1 nvmlDev 5 busId d8000 parent 0x4e childCount 1 color -1 key 1", None),
    ],
)  # fmt: skip
def test_inits(text: str, comm_id: str | None) -> None:
    for stage in ("START", "COMPLETE"):
        init = Init(41, "0x5f", 1, 8, 1, "d8000", comm_id, stage, "gpu01")
        assert said(f"{text} - Init {stage}").inits == (init,)
        assert said(f"{text}- Init {stage}").inits == (init,)  # as the split's START is printed


def test_ranks_by_process() -> None:
    line = (
        "n:{0}:{0} [0] NCCL INFO c comm 0x{0} rank {1} nranks {2} cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init {3}\n"
    )
    text = line.format(7, 0, 2, "START") + line.format(7, 0, 2, "COMPLETE") + line.format(7, 0, 1, "COMPLETE")
    found = parse(text + line.format(8, 1, 2, "START"))
    assert found.ranks() == {7: ((0, 2), (0, 1))} and found.ranks("START") == {7: ((0, 2),), 8: ((1, 2),)}
    assert found.of(8).ranks() == {} and found.of(8).ranks("START") == {8: ((1, 2),)}


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("8192 Bytes -> Algo 1 proto 0 time 12.5", ("", 8192, "Ring", "LL", None)),  # up to 2.22
        ("AllReduce: 8192 Bytes -> Algo 6 proto 2 time 12.5", ("AllReduce", 8192, "PAT", "Simple", None)),  # 2.23
        ("AllReduce: 64 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}", ("AllReduce", 64, "Ring", "Simple", (0, 7))),
        ("AllGather: 64 Bytes -> Algo COLLNET_DIRECT proto LL128 channel{Lo..Hi}={3..3}",
         ("AllGather", 64, "CollNetDirect", "LL128", (3, 3))),
        ("AllReduce: 64 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1} cgaClusterSize 4",
         ("AllReduce", 64, "Tree", "LL", (0, 1))),
        ("AllGather [Hierarchical CE]: 64 Bytes -> RMA proxy + CE", ("AllGather", 64, "Hierarchical CE", "RMA proxy + CE", None)),
        ("AllReduce: 64 Bytes -> Algo 9 proto 9 time 1", ("AllReduce", 64, "9", "9", None)),
        ("AllReduce [Symmetric]: 64 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 4 nthreads 512 nWorks 1",
         ("AllReduce", 64, "Symmetric", "AllReduce_RSxLD_AGxST", None)),
        ("AllGather [Copy Engine]: 64 Bytes -> cudaMemcpyAsync", ("AllGather", 64, "Copy Engine", "cudaMemcpyAsync", None)),
    ],
)  # fmt: skip
def test_choices(text: str, choice: tuple[str, int, str, str, tuple[int, int] | None]) -> None:
    assert said(text).choices == (Choice(41, *choice, "gpu01"),)


def test_the_banner_with_and_without_a_prefix() -> None:
    assert parse("NCCL version 2.21.5+cuda12.4\n").libraries == (Library(None, (2, 21, 5), "12.4"),)
    assert said("NCCL version 2.28.3a0+cuda13.0").libraries == (Library(41, (2, 28, 3), "13.0", "gpu01"),)
    assert parse("NCCL version is unknown\nNCCL version 2.x+cuda12\n").libraries == ()


def test_network_channels_links_and_plugins() -> None:
    found = parse(
        INFO + "Using network Socket\n"
        + INFO + "8 coll channels, 0 collnet channels, 4 nvls channels, 16 p2p channels, 2 p2p channels per peer\n"
        + INFO + "8 coll channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer\n"
        + INFO + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
        + INFO + "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        + INFO + "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"
        + INFO + "NET/Plugin: Loaded net plugin OFI (v8)\n"
    )  # fmt: skip
    assert found.networks == (Network(41, "Socket", "gpu01"),)
    assert found.channels == (Channels(41, 8, 0, 4, 16, 2, "gpu01"), Channels(41, 8, 0, 0, 16, 2, "gpu01"))
    assert found.links == ((41, "P2P/CUMEM", 2), (41, "NET/IB", 1))
    assert [p.text for p in found.plugins] == ["NET/Plugin: Loaded net plugin OFI (v8)"]


MATRIX = (
    INFO + "Enabled NCCL Func/Proto/Algo Matrix:\n"
    "     Function |       LL     LL128    Simple   |          Tree           Ring  \n"
    "    Broadcast |        1         2         0   |             1              0  \n"
    "    AllReduce |        0         0         1   |             0              1  \n"
)


def test_the_matrix_is_read_row_by_row() -> None:
    rows = (
        Enabled(41, "Broadcast", (("LL", 1), ("LL128", 2), ("Simple", 0)), (("Tree", 1), ("Ring", 0)), "gpu01"),
        Enabled(41, "AllReduce", (("LL", 0), ("LL128", 0), ("Simple", 1)), (("Tree", 0), ("Ring", 1)), "gpu01"),
    )
    assert parse(MATRIX).matrix == rows
    assert parse(MATRIX + "\n" + INFO + "Using network Socket\n").matrix == rows
    assert parse(MATRIX + "    AllGather |        0         0    \n").matrix == rows  # NCCL's buffer ended there
    other = "other:1:1 [0] NCCL INFO Using network IB\n"
    first, _, last = MATRIX.rpartition("    AllReduce")
    assert parse(first + other + "    AllReduce" + last).matrix == rows[:1]  # whose row it is, nobody knows


@pytest.mark.parametrize(
    ("text", "invalid"),
    [
        ("Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default -2.",
         ("NCCL_BUFFSIZE", "99999999999999999999", "-2")),
        ("Invalid value a for b for NCCL_BUFFSIZE, using default -2.", ("NCCL_BUFFSIZE", "a for b", "-2")),
        ("Invalid NCCL_NTHREADS 100 (must be a multiple of 32)", ("NCCL_NTHREADS", "100", None)),
        ("Invalid NCCL_GDRCOPY_USE_INTERNAL_DMABUF=7; expected 0, 1, or 2", ("NCCL_GDRCOPY_USE_INTERNAL_DMABUF", "7", None)),
        ("Invalid value 1x for NCCL_RAS_TIMEOUT_FACTOR, using default 1.", ("NCCL_RAS_TIMEOUT_FACTOR", "1x", "1")),
        ("failed to decode NCCL_PROXY_CPUSET=x-y. Ignoring", ("NCCL_PROXY_CPUSET", "x-y", None)),
        ('NCCL_SOCKET_MAGIC invalid value "12x", using built-in default', ("NCCL_SOCKET_MAGIC", "12x", None)),
        ("Unknown CTA policy FAST passed as environment variable. Ignoring.", ("NCCL_CTA_POLICY", "FAST", None)),
        ("No valid CTA policies found in NCCL_CTA_POLICY=FAST.", ("NCCL_CTA_POLICY", "FAST", None)),
    ],
)  # fmt: skip
def test_what_nccl_did_not_take(text: str, invalid: tuple[str, str, str | None]) -> None:
    assert said(text).invalid == (Invalid(41, *invalid, text, "gpu01"),)


def test_bytes_that_are_no_utf8_are_kept() -> None:
    found = parse(INFO.encode() + b"NCCL_TOPO_FILE set by environment to /\xff\x85/\xe2\x80\xa8x\n")
    (setting,) = found.settings
    assert setting.value.encode("utf-8", "surrogateescape") == b"/\xff\x85/\xe2\x80\xa8x"


def test_processes_of_one_number_on_two_hosts() -> None:
    line = "{}:7:7 [0] NCCL INFO NCCL_PROTO set by environment to {}\n"
    found = parse(line.format("a", "LL") + line.format("b", "Simple"))
    assert found.processes == (("a", 7), ("b", 7))
    assert found.of(7).values() == {"NCCL_PROTO": ("LL", "Simple")}
    assert found.of(7, "b").values() == {"NCCL_PROTO": ("Simple",)} and found.of(7, "b").processes == (("b", 7),)


PIECES = (
    "\n", " ", "host:1:2", "[0]", " NCCL ", "INFO ", "WARN ", "DIAG ", "CALL ", "NCCL_PROTO", " set by environment to ",
    " set to ", "4.", "comm 0x1 ", "rank 1 ", "nranks 2 ", "- Init COMPLETE", " - Init START", " Bytes -> ", "Algo ", "proto ",
    "time 3", "channel{Lo..Hi}={", "AllReduce: ", "Kernel", "[Symmetric]: ", " coll channels, ", "Channel ", " via ", "/",
    "Invalid value ", "Invalid NCCL_", " for ", ", using default ", "NCCL version ", "2.1+cuda", "Function |", "|",
    "Enabled NCCL Func/Proto/Algo Matrix:", "Comm config ", " reset to NCCL_", "=", "Socket handshake magic ",
    " (NCCL_SOCKET_MAGIC)", "NCCL_PROXY_CPUSET = ", ": ", "Parsed environment variable NCCL_CTA_POLICY=", " to ",
    "Plugin name set by env to ", "\x1b", "\x1b[", "\0", "\r", "x", "\u0663", "-",
)  # fmt: skip


@given_cases(100, st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    found = parse(text)
    assert found.lines <= text.count("\n") and found.mixed <= text.count("\n")
    found.values(), found.ranks(), found.of(1, "host")


@given_cases(100, st.binary())
def test_no_bytes_make_it_raise(data: bytes) -> None:
    parse(data)


@given_cases(
    100, st.text(st.characters(exclude_characters="\n\r\0\x1b"), max_size=30).filter(lambda v: " NCCL " not in v)
)
def test_any_text_value_comes_back(value: str) -> None:
    assert said(f"NCCL_PROTO set by environment to {value}").values() == {"NCCL_PROTO": (value,)}


@pytest.mark.parametrize(
    ("name", "version", "how", "shown"),
    [
        ("NCCL_BUFFSIZE", OLD, NUMBER, "NCCL_BUFFSIZE"),
        ("NCCL_PROTO", NEW, TEXT, "NCCL_PROTO"),
        ("NCCL_P2P_LEVEL", NEW, LEVEL, "NCCL_P2P_LEVEL"),
        ("NCCL_P2P_DISABLE", (2, 22, 3), LEVEL, "NCCL_P2P_LEVEL"),
        ("NCCL_P2P_DISABLE", (2, 23, 4), NUMBER, "NCCL_P2P_DISABLE"),
        ("NCCL_SET_THREAD_NAME", (2, 30, 4), NUMBER, "NCCL_SET_THREAD_NAME"),
        ("NCCL_SET_THREAD_NAME", (2, 30, 7), NEVER, "NCCL_SET_THREAD_NAME"),
        ("NCCL_SYM_KERNEL", (2, 30, 7), NEVER, "NCCL_SYM_KERNEL"),
        ("NCCL_SYM_KERNEL", (2, 31, 2), TEXT, "NCCL_SYM_KERNEL"),
        ("NCCL_NET_PLUGIN", (2, 20, 5), FILE, "NCCL_NET_PLUGIN"),
        ("NCCL_NET_PLUGIN", (2, 28, 9), TEXT, "NCCL_NET_PLUGIN"),
        ("NCCL_RAS_ADDR", NEW, NEVER, "NCCL_RAS_ADDR"),
        ("NCCL_IB_HCA", NEW, TEXT, "NCCL_IB_HCA"),
        ("NCCL_PROTOO", NEW, NEVER, "NCCL_PROTOO"),  # no release reads it
        ("NCCL_RAS_ENABLE", OLD, NEVER, "NCCL_RAS_ENABLE"),  # not yet
        ("NCCL_WORK_FIFO_DEPTH", NEW, NEVER, "NCCL_WORK_FIFO_DEPTH"),  # no longer
        ("NCCL_INSPECTOR_ENABLE", NEW, NEVER, "NCCL_INSPECTOR_ENABLE"),  # an example plugin's
    ],
)
def test_how_a_variable_shows_up(name: str, version: tuple[int, ...], how: str, shown: str) -> None:
    expected = expected_line(name, version)
    assert (expected.how, expected.name) == (how, shown)


def test_living_variables_that_never_print_a_line() -> None:
    silent = {
        name
        for name in catalogue.names()
        if (variable := catalogue.get(name)) is not None and not variable.by_plugin and catalogue.alive(variable, NEW)
        if expected_line(name, NEW).how == NEVER
    }
    assert silent == {
        "NCCL_CONF_FILE", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_LEVELS", "NCCL_DEBUG_SUBSYS",
        "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_DEBUG_TIMESTAMP_LEVELS", "NCCL_NET", "NCCL_NET_MERGE_LEVEL", "NCCL_PARAM_DUMP_ALL",
        "NCCL_RAS_ADDR", "NCCL_SET_THREAD_NAME", "NCCL_WARN_ENABLE_DEBUG_INFO",
    }  # fmt: skip


def test_silence_proves_only_where_it_must_have_been_printed() -> None:
    env = {"INIT", "ENV", "TUNING"}
    proto, level, plugin = (expected_line(n, (2, 27, 7)) for n in ("NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_IB_HCA"))
    assert silence_proves(proto, env, 8, 8) and silence_proves(proto, {"ALL"}, 2, 1)
    assert not silence_proves(proto, env, 1, 1)  # one rank: the list is not even parsed
    assert not silence_proves(proto, {"INIT"}, 8, 8) and not silence_proves(proto, set(), 8, 8)
    assert silence_proves(level, {"INIT"}, 8, 8) and not silence_proves(level, {"INIT"}, 8, 1)
    assert not silence_proves(plugin, {"ALL"}, 8, 8)  # without InfiniBand nobody looks
    assert silence_proves(expected_line("NCCL_GDRCOPY_ENABLE", (2, 27, 7)), env, 1, 1)
    assert not silence_proves(Expected(NEVER, "x", certain=True), {"ALL"}, 8, 8)
    assert {proto.needs, level.needs, plugin.needs} == {PEERS, NEIGHBOURS, ALONE}
    assert prints(level, {"GRAPH"}) and not prints(level, set()) and not prints(proto, {"GRAPH"})
    assert not proto.once and expected_line("NCCL_BUFFSIZE", OLD).once
