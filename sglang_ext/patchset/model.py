"""What a patch is: hunks of one target file under a header block, and its canonical text."""

from __future__ import annotations

from sglang_ext.patchset.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NO_NEWLINE = "\\ No newline at end of file"


class PatchError(ValueError):
    """Base of all errors of this room; the message is one sentence with the fix in it."""


class Hunk(Record):
    """One hunk; `lines` keep their tag and newline (or its absence): b" context\\n", b"-old\\n", b"+new".

    The starts are those of the first line, from 1, also where a side is empty: there diff tools write the line before it.
    """

    __slots__ = ("old_start", "new_start", "section", "lines")
    old_start: int
    new_start: int
    section: str
    lines: tuple[bytes, ...]

    def __init__(self, old_start: int, new_start: int, section: str, lines: Iterable[bytes]) -> None:
        self._set(old_start, new_start, section, tuple(lines))

    @property
    def old(self) -> list[bytes]:
        """The pre-image: the lines the file must hold."""
        return [line[1:] for line in self.lines if line[:1] != b"+"]

    @property
    def new(self) -> list[bytes]:
        """The post-image: the lines it holds afterwards."""
        return [line[1:] for line in self.lines if line[:1] != b"-"]

    @property
    def title(self) -> str:
        """The `@@ ... @@` line as diff tools write it."""
        old, new = _range(self.old_start, len(self.old)), _range(self.new_start, len(self.new))
        return f"@@ -{old} +{new} @@{self.section}"


class Patch(Record):
    """A header block, one target such as `sglang/srt/managers/scheduler.py`, and its hunks in file order."""

    __slots__ = ("origin", "header", "target", "hunks")
    origin: str
    header: str
    target: str
    hunks: tuple[Hunk, ...]

    def __init__(self, origin: str, header: str, target: str, hunks: Iterable[Hunk]) -> None:
        self._set(origin, header, target, tuple(hunks))


def render(patch: Patch) -> str:
    """The canonical text: parsing it gives the same patch, and rendering that the same text."""
    parts = [patch.header, f"--- a/{patch.target}\n+++ b/{patch.target}\n"]
    for hunk in patch.hunks:
        parts.append(hunk.title + "\n")
        for line in hunk.lines:
            text = line.decode()
            parts.append(text if text.endswith("\n") else f"{text}\n{NO_NEWLINE}\n")
    return "".join(parts)


def _range(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start if count else start - 1},{count}"
