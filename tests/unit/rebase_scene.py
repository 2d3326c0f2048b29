"""Tiny wheels of releases, a folder of patches that knows one of them, and tools/rebase_patches.py run on both."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.patchset.diff import make, render
from tools import check_patches, rebase_patches

TOOL = Path(rebase_patches.__file__)
TARGET, OTHER = "sglang/srt/worker.py", "sglang/srt/other.py"
STOCK = (
    b"import os\nimport zmq\n\n\ndef first(args):\n    return os.name\n\n\ndef launch(args):\n    return zmq, args\n"
)
PATCHED = STOCK.replace(b"import zmq\n", b"from sglang_ext.seams import keep\nimport zmq\n").replace(
    b"def launch", b"@keep\ndef launch"
)
OTHERS = "".join(f"line_{number} = {number}\n" for number in range(20)).encode()
HEADER = "Subject: x\nReason: local\nWhy-Not-A-Plugin: x\nForwarded: no: x\nRetire-When: x\nProbe: seam launch keep\n\n"
SHIFTED = b"import sys\n" + STOCK  # the text fits, at other lines
CHANGED = STOCK.replace(b"import os\n", b"import os  # noqa\n")  # it must be merged
TOUCHED = STOCK.replace(b"def launch", b"@traced\ndef launch")  # a conflict at its place


def wheel(folder: Path, version: str, source: bytes | None, other: bytes = OTHERS, python: str = "cp311") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"sglang-{version}-{python}-{python}-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(path, "w") as made:
        if source is not None:
            made.writestr(TARGET, source)
        made.writestr(OTHER, other)
        made.writestr("tag.txt", python)
    return path


class Scene:
    """A folder of patches that knows 0.5.23, and a folder of wheels."""

    def __init__(self, folder: Path, entry: str = "worker/", other: bytes = OTHERS) -> None:
        release = "0.5.23"
        self.folder, self.patches, self.wheels = folder, folder / "patches", folder / "wheels"
        name = f"worker/{release}.patch" if entry == "worker/" else entry
        (self.patches / name).parent.mkdir(parents=True)
        (self.patches / name).write_text(render(make(TARGET, STOCK, PATCHED, name, HEADER)))
        (self.patches / "series").write_text(f"# in order\n{entry}  # the only one\n")
        old = wheel(self.wheels, release, STOCK, other)
        assert check_patches.main(["--patches", str(self.patches), "--write", "--wheel", str(old)]) == 0

    def run(self, to: str, *more: str) -> int:
        command = ["--patches", str(self.patches), "--wheels", str(self.wheels), "--to", to, *more]
        return rebase_patches.main(command)

    def subprocess(self, to: str, *before: str, **more: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, *(before or (str(TOOL),)), "--patches", str(self.patches)]
        command += ["--wheels", str(self.wheels), "--to", to]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)

    @property
    def left(self) -> Path:
        return self.folder / ".rig" / "rebase"

    @property
    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.patches)) for path in self.patches.rglob("*.patch"))

    def checked(self) -> bool:
        """Does tools/check_patches.py find the folder good, with every wheel of the lock?"""
        return check_patches.main(["--patches", str(self.patches), "--wheels", str(self.wheels)]) == 0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.delenv("SGLANG_EXT_LOCAL_PATCHES", raising=False)
    return Scene(tmp_path)


def own(scene: Scene, change: tuple[bytes, bytes] = (b"line_9 = 9", b"line_9 = 90"), stock: bytes = OTHERS) -> Path:
    path = scene.patches / "local" / "mine.patch"
    path.parent.mkdir()
    path.write_text(render(make(OTHER, stock, stock.replace(*change), "local/mine.patch", "Subject: mine\n")))
    return path
