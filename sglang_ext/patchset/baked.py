"""A baked wheel: upstream's own, of the lock, with the patch set already applied and the version +ext.N.

Pure: bytes in, bytes out, and the same bytes every time. The patched files are those the overlay would hold, all other
entries are upstream's down to their compressed bytes. Changed are `sglang/_version.py`, METADATA (version, a dependency on
this sglang-ext, the notice that Apache-2.0 section 4(b) asks for), RECORD, and the name of the dist-info folder.
"""

from __future__ import annotations

from sglang_ext.patchset import wheel_texts
from sglang_ext.patchset.file_check import sha256
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.wheel_zip import Archive, ZipError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from sglang_ext.patchset.lock import Lock, Release
    from sglang_ext.patchset.series import PatchSet
    from sglang_ext.patchset.wheel_zip import Buffer

VERSION_FILE = "sglang/_version.py"
LOCAL = "ext"  # 0.5.23+ext.1


class BakeError(PatchError):
    """The wheel is not one we may patch. `code` is a stable reason code; the message is one sentence with the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Renamer:
    """Moves one folder at the top of a name, and leaves every other name alone."""

    __slots__ = ("new", "old")

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __call__(self, name: str) -> str:
        return self.new + name[len(self.old) :] if name.startswith(self.old) else name


class Baked:
    """The new wheel: its file name and version, sha256 of each patched file by target, and what makes its bytes."""

    __slots__ = ("_archive", "_contents", "_rename", "name", "patched", "version")

    def __init__(self, name: str, version: str, archive: Archive, contents: dict[str, bytes], rename: Renamer) -> None:
        self.name, self.version = name, version
        self.patched: dict[str, str] = {}
        self._archive, self._contents, self._rename = archive, contents, rename

    def pieces(self) -> Iterator[Buffer]:
        """The bytes of the wheel."""
        return self._archive.rebuilt(self._contents, self._rename)


def baked_name(file: str, release: str, revision: int) -> str:
    """The file name of the wheel baked from wheel `file`; its tags stay."""
    return file.replace(f"sglang-{release}-", f"sglang-{release}+{LOCAL}.{revision}-", 1)


def locked_release(lock: Lock, file: str) -> Release:
    """The release that wheel file name belongs to; BakeError where the lock has none."""
    for release in lock.releases:
        if file in release.wheels:
            return release
    raise BakeError(
        "wheel_not_locked",
        f"wheel {file} is not in the lock, which knows the wheels of {lock.described()} by their file names; "
        "take one of these, under its own name",
    )


def check_bytes(release: Release, file: str, data: bytes) -> None:
    """Hold the wheel's bytes against the lock, before any of them is used for anything else."""
    found, expected = sha256(data), release.wheels[file]
    if found != expected:
        raise BakeError(
            "wheel_changed",
            f"wheel {file} is not the one upstream released: sha256 {found[:12]}, expected {expected[:12]} (the lock); "
            "download it again, from an index that you trust",
        )


def bake(file: str, data: bytes, release: Release, patch_set: PatchSet, revision: int, ours: str) -> Baked:
    """The baked wheel made of `data`, the bytes of wheel `file`, for version `ours` of sglang-ext. Raises BakeError."""
    check_bytes(release, file, data)
    version = f"{release.version}+{LOCAL}.{revision}"
    rename = Renamer(f"sglang-{release.version}.dist-info/", f"sglang-{version}.dist-info/")
    try:
        archive = Archive(data)
        contents = _patched(archive, release, patch_set)
        baked = Baked(baked_name(file, release.version, revision), version, archive, contents, rename)
        baked.patched.update((target, sha256(patched)) for target, patched in contents.items())
        stated = archive.read(VERSION_FILE)
        contents[VERSION_FILE] = wheel_texts.version_file(stated, release.version, f"{LOCAL}.{revision}")
        notice = _notice(release, patch_set, list(contents), ours)
        metadata, record = (f"{rename.old}{name}" for name in ("METADATA", "RECORD"))
        stated = archive.read(metadata)
        contents[metadata] = wheel_texts.metadata(stated, release.version, version, f"sglang-ext=={ours}", notice)
        contents[record] = wheel_texts.record(archive.read(record), contents, rename)
    except (ZipError, wheel_texts.TextError) as error:
        raise BakeError("wheel_changed", f"wheel {file} is not laid out as wheels of sglang were: {error}") from None
    return baked


def _patched(archive: Archive, release: Release, patch_set: PatchSet) -> dict[str, bytes]:
    """The patched files by target, with the hashes of the lock, all or none: what the overlay would hold."""
    if set(patch_set.targets) != set(release.files):
        raise _broken(
            f"the patch set changes {', '.join(patch_set.targets)}, the lock expects {', '.join(release.files)}"
        )
    try:
        results = patch_set.apply_all(archive.read)
    except ZipError:
        raise
    except PatchError as error:
        raise _broken(str(error).rstrip(".")) from None
    for target, entry in release.files.items():
        found = sha256(results[target])
        if found != entry.patched:
            raise _broken(f"patching {target} gives sha256 {found[:12]}, the lock expects {entry.patched[:12]}")
    return results


def _broken(what: str) -> BakeError:
    return BakeError("patch_set_broken", f"{what}; run: pip install --force-reinstall --no-deps sglang-ext")


def _notice(release: Release, patch_set: PatchSet, changed: list[str], ours: str) -> str:
    """For the top of the description: who changed which files of what."""
    return "".join(
        [
            f"> **Modified.** This is SGLang {release.version} as changed by sglang-ext {ours}, not as its authors ",
            "released it. Changed files:\n>\n",
            *(f"> - `{name}`\n" for name in changed),
            f">\n> By the patches {', '.join(f'`{name}`' for name in patch_set.names)} ",
            f"(patch set {patch_set.digest[:12]}) and the version; this metadata was changed, too. Everything else is ",
            "SGLang's own, under its license.\n",
        ]
    )
