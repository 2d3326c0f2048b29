"""The overlay: patched copies of upstream files on disk, that an import hook points at. Stock files stay untouched.

The folder's name is the hash of everything that went into it, so a folder is either what we would build or not used.
Bytecode lies beside the copies, checked by source hash (PEP 552): the copies' dates mean nothing, and no patched
bytecode ever lands in stock's ``__pycache__``.
"""

from __future__ import annotations

import hashlib
import os
import stat as stat_bits
from collections.abc import Mapping

from sglang_ext.patchset.local import (
    apply_local,
    check_compiles,
    digest_with,
    left_out,
    local_files,
    local_folder,
    not_importable,
    parsed,
    short,
)
from sglang_ext.patchset.lock import Lock, Release, load_lock
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import load_patch_set, patch_set_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class OverlayError(Exception):
    """Upstream cannot be patched. ``code`` is a stable reason code; the message is one sentence with the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Prepared:
    """What an import of upstream should find: ``mode`` overlay (use ``files``) or baked (upstream is patched already).

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


def sha256_file(path: str) -> str:
    """Hex sha256 of a file's bytes. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


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


def identify(root: str, lock: Lock) -> tuple[str, Release, dict[str, str]]:
    """Which locked release is the ``sglang`` folder inside ``root``, by the bytes of its target files.

    Returns ``("pristine" | "patched", release, hashes)``. Raises OverlayError when the files are neither, all alike.
    """
    found: dict[str, str] = {}
    for target in sorted({name for release in lock.releases for name in release.files}):
        try:
            found[target] = sha256_file(os.path.join(root, target))
        except OSError:
            found[target] = "no such file"
    fitting = [
        (kind, release)
        for release in lock.releases
        for kind in ("pristine", "patched")
        if all(found.get(target) == getattr(entry, kind) for target, entry in release.files.items())
    ]
    if not fitting:
        raise _no_release(root, lock, found)
    if len(fitting) > 1:  # a post release may change none of our files; then the metadata says which one it is
        version = installed_version(root)
        fitting.sort(key=lambda fit: fit[1].version != version)
    kind, release = fitting[0]
    return kind, release, {target: found[target] for target in release.files}


def _no_release(root: str, lock: Lock, found: Mapping[str, str]) -> OverlayError:
    """Say why nothing fits: another release, or a known one with a changed file."""
    version = installed_version(root)
    if version not in lock.supported():
        return OverlayError(
            "unsupported_upstream",
            f"sglang {version} in {root} is not supported by this sglang-ext, which patches {lock.described()}; "
            f'run: pip install "sglang=={lock.supported()[-1]}"',
        )
    for target, entry in lock.get(version).files.items():
        if found[target] not in (entry.pristine, entry.patched):
            return OverlayError(
                "upstream_file_changed",
                f"{os.path.join(root, target)} is not sglang {version} as released: sha256 {found[target][:12]}, expected "
                f"{entry.pristine[:12]}; run: pip install --force-reinstall --no-deps sglang=={version}",
            )
    patched = [target for target, entry in lock.get(version).files.items() if found[target] == entry.patched]
    return OverlayError(
        "upstream_half_patched",
        f"the files of sglang {version} in {root} are patched in part only: expected all as released or all patched, found "
        f"{', '.join(patched)} patched and the others not; "
        f"run: pip install --force-reinstall --no-deps sglang=={version}",
    )


def installed_version(root: str) -> str:
    """The version the ``sglang`` folder in ``root`` says it is, from its own metadata folder; "unknown" without."""
    try:
        names = [n for n in os.listdir(root) if n.startswith("sglang-") and n.endswith(".dist-info")]
    except OSError:
        names = []
    if len(names) != 1:
        return "unknown"
    return names[0][len("sglang-") : -len(".dist-info")].partition("+ext.")[0]  # a baked wheel is its release


def prepare(root: str, *, cache: str | None = None, patches: str | None = None) -> Prepared:
    """Have patched copies of the ``sglang`` folder inside ``root`` ready to import; all or none.

    Raises OverlayError when upstream is not a locked release, or the overlay cannot be written or believed.
    """
    patches = patches or patches_folder()
    lock = load_lock(os.path.join(patches, "upstream.toml"))
    try:
        kind, release, hashes = identify(root, lock)
    except OverlayError:
        prepared = _in_place(root, patches, lock)
        if prepared is None:
            raise
        return prepared
    if kind == "patched":
        prepared = _in_place(root, patches, lock)
        if prepared is not None:
            return prepared
    digest = patch_set_digest(patches, release.patches)
    local = _local(patches, left_out())
    if kind == "patched" and not local:
        return Prepared("baked", release.version, digest, {}, hashes)
    patched = {target: entry.patched for target, entry in release.files.items()}
    results: Mapping[str, bytes] | None = None
    if local:  # the lock does not know what they make: it is made anew each time, to be held against the copies
        digest = digest_with(digest, local)
        results = _results(root, patches, release, local, already=kind == "patched")
        patched = {target: hashlib.sha256(data).hexdigest() for target, data in results.items()}
    key = hashlib.sha256(repr((digest, sorted(hashes.items()), sorted(patched.items()))).encode()).hexdigest()[:24]
    folder = os.path.join(cache or cache_base(), "overlay", key)
    if not os.path.lexists(folder):
        if results is not None:
            _compiles(results, local)
        _build(folder, results or _results(root, patches, release, (), already=False), patched)
    _check(folder, patched)
    _ensure_bytecode(folder, patched)
    files = {target: os.path.join(folder, target) for target in patched}
    names = tuple(short(name) for name, _ in local)
    return Prepared("overlay", release.version, digest, files, {**hashes, **patched}, names)


def _local(patches: str, without: Sequence[str]) -> list[tuple[str, bytes]]:
    try:
        return local_files(local_folder(patches), without)
    except PatchError as error:
        raise OverlayError(getattr(error, "code", "local_patch_misfit"), str(error)) from None


def _compiles(results: Mapping[str, bytes], local: Sequence[tuple[str, bytes]]) -> None:
    try:
        check_compiles(results, parsed(local))
    except PatchError as error:
        raise OverlayError(getattr(error, "code", "local_patch_misfit"), str(error)) from None


def _in_place(root: str, patches: str, lock: Lock) -> Prepared | None:
    """What `patches apply` made of the tree, if it did: it must still be that, and what it would make of it now."""
    from sglang_ext.patchset import applied as records

    if records.cut_off(root):
        raise OverlayError(
            "tree_interrupted",
            f"an apply or revert of the sglang in {root} ended halfway; run it again: sglang-ext patches apply, or revert",
        )
    try:
        applied = records.of_root(root)
    except PatchError:
        return None  # unreadable: the tree is judged as if nobody had said anything
    release = lock.release(applied.release) if applied else None
    if applied is None or release is None:
        return None
    found: dict[str, str] = {}
    for name, entry in applied.files.items():
        try:
            found[name] = sha256_file(os.path.join(root, name))
        except OSError:
            found[name] = "no such file"
        if found[name] != entry.patched:
            raise OverlayError(
                "upstream_file_changed",
                f"{os.path.join(root, name)} is not what patches apply made it: sha256 {found[name][:12]}, expected "
                f"{entry.patched[:12]}; keep the edit as a local patch: sglang-ext patches adopt",
            )
    local = _local(patches, [*left_out(), *applied.without])
    digest = digest_with(patch_set_digest(patches, release.patches), local)
    if digest != applied.digest:
        raise OverlayError(
            "in_place_stale",
            f"the sglang in {root} was patched in place with patch set {applied.digest[:12]}, it is {digest[:12]} now; "
            "run: sglang-ext patches apply",
        )
    return Prepared("baked", applied.release, digest, {}, found, tuple(short(name) for name, _ in local))


def _results(
    root: str, patches: str, release: Release, local: Sequence[tuple[str, bytes]], *, already: bool
) -> dict[str, bytes]:
    """The bytes of every copy: the locked files as the lock has them, under the local patches. ``already``: of a tree
    that has ours, only what the local patches change. A file that the lock does not know must be as RECORD has it."""

    def read(target: str) -> bytes:
        with open(os.path.join(root, target), "rb") as file:
            return file.read()

    def as_installed(target: str) -> bytes:
        from sglang_ext.patchset.tree import recorded

        version = installed_version(root)
        wanted = recorded(root, version, target)
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
        found = hashlib.sha256(data).hexdigest()
        if found != wanted:
            raise OverlayError(
                "upstream_file_changed",
                f"{os.path.join(root, target)} is not sglang {version} as released: sha256 {found[:12]}, expected {wanted[:12]}; "
                "keep the edit as a local patch: sglang-ext patches adopt",
            )
        return data

    results = {} if already else load_patch_set(patches, release.patches).apply_all(read)
    for target, entry in () if already else release.files.items():
        found = hashlib.sha256(results.get(target, b"")).hexdigest()
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


def _check(folder: str, patched: Mapping[str, str]) -> None:
    """Believe an overlay only when it is ours, closed to writers, and holds exactly the locked bytes."""
    try:
        info = os.lstat(folder)
    except OSError as error:
        raise OverlayError(
            "overlay_unwritable", f"overlay {folder} cannot be read ({error.strerror}); set SGLANG_EXT_CACHE_DIR"
        ) from None
    owners = (0, os.geteuid())  # root's may be baked into an image
    if not stat_bits.S_ISDIR(info.st_mode):
        raise OverlayError(
            "overlay_untrusted",
            f"overlay {folder} is a link or file, expected a folder of our own; remove it or set SGLANG_EXT_CACHE_DIR",
        )
    if info.st_uid not in owners or info.st_mode & 0o022:
        raise OverlayError(
            "overlay_untrusted",
            f"overlay {folder} belongs to uid {info.st_uid} with mode {stat_bits.S_IMODE(info.st_mode):04o}, expected "
            f"uid {os.geteuid()} or root and nobody else able to write; remove it or set SGLANG_EXT_CACHE_DIR",
        )
    for target, expected in patched.items():
        path = os.path.join(folder, target)
        try:
            found = sha256_file(path)
        except OSError as error:
            found = error.strerror or "unreadable"
        if found != expected:
            raise OverlayError(
                "overlay_tampered",
                f"overlay file {path} is not what was written: sha256 {found[:12]}, expected {expected[:12]}; "
                f"remove {folder} and start again",
            )


def _build(folder: str, results: Mapping[str, bytes], patched: Mapping[str, str]) -> None:
    """Write the overlay beside its final place and move it there in one step."""
    # Containers that share a cache also share pids: the name is random.
    scratch = f"{folder}.{os.urandom(6).hex()}.tmp"
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        os.mkdir(scratch, 0o700)
        for target in patched:
            path = os.path.join(scratch, target)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "wb") as file:
                file.write(results[target])
                file.flush()
                os.fsync(file.fileno())
        _check(scratch, patched)
        _compile(scratch, patched, folder)
        for where, _folders, files in os.walk(scratch):  # whatever the umask: nobody else may write here
            os.chmod(where, 0o700)
            for name in files:
                os.chmod(os.path.join(where, name), 0o600)
        os.rename(scratch, folder)
    except BaseException as error:
        _remove(scratch)
        if not isinstance(error, OSError):
            raise
        if os.path.isdir(folder):
            return  # another process of ours was first; what lies there is checked before use
        raise OverlayError(
            "overlay_unwritable",
            f"the overlay cannot be written to {folder} ({error.strerror}); set SGLANG_EXT_CACHE_DIR to a writable folder",
        ) from None


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _compile(folder: str, targets: Mapping[str, str], final: str) -> None:
    import py_compile

    for target in targets:
        # The final path goes into the bytecode: tracebacks must name the file that will be there.
        py_compile.compile(
            os.path.join(folder, target),
            dfile=os.path.join(final, target),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )


def _ensure_bytecode(folder: str, targets: Mapping[str, str]) -> None:
    """Compile for *this* Python where another one built the overlay; a read-only overlay just loads slower."""
    from importlib.util import cache_from_source

    missing = {t: h for t, h in targets.items() if not os.path.exists(cache_from_source(os.path.join(folder, t)))}
    if missing and os.access(folder, os.W_OK):
        try:
            _compile(folder, missing, folder)
        except OSError:
            pass  # bytecode only saves time; the checked source files are what is imported
