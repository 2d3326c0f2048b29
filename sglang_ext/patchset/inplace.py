"""Patch an installed tree in place, and take that out again: for images that cannot use the import hook.

Whatever the tree holds now, it is set to one state: stock with a patch set, or stock. Where each file's stock bytes
come from is `Stock`; how the change is made safe is journal.py.
"""

from __future__ import annotations

import os

from sglang_ext.patchset import applied as records
from sglang_ext.patchset.applied import Applied, AppliedFile
from sglang_ext.patchset.diff import apply, reverse
from sglang_ext.patchset.file_check import sha256
from sglang_ext.patchset.journal import Lock as TreeLock
from sglang_ext.patchset.journal import commit, interrupted, recover
from sglang_ext.patchset.local import apply_local, check_compiles, joined, left_out, local_files, local_folder
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import PatchSet, load_patch_set
from sglang_ext.patchset.tree import Tree, TreeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sglang_ext.patchset.lock import Lock, Release


class Outcome:
    """What was done: ``deed`` applied, reverted, already or nothing; the files it changed; was one finished first."""

    def __init__(self, tree: Tree, deed: str, digest: str | None, files: Sequence[str], recovered: bool) -> None:
        self.tree, self.deed, self.digest, self.files, self.recovered = tree, deed, digest, tuple(files), recovered


class Stock:
    """The bytes of a tree's files as released, wherever they are now: in place, kept by us, or under our own patches."""

    def __init__(self, tree: Tree, release: Release, ours: PatchSet) -> None:
        self.tree, self.release, self.ours = tree, release, ours
        data = tree.read(records.place(tree.info))
        self.applied = None if data is None else records.parse(data, tree.path(records.place(tree.info)))
        self.files: Mapping[str, AppliedFile] = self.applied.files if self.applied else {}
        self.given: dict[str, bytes] = {}  # stock bytes that somebody else found, of files that hold edits

    @property
    def baked(self) -> bool:
        """Was it installed from a wheel that was patched already?"""
        said = {name: self.tree.record.sha256(name) for name in self.release.files}
        return not self.applied and all(said[name] == entry.patched for name, entry in self.release.files.items())

    def sha256(self, name: str) -> str | None:
        """What the file should be, stock."""
        if name in self.files:
            return self.files[name].pristine
        if name in self.release.files:
            return self.release.files[name].pristine
        return self.tree.record.sha256(name)

    def row(self, name: str) -> str:
        """Its row in RECORD while it is stock."""
        return self.files[name].row if name in self.files else self.tree.record.row(name)

    def read(self, name: str) -> bytes:
        """Its stock bytes. Raises TreeError where the file was edited, or is none of the release's."""
        if name in self.given:
            return self.given[name]
        wanted, data = self.sha256(name), self.tree.read(name)
        if wanted is None:
            raise TreeError(
                "local_patch_misfit",
                f"sglang {self.tree.version} has no file {name}, which a patch changes; carry the patch over, or leave it out",
            )
        if data is not None and sha256(data) == wanted:
            return data
        if data is not None:
            known = self._under(name, data)
            if known is not None and sha256(known) == wanted:
                return known
        found = "no such file" if data is None else f"sha256 {sha256(data)[:12]}"
        raise TreeError(
            "upstream_file_changed",
            f"{self.tree.path(name)} is not sglang {self.tree.version} as released ({found}, expected {wanted[:12]}); keep the "
            "edit as a local patch: sglang-ext patches adopt, or install again: pip install --force-reinstall "
            f"--no-deps sglang=={self.tree.version}",
        )

    def _under(self, name: str, data: bytes) -> bytes | None:
        """The stock bytes of a file that holds what we put there."""
        if name in self.files:
            kept = self.tree.read(records.backup(self.tree.info, self.files[name].pristine))
            return kept if sha256(data) == self.files[name].patched else None
        if name not in self.release.files or sha256(data) != self.release.files[name].patched:
            return None
        for patch in reversed(self.ours.of(name)):
            data = apply(reverse(patch), data)
        return data


def known_release(tree: Tree, lock: Lock) -> Release:
    """The locked release of a tree. Raises TreeError."""
    release = lock.release(tree.release)
    if release is None:
        raise TreeError(
            "unsupported_upstream",
            f"sglang {tree.version} in {tree.root} is not supported by this sglang-ext, which patches {lock.described()}; "
            f'run: pip install "sglang=={lock.supported()[-1]}"',
        )
    return release


def patched(stock: Callable[[str], bytes], release: Release, ours: PatchSet, local: PatchSet) -> dict[str, bytes]:
    """The bytes of every file under ``local``, which is ``ours`` and the local patches after it."""
    results = ours.apply_all(stock)
    for name, entry in release.files.items():
        if sha256(results.get(name, b"")) != entry.patched:
            raise TreeError(
                "patch_set_broken",
                f"patching {name} gives sha256 {sha256(results.get(name, b''))[:12]}, the lock expects {entry.patched[:12]}; "
                "run: pip install --force-reinstall --no-deps sglang-ext",
            )
    mine = local.patches[len(ours.patches) :]
    results = apply_local(results, mine, stock)
    check_compiles(results, mine)
    return results


def put_in(root: str, patches: str, without: Sequence[str] = ()) -> Outcome:
    """Apply the patch set in ``patches`` and the local patches to the tree in ``root``. Raises PatchError."""
    return _set(root, patches, [*left_out(), *without])


def take_out(root: str, patches: str) -> Outcome:
    """Make the tree stock again. Raises PatchError."""
    return _set(root, patches, None)


def _set(root: str, patches: str, without: Sequence[str] | None) -> Outcome:
    tree = Tree(root)
    with TreeLock(tree):
        recovered = recover(tree)
        tree = Tree(root)
        release = known_release(tree, load_lock(os.path.join(patches, "upstream.toml")))
        ours = load_patch_set(patches, release.patches)
        stock = Stock(tree, release, ours)
        both = joined(ours, local_files(local_folder(patches), without)) if without is not None else PatchSet((), "")
        if stock.baked:
            _check_baked(tree, release)
            if both.names == ours.names:
                return Outcome(tree, "already", both.digest, (), recovered)
            raise TreeError(
                "tree_baked",
                f"the sglang {tree.version} in {tree.root} was installed from a patched wheel, which is not changed in place; "
                f"run: pip install --force-reinstall --no-deps sglang=={tree.release}",
            )
        results = patched(stock.read, release, ours, both) if without is not None else {}
        changes = changes_to(stock, results, both, tuple(without or ()))
        if changes:
            commit(tree, changes)
        touched = [name for name in changes if name.startswith("sglang/")]
        deed = ("applied" if changes else "already") if without is not None else "reverted" if changes else "nothing"
        return Outcome(Tree(root), deed, both.digest or None, touched, recovered)


def _check_baked(tree: Tree, release: Release) -> None:
    """The files of a patched wheel are as they were built, or nothing may be said of them. Raises TreeError."""
    for name, entry in release.files.items():
        found = tree.sha256(name)
        if found != entry.patched:
            raise TreeError(
                "upstream_file_changed",
                f"{tree.path(name)} is not what the patched wheel put there: sha256 {str(found)[:12]}, expected "
                f"{entry.patched[:12]}; make the edit in a stock {tree.release} (pip install --force-reinstall --no-deps "
                f"sglang=={tree.release}) and adopt it there, or install the patched wheel again",
            )


def changes_to(
    stock: Stock, results: Mapping[str, bytes], both: PatchSet, without: tuple[str, ...]
) -> dict[str, bytes | None]:
    """What must be written so that the tree holds ``results`` and is stock everywhere else; nothing where it does."""
    tree = stock.tree
    involved = sorted({*results, *stock.files, *stock.release.files, *stock.given})
    pristine = {name: stock.read(name) for name in involved}
    changes: dict[str, bytes | None] = {}
    rows: dict[str, str] = {}
    files: dict[str, AppliedFile] = {}
    needed: set[str] = set()
    for name in involved:
        new = results.get(name, pristine[name])
        if tree.sha256(name) != sha256(new):
            changes[name] = new
        rows[name] = stock.row(name)
        kept = records.backup(tree.info, sha256(pristine[name]))
        if name in results:
            files[name] = AppliedFile(sha256(pristine[name]), sha256(new), stock.row(name))
            rows[name], rows[kept] = tree.record.fresh_row(name, new), tree.record.fresh_row(kept, pristine[name])
            _note(changes, tree, kept, pristine[name])
            needed.add(kept)
    # Two files that are the same as released share what is kept of them: it goes with the last one.
    for kept in sorted({records.backup(tree.info, one.pristine) for one in stock.files.values()} - needed):
        _note(changes, tree, kept, None)
    said = records.place(tree.info)
    if files:
        text = Applied(stock.release.version, both.digest, both.names, without, files).text()
        rows[said] = tree.record.fresh_row(said, text)
        _note(changes, tree, said, text)
    else:
        _note(changes, tree, said, None)
    _note(changes, tree, tree.record_name, tree.record.changed(rows, f"{tree.info}/{records.FOLDER}/"))
    return changes


def _note(changes: dict[str, bytes | None], tree: Tree, name: str, data: bytes | None) -> None:
    if tree.read(name) != data:
        changes[name] = data


def is_interrupted(root: str) -> bool:
    """Did an apply or revert of this tree end halfway? The next one carries it through."""
    try:
        return interrupted(Tree(root))
    except PatchError:
        return False
