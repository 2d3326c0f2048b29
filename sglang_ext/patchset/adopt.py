"""Turn a hand-edited installed tree into local patches: that tree minus its release's wheel, a patch for each file.

A patch is made on top of ours and of the local ones before it, as it will be applied. Where the tree holds those already
(patched in place, or by hand) only what is more becomes a patch. All of it is known to work before anything is written;
the patches are written before the tree is made stock, so an interrupted run is finished by running it again.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.diff import apply, make, state
from sglang_ext.patchset.file_check import sha256
from sglang_ext.patchset.inplace import Stock, changes_to, known_release, patched
from sglang_ext.patchset.journal import Lock as TreeLock
from sglang_ext.patchset.journal import commit, recover
from sglang_ext.patchset.local import FOLDER, joined, local_files, local_folder
from sglang_ext.patchset.local_store import keep, names_for, series_with
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.merge import merge
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import LOCAL, PatchSet, load_patch_set
from sglang_ext.patchset.tree import PACKAGE, Tree, TreeError
from sglang_ext.patchset.wheels import checked, fetched, wheel_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sglang_ext.patchset.lock import Release
    from sglang_ext.patchset.model import Patch

HEADER = """\
Subject: {subject}
Reason: local
Why-Not-A-Plugin: adopted from a hand-edited sglang {version}; nobody has looked yet
Forwarded: no: a local edit
Retire-When: whoever made it drops it, or upstream has it
Probe: none

"""


class Asked:
    """What adopt is asked to do."""

    def __init__(
        self,
        files: Sequence[str] = (),
        name: str | None = None,
        subject: str | None = None,
        wheel: str | None = None,
        *,
        leave_added: bool = False,
        dry_run: bool = False,
    ) -> None:
        self.files, self.name, self.subject, self.wheel = tuple(files), name, subject, wheel
        self.leave_added, self.dry_run = leave_added, dry_run


class Adopted:
    """What became of it: text by patch name, the files made stock, and what was left in the tree."""

    def __init__(
        self,
        tree: Tree,
        folder: str,
        patches: Mapping[str, Patch],
        stock: Sequence[str],
        left: Sequence[str],
        *,
        put: bool,
    ) -> None:
        self.tree, self.folder, self.patches = tree, folder, dict(patches)
        self.stock, self.left, self.was_in_place = tuple(stock), tuple(left), put


def adopt(root: str, patches: str, asked: Asked, say: Callable[[str], object]) -> Adopted:
    """Make local patches of the edits in ``root`` and the tree stock. Raises PatchError; then nothing was changed."""
    with TreeLock(Tree(root)) as lock:
        if not asked.dry_run:
            recover(lock.tree)
        tree = Tree(root)  # as it is now that nobody else changes it
        release = known_release(tree, load_lock(os.path.join(patches, "upstream.toml")))
        ours = load_patch_set(patches, release.patches)
        stock = Stock(tree, release, ours)
        if stock.baked:
            raise TreeError(
                "tree_baked",
                f"the sglang {tree.version} in {tree.root} was installed from a patched wheel; make the edits in a stock "
                f"{tree.release} (pip install --force-reinstall --no-deps sglang=={tree.release}) and adopt them there",
            )
        folder = local_folder(patches)
        if folder is None:
            raise TreeError(
                "local_patch_misfit", f"there is no home folder for local patches; set {FOLDER} to a folder"
            )
        changed, missing, added = tree.edited()
        chosen, left = _choose(tree, stock, asked, changed, missing, added)
        if not chosen:  # a tree that is patched in place stays so: nothing has to give way
            return Adopted(tree, folder, {}, (), left, put=False)
        before = joined(ours, local_files(folder))
        stock.given = _pristine(tree, stock, release, changed, asked, say)
        made = _make(tree, stock, before, folder, chosen, asked)
        # All of them together, as they will be applied: raises where one does not fit, or its result does not compile.
        patched(stock.read, release, ours, PatchSet([*before.patches, *made.values()], ""))
        series = series_with(folder, tuple(made)) if made else b""
        changes: dict[str, bytes | None] = {name: stock.given[name] for name in chosen}
        if stock.applied:
            changes = changes_to(stock, {}, PatchSet((), ""), ())
        if not asked.dry_run:
            commit(tree, changes, lambda: keep(folder, made, series))
        touched = sorted(name for name in changes if name.startswith(f"{PACKAGE}/"))
        return Adopted(Tree(root), folder, made, touched, left, put=stock.applied is not None)


def _choose(
    tree: Tree, stock: Stock, asked: Asked, changed: list[str], missing: list[str], added: list[str]
) -> tuple[list[str], list[str]]:
    """The edited files to adopt, and those that stay as they are."""
    if asked.files:
        if stock.applied:
            raise TreeError(
                "adopt_refused",
                f"{tree.root} is patched in place, so its edits are adopted all together; name no files",
            )
        names = [_relative(tree, file) for file in asked.files]
        for name in names:
            if name not in changed:
                listed = ", ".join(changed) or "none is"
                raise TreeError("adopt_refused", f"{name} is not an edited file of {tree.root}; edited: {listed}")
        return names, [name for name in (*changed, *missing, *added) if name not in names]
    again = f"run: pip install --force-reinstall --no-deps {PACKAGE}=={tree.version}"
    if missing:
        raise TreeError(
            "adopt_refused",
            f"{tree.path(missing[0])} was deleted, and a patch here only changes lines; let the file raise instead, name the "
            f"files to adopt, or restore it ({again})",
        )
    modules = [name for name in added if name.endswith(".py")]
    if modules and not asked.leave_added:
        raise TreeError(
            "adopt_refused",
            f"{tree.path(modules[0])} is not upstream's, and a patch here only changes lines of upstream's files; move it out of "
            "sglang and import it from there, or leave it where it is with --leave-added",
        )
    return changed, added


def _relative(tree: Tree, file: str) -> str:
    """The name of a file in the tree: as the tree has it, or by a path from here."""
    if file.startswith(f"{PACKAGE}/") and tree.read(file) is not None:
        return file
    return os.path.relpath(os.path.realpath(file), os.path.realpath(tree.root)).replace(os.sep, "/")


def _pristine(
    tree: Tree, stock: Stock, release: Release, names: Sequence[str], asked: Asked, say: Callable[[str], object]
) -> dict[str, bytes]:
    """The released bytes of the chosen files, from the locked wheel; held against RECORD as well."""
    from zipfile import BadZipFile, ZipFile

    if not names:
        return {}
    if asked.wheel:
        path = checked(asked.wheel, release.wheels)
    else:
        (path,) = fetched(release, [wheel_name(tree, release)], say)
    found: dict[str, bytes] = {}
    try:
        with ZipFile(path) as wheel:
            for name in names:
                found[name] = wheel.read(name)
    except (OSError, KeyError, BadZipFile) as error:
        raise TreeError(
            "wheel_wrong", f"{path} cannot be read as the wheel of {tree.root} ({error}); download it again"
        ) from None
    for name, data in found.items():
        if sha256(data) != stock.sha256(name):
            raise TreeError(
                "wheel_wrong",
                f"{name} in {os.path.basename(path)} has sha256 {sha256(data)[:12]}, RECORD in {tree.root} says "
                f"{(stock.sha256(name) or 'nothing')[:12]}: the tree is from another wheel; name that one with --from",
            )
    return found


def _make(
    tree: Tree, stock: Stock, before: PatchSet, folder: str, chosen: Sequence[str], asked: Asked
) -> dict[str, Patch]:
    """A patch for each file that holds more than the patches before it make."""
    more: dict[str, tuple[bytes, bytes]] = {}
    for name in chosen:
        pristine, edited = stock.read(name), tree.need(name)
        _only_text(tree, name, edited)
        base = pristine
        for patch in before.of(name):
            base = apply(patch, base)
        edited = _on_top(tree, before.of(name), name, pristine, base, edited)
        if base != edited:
            more[name] = base, edited
    files = names_for(folder, list(more), asked.name) if more else {}
    made: dict[str, Patch] = {}
    for name, (base, edited) in more.items():
        file = files[name]
        what = asked.subject or (f"{asked.name}, " if asked.name else "") + f"local edit of {name}"
        header = HEADER.format(subject=what, version=tree.version)
        patch = make(name, base, edited, f"{LOCAL}/{file}", header)
        if apply(patch, base) != edited:
            raise TreeError("adopt_refused", f"the edits in {name} make no patch that gives them back; split them")
        made[file] = patch
    return made


def _on_top(tree: Tree, patches: Sequence[Patch], name: str, pristine: bytes, base: bytes, edited: bytes) -> bytes:
    """The edited file with the patches that come before it as well, those that it lacks."""
    result = edited
    try:
        for patch in patches:
            if state(patch, result) != "applied":
                result = apply(patch, result)
    except PatchError as error:  # an edit beside our lines: they are no context any more, but need not be in the way
        merged = merge(pristine, base, edited)
        if merged is None:
            raise TreeError(
                "adopt_refused", f"the edits in {tree.path(name)} lie on lines of a patch: {error}"
            ) from None
        return merged
    return result


def _only_text(tree: Tree, name: str, data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        data = b"\0"
    fault = (
        "is no UTF-8 text" if b"\0" in data
        else "has CRLF line endings, but upstream's has LF (dos2unix converts it)" if b"\r\n" in data
        else "starts with a byte order mark, which upstream's does not" if data.startswith(b"\xef\xbb\xbf")
        else ""
    )  # fmt: skip
    if fault:
        raise TreeError(
            "adopt_refused", f"{tree.path(name)} {fault}: a patch here is lines of text; save it so, or restore it"
        )
