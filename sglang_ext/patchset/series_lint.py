"""What can be wrong with a series: entries, unused and duplicate patches, and two patches on the same lines."""

from __future__ import annotations

import os
from itertools import pairwise

from sglang_ext.patchset.lock import version_key
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import (
    LOCAL,
    SeriesError,
    entries,
    is_patch_file,
    patch_names,
    read_file,
    read_patch,
    release_of,
    variants,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sglang_ext.patchset.model import Patch


def lint_series(root: str | os.PathLike[str]) -> list[str]:
    """One sentence per fault: bad, double, missing and unlisted entries, twins, and hunks on one another's lines."""
    folder = os.fspath(root)
    try:
        listed, faults = entries(read_file(folder, "series"), "series")
    except SeriesError as error:
        return [str(error)]
    families: dict[str, list[str]] = {}  # entry: its files, one or the variants of a folder
    for entry in listed:
        try:
            families[entry] = variants(folder, entry) if entry.endswith("/") else [entry]
        except SeriesError as error:
            faults.append(str(error))
            families[entry] = [name for name in _present(folder) if name.startswith(entry)]
    names = list(dict.fromkeys(name for family in families.values() for name in family))
    patches: dict[str, Patch] = {}
    for name in names:
        try:
            patches[name] = read_patch(name, read_file(folder, name))
        except PatchError as error:
            faults.append(str(error))
    for name in sorted(_present(folder) - set(names)):
        faults.append(f"Patch {name} is not listed in {os.path.join(folder, 'series')}: list it or delete it.")
    faults += _twins(families.values(), patches)
    return faults or _clashes(folder, families, patches)


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


def listed_files(root: str | os.PathLike[str]) -> list[str]:
    """Every patch file that any release can take, variants included. Raises SeriesError."""
    folder = os.fspath(root)
    listed, _ = entries(read_file(folder, "series"), "series")
    return [name for entry in listed for name in (variants(folder, entry) if entry.endswith("/") else [entry])]


def unused(root: str | os.PathLike[str], used: Iterable[str]) -> Iterator[str]:
    """One sentence for each listed patch file that is not in `used`, the files the releases of the lock take."""
    for name in sorted(set(listed_files(root)) - set(used)):
        yield f"Patch {name} is used by no release of the lock: lock a release it is for, or delete it."


def _twins(families: Iterable[Sequence[str]], patches: dict[str, Patch]) -> Iterator[str]:
    """Patches that make the same changes, and variants of one entry that change different files."""
    leaders: dict[object, str] = {}
    for family in families:
        parsed = [patches[name] for name in family if name in patches]
        for first, second in pairwise(parsed):
            if first.target != second.target:
                yield (
                    f"Variants {first.origin} and {second.origin} change two files, {first.target} and {second.target}:"
                    " a folder of the series is for one."
                )
            elif _changes(first) == _changes(second):
                yield (
                    f"Variants {first.origin} and {second.origin} make the same changes and differ in line numbers at"
                    " most: delete the second, one text serves both."
                )
        for name in {_changes(patch): patch.origin for patch in reversed(parsed)}.values():
            leader = leaders.setdefault(_changes(patches[name]), name)
            if leader not in family:
                yield f"Patches {leader} and {name} make the same changes: delete one."


def _changes(patch: Patch) -> object:
    """What the patch does, wherever the lines lie."""
    return patch.target, tuple(hunk.lines for hunk in patch.hunks)


def _clashes(folder: str, families: dict[str, list[str]], patches: dict[str, Patch]) -> list[str]:
    """Overlaps in any patch set that the variants can make; a new one can begin with each variant."""
    firsts = {release_of(name) for entry, family in families.items() if entry.endswith("/") for name in family}
    versions: list[str | None] = [*sorted(firsts, key=version_key)]
    faults: dict[str, None] = {}
    for version in versions or [None]:
        try:
            names = patch_names(folder, version)
        except SeriesError:
            continue  # another folder begins later: there is no patch set for that release
        faults.update(dict.fromkeys(overlaps([patches[name] for name in names])))
    return list(faults)


def _present(folder: str) -> set[str]:
    """Every *.patch below `folder` outside `local/`."""
    found: set[str] = set()
    for where, folders, names in os.walk(folder):
        if where == folder and LOCAL in folders:
            folders.remove(LOCAL)
        below = os.path.relpath(where, folder).replace(os.sep, "/")
        found |= {name if below == "." else f"{below}/{name}" for name in names if is_patch_file(name)}
    return found
