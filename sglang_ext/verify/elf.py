"""Just enough ELF to find one data symbol, reading a few hundred bytes instead of a whole library.

The parsers take bytes, and the look-ups take a ``read(size, offset)`` callable: nothing here opens a file,
so the same code reads an ELF file (`inspect_file`) and an ELF image mapped in another process's memory
(`inspect_memory`). Where the images of a process lie is parsed from the text of /proc/PID/maps. Only ELF64
little-endian for x86_64 and aarch64 is accepted.

Sources of the rules: the System V gABI chapters 4 and 5 (headers, symbol table, DT_HASH); for DT_GNU_HASH,
which no standard describes, binutils' ``bfd/elflink.c`` and glibc's ``elf/dl-lookup.c`` (``do_lookup_x``);
proc_pid_maps(5).

Imports are kept to what every Python start loads anyway: `dataclasses` alone takes longer to import than ten
processes take to read.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False  # mypy treats this name as true; importing `typing` for it would cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Final

    ReadAt = Callable[[int, int], bytes]  # (size in bytes, offset or address) -> at most that many bytes

EM_X86_64: Final = 62
EM_AARCH64: Final = 183
ET_EXEC: Final = 2
ET_DYN: Final = 3
PT_LOAD: Final = 1
PT_DYNAMIC: Final = 2
PT_INTERP: Final = 3
SHT_SYMTAB: Final = 2
SHT_DYNSYM: Final = 11

_DT_HASH: Final = 4
_DT_STRTAB: Final = 5
_DT_SYMTAB: Final = 6
_DT_GNU_HASH: Final = 0x6FFFFEF5

_EHDR: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR: Final = struct.Struct("<IIQQQQQQ")
_SHDR: Final = struct.Struct("<IIQQQQIIQQ")
_SYM: Final = struct.Struct("<IBBHQQ")
_HEAD_BYTES: Final = 1024  # one read that nearly always holds the ELF header and the program headers (13 x 56)

# What a corrupt or hostile file may make us read; real values are far below.
_MAX_PHNUM: Final = 512
_MAX_SHNUM: Final = 4096
_MAX_DYNAMIC_BYTES: Final = 64 * 1024
_MAX_CHAIN: Final = 4096
_MAX_TABLE_BYTES: Final = 64 * 1024 * 1024  # .symtab or .strtab of a big static program
_IMAGE_LINES: Final = 24  # lines of maps searched for one image's writable part; real images have 4 to 8


class ElfError(Exception):
    """The bytes are no ELF image this module reads; the text is half a sentence that says why."""


class Symbol:
    """A defined data symbol: its name, its link-time address (bytes), and the table that named it."""

    __slots__ = ("name", "table", "vaddr")

    def __init__(self, name: str, vaddr: int, table: str) -> None:
        self.name = name
        self.vaddr = vaddr
        self.table = table


class Image:
    """What a look-up in one ELF image found.

    `base` is the link-time address of file offset 0, so that the load bias of a mapping of offset 0 at
    `start` is ``start - base``. `interpreted` is whether a dynamic linker starts this program (PT_INTERP).
    """

    __slots__ = ("base", "fixed", "interpreted", "machine", "symbol")

    def __init__(self, machine: int, base: int, fixed: bool, interpreted: bool, symbol: Symbol | None) -> None:
        self.machine = machine
        self.base = base
        self.fixed = fixed  # ET_EXEC: the bias can only be zero
        self.interpreted = interpreted
        self.symbol = symbol


class Header:
    """The fields of the ELF header that matter here; offsets and sizes in bytes."""

    __slots__ = ("machine", "phentsize", "phnum", "phoff", "shentsize", "shnum", "shoff", "type")

    def __init__(self, data: bytes) -> None:
        """Parse the first 64 bytes of an image.

        Raises:
            ElfError: it is not ELF, or not 64-bit little-endian, or of another machine.
        """
        if len(data) < _EHDR.size or data[:4] != b"\x7fELF":
            raise ElfError("it is not an ELF file")
        if data[4] != 2 or data[5] != 1:
            raise ElfError("it is not 64-bit little-endian ELF, which alone is supported")
        fields = _EHDR.unpack_from(data)
        self.type, self.machine, self.phoff, self.shoff = fields[1], fields[2], fields[5], fields[6]
        self.phentsize, self.phnum, self.shentsize, self.shnum = fields[9:13]
        if self.machine not in (EM_X86_64, EM_AARCH64):
            raise ElfError(f"its machine type {self.machine} is neither x86_64 nor aarch64")
        if self.type not in (ET_EXEC, ET_DYN):
            raise ElfError(f"its ELF type {self.type} is neither an executable nor a shared object")
        if self.phentsize != _PHDR.size or not 0 < self.phnum <= _MAX_PHNUM:
            raise ElfError("its program header table is malformed")


def parse_program_headers(data: bytes) -> list[tuple[int, int, int, int]]:
    """(type, file offset, link-time address, bytes in the file) of each program header in `data`."""
    whole = len(data) - len(data) % _PHDR.size
    return [(f[0], f[2], f[3], f[5]) for f in _PHDR.iter_unpack(data[:whole])]


def parse_dynamic(data: bytes) -> dict[int, int]:
    """The dynamic section's tags up to DT_NULL; of a tag that occurs twice, the last."""
    tags: dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", data[: len(data) - len(data) % 16]):
        if tag == 0:
            break
        tags[tag] = value
    return tags


def gnu_hash(name: bytes) -> int:
    """Bernstein's hash (h * 33 + c, from 5381, 32 bits), the one DT_GNU_HASH uses."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def sysv_hash(name: bytes) -> int:
    """The gABI's hash function for DT_HASH."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def _exact(read: ReadAt, size: int, offset: int) -> bytes:
    data = read(size, offset)
    if len(data) != size:
        raise ElfError("it is truncated")
    return data


def _words(read: ReadAt, count: int, offset: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}I", _exact(read, 4 * count, offset))


def _is_data_definition(info: int, shndx: int) -> bool:
    """NOTYPE or OBJECT, and defined in a section (not SHN_UNDEF, nor a reserved index such as SHN_ABS)."""
    return info & 15 <= 1 and 0 < shndx < 0xFF00


def _entry(read: ReadAt, tags: dict[int, int], index: int, name: bytes) -> Symbol | None:
    """Dynamic symbol number `index`, if it defines exactly `name`."""
    st_name, info, _, shndx, value, _ = _SYM.unpack(_exact(read, _SYM.size, tags[_DT_SYMTAB] + _SYM.size * index))
    if not _is_data_definition(info, shndx):
        return None
    if read(len(name) + 1, tags[_DT_STRTAB] + st_name) != name + b"\0":
        return None
    return Symbol(name.decode("ascii"), value, ".dynsym")


def _find_gnu(read: ReadAt, tags: dict[int, int], names: Sequence[bytes]) -> Symbol | None:
    table = tags[_DT_GNU_HASH]
    buckets, first, bloom_words, shift = _words(read, 4, table)
    if not buckets or not bloom_words:
        return None  # an empty table: nothing is exported
    for name in names:
        wanted = gnu_hash(name)
        at = table + 16 + 8 * ((wanted // 64) % bloom_words)
        bloom = int.from_bytes(_exact(read, 8, at), "little")
        if not (bloom >> (wanted % 64)) & (bloom >> ((wanted >> shift) % 64)) & 1:
            continue  # the filter has no false negatives
        (index,) = _words(read, 1, table + 16 + 8 * bloom_words + 4 * (wanted % buckets))
        if index < first:
            continue  # an empty bucket
        chains = table + 16 + 8 * bloom_words + 4 * buckets
        for step in range(index, index + _MAX_CHAIN):
            (value,) = _words(read, 1, chains + 4 * (step - first))
            if value | 1 == wanted | 1:
                found = _entry(read, tags, step, name)
                if found is not None:
                    return found
            if value & 1:
                break  # the lowest bit ends a chain
    return None


def _find_sysv(read: ReadAt, tags: dict[int, int], names: Sequence[bytes]) -> Symbol | None:
    table = tags[_DT_HASH]
    buckets, chains = _words(read, 2, table)
    for name in names if buckets else ():
        (index,) = _words(read, 1, table + 8 + 4 * (sysv_hash(name) % buckets))
        for _ in range(_MAX_CHAIN):
            if not 0 < index < chains:
                break  # STN_UNDEF ends a chain
            found = _entry(read, tags, index, name)
            if found is not None:
                return found
            (index,) = _words(read, 1, table + 8 + 4 * (buckets + index))
    return None


def find_dynamic_symbol(read: ReadAt, tags: dict[int, int], names: Sequence[bytes]) -> Symbol | None:
    """The first of `names` that the image exports, through DT_GNU_HASH or else DT_HASH.

    `read` takes link-time addresses, and `tags` hold such addresses.

    Raises:
        ElfError: a table lies outside the image.
    """
    if _DT_SYMTAB not in tags or _DT_STRTAB not in tags:
        return None
    if _DT_GNU_HASH in tags:
        return _find_gnu(read, tags, names)
    if _DT_HASH in tags:
        return _find_sysv(read, tags, names)
    return None


def find_section_symbol(read: ReadAt, kind: int, names: Sequence[bytes]) -> Symbol | None:
    """The first of `names` in the file's SHT_SYMTAB or SHT_DYNSYM section (`kind`), by a linear scan.

    Names are tried in order; of one name, a global or weak symbol goes before a local one (link-time
    optimisation makes globals local). `read` takes file offsets. None where the file has no such section
    (stripped), or where several local symbols of the name leave it open which one is meant.

    Raises:
        ElfError: the file is malformed or truncated, or the table is larger than 64 MiB.
    """
    header = Header(read(_EHDR.size, 0))
    if not header.shoff or header.shentsize != _SHDR.size or not 0 < header.shnum <= _MAX_SHNUM:
        return None
    sections = list(_SHDR.iter_unpack(_exact(read, _SHDR.size * header.shnum, header.shoff)))
    for section in sections:
        if section[1] != kind or section[6] >= len(sections):
            continue
        strings, offset, size = sections[section[6]], section[4], section[5]
        if max(size, strings[5]) > _MAX_TABLE_BYTES:
            raise ElfError("its symbol table is larger than 64 MiB")
        text = _exact(read, strings[5], strings[4])
        table = _exact(read, size - size % _SYM.size, offset)
        offsets = {name: _occurrences(text, name + b"\0") for name in names}
        every = set().union(*offsets.values())
        if not every:
            return None
        hits = [entry for entry in _SYM.iter_unpack(table) if entry[0] in every]
        label = ".dynsym" if kind == SHT_DYNSYM else ".symtab"
        for name in names:
            defined = [e for e in hits if e[0] in offsets[name] and _is_data_definition(e[1], e[3])]
            visible = {e[4] for e in defined if e[1] >> 4 != 0} or {e[4] for e in defined}
            if len(visible) == 1:
                return Symbol(name.decode("ascii"), visible.pop(), label)
        return None
    return None


def _occurrences(text: bytes, needle: bytes) -> set[int]:
    """Every offset of `needle`: linkers let one name be the tail of another, so tails count as well."""
    found: set[int] = set()
    at = text.find(needle)
    while at >= 0:
        found.add(at)
        at = text.find(needle, at + 1)
    return found


def _describe(read: ReadAt, start: int) -> tuple[Header, list[tuple[int, int, int, int]], Image]:
    """Header, program headers, and symbol-less `Image` of the image whose first byte is at `start`."""
    head = read(_HEAD_BYTES, start)
    header = Header(head)
    size = header.phnum * header.phentsize
    table = head[header.phoff : header.phoff + size]
    if len(table) != size:
        table = _exact(read, size, start + header.phoff)
    programs = parse_program_headers(table)
    loads = [(offset, vaddr) for kind, offset, vaddr, _ in programs if kind == PT_LOAD]
    if not loads:
        raise ElfError("it has no PT_LOAD segment")
    offset, vaddr = min(loads)
    interpreted = any(p[0] == PT_INTERP for p in programs)
    image = Image(header.machine, vaddr - offset, header.type == ET_EXEC, interpreted, None)
    return header, programs, image


def inspect_file(read: ReadAt, names: Sequence[bytes]) -> Image:
    """Look `names` up in the dynamic symbols of the ELF file behind `read` (which takes file offsets).

    Where the file has neither hash table, its .dynsym section is scanned.

    Raises:
        ElfError: the file is not supported, malformed or truncated.
        OSError: from `read`.
    """
    _, programs, image = _describe(read, 0)
    loads = [p for p in programs if p[0] == PT_LOAD]

    def at_link_address(size: int, vaddr: int) -> bytes:
        for _, offset, begin, length in loads:
            if begin <= vaddr < begin + length:
                return read(min(size, begin + length - vaddr), offset + vaddr - begin)
        raise ElfError("a table of its dynamic section lies outside its segments")

    for kind, offset, _, length in programs:
        if kind == PT_DYNAMIC:
            tags = parse_dynamic(read(min(length, _MAX_DYNAMIC_BYTES), offset))
            if _DT_GNU_HASH in tags or _DT_HASH in tags:
                image.symbol = find_dynamic_symbol(at_link_address, tags, names)
            else:
                image.symbol = find_section_symbol(read, SHT_DYNSYM, names)
            break
    return image


def inspect_memory(read: ReadAt, start: int, names: Sequence[bytes]) -> Image:
    """The same for an image mapped in memory with its file offset 0 at address `start`.

    This needs no file: it serves libraries that were replaced on disk since, or that lie on a file system
    whose inode numbers in /proc/PID/maps are not those of stat (overlayfs, btrfs).

    Raises:
        ElfError: as `inspect_file`.
        OSError: from `read`.
    """
    _, programs, image = _describe(read, start)
    bias = start - image.base
    for kind, _, vaddr, length in programs:
        if kind == PT_DYNAMIC:
            tags = parse_dynamic(read(min(length, _MAX_DYNAMIC_BYTES), bias + vaddr))
            # glibc relocates the addresses in a loaded dynamic section in place, musl does not.
            for tag in (_DT_GNU_HASH, _DT_HASH, _DT_STRTAB, _DT_SYMTAB):
                if bias > 0 and tags.get(tag, 0) >= bias:
                    tags[tag] -= bias
            image.symbol = find_dynamic_symbol(lambda size, at: read(size, bias + at), tags, names)
            break
    return image


class Mapping:
    """One line of /proc/PID/maps: addresses and `offset` in bytes, `device` as st_dev."""

    __slots__ = ("device", "end", "inode", "offset", "path", "perms", "start")

    def __init__(self, line: bytes) -> None:
        """Parse one line.

        Raises:
            ValueError: it does not have the six fields of proc_pid_maps(5) (the path may be missing).
        """
        fields = line.split(None, 5)
        start, _, end = fields[0].partition(b"-")
        major, _, minor = fields[3].partition(b":")
        self.start, self.end, self.perms = int(start, 16), int(end, 16), fields[1]
        self.offset, self.inode = int(fields[2], 16), int(fields[4])
        self.device = os.makedev(int(major, 16), int(minor, 16))
        self.path = fields[5] if len(fields) > 5 else b""


class MappedImage:
    """A file mapped from its offset 0, with the address ranges where its variables can be."""

    __slots__ = ("executable", "first", "writable")

    def __init__(self, first: Mapping) -> None:
        self.first = first
        self.executable = False
        self.writable: list[tuple[int, int]] = []

    def holds(self, slot: int) -> bool:
        """Whether `slot`, an address, can be a variable of this image: writable, and among its mappings.

        It cannot where the file is mapped a second time as plain data (a tool that reads it with mmap).
        """
        return any(start <= slot and slot + 8 <= end for start, end in self.writable)


def mapped_images(maps: bytes, path: bytes) -> list[MappedImage]:
    """Every place where `path` (as spelled in `maps`) is mapped from its offset 0.

    An image's variables lie in its own writable mappings or in the anonymous ones that follow (.bss; of a
    fixed-address executable it can bear the label [heap]).
    """
    found: list[MappedImage] = []
    needle = b" " + path + b"\n"
    at = maps.find(needle)
    while at >= 0:
        begin = maps.rfind(b"\n", 0, at) + 1
        first = Mapping(maps[begin : at + len(needle)].rstrip(b"\n"))
        if first.path == path and first.offset == 0:
            image = MappedImage(first)
            for line in _lines(maps, begin, _IMAGE_LINES):
                span, perms, _, _, _, *named = line.split(None, 5)
                own = named == [path]
                image.executable |= own and b"x" in perms
                if perms[1:2] == b"w" and (own or not (named and named[0].startswith(b"/"))):
                    start, _, end = span.partition(b"-")
                    image.writable.append((int(start, 16), int(end, 16)))
            found.append(image)
        at = maps.find(needle, at + 1)
    return found


def _lines(text: bytes, begin: int, count: int) -> Iterator[bytes]:
    for _ in range(count):
        end = text.find(b"\n", begin)
        if end < 0:
            return
        yield text[begin:end]
        begin = end + 1


def libc_paths(maps: bytes) -> list[bytes]:
    """The paths in `maps` that name a glibc or a musl, in the order of their addresses."""
    found: dict[int, bytes] = {}
    for mark in (b"/libc.so", b"/libc-2.", b"/libc.musl-", b"/ld-musl-"):  # not /libc: a GPU's libraries are /libcu*
        at = maps.find(mark)
        while at >= 0:
            end = maps.find(b"\n", at)
            base = maps[at + 1 : end].removesuffix(b" (deleted)")
            exact = base in (b"libc.so.6", b"libc.so") or (base.startswith(b"libc-2.") and base.endswith(b".so"))
            if exact or base.startswith((b"ld-musl-", b"libc.musl-")):
                begin = maps.rfind(b"\n", 0, at) + 1
                found[begin] = Mapping(maps[begin:end]).path
            at = maps.find(mark, end) if end >= 0 else -1
    return list(dict.fromkeys(found[begin] for begin in sorted(found)))


def file_paths(maps: bytes) -> list[bytes]:
    """Every path in `maps` that is mapped from offset 0, each once."""
    found: dict[bytes, None] = {}
    for line in maps.split(b"\n"):
        if b" 00000000 " in line and b" /" in line:
            mapping = Mapping(line)
            if mapping.path.startswith(b"/"):
                found[mapping.path] = None
    return list(found)
