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

from sglang_ext.patchset.lock import Lock, Release, load_lock
from sglang_ext.patchset.series import load_patch_set, patch_set_digest


class OverlayError(Exception):
    """Upstream cannot be patched. ``code`` is a stable reason code; the message is one sentence with the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Prepared:
    """What an import of upstream should find: ``mode`` overlay (use ``files``) or baked (upstream is patched already).

    ``files`` maps a target (``sglang/srt/...``) to the path to import; ``hashes`` maps it to the sha256 of that file.
    """

    __slots__ = ("digest", "files", "hashes", "mode", "release")

    def __init__(self, mode: str, release: str, digest: str, files: dict[str, str], hashes: dict[str, str]) -> None:
        self.mode, self.release, self.digest, self.files, self.hashes = mode, release, digest, files, hashes


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
    return names[0][len("sglang-") : -len(".dist-info")] if len(names) == 1 else "unknown"


def prepare(root: str, *, cache: str | None = None, patches: str | None = None) -> Prepared:
    """Have patched copies of the ``sglang`` folder inside ``root`` ready to import; all or none.

    Raises OverlayError when upstream is not a locked release, or the overlay cannot be written or believed.
    """
    patches = patches or patches_folder()
    lock = load_lock(os.path.join(patches, "upstream.toml"))
    kind, release, hashes = identify(root, lock)
    digest = patch_set_digest(patches, release.patches)
    if kind == "patched":
        return Prepared("baked", release.version, digest, {}, hashes)
    patched = {target: entry.patched for target, entry in release.files.items()}
    key = hashlib.sha256(repr((digest, sorted(hashes.items()), sorted(patched.items()))).encode()).hexdigest()[:24]
    folder = os.path.join(cache or cache_base(), "overlay", key)
    if not os.path.lexists(folder):
        _build(folder, root, patches, release)
    _check(folder, patched)
    _ensure_bytecode(folder, patched)
    files = {target: os.path.join(folder, target) for target in patched}
    return Prepared("overlay", release.version, digest, files, patched)


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


def _build(folder: str, root: str, patches: str, release: Release) -> None:
    """Write the overlay beside its final place and move it there in one step."""
    patched = {target: entry.patched for target, entry in release.files.items()}

    def read(target: str) -> bytes:
        with open(os.path.join(root, target), "rb") as file:
            return file.read()

    results = load_patch_set(patches, release.patches).apply_all(read)
    for target, expected in patched.items():
        found = hashlib.sha256(results.get(target, b"")).hexdigest()
        if found != expected:
            raise OverlayError(
                "patch_set_broken",
                f"patching {target} gives sha256 {found[:12]}, the lock expects {expected[:12]}; "
                "run: pip install --force-reinstall --no-deps sglang-ext",
            )
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
