"""One patch of one file: apply it exactly, turn it round, tell its state. Pure: bytes in, bytes out.

Exact means: every context and removed line must match byte for byte, never with fuzz. A hunk may lie at
another line than it states (an offset) only when its pre-image occurs once. A hunk without leading (trailing)
context must begin (end) the file, as GNU patch and git have it; without that rule an appended block could be
appended twice. So a hunk without any old line (`@@ -0,0 +1,N @@`) fits an empty file only, and one without any new
line takes all of a file out.
"""

from __future__ import annotations

from sglang_ext.patchset.model import Hunk, Patch, PatchError, render
from sglang_ext.patchset.parsing import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    State = Literal["applied", "not_applied", "neither"]

__all__ = [
    "Hunk",
    "Patch",
    "PatchError",
    "apply",
    "apply_with_offsets",
    "make",
    "parse",
    "render",
    "reverse",
    "state",
]


def reverse(patch: Patch) -> Patch:
    """The patch that takes this one out again."""
    swap = {b"+": b"-", b"-": b"+", b" ": b" "}
    hunks = (
        Hunk(hunk.new_start, hunk.old_start, hunk.section, (swap[line[:1]] + line[1:] for line in hunk.lines))
        for hunk in patch.hunks
    )
    return Patch(patch.origin, patch.header, patch.target, hunks)


def apply(patch: Patch, source: bytes) -> bytes:
    """The patched file, or PatchError naming patch, file, hunk, what was expected and what is there."""
    return apply_with_offsets(patch, source)[0]


def apply_with_offsets(patch: Patch, source: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The patched file, and by how many lines each hunk was moved (0: where it says)."""
    lines = _source_lines(patch, source)
    undo = reverse(patch)
    try:
        offsets = _offsets(patch, lines)
    except PatchError:
        if _fit(undo, lines) is not None:
            raise _already(patch) from None
        raise
    if any(offsets) and _fits_as_stated(undo, lines):
        raise _already(patch)  # forward fits only elsewhere, at a twin of the place that already has it
    result: list[bytes] = []
    end = 0
    for hunk, offset in zip(patch.hunks, offsets, strict=True):
        at = hunk.old_start - 1 + offset
        result += lines[end:at]
        result += hunk.new
        end = at + len(hunk.old)
    return b"".join(result + lines[end:]), offsets


def state(patch: Patch, source: bytes) -> State:
    """Which side of the patch the file shows. Where both fit, the stated lines decide; a tie is "neither"."""
    try:
        lines = _source_lines(patch, source)
    except PatchError:
        return "neither"
    forward, backward = _fit(patch, lines), _fit(reverse(patch), lines)
    if forward is not None and backward is not None and any(forward) == any(backward):
        return "neither"
    if backward is not None and (forward is None or any(forward)):
        return "applied"
    return "neither" if forward is None else "not_applied"


def make(target: str, old: bytes, new: bytes, origin: str, header: str = "", context: int = 3) -> Patch:
    """The patch that turns `old` into `new`; PatchError where they are the same or one leaves no anchor."""
    from difflib import SequenceMatcher

    if old == new:
        raise PatchError(f"Patch {origin} would be empty: both versions of file {target} are the same.")
    before, after = _split(old), _split(new)
    hunks: list[Hunk] = []
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(context):
        lines: list[bytes] = []
        for kind, i, j, k, m in group:
            if kind == "equal":
                lines += [b" " + line for line in before[i:j]]
            else:
                lines += [b"-" + line for line in before[i:j]] + [b"+" + line for line in after[k:m]]
        hunks.append(Hunk(group[0][1] + 1, group[0][3] + 1, "", lines))
    return parse(render(Patch(origin, header, target, hunks)), origin)


# --- finding the place


def _source_lines(patch: Patch, source: bytes) -> list[bytes]:
    where = f"Patch {patch.origin} cannot be applied: file {patch.target}"
    if source.startswith(b"\xef\xbb\xbf"):
        raise PatchError(f"{where} starts with a byte order mark, which upstream's does not: install sglang again.")
    if b"\r\n" in source:
        raise PatchError(f"{where} has CRLF line endings, but upstream's has LF: install sglang again.")
    return _split(source)


def _split(source: bytes) -> list[bytes]:
    """Split at LF only; of bytes, `splitlines` would also split at lone CRs."""
    if b"\r" not in source:
        return source.splitlines(keepends=True)
    lines = [line + b"\n" for line in source.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _already(patch: Patch) -> PatchError:
    return PatchError(f"Patch {patch.origin} is already applied to file {patch.target}: nothing is left to do.")


def _fit(patch: Patch, lines: list[bytes]) -> tuple[int, ...] | None:
    """How far each hunk is moved; None where one of them fits nowhere, or at several places."""
    offsets, misfit = _search(patch, lines)
    return None if misfit else offsets


def _offsets(patch: Patch, lines: list[bytes]) -> tuple[int, ...]:
    """The same, but a misfit is a sentence. Raises PatchError."""
    offsets, misfit = _search(patch, lines)
    if misfit:
        raise PatchError(_misfit(patch, len(offsets) + 1, lines, *misfit))
    return offsets


def _search(patch: Patch, lines: list[bytes]) -> tuple[tuple[int, ...], tuple[list[int], int] | None]:
    """The offsets of the hunks up to the first that does not fit, and of that one its places and where they may begin."""
    offsets: list[int] = []
    floor = 0
    for hunk in patch.hunks:
        old, stated = hunk.old, hunk.old_start - 1
        if any(offsets) or stated < floor or not _fits(hunk, old, lines, stated):
            found = _places(hunk, old, lines, floor)
            if len(found) != 1:
                return tuple(offsets), (found, floor)
            offsets.append(found[0] - stated)
        else:
            offsets.append(0)
        floor = stated + offsets[-1] + len(old)
    return tuple(offsets), None


def _fits_as_stated(patch: Patch, lines: list[bytes]) -> bool:
    """Does every hunk fit at the line it says? The files have thousands of lines: this needs no search."""
    floor = 0
    for hunk in patch.hunks:
        old, stated = hunk.old, hunk.old_start - 1
        if stated < floor or not _fits(hunk, old, lines, stated):
            return False
        floor = stated + len(old)
    return True


def _places(hunk: Hunk, old: list[bytes], lines: list[bytes], floor: int) -> list[int]:
    """Every line from ``floor`` on where the hunk fits: by its longest line, which few others equal."""
    last = len(lines) - len(old)
    if not old:
        return [at for at in range(floor, last + 1) if _fits(hunk, old, lines, at)]
    step = max(range(len(old)), key=lambda number: len(old[number]))
    found: list[int] = []
    at = floor + step - 1
    while True:
        try:
            at = lines.index(old[step], at + 1)
        except ValueError:
            return found
        if _fits(hunk, old, lines, at - step):
            found.append(at - step)


def _fits(hunk: Hunk, old: list[bytes], lines: Sequence[bytes], at: int) -> bool:
    if lines[at : at + len(old)] != old:
        return False
    starts, ends = hunk.lines[0][:1] != b" ", hunk.lines[-1][:1] != b" "
    return not (starts and at) and not (ends and at + len(old) != len(lines))


def _misfit(patch: Patch, number: int, lines: Sequence[bytes], found: Sequence[int], floor: int) -> str:
    """One sentence: which hunk, what it expects, what is there, what to do."""
    hunk = patch.hunks[number - 1]
    old, stated = hunk.old, hunk.old_start - 1
    where = f"Patch {patch.origin}, file {patch.target}, hunk {number} of {len(patch.hunks)} (`{hunk.title}`)"
    if found:
        places = ", ".join(str(at + 1) for at in found[:5]) + (", ..." if len(found) > 5 else "")
        return f"{where}: the anchor occurs {len(found)} times (lines {places}); give the hunk more context."
    if lines:
        last = lines[-1][:-1] if lines[-1].endswith(b"\n") else lines[-1] + b"\n"
        other = [*lines[:-1], last]
        if any(_fits(hunk, old, other, at) for at in range(floor, len(lines) - len(old) + 1)):
            has, wants = ("no", "one") if last.endswith(b"\n") else ("a", "none")
            return f"{where}: the file has {has} final newline, but the patch expects {wants}; install sglang again."
    if not old:
        has = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
        return f"{where}: it fills an empty file, but this one has {has}; make the diff again, with context."
    if any(lines[at : at + len(old)] == old for at in range(floor, len(lines) - len(old) + 1)):
        begins = lines[: len(old)] == old or hunk.lines[0][:1] == b" "
        edge = "end" if begins else "begin"
        return f"{where}: it has no context on one side, so it must {edge} the file, but does not; add context."
    if any(lines[at : at + len(old)] == old for at in range(min(floor, len(lines)))):
        return f"{where}: its lines occur only above the place of the hunk before it; make the diff again."
    moved = _moved(old, lines)
    if moved:
        return f"{where}: {moved}; look where the patch belongs now with tools/rebase_patches.py."
    here = lines[stated : stated + len(old)]
    bad = next((at for at, line in enumerate(old) if at >= len(here) or here[at] != line), 0)
    there = _show(here[bad]) if bad < len(here) else "the end of the file"
    return (
        f"{where} fits nowhere: at line {stated + bad + 1} expected {_show(old[bad])}, found {there};"
        f" install the sglang release the patch was made for, or carry it over with tools/rebase_patches.py."
    )


def _moved(old: Sequence[bytes], lines: Sequence[bytes]) -> str:
    """Where the first function or class among the hunk's lines went, if it is not what it was; else nothing."""
    for line in old:
        name = _defined(line)
        if name:
            found = [at for at, other in enumerate(lines) if _defined(other) == name]
            if not found:
                return f"the file has no `{name.decode('utf-8', 'replace')}` any more, so upstream moved or renamed it"
            depth = len(line) - len(line.lstrip())
            if all(len(lines[at]) - len(lines[at].lstrip()) != depth for at in found):
                places = ", ".join(str(at + 1) for at in found)
                what = name.decode("utf-8", "replace")
                return f"`{what}` is at another depth now (line {places}), so upstream moved it into or out of a class"
            return ""
    return ""


def _defined(line: bytes) -> bytes:
    """b"    async def f(self):" -> b"def f"; empty where the line defines nothing."""
    words = line.strip().removeprefix(b"async ").split(maxsplit=1)
    if len(words) < 2 or words[0] not in (b"def", b"class"):
        return b""
    name = words[1].replace(b":", b"(").split(b"(")[0].strip()
    return words[0] + b" " + name


def _show(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\n")
    return repr(text if len(text) <= 80 else text[:77] + "...") + ("" if line.endswith(b"\n") else " without a newline")
