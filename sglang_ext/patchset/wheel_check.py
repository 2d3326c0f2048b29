"""An upstream wheel, or an installed upstream, against the patch set of its release and the lock."""

from __future__ import annotations

import os

from sglang_ext.patchset.file_check import Memory, sha256
from sglang_ext.patchset.model import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sglang_ext.patchset.file_check import FileCheck
    from sglang_ext.patchset.lock import Lock
    from sglang_ext.patchset.series import PatchSet

    Choose = Callable[[str], PatchSet]  # the patch set of a release

OLDEST = (3, 11)  # the oldest Python we run on; wheels for every Python (py3) are held to its syntax


class WheelError(PatchError):
    """The file cannot be read as an sglang wheel."""


class Check:
    """What was found in one copy of upstream; without `lock` nothing is compared, only tried and hashed."""

    def __init__(self, name: str, version: str, lock: Lock | None) -> None:
        self.name, self.version, self.lock = name, version, lock
        self.patch_set: PatchSet | None = None
        self.files: dict[str, FileCheck] = {}
        self.faults: list[str] = []

    def _try(
        self, choose: Choose, read: Callable[[str], bytes | None], memory: Memory, python: tuple[int, int]
    ) -> None:
        try:
            self.patch_set = choose(self.version)
        except PatchError as error:
            self._fault(str(error))
            return
        found = {target: read(target) for target in self.patch_set.targets}
        for target, data in found.items():
            if data is None:
                self._fault(f"has no file {target}: upstream moved it; look with tools/rebase_patches.py")
        sources = {target: data for target, data in found.items() if data is not None}
        self.files = memory.check(sources, self.patch_set, python)
        for file in self.files.values():
            for fault in file.faults:
                self._fault(fault)
        self._compare(self.lock)

    def _compare(self, lock: Lock | None) -> None:
        if lock is None or self.patch_set is None:
            return
        release = lock.release(self.version)
        if release is None:
            self._fault(f"is release {self.version}, but the lock has only {lock.described()}")
            return
        if release.patches and release.patches != self.patch_set.names:
            listed, chosen = ", ".join(release.patches), ", ".join(self.patch_set.names)
            self._fault(f"takes {chosen} by the series, but the lock says {listed}")
        for target, entry in release.files.items():
            if target in self.files:
                self._same(f"pristine {target}", self.files[target].pristine, entry.pristine)
                self._same(f"patched {target}", self.files[target].patched, entry.patched)

    def _same(self, what: str, found: str, expected: str | None) -> None:
        if found and found != expected:
            wanted = f"expected {expected[:12]} (the lock)" if expected else "which the lock does not know"
            self._fault(f"{what} has sha256 {found[:12]}, {wanted}")

    def _fault(self, what: str) -> None:
        self.faults.append(f"{self.name}: {what.removesuffix('.')}.")


class WheelCheck(Check):
    """One wheel file."""

    def __init__(
        self, path: str | os.PathLike[str], choose: Choose, lock: Lock | None, memory: Memory | None = None
    ) -> None:
        from zipfile import BadZipFile, ZipFile

        self.path = os.fspath(path)
        self.file = os.path.basename(self.path)
        parts = self.file.split("-")
        if len(parts) != 5 or parts[0] != "sglang" or not self.file.endswith(".whl"):
            raise WheelError(f"{self.path} is not named like an sglang wheel; give sglang-X.Y.Z-...-....whl.")
        super().__init__(f"Wheel {self.file}", parts[1], lock)
        try:
            with open(self.path, "rb") as file:
                self.sha256 = sha256(file.read())
            with ZipFile(self.path) as wheel:
                names = set(wheel.namelist())
                self._try(
                    choose, lambda t: wheel.read(t) if t in names else None, memory or Memory(), _python(parts[2])
                )
        except (OSError, BadZipFile) as error:
            raise WheelError(f"{self.path} cannot be read as a wheel ({error}); download it again.") from None
        release = lock.release(self.version) if lock else None
        if release is not None:
            self._same("the wheel", self.sha256, release.wheels.get(self.file))

    def report(self) -> dict[str, object]:
        """For --json."""
        return {
            "wheel": self.file,
            "release": self.version,
            "sha256": self.sha256,
            "patches": list(self.patch_set.names) if self.patch_set else [],
            "files": {target: _file_report(file) for target, file in self.files.items()},
            "ok": not self.faults,
        }


class InstalledCheck(Check):
    """The `sglang` folder inside `root`, as released; `identify` it first (overlay.py)."""

    def __init__(self, root: str, version: str, choose: Choose, lock: Lock) -> None:
        import sys

        super().__init__(f"Installed sglang {version}", version, lock)

        def read(target: str) -> bytes | None:
            with open(os.path.join(root, *target.split("/")), "rb") as file:
                return file.read()

        self._try(choose, read, Memory(), sys.version_info[:2])


def _file_report(file: FileCheck) -> Mapping[str, object]:
    return {
        "pristine": file.pristine,
        "patched": file.patched or None,
        "offsets": [list(offsets) for offsets in file.offsets],
        "compiled": file.compiled,
        "seams": file.seams,
    }


def _python(tag: str) -> tuple[int, int]:
    """The Python whose syntax a wheel's tag allows: cp312 -> (3, 12)."""
    minor = tag.removeprefix("cp3")
    return (3, int(minor)) if tag.startswith("cp3") and minor.isdigit() else OLDEST
