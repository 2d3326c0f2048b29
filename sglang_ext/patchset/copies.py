"""The folder of patched copies: written whole or not at all, believed only when it is ours and closed, compiled beside itself.

Bytecode is checked by source hash (PEP 552): the copies' dates mean nothing. Such a hash is no secret, so whoever could write
a bytecode file could have Python run anything under the right source: the folders below are looked at as well as the top.
"""

from __future__ import annotations

import os
import stat as stat_bits

from sglang_ext.patchset.installed import OverlayError, sha256_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def bytecode(path: str) -> str:
    """Where this Python keeps the bytecode of a copy."""
    from importlib.util import cache_from_source

    return cache_from_source(path)


def parts(folder: str, targets: Iterable[str]) -> list[str]:
    """Every path below the folder that an import of the copies passes through or reads, folders first.

    With PYTHONPYCACHEPREFIX bytecode lies elsewhere, and is as good as that of every other module there.
    """
    folders: dict[str, None] = {}
    files: list[str] = []
    for target in targets:
        path = os.path.join(folder, target)
        for name in (path, bytecode(path)):
            above = os.path.dirname(name)
            if not above.startswith(folder + os.sep):
                continue
            files.append(name)
            while above != folder:
                folders.setdefault(above)
                above = os.path.dirname(above)
    return [*folders, *files]


def check(folder: str, patched: Mapping[str, str]) -> None:
    """Believe a folder only when it is ours, closed to writers, and holds exactly these bytes. Raises OverlayError."""
    try:
        info = os.lstat(folder)
    except OSError as error:
        raise OverlayError(
            "overlay_unwritable", f"overlay {folder} cannot be read ({error.strerror}); set SGLANG_EXT_CACHE_DIR"
        ) from None
    if not stat_bits.S_ISDIR(info.st_mode):
        raise OverlayError(
            "overlay_untrusted",
            f"overlay {folder} is a link or file, expected a folder of our own; remove it or set SGLANG_EXT_CACHE_DIR",
        )
    _closed(folder, info)
    for path in parts(folder, patched):
        try:
            _closed(path, os.lstat(path))
        except OSError:
            continue  # a copy that is not there is told below; bytecode need not be there
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


def _closed(path: str, info: os.stat_result) -> None:
    """Root's may be baked into an image."""
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        raise OverlayError(
            "overlay_untrusted",
            f"overlay {path} belongs to uid {info.st_uid} with mode {stat_bits.S_IMODE(info.st_mode):04o}, expected "
            f"uid {os.geteuid()} or root and nobody else able to write; remove it or set SGLANG_EXT_CACHE_DIR",
        )


def build(folder: str, results: Mapping[str, bytes], patched: Mapping[str, str]) -> None:
    """Write the copies beside their final place and move them there in one step. Raises OverlayError."""
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
        _compile(scratch, patched, folder)
        for where, _folders, files in os.walk(scratch):  # whatever the umask: nobody else may write here
            os.chmod(where, 0o700)
            for name in files:
                os.chmod(os.path.join(where, name), 0o600)
        check(scratch, patched)
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


def _compile(folder: str, targets: Iterable[str], final: str) -> None:
    import py_compile

    for target in targets:
        # The final path goes into the bytecode: tracebacks must name the file that will be there.
        path = os.path.join(folder, target)
        made = py_compile.compile(
            path,
            dfile=os.path.join(final, target),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
        if made and made.startswith(
            folder + os.sep
        ):  # the file has its source's mode, its folder has what the umask leaves
            os.chmod(os.path.dirname(made), stat_bits.S_IMODE(os.stat(os.path.dirname(path)).st_mode))


def ensure_bytecode(folder: str, targets: Iterable[str]) -> None:
    """Compile for *this* Python where another one built the overlay; a read-only overlay just loads slower."""
    missing = [target for target in targets if not os.path.exists(bytecode(os.path.join(folder, target)))]
    if missing and os.access(folder, os.W_OK):
        try:
            _compile(folder, missing, folder)
        except OSError:
            pass  # bytecode only saves time; the checked source files are what is imported
