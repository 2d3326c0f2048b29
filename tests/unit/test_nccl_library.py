"""Which libnccl a process has mapped: made-up maps, made-up ELF files, real processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.nccl import library
from sglang_ext.nccl.banner import WINDOW, identify
from sglang_ext.nccl.library import Claim, installed, kind_of, mapped, of_file, of_process, sha256

ID = bytes(range(20))


def elf(banner: bytes, sections: bool = True, before: int = 4096, behind: int = 0) -> bytes:
    """An ELF64 file with a build id, and with ``banner`` in .rodata ``before`` bytes into the file."""
    note = struct.pack("<III4s", 4, len(ID), 3, b"GNU\0") + ID
    rodata = b"NCCL version mismatch %s\0" + banner + b"\0" + bytes(behind)
    names = b"\0.rodata\0.shstrtab\0"
    at = before
    table = at + len(rodata) + len(names)
    count, offset = (3, table) if sections else (0, 0)
    strings = 2 if sections else 0
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, offset, 0, 64, 56, 2, 64, count, strings)
    programs = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, table, table, 4096)
    programs += struct.pack("<IIQQQQQQ", 4, 4, 512, 512, 512, len(note), len(note), 4)
    data = (head + programs).ljust(512, b"\0") + note
    data = data.ljust(at, b"\0") + rodata + names
    if sections:
        data += bytes(64)
        data += struct.pack("<IIQQQQIIQQ", 1, 1, 2, at, at, len(rodata), 0, 0, 1, 0)
        data += struct.pack("<IIQQQQIIQQ", 9, 3, 0, 0, at + len(rodata), len(names), 0, 0, 1, 0)
    return data


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    library.clear_cache()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/a/nvidia/nccl/lib/libnccl.so.2", "library"),
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7", "library"),
        ("libnccl.so", "library"),
        ("/a/torch.libs/libnccl-1a2b3c4d.so.2", "library"),
        ("/a/libnccl.2.27.so", "library"),
        ("/a/libnccl-net.so", "net"),
        ("/a/libnccl-net-ofi.so.0", "net"),
        ("/a/libnccl-ofi-tuner.so", "tuner"),
        ("/a/libnccl-profiler.so", "profiler"),
        ("/a/libnccl-env.so", "env"),
        ("/a/libnccl-gin-x.so", "gin"),
        ("/a/libnccl_ep.so", None),
        ("/a/libnccl_device.bc", None),
        ("/a/libnccl-other.so", None),
        ("/a/libnccl", None),
        ("/a/librccl.so", None),
        ("/libnccl.so.2/libc.so.6", None),
    ],
)
def test_names(path: str, kind: str | None) -> None:
    assert kind_of(path) == kind


MAPS = b"""\
55d0-55d1 r--p 00000000 08:01 12 /usr/bin/python3.11
7f00-7f10 r--p 00000000 fd:02 345 /opt/venv/nvidia/nccl/lib/libnccl.so.2
7f10-7f20 r-xp 00010000 fd:02 345 /opt/venv/nvidia/nccl/lib/libnccl.so.2
7f20-7f30 rw-p 00000000 00:00 0
7f30-7f40 r--p 00000000 fd:02 346 /opt/libnccl.so.2 (deleted)
7f40-7f50 r-xp 00001000 fd:02 347 /opt/with blank/libnccl-net.so
7f50-7f60 r--p 00000000 fd:02 348 /opt/lib/my-nccl.so
7f60-7f70 r--p 00000000 fd:02 349 /opt/libnccl.so.2/libc.so.6
7f70-7f80 r--p 00000000 fd:02 350 /a\\012b/libnccl.so.2
torn line /libnccl.so.2
"""


def test_maps() -> None:
    dev = os.makedev(0xFD, 2)
    ours = [(m.path, m.device, m.inode, m.deleted, m.whole) for m in mapped(MAPS)]
    assert ours == [
        ("/opt/venv/nvidia/nccl/lib/libnccl.so.2", dev, 345, False, True),
        ("/opt/libnccl.so.2", dev, 346, True, True),
        ("/opt/with blank/libnccl-net.so", dev, 347, False, False),
        ("/a\nb/libnccl.so.2", dev, 350, False, True),
    ]
    also = mapped(MAPS.decode(), ("/opt/lib/my-nccl.so", ""))
    assert [m.inode for m in also] == [345, 346, 347, 348, 350]
    assert mapped("") == [] and mapped(b"no maps at all /libnccl.so") == []


@given(
    st.text() | st.binary().map(lambda b: b + b"/libnccl.so.2\n") | st.just(MAPS).map(lambda m: m.replace(b"0", b"z"))
)
def test_no_maps_make_it_raise(maps: str | bytes) -> None:
    mapped(maps, ("x",))


@pytest.mark.parametrize("sections", [True, False])
@pytest.mark.parametrize("before", [4096, WINDOW - 40, WINDOW - 30, WINDOW - 3, WINDOW, 3 * WINDOW + 17])
def test_the_version_is_found_wherever_the_banner_lies(tmp_path: Path, sections: bool, before: int) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(elf(b"NCCL version 2.27.7+cuda12.9", sections, before, 2 * WINDOW))
    found = of_file(str(file))
    assert (found.version, found.cuda, found.build_id, found.detail) == ((2, 27, 7), "12.9", ID.hex(), "")
    now = file.stat()
    assert (found.device, found.inode, found.size, found.mtime_ns) == (
        now.st_dev,
        now.st_ino,
        now.st_size,
        now.st_mtime_ns,
    )


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x7fELF", b"no ELF: NCCL version 2.27.7+cuda12.9", elf(b"NCCL version 2.27.7 compiled with CUDA 12.9"),
        elf(b"NCCL version x+cuda12.9"), elf(b"NCCL version 2.27.7+cudagraph"), b"\x7fELF" + b"\xff" * 200,
        elf(b"")[:300], b"\x7fELF\2\1" + struct.pack("<34xQ10xHHH", 1 << 63, 64, 9, 1),
    ],
)  # fmt: skip
def test_a_file_without_banner_is_unknown_not_wrong(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(data)
    found = of_file(str(file))
    assert found.version is None and found.detail == "the file has no version banner of NCCL"


@given(st.binary(max_size=600).map(lambda b: b"\x7fELF" + b))
def test_no_file_makes_it_raise(data: bytes) -> None:
    identify(lambda size, offset: data[offset : offset + size], len(data))


@given(st.integers(0, 560), st.binary(min_size=1, max_size=16))
def test_no_damage_makes_it_raise(at: int, damage: bytes) -> None:
    data = elf(b"NCCL version 2.27.7+cuda12.9")
    data = data[:at] + damage + data[at + len(damage) :]
    identify(lambda size, offset: data[offset : offset + size], len(data))


def test_a_large_file_is_not_held_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(elf(b"NCCL version 2.27.7+cuda12.9", sections=False, before=32 * 1024 * 1024))
    tracemalloc.start()
    try:
        assert of_file(str(file)).version == (2, 27, 7)
        assert tracemalloc.get_traced_memory()[1] < 4 * WINDOW
    finally:
        tracemalloc.stop()


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(elf(b"NCCL version 2.27.7+cuda12.9"))
    first = of_file(str(file))
    monkeypatch.setattr(library, "identify", lambda read, size: pytest.fail("read again"))
    assert of_file(str(file)) == first
    monkeypatch.undo()
    file.write_bytes(elf(b"NCCL version 2.28.9+cuda12.9", before=8192))  # another size: another file
    assert of_file(str(file)).version == (2, 28, 9)


CHILD = """
import mmap, os, sys
maps = [mmap.mmap(os.open(p, os.O_RDONLY), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) for p in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def mapping(*paths: Path) -> Iterator[int]:
    """A process that has these files mapped."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", CHILD, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            assert child.stdout.readline() == b"ready\n"
            yield child.pid
        finally:
            child.stdin.close()


def test_a_real_process(tmp_path: Path) -> None:
    file, net, other = tmp_path / "libnccl.so.2", tmp_path / "libnccl-net-x.so", tmp_path / "my.so"
    for path, version in ((file, b"2.27.7"), (net, b"9.9.9"), (other, b"2.18.3")):
        path.write_bytes(elf(b"NCCL version " + version + b"+cuda12.9"))
    with mapping(file, net, other) as pid:
        found = of_process(pid)
        assert found.state == "ok" and found.plugins == (("net", str(net)),)
        assert found.libraries == (of_file(str(file)),)
        assert sorted(f.version or () for f in of_process(pid, (str(other),)).libraries) == [(2, 18, 3), (2, 27, 7)]
        assert sha256(found.libraries[0], pid) == hashlib.sha256(file.read_bytes()).hexdigest()
        assert sha256(found.libraries[0]) == sha256(found.libraries[0], pid)
    assert of_process(pid).state == "gone"


def test_a_file_that_is_deleted_or_replaced_while_it_is_mapped(tmp_path: Path) -> None:
    file, gone = tmp_path / "a" / "libnccl.so.2", tmp_path / "b" / "libnccl.so.2"
    for path in (file, gone):
        path.parent.mkdir()
        path.write_bytes(elf(b"NCCL version 2.27.7+cuda12.9"))
    with mapping(file, gone) as pid:
        gone.unlink()
        new = tmp_path / "new"
        new.write_bytes(elf(b"NCCL version 2.30.7+cuda12.9"))
        os.replace(new, file)  # what pip install --upgrade does under a running server
        found = of_process(pid)
        assert [(f.version, f.build_id, f.deleted) for f in found.libraries] == [((2, 27, 7), ID.hex(), True)] * 2
        proc = os.open(f"/proc/{pid}", os.O_RDONLY)
        try:  # and where the kernel's links may not be followed
            with open(f"/proc/{pid}/maps", "rb") as stream:
                by_memory = [library._from_memory(proc, m) for m in mapped(stream.read())]
        finally:
            os.close(proc)
        assert [(f.version, f.cuda, f.build_id) for f in by_memory] == [((2, 27, 7), "12.9", ID.hex())] * 2
        assert all("deleted or replaced" in f.detail for f in by_memory)
        assert sha256(of_file(str(file)), pid) == hashlib.sha256(file.read_bytes()).hexdigest()
        assert sha256(found.libraries[0]._replace(deleted=False), pid) is None  # the path leads to another file now


def test_a_file_system_that_numbers_inodes_differently(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(elf(b"NCCL version 2.27.7+cuda12.9"))
    with mapping(file) as pid:
        proc = os.open(f"/proc/{pid}", os.O_RDONLY)
        try:
            with open(f"/proc/{pid}/maps", "rb") as stream:
                (real,) = mapped(stream.read())
            odd = real._replace(device=1, inode=1)
            assert library._identify(proc, odd) == of_file(str(file))  # the same first page
            shutil.copy(file, tmp_path / "other")
            os.truncate(tmp_path / "other", 8)
            with open(tmp_path / "other", "rb") as other:
                assert not library._same_page(proc, odd, other.fileno())
        finally:
            os.close(proc)


def test_a_process_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(proc: int, name: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(library, "_slurp", refuse)
    found = of_process(os.getpid())
    assert found.state == "denied" and found.libraries == () and "CAP_SYS_PTRACE" in found.detail


def distribution(site: Path, name: str, record: str) -> None:
    folder = site / f"{name}.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text(record)


def test_what_is_installed_and_who_claims_it(tmp_path: Path) -> None:
    one, two, empty = tmp_path / "one", tmp_path / "two", tmp_path / "empty"
    empty.mkdir()
    for site, version in ((one, b"2.28.9"), (two, b"2.30.7")):
        (site / "nvidia/nccl/lib").mkdir(parents=True)
        (site / "nvidia/nccl/lib/libnccl.so.2").write_bytes(elf(b"NCCL version " + version + b"+cuda12.9"))
    listed = "nvidia/nccl/lib/libnccl.so.2,sha256=x,1\n"
    distribution(one, "nvidia_nccl_cu12-2.28.9", listed)
    distribution(one, "nvidia_nccl_cu13-2.30.7", "nvidia/__init__.py,,0\n" + listed)
    distribution(one, "nccl4py-0.6.0", "nccl/nvidia/nccl/lib/libnccl.so.2,,\n")
    distribution(one, "mirror_of_it-1.0", listed)
    distribution(two, "nvidia_nccl_cu12-2.30.7", listed)
    first, second = installed([str(empty), str(one), str(one), str(two), str(tmp_path / "missing")])
    assert first.library.version == (2, 28, 9)
    assert not first.agreed  # marin-community/marin#7344: two distributions, one file
    assert first.claims == (Claim("nvidia-nccl-cu12", "2.28.9"), Claim("nvidia-nccl-cu13", "2.30.7"))
    assert second.claims == (Claim("nvidia-nccl-cu12", "2.30.7"),) and second.agreed
    (thorough,) = installed([str(one)], thorough=True)
    assert thorough.claims[0] == Claim("mirror-of-it", "1.0") and len(thorough.claims) == 3
    assert installed([str(empty)]) == ()
