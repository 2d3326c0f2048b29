"""The lock, `patches/upstream.toml`: the upstream wheels and files we know, and what patching makes of them.

    schema = 1

    [release."0.5.23"]
    patchset = "<digest of the patch set the patched hashes were made with>"
    patches = ["<the patch files of that set in their order, below patches/>", ...]

    [release."0.5.23".wheels]
    "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl" = "<sha256 of the wheel>"

    [release."0.5.23".files."sglang/srt/entrypoints/engine.py"]
    pristine = "<sha256 of the file as released>"
    patched = "<sha256 of the file after the patch set>"

Without `patches` it is what the series lists. `tools/check_patches.py --write` makes the lock; nobody edits it by hand.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA = 1
_READ: dict[bytes, Lock] = {}  # the last text that was read, and the lock it holds
FIX = "write it again with tools/check_patches.py --write"


class LockError(PatchError):
    """The lock is missing or malformed, or does not know a release."""


class LockedFile(Record):
    """One upstream file by the sha256 of its two sides."""

    __slots__ = ("pristine", "patched")
    pristine: str
    patched: str

    def __init__(self, pristine: str, patched: str) -> None:
        self._set(pristine, patched)


class Release:
    """One upstream release: sha256 by wheel file name, LockedFile by target, the patch set's digest and its files."""

    __slots__ = ("files", "patches", "patchset", "version", "wheels")

    def __init__(
        self,
        version: str,
        patchset: str,
        wheels: Mapping[str, str],
        files: Mapping[str, LockedFile],
        patches: Sequence[str] = (),
    ) -> None:
        self.version, self.patchset, self.patches = version, patchset, tuple(patches)
        self.wheels, self.files = dict(wheels), dict(files)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Release({self.version!r}, {len(self.wheels)} wheels, {len(self.files)} files)"


class Lock:
    """All releases we can patch, oldest first."""

    __slots__ = ("releases",)

    def __init__(self, releases: Iterable[Release]) -> None:
        self.releases = tuple(sorted(releases, key=lambda release: version_key(release.version)))

    def supported(self) -> tuple[str, ...]:
        """The versions, oldest first."""
        return tuple(release.version for release in self.releases)

    def described(self) -> str:
        """What is supported, in a few words for a sentence: `0.5.9 to 0.5.23 (19 releases)`."""
        versions = self.supported()
        if len(versions) < 2:
            return versions[0] if versions else "no release"
        return f"{versions[0]} to {versions[-1]} ({len(versions)} releases)"

    def release(self, version: str) -> Release | None:
        """The release of exactly that version, or None."""
        return next((release for release in self.releases if release.version == version), None)

    def get(self, version: str) -> Release:
        """The release of exactly that version; LockError where we do not know it."""
        found = self.release(version)
        if found is None:
            raise LockError(
                f"sglang {version} is not in the lock; supported: {self.described()}. Install one of these."
            )
        return found


def with_release(lock: Lock | None, new: Release) -> Lock:
    """The lock with `new` in it; known wheels of the release stay. LockError if known bytes would change."""
    others = [release for release in lock.releases if release.version != new.version] if lock else []
    known = lock.release(new.version) if lock else None
    wheels, files = (known.wheels, known.files) if known else ({}, {})
    for name, sha256 in new.wheels.items():
        if wheels.get(name, sha256) != sha256:
            raise LockError(
                f"Wheel {name} has sha256 {sha256[:12]}, but the lock knows {wheels[name][:12]}: one"
                " name, two files. If upstream really published it again, delete that line of the lock first."
            )
    for target, entry in new.files.items():
        if target in files and files[target].pristine != entry.pristine:
            raise LockError(
                f"File {target} of release {new.version} has sha256 {entry.pristine[:12]}, but the lock knows"
                f" {files[target].pristine[:12]}: the wheels differ, so they cannot share one patch set."
            )
    return Lock([*others, Release(new.version, new.patchset, {**wheels, **new.wheels}, new.files, new.patches)])


def version_key(version: str) -> tuple[tuple[int, ...], int, str]:
    """Sorts 0.5.9 < 0.5.10rc1 < 0.5.10 < 0.5.10.post1; enough for the releases upstream makes."""
    numbers: list[int] = []
    rest = version
    while rest[:1].isdigit():
        after = rest.lstrip("0123456789")
        numbers.append(int(rest[: len(rest) - len(after)]))
        rest = after.removeprefix(".")
    early = rest.startswith(("a", "b", "rc", "dev"))
    return tuple(numbers), -1 if early else int(rest.startswith("post")), rest


def load_lock(path: str | os.PathLike[str]) -> Lock:
    """Read the lock file; LockError where it is missing, no TOML, or not of the form above."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            text = file.read()
    except OSError as error:
        raise LockError(f"The lock {name} cannot be read ({error.strerror}): {FIX}.") from None
    # An importing process asks twice, for the targets and for the overlay.
    if text not in _READ:
        lock = _lock(name, text)
        _READ.clear()
        _READ[text] = lock
    return _READ[text]


def _lock(name: str, text: bytes) -> Lock:
    try:
        data = _toml(text.decode())
    except ValueError as error:
        raise LockError(f"The lock {name} is not TOML ({error}): {FIX}.") from None
    if data.get("schema") != SCHEMA:
        raise LockError(f"The lock {name} has schema {data.get('schema')!r}, expected {SCHEMA}: {FIX}.")
    _only(data, ("schema", "release"), f"The lock {name}")
    releases = _table(data, "release", f"The lock {name}")
    return Lock(_release(version, releases, f"The lock {name}") for version in releases)


def dump_lock(lock: Lock) -> str:
    """The canonical text: releases oldest first, names sorted; loading it gives the same lock."""
    parts = [f"# Written by tools/check_patches.py --write from upstream's wheels.\nschema = {SCHEMA}\n"]
    for release in lock.releases:
        top = f'release."{release.version}"'
        parts.append(f'\n[{top}]\npatchset = "{release.patchset}"\n')
        if release.patches:
            names = ", ".join(f'"{name}"' for name in release.patches)
            parts.append(f"patches = [{names}]\n")
        parts.append(f"\n[{top}.wheels]\n")
        parts += [f'"{name}" = "{sha256}"\n' for name, sha256 in sorted(release.wheels.items())]
        for target, entry in sorted(release.files.items()):
            parts.append(f'\n[{top}.files."{target}"]\n')
            parts.append(f'pristine = "{entry.pristine}"\npatched = "{entry.patched}"\n')
    return "".join(parts)


def _toml(text: str) -> dict[str, object]:
    """The text as TOML: quickly where it is as we write it. Raises ValueError."""
    from sglang_ext.patchset.plain_toml import read

    data = read(text)
    if data is None:
        import tomllib

        data = tomllib.loads(text)
    return data


def _release(version: str, releases: Mapping[str, object], where: str) -> Release:
    table = _table(releases, version, f"{where}, release")
    where = f"{where}, release {version}"
    _only(table, ("patchset", "patches", "wheels", "files"), where)
    wheels = _table(table, "wheels", where)
    files = _table(table, "files", where)
    if not wheels or not files:
        raise LockError(f"{where} lists no {'files' if wheels else 'wheels'}: {FIX}.")
    locked: dict[str, LockedFile] = {}
    for target in files:
        entry = _table(files, target, where)
        _only(entry, ("pristine", "patched"), f"{where}, file {target}")
        locked[target] = LockedFile(
            _sha256(entry, "pristine", f"{where}, file {target}"),
            _sha256(entry, "patched", f"{where}, file {target}"),
        )
    hashes = {name: _sha256(wheels, name, where) for name in wheels}
    return Release(version, _sha256(table, "patchset", where), hashes, locked, _names(table, where))


def _names(table: Mapping[str, object], where: str) -> list[str]:
    """The patch files of a release: below the folder of the lock, and nowhere else."""
    names = table.get("patches", [])
    if isinstance(names, list) and all(isinstance(name, str) and is_patch_path(name) for name in names):
        return names
    raise LockError(f"{where}: `patches` is {names!r}, expected a list of relative paths that end in .patch: {FIX}.")


def is_patch_path(name: str) -> bool:
    """Is it one relative path of a patch file, in no other folder than it says?"""
    plain = name.endswith(".patch") and len(name.split()) == 1 and not {"\\", '"'} & set(name)
    return plain and not {"", ".", ".."} & set(name.split("/"))


def _table(table: Mapping[str, object], key: str, where: str) -> dict[str, object]:
    value = table.get(key)
    if not isinstance(value, dict):
        raise LockError(f"{where} has no table `{key}`: {FIX}.")
    return value


def _only(table: Mapping[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in keys:
            raise LockError(f"{where} has the unknown key `{key}`: {FIX}.")


def _sha256(table: Mapping[str, object], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or len(value) != 64 or value.strip("0123456789abcdef"):
        raise LockError(f"{where}: `{key}` is {value!r}, expected a sha256 of 64 lowercase hex digits: {FIX}.")
    return value
