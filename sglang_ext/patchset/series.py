"""The patch set of a release: which patches, in which order, and their digest; all or none apply.

`series` holds one entry a line with `#` comments, and with them the order, which is never in file names:

    engine/            a folder of variants, each named by the first release it is for: engine/0.5.9.patch. A release
                       takes the newest variant that is not newer than itself
    extra/some.patch   one patch that every release takes

Which files that comes to is written into the lock; the import hook reads them there (`names`), not here. `local/` is
the user's own, and not of the set: local.py.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.lock import is_patch_path, version_key
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sglang_ext.patchset.model import Patch

LOCAL = "local"
SUFFIX = ".patch"


class SeriesError(PatchError):
    """`series`, or a file it lists, cannot be used."""


class PatchSet(Record):
    """All patches in order, and the sha256 over the order and the bytes of the patch files."""

    __slots__ = ("patches", "digest")
    patches: tuple[Patch, ...]
    digest: str

    def __init__(self, patches: Iterable[Patch], digest: str) -> None:
        self._set(tuple(patches), digest)

    @property
    def names(self) -> tuple[str, ...]:
        """The patch files, as the lock lists them."""
        return tuple(patch.origin for patch in self.patches)

    @property
    def targets(self) -> tuple[str, ...]:
        """The files it changes, each once, in the order they first come."""
        return tuple(dict.fromkeys(patch.target for patch in self.patches))

    def of(self, target: str) -> tuple[Patch, ...]:
        """The patches of one file, in order."""
        return tuple(patch for patch in self.patches if patch.target == target)

    def apply_all(self, read: Callable[[str], bytes]) -> dict[str, bytes]:
        """Patched bytes by target; `read` gives a target's bytes. Any fault raises: all or none."""
        from sglang_ext.patchset.diff import apply

        results: dict[str, bytes] = {}
        for patch in self.patches:
            source = results[patch.target] if patch.target in results else read(patch.target)
            results[patch.target] = apply(patch, source)
        return results


def load_patch_set(root: str | os.PathLike[str], names: Sequence[str] | None = None) -> PatchSet:
    """The patch set of these files below the folder `root`; without `names`, the newest release's by the series.

    PatchError where a file is missing or is no good patch.
    """
    files = _patch_files(os.fspath(root), names)
    return PatchSet([read_patch(name, data) for name, data in files], _digest(files))


def patch_set_digest(root: str | os.PathLike[str], names: Sequence[str] | None = None) -> str:
    """The digest `load_patch_set` would give, without parsing any patch."""
    return _digest(_patch_files(os.fspath(root), names))


def patch_names(root: str | os.PathLike[str], version: str | None = None) -> tuple[str, ...]:
    """The patch files that release takes, by the series; of the newest release without a version. Raises SeriesError."""
    folder = os.fspath(root)
    found, faults = entries(read_file(folder, "series"), "series")
    if faults:
        raise SeriesError(faults[0])
    return tuple(_variant(folder, entry, version) if entry.endswith("/") else entry for entry in found)


def entries(data: bytes, name: str) -> tuple[list[str], list[str]]:
    """The entries of a series file, and one sentence per fault."""
    found: list[str] = []
    faults: list[str] = []
    for number, line in enumerate(decode(name, data).split("\n"), 1):
        entry = line.split("#")[0].strip()
        where = f"File {name}, line {number}"
        if not entry:
            continue
        if entry in found:
            faults.append(f"{where} lists {entry} a second time: keep one.")
        elif is_patch_path(entry) or (entry.endswith("/") and is_patch_path(f"{entry}x{SUFFIX}")):
            found.append(entry)
        else:
            faults.append(
                f"{where} is `{entry}`, but must be one relative path that ends in {SUFFIX}, or in / for a folder of"
                " variants."
            )
    return found, faults


def is_patch_file(name: str) -> bool:
    """Is a file of this name a patch? Emacs puts a link `.#NAME` beside a file that is open, and it leads nowhere."""
    return name.endswith(SUFFIX) and not name.startswith(".#")


def variants(folder: str, entry: str) -> list[str]:
    """The variants in a folder of the series, oldest first; SeriesError where there is none, or one named otherwise."""
    try:
        present = [name for name in os.listdir(os.path.join(folder, *entry.split("/"))) if is_patch_file(name)]
    except OSError as error:
        raise SeriesError(
            f"Folder {entry} of the series cannot be read ({error.strerror}): restore it or take the line out."
        ) from None
    for name in sorted(present):
        if not version_key(name.removesuffix(SUFFIX))[0]:
            raise SeriesError(
                f"Variant {entry}{name} must be named by the first release it is for, such as {entry}0.5.23{SUFFIX}."
            )
    if not present:
        raise SeriesError(f"Folder {entry} of the series holds no patch: add one or take the line out.")
    present.sort(key=lambda name: version_key(name.removesuffix(SUFFIX)))
    return [entry + name for name in present]


def release_of(name: str) -> str:
    """The release a variant is named by."""
    return name.rpartition("/")[2].removesuffix(SUFFIX)


def read_patch(name: str, data: bytes) -> Patch:
    """The patch in a file's bytes. Raises PatchError."""
    from sglang_ext.patchset.parsing import parse

    return parse(decode(name, data), name)


def read_file(folder: str, name: str) -> bytes:
    """The bytes of a file of the patch set. Raises SeriesError."""
    path = os.path.join(folder, *name.split("/"))
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        listed = "" if name.endswith("series") else " It belongs to the patch set: restore it or take it out."
        raise SeriesError(f"File {path} cannot be read ({error.strerror}).{listed}") from None


def decode(name: str, data: bytes) -> str:
    """A file's text. Raises SeriesError."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SeriesError(f"File {name} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None


def _variant(folder: str, entry: str, version: str | None) -> str:
    known = variants(folder, entry)
    if version is None:
        return known[-1]
    fitting = [name for name in known if version_key(release_of(name)) <= version_key(version)]
    if not fitting:
        raise SeriesError(
            f"Release {version} is older than every variant in {entry}, the first of which is for"
            f" {release_of(known[0])}: add {entry}{version}{SUFFIX}."
        )
    return fitting[-1]


def _patch_files(folder: str, names: Sequence[str] | None) -> list[tuple[str, bytes]]:
    """(path below the folder, bytes) of every patch in order."""
    return [(name, read_file(folder, name)) for name in names or patch_names(folder)]


def _digest(files: Sequence[tuple[str, bytes]]) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
