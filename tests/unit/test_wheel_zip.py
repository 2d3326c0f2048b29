"""A zip file with some entries changed: the others keep their bytes, whatever its size; an odd or damaged one is refused."""

from __future__ import annotations

import io
import mmap
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from sglang_ext.patchset.baked import Renamer
from sglang_ext.patchset.wheel_zip import CENTRAL, END, END64, LOCAL, LOCATOR, Archive, ZipError
from tests.unit.cases import given_cases
from tests.unit.small_wheel import entry, pack, raw

ENTRIES = st.lists(
    st.tuples(
        st.text(st.sampled_from("ab/é+"), min_size=1, max_size=6),
        st.one_of(st.binary(max_size=60), st.just(b"text " * 400)),
        st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
        st.sampled_from([b"", b"UT\x05\x00\x03abcd", b"\x01\xca\x00\x00", b"ab\x02\x00xyzz\x00\x00"]),
    ),
    max_size=6,
    unique_by=lambda one: one[0],
)


@given_cases(300, ENTRIES, st.booleans(), st.booleans(), st.sampled_from([b"", b"PK", b"x" * 40]), st.data())
def test_an_archive_with_some_entries_changed(
    entries: list[tuple[str, bytes, int, bytes]], pipe: bool, zip64: bool, comment: bytes, data: st.DataObject
) -> None:
    parts = [(entry(name, method, extra), contents) for name, contents, method, extra in entries]
    old = pack(parts, pipe=pipe, zip64=zip64, comment=comment)
    archive = Archive(old)
    assert b"".join(archive.rebuilt({}, lambda name: name)) == old  # nothing to do: the same bytes
    names = [name for name, *_ in entries]
    changes = data.draw(st.dictionaries(st.sampled_from(names), st.binary(max_size=90))) if names else {}
    rename = Renamer("a", data.draw(st.sampled_from(["a", "longer/", ""])) + "b@")
    new = b"".join(archive.rebuilt(changes, rename))
    with zipfile.ZipFile(io.BytesIO(new)) as found, zipfile.ZipFile(io.BytesIO(old)) as before:
        assert found.testzip() is None and found.comment == comment
        assert found.namelist() == [rename(name) for name in before.namelist()]
        for name, contents, method, _ in entries:
            assert found.read(rename(name)) == changes.get(name, contents)
            assert found.getinfo(rename(name)).compress_type == method
            if name not in changes:
                assert raw(new)[rename(name)] == raw(old)[name]
    again = Archive(new)  # and it is one that we could bake
    assert all(again.read(rename(name)) == changes.get(name, contents) for name, contents, *_ in entries)


@given_cases(400, ENTRIES, st.booleans(), st.integers(0), st.integers(0, 255), st.booleans())
def test_a_damaged_archive_is_refused_or_read(
    entries: list[tuple[str, bytes, int, bytes]], zip64: bool, at: int, byte: int, cut: bool
) -> None:
    """Never another exception than ours, and never other contents than the checksum allows."""
    data = bytearray(pack([(entry(n, m, x), c) for n, c, m, x in entries], zip64=zip64))
    at %= len(data)
    if cut:
        del data[at : at + 1 + byte]
    else:
        data[at] ^= byte
    try:
        archive = Archive(bytes(data))
        for name in archive.by_name:
            archive.read(name)
        b"".join(archive.rebuilt(dict.fromkeys(archive.by_name, b"new"), lambda name: name))
    except ZipError:
        pass


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda data: b"#!/bin/sh\n" + data, "not where it should end"),
        (lambda data: data + b"\0", "no end record"),
        (lambda data: b"", "no end record"),
        (lambda data: data.replace(b"PK\3\4", b"PK\3\5", 1), "another local header"),
    ],
)
def test_an_odd_archive_is_refused(spoil: Callable[[bytes], bytes], part: str) -> None:
    with pytest.raises(ZipError, match=part):
        Archive(spoil(pack([(entry("a"), b"1"), (entry("b"), b"2")])))


def test_two_entries_of_one_name() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = pack([(entry("a"), b"1"), (entry("a"), b"2")])
    with pytest.raises(ZipError, match="two entries"):
        Archive(data)


@pytest.mark.e2e  # seconds: so many entries there must be
def test_more_entries_than_16_bits_count() -> None:
    heads, directory, at = [], [], 0  # zipfile would take 8 s over it
    for name in (f"{number:x}".encode() for number in range(66_000)):
        heads.append(LOCAL.pack(b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0) + name)
        directory.append(CENTRAL.pack(b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0, 0, 0, 0, 0, at) + name)
        at += len(heads[-1])
    size = sum(map(len, directory))
    large = END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, 66_000, 66_000, size, at) + LOCATOR.pack(b"PK\6\7", 0, at + size, 1)
    end = END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, size, at, 0)
    old = b"".join((*heads, *directory, large, end))
    archive = Archive(old)
    assert len(archive.entries) == 66_000
    assert b"".join(archive.rebuilt({}, lambda name: name)) == old
    new = b"".join(archive.rebuilt({"ff": b"new"}, lambda name: name + "!" if name == "0" else name))
    with zipfile.ZipFile(io.BytesIO(new)) as found:
        assert len(found.namelist()) == 66_000 and found.read("ff") == b"new" and found.read("0!") == b""


@pytest.mark.parametrize("before", [-1, 40])
def test_an_archive_past_4_gib(tmp_path: Path, before: int) -> None:
    """With the offset of the last entry just below 32 bits before and above after, and above it in both."""
    hole = 0xFFFFFFFF - 30 - 1 - 30 - 3 + before - 8
    path = tmp_path / "sparse.zip"
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(entry("txt", zipfile.ZIP_STORED), b"")
        info = entry("h", zipfile.ZIP_STORED)
        archive.writestr(info, b"")
        file.seek(hole, os.SEEK_CUR)  # zeros that take no room
        archive.start_dir = file.tell()
        info.compress_size = info.file_size = hole
        archive.writestr(entry("last"), b"the last one")
    # zipfile wrote the local header of `h` before it had a size.
    with path.open("r+b") as both:
        both.seek(30 + 3 + 18)
        both.write(min(hole, 0xFFFFFFFF).to_bytes(4, "little") * 2)
    with path.open("rb") as old:
        read = Archive(mmap.mmap(old.fileno(), 0, access=mmap.ACCESS_READ))
    last = read.by_name["last"].at
    assert (last > 0xFFFFFFFF) is (before > 0)
    out = tmp_path / "out.zip"
    with out.open("wb") as new:
        for piece in read.rebuilt({"txt": b"grown by these bytes"}, lambda name: name):
            edge = 1000 if len(piece) > 1 << 30 else len(piece)
            new.write(piece[:edge])
            new.seek(len(piece) - edge - edge, os.SEEK_CUR) if edge < len(piece) else None
            new.write(piece[-edge:] if edge < len(piece) else b"")
    with zipfile.ZipFile(out) as found:
        assert found.getinfo("last").header_offset == last + 20 > 0xFFFFFFF0
        assert found.read("last") == b"the last one" and found.read("txt") == b"grown by these bytes"
        assert found.getinfo("h").file_size == hole
