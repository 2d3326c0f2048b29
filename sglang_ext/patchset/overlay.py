"""The overlay: patched copies of upstream files on disk, that an import hook points at. Stock files stay untouched.

The folder's name is the hash of everything that went into it, so a folder is either what we would build or not used. No patched
bytecode ever lands in stock's ``__pycache__``. plan.py says what there should be, copies.py has the folder, and seen.py spares a
process the look that another one has taken already.
"""

from __future__ import annotations

import os
import sys

from sglang_ext.patchset import copies, seen
from sglang_ext.patchset.installed import OverlayError, identify, sha256_file
from sglang_ext.patchset.local import left_out, local_folder
from sglang_ext.patchset.plan import OVERLAY, Plan, plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "OverlayError",
    "Prepared",
    "cache_base",
    "folder_of",
    "identify",
    "patches_folder",
    "plan",
    "prepare",
    "sha256_file",
]


class Prepared:
    """What an import of upstream should find, ready: ``mode`` as of a plan; ``files`` are there in mode overlay only.

    ``files`` maps a target (``sglang/srt/...``) to the path to import; ``hashes`` maps it to the sha256 of that file.

    ``local`` names the user's own patches that are in it.
    """

    __slots__ = ("digest", "files", "hashes", "local", "mode", "release")

    def __init__(
        self,
        mode: str,
        release: str,
        digest: str,
        files: dict[str, str],
        hashes: dict[str, str],
        local: tuple[str, ...] = (),
    ) -> None:
        self.mode, self.release, self.digest, self.files, self.hashes = mode, release, digest, files, hashes
        self.local = local

    def lines(self) -> list[str]:
        """As a record of `seen` keeps it."""
        rows = [f"{target}\t{sha}\t{self.files.get(target, '')}" for target, sha in self.hashes.items()]
        return [self.mode, self.release, self.digest, "\t".join(("local", *self.local)), *rows]

    @classmethod
    def of(cls, lines: Sequence[str] | None) -> Prepared | None:
        """From such lines; None where they are none."""
        try:
            mode, release, digest, local, *rows = lines or ()
            _, *names = local.split("\t")
            fields = [row.split("\t") for row in rows]
            files = {target: path for target, _, path in fields if path}
            hashes = {target: sha for target, sha, _ in fields}
        except ValueError:
            return None
        return cls(mode, release, digest, files, hashes, tuple(names))


def patches_folder() -> str:
    """Where the patch set lies: inside the installed package, or at the top of a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "patches")
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), "patches")


def cache_base() -> str:
    """The folder overlays are kept in. ``SGLANG_EXT_CACHE_DIR`` wins: an image can carry a ready one, read-only."""
    chosen = os.environ.get("SGLANG_EXT_CACHE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(home):  # no HOME and a uid without a name, as in some containers: "~" stays "~"
        raise OverlayError(
            "overlay_unwritable",
            f"there is no home folder to keep the overlay in ({home} is no absolute path); "
            "set SGLANG_EXT_CACHE_DIR to a writable folder",
        )
    return os.path.join(home, "sglang-ext")


def folder_of(base: str, key: str) -> str:
    """Where the copies of a plan lie."""
    return os.path.join(base, "overlay", key)


def prepare(root: str, *, cache: str | None = None, patches: str | None = None) -> Prepared:
    """Have patched copies of the ``sglang`` folder inside ``root`` ready to import; all or none.

    Raises OverlayError when upstream is not a locked release, or the overlay cannot be written or believed.
    """
    patches = patches or patches_folder()
    try:
        base = cache or cache_base()
    except OverlayError:
        if plan(root, patches).mode == OVERLAY:
            raise
        base = os.devnull  # nothing is kept where no copies are needed
    bytecode = sys.implementation.cache_tag, sys.flags.optimize, sys.pycache_prefix
    record = seen.place(base, root, patches, local_folder(patches), left_out(), bytecode)
    before = Prepared.of(seen.recall(record))
    if before is not None:
        return before
    made, prepared = _prepare(root, patches, base)
    if prepared.mode == OVERLAY and made.pristine:  # the plan for a patched tree rests on more
        _record(record, made, prepared, base)
    return prepared


def _prepare(root: str, patches: str, base: str) -> tuple[Plan, Prepared]:
    """A whole look, and copies where they are needed."""
    made = plan(root, patches)
    if made.mode != OVERLAY:
        return made, Prepared(made.mode, made.release.version, made.digest, {}, made.hashes, made.names)
    folder = folder_of(base, made.key)
    if not os.path.lexists(folder):
        copies.build(folder, made.bytes(), made.patched)
    copies.check(folder, made.patched)
    copies.ensure_bytecode(folder, made.patched)
    files = {target: os.path.join(folder, target) for target in made.patched}
    hashes = {**made.hashes, **made.patched}
    return made, Prepared(OVERLAY, made.release.version, made.digest, files, hashes, made.names)


def _record(where: str, made: Plan, prepared: Prepared, base: str) -> None:
    """Spare the next process the look, where that is safe: marks first, then the look again (seen.py says why)."""
    folder = folder_of(base, made.key)
    try:
        info = os.lstat(folder)
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            return
        marks = seen.marks([*made.reads(), folder, *copies.parts(folder, made.patched)])
    except OSError:
        return
    if marks is None:
        return
    again = _prepare(made.root, made.patches, base)[1].lines()
    if again == prepared.lines():
        seen.record(where, again, marks)
