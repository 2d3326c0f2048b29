"""tools/check_patches.py on a tiny wheel: what it finds, what it writes, how it exits."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.lock import load_lock
from tools import check_patches

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


def _run(*args: object, installed: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The tool as a command; a process of its own only where it must find a SGLang of ours, as it takes a while to start."""
    words = list(map(str, args))
    if installed is not None:
        env = os.environ | {"PYTHONPATH": str(installed)}
        command = [sys.executable, str(TOOL), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    out, err, path = io.StringIO(), io.StringIO(), sys.path[:]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = check_patches.main(words)
    except SystemExit as ended:  # of argparse
        status = int(ended.code or 0)
    finally:
        sys.path[:] = path
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


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
    assert report["releases"] == ["0.5.23"]
    (file,) = report["wheels"][0]["files"].values()
    assert (file["offsets"], file["compiled"], file["seams"]) == ([[0]], True, True)


def test_the_installed_upstream_is_checked_too(patches: Path, tmp_path: Path) -> None:
    _run("--patches", patches, "--write", "--wheel", _wheel(tmp_path))
    site = tmp_path / "site"
    target = site / TARGET
    target.parent.mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    (site / "sglang-0.5.23.dist-info").mkdir()
    target.write_bytes(STOCK)
    done = _run("--patches", patches, installed=site)
    assert (done.returncode, "checking the installed sglang 0.5.23" in done.stderr) == (0, True), done
    for data, part in ((STOCK + b"x = 1\n", "is not sglang 0.5.23 as released"), (PATCHED, "is patched already")):
        target.write_bytes(data)
        done = _run("--patches", patches, installed=site)
        assert (done.returncode, "not checked: " in done.stderr, part in done.stderr) == (0, True, True), done


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


# --- several releases, variants, the table

NEWER = STOCK.replace(b"os.name", b"os.sep").replace(b"def launch", b"# newer\ndef launch")


def _release(folder: Path, version: str, source: bytes) -> Path:
    path = folder / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(TARGET, source)
    return path


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A patch set with two variants of one file, and in `wheels/` three releases."""
    root = tmp_path / "patches"
    (root / "launch").mkdir(parents=True)
    (root / "series").write_text("launch/\n")
    for version, source in (("0.5.9", STOCK), ("0.5.21", NEWER)):
        patched = source.replace(b"import os\n", b"import os\nfrom sglang_ext.seams import keep\n")
        patched = patched.replace(b"def launch", b"@keep\ndef launch")
        name = f"launch/{version}.patch"
        (root / name).write_text(render(make(TARGET, source, patched, name, HEADER)))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    _release(wheels, "0.5.9", STOCK)
    _release(wheels, "0.5.14", b"x = 1\n" * 3 + STOCK)
    _release(wheels, "0.5.21", NEWER)
    return root


def _lock_all(root: Path) -> subprocess.CompletedProcess[str]:
    return _run("--patches", root, "--wheels", root.parent / "wheels", "--table", "--write")


def test_every_release_takes_its_variant_and_the_table_says_so(several: Path) -> None:
    wheels, page = several.parent / "wheels", several.parent / "docs" / "releases.md"
    done = _lock_all(several)
    assert (done.returncode, "releases locked: 3, wheels checked: 3, no fault" in done.stdout) == (0, True), done
    lock = load_lock(several / "upstream.toml")
    assert [release.patches for release in lock.releases] == [
        ("launch/0.5.9.patch",),
        ("launch/0.5.9.patch",),
        ("launch/0.5.21.patch",),
    ]
    assert "| 0.5.21 | 1 | 0.5.21 (0) | 1 of 1 | 1 of 1 |" in page.read_text()
    assert "| 0.5.14 | 1 | 0.5.9 (+3) | 1 of 1 | 1 of 1 |" in page.read_text()
    assert "Variants of launch: 2 (0.5.9, 0.5.21)." in page.read_text()
    assert _run("--patches", several).returncode == 0
    assert _run("--patches", several, "--wheels", wheels, "--table").returncode == 0
    page.write_text(page.read_text().replace("1 of 1", "2 of 2"))
    done = _run("--patches", several, "--wheels", wheels, "--table")
    assert (done.returncode, "is not what the wheels show" in done.stdout) == (1, True)
    page.write_text("")
    done = _run("--patches", several)
    assert (done.returncode, "was made from another lock" in done.stdout) == (1, True)


def test_one_release_that_does_not_fit_and_nothing_is_written(several: Path) -> None:
    _release(several.parent / "wheels", "0.5.14", STOCK.replace(b"import os", b"import os as os"))
    done = _lock_all(several)
    assert done.returncode == 1
    assert "Wheel sglang-0.5.14-py3-none-any.whl: cannot be patched: Patch launch/0.5.9.patch" in done.stdout
    assert not (several / "upstream.toml").exists() and not (several.parent / "docs").exists()


def test_an_unused_variant_and_a_changed_one(several: Path) -> None:
    wheels = several.parent / "wheels"
    (wheels / "sglang-0.5.21-py3-none-any.whl").unlink()
    done = _lock_all(several)
    assert (done.returncode, "launch/0.5.21.patch is used by no release" in done.stdout) == (1, True)
    _release(wheels, "0.5.21", NEWER)
    assert _lock_all(several).returncode == 0
    (several / "launch" / "0.5.21.patch").rename(several / "launch" / "0.5.20.patch")
    done = _run("--patches", several)
    assert done.returncode == 1
    assert "takes launch/0.5.21.patch, by the series launch/0.5.20.patch" in done.stdout


def test_a_new_release_joins_the_lock_alone(several: Path) -> None:
    wheels = several.parent / "wheels"
    assert _lock_all(several).returncode == 0
    new = _release(several.parent, "0.5.22", NEWER + b"# more\n")
    assert _run("--patches", several, "--wheel", new).returncode == 1  # the lock does not know it
    assert _run("--patches", several, "--wheel", new, "--write").returncode == 0
    assert load_lock(several / "upstream.toml").supported() == ("0.5.9", "0.5.14", "0.5.21", "0.5.22")
    done = _run("--patches", several, "--wheels", wheels)
    assert (done.returncode, "has no sglang-0.5.22-py3-none-any.whl" in done.stderr) == (2, True)
    done = _run("--patches", several, "--wheels", wheels, "--release", "0.5.9")
    assert (done.returncode, "wheels checked: 1, 1 fault" in done.stdout) == (1, True)
    assert "was made from another lock: run tools/check_patches.py --fetch --table --write" in done.stdout
    old = _release(several.parent, "0.5.8", STOCK)
    done = _run("--patches", several, "--wheel", old)
    assert (done.returncode, "0.5.8 is older than every variant in launch/" in done.stdout) == (1, True)


def test_the_table_needs_every_release(several: Path) -> None:
    _lock_all(several)
    one = several.parent / "wheels" / "sglang-0.5.9-py3-none-any.whl"
    done = _run("--patches", several, "--wheel", one, "--table")
    assert (done.returncode, "has none of 0.5.14, 0.5.21: add --fetch" in done.stdout) == (1, True)


def test_syntax_newer_than_the_wheels_python(patches: Path, tmp_path: Path) -> None:
    """A wheel for 3.11 may not come out with what only 3.12 reads."""
    path = patches / "a.patch"
    patched = PATCHED.replace(b"def launch():", b"def launch[T]():")
    path.write_text(render(make(TARGET, STOCK, patched, "a.patch", HEADER)))
    done = _run("--patches", patches, "--write", "--wheel", _wheel(tmp_path))
    assert (done.returncode, "does not compile after patching" in done.stdout) == (1, True)


def test_a_locked_release_that_no_variant_is_for_any_more_is_said(several: Path) -> None:
    """Its variant was deleted before the lock was written again."""
    assert _lock_all(several).returncode == 0
    (several / "launch" / "0.5.9.patch").unlink()
    before = (several / "upstream.toml").read_bytes()
    wheel = several.parent / "wheels" / "sglang-0.5.21-py3-none-any.whl"
    done = _run("--patches", several, "--write", "--wheel", wheel)
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 0), done.stderr
    assert "The lock also has release 0.5.9. Release 0.5.9 is older than every variant in launch/" in done.stdout
    assert (several / "upstream.toml").read_bytes() == before
