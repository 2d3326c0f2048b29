"""tools/check_patches.py on a tiny wheel: what it finds, what it writes, how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.lock import load_lock

TOOL = Path(__file__).parents[2] / "tools" / "check_patches.py"
TARGET = "sglang/srt/launch.py"
STOCK = b"import os\n\n\ndef launch():\n    return os.name\n"
PATCHED = STOCK.replace(b"import os\n", b"import os\nfrom sglang_ext.seams import keep\n").replace(
    b"def launch", b"@keep\ndef launch"
)
HEADER = """Subject: x
Reason: local
Why-Not-A-Plugin: x
Forwarded: no: x
Retire-When: x
Probe: seam launch keep

"""


def _run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _wheel(folder: Path, python: str = "cp311", source: bytes = STOCK) -> Path:
    path = folder / f"sglang-0.5.23-{python}-{python}-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(TARGET, source)
        wheel.writestr("tag.txt", python)
    return path


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    root = tmp_path / "patches"
    root.mkdir()
    (root / "series").write_text("a.patch\n")
    (root / "a.patch").write_text(render(make(TARGET, STOCK, PATCHED, "a.patch", HEADER)))
    return root


def test_write_then_check(patches: Path, tmp_path: Path) -> None:
    wheels = [_wheel(tmp_path, "cp312"), _wheel(tmp_path)]
    assert _run("--patches", patches).returncode == 1  # no lock yet
    done = _run("--patches", patches, "--write", "--wheel", *wheels)
    assert (done.returncode, "no fault" in done.stdout) == (0, True), done
    text = (patches / "upstream.toml").read_text()
    assert _run("--patches", patches, "--write", "--wheel", *reversed(wheels)).returncode == 0
    assert (patches / "upstream.toml").read_text() == text
    assert len(load_lock(patches / "upstream.toml").get("0.5.23").wheels) == 2
    done = _run("--patches", patches, "--json", "--wheel", *wheels)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"], len(report["wheels"])) == (0, True, 2)


def test_stale_lock_and_foreign_wheel(patches: Path, tmp_path: Path) -> None:
    wheel = _wheel(tmp_path)
    _run("--patches", patches, "--write", "--wheel", wheel)
    _wheel(tmp_path, source=STOCK + b"x = 1\n")
    done = _run("--patches", patches, "--wheel", wheel)
    assert done.returncode == 1
    assert "the wheel has sha256" in done.stdout
    assert f"pristine {TARGET} has sha256" in done.stdout
    done = _run("--patches", patches, "--write", "--wheel", wheel)
    assert (done.returncode, "one name, two files" in done.stdout) == (1, True)
    (patches / "a.patch").write_text((patches / "a.patch").read_text().replace("Subject: x", "Subject: y"))
    done = _run("--patches", patches)
    assert (done.returncode, "was made with patch set" in done.stdout) == (1, True)


def test_fault_means_nothing_is_written(patches: Path, tmp_path: Path) -> None:
    path = patches / "a.patch"
    path.write_text(path.read_text().replace("seam launch keep", "seam other keep"))
    done = _run("--patches", patches, "--write", "--wheel", _wheel(tmp_path))
    assert done.returncode == 1
    assert "Seam keep is in the wrong place: expected in other, found in launch" in done.stdout
    assert not (patches / "upstream.toml").exists()


def test_moved_file(patches: Path, tmp_path: Path) -> None:
    path = _wheel(tmp_path)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("sglang/other.py", STOCK)
    done = _run("--patches", patches, "--write", "--wheel", path)
    assert (done.returncode, f"has no file {TARGET}" in done.stdout) == (1, True)


def test_usage(patches: Path, tmp_path: Path) -> None:
    assert _run("--help").returncode == 0
    assert _run("--patches", patches, "--write").returncode == 2
    assert _run("--patches", tmp_path / "nowhere").returncode == 2
    odd = tmp_path / "sglang.whl"
    odd.write_bytes(b"")
    assert _run("--patches", patches, "--write", "--wheel", odd).returncode == 2
    broken = _wheel(tmp_path)
    broken.write_bytes(b"PK")
    done = _run("--patches", patches, "--write", "--wheel", broken)
    assert (done.returncode, "cannot be read as a wheel" in done.stderr) == (2, True)
