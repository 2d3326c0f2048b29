"""ELF files and memory maps as data: a symbol is found by every table that has it, and a damaged file ends in ElfError.

What needs a program to look at exists only where gcc does.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import pytest

from sglang_ext.verify import elf
from tests.unit.live_children import GCC, NAMES, compiled


def test_hashes() -> None:
    """Known values: the GNU hash of printf in Oracle's and binutils' documents, DT_HASH by the gABI."""
    assert (elf.gnu_hash(b""), elf.gnu_hash(b"printf")) == (5381, 0x156B2BB8)
    assert (elf.sysv_hash(b""), elf.sysv_hash(b"printf")) == (0, 0x077905A6)


MAPS = b"""\
00400000-0041f000 r--p 00000000 fe:01 11                                 /usr/bin/python3.11
0041f000-006c1000 r-xp 0001f000 fe:01 11                                 /usr/bin/python3.11
00a84000-00c00000 rw-p 005a4000 fe:01 11                                 /usr/bin/python3.11
00c00000-00d00000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000200000 r--s 00000000 fe:01 22                         /usr/lib/libc.so.6
7f0000200000-7f0000226000 r--p 00000000 fe:01 22                         /usr/lib/libc.so.6
7f0000226000-7f000037b000 r-xp 00026000 fe:01 22                         /usr/lib/libc.so.6
7f00003d2000-7f00003d4000 rw-p 001d2000 fe:01 22                         /usr/lib/libc.so.6
7f00003d4000-7f00003e1000 rw-p 00000000 00:00 0
7f0000400000-7f0000401000 r--p 00000000 fe:01 33                         /usr/lib/libcrypto.so.3
7f0000500000-7f0000501000 r--p 00000000 fe:01 44                         /old/libc-2.31.so (deleted)
7f0000600000-7f0000601000 rw-p 00000000 00:05 55                         /memfd:x (deleted)
"""


def test_memory_map() -> None:
    assert elf.libc_paths(MAPS) == [b"/usr/lib/libc.so.6", b"/old/libc-2.31.so (deleted)"]
    assert elf.libc_paths(b"7f00-7f01 r-xp 00000000 fe:01 2 /lib/ld-musl-x86_64.so.1\n") == [
        b"/lib/ld-musl-x86_64.so.1"
    ]
    assert elf.file_paths(MAPS)[0] == b"/usr/bin/python3.11"
    assert len(elf.file_paths(MAPS)) == 5
    (program,) = elf.mapped_images(MAPS, b"/usr/bin/python3.11")
    assert (program.first.start, program.first.inode, program.executable) == (0x400000, 11, True)
    assert program.first.device == os.makedev(0xFE, 1)
    assert program.holds(0xA84280)
    assert program.holds(0xC00008)
    assert not program.holds(0x41F000)
    assert not program.holds(0xBFFFFC)
    data, libc = elf.mapped_images(MAPS, b"/usr/lib/libc.so.6")
    assert libc.holds(0x7F0000200000 + 0x1DB320)
    assert not data.holds(0x7F0000000000 + 0x1DB320)
    assert elf.mapped_images(MAPS, b"/lib/libc.so.6") == []
    assert not elf.mapped_images(b"", b"/x")
    assert not elf.libc_paths(b"")
    assert not elf.file_paths(b"")


if GCC:

    @pytest.mark.parametrize("style", ["sysv", "gnu"])
    def test_elf_files_other_than_this_machines(style: str, tmp_path: Path) -> None:
        """Machine, class and byte order are header fields: another value must be accepted, or named."""
        data = bytearray(Path(compiled(tmp_path, "-pie", "-fPIE", NAMES, f"-Wl,--hash-style={style}")).read_bytes())

        def inspect() -> elf.Image:
            return elf.inspect_file(lambda size, at: bytes(data[at : at + size]), (b"environ",))

        native = inspect()
        assert native.symbol is not None
        assert native.symbol.vaddr
        assert native.interpreted
        for machine in (elf.EM_X86_64, elf.EM_AARCH64):
            struct.pack_into("<H", data, 18, machine)
            other = inspect()
            assert other.symbol is not None
            assert other.symbol.vaddr == native.symbol.vaddr
            assert other.machine == machine
        struct.pack_into("<H", data, 18, 243)  # EM_RISCV
        with pytest.raises(elf.ElfError, match="neither x86_64 nor aarch64"):
            inspect()
        data[4] = 1  # ELFCLASS32
        with pytest.raises(elf.ElfError, match="not 64-bit little-endian"):
            inspect()
        # Scanning the section headers finds what the hash table finds.
        data[4] = 2
        struct.pack_into("<H", data, 18, native.machine)
        scanned = elf.find_section_symbol(
            lambda size, at: bytes(data[at : at + size]), elf.SHT_DYNSYM, (b"nothing", b"environ")
        )
        assert scanned is not None
        assert scanned.vaddr == native.symbol.vaddr

    def test_truncated_and_corrupt_elf_files_end_in_elf_error(tmp_path: Path) -> None:
        whole = Path(compiled(tmp_path, "-pie", "-fPIE", NAMES)).read_bytes()
        names = (b"environ", b"__environ")
        for length in [*range(0, 1024, 7), *range(1024, len(whole), 257)]:
            with contextlib.suppress(elf.ElfError):
                elf.inspect_file(lambda size, at: whole[:length][at : at + size], names)  # noqa: B023
        for at in range(4096):
            for value in (0x00, 0xFF):
                broken = bytearray(whole)
                broken[at] = value
                with contextlib.suppress(elf.ElfError):
                    elf.inspect_file(lambda size, at: bytes(broken[at : at + size]), names)  # noqa: B023
