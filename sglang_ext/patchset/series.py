"""The patch set: the patches that `patches/series` lists, in that order, and their digest; all or none apply.

`series` holds one path a line, relative to it, with `#` comments. Order lives there, never in file names.
`local/` is the user's own: with `local=True` its patches follow ours, in the order of `local/series` where
that file exists, else by name.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.diff import Patch, PatchError, apply, parse
from sglang_ext.patchset.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

LOCAL = "local"


class SeriesError(PatchError):
    """`series`, or a file it lists, cannot be used."""


class PatchSet(Record):
    """All patches in order, and the sha256 over the order and the bytes of the patch files."""

    __slots__ = ("patches", "digest")
    patches: tuple[Patch, ...]
    digest: str

    def __init__(self, patches: Iterable[Patch], digest: str) -> None:
        self._set(tuple(patches), digest)

    @property
    def targets(self) -> tuple[str, ...]:
        """The files it changes, each once, in the order they first come."""
        return tuple(dict.fromkeys(patch.target for patch in self.patches))

    def apply_all(self, read: Callable[[str], bytes]) -> dict[str, bytes]:
        """Patched bytes by target; `read` gives a target's bytes. Any fault raises: all or none."""
        results: dict[str, bytes] = {}
        for patch in self.patches:
            source = results[patch.target] if patch.target in results else read(patch.target)
            results[patch.target] = apply(patch, source)
        return results


def load_patch_set(root: str | os.PathLike[str], *, local: bool = False) -> PatchSet:
    """The patch set below the folder `root`; PatchError where a file is missing or is no good patch."""
    folder = os.fspath(root)
    files = _patch_files(folder, local)
    patches = [parse(_decode(name, data), name) for name, data in files]
    return PatchSet(patches, _digest(files))


def patch_set_digest(root: str | os.PathLike[str], *, local: bool = False) -> str:
    """The digest `load_patch_set` would give, without parsing any patch."""
    return _digest(_patch_files(os.fspath(root), local))


def lint_series(root: str | os.PathLike[str]) -> list[str]:
    """One sentence per fault: bad, double, missing and unlisted entries, and hunks on one another's lines."""
    folder = os.fspath(root)
    try:
        names, faults = _entries(_read(folder, "series"), "series")
    except SeriesError as error:
        return [str(error)]
    patches: list[Patch] = []
    for name in names:
        try:
            patches.append(parse(_decode(name, _read(folder, name)), name))
        except PatchError as error:
            faults.append(str(error))
    for name in sorted(_unlisted(folder) - set(names)):
        faults.append(f"Patch {name} is not listed in {os.path.join(folder, 'series')}: list it or delete it.")
    return faults + overlaps(patches)


def overlaps(patches: Sequence[Patch]) -> list[str]:
    """One sentence for each two hunks of different patches that share a line of their common target.

    Each patch is read as made on top of those before it, so earlier regions are carried through later hunks.
    """
    faults: list[str] = []
    regions: dict[str, list[tuple[int, int, str]]] = {}  # target: (first line, line after, whose), as of now
    for patch in patches:
        earlier = regions.get(patch.target, [])
        for number, hunk in enumerate(patch.hunks, 1):
            start, end = hunk.old_start, hunk.old_start + len(hunk.old)
            for first, after, owner in earlier:
                if first < end and start < after:
                    faults.append(
                        f"Patch {patch.origin}, file {patch.target}, hunk {number} (lines {start}-{end - 1})"
                        f" lies on lines of {owner}: merge the two patches, or move one."
                    )
        moved = [
            (first + shift, after + shift, owner)
            for first, after, owner in earlier
            for shift in (sum(len(h.new) - len(h.old) for h in patch.hunks if h.old_start < first),)
        ]
        regions[patch.target] = moved + [
            (hunk.new_start, hunk.new_start + len(hunk.new), f"{patch.origin}, hunk {number}")
            for number, hunk in enumerate(patch.hunks, 1)
        ]
    return faults


def _patch_files(folder: str, local: bool) -> list[tuple[str, bytes]]:
    """(path as in `series`, bytes) of every patch in order."""
    names, faults = _entries(_read(folder, "series"), "series")
    if local and os.path.isdir(os.path.join(folder, LOCAL)):
        present = sorted(name for name in os.listdir(os.path.join(folder, LOCAL)) if name.endswith(".patch"))
        order = f"{LOCAL}/series"
        if os.path.exists(os.path.join(folder, LOCAL, "series")):
            listed, more = _entries(_read(folder, order), order)
            faults += more + [f"Patch {LOCAL}/{name} is not in {order}." for name in present if name not in listed]
            present = listed
        names += [f"{LOCAL}/{name}" for name in present]
    if faults:
        raise SeriesError(faults[0])
    return [(name, _read(folder, name)) for name in names]


def _digest(files: Sequence[tuple[str, bytes]]) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _entries(data: bytes, name: str) -> tuple[list[str], list[str]]:
    names: list[str] = []
    faults: list[str] = []
    for number, line in enumerate(_decode(name, data).split("\n"), 1):
        entry = line.split("#")[0].strip()
        where = f"File {name}, line {number}"
        if not entry:
            continue
        if entry in names:
            faults.append(f"{where} lists {entry} a second time: keep one.")
            continue
        parts = entry.split("/")
        if len(entry.split()) != 1 or not entry.endswith(".patch") or "\\" in entry or {"", ".", ".."} & set(parts):
            faults.append(f"{where} is `{entry}`, but must be one relative path that ends in .patch.")
            continue
        names.append(entry)
    return names, faults


def _read(folder: str, name: str) -> bytes:
    path = os.path.join(folder, *name.split("/"))
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        listed = "" if name.endswith("series") else " It is listed in the series: restore it or take the line out."
        raise SeriesError(f"File {path} cannot be read ({error.strerror}).{listed}") from None


def _decode(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SeriesError(f"File {name} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None


def _unlisted(folder: str) -> set[str]:
    """Every *.patch below `folder` outside `local/`."""
    found: set[str] = set()
    for where, folders, names in os.walk(folder):
        if where == folder and LOCAL in folders:
            folders.remove(LOCAL)
        below = os.path.relpath(where, folder).replace(os.sep, "/")
        found |= {name if below == "." else f"{below}/{name}" for name in names if name.endswith(".patch")}
    return found
