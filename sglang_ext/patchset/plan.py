"""What an import of upstream should find, as far as files say it: stock with copies of ours, or a tree that is patched already.

`plan` only looks: the launcher and the import hook go on to make the copies (overlay.py), doctor tells what it saw.
"""

from __future__ import annotations

import os

from sglang_ext.patchset import applied as records
from sglang_ext.patchset.installed import (
    OverlayError,
    found_hashes,
    identify,
    installed_version,
    sha256_of,
    stated_version,
)
from sglang_ext.patchset.local import (
    apply_local,
    check_compiles,
    digest_with,
    left_out,
    local_files,
    local_folder,
    nested,
    not_importable,
    parsed,
    short,
    still_there,
)
from sglang_ext.patchset.lock import Lock, Release, load_lock
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import load_patch_set, patch_names, patch_set_digest
from sglang_ext.patchset.tree import recorded
from sglang_ext.quick import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OVERLAY, BAKED, IN_PLACE = "overlay", "baked", "in_place"


class Plan:
    """The answer. ``mode``: overlay (copies are needed), baked (installed from a wheel that was patched already) or in_place
    (`patches apply` was here). ``hashes``: the installed target files; ``patched``: the copies, by target; ``local``: the
    user's patches in it.
    """

    __slots__ = ("digest", "hashes", "local", "mode", "patched", "patches", "release", "results", "root")

    def __init__(
        self,
        mode: str,
        root: str,
        patches: str,
        release: Release,
        digest: str,
        hashes: dict[str, str],
        patched: dict[str, str],
        local: Sequence[tuple[str, bytes]] = (),
        results: Mapping[str, bytes] | None = None,
    ) -> None:
        self.mode, self.root, self.patches, self.release, self.digest = mode, root, patches, release, digest
        self.hashes, self.patched, self.local, self.results = hashes, patched, tuple(local), results

    @property
    def names(self) -> tuple[str, ...]:
        """The local patches that are in, as --without calls them."""
        return tuple(short(name) for name, _ in self.local)

    @property
    def pristine(self) -> bool:
        """Are the installed files as released?"""
        return all(self.hashes.get(target) == entry.pristine for target, entry in self.release.files.items())

    @property
    def key(self) -> str:
        """The name of the folder of copies: everything that went into them, hashed."""
        went_in = (self.digest, sorted(self.hashes.items()), sorted(self.patched.items()))
        return sha256(repr(went_in).encode()).hexdigest()[:24]

    def reads(self) -> Iterator[str]:
        """The files and folders that a plan for copies of pristine files rests on, beside the copies."""
        yield os.path.join(self.patches, "upstream.toml")
        if not self.release.patches:
            yield os.path.join(self.patches, "series")
        for name in self.release.patches or patch_names(self.patches):
            yield os.path.join(self.patches, *name.split("/"))
        yield self.root  # the names of its metadata folders
        yield from records.folders(self.root)  # the journal of an apply or revert, and what it left
        for target in self.patched:
            yield os.path.join(self.root, target)
        if self.local:
            yield os.path.join(self.root, f"sglang-{stated_version(self.root)}.dist-info", "RECORD")
        folder = local_folder(self.patches)
        if folder is None:
            return
        yield folder
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            yield path
            if os.path.isdir(path):  # a group, also one that is a link
                yield from (os.path.join(path, one) for one in sorted(os.listdir(path)))
                yield from nested(path)

    def bytes(self) -> Mapping[str, bytes]:
        """What the copies hold; made when it is asked for, and by then it must compile."""
        if self.results is None:
            return _results(self.root, self.patches, self.release, (), already=False)
        try:
            check_compiles(self.results, parsed(self.local))
        except PatchError as error:
            raise OverlayError(getattr(error, "code", "local_patch_misfit"), str(error)) from None
        return self.results


def plan(root: str, patches: str) -> Plan:
    """What an import of the ``sglang`` folder inside ``root`` should find, by the patch set in ``patches``.

    Raises OverlayError, and PatchError where our own files are broken.
    """
    lock = load_lock(os.path.join(patches, "upstream.toml"))
    if records.cut_off(root):  # whatever the locked files are: a local patch may be in or out of another one
        raise OverlayError(
            "tree_interrupted",
            f"an apply or revert of the sglang in {root} ended halfway; run it again: sglang-ext patches apply, or revert",
        )
    try:
        kind, release, hashes = identify(root, lock)
    except OverlayError:
        found = _in_place(root, patches, lock)
        if found is None:
            raise
        return found
    found = _in_place(root, patches, lock)  # also where ours are out: what a local patch made may still be in
    if found is not None:
        return found
    digest = patch_set_digest(patches, release.patches)
    local = _local(patches, left_out())
    if not local:
        patched = {target: entry.patched for target, entry in release.files.items()}
        mode = BAKED if kind == "patched" else OVERLAY
        return Plan(mode, root, patches, release, digest, hashes, patched if mode == OVERLAY else {})
    # The lock does not know what local patches make: it is made anew, to be held against the copies.
    results = _results(root, patches, release, local, already=kind == "patched")
    patched = {target: sha256_of(data) for target, data in results.items()}
    return Plan(OVERLAY, root, patches, release, digest_with(digest, local), hashes, patched, local, results)


def _local(patches: str, without: Sequence[str], before: Sequence[str] = ()) -> list[tuple[str, bytes]]:
    """The local patches that are in. A name in ``before``, left out when the tree was patched, may be gone by now."""
    folder = local_folder(patches)
    try:
        return local_files(folder, [*without, *(still_there(folder, before) if before else ())])
    except PatchError as error:
        raise OverlayError(getattr(error, "code", "local_patch_misfit"), str(error)) from None


def _in_place(root: str, patches: str, lock: Lock) -> Plan | None:
    """What `patches apply` made of the tree, if it did: it must still be that, and what it would make of it now."""
    try:
        applied = records.of_root(root)
    except PatchError as error:  # what else was patched is not known: no digest can be said of it
        raise OverlayError("upstream_file_changed", str(error)) from None
    if applied is None:
        return None
    release = lock.release(applied.release)
    if release is None:
        raise OverlayError(
            "unsupported_upstream",
            f"the sglang in {root} was patched in place as sglang {applied.release}, and this sglang-ext patches "
            f'{lock.described()}; run: pip install "sglang=={lock.supported()[-1]}"',
        )
    found = found_hashes(root, applied.files)
    for name, entry in applied.files.items():
        if found[name] not in (entry.pristine, entry.patched):
            raise OverlayError(
                "upstream_file_changed",
                f"{os.path.join(root, name)} is not what patches apply made it: sha256 {found[name][:12]}, expected "
                f"{entry.patched[:12]}; keep the edit as a local patch: sglang-ext patches adopt",
            )
    out = [name for name, entry in applied.files.items() if found[name] == entry.pristine]
    if out:
        raise OverlayError(
            "upstream_half_patched",
            f"the sglang in {root} was patched in place, but {', '.join(out)} is as released now: expected all patched; "
            "run: sglang-ext patches apply, or revert",
        )
    local = _local(patches, left_out(), applied.without)
    digest = digest_with(patch_set_digest(patches, release.patches), local)
    if digest != applied.digest:
        raise OverlayError(
            "in_place_stale",
            f"the sglang in {root} was patched in place with patch set {applied.digest[:12]}, it is {digest[:12]} now; "
            "run: sglang-ext patches apply",
        )
    return Plan(IN_PLACE, root, patches, release, digest, found, {}, local)


def _results(
    root: str, patches: str, release: Release, local: Sequence[tuple[str, bytes]], *, already: bool
) -> dict[str, bytes]:
    """The bytes of every copy: the locked files as the lock has them, under the local patches. ``already``: of a tree
    that has ours, only what the local patches change. A file that the lock does not know must be as RECORD has it."""

    def read(target: str) -> bytes:
        with open(os.path.join(root, target), "rb") as file:
            return file.read()

    def as_installed(target: str) -> bytes:
        version = installed_version(root)
        wanted = recorded(root, stated_version(root), target)
        if wanted is None:
            raise OverlayError(
                "local_patch_misfit",
                f"a local patch changes {target}, which RECORD of the sglang {version} in {root} does not list; carry the patch "
                "over, or leave it out with --without",
            )
        try:
            data = read(target)
        except OSError as error:
            raise OverlayError(
                "upstream_file_changed",
                f"{os.path.join(root, target)} cannot be read ({error.strerror}); install sglang again",
            ) from None
        found = sha256_of(data)
        if found != wanted:
            raise OverlayError(
                "upstream_file_changed",
                f"{os.path.join(root, target)} is not sglang {version} as released: sha256 {found[:12]}, expected {wanted[:12]}; "
                "keep the edit as a local patch: sglang-ext patches adopt",
            )
        return data

    results = {} if already else load_patch_set(patches, release.patches).apply_all(read)
    for target, entry in () if already else release.files.items():
        found = sha256_of(results.get(target, b""))
        if found != entry.patched:
            raise OverlayError(
                "patch_set_broken",
                f"patching {target} gives sha256 {found[:12]}, the lock expects {entry.patched[:12]}; "
                "run: pip install --force-reinstall --no-deps sglang-ext",
            )
    try:
        mine = parsed(local)
        hopeless = not_importable(mine)
        if hopeless:
            raise OverlayError("local_patch_in_place_only", hopeless)
        return apply_local(results, mine, as_installed)
    except PatchError as error:
        raise OverlayError(getattr(error, "code", "local_patch_misfit"), str(error)) from None
