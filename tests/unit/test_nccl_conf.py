"""NCCL's configuration files: which count, what a line defines, who wins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from sglang_ext.nccl.conf import (
    BUFFER,
    LARGEST_FILE,
    ConfFile,
    ConfFiles,
    Entry,
    Seen,
    effective,
    load,
    merged,
    parse,
    paths,
)
from tests.unit.cases import given_cases

NOW, OLD = (2, 30, 7), (2, 21, 5)


def pairs(data: bytes, version: tuple[int, ...] | None = NOW) -> list[tuple[str, str]]:
    return [(entry.name, entry.value) for entry in parse(data, version)]


def reader(files: dict[str, bytes]) -> Callable[[str], bytes]:
    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    return read


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"NCCL_X=1", [("NCCL_X", "1")]),
        (b"NCCL_X=1\n", [("NCCL_X", "1")]),
        (b"NCCL_X==ens1f0", [("NCCL_X", "=ens1f0")]),
        (b"NCCL_X=", [("NCCL_X", "")]),
        (b"NCCL_X = 5", [("NCCL_X ", " 5")]),
        (b" NCCL_X=1 ", [(" NCCL_X", "1 ")]),
        (b'NCCL_X="1"', [("NCCL_X", '"1"')]),
        (b"export NCCL_X=1", [("export NCCL_X", "1")]),
        (b"NCCL_X=1 # why", [("NCCL_X", "1 # why")]),
        (b" # NCCL_X=1", [(" # NCCL_X", "1")]),
        (b"NCCL_X", []),
        (b"=1", []),
        (b"", []),
        (b"\n\n\n", []),
        (b"NCCL_X=a\0b\nNCCL_Y=1", [("NCCL_X", "a"), ("NCCL_Y", "1")]),
        (b"NCCL_X=\xff", [("NCCL_X", "\udcff")]),
        (b"NCCL_X=1\nNCCL_X=2", [("NCCL_X", "1"), ("NCCL_X", "2")]),
        (b"CUDA_X=1", [("CUDA_X", "1")]),
        (b"N" * 2000 + b"=1", [("N" * 1023, "1")]),
        (b"NCCL_X=" + b"1" * 2000, [("NCCL_X", "1" * 1023)]),
    ],
)
def test_one_line(line: bytes, expected: list[tuple[str, str]]) -> None:
    for version in (NOW, (2, 27, 7), OLD):
        assert pairs(line, version) == expected


def test_comments_came_with_2_26_2() -> None:
    assert pairs(b"#NCCL_X=1", (2, 25, 1)) == [("#NCCL_X", "1")]
    assert pairs(b"#NCCL_X=1", (2, 26, 2)) == pairs(b"#NCCL_X=1", None) == []


def test_a_carriage_return_stays_up_to_2_29() -> None:
    assert pairs(b"NCCL_X=1\r\n", (2, 29, 7)) == [("NCCL_X", "1\r")]
    assert pairs(b"NCCL_X=1\r\n", (2, 30, 3)) == [("NCCL_X", "1")]
    assert pairs(b"NCCL_X=1\r\r\n", (2, 30, 3)) == [("NCCL_X", "1\r")]


def test_a_very_long_line_is_two_lines_since_2_30() -> None:
    line = b"NCCL_X=" + b"1" * (BUFFER - 7) + b"NCCL_Y=2"
    assert [name for name, _ in pairs(line, (2, 30, 3))] == ["NCCL_X", "NCCL_Y"]
    assert [name for name, _ in pairs(line, (2, 29, 7))] == ["NCCL_X"]


def test_lines_are_numbered() -> None:
    assert parse(b"#\n\nNCCL_X=1\n", NOW) == (Entry("NCCL_X", "1", 3),)


@pytest.mark.parametrize(
    ("env", "version", "home", "expected"),
    [
        ({}, (2, 29, 7), "/home/a", ("/home/a/.nccl.conf", "/etc/nccl.conf")),
        ({"HOME": "/home/b"}, (2, 29, 7), "/home/a", ("/home/a/.nccl.conf", "/etc/nccl.conf")),
        ({"HOME": "/home/b"}, (2, 30, 3), "/home/a", ("/home/b/.nccl.conf", "/etc/nccl.conf")),
        ({"HOME": "/home/b"}, None, None, ("/home/b/.nccl.conf", "/etc/nccl.conf")),
        ({}, (2, 30, 3), "/home/a", ("/etc/nccl.conf",)),
        ({}, (2, 29, 7), None, ("/etc/nccl.conf",)),
        ({"NCCL_CONF_FILE": "/c"}, (2, 29, 7), "/home/a", ("/c", "/etc/nccl.conf")),
        ({"NCCL_CONF_FILE": ""}, (2, 29, 7), "/home/a", ("/home/a/.nccl.conf", "/etc/nccl.conf")),
        ({"NCCL_CONF_FILE": "/c"}, (2, 22, 3), "/home/a", ("/home/a/.nccl.conf", "/etc/nccl.conf")),
        ({"NCCL_CONF_FILE": "/" + "c" * 2000}, NOW, None, ("/" + "c" * 1022, "/etc/nccl.conf")),
    ],
)
def test_which_files_count(
    env: dict[str, str], version: tuple[int, ...] | None, home: str | None, expected: tuple[str, ...]
) -> None:
    assert paths(env, version, home) == expected


def test_who_wins() -> None:
    files = {
        "/home/a/.nccl.conf": b"NCCL_A=user\nNCCL_B=user\nNCCL_B=again\n",
        "/etc/nccl.conf": b"NCCL_A=system\nNCCL_B=system\nNCCL_C=system\nNCCL_D=system",
        "/c": b"NCCL_B=named\n",
    }
    env = {"NCCL_A": "mine", "NCCL_D": ""}  # an empty value is a value: no file fills it
    assert effective(env, OLD, "/home/a", reader(files)) == {
        "NCCL_A": Seen("mine", "environment"),
        "NCCL_B": Seen("user", "/home/a/.nccl.conf"),
        "NCCL_C": Seen("system", "/etc/nccl.conf"),
        "NCCL_D": Seen("", "environment"),
    }
    named = effective({"NCCL_CONF_FILE": "/c"}, (2, 29, 7), "/home/a", reader(files))
    assert named["NCCL_B"] == Seen("named", "/c") and named["NCCL_A"] == Seen("system", "/etc/nccl.conf")


def test_files_that_cannot_be_read() -> None:
    def read(path: str) -> bytes:
        raise PermissionError(path) if path == "/etc/nccl.conf" else IsADirectoryError(path)

    assert load({"NCCL_CONF_FILE": "/c"}, NOW, None, read) == ConfFiles((), ("/etc/nccl.conf",), True)
    assert load({"NCCL_CONF_FILE": "/c\0"}, NOW, None, reader({})) == ConfFiles(looked=True)
    large = load({}, NOW, None, reader({"/etc/nccl.conf": b"A=1\n" + b"#" * LARGEST_FILE}))
    assert large.unreadable == ("/etc/nccl.conf",) and large.files[0].entries[0] == Entry("A", "1", 1)


def test_a_real_file(tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.write_bytes(b"NCCL_PROTO=LL\n")
    found = load({"NCCL_CONF_FILE": str(file)}, NOW, None)
    assert found.files[0] == ConfFile(str(file), (Entry("NCCL_PROTO", "LL", 1),))
    assert merged({}, found)["NCCL_PROTO"] == Seen("LL", str(file))
    assert load({"NCCL_CONF_FILE": str(tmp_path)}, NOW, None).unreadable == ()


_lines = st.binary(max_size=40) | st.sampled_from(
    [b"NCCL_X=1", b"NCCL_X = 1", b"#", b"\r", b"\n", b"=", b"\0", b"export NCCL_X='a'", b"a" * 5000]
)


@given_cases(
    10_000,
    st.lists(_lines, max_size=8).map(b"\n".join),
    st.none() | st.tuples(st.just(2), st.integers(18, 33), st.integers(0, 9)),
    asked="NCCL_FUZZ",
    at_once=10,
)
def test_no_file_makes_it_raise(data: bytes, version: tuple[int, ...] | None) -> None:
    for name, value, line in parse(data, version):
        assert 0 < len(name) <= 1023 and len(value) <= 1023 and 0 < line <= data.count(b"\n") + 1
        assert "=" not in name and "\n" not in name + value and "\0" not in name + value
