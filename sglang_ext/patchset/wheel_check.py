"""One upstream wheel against the patch set and the lock: hashes, patches, seams, and back again."""

from __future__ import annotations

import os

from sglang_ext.patchset.diff import PatchError, apply, reverse
from sglang_ext.patchset.header import HeaderError, expected_seams
from sglang_ext.patchset.postcondition import check_seams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sglang_ext.patchset.lock import Lock
    from sglang_ext.patchset.series import PatchSet


class WheelError(PatchError):
    """The file cannot be read as an sglang wheel."""


class WheelCheck:
    """What was found in the wheel at `path`; without `lock` nothing is compared, only tried and hashed."""

    def __init__(self, path: str | os.PathLike[str], patch_set: PatchSet, lock: Lock | None) -> None:
        self.path, self.patch_set, self.lock = os.fspath(path), patch_set, lock
        self.name = os.path.basename(self.path)
        parts = self.name.split("-")
        if len(parts) != 5 or parts[0] != "sglang" or not self.name.endswith(".whl"):
            raise WheelError(f"{self.path} is not named like an sglang wheel; give sglang-X.Y.Z-...-....whl.")
        self.version = parts[1]
        self.sha256, sources = self._read()
        self.pristine = {target: _sha256(data) for target, data in sources.items()}
        self.patched: dict[str, str] = {}
        self.faults: list[str] = []
        for target in patch_set.targets:
            if target not in sources:
                self._fault(f"has no file {target}: upstream moved it; look with tools/rebase_patches.py")
        if not self.faults:
            self._apply(sources)
        self._compare()

    def _read(self) -> tuple[str, dict[str, bytes]]:
        from zipfile import BadZipFile, ZipFile

        try:
            with open(self.path, "rb") as file:
                sha256 = _sha256(file.read())
            with ZipFile(self.path) as wheel:
                names = set(wheel.namelist())
                return sha256, {target: wheel.read(target) for target in self.patch_set.targets if target in names}
        except (OSError, BadZipFile) as error:
            raise WheelError(f"{self.path} cannot be read as a wheel ({error}); download it again.") from None

    def _apply(self, sources: dict[str, bytes]) -> None:
        try:
            results = self.patch_set.apply_all(sources.__getitem__)
        except PatchError as error:
            self._fault(f"cannot be patched: {error}")
            return
        self.patched = {target: _sha256(data) for target, data in results.items()}
        for target, data in results.items():
            patches = [patch for patch in self.patch_set.patches if patch.target == target]
            try:
                compile(data, target, "exec", dont_inherit=True)
                for fault in check_seams(data, [seam for patch in patches for seam in expected_seams(patch)]):
                    self._fault(f"file {target} after patching: {fault}")
                for patch in reversed(patches):
                    data = apply(reverse(patch), data)
                if data != sources[target]:
                    self._fault(f"file {target} is another one after patching and taking the patches out again")
            except SyntaxError as error:
                self._fault(f"file {target} does not compile after patching (line {error.lineno}: {error.msg})")
            except HeaderError:
                pass  # already reported by the header lint
            except PatchError as error:
                self._fault(f"file {target}: the patches cannot be taken out again: {error}")

    def _compare(self) -> None:
        if self.lock is None:
            return
        release = self.lock.release(self.version)
        if release is None:
            self._fault(f"is release {self.version}, but the lock has only {', '.join(self.lock.supported())}")
            return
        self._same("the wheel", self.sha256, release.wheels.get(self.name))
        for target, entry in release.files.items():
            if target in self.pristine:
                self._same(f"pristine {target}", self.pristine[target], entry.pristine)
            if target in self.patched:
                self._same(f"patched {target}", self.patched[target], entry.patched)

    def _same(self, what: str, found: str, expected: str | None) -> None:
        if found != expected:
            wanted = f"expected {expected[:12]} (the lock)" if expected else "which the lock does not know"
            self._fault(f"{what} has sha256 {found[:12]}, {wanted}")

    def _fault(self, what: str) -> None:
        self.faults.append(f"Wheel {self.name}: {what.removesuffix('.')}.")

    def report(self) -> dict[str, object]:
        """For --json."""
        files = {
            target: {"pristine": self.pristine.get(target), "patched": self.patched.get(target)}
            for target in self.patch_set.targets
        }
        return {
            "wheel": self.name,
            "release": self.version,
            "sha256": self.sha256,
            "files": files,
            "ok": not self.faults,
        }


def _sha256(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()
