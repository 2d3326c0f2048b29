"""The new folder of patches: planned in memory, made beside the old one, and put in its place in one step.

Nothing in the old folder is touched before that step, and the step is one rename of the kernel's that swaps the two
(`renameat2` with RENAME_EXCHANGE, Linux 3.15): whoever looks, and whatever interrupts, finds all of the old or all of
the new. Where the file system cannot swap, nothing is landed and the new folder stays where it was made, with a
sentence that says so.
"""

from __future__ import annotations

import os
from itertools import groupby
from typing import NamedTuple

from sglang_ext.patchset.lock import Lock, LockedFile, LockError, Release, dump_lock, version_key, with_release
from sglang_ext.patchset.model import PatchError, render
from sglang_ext.patchset.series import (
    LOCAL,
    SUFFIX,
    entries,
    load_patch_set,
    patch_names,
    patch_set_digest,
    read_file,
    read_patch,
    release_of,
    variants,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sglang_ext.patchset.rebase.outcome import Outcome

LOCK = "upstream.toml"
EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
AT_FDCWD = -100


class LandError(PatchError):
    """The new folder is not good, or cannot be put in place; the old one is as it was."""


class Plan(NamedTuple):
    """What the new folder holds that the old one does not, by path below it; None: the file goes."""

    files: dict[str, bytes | None]
    lock: Lock  # of the old releases, with the names their patches will have


def fingerprint(root: str) -> str:
    """One digest over every name and byte below the folder. Raises LandError."""
    import hashlib

    digest = hashlib.sha256()
    for where, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(where, name)
            try:
                data = _content(path)
            except OSError as error:
                raise LandError(f"File {path} cannot be read ({error.strerror}): open it or move it away.") from None
            digest.update(f"{os.path.relpath(path, root)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _content(path: str) -> bytes:
    """The bytes of a file, also behind a link; of a link that leads nowhere (an editor's lock) where it says it leads."""
    if os.path.islink(path) and not os.path.exists(path):
        return os.fsencode(os.readlink(path))
    with open(path, "rb") as file:
        return file.read()


def plan(root: str, lock: Lock, version: str, outcomes: Sequence[Outcome]) -> Plan:
    """Which files change, so that `version` takes the carried texts and every locked release what it took before."""
    texts: dict[str, bytes] = {}
    for outcome in outcomes:
        assert outcome.carried is not None
        if outcome.how == "as_is":
            texts[outcome.patch.origin] = read_file(root, outcome.patch.origin)
        else:
            texts[outcome.patch.origin] = render(outcome.carried).encode()
    listed, _ = entries(read_file(root, "series"), "series")
    taken = {release.version: release.patches or patch_names(root, release.version) for release in lock.releases}
    versions = sorted({*taken, version}, key=version_key)
    files: dict[str, bytes | None] = {}
    renamed: dict[str, str] = {}  # series line: the folder that takes its place
    for place, entry in enumerate(listed):
        wanted: list[tuple[str, bytes]] = []
        for release in versions:
            names = taken.get(release, ())
            if release == version:
                text = next(
                    texts[outcome.patch.origin] for outcome in outcomes if of_entry(outcome.patch.origin, entry)
                )
            else:
                text = read_file(root, names[place])
            wanted.append((release, text))
        if entry.endswith("/"):
            present = {name: read_file(root, name) for name in variants(root, entry)}
            files.update(_difference(present, variant_files(entry, present, wanted)))
        elif len({text for _, text in wanted}) > 1:  # one text for all no more: a folder of variants takes over
            folder = f"{entry.removesuffix(SUFFIX)}/"
            renamed[entry] = folder
            files.update({entry: None, **variant_files(folder, {}, wanted)})
    if renamed:
        files["series"] = _series(read_file(root, "series"), renamed)
    return Plan(files, lock)


def of_entry(name: str, entry: str) -> bool:
    """Does a patch file belong to that line of the series?"""
    return name.startswith(entry) if entry.endswith("/") else name == entry


def variant_files(entry: str, present: Mapping[str, bytes], wanted: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
    """The folder of variants that gives each release its text; `wanted` is oldest first. Names in use stay, if they can."""
    files: dict[str, bytes] = {}
    last: tuple[tuple[int, ...], int, str] | None = None
    for text, run in groupby(wanted, key=lambda item: item[1]):
        releases = [release for release, _ in run]
        first = version_key(releases[0])
        fitting = [
            name
            for name, data in present.items()
            if data == text
            and version_key(release_of(name)) <= first
            and (last is None or version_key(release_of(name)) > last)
        ]
        files[fitting[-1] if fitting else f"{entry}{releases[0]}{SUFFIX}"] = text
        last = version_key(releases[-1])
    return files


def build(root: str, scratch: str, made: Plan, version: str, wheels: Sequence[str], local: Mapping[str, bytes]) -> Lock:
    """The new folder in `scratch`, with its lock, checked as tools/check_patches.py does. LandError with the first fault."""
    import shutil

    from sglang_ext.patchset.file_check import Memory
    from sglang_ext.patchset.header import lint_header
    from sglang_ext.patchset.series_lint import lint_series
    from sglang_ext.patchset.wheel_check import WheelCheck

    shutil.copytree(root, scratch, symlinks=True)
    for name, data in {**made.files, **local}.items():
        path = os.path.join(scratch, *name.split("/"))
        if data is None:
            os.remove(path)
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    faults = lint_series(scratch)
    texts = [(name, data) for name, data in made.files.items() if data is not None and name.endswith(SUFFIX)]
    faults += [fault for name, data in texts for fault in lint_header(read_patch(name, data))]
    if faults:
        raise LandError(f"The new patch set is not good: {faults[0]}")
    lock = Lock(_renamed(scratch, release) for release in made.lock.releases if release.version != version)
    memory = Memory()
    for path in wheels:
        check = WheelCheck(path, lambda release: load_patch_set(scratch, patch_names(scratch, release)), None, memory)
        if check.faults or check.patch_set is None:
            raise LandError(f"The new patch set is not good. {check.faults[0] if check.faults else check.name}")
        found = {target: LockedFile(file.pristine, file.patched) for target, file in check.files.items()}
        patch_set = check.patch_set
        lock = with_release(
            lock, Release(version, patch_set.digest, {check.file: check.sha256}, found, patch_set.names)
        )
    with open(os.path.join(scratch, LOCK), "w", encoding="utf-8", newline="\n") as text:
        text.write(dump_lock(lock))
    return lock


def swap(root: str, scratch: str) -> None:
    """The folders `root` and `scratch` change places, in one step. LandError where the system cannot do that."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for path in (os.path.join(where, name) for where, _, names in os.walk(scratch) for name in names):
        if not os.path.islink(path):  # what a link leads to was there before
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    if not hasattr(libc, "renameat2"):
        raise LandError(
            "The C library here has no renameat2 (glibc 2.28), so the folders cannot be swapped in one step."
        )
    if libc.renameat2(AT_FDCWD, os.fsencode(scratch), AT_FDCWD, os.fsencode(root), EXCHANGE):
        reason = os.strerror(ctypes.get_errno())
        raise LandError(f"Folders {scratch} and {root} cannot be swapped in one step ({reason}).")


def _difference(present: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> dict[str, bytes | None]:
    gone: dict[str, bytes | None] = dict.fromkeys(name for name in present if name not in wanted)
    return gone | {name: data for name, data in wanted.items() if present.get(name) != data}


def _series(data: bytes, renamed: Mapping[str, str]) -> bytes:
    lines = data.decode().split("\n")
    for at, line in enumerate(lines):
        entry = line.split("#")[0].strip()
        if entry in renamed:
            lines[at] = line.replace(entry, renamed[entry], 1)
    return "\n".join(lines).encode()


def _renamed(root: str, release: Release) -> Release:
    """An old release's entry under the names its patches have now; what patching makes of its files stays."""
    names = patch_names(root, release.version)
    old = release.patches or names
    if len(old) != len(names):
        raise LockError(
            f"Release {release.version} takes {len(old)} patches by the lock and {len(names)} by the series: run"
            " tools/check_patches.py."
        )
    return Release(release.version, patch_set_digest(root, names), release.wheels, release.files, names)


def local_file(name: str) -> bool:
    """Is it one of the user's own?"""
    return name.startswith(f"{LOCAL}/")
