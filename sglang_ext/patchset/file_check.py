"""One upstream file under its patches: applied, compiled, its seams in place, and back again."""

from __future__ import annotations

from sglang_ext.patchset.model import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sglang_ext.patchset.model import Patch
    from sglang_ext.patchset.series import PatchSet


class FileCheck:
    """What became of one file. `python` is the version, such as (3, 11), whose syntax the result must keep to."""

    def __init__(self, target: str, source: bytes, patches: Sequence[Patch], python: tuple[int, int]) -> None:
        self.target, self.patches = target, tuple(patches)
        self.pristine, self.patched = sha256(source), ""
        self.offsets: list[tuple[int, ...]] = []  # lines each hunk of each patch lies away from where it says
        self.compiled = self.seams = False
        self.faults: list[str] = []
        try:
            self._check(source, python)
        except PatchError as error:
            self.faults.append(f"cannot be patched: {error}")

    def _check(self, source: bytes, python: tuple[int, int]) -> None:
        from sglang_ext.patchset.diff import apply, apply_with_offsets, reverse

        result = source
        for patch in self.patches:
            result, offsets = apply_with_offsets(patch, result)
            self.offsets.append(offsets)
        self.patched = sha256(result)
        self._compile(result, python)
        self._seams(result)
        try:
            for patch in reversed(self.patches):
                result = apply(reverse(patch), result)
        except PatchError as error:
            self._fault(f"the patches cannot be taken out again: {error}")
            return
        if result != source:
            self._fault("it is another one after patching and taking the patches out again")

    def _compile(self, result: bytes, python: tuple[int, int]) -> None:
        import ast

        try:
            ast.parse(result, self.target, feature_version=python)
            compile(result, self.target, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            self._fault(f"it does not compile after patching (line {line}: {getattr(error, 'msg', error)})")
        else:
            self.compiled = True

    def _seams(self, result: bytes) -> None:
        from sglang_ext.patchset.header import HeaderError, expected_seams
        from sglang_ext.patchset.postcondition import check_seams

        try:
            promised = [seam for patch in self.patches for seam in expected_seams(patch)]
        except HeaderError:
            return  # the header lint says it
        found = check_seams(result, promised) if self.compiled else []
        self.faults += [f"file {self.target} after patching: {fault}" for fault in found]
        self.seams = self.compiled and not found

    def _fault(self, what: str) -> None:
        self.faults.append(f"file {self.target}: {what}")


class Memory:
    """File checks by what went into them: the wheels of a release hold the same files."""

    def __init__(self) -> None:
        self.known: dict[object, FileCheck] = {}

    def check(self, sources: Mapping[str, bytes], patch_set: PatchSet, python: tuple[int, int]) -> dict[str, FileCheck]:
        """The check of each target in `sources`."""
        found: dict[str, FileCheck] = {}
        for target, source in sources.items():
            patches = patch_set.of(target)
            key = (target, source, patches, python)
            if key not in self.known:
                self.known[key] = FileCheck(target, source, patches, python)
            found[target] = self.known[key]
        return found


def sha256(data: bytes) -> str:
    """Hex sha256."""
    import hashlib

    return hashlib.sha256(data).hexdigest()
