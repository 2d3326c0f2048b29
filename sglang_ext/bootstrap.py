"""Arm the import hook. Reached from the ``.pth`` line or sitecustomize only once ``sglang`` itself is being imported.

Nothing here runs at Python start. A finder that raises would break `import sglang`, and one that quietly steps aside
would run stock: so the outcome is recorded in `STATUS`, said in one stderr line, and made an error under our launcher
(a run id is set) or with ``SGLANG_EXT=require``.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SWITCH = "SGLANG_EXT"  # 0: off; require: an unpatchable import is an error
MARK = "_sglang_ext"  # finders are known by this attribute: two copies of a module have two classes


class Status:
    """What became of the hook in this process: ``mode`` overlay, baked, in_place or none, and why."""

    def __init__(self) -> None:
        self.mode = "none"
        self.why = "sglang has not been imported"
        self.digest: str | None = None
        self.release: str | None = None
        self.files: dict[str, str] = {}
        self.hashes: dict[str, str] = {}
        self.local: tuple[str, ...] = ()  # the user's own patches that are in


STATUS = Status()
# The NCCL_* variables as they were when sglang was first imported: the contract of a process without a launcher.
SHELL: dict[str, str] = {}


def demanded() -> bool:
    """Must an import that cannot be patched fail? Under our launcher, and with SGLANG_EXT=require.

    A server that was started without the launcher has a run of its own, whose id says so (`run.directory.begin`).
    """
    run = os.environ.get("SGLANG_EXT_RUN_ID")
    return os.environ.get(SWITCH) == "require" or (run is not None and not run.endswith("-own"))


def switched_off() -> bool:
    """Is everything of ours off? A baked wheel has the seams in its files, and asks here."""
    return os.environ.get(SWITCH) == "0"


def module_name(target: str) -> str:
    """``sglang/srt/models/deepseek_v2.py`` -> ``sglang.srt.models.deepseek_v2``; an ``__init__.py`` is its package."""
    return target[: -len(".py")].replace("/", ".").removesuffix(".__init__")


class Checked(SourceFileLoader):
    """Loads a patched copy, and hashes the very bytes that run: whatever was believed of them when they were found."""

    def __init__(self, name: str, path: str, expected: str) -> None:
        super().__init__(name, path)
        self.expected = expected

    def get_data(self, path: str) -> bytes:
        """Python asks for the source too where it has bytecode, which is checked against it (PEP 552)."""
        data = super().get_data(path)
        if path == self.path:
            from sglang_ext.patchset.installed import sha256_of

            found = sha256_of(data)
            if found != self.expected:
                raise ImportError(
                    f"sglang-ext: overlay_tampered: overlay file {path} is not what was written: sha256 {found[:12]}, expected "
                    f"{self.expected[:12]}; remove its overlay folder and start again",
                    name=self.name,
                )
        return data

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        """Bytecode of copies is ours to write, or nobody's: by its dates it would be believed without the source."""


class TargetFinder:
    """Sends imports of the patched modules to their copies; every other name is passed on at once.

    ``local`` are files that only the user's patches change. They keep upstream's ``__file__``: many of upstream's modules
    look for data beside it, and take another path without a word where there is none.
    """

    def __init__(self, targets: frozenset[str], local: frozenset[str] = frozenset()) -> None:
        setattr(self, MARK, "targets")
        self.local = local - targets
        targets |= local
        self.names = {module_name(target): target for target in targets}
        self.failed: str | None = None
        self.ready = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        wanted = self.names.get(name)
        if wanted is None:
            return None
        stock = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if stock is None or stock.origin is None:
            return None
        if not self.ready:  # one thread at a time is here: the import system holds its lock around every finder
            self._prepare(stock.origin[: -len(wanted)])
            self.ready = True
        if self.failed is not None and demanded():
            raise ImportError(f"sglang-ext: {self.failed}", name=name)
        copy = STATUS.files.get(wanted)
        if copy is None:
            return None
        from importlib.util import spec_from_file_location

        loader = Checked(name, copy, STATUS.hashes[wanted])
        if wanted not in self.local:
            return spec_from_file_location(name, copy, loader=loader)
        return spec_from_file_location(
            name,
            stock.origin,
            loader=loader,
            submodule_search_locations=stock.submodule_search_locations,
        )

    def _prepare(self, root: str) -> None:
        self.failed = _look(root)
        if self.failed is not None and not demanded():
            sys.stderr.write(f"sglang-ext: running stock, unpatched: {self.failed} (SGLANG_EXT=0 silences this)\n")


def _look(root: str, *, hook: bool = True) -> str | None:
    """Fill `STATUS` for the sglang in ``root``; why that cannot be, or None."""
    from sglang_ext.patchset.overlay import OverlayError, prepare

    try:
        prepared = prepare(root)
    # ValueError: a patch or lock that cannot be read or applied
    except (OverlayError, OSError, ValueError) as error:
        STATUS.why = f"{getattr(error, 'code', 'patch_set_broken')}: {error}"
        return STATUS.why
    if prepared.files and not hook:
        STATUS.why = "hook_not_armed: these patches are delivered by the import hook, which is not armed in this Python"
        return STATUS.why
    STATUS.mode, STATUS.why = prepared.mode, ""
    STATUS.digest, STATUS.release = prepared.digest, prepared.release
    STATUS.files, STATUS.hashes, STATUS.local = prepared.files, prepared.hashes, prepared.local
    return None


def without_hook() -> None:
    """Called by the seams, which only patched files import: where no hook is armed (an image that cannot have one, whose tree
    was patched in place or baked), what it would have found is found now. Idempotent."""
    if STATUS.mode != "none" or switched_off() or any(getattr(f, MARK, None) == "targets" for f in sys.meta_path):
        return
    where = getattr(sys.modules.get("sglang"), "__file__", None)
    if where is not None:
        _note_shell()
        _look(os.path.dirname(os.path.dirname(os.path.abspath(where))), hook=False)


def _note_shell() -> None:
    SHELL.update((name, value) for name, value in os.environ.items() if name.startswith("NCCL_"))


def first_import() -> None:
    """``sglang`` is being imported: put the real finder in the place of whatever called us. Idempotent.

    The import system is walking sys.meta_path: one finder goes and one comes, also where there is nothing to patch,
    or the walk would pass over whoever stands behind us. Raises ImportError only where a patched import is demanded.
    """
    if not any(getattr(f, MARK, None) == "targets" for f in sys.meta_path):
        _note_shell()
        finder = TargetFinder(*_targets())
        sys.meta_path[:] = [finder, *(f for f in sys.meta_path if getattr(f, MARK, None) != "first")]


def _targets() -> tuple[frozenset[str], frozenset[str]]:
    """What is to be patched, by us and by local patches; nothing where that is switched off or cannot be, with the reason
    in `STATUS`."""
    if os.environ.get(SWITCH, "") not in ("", "0", "require"):
        # `required` meant to be strict and `off` meant to be off: neither is, and nobody would notice.
        sys.stderr.write(f"sglang-ext: {SWITCH} is neither 0 nor require and counts as not set; correct it\n")
    if switched_off():
        STATUS.why = "SGLANG_EXT=0 switches it off"
        return frozenset(), frozenset()
    from sglang_ext.patchset.local import left_out, local_files, local_folder, parsed
    from sglang_ext.patchset.lock import load_lock
    from sglang_ext.patchset.overlay import patches_folder

    try:
        lock = load_lock(os.path.join(patches_folder(), "upstream.toml"))
    except (OSError, ValueError) as error:
        return _without(f"{error} Or run: pip install --force-reinstall --no-deps sglang-ext")
    targets = frozenset(t for version in lock.supported() for t in lock.get(version).files)
    local: frozenset[str] = frozenset()
    try:
        files = local_files(local_folder(patches_folder()), left_out())
        if files:
            local = frozenset(patch.target for patch in parsed(files))
    except (OSError, ValueError) as error:
        return _without(f"{getattr(error, 'code', 'local_patch_misfit')}: {error}")
    early = sorted(module_name(t) for t in targets | local if module_name(t) in sys.modules)
    if early:
        return _without(f"{early[0]} was imported before the hook was armed; arm it at Python's start")
    return targets, local


def _without(why: str) -> tuple[frozenset[str], frozenset[str]]:
    """Stock it is, said in one line; an error where that was demanded."""
    STATUS.why = why
    if demanded():
        raise ImportError(f"sglang-ext: {why}", name="sglang")
    sys.stderr.write(f"sglang-ext: running stock, unpatched: {why} (SGLANG_EXT=0 silences this)\n")
    return frozenset(), frozenset()


class FirstImport:
    """What waits for ``import sglang`` when armed from sitecustomize; the ``.pth`` line builds its own, cheaper."""

    def __init__(self) -> None:
        setattr(self, MARK, "first")

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "sglang":
            first_import()
        return None


def arm() -> None:
    """Wait for ``import sglang``. Idempotent."""
    if not any(hasattr(finder, MARK) for finder in sys.meta_path):
        sys.meta_path.insert(0, FirstImport())
