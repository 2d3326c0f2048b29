"""The files that are patched, and where their patched copies are kept: known by hash, by the patch set's own functions."""

from __future__ import annotations

import hashlib
import os
import stat as stat_bits
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sglang_ext.doctor.distributions import distributions, named, packages_of
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import FAIL, NOTE, OK, WARN, Result, from_sentence
from sglang_ext.patchset import overlay
from sglang_ext.patchset.lock import load_lock

if TYPE_CHECKING:
    from sglang_ext.patchset.lock import Lock, Release

ROOM = 16 << 20  # bytes; an overlay with its bytecode is some 2 MiB


def lock() -> Lock:
    """What we can patch. Raises LockError."""
    return load_lock(os.path.join(overlay.patches_folder(), "upstream.toml"))


class Files(NamedTuple):
    """The target files of the sglang that would be imported."""

    kind: str  # pristine or patched
    release: Release
    hashes: dict[str, str]


def files(here: Here) -> Files | None:
    """None where no sglang would be imported. Raises OverlayError where they are neither."""
    copies = packages_of(here.child_path, "sglang")
    return Files(*overlay.identify(os.path.dirname(copies[0]), lock())) if copies else None


def check_files(here: Here) -> Iterator[Result]:
    """Pristine, patched, half patched, changed by hand, or another release."""
    try:
        found = files(here)
    except overlay.OverlayError as error:
        yield from_sentence(FAIL, str(error))
        return
    if found is None:
        yield Result(NOTE, "there is no sglang whose files could be compared")
        return
    what = "as released, to be patched on import" if found.kind == "pristine" else "patched already (a baked build)"
    seen = tuple(f"{target} {sha256[:12]}" for target, sha256 in found.hashes.items())
    yield Result(OK, f"{len(found.hashes)} target files are those of sglang {found.release.version}, {what}", seen=seen)
    stated = [one.version for one in named(distributions(here.child_path), "sglang")][:1]
    if stated and stated[0].partition("+")[0] != found.release.version:
        fix = f"run: pip install --force-reinstall --no-deps sglang=={found.release.version}"
        yield Result(WARN, f"the metadata says sglang {stated[0]}, the files are those of {found.release.version}", fix)


def key(found: Files) -> str:
    """The name of the overlay folder for these files: what went into it, hashed. As `overlay.prepare` has it, by a test."""
    from sglang_ext.patchset.series import patch_set_digest

    patched = {target: entry.patched for target, entry in found.release.files.items()}
    digest = patch_set_digest(overlay.patches_folder(), found.release.patches)
    parts = (digest, sorted(found.hashes.items()), sorted(patched.items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def overlays(base: str) -> list[str]:
    """The folders in an overlay cache, also those of a build that was cut off (`*.tmp`)."""
    top = os.path.join(base, "overlay")
    try:
        return [os.path.join(top, name) for name in sorted(os.listdir(top))]
    except OSError:
        return []


def existing(path: str) -> str:
    """``path``, or the nearest folder above it that is there."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def check_overlay(here: Here) -> Iterator[Result]:
    """The cache: is this release's copy there and to be believed, else can it be written?"""
    try:
        base = overlay.cache_base()
        found = files(here)
    except overlay.OverlayError as error:
        if error.code == "overlay_unwritable":
            yield from_sentence(FAIL, str(error))
        else:
            yield Result(NOTE, "no patched copies can be made of the files that are installed; see the check on them")
        return
    if found is None:
        yield Result(NOTE, "there is no sglang that copies could be made of")
        return
    if found.kind == "patched":
        yield Result(OK, "no patched copies are needed: the files themselves are patched")
        return
    folder = os.path.join(base, "overlay", key(found))
    if os.path.lexists(folder):
        yield trusted(folder, found)
        return
    top = existing(folder)
    if not os.access(top, os.W_OK | os.X_OK):
        message = f"the patched copies cannot be written to {os.path.join(base, 'overlay')}: {top} is not writable by this user"
        yield Result(FAIL, message, "set SGLANG_EXT_CACHE_DIR to a writable folder")
        return
    info = os.statvfs(top)
    free = info.f_bavail * info.f_frsize
    if free < ROOM:
        message = f"{top} has {free >> 20} MiB free, expected {ROOM >> 20} for the patched copies"
        yield Result(FAIL, message, "free some, or set SGLANG_EXT_CACHE_DIR to another file system")
    else:
        yield Result(
            OK, f"the patched copies are not there yet; the first import writes them to {os.path.join(base, 'overlay')}"
        )


def trusted(folder: str, found: Files) -> Result:
    """As every worker will see it: ours or root's, closed to writers, and byte for byte what was written."""
    info = os.lstat(folder)
    if not stat_bits.S_ISDIR(info.st_mode):
        fix = "remove it, or set SGLANG_EXT_CACHE_DIR"
        return Result(FAIL, f"overlay {folder} is a link or file, expected a folder of our own", fix)
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        mode = f"{stat_bits.S_IMODE(info.st_mode):04o}"
        message = (
            f"overlay {folder} belongs to uid {info.st_uid} with mode {mode}, expected uid {os.geteuid()} or root and "
            "nobody else able to write"
        )
        return Result(FAIL, message, "remove it, or set SGLANG_EXT_CACHE_DIR to a folder of your own")
    for target, entry in found.release.files.items():
        path = os.path.join(folder, target)
        try:
            sha256 = overlay.sha256_file(path)
        except OSError as error:
            sha256 = error.strerror or "unreadable"
        if sha256 != entry.patched:
            message = (
                f"overlay file {path} is not what was written: sha256 {sha256[:12]}, expected {entry.patched[:12]}"
            )
            return Result(FAIL, message, f"remove {folder}")
    return Result(OK, f"the patched copies in {folder} are ours and as written")


def check_run_place(here: Here) -> Iterator[Result]:
    """Where run directories go: private and ours, or still to be made."""
    from sglang_ext.run.directory import RunError, check_trusted, default_base

    base = default_base()
    if os.path.lexists(base):
        try:
            check_trusted(base, made_by_us=True)
        except RunError as error:
            yield from_sentence(FAIL, str(error))
            return
    top = existing(base)
    if not os.access(top, os.W_OK | os.X_OK):
        yield Result(
            FAIL, f"run directories cannot be made in {base}: {top} is not writable", "name a place with --run-dir"
        )
    else:
        yield Result(OK, f"run directories go to {base}")
