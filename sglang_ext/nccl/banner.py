"""The version and the build id of a libnccl, from its bytes: nothing is executed, mapped or held.

The version is the banner ``NCCL version 2.27.7+cuda12.9``, a constant that NCCL's src/init.cc (`VERSION_STRING`) makes so that it
can be found in the file. It lies in .rodata, some 500 KB, in every wheel from 2.18.3 to 2.32.3; a file without section headers
is searched from its start. Either way through a window of 256 KiB: the files have 240 to 480 MB, and none is mapped or cached.

The functions take a ``read(size, offset)``: the same code reads a file and an image in another process's memory.
"""

from __future__ import annotations

from sglang_ext.nccl.version import parse_version

TYPE_CHECKING = False  # mypy treats this name as true
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ReadAt = Callable[[int, int], bytes]  # (size, offset) -> at most that many bytes

WINDOW = 256 * 1024
SEARCHED = 64 * 1024 * 1024  # of a file without section headers
_BANNER = b"NCCL version "
_LONGEST_BANNER = 96
_PAGE = 4096
_MAX_SECTIONS = 4096
_MAX_NOTES = 64 * 1024
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3


def identify(read: ReadAt, size: int) -> tuple[str, tuple[int, ...] | None, str]:
    if read(4, 0) != b"\x7fELF":
        return "", None, ""
    build_id = build_id_of(read)
    for begin, length in _rodata(read):
        version, cuda = search(read, begin, min(length, SEARCHED))
        if version is not None:
            return build_id, version, cuda
    version, cuda = search(read, 0, min(size, SEARCHED))
    return build_id, version, cuda


def _rodata(read: ReadAt) -> Iterator[tuple[int, int]]:
    """(offset, size) of the section of that name, where the file has section headers (ELF64, gABI chapter 4)."""
    import struct

    head = read(64, 0)
    if len(head) < 64 or head[4] != 2 or head[5] != 1:
        return
    (shoff,) = struct.unpack_from("<Q", head, 40)
    entsize, count, strings = struct.unpack_from("<HHH", head, 58)
    if entsize != 64 or not 0 < count <= _MAX_SECTIONS or strings >= count or shoff >= 1 << 62:
        return
    table = read(64 * count, shoff)
    sections = [struct.unpack_from("<IIQQQQ", table, 64 * i) for i in range(len(table) // 64)]
    if strings >= len(sections):
        return
    names = read(min(sections[strings][5], _MAX_NOTES), min(sections[strings][4], 1 << 62))
    for section in sections:
        if names[section[0] : section[0] + 8] == b".rodata\0":
            yield min(section[4], 1 << 62), section[5]


def build_id_of(read: ReadAt) -> str:
    """The note that the linker wrote, as hex; "" where there is none."""
    import struct

    head = read(_PAGE, 0)
    if len(head) < 64:
        return ""
    (phoff,) = struct.unpack_from("<Q", head, 32)
    entsize, count = struct.unpack_from("<HH", head, 54)
    for i in range(min(count, 64)):
        entry = head[phoff + i * entsize : phoff + i * entsize + 56]
        if len(entry) < 56:
            break
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", entry)
        # The first segment starts at file offset 0, so that offset and address are the same in memory and on disk.
        if kind == _PT_NOTE and offset == address:
            found = _note(read(min(length, _MAX_NOTES), offset))
            if found:
                return found
    return ""


def _note(data: bytes) -> str:
    import struct

    at = 0
    while at + 12 <= len(data):
        namesz, descsz, kind = struct.unpack_from("<III", data, at)
        begin = at + 12 + (namesz + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and data[at + 12 : at + 16] == b"GNU\0" and descsz <= 64:
            return data[begin : begin + descsz].hex()
        at = begin + (descsz + 3) // 4 * 4
    return ""


def search(read: ReadAt, begin: int, length: int) -> tuple[tuple[int, ...] | None, str]:
    """The banner in a range: ``NCCL version NUMBERS+cudaNUMBERS``. Other texts that begin alike have no "+cuda"."""
    at, end = begin, begin + length
    while at < end:
        data = read(min(WINDOW, end - at), at)
        if not data:
            break
        found = data.find(_BANNER)
        while found >= 0:
            text = data[found : found + _LONGEST_BANNER]
            if len(text) < _LONGEST_BANNER:
                text = read(_LONGEST_BANNER, at + found)
            banner = _banner(text)
            if banner is not None:
                return banner
            found = data.find(_BANNER, found + 1)
        # The next window starts a little before this one's end: a banner may lie across it.
        at += max(len(data) - len(_BANNER), 1) if at + len(data) < end else len(data)
    return None, ""


def _banner(text: bytes) -> tuple[tuple[int, ...], str] | None:
    said = text[len(_BANNER) :].partition(b"\0")[0].decode("ascii", "replace")
    number, plus, cuda = said.partition("+cuda")
    version = parse_version(number) if plus and cuda.replace(".", "").isdigit() else None
    return (version, cuda) if version is not None else None
