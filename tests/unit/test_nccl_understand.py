"""What NCCL takes a text for, release by release: the value, and what is said of it."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import strategies as st

from sglang_ext.nccl import lists
from sglang_ext.nccl.catalogue import names
from sglang_ext.nccl.integers import meant, strtoll, wrapped
from sglang_ext.nccl.understand import taken, understand
from tests.unit.cases import given_cases

NOW, OLD, NEW = (2, 30, 7), (2, 21, 5), (2, 32, 3)


def read(name: str, text: str, version: tuple[int, ...] | None = NOW) -> tuple[str, list[str]]:
    value, faults = understand(name, text, version)
    return value, [fault.code for fault in faults]


@pytest.mark.parametrize(
    ("text", "value", "codes", "fix"),
    [
        ("4194304", "4194304", [], ""),
        ("0x400000", "4194304", [], ""),
        ("-2", "-2", [], ""),
        ("", "", [], ""),
        ("4M", "4", ["value_misread"], "write 4194304"),
        ("32k", "32", ["value_misread"], "write 32768"),
        ("4MiB", "4", ["value_misread"], "write 4194304"),
        ("1e6", "1", ["value_misread"], "write 1000000"),
        ("1.5", "1", ["value_misread"], "write the number in plain digits"),
        ("8,8", "8", ["value_misread"], "write the number in plain digits"),
        ("08", "0", ["value_misread"], "write 8"),
        ("010", "8", ["value_misread"], "write 10, or 8 if octal is meant"),
        ("-010", "-8", ["value_misread"], "write -10, or -8 if octal is meant"),
        ("0" + "1" * 10, str(int("1" * 10, 8)), ["value_misread"], "if octal is meant"),
        ("-00", "0", ["value_unclear"], "write 0"),
        ("007", "7", ["value_unclear"], "write 7"),
        (" 8", "8", ["value_unclear"], "write 8"),
        ("8 ", "8", ["value_unclear"], "write 8"),
        ("8\r", "8", ["value_unclear"], "write 8"),
        ("+8", "8", ["value_unclear"], "write 8"),
        ('"8"', "0", ["quoted"], "write 8 without quotes"),
        ("'8'", "0", ["quoted"], "write 8 without quotes"),
        ('8"', "8", ["quoted"], "write 8 without quotes"),
        ("auto", "0", ["value_misread"], "write the number in plain digits"),
        ("0x", "0", ["value_misread"], "write"),
        ("9" * 20, "", ["value_ignored"], "write a smaller number"),
        ("9" * 9999, "", ["value_ignored"], "write a smaller number"),
        ("9223372036854775807", "9223372036854775807", ["value_misread"], "write a number below 2147483648"),
        ("\u0664", "0", ["value_misread"], "write"),  # an Arabic digit is none to C
    ],
)
def test_integers(text: str, value: str, codes: list[str], fix: str) -> None:
    assert read("NCCL_BUFFSIZE", text) == (value, codes)
    faults = understand("NCCL_BUFFSIZE", text, NOW).faults
    assert all(fix in fault.message and fault.message.startswith("NCCL_BUFFSIZE: expected") for fault in faults)
    assert all(fault.severity == ("note" if fault.code == "value_unclear" else "fail") for fault in faults)


def test_a_text_without_digits_depends_on_the_release() -> None:
    for version in (OLD, NOW, (2, 31, 2)):
        assert read("NCCL_BUFFSIZE", "auto", version) == ("0", ["value_misread"])
    assert read("NCCL_BUFFSIZE", "auto", NEW) == ("", ["value_ignored"])
    assert read("NCCL_BUFFSIZE", "4M", NEW) == ("4", ["value_misread"])
    (fault,) = understand("NCCL_BUFFSIZE", "auto", None).faults
    assert "NCCL takes its default" in fault.message  # no version is claimed that nobody named


@given_cases(100, st.text(alphabet=" \t\r\n+-0123456789abfxXkM.,\"'e", max_size=24))
def test_integers_as_libc_reads_them(text: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.strtoll.restype, libc.strtoll.argtypes = ctypes.c_longlong, (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
    for base in (0, 10):
        raw, end = ctypes.create_string_buffer(text.encode()), ctypes.c_char_p()
        ctypes.set_errno(0)
        value = libc.strtoll(ctypes.cast(raw, ctypes.c_char_p), ctypes.byref(end), base)
        number = strtoll(text, base)
        assert (number.value, number.rest, number.fits) == (value, (end.value or b"").decode(), ctypes.get_errno() == 0)


def test_numbers_people_mean() -> None:
    assert [meant(text, "size") for text in ("4M", "2 GB", "-1", "8ch", "1_000", "4X8")] == [
        "4194304", "2147483648", "-1", "8", "1000", None,
    ]  # fmt: skip
    assert meant("yes", "bool") == "1" and meant("off", "bool") == "0" and meant("yes", "int") is None
    assert wrapped(2**31) == -(2**31) and wrapped(2**32 + 5) == 5 and wrapped(2**63 - 1) == -1


@pytest.mark.parametrize(
    ("name", "text", "value", "codes"),
    [
        # Only 1 is on, and nothing else does anything.
        ("NCCL_P2P_DISABLE", "1", "1", []),
        ("NCCL_P2P_DISABLE", "0", "", []),
        ("NCCL_P2P_DISABLE", "", "", []),
        ("NCCL_P2P_DISABLE", "01", "1", ["value_unclear"]),
        ("NCCL_P2P_DISABLE", "1x", "1", ["value_misread"]),
        ("NCCL_P2P_DISABLE", "2", "", ["value_ignored"]),
        ("NCCL_P2P_DISABLE", "true", "", ["value_ignored"]),
        # A number of which only 1 is on.
        ("NCCL_SHM_DISABLE", "1", "1", []),
        ("NCCL_SHM_DISABLE", "2", "2", ["value_misread"]),
        ("NCCL_SHM_DISABLE", "true", "0", ["value_misread"]),
        # A number of which only 0 is off.
        ("NCCL_IB_DISABLE", "2", "2", ["value_unclear"]),
        ("NCCL_IB_DISABLE", "yes", "0", ["value_misread"]),
        # Numbers other than the listed ones.
        ("NCCL_SHM_LOCALITY", "3", "", ["value_ignored"]),
        ("NCCL_GRAPH_MIXING_SUPPORT", "2", "", ["value_ignored"]),
        ("NCCL_NVLS_ENABLE", "7", "7", ["value_unclear"]),
        ("NCCL_CUMEM_ENABLE", "-2", "-2", []),
        # Numbers outside of what is taken.
        ("NCCL_MAX_NCHANNELS", "0", "0", ["value_misread"]),
        ("NCCL_MAX_NCHANNELS", "128", "128", ["value_unclear"]),
        # Automatic is what its default says, and nothing else (NCCL 2.30.7 src/graph/connect.cc ncclMaxNchannels).
        ("NCCL_MAX_NCHANNELS", "-2", "-2", []),
        ("NCCL_MAX_NCHANNELS", "-1", "-1", ["value_misread"]),
        ("NCCL_MAX_NRINGS", "-1", "-1", ["value_misread"]),
        ("NCCL_MIN_NCHANNELS", "-1", "-1", ["value_misread"]),
        ("NCCL_MAX_CTAS", "-1", "", ["value_ignored"]),
        ("NCCL_NTHREADS", "-2", "-2", []),
        ("NCCL_NTHREADS", "-1", "", ["value_ignored"]),
        ("NCCL_SOCKET_NTHREADS", "-2", "-2", []),
        ("NCCL_SOCKET_NTHREADS", "-1", "-1", ["value_unclear"]),
        ("NCCL_IB_SUBNET_PREFIX_LEN", "-1", "-1", ["value_refused"]),
        ("NCCL_IB_DISABLE", "-1", "-1", ["value_unclear"]),
        ("NCCL_CUMEM_ENABLE", "-1", "-1", ["value_unclear"]),
        ("NCCL_CUMEM_HOST_ENABLE", "-1", "-1", []),
        # Kept in 32 bits.
        ("NCCL_MAX_NCHANNELS", "4294967295", "4294967295", ["value_misread"]),
        ("NCCL_MAX_NCHANNELS", "4294967304", "4294967304", ["value_misread"]),
        ("NCCL_NTHREADS", "100", "100", ["value_misread"]),
        ("NCCL_NTHREADS", "1024", "1024", ["value_misread"]),
        ("NCCL_NTHREADS", "256", "256", []),
        ("NCCL_MAX_CTAS", "0", "", ["value_ignored"]),
        ("NCCL_WORK_FIFO_BYTES", "1000000", "", ["value_ignored"]),
        ("NCCL_WORK_FIFO_BYTES", "1048576", "1048576", []),
        ("NCCL_SOCKET_NTHREADS", "17", "17", ["value_misread"]),
        # "too low, leaving it set at": NCCL 2.30.7 src/init.cc:2040 and 2092.
        ("NCCL_NCHANNELS_PER_NET_PEER", "0", "", ["value_ignored"]),
        ("NCCL_NCHANNELS_PER_NET_PEER", "1", "1", []),
        ("NCCL_P2P_MAX_PEERS", "0", "", ["value_ignored"]),
        # int buffSizes[], int p2pChunkSize: src/include/comm.h:629; uint32_t workFifoBytes: comm.h:662.
        ("NCCL_BUFFSIZE", "4294967296", "4294967296", ["value_misread"]),
        ("NCCL_LL_BUFFSIZE", "2147483648", "2147483648", ["value_misread"]),
        ("NCCL_LL128_BUFFSIZE", "2147483647", "2147483647", []),
        ("NCCL_P2P_NVL_CHUNKSIZE", "4294967296", "4294967296", ["value_misread"]),
        ("NCCL_WORK_FIFO_BYTES", "4294967296", "4294967296", ["value_misread"]),
        ("NCCL_WORK_FIFO_BYTES", "2147483648", "2147483648", ["value_misread"]),
        ("NCCL_WORK_FIFO_BYTES", "1073741824", "1073741824", []),
        ("NCCL_CGA_CLUSTER_SIZE", "-5", "", ["value_ignored"]),
        ("NCCL_IB_SUBNET_PREFIX_LEN", "33", "33", ["value_refused"]),
    ],
)
def test_switches_and_ranges(name: str, text: str, value: str, codes: list[str]) -> None:
    assert read(name, text) == (value, codes)


def test_ranges_move_between_releases() -> None:
    assert read("NCCL_MAX_NCHANNELS", "64", (2, 24, 3)) == ("64", ["value_unclear"])
    assert read("NCCL_MAX_NCHANNELS", "64", (2, 25, 1)) == ("64", [])
    assert read("NCCL_GRAPH_MIXING_SUPPORT", "2", OLD) == ("2", ["value_unclear"])


@pytest.mark.parametrize(
    ("text", "value", "codes", "fix"),
    [
        ("SYS", "SYS", [], ""),
        ("", "", [], ""),
        ("2", "PXB", ["value_unclear"], "means PXB"),
        ("4", "SYS", ["value_unclear"], "write SYS"),
        ("99", "SYS", ["value_unclear"], "write SYS"),
        ("0x3", "PHB", ["value_misread"], "write PHB"),
        ("2x", "PXB", ["value_misread"], "write PXB"),
        ("sys", "", ["value_ignored"], "write SYS"),
        ("SYS ", "", ["value_ignored"], "write SYS"),
        ("SYS\r", "", ["value_ignored"], "write SYS"),
        ("System", "", ["value_ignored"], "write SYS"),
        ("NVLINK", "", ["value_ignored"], "write NVL"),
        ('"SYS"', "", ["quoted"], "write SYS without quotes"),
        ("-1", "", ["value_ignored"], "write one of them"),
        ("NET", "", ["value_ignored"], "write SYS"),
        ("4294967295", "4294967295", ["value_refused"], "write SYS"),
    ],
)
def test_levels(text: str, value: str, codes: list[str], fix: str) -> None:
    for name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        assert read(name, text) == (value, codes)
        assert all(fix in fault.message for fault in understand(name, text, NOW).faults)


def test_levels_came_one_by_one() -> None:
    assert read("NCCL_P2P_LEVEL", "C2C", (2, 25, 1)) == ("", ["value_ignored"])
    assert read("NCCL_P2P_LEVEL", "C2C", (2, 26, 2)) == ("C2C", [])
    assert read("NCCL_P2P_LEVEL", "P2C", (2, 26, 5)) == ("", ["value_ignored"])
    assert read("NCCL_P2P_LEVEL", "P2C", (2, 27, 3)) == ("P2C", [])


@pytest.mark.parametrize(
    ("text", "value", "codes"),
    [
        ("LL", "LL", []),
        ("ll,SIMPLE", "LL,Simple", []),
        ("Simple,LL", "LL,Simple", []),
        ("^LL128", "LL,Simple", []),
        (",,LL,", "LL", []),
        ("", "", []),
        (";", "", []),
        ("^", "LL,LL128,Simple", []),
        ("allreduce:LL", "AllReduce:LL", []),
        ("LL;allreduce:ll", "LL", []),
        ("^LL128;allreduce:LL128", None, []),
        ("broadcast:LL;reduce:LL;allgather:LL;reducescatter:LL;allreduce:LL", "LL", []),
        ("allreduce:LL:Simple", "AllReduce:LL", []),  # what follows a second colon is never looked at
        (":LL", "LL", []),
        ("LL, LL128", None, ["value_refused"]),
        ("LLL", None, ["value_refused"]),
        ("LL LL128", None, ["value_refused"]),
        ("allreduce:", None, ["value_refused"]),
        ("sendrecv:LL", None, ["value_refused"]),
        ("broadcast,allreduce:LL", None, ["value_refused"]),
        ("^LL,^LL128", None, ["value_refused"]),
        ("LL;Simple", None, ["value_refused"]),
        (";LL", None, ["value_refused"]),
        (":", None, ["value_refused"]),
        ("LL\u212a", None, ["value_refused"]),
        ('"LL"', None, ["quoted"]),
        ("^LL,LL128,Simple", "none", ["no_algorithm"]),
    ],
)
def test_lists_since_2_24(text: str, value: str | None, codes: list[str]) -> None:
    found, said = read("NCCL_PROTO", text)
    assert said == codes and (value is None or found == value)


@pytest.mark.parametrize(
    ("name", "text", "value", "codes"),
    [
        ("NCCL_PROTO", "ll,Simple", "LL,Simple", []),
        ("NCCL_PROTO", "Simple,foo", "Simple", ["value_ignored"]),
        ("NCCL_PROTO", "LL, LL128", "LL", ["value_ignored"]),
        ("NCCL_PROTO", "", "none", ["value_ignored"]),
        ("NCCL_ALGO", "allreduce:ring", "none", ["value_ignored"]),
        ("NCCL_ALGO", "^tree", "Ring,CollNetDirect,CollNetChain,NVLS,NVLSTree", []),
        ("NCCL_ALGO", "PAT", "none", ["value_ignored"]),
    ],
)
def test_lists_up_to_2_23(name: str, text: str, value: str, codes: list[str]) -> None:
    assert read(name, text, OLD) == (value, codes)


def test_lists_move_between_releases() -> None:
    assert read("NCCL_PROTO", "", (2, 22, 3)) == ("none", ["no_algorithm"])
    assert read("NCCL_ALGO", "PAT", (2, 23, 4)) == ("PAT", [])
    assert "2.24" in understand("NCCL_ALGO", "allreduce:ring", OLD).faults[0].message
    everything = "Tree,Ring,CollNetDirect,CollNetChain,NVLS,NVLSTree,PAT"
    assert read("NCCL_ALGO", everything) == ("", [])  # all of them is as good as no list
    assert read("NCCL_ALGO", everything, NEW) == (everything, [])  # ... until a list shuts out symmetric kernels


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("NCCL_PROTO", "LL, LL128", "write LL,LL128"),
        ("NCCL_PROTO", "LLL", "write LL for LLL"),
        ("NCCL_ALGO", "rnig", "write Ring for rnig"),
        ("NCCL_ALGO", "collnet", "write CollNetDirect for collnet"),
        ("NCCL_ALGO", "Ring,quux", "take quux out"),
        ("NCCL_ALGO", "allreduce:", "write it like"),
    ],
)
def test_lists_have_a_fix(name: str, text: str, fix: str) -> None:
    assert fix in understand(name, text, NOW).faults[0].message


_words = st.sampled_from(["LL", "ll128", "Simple", "", "foo", "^LL", " LL"])
_entries = st.tuples(
    st.sampled_from(["", "", "allreduce:", "Broadcast:", "foo:", ":"]),
    st.sampled_from(["", "^"]),
    st.lists(_words, max_size=3),
)
_texts = st.lists(_entries, max_size=3).map(
    lambda es: ";".join(f"{head}{no}{','.join(words)}" for head, no, words in es)
)


@given_cases(100, _texts, st.sampled_from([OLD, (2, 23, 4), (2, 24, 3), NOW, NEW]))
def test_a_canonical_list_means_itself(text: str, version: tuple[int, ...]) -> None:
    parsed = lists.parse("NCCL_PROTO", text, version)
    value = lists.canonical("NCCL_PROTO", parsed, version)
    if not parsed.refused and "none" not in value:
        again = lists.parse("NCCL_PROTO", value, version)
        assert not again.refused and not again.ignored
        assert lists.canonical("NCCL_PROTO", again, version) == value
        assert value == "" or again.enabled == parsed.enabled


@pytest.mark.parametrize(
    ("name", "text", "version", "value", "codes"),
    [
        ("NCCL_CTA_POLICY", "ZERO", (2, 28, 9), "0", ["value_misread"]),
        ("NCCL_CTA_POLICY", "2", (2, 28, 9), "2", []),
        ("NCCL_CTA_POLICY", "zero", NOW, "ZERO", []),
        ("NCCL_CTA_POLICY", "default|zero", NOW, "ZERO", []),
        ("NCCL_CTA_POLICY", "ZERO|EFFICIENCY", NOW, "ZERO", ["value_misread"]),
        ("NCCL_CTA_POLICY", "2", NOW, "ZERO", ["value_unclear"]),
        ("NCCL_CTA_POLICY", "7", NOW, "", ["value_ignored"]),
        ("NCCL_CTA_POLICY", "fast", NOW, "", ["value_ignored"]),
        ("NCCL_CTA_POLICY", "\u0662", NOW, "", ["value_ignored"]),
        ("NCCL_SOCKET_FAMILY", "AF_INET6", NOW, "AF_INET6", []),
        ("NCCL_SOCKET_FAMILY", "af_inet", NOW, "", ["value_ignored"]),
        ("NCCL_NETDEVS_POLICY", "max:08", NOW, "MAX:8", []),
        ("NCCL_NETDEVS_POLICY", "MAX:0", NOW, "", ["value_ignored"]),
        ("NCCL_NET_MERGE_LEVEL", "PIX", NOW, "PIX", []),
        ("NCCL_NET_MERGE_LEVEL", "PIXEL", NOW, "PIX", ["value_unclear"]),
        ("NCCL_NET_MERGE_LEVEL", "pix", NOW, "LOC", ["value_misread"]),
        ("NCCL_LAUNCH_MODE", "group", NOW, "GROUP", []),
        ("NCCL_LAUNCH_MODE", "single", NOW, "", ["value_ignored"]),
        ("NCCL_NET", "Socket", NOW, "socket", []),
        ("NCCL_NET", "", NOW, "(refused)", ["value_refused"]),
        ("NCCL_COLLNET_ENABLE", "yes", NEW, "0", ["value_misread"]),
        ("NCCL_SOCKET_MAGIC", "0x10", NOW, "16", []),
        ("NCCL_SOCKET_MAGIC", "16 ", NOW, "", ["value_ignored"]),
        ("NCCL_RAS_TIMEOUT_FACTOR", "1.5", NOW, "1", ["value_misread"]),
        ("NCCL_RAS_TIMEOUT_FACTOR", "1.5", NEW, "1.5", []),
        ("NCCL_SOCKET_IFNAME", "lo", NOW, "lo", []),
        ("NCCL_SOCKET_IFNAME", "l", NOW, "", ["value_ignored"]),
        ("NCCL_SOCKET_IFNAME", "lo\r", NOW, "lo\r", ["value_misread"]),
        ("NCCL_SOCKET_IFNAME", '"lo"', NOW, '"lo"', ["quoted"]),
        ("NCCL_TOPO_FILE", "/x.xml ", NOW, "/x.xml ", ["value_misread"]),
        ("NCCL_HOSTID", "a ", NOW, "a ", []),
    ],
)
def test_words(name: str, text: str, version: tuple[int, ...], value: str, codes: list[str]) -> None:
    assert read(name, text, version) == (value, codes)


@pytest.mark.parametrize(
    ("name", "text", "version", "value", "codes"),
    [
        ("NCCL_DEBUG", "info", OLD, "INFO", []),
        ("NCCL_DEBUG", " info ", OLD, "", ["value_ignored"]),
        ("NCCL_DEBUG", " info ", NOW, "INFO", []),
        ("NCCL_DEBUG", "ATTN", NOW, "", ["value_ignored"]),
        ("NCCL_DEBUG", "ATTN", NEW, "ATTN", []),
        ("NCCL_DEBUG_SUBSYS", "env,init", OLD, "INIT,ENV", []),
        ("NCCL_DEBUG_SUBSYS", "INIT, ENV", OLD, "INIT", ["value_ignored"]),
        ("NCCL_DEBUG_SUBSYS", "INIT, ENV", NOW, "INIT,ENV", []),
        ("NCCL_DEBUG_SUBSYS", "INIT,FOO", OLD, "INIT", ["value_ignored"]),
        ("NCCL_DEBUG_SUBSYS", "INIT,FOO", NOW, "", ["value_ignored"]),
        ("NCCL_DEBUG_SUBSYS", "", NOW, "none", []),
        ("NCCL_DEBUG_SUBSYS", "^COLL", NOW, "^COLL", []),
        ("NCCL_DEBUG_SUBSYS", "RAS", OLD, "none", ["value_ignored"]),
        ("NCCL_SET_THREAD_NAME", "2", (2, 30, 4), "2", ["value_unclear"]),
        ("NCCL_SET_THREAD_NAME", "2", NOW, "", ["value_ignored"]),
        ("NCCL_SET_THREAD_NAME", "TRUE", NOW, "1", []),
        ("NCCL_SET_THREAD_NAME", "TRUE", OLD, "0", ["value_misread"]),
    ],
)
def test_the_log_is_read_more_strictly_since_2_30_7(
    name: str, text: str, version: tuple[int, ...], value: str, codes: list[str]
) -> None:
    assert read(name, text, version) == (value, codes)
    if name.startswith("NCCL_DEBUG"):  # a log that stays away changes no communication
        assert all(fault.severity == "note" for fault in understand(name, text, version).faults)


def test_what_is_not_read_means_nothing() -> None:
    assert read("NCCL_CTA_POLICY", "ZERO", OLD) == ("", [])
    assert read("NCCL_LL_THRESHOLD", "4M") == ("", [])
    assert read("NCCL_MY_OWN_KNOB", "4M") == ("4M", [])
    assert read("NCCL_BUFFSIZE", "8\0garbage") == ("8", [])


def test_a_sentence_stays_on_its_line() -> None:
    for name in names():
        for text in ("'\n0'", "a\nb", "LL\n,foo\n", "\x1b[2J\u2028"):
            assert all(fault.message.isprintable() for fault in understand(name, text, NOW).faults)


def test_long_texts_make_short_sentences() -> None:
    for name in names():
        for text in ("x" * 100000, "^" * 5000 + ";" * 5000, ":" * 70000, '"' * 3000):
            assert all(len(fault.message) < 1500 for fault in understand(name, text, NOW).faults)


_versions = st.none() | st.tuples(st.just(2), st.integers(18, 33), st.integers(0, 9))
_values = st.text(max_size=30) | st.text(alphabet="0123456789xXkKmM-+ ^,;:|LSimple128RngTree\"'\r", max_size=30)


@given_cases(
    10_000,
    st.lists(st.tuples(st.sampled_from(names()), _values, _versions), min_size=20, max_size=20),
    asked="NCCL_FUZZ",
    at_once=20,
)
def test_no_value_makes_it_raise(some: list[tuple[str, str, tuple[int, ...] | None]]) -> None:
    for name, text, version in some:
        value, faults = understand(name, text, version)
        assert isinstance(value, str)
        for fault in faults:
            assert fault.variable == name and fault.severity in ("fail", "note")
            assert fault.message.startswith(f"{name}: expected ") and "\n" not in fault.message


def test_limits_came_with_releases() -> None:
    assert read("NCCL_NCHANNELS_PER_NET_PEER", "0", (2, 27, 7)) == (
        "0",
        [],
    )  # src/graph/paths.cc:818: a number like others
    assert read("NCCL_NCHANNELS_PER_NET_PEER", "0", (2, 28, 3)) == ("", ["value_ignored"])


@pytest.mark.parametrize(
    ("name", "text", "version", "expected"),
    [
        ("NCCL_NTHREADS", "100", (2, 27, 7), "512"),
        ("NCCL_NTHREADS", "32", NOW, "64"),
        ("NCCL_NTHREADS", "0", NOW, ""),
        ("NCCL_MAX_NCHANNELS", "0", NOW, "1"),
        ("NCCL_MAX_NCHANNELS", "128", NOW, "64"),
        ("NCCL_MAX_NCHANNELS", "128", (2, 24, 3), "32"),
        ("NCCL_MAX_NCHANNELS", "-2", NOW, "-2"),
        ("NCCL_MAX_NCHANNELS", "4294967304", NOW, "8"),  # 2**32 + 8
        ("NCCL_MAX_NCHANNELS", "4294967295", NOW, "1"),  # -1 in 32 bits
        ("NCCL_MAX_NCHANNELS", "16ch", NOW, "16"),
        ("NCCL_SHM_DISABLE", "2", NOW, "0"),
        ("NCCL_BUFFSIZE", "4294967296", NOW, "0"),
        ("NCCL_BUFFSIZE", "4M", NOW, "4"),
        ("NCCL_WORK_FIFO_BYTES", "4294967296", NOW, "0"),
        ("NCCL_WORK_FIFO_BYTES", "2147483648", NOW, "1073741824"),
        ("NCCL_WORK_FIFO_BYTES", "1000", (2, 26, 5), "1000"),  # it says that it ignores this, and does not
        ("NCCL_WORK_FIFO_BYTES", "-1", (2, 26, 6), "-1"),
        ("NCCL_WORK_FIFO_BYTES", "-1", (2, 27, 3), ""),
        ("NCCL_NCHANNELS_PER_NET_PEER", "-1", (2, 28, 3), ""),
        ("NCCL_WORK_FIFO_BYTES", "4294967296", (2, 26, 5), "1073741824"),  # 64 bits there: src/init.cc:461
        ("NCCL_WORK_FIFO_BYTES", "1000000", NOW, ""),
        ("NCCL_P2P_LEVEL", "4", NOW, "SYS"),
        ("NCCL_MY_OWN_KNOB", "4M", NOW, "4M"),
        ("NCCL_CTA_POLICY", "ZERO", OLD, ""),
    ],
)
def test_what_nccl_goes_on_with(name: str, text: str, version: tuple[int, ...], expected: str) -> None:
    assert taken(name, text, version) == expected


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        # NCCL 2.30.7 answers the first with "no socket interface found" where only lo is there.
        ("NCCL_SOCKET_IFNAME", "nosuch, lo", "expected nosuch,lo, found 'nosuch, lo'"),
        ("NCCL_SOCKET_IFNAME", "^nosuch, lo", "expected ^nosuch,lo,"),
        ("NCCL_SOCKET_IFNAME", "=eth0 ,eth1", "expected =eth0,eth1,"),
        ("NCCL_SOCKET_IFNAME", " ^lo", "expected ^lo,"),
        ("NCCL_IB_HCA", "mlx5_0, mlx5_1", "expected mlx5_0,mlx5_1,"),
        ("NCCL_IB_HCA", "^=mlx5_0:1,\tmlx5_1:1", "expected ^=mlx5_0:1,mlx5_1:1,"),
        ("NCCL_IB_HCA", "mlx5_0 :1", "take the blank out"),
        ("NCCL_OOB_NET_IFNAME", "mlx5_0, mlx5_1", "expected mlx5_0,mlx5_1,"),
        ("NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_1; mlx5_2,mlx5_3", "expected mlx5_0,mlx5_1;mlx5_2,mlx5_3,"),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1\r", "take the carriage return out"),
    ],
)
def test_a_blank_in_a_list_of_names_is_part_of_a_name(name: str, text: str, fix: str) -> None:
    (fault,) = understand(name, text, NOW).faults
    assert (fault.code, fault.severity) == ("value_misread", "fail") and fix in fault.message
    assert "as part of a name; take the" in fault.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NCCL_SOCKET_IFNAME", "nosuch,lo"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo,virbr"),
        ("NCCL_SOCKET_IFNAME", "lo,,eth0,"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1"),
        ("NCCL_IB_HCA", "mlx5_0: 1"),  # atoi skips it
        ("NCCL_IB_HCA", ""),
        ("NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_1;mlx5_2"),
    ],
)
def test_lists_of_names_that_are_read_as_they_are_written(name: str, text: str) -> None:
    assert read(name, text) == (text, [])


@pytest.mark.parametrize(
    ("text", "codes", "part"),
    [
        ("10.0.0.1:29500", [], ""),
        ("[fe80::1%eth0]:29500", [], ""),
        ("a-host:1", [], ""),
        ("foo", ["value_misread"], "finds no port"),
        ("[fe80::1]", ["value_misread"], "finds no port"),
        ("fe80::1:29500", ["value_misread"], "finds no port"),  # without brackets the host is fe80
        ("10.0.0.1:70000", ["value_misread"], "takes 70000 for the port"),
        ("10.0.0.1:2950O", ["value_misread"], "takes 2950 for the port"),
        ("[fe80::1:29500", ["value_refused"], "refuses"),
        (":29500", ["value_refused"], "refuses"),
        (" 10.0.0.1:29500", ["value_refused"], "refuses"),
        ("x", ["value_refused"], "refuses"),
        ("", ["value_refused"], "refuses"),
    ],
)
def test_where_ranks_meet(text: str, codes: list[str], part: str) -> None:
    value, said = read("NCCL_COMM_ID", text)
    assert (value, said) == (text or "(refused)", codes)
    assert all(part in fault.message for fault in understand("NCCL_COMM_ID", text, NOW).faults)


@pytest.mark.parametrize(
    ("name", "text", "value", "codes"),
    [
        ("NCCL_PROXY_CPUSET", "0,4,8", "0,4,8", []),
        ("NCCL_PROXY_CPUSET", "8,4,4", "4,8", []),
        ("NCCL_PROXY_CPUSET", "0-7", "0", ["value_misread"]),  # src/include/cpuset.h:76: strtoull stops at the dash
        ("NCCL_PROXY_CPUSET", "zz", "0", ["value_misread"]),
        ("NCCL_PROXY_CPUSET", "010", "8", ["value_misread"]),
        ("NCCL_IB_ADDR_RANGE", "10.1.0.0/16", "10.1.0.0/16", []),
        ("NCCL_IB_ADDR_RANGE", "fd00::/64", "fd00::/64", []),
        ("NCCL_IB_ADDR_RANGE", "", "", []),
        ("NCCL_IB_ADDR_RANGE", "foo", "", ["value_ignored"]),
        ("NCCL_IB_ADDR_RANGE", "10.1.0.0", "", ["value_ignored"]),
        ("NCCL_IB_ADDR_RANGE", "10.1.0.0/33", "", ["value_ignored"]),
        ("NCCL_IB_ADDR_RANGE", "10.1/16", "", ["value_ignored"]),
        ("NCCL_IB_ADDR_RANGE", "10.1.0.0/x", "10.1.0.0/0", ["value_misread"]),
    ],
)
def test_cpus_and_addresses(name: str, text: str, value: str, codes: list[str]) -> None:
    assert read(name, text) == (value, codes)


@pytest.mark.parametrize(("name", "text"), [("NCCL_NET", ""), ("NCCL_P2P_LEVEL", "3000000000"), ("NCCL_COMM_ID", "")])
def test_a_text_with_which_nccl_does_not_start_is_not_as_if_unset(name: str, text: str) -> None:
    meant = understand(name, text, NOW)
    assert [fault.code for fault in meant.faults] == ["value_refused"] and meant.value != ""


def test_quotes_around_credentials_show_none() -> None:
    (fault,) = understand("NCCL_NET_PLUGIN", '"http://user:hunter2@h/x"', NOW).faults
    assert fault.code == "quoted" and "hunter2" not in fault.message


def test_what_was_automatic_once_is_no_fault_later() -> None:
    """Who moves from 2.27 to 2.28 with -1 in a profile gets the same: the later release passes over it."""
    assert read("NCCL_NCHANNELS_PER_NET_PEER", "-1", (2, 27, 7)) == ("-1", [])
    assert read("NCCL_NCHANNELS_PER_NET_PEER", "-1", (2, 28, 3))[1] == ["value_unclear"]
    assert read("NCCL_NCHANNELS_PER_NET_PEER", "-2", (2, 28, 3)) == ("", ["value_ignored"])


@pytest.mark.parametrize(
    ("text", "version", "codes"),
    [
        ("-1", (2, 26, 5), []),
        ("1048576", (2, 26, 5), []),
        ("1000", (2, 26, 5), ["value_misread"]),
        ("-4", (2, 26, 5), ["value_misread"]),
        ("-1", (2, 26, 2), ["value_ignored"]),
    ],
)
def test_a_fifo_of_the_two_releases_that_keep_it_in_64_bits(
    text: str, version: tuple[int, ...], codes: list[str]
) -> None:
    assert read("NCCL_WORK_FIFO_BYTES", text, version)[1] == codes


def test_an_address_range_without_a_slash_in_the_releases_that_go_on_with_it() -> None:
    """strstr(...) + 1 is never NULL: 2.22.3 src/transport/net_ib.cc:143."""
    assert read("NCCL_IB_ADDR_RANGE", "10.1.0.0", (2, 22, 3)) == ("10.1.0.0", ["value_refused"])
    assert read("NCCL_IB_ADDR_RANGE", "10.1.0.0", (2, 23, 4)) == ("", ["value_ignored"])


def test_a_port_whose_first_digit_is_passed_over() -> None:
    assert read("NCCL_COMM_ID", "[::1]:29500")[1] == []
    assert read("NCCL_COMM_ID", "[::1]29500")[1] == ["value_misread"]
    assert "takes 9500 for the port" in understand("NCCL_COMM_ID", "[::1]29500", NOW).faults[0].message
