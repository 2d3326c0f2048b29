"""The catalogue of NCCL's variables: the data is whole, names are told from slips of names, releases are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.nccl.catalogue import Variable, alive, distance, get, must_match, names, suggest, too_new
from sglang_ext.nccl.understand import RULES
from sglang_ext.nccl.version import (
    LAST,
    NEWEST_KNOWN,
    OLDEST_KNOWN,
    asked_for,
    from_code,
    parse_version,
    version_text,
)
from tests.unit.cases import given_cases


def variable(name: str) -> Variable:
    found = get(name)
    assert found is not None, name
    return found


def test_the_data_is_whole() -> None:
    assert len(names()) == len(set(names())) == 339
    for name in names():
        found = variable(name)
        assert found.name == name and name.startswith("NCCL_") and name.isascii()
        assert found.parser in RULES, name
        assert found.kind in {"bool", "int", "size", "enum", "list", "string", "path"}
        assert found.effect.endswith((".", ")")) and found.subsystem and found.reason
        assert found.evidence in {"code", "inferred"} and found.must_match in {True, False, None}
        for release in (found.introduced, found.removed):
            assert release is None or parse_version(release), name
        assert isinstance(found.values, tuple) and isinstance(found.defaults, tuple)


def test_what_one_line_says() -> None:
    proto = variable("NCCL_PROTO")
    assert (proto.introduced, proto.removed, proto.must_match, proto.evidence) == ("2.5.6", None, True, "code")
    assert proto.log_line == "NCCL_PROTO set by environment to %s"
    assert variable("NCCL_BUFFSIZE").log_line == "NCCL_BUFFSIZE set by environment to %lld."
    assert variable("NCCL_P2P_LEVEL").cached is False and variable("NCCL_BUFFSIZE").cached is True
    assert sum(variable(name).documented for name in names()) == 117
    assert variable("NCCL_TUNER_CONFIG_FILE").by_plugin and not proto.by_plugin
    assert get("NCCL_NO_SUCH") is None and get("PATH") is None and get("") is None


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("NCCL_PROTO", (2, 18, 3), True),
        ("NCCL_CTA_POLICY", (2, 26, 5), False),
        ("NCCL_CTA_POLICY", (2, 27, 3), True),
        ("NCCL_CREATE_THREAD_CONTEXT", (2, 30, 4), True),
        ("NCCL_CREATE_THREAD_CONTEXT", (2, 30, 7), False),
        ("NCCL_MNNVL", (2, 20, 5), True),
        ("NCCL_MNNVL", (2, 21, 5), False),
        ("NCCL_NET_GDR_MLOPART", (2, 31, 2), True),
        ("NCCL_NET_GDR_MLOPART", (2, 32, 3), False),
        ("NCCL_GROUP_CUDA_STREAM", (2, 30, 7), False),  # defined, and read nowhere
        ("NCCL_SYM_KERNEL_ID", (2, 32, 3), False),  # only ever named in an error text
        ("NCCL_DEBUG", (2, 18, 3), True),
    ],
)
def test_who_reads_it(name: str, version: tuple[int, ...], expected: bool) -> None:
    assert alive(variable(name), version) is expected


def test_what_ranks_must_agree_on() -> None:
    assert must_match("NCCL_PROTO", (2, 30, 7)) is True and must_match("NCCL_PROTO", None) is True
    assert must_match("NCCL_DEBUG", (2, 30, 7)) is False
    assert must_match("NCCL_NO_SUCH", (2, 30, 7)) is None
    assert must_match("NCCL_AGG_CHANNEL_SIZE", (2, 30, 7)) is False  # nobody reads it any more
    assert must_match("NCCL_AGG_CHANNEL_SIZE", (2, 19, 3)) is True
    assert sum(must_match(name, None) is None for name in names()) == 32


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_ALGOS", "NCCL_ALGO"),
        ("NCCL_PORTO", "NCCL_PROTO"),
        ("NCCL_P2P5ISABLE", "NCCL_P2P_DISABLE"),
        ("NCCL_IB-DISABLE", "NCCL_IB_DISABLE"),
        ("NCLL_PROTO", "NCCL_PROTO"),
        ("NCC_PROTO", "NCCL_PROTO"),
        ("NCCL-P2P-LEVEL", "NCCL_P2P_LEVEL"),
        ("NCCLPROTO", "NCCL_PROTO"),
        ("nccl_proto", "NCCL_PROTO"),
        ("Nccl_Buff_Size", "NCCL_BUFFSIZE"),
        ("NCCL_BUFF_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_PROTO ", "NCCL_PROTO"),
        ("export NCCL_PROTO", "NCCL_PROTO"),
        ("NCCL_P2P_LEVL", "NCCL_P2P_LEVEL"),
        ("NCCL_IB_ENABLE", "NCCL_IB_DISABLE"),  # its opposite is nearer to what is meant than NCCL_GIN_ENABLE
        # Far from all, another library's, or too short to know.
        ("NCCL_PROTO", None),
        ("NCCL_MY_OWN_KNOB", None),
        ("NCCL_XYZ", None),
        ("RCCL_PROTO", None),
        ("HCCL_BUFFSIZE", None),
        ("NVCC_DEBUG", None),
        ("NIC_NET", None),
        ("NAME", None),
        ("", None),
        ("N" * 10000, None),
    ],
)
def test_which_name_was_meant(name: str, meant: str | None) -> None:
    assert suggest(name) == meant


def test_of_two_names_as_near_the_one_that_is_read_is_meant() -> None:
    assert suggest("NCCL_NIN_ENABLE", (2, 30, 7)) == suggest("NCCL_NIN_ENABLE") == "NCCL_GIN_ENABLE"
    assert suggest("NCCL_NIN_ENABLE", (2, 27, 7)) == "NCCL_WIN_ENABLE"  # the other came with 2.28
    assert suggest("NCCL_GIN_ENABL", (2, 27, 7)) == "NCCL_GIN_ENABLE"  # nearer than the one that is read


@pytest.mark.parametrize(
    ("one", "other", "far"), [("abc", "abc", 0), ("abc", "acb", 1), ("abc", "ab", 1), ("abc", "xbcy", 2), ("", "ab", 2)]
)
def test_distances(one: str, other: str, far: int) -> None:
    assert distance(one, other, 3) == distance(other, one, 3) == far


@given(st.text(alphabet="abc", max_size=6), st.text(alphabet="abc", max_size=6), st.integers(0, 3))
def test_a_limit_only_cuts(one: str, other: str, limit: int) -> None:
    exact = distance(one, other, 99)
    assert distance(one, other, limit) == exact if exact <= limit else distance(one, other, limit) > limit


@given_cases(
    10_000,
    st.lists(
        st.text(max_size=40) | st.sampled_from(names()).flatmap(lambda n: st.text(max_size=3).map(lambda t: n + t)),
        min_size=20,
        max_size=20,
    ),
    asked="NCCL_FUZZ",
    at_once=20,
)
def test_no_name_makes_it_raise(some: list[str]) -> None:
    for name in some:
        meant = suggest(name)
        assert meant is None or (get(meant) is not None and meant != name)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.30.7", (2, 30, 7)),
        ("2.30.7+cuda12.9", (2, 30, 7)),
        ("v2.30.7-1", (2, 30, 7)),
        (" 2.30.7\n", (2, 30, 7)),
        ("2.29", (2, 29)),
        ("2.30.7.1", (2, 30, 7)),
        ("", None),
        ("2", None),
        ("two", None),
        ("2.x", None),
        ("2." + "9" * 5000, None),
    ],
)
def test_versions_from_text(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


def test_versions_from_the_library() -> None:
    assert from_code(23007) == (2, 30, 7) and from_code(22105) == (2, 21, 5) and from_code(2708) == (2, 7, 8)
    assert version_text((2, 30, 7)) == "2.30.7"


@given(st.text())
def test_no_version_makes_it_raise(text: str) -> None:
    parse_version(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.27", (2, 27, 7)),
        ("2.18", (2, 18, 6)),
        ("2.23", (2, 23, 4)),
        ("v2.32", (2, 32, 3)),
        ("2.27.3", (2, 27, 3)),
        ("2.30.7+cuda12.9", (2, 30, 7)),
    ],
)
def test_the_release_a_user_names(text: str, version: tuple[int, ...]) -> None:
    assert asked_for(text) == version


def test_half_a_version_reads_what_its_last_release_does() -> None:
    minors = [(2, minor) for minor in range(OLDEST_KNOWN[1], NEWEST_KNOWN[1] + 1)]
    assert list(LAST) == minors
    firsts = {name: found.introduced for name in names() if (found := get(name)) and found.introduced}
    counted = 0
    for name, introduced in firsts.items():
        version = parse_version(introduced)
        if version is not None and version[:2] in LAST:
            counted += 1
            assert not too_new(variable(name), asked_for(version_text(version[:2]))), name
    assert counted > 150


@pytest.mark.parametrize("text", ["2.17", "2.33", "2", "3.1", "new"])
def test_a_release_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"from 2\.18 to 2\.32"):
        asked_for(text)
