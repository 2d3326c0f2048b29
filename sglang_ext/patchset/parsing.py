"""Read a patch strictly: exact counts, one file, text only, LF only; each fault its own sentence."""

from __future__ import annotations

from sglang_ext.patchset.model import NO_NEWLINE, Hunk, Patch, PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What git writes for changes that are more than text, and what each would ask of us.
REFUSED_LINES = (
    ("GIT binary patch", "holds a binary change"),
    ("Binary files ", "holds a binary change"),
    ("rename from ", "renames a file"),
    ("rename to ", "renames a file"),
    ("copy from ", "copies a file"),
    ("copy to ", "copies a file"),
    ("new file mode ", "creates a file"),
    ("deleted file mode ", "deletes a file"),
    ("old mode ", "changes a file mode"),
    ("new mode ", "changes a file mode"),
)


def parse(text: str, origin: str) -> Patch:
    """Read one patch; `origin` names it in every message."""
    if text.startswith("\ufeff"):
        raise PatchError(f"Patch {origin} starts with a byte order mark: save it as UTF-8 without BOM.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PatchError(f"Patch {origin} is not UTF-8 text: save it as UTF-8.") from None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.endswith("\r"):
            raise PatchError(
                f"Patch {origin}, line {number} ends in CRLF, but patches and their targets are LF only:"
                " convert the patch with `dos2unix`, and let `.gitattributes` say `*.patch text eol=lf`."
            )
    if lines.pop():
        raise PatchError(f"Patch {origin} is cut off: its last line has no newline; fetch or save the file again.")
    top = next((at for at, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    _refuse_git_extras(lines[:top], origin)
    if top == len(lines):
        raise PatchError(f"Patch {origin} holds no `--- a/PATH` line: it must be a unified diff of one file.")
    header_end = next((at for at in range(top) if lines[at].startswith(("diff ", "index "))), top)
    target = _target(lines, top, origin)
    hunks = list(_hunks(lines, top + 2, origin, target))
    _check_newlines(hunks, origin, target)
    return Patch(origin, "".join(line + "\n" for line in lines[:header_end]), target, hunks)


def _refuse_git_extras(lines: Sequence[str], origin: str) -> None:
    for line in lines:
        for prefix, deed in REFUSED_LINES:
            if line.startswith(prefix):
                raise PatchError(f"Patch {origin} {deed} (`{line}`), but a patch here may only change lines of text.")


def _target(lines: Sequence[str], top: int, origin: str) -> str:
    if top + 1 == len(lines) or not lines[top + 1].startswith("+++ "):
        raise PatchError(f"Patch {origin}, line {top + 2}: expected a `+++ b/PATH` line after the `---` line.")
    old, new = (line[4:].split("\t")[0].rstrip(" ") for line in lines[top : top + 2])
    if "/dev/null" in (old, new):
        raise PatchError(f"Patch {origin} creates or deletes a file (/dev/null), but it may only change lines of text.")
    old, new = (path[2:] if path.startswith(("a/", "b/")) else path for path in (old, new))
    if old != new:
        raise PatchError(f"Patch {origin} names two files, `{old}` and `{new}`: a patch changes one file in place.")
    parts = new.split("/")
    if new.startswith("/") or new[1:2] == ":":
        raise PatchError(f"Patch {origin} names the absolute path `{new}`: write it as `sglang/...`.")
    if ".." in parts:
        raise PatchError(f"Patch {origin} names `{new}`, which has `..` in it: write it as `sglang/...`.")
    if parts[0] != "sglang" or len(parts) < 2 or {"", "."} & set(parts) or "\\" in new or '"' in new:
        raise PatchError(f"Patch {origin} names `{new}`, which is not a path inside the package: write `sglang/...`.")
    return new


def _hunks(lines: Sequence[str], at: int, origin: str, target: str) -> Iterator[Hunk]:
    number, old_end, shift = 0, 1, 0
    while at < len(lines) or not number:
        number += 1
        where = f"Patch {origin}, file {target}, hunk {number}"
        if at == len(lines) or not lines[at].startswith("@@ "):
            raise PatchError(_surplus(lines, at, origin, where, number))
        old_start, old_count, new_start, new_count, section = _numbers(lines[at], f"{where} (line {at + 1})")
        body, at = _body(lines, at, old_count, new_count, f"{where} (`{lines[at]}`)")
        if all(line[:1] == b" " for line in body):
            raise PatchError(f"{where} changes nothing: take it out.")
        if (not old_count and old_start) or (not new_count and new_start):
            raise PatchError(f"{where} has a side without any line, so nothing anchors it: make the diff with context.")
        # Line 0 is the whole of an empty file. Counted from 1, as all others, such a hunk fits only there (diff.py).
        old_start, new_start = old_start + (not old_count), new_start + (not new_count)
        hunk = Hunk(old_start, new_start, section, body)
        if old_start < old_end:
            raise PatchError(f"{where} starts at line {old_start}, before the hunk above it ends: sort or merge them.")
        if new_start != old_start + shift:
            raise PatchError(
                f"{where} says its new lines start at {new_start}, but the hunks above it make that"
                f" {old_start + shift}: it was edited by hand, or a hunk is missing; make the diff again."
            )
        if old_start > 1 and body[0][:1] != b" ":
            raise PatchError(f"{where} has no line of context before its first change: make the diff with context.")
        old_end, shift = old_start + old_count, shift + new_count - old_count
        yield hunk


def _surplus(lines: Sequence[str], at: int, origin: str, where: str, number: int) -> str:
    """Why the line where a hunk should start is none."""
    line = lines[at] if at < len(lines) else ""
    _refuse_git_extras([line], origin)
    after = lines[at + 1] if at + 1 < len(lines) else ""
    if line.startswith(("diff ", "Index ")) or (line.startswith("--- ") and after.startswith("+++ ")):
        return f"Patch {origin} has a second file at line {at + 1} (`{line}`): write one patch per file."
    if number == 1:
        return f"Patch {origin} has no `@@ -a,b +c,d @@` line after its `+++` line: it is empty or cut off."
    if line[:1] in (" ", "+", "-", "\\"):
        return (
            f"{where} should start at line {at + 1}, but `{line}` is there: the hunk above has more lines"
            " than its `@@` line counts (or a mail signature follows it); make the diff again."
        )
    return f"Patch {origin}, line {at + 1}: expected a hunk or the end of the patch, found `{line}`."


def _numbers(line: str, where: str) -> tuple[int, int, int, int, str]:
    """`@@ -3,7 +3,9 @@ def f():` -> 3, 7, 3, 9, " def f():"."""
    left, closed, section = line[3:].partition(" @@")
    numbers: list[int] = []
    for sign, part in zip("-+", left.split(" "), strict=False):
        start, comma, count = part[1:].partition(",")
        if part[:1] == sign and _digits(start) and (_digits(count) if comma else True):
            numbers += [int(start), int(count) if comma else 1]
    if not closed or len(numbers) != 4 or left.count(" ") != 1 or (section and section[0] != " "):
        raise PatchError(f"{where}: `{line}` is not of the form `@@ -a,b +c,d @@`.")
    if (numbers[0] == 0 and numbers[1]) or (numbers[2] == 0 and numbers[3]):
        raise PatchError(f"{where}: `{line}` starts at line 0, but the first line of a file is 1.")
    return numbers[0], numbers[1], numbers[2], numbers[3], section


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _body(lines: Sequence[str], at: int, old: int, new: int, where: str) -> tuple[list[bytes], int]:
    """The lines after the `@@` line at `at`, exactly `old` and `new` of them, and where the next thing is."""
    body: list[bytes] = []
    at += 1
    while at < len(lines) and (old or new or lines[at].startswith("\\ ")):
        line = lines[at]
        if line.startswith("\\ ") and body and body[-1].endswith(b"\n"):
            body[-1] = body[-1][:-1]
            at += 1
            continue
        if not line:
            raise PatchError(
                f"{where}: line {at + 1} is empty; a blank context line is one space (an editor cut it off)."
            )
        if line[0] not in " +-":
            raise PatchError(f"{where}: line {at + 1} (`{line}`) starts with none of ` `, `+`, `-`; it is cut off.")
        old -= line[0] != "+"
        new -= line[0] != "-"
        if old < 0 or new < 0:
            raise PatchError(f"{where}: line {at + 1} (`{line}`) is one more than its `@@` line counts; redo the diff.")
        body.append(line.encode() + b"\n")
        at += 1
    if old or new:
        raise PatchError(
            f"{where} is cut off: {old} old and {new} new lines are missing; fetch or make the patch again."
        )
    return body, at


def _check_newlines(hunks: Sequence[Hunk], origin: str, target: str) -> None:
    for side in ("old", "new"):
        images = [line for hunk in hunks for line in getattr(hunk, side)]
        if any(not line.endswith(b"\n") for line in images[:-1]):
            raise PatchError(
                f"Patch {origin}, file {target} has `{NO_NEWLINE}` before the last {side} line:"
                f" only the last line of a file can lack its newline; make the diff again."
            )
