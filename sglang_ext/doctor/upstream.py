"""The files that are patched, how, and where their copies are kept: by the functions that the launcher and the hook use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sglang_ext.doctor.distributions import distributions, named, packages_of
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import FAIL, NOTE, OK, WARN, Result, from_sentence, listed
from sglang_ext.patchset import copies, former, overlay
from sglang_ext.patchset.installed import stated_version
from sglang_ext.patchset.local import local_files, local_folder, short
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.plan import BAKED, IN_PLACE, OVERLAY

if TYPE_CHECKING:
    from sglang_ext.patchset.lock import Lock
    from sglang_ext.patchset.plan import Plan

ROOM = 16 << 20  # bytes; an overlay with its bytecode is some 2 MiB
LOCAL = "local_patch"  # the codes of what is wrong with a local patch begin so
WHAT = {
    OVERLAY: "as released, to be patched on import",
    BAKED: "patched already (a baked build)",
    IN_PLACE: "patched in place by `patches apply`",
}


def lock() -> Lock:
    """What we can patch. Raises LockError."""
    return load_lock(os.path.join(overlay.patches_folder(), "upstream.toml"))


def root_of(here: Here) -> str | None:
    """The folder whose sglang a server would import."""
    copies_there = packages_of(here.child_path, "sglang")
    return os.path.dirname(copies_there[0]) if copies_there else None


def planned(here: Here) -> Plan | None:
    """What the launcher and the hook will make of that sglang, by their own function; None where there is none.

    Raises OverlayError and PatchError as they would.
    """
    root = root_of(here)
    return None if root is None else overlay.plan(root, overlay.patches_folder())


def needs_hook(here: Here) -> bool:
    """Must the import hook be armed? Not where the files themselves are patched."""
    try:
        found = planned(here)
    except (overlay.OverlayError, PatchError):
        return True
    return found is None or found.mode not in former.KEPT


def check_files(here: Here) -> Iterator[Result]:
    """Pristine, patched, half patched, changed by hand, or another release."""
    root = root_of(here)
    if root is None:
        yield Result(NOTE, "there is no sglang whose files could be compared")
        return
    try:
        found = overlay.plan(root, overlay.patches_folder())
        release, hashes, what = found.release, found.hashes, WHAT[found.mode]
    except overlay.OverlayError as error:
        if not error.code.startswith(LOCAL):
            yield from_sentence(FAIL, str(error))
            return
        kind, release, hashes = overlay.identify(root, lock())  # a local patch is at fault, and has a check of its own
        what = WHAT[OVERLAY if kind == "pristine" else BAKED]
    seen = tuple(f"{target} {sha256[:12]}" for target, sha256 in hashes.items())
    yield Result(OK, f"{len(hashes)} target files are those of sglang {release.version}, {what}", seen=seen)
    stated = [one.version for one in named(distributions(here.child_path), "sglang")][:1]
    if stated and stated[0].partition("+")[0] != release.version:
        fix = f"run: pip install --force-reinstall --no-deps sglang=={release.version}"
        yield Result(WARN, f"the metadata says sglang {stated[0]}, the files are those of {release.version}", fix)


def check_mode(here: Here) -> Iterator[Result]:
    """The way the patch set gets in: the one that was demanded, and the one of the last launch?"""
    try:
        found = planned(here)
    except overlay.OverlayError:
        found = None
    if found is None:
        yield Result(NOTE, "no patch set would get in; see the check on the files")
        return
    if other := former.differs(found.mode):
        yield from_sentence(FAIL, other)
        return
    try:
        told = former.replaced(overlay.cache_base(), found.root, found.mode, stated_version(found.root))
    except overlay.OverlayError:
        told = None
    yield (
        from_sentence(WARN, told) if told else Result(OK, f"patch set {found.digest[:12]} gets in by mode {found.mode}")
    )


def check_local(here: Here) -> Iterator[Result]:
    """The user's own patches: in, left out, or at odds with the release."""
    folder = local_folder(overlay.patches_folder())
    try:
        there = [short(name) for name, _ in local_files(folder)]
        found = planned(here)
    except (overlay.OverlayError, PatchError) as error:
        if getattr(error, "code", "").startswith(LOCAL):
            yield from_sentence(FAIL, str(error))
        else:
            yield Result(NOTE, "local patches were not tried; see the check on the files")
        return
    names = found.names if found else ()
    out = tuple(f"{name} (left out)" for name in there if name not in names)
    if not there:
        yield Result(OK, "there are no local patches")
    else:
        what = f"local patches that are in: {listed(names)}" if names else "no local patch is in"
        yield Result(OK, f"{what}, of the {len(there)} in {folder}", seen=(*names, *out))


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
        found = planned(here)
    except overlay.OverlayError as error:
        if error.code == "overlay_unwritable":
            yield from_sentence(FAIL, str(error))
        else:
            yield Result(NOTE, "no patched copies can be made of the files that are installed; see the check on them")
        return
    if found is None:
        yield Result(NOTE, "there is no sglang that copies could be made of")
        return
    if found.mode != OVERLAY:
        yield Result(OK, "no patched copies are needed: the files themselves are patched")
        return
    folder = overlay.folder_of(base, found.key)
    if os.path.lexists(folder):
        try:
            copies.check(folder, found.patched)
        except overlay.OverlayError as error:
            yield from_sentence(FAIL, str(error))
        else:
            yield Result(OK, f"the patched copies in {folder} are ours and as written")
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
