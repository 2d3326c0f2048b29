"""What every patch says about itself: `Key: value` lines, folded by a leading space, before the `---` line.

Subject           what it does, in one line of thought
Reason            upstream-pending | upstream-rejected | local
Why-Not-A-Plugin  why upstream's plug-in system cannot do it
Forwarded         the URL upstream was told at, or `no: <why>`
Retire-When       what must be true of an upstream release for the patch to go
Probe             the seams it makes, in the patched file: `seam <qualname> <name>`, separated by commas;
                  `seam Scheduler.__init__ scheduler_built` promises that `scheduler_built`, imported from
                  sglang_ext, decorates that method or is called in its first statement; `none` in a local
                  patch, which need not make any
"""

from __future__ import annotations

from sglang_ext.patchset.model import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sglang_ext.patchset.model import Patch

KEYS = ("Subject", "Reason", "Why-Not-A-Plugin", "Forwarded", "Retire-When", "Probe")
REASONS = ("upstream-pending", "upstream-rejected", "local")


class HeaderError(PatchError):
    """The header block of a patch breaks its rules."""


def read_header(patch: Patch) -> dict[str, str]:
    """The values by key, folded lines joined by one space; HeaderError with the first fault."""
    faults = lint_header(patch)
    if faults:
        raise HeaderError(faults[0])
    return {key: value for _, key, value in _unfold(patch, [])}


def lint_header(patch: Patch) -> list[str]:
    """One sentence per fault; none: the header is good."""
    faults: list[str] = []
    fields: dict[str, str] = {}
    for number, key, value in _unfold(patch, faults):
        where = f"Patch {patch.origin}, header line {number}"
        if key not in KEYS:
            faults.append(f"{where}: the key `{key}` is unknown; the known keys are {', '.join(KEYS)}.")
        elif key in fields:
            faults.append(f"{where}: the key `{key}` is there twice; keep one (`Probe` takes several seams).")
        elif not value:
            faults.append(f"{where}: the key `{key}` is empty; say what it should say.")
        fields.setdefault(key, value)
    for key in KEYS:
        if key not in fields:
            faults.append(f"Patch {patch.origin}: the header has no `{key}` line; add `{key}: ...`.")
    return faults + _lint_values(patch.origin, {key: value for key, value in fields.items() if value})


def expected_seams(patch: Patch) -> tuple[tuple[str, str], ...]:
    """The (qualname, name) pairs that `Probe` promises, for postcondition.check_seams."""
    for _, key, value in _unfold(patch, []):
        if key == "Probe" and value == "none":
            return ()
        if key == "Probe":
            seams, faults = _probe(patch.origin, value)
            if faults:
                raise HeaderError(faults[0])
            return tuple(seams)
    raise HeaderError(f"Patch {patch.origin}: the header has no `Probe` line; add `Probe: ...`.")


def _unfold(patch: Patch, faults: list[str]) -> list[tuple[int, str, str]]:
    """(line number, key, whole value) of each field; lines that are neither go to `faults`."""
    fields: list[tuple[int, str, str]] = []
    text = patch.header.rstrip("\n")
    for number, line in enumerate(text.split("\n") if text else [], 1):
        key, colon, value = line.partition(":")
        if line[:1] in (" ", "\t") and line.strip() and fields:
            first, key, value = fields[-1]
            fields[-1] = (first, key, f"{value} {line.strip()}".strip())
        elif colon and key and " " not in key and "\t" not in key:
            fields.append((number, key, value.strip()))
        else:
            faults.append(
                f"Patch {patch.origin}, header line {number}: `{line}` is not `Key: value`;"
                " fold a long value with a leading space."
            )
    return fields


def _lint_values(origin: str, fields: dict[str, str]) -> list[str]:
    faults: list[str] = []
    reason, forwarded = fields.get("Reason"), fields.get("Forwarded")
    if reason is not None and reason not in REASONS:
        faults.append(f"Patch {origin}: Reason is `{reason}`, but must be one of {', '.join(REASONS)}.")
    if forwarded is not None:
        told = forwarded.startswith(("https://", "http://")) and len(forwarded.split()) == 1
        if not told and not (forwarded.startswith("no:") and forwarded[3:].strip()):
            faults.append(f"Patch {origin}: Forwarded is `{forwarded}`, but must be one URL or `no: <why>`.")
        elif not told and reason in ("upstream-pending", "upstream-rejected"):
            faults.append(f"Patch {origin}: Reason is {reason}, so Forwarded must be the URL upstream has it at.")
    if "Probe" in fields and not (reason == "local" and fields["Probe"] == "none"):
        faults += _probe(origin, fields["Probe"])[1]
    return faults


def _probe(origin: str, value: str) -> tuple[list[tuple[str, str]], list[str]]:
    seams: list[tuple[str, str]] = []
    faults: list[str] = []
    for item in value.split(","):
        words = item.split()
        if len(words) != 3 or words[0] != "seam" or not _qualname(words[1]) or not words[2].isidentifier():
            faults.append(
                f"Patch {origin}: Probe has `{item.strip()}`, but each of its items must be"
                " `seam <qualname> <name>`, separated by commas."
            )
        elif (words[1], words[2]) in seams:
            faults.append(f"Patch {origin}: Probe has `{' '.join(words)}` twice; keep one.")
        else:
            seams.append((words[1], words[2]))
    return seams, faults


def _qualname(text: str) -> bool:
    return all(part.isidentifier() or part == "<locals>" for part in text.split("."))
