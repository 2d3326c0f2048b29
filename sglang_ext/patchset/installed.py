"""Which locked release an installed `sglang` folder is, by the bytes of the files we patch; its metadata is asked only where
two releases have the same ones."""

from __future__ import annotations

import os

from sglang_ext.patchset.tree import metadata_folders, recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sglang_ext.patchset.lock import Lock, Release

NO_FILE = "no such file"  # what stands in the place of a sha256


class OverlayError(Exception):
    """Upstream cannot be patched. ``code`` is a stable reason code; the message is one sentence with the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def sha256_of(data: bytes) -> str:
    """Hex sha256."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str) -> str:
    """Hex sha256 of a file's bytes. Raises OSError."""
    with open(path, "rb") as file:
        return sha256_of(file.read())


def found_hashes(root: str, names: Iterable[str]) -> dict[str, str]:
    """The sha256 of these files below ``root``, or that there is none."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = sha256_file(os.path.join(root, name))
        except OSError:
            found[name] = NO_FILE
    return found


def identify(root: str, lock: Lock) -> tuple[str, Release, dict[str, str]]:
    """Which locked release is the ``sglang`` folder inside ``root``, by the bytes of its target files.

    Returns ``("pristine" | "patched", release, hashes)``. Raises OverlayError when the files are neither, all alike.
    """
    found = found_hashes(root, sorted({name for release in lock.releases for name in release.files}))
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
    again = f"pip install --force-reinstall --no-deps sglang=={version}"
    for target, entry in lock.get(version).files.items():
        if found[target] in (entry.pristine, entry.patched):
            continue
        # Installed as released and other bytes now: somebody edited it, and may want to keep that.
        edited = found[target] != NO_FILE and recorded(root, stated_version(root), target) in (
            entry.pristine,
            entry.patched,
        )
        fix = (
            f"keep the edit as a local patch: sglang-ext patches adopt, or undo it: {again}"
            if edited
            else f"run: {again}"
        )
        return OverlayError(
            "upstream_file_changed",
            f"{os.path.join(root, target)} is not sglang {version} as released: sha256 {found[target][:12]}, expected "
            f"{entry.pristine[:12]}; {fix}",
        )
    patched = [target for target, entry in lock.get(version).files.items() if found[target] == entry.patched]
    return OverlayError(
        "upstream_half_patched",
        f"the files of sglang {version} in {root} are patched in part only: expected all as released or all patched, found "
        f"{', '.join(patched)} patched and the others not; run: {again}",
    )


def installed_version(root: str) -> str:
    """The release the ``sglang`` folder in ``root`` says it is, from its own metadata folder; "unknown" without."""
    return stated_version(root).partition("+ext.")[0]  # a baked wheel is its release


def stated_version(root: str) -> str:
    """The whole version, as the metadata folder is called by: the one with METADATA, or the only one there is."""
    try:
        names = metadata_folders(root, "METADATA") or metadata_folders(root)
    except OSError:
        names = []
    if len(names) != 1:
        return "unknown"
    return names[0][len("sglang-") : -len(".dist-info")]
