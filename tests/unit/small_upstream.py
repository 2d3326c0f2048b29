"""A small upstream as pip leaves it: two files that we patch, others, RECORD, its wheel, a patch set with its lock."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.local import FOLDER, WITHOUT
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock
from sglang_ext.patchset.series import patch_set_digest

ONE, TWO, OTHER = "sglang/srt/one.py", "sglang/srt/deep/two.py", "sglang/srt/other.py"
PACKAGE, DATA = "sglang/srt/deep/__init__.py", "sglang/srt/N=1,block=[2, 3].json"
BODY = b"".join(b"line_%d = %d\n" % (number, number) for number in range(40))
FILES = {
    "sglang/__init__.py": b"NAME = 'sglang'\n",
    ONE: b'"""One."""\n' + BODY,
    TWO: b'"""Two."""\n' + BODY,
    OTHER: b'"""Other."""\n' + BODY,
    PACKAGE: BODY,
    DATA: b'{\n "a": 1,\n "b": 2,\n "c": 3\n}\n',
}
OURS = {name: FILES[name].replace(b"line_5 = 5\n", b"line_5 = 'ours'\n") for name in (ONE, TWO)}
WHEEL = "sglang-9.9.1-py3-none-any.whl"
INFO = "sglang-9.9.1.dist-info"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def row(name: str, data: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    shown = '"' + name.replace('"', '""') + '"' if "," in name else name
    return f"{shown},sha256={value},{len(data)}\n"


class Site:
    """It all, below ``base``; the environment points at its folder of local patches."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base, self.root, self.info = base, base / "site", base / "site" / INFO
        self.patches, self.local, self.wheel = base / "patches", base / "local", base / WHEEL
        metadata = {f"{INFO}/METADATA": b"Name: sglang\nVersion: 9.9.1\n", f"{INFO}/WHEEL": b"Tag: py3-none-any\n"}
        everything = {**FILES, **metadata}
        record = "".join(row(name, data) for name, data in everything.items()) + f"{INFO}/RECORD,,\n"
        everything[f"{INFO}/RECORD"] = record.encode()
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            for name, data in everything.items():
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                wheel.writestr(name, data)
        self.patches.mkdir()
        names = []
        for target, data in OURS.items():
            name = Path(target).stem + ".patch"
            (self.patches / name).write_text(render(make(target, FILES[target], data, name, "Subject: x\n\n")))
            names.append(name)
        (self.patches / "series").write_text("\n".join(names) + "\n")
        files = {name: LockedFile(sha256(FILES[name]), sha256(data)) for name, data in OURS.items()}
        digest = patch_set_digest(self.patches)
        release = Release("9.9.1", digest, {WHEEL: sha256(self.wheel.read_bytes())}, files, names)
        (self.patches / "upstream.toml").write_text(dump_lock(Lock([release])))
        self.digest = digest
        monkeypatch.setenv(FOLDER, str(self.local))
        monkeypatch.delenv(WITHOUT, raising=False)

    def where(self) -> tuple[str, str]:
        return str(self.root), str(self.patches)

    def snapshot(self) -> dict[str, bytes]:
        """Every file and its bytes."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def edit(self, name: str, old: bytes, new: bytes) -> bytes:
        """Edit a file by hand."""
        path = self.root / name
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new, 1))
        return path.read_bytes()

    def add_local(self, file: str, target: str, old: bytes, new: bytes, base: bytes | None = None) -> bytes:
        """A local patch that replaces a piece of a file; returns what it makes of ``base``."""
        base = FILES[target] if base is None else base
        made = base.replace(old, new, 1)
        assert made != base
        path = self.local / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(make(target, base, made, file)))
        return made
