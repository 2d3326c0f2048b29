"""`sglang-ext build-wheel`: fetch or take a locked wheel of upstream, bake the patch set into it, write it.

The wheel comes through pip, so that the user's index, mirror, proxy and credentials count (pip.conf, PIP_*). Whatever it
brings is held against the lock first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from sglang_ext import __version__
from sglang_ext.patchset.baked import BakeError, bake, baked_name, locked_release
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.overlay import patches_folder
from sglang_ext.patchset.series import load_patch_set
from sglang_ext.quick import Any, NamedTuple

SCHEMA = "sglang-ext/build-wheel/1"
DONE, FAIL, USAGE, UNKNOWN = 0, 1, 2, 3
# What a refusal ends with: 2 for what the command line names, 3 for what could not be had; all else is a failed demand.
EXITS = {
    "unsupported_upstream": USAGE,
    "wheel_other_release": USAGE,
    "wheel_unreadable": USAGE,
    "output_unusable": USAGE,
    "wheel_not_fetched": UNKNOWN,
}


class Request(NamedTuple):
    """What the command line asks for. Without `upstream` and `wheel` it is the newest release of the lock."""

    upstream: str | None = None
    wheel: str | None = None
    platform: str | None = None
    python: str | None = None
    out: str = "."
    revision: int = 1


def status(error: PatchError) -> int:
    """The exit status for a refusal."""
    return EXITS.get(getattr(error, "code", ""), FAIL)


def sentence(error: PatchError) -> str:
    """Code and sentence of a refusal."""
    return f"{getattr(error, 'code', 'patch_set_broken')}: {error}"


def build(request: Request, tell: Any) -> dict[str, Any]:
    """Build the wheel and return the report. `tell` gets a sentence before what takes long. Raises PatchError."""
    patches = patches_folder()
    lock = load_lock(os.path.join(patches, "upstream.toml"))
    wanted = request.upstream
    if wanted is not None and lock.release(wanted) is None:
        fix = "name one of these, or install the sglang-ext that is for it"
        raise BakeError("unsupported_upstream", f"--upstream {wanted} is not in the lock of {lock.described()}; {fix}")
    _check_folder(request.out)
    with tempfile.TemporaryDirectory() as scratch:
        path = request.wheel
        if path is None:
            wanted = wanted or lock.supported()[-1]
            tell(f"fetching sglang {wanted} with pip")
            path = fetch(wanted, request.platform, request.python, scratch)
        if not os.path.isfile(path):
            raise BakeError("wheel_unreadable", f"--from {path} is no file; name a wheel")
        file = os.path.basename(path)
        release = locked_release(lock, file)
        if wanted is not None and release.version != wanted:
            fix = "correct one of the two"
            raise BakeError("wheel_other_release", f"--upstream is {wanted}, but {file} is {release.version}; {fix}")
        target = os.path.join(request.out, baked_name(file, release.version, request.revision))
        _check_absent(target)  # before the work, and again after it
        patch_set = load_patch_set(patches, release.patches)
        source = _read(path)
        baked = bake(file, source, release, patch_set, request.revision, __version__)
        sha256 = write(baked.pieces(), target)
    return {
        "schema": SCHEMA,
        "wheel": target,
        "sha256": sha256,
        "version": baked.version,
        "from": {"wheel": file, "sha256": release.wheels[file]},
        "requires": f"sglang-ext=={__version__}",
        "patchset": patch_set.digest,
        "patches": list(patch_set.names),
        "files": baked.patched,
    }


def render(report: dict[str, Any]) -> str:
    """The report for people."""
    source = report["from"]
    lines = [
        f"{report['wheel']}  sha256 {report['sha256']}",
        f"  from      {source['wheel']}  sha256 {source['sha256'][:12]} (as locked)",
        *(f"  patched   {target}  sha256 {sha256[:12]}" for target, sha256 in report["files"].items()),
        f"  requires  {report['requires']}",
    ]
    return "\n".join(lines)


def fetch(version: str, platform: str | None, python: str | None, folder: str) -> str:
    """The wheel pip chooses for a release: for this Python and machine, or for those named. Raises BakeError."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
        "--only-binary=:all:", "--dest", folder,
    ]  # fmt: skip
    command += ["--platform", platform] if platform else []
    command += ["--python-version", python] if python else []
    done = subprocess.run(
        [*command, f"sglang=={version}"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    wheels = [name for name in sorted(os.listdir(folder)) if name.endswith(".whl")]
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in said if line.startswith("ERROR: ")] or said
        what = errors[-1].removeprefix("ERROR: ").strip().rstrip(".")
        raise BakeError(
            "wheel_not_fetched",
            f"pip brought no wheel of sglang {version}: {what}; try `pip download --no-deps sglang=={version}`, or give "
            "a wheel you have with --from",
        )
    return os.path.join(folder, wheels[0])


def write(pieces: Any, target: str) -> str:
    """Write a file that is not there yet, whole or not at all; returns its sha256. Raises BakeError."""
    import hashlib

    digest = hashlib.sha256()
    folder = os.path.dirname(target)
    part = None
    try:
        handle, part = tempfile.mkstemp(prefix=".sglang-ext-", suffix=".part", dir=folder or ".")
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)  # mkstemp's file is for its maker only; a wheel is for whoever installs it
        _check_absent(target)
        os.rename(part, target)
        part = None
    except OSError as error:
        raise _unwritable(folder or ".", error) from None
    finally:
        if part is not None:
            os.unlink(part)
    return digest.hexdigest()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        said = error.strerror or error
        raise BakeError("wheel_unreadable", f"wheel {path} cannot be read ({said}); name one that can") from None


def _check_folder(folder: str) -> None:
    """Better known before a download than after it."""
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _unwritable(folder, error) from None


def _check_absent(target: str) -> None:
    if os.path.lexists(target):
        fix = "remove it, or name another folder with --out"
        raise BakeError("output_unusable", f"{target} is there already, and nothing is overwritten; {fix}")


def _unwritable(folder: str, error: OSError) -> BakeError:
    said = error.strerror or error
    fix = "name another one with --out"
    return BakeError("output_unusable", f"folder {folder} cannot be written to ({said}); {fix}")
