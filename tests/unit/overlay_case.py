"""A small upstream with two targets, a patch set of its own with its lock, and a cache for the overlay."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock
from sglang_ext.patchset.overlay import OverlayError, Prepared, prepare
from sglang_ext.patchset.series import patch_set_digest

ONE, TWO = "sglang/srt/one.py", "sglang/srt/deep/two.py"
PRISTINE = {
    ONE: b'"""One."""\n\n\ndef who():\n    return "stock"\n\n\ndef fails():\n    raise ValueError("here")\n',
    TWO: b"import os\n\nVALUE = 1\nNAME = os.name\n",
}
PATCHED = {
    ONE: PRISTINE[ONE].replace(b'"stock"', b'"patched"'),
    TWO: PRISTINE[TWO].replace(b"VALUE = 1", b"VALUE = 2"),
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_tree(root: Path, files: dict[str, bytes], version: str = "9.9.1") -> Path:
    """A site-packages folder with an sglang of ``version`` in it."""
    for name, data in {"sglang/__init__.py": b"", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / f"sglang-{version}.dist-info").mkdir(exist_ok=True)
    return root


def write_patches(folder: Path, patched: dict[str, bytes] = PATCHED, version: str = "9.9.1") -> Path:
    """A patch set that makes ``patched`` of PRISTINE, with its lock."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for target, data in PRISTINE.items():
        name = Path(target).stem + ".patch"
        (folder / name).write_text(render(make(target, data, patched[target], name, "Subject: x\n\n")))
        names.append(name)
    (folder / "series").write_text("\n".join(names) + "\n")
    files = {t: LockedFile(sha256(PRISTINE[t]), sha256(patched[t])) for t in PRISTINE}
    release = Release(version, patch_set_digest(folder), {"sglang.whl": "0" * 64}, files)
    (folder / "upstream.toml").write_text(dump_lock(Lock([release])))
    return folder


class Case:
    """One upstream, one patch set, one cache."""

    def __init__(self, base: Path) -> None:
        self.root = write_tree(base / "site", PRISTINE)
        self.patches = write_patches(base / "patches")
        self.cache = base / "cache"

    def prepare(self) -> Prepared:
        return prepare(str(self.root), cache=str(self.cache), patches=str(self.patches))

    def refused(self, code: str) -> str:
        """The sentence of the OverlayError with ``code``."""
        with pytest.raises(OverlayError) as error:
            self.prepare()
        assert error.value.code == code
        return str(error.value)

    def folder(self) -> Path:
        (folder,) = (self.cache / "overlay").iterdir()
        return folder
