"""A zip archive as bytes: where each entry lies, and the archive again with some entries changed or renamed.

What is not changed is copied as it lies, compressed bytes and all; only its offset in the central directory is new. The
layout is that of PKWARE's APPNOTE 6.3.10 (4.3.6 on), zip64 included. Strict: an archive that is laid out in an odd way
is refused, not guessed at.
"""

from __future__ import annotations

import zlib
from struct import Struct
from struct import error as StructError

from sglang_ext.patchset.model import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from mmap import mmap

    Buffer = bytes | memoryview

LOCAL = Struct("<4s5H3L2H")  # signature, needs, flags, method, time, date, crc, packed, size, name, extra
CENTRAL = Struct("<4s6H3L5H2L")  # ..., made, then as above, comment, disk, two attributes, offset
END = Struct("<4s4H2LH")  # signature, disk, its disk, entries here, entries, size, offset, comment
LOCATOR = Struct("<4sLQL")  # signature, disk, offset of the record, disks
END64 = Struct("<4sQ2H2L4Q")  # signature, size, made, needs, disk, its disk, entries here, entries, size, offset
PAIR = Struct("<2H")
WIDE = Struct("<Q")

STORED, DEFLATED = 0, 8
ENCRYPTED, SIZES_FOLLOW, UTF8 = 0x1, 0x8, 0x800
ZIP64 = 1  # the extra field with what does not fit into 32 bits
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF  # in the field itself: look there
SIZE, PACKED, OFFSET = 9, 8, 16  # places among the values of CENTRAL; zip64 has them in this order


class ZipError(PatchError):
    """The archive is damaged, or laid out as we do not copy."""


class Entry:
    """One entry: its central record, and the bytes `at` to `end` from its local header to whatever comes next."""

    __slots__ = ("at", "end", "extra", "name", "packed", "record", "size", "tail", "values", "wide")

    def __init__(self, record: bytes) -> None:
        self.record = record
        self.values = CENTRAL.unpack_from(record)
        name, extra = self.values[10:12]
        self.tail = record[CENTRAL.size + name + extra :]
        raw = record[CENTRAL.size : CENTRAL.size + name]
        try:
            self.name = raw.decode(_codec(self.values[3]))
        except UnicodeDecodeError:
            raise ZipError(f"Entry {raw!r} says that its name is UTF-8, and it is not.") from None
        self.extra = _fields(record[CENTRAL.size + name : CENTRAL.size + name + extra], self.name)
        self.wide = tuple(place for place in (SIZE, PACKED, OFFSET) if self.values[place] == FULL32)
        found = dict.fromkeys((SIZE, PACKED, OFFSET), 0)
        found.update((place, self.values[place]) for place in found)
        if self.wide:
            found.update(zip(self.wide, _wide(self.extra, len(self.wide), self.name), strict=True))
        self.size, self.packed, self.at = found[SIZE], found[PACKED], found[OFFSET]
        self.end = self.at

    def record_at(self, offset: int, name: str, new: Packed | None) -> bytes:
        """The central record of the entry at another place, maybe renamed, maybe with other contents."""
        if offset == self.at and name == self.name and new is None:
            return self.record
        values = list(self.values)
        places = {SIZE: self.size, PACKED: self.packed, OFFSET: offset}
        wide = set(self.wide)
        if new is not None:
            values[3] &= ~SIZES_FOLLOW
            values[7] = new.crc
            places |= {SIZE: new.size, PACKED: len(new.data)}
            wide -= {SIZE, PACKED}
        wide |= {place for place, value in places.items() if value >= FULL32}
        for place, value in places.items():
            values[place] = FULL32 if place in wide else value
        extra = self.extra
        if wide or self.wide:
            large = b"".join(WIDE.pack(places[place]) for place in (SIZE, PACKED, OFFSET) if place in wide)
            extra = _with_zip64(extra, large)
        raw, tail = name.encode(_codec(values[3])), _joined(extra)
        values[10:12] = len(raw), len(tail)
        return CENTRAL.pack(*values) + raw + tail + self.tail


class Packed:
    """New contents, compressed as the entry was."""

    __slots__ = ("crc", "data", "size")

    def __init__(self, contents: bytes, method: int) -> None:
        self.crc, self.size = zlib.crc32(contents), len(contents)
        self.data = contents
        if method == DEFLATED:
            pack = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
            self.data = pack.compress(contents) + pack.flush()


class Archive:
    """A whole archive, read but not unpacked; `data` must stay as it is meanwhile."""

    def __init__(self, data: bytes | mmap) -> None:
        self.view = memoryview(data)
        self.end_at = _find_end(data)
        self.end = END.unpack_from(data, self.end_at)
        if self.end[1] or self.end[2]:
            raise ZipError("The archive is split over several files: expected a single one.")
        count, size, self.directory_at = self.end[4:7]
        self.large: tuple[int, bytes] | None = None  # where the zip64 record lies, and the record
        self._read_zip64(data)
        closes = self.end_at
        if self.large:
            closes, record = self.large
            count, size, self.directory_at = END64.unpack_from(record)[7:10]
        if self.directory_at + size != closes:
            raise ZipError("The archive's directory is not where it should end: something was put in or cut out.")
        self.entries = list(self._directory(count, closes))
        self.by_name = {entry.name: entry for entry in self.entries}
        if len(self.by_name) != len(self.entries):
            raise ZipError("The archive has two entries of one name: expected each once.")
        self.placed = sorted(self.entries, key=lambda entry: entry.at)
        self._bound()

    def read(self, name: str) -> bytes:
        """The contents of an entry, checked. Raises ZipError."""
        entry = self.by_name.get(name)
        if entry is None:
            raise ZipError(f"The archive has no entry {name}.")
        flags, method, crc = entry.values[3], entry.values[4], entry.values[7]
        if flags & ENCRYPTED or method not in (STORED, DEFLATED):
            raise ZipError(f"Entry {name} is encrypted or packed by method {method}: expected stored or deflated.")
        start = self._contents_at(entry)
        raw = self.view[start : start + entry.packed]
        try:
            contents = bytes(raw) if method == STORED else zlib.decompress(raw, -zlib.MAX_WBITS)
        except zlib.error as error:
            raise ZipError(f"Entry {name} cannot be unpacked ({error}).") from None
        if len(contents) != entry.size or zlib.crc32(contents) != crc:
            raise ZipError(f"Entry {name} is not what its checksum says.")
        return contents

    def rebuilt(self, contents: Mapping[str, bytes], rename: Callable[[str], str]) -> Iterator[Buffer]:
        """The archive in pieces, in the same order, with new `contents` by (old) name and every name passed to `rename`."""
        records: dict[str, bytes] = {}
        offset = waiting = 0  # where the next byte goes, and from where bytes wait to be copied as they are
        for entry in self.placed:
            name, new = rename(entry.name), None
            if entry.name in contents:
                new = Packed(contents[entry.name], entry.values[4])
            records[entry.name] = entry.record_at(offset, name, new)
            if new is None and name == entry.name:
                offset += entry.end - entry.at
                continue
            yield self.view[waiting : entry.at]
            head, body = self._local(entry, name, new)
            yield head
            yield body
            offset += len(head) + len(body)
            waiting = entry.end
        yield self.view[waiting : self.directory_at]
        directory = b"".join(records[entry.name] for entry in self.entries)
        yield directory
        yield self._closing(offset, len(directory))

    def _read_zip64(self, data: bytes | mmap) -> None:
        at = self.end_at - LOCATOR.size
        if at < 0 or data[at : at + 4] != b"PK\6\7":
            return
        place = LOCATOR.unpack_from(data, at)[2]
        record = bytes(self.view[place:at])
        if len(record) < END64.size or record[:4] != b"PK\6\6" or END64.unpack_from(record)[1] != len(record) - 12:
            raise ZipError("The archive's zip64 record is not where its locator says.")
        self.large = place, record

    def _directory(self, count: int, closes: int) -> Iterator[Entry]:
        at = self.directory_at
        for _ in range(count):
            try:
                values = CENTRAL.unpack_from(self.view, at)
            except StructError:
                raise ZipError("The archive's directory is cut off.") from None
            after = at + CENTRAL.size + sum(values[10:13])
            if values[0] != b"PK\1\2" or values[13] or after > closes:
                raise ZipError("The archive's directory is damaged.")
            yield Entry(bytes(self.view[at:after]))
            at = after
        if at != closes:
            raise ZipError("The archive's directory holds more than its entries.")

    def _bound(self) -> None:
        """Give every entry its end, and hold its local header against the directory."""
        starts = [*(entry.at for entry in self.placed), self.directory_at]
        if starts[0]:
            raise ZipError("The archive has something in front of its first entry.")
        for entry, end in zip(self.placed, starts[1:], strict=True):
            entry.end = end
            if entry.at + LOCAL.size > end or self._contents_at(entry) + entry.packed > end:
                raise ZipError(f"Entry {entry.name} runs into the one behind it.")

    def _contents_at(self, entry: Entry) -> int:
        """Where the packed contents start: the local header has a name and an extra field of its own."""
        values = LOCAL.unpack_from(self.view, entry.at)
        after = entry.at + LOCAL.size + values[9]
        named = self.view[entry.at + LOCAL.size : after] == entry.record[CENTRAL.size : CENTRAL.size + values[9]]
        if values[0] != b"PK\3\4" or values[9] != entry.values[10] or not named:
            raise ZipError(f"Entry {entry.name} has another local header than the directory says.")
        return int(after + values[10])

    def _local(self, entry: Entry, name: str, new: Packed | None) -> tuple[bytes, Buffer]:
        """The local header of an entry that was changed or renamed, and everything after it up to the next entry."""
        values = list(LOCAL.unpack_from(self.view, entry.at))
        start = self._contents_at(entry)
        extra = bytes(self.view[start - values[10] : start])
        body: Buffer = self.view[start : entry.end]
        if new is not None:
            values[2] &= ~SIZES_FOLLOW
            values[6:9] = new.crc, len(new.data), new.size
            extra = _joined([field for field in _fields(extra, entry.name) if field[0] != ZIP64])
            body = new.data
        raw = name.encode(_codec(values[2]))
        values[9:11] = len(raw), len(extra)
        return LOCAL.pack(*values) + raw + extra, body

    def _closing(self, offset: int, size: int) -> bytes:
        """What ends the archive: the end record with its comment, before it the zip64 ones where there were some or must be."""
        values = list(self.end)
        count = len(self.entries)
        before = b""
        needed = offset >= FULL32 or size >= FULL32 or count >= FULL16
        if self.large or needed:
            record = bytearray(self.large[1] if self.large else END64.pack(b"PK\6\6", 44, 45, 45, *[0] * 6))
            sized = list(END64.unpack_from(record))
            sized[6:10] = count, count, size, offset
            END64.pack_into(record, 0, *sized)
            before = bytes(record) + LOCATOR.pack(b"PK\6\7", 0, offset + size, 1)
        for place, value, full in ((3, count, FULL16), (4, count, FULL16), (5, size, FULL32), (6, offset, FULL32)):
            values[place] = full if values[place] == full else min(value, full)
        return before + END.pack(*values) + bytes(self.view[self.end_at + END.size :])


def _codec(flags: int) -> str:
    return "utf-8" if flags & UTF8 else "cp437"


def _find_end(data: bytes | mmap) -> int:
    """Where the end record lies: the comment after it reaches exactly to the end."""
    size = len(data)
    at = size
    while (at := data.rfind(b"PK\5\6", max(size - END.size - FULL16, 0), at)) >= 0:
        if at + END.size <= size and at + END.size + END.unpack_from(data, at)[7] == size:
            return at
    raise ZipError("The archive has no end record: it is cut off, or no zip file.")


def _fields(extra: bytes, name: str) -> list[tuple[int, bytes]]:
    """An extra field's parts by number. Bytes that are none, as some writers leave for padding, keep the number -1."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at + PAIR.size <= len(extra):
        number, size = PAIR.unpack_from(extra, at)
        after = at + PAIR.size + size
        if after > len(extra):
            raise ZipError(f"Entry {name} has an extra field that is cut off.")
        found.append((number, extra[at + PAIR.size : after]))
        at = after
    return [*found, (-1, extra[at:])] if at < len(extra) else found


def _joined(fields: list[tuple[int, bytes]]) -> bytes:
    return b"".join(data if number < 0 else PAIR.pack(number, len(data)) + data for number, data in fields)


def _wide(fields: list[tuple[int, bytes]], count: int, name: str) -> list[int]:
    data = next((data for number, data in fields if number == ZIP64), b"")
    if len(data) != count * WIDE.size:
        raise ZipError(f"Entry {name} has a zip64 field that does not fit its record.")
    return [WIDE.unpack_from(data, at)[0] for at in range(0, len(data), WIDE.size)]


def _with_zip64(fields: list[tuple[int, bytes]], data: bytes) -> list[tuple[int, bytes]]:
    """The fields with another zip64 one in its old place, in front where there was none; without it for no data."""
    if not any(number == ZIP64 for number, _ in fields):
        return [(ZIP64, data), *fields]
    return [(number, data if number == ZIP64 else old) for number, old in fields if number != ZIP64 or data]
