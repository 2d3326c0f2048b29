"""What NCCL says about itself in its log: text in, records out. Pure; nothing in a log makes it raise.

Source: `ncclDebugLog` in NCCL's src/debug.cc; the messages themselves are in `messages.py`.

    HOST:PID:TID [DEV] NCCL INFO text
    HOST:PID:TID [DEV] file:line NCCL WARN text          after an empty line; `file:line (function)` since 2.30.7
    HOST:PID NCCL DIAG text                              since 2.31

A time stamp of any format may come first, and so may whatever the program around NCCL prints before each line. DEV is the
device of the thread that logs, garbage without a GPU: never a rank. The rank of a process is in its "Init" lines.

A line is believed only when it is whole: one that lacks its line feed (the last one of a file still being written), and one
that holds a second prefix (two processes wrote into one pipe), are counted and otherwise left out. So a set line that is
missing proves something only where `torn` and `mixed` are 0; `silence.py` knows the other conditions.
"""

from __future__ import annotations

from sglang_ext.nccl.messages import (
    PLUGIN_WORDS,
    Origin,
    channels_of,
    choice_of,
    init_of,
    invalid_of,
    is_int,
    setting_of,
)
from sglang_ext.nccl.testimony import (
    Channels,
    Choice,
    Enabled,
    Init,
    Invalid,
    Library,
    Network,
    Plugin,
    Setting,
    Testimony,
    Warn,
)
from sglang_ext.nccl.version import parse_version
from sglang_ext.quick import NamedTuple

TYPE_CHECKING = False  # mypy treats this name as true
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    _R = TypeVar("_R", bound=NamedTuple)

__all__ = ("Testimony", "parse")

LEVELS = frozenset({"INFO", "WARN", "ATTN", "DIAG", "TRACE", "CALL"})
_MARK = " NCCL "
_FAR = 8  # words between the origin and the mark: file:line, a function's name, a trace's time


def parse(text: str | bytes) -> Testimony:
    """Read a log, or several put one after the other. Bytes that are no UTF-8 are kept (surrogateescape)."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    body, _, tail = text.rpartition("\n")
    reader = _Reader()
    for line in body.split("\n"):  # only there: a value may hold what splitlines takes for a line's end
        reader.line(line)
    return reader.testimony(torn=tail.strip("\0 \r") != "")


class _Reader:
    """Collects records line by line; `_columns` is not None while the rows of a matrix follow."""

    def __init__(self) -> None:
        self.found: dict[type, list[NamedTuple]] = {}
        self.links: dict[tuple[int, str], int] = {}
        self.processes: dict[tuple[str, int], None] = {}
        self.lines = self.mixed = 0
        self._matrix: tuple[Origin, list[list[str]]] | None = None

    def line(self, line: str) -> None:
        if "\x1b" in line:
            line = _plain(line)
        line = line.strip("\0").removesuffix("\r")
        if _MARK not in line:
            if self._matrix is not None:
                self._row(line)
            if line.startswith("NCCL version "):
                self._banner(None, line, "")
            return
        heads = list(_heads(line))
        if not heads:
            return  # another program's line that has NCCL in it
        self._matrix = None
        if len(heads) > 1:
            self.mixed += 1
            return
        origin = heads[0]
        self.lines += 1
        self.processes[origin.host, origin.pid] = None
        if origin.level in ("WARN", "ATTN", "DIAG"):
            self.add(Warn(origin.pid, origin.level, origin.text, origin.place, origin.host))
        if origin.level in ("INFO", "WARN", "ATTN"):
            try:
                self._say(origin)
            except (ValueError, IndexError, KeyError):
                self.mixed += 1  # it begins like a message we know and goes on unlike it

    def add(self, record: NamedTuple) -> None:
        self.found.setdefault(type(record), []).append(record)

    def testimony(self, torn: bool) -> Testimony:
        def every(kind: type[_R]) -> tuple[_R, ...]:
            return tuple(r for r in self.found.get(kind, ()) if isinstance(r, kind))

        return Testimony(
            every(Setting), every(Init), every(Choice), every(Invalid), every(Warn), every(Library), every(Network),
            every(Channels), every(Plugin), every(Enabled),
            tuple((pid, via, count) for (pid, via), count in self.links.items()),
            tuple(self.processes), self.lines, self.mixed, torn,
        )  # fmt: skip

    def _say(self, origin: Origin) -> None:
        pid, host, text = origin.pid, origin.host, origin.text
        setting = setting_of(text) if "NCCL_" in text or "Plugin name " in text else None
        if setting is not None:
            name, value, how = setting
            self.add(Setting(pid, name, value, how, host))
        elif text.endswith((" Init START", " Init COMPLETE", "-Init START", "-Init COMPLETE")):
            self.add(init_of(origin))
        elif " Bytes -> " in text:
            choice = choice_of(origin)
            if choice is not None:
                self.add(choice)
        elif text.startswith("Channel ") and " via " in text:
            via = text.partition(" via ")[2].split(" ", 1)[0]
            via = "/".join(via.split("/")[:2])  # NET/IB/0/GDRDMA: the device and the way differ per connection
            self.links[pid, via] = self.links.get((pid, via), 0) + 1
        elif "nvalid" in text or "nknown CTA" in text or "o valid CTA" in text or "failed to decode" in text:
            invalid = invalid_of(origin)
            if invalid is not None:
                self.add(invalid)
        elif text.startswith("NCCL version "):
            self._banner(pid, text, host)
        elif text.startswith("Using network "):
            self.add(Network(pid, text[len("Using network ") :], host))
        elif " coll channels, " in text:
            self.add(channels_of(origin))
        elif text.startswith("Enabled NCCL Func/Proto/Algo Matrix"):
            self._matrix = (origin, [])
        if ("lugin" in text or "uner: " in text) and any(word in text for word in PLUGIN_WORDS):
            self.add(Plugin(pid, text, host))

    def _banner(self, pid: int | None, text: str, host: str) -> None:
        shown, plus, cuda = text.removeprefix("NCCL version ").strip().partition("+cuda")
        version = parse_version(shown)
        if plus and version:
            self.add(Library(pid, version, cuda.split(" ", 1)[0], host))

    def _row(self, line: str) -> None:
        assert self._matrix is not None
        origin, columns = self._matrix
        cells = [part.split() for part in line.split("|")]
        if len(cells) < 3:
            if line.strip():
                self._matrix = None
            return
        if cells[0] == ["Function"]:
            columns[:] = cells
            return
        try:
            rows = [tuple(zip(columns[i], map(int, cells[i]), strict=True)) for i in (1, 2)]
            self.add(Enabled(origin.pid, cells[0][0], rows[0], rows[1], origin.host))
        except (ValueError, IndexError):
            self._matrix = None  # cut off: NCCL's own buffer ends at 1,024 bytes


def _plain(line: str) -> str:
    """Without ANSI colours: ESC [ ... letter."""
    first, *rest = line.split("\x1b")
    for piece in rest:
        end = 1
        while piece.startswith("[") and end < len(piece) and not piece[end].isalpha():
            end += 1
        first += piece[end + 1 :] if piece.startswith("[") else piece
    return first


def _heads(line: str) -> Iterator[Origin]:
    """Every prefix in the line; a whole line of NCCL has one."""
    at = line.find(_MARK)
    while at >= 0:
        level, _, text = line[at + len(_MARK) :].partition(" ")
        if level in LEVELS:
            words = line[:at].split()[-_FAR:]
            origin = _origin(words, level)
            if origin is not None:
                host, pid, place = origin
                yield Origin(host, pid, level, text, place)
        at = line.find(_MARK, at + 1)


def _origin(words: list[str], level: str) -> tuple[str, int, str] | None:
    """(host, pid, place) of the words before the mark, read from their end: what stands first is anybody's."""
    if level in ("CALL", "DIAG"):
        host, _, pid = (words[-1] if words else "").rpartition(":")
        if level == "CALL":
            host, _, pid = host.rpartition(":")
        return (host, int(pid), "") if host and is_int(pid) else None
    for i in range(len(words) - 1, 0, -1):
        device = words[i]
        if device.startswith("[") and device.endswith("]") and is_int(device[1:-1]):
            parts = words[i - 1].rsplit(":", 2)
            if len(parts) == 3 and parts[0] and is_int(parts[1]) and is_int(parts[2]):
                return parts[0], int(parts[1]), " ".join(words[i + 1 :])
    return None
