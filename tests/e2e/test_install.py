"""pip install, what every Python start sees of it, and pip uninstall."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .conftest import ROOT, Done, run


def shell(**extra: str) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("SGLANG_EXT", "PYTHON"))}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **extra}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from what git tracks (a build leaves folders behind, and would take stray files along)."""
    source = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", ".rig", "build", "*.egg-info", "__pycache__")
    )
    out = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source), env=shell())
    assert done.status == 0, done.err
    return next(out.glob("sglang_ext-*.whl"))


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A fresh environment with pip only: no sglang."""
    assert run(sys.executable, "-m", "venv", str(tmp_path / "venv")).status == 0
    return tmp_path / "venv"


def python(venv: Path, *words: str, env: Mapping[str, str] | None = None) -> Done:
    return run(str(venv / "bin" / "python"), *words, env=env or shell())


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder by hash; bytecode that other runs may add is left out."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and "__pycache__" not in p.parts
    }


def test_install_and_uninstall_leave_site_packages_as_before(venv: Path, wheel: Path) -> None:
    site = next((venv / "lib").glob("python3*/site-packages"))
    before = tree(site)
    assert python(venv, "-m", "pip", "install", "-q", "--no-deps", str(wheel)).status == 0
    added = set(tree(site)) - set(before)
    assert "sglang_ext.pth" in added
    assert {name.split("/")[0].split("-")[0] for name in added} == {"sglang_ext.pth", "sglang_ext"}
    assert python(venv, "-m", "pip", "uninstall", "-qy", "sglang-ext").status == 0
    assert tree(site) == before
    assert not list(site.glob("sglang_ext*"))


def test_no_python_start_notices(venv: Path, wheel: Path) -> None:
    """`python -c pass` and `pip list` say what they said before: without sglang, and with us half removed."""
    starts = (("-c", "pass"), ("-m", "pip", "--version"), ("-c", "import json, asyncio, multiprocessing"))
    before = [python(venv, *words) for words in starts]
    assert python(venv, "-m", "pip", "install", "-q", "--no-deps", str(wheel)).status == 0
    assert [python(venv, *words) for words in starts] == before
    listed = python(venv, "-m", "pip", "list")
    assert (listed.status, listed.err) == (0, "")
    missing = python(venv, "-c", "import sglang")
    assert missing.err.splitlines()[-1] == "ModuleNotFoundError: No module named 'sglang'"
    site = next((venv / "lib").glob("python3*/site-packages"))
    shutil.rmtree(site / "sglang_ext")  # half removed: the .pth is left
    assert [python(venv, *words) for words in starts] == before
    assert python(venv, "-m", "pip", "list").err == ""
    (site / "sglang").mkdir()
    (site / "sglang" / "__init__.py").write_text("print('stock')\n")
    left = python(venv, "-c", "import sglang")
    assert (left.status, left.out) == (0, "stock\n")
    assert "its package is gone and its sglang_ext.pth was left behind" in left.err
    (site / "sglang_ext").mkdir()  # and cut off while it was written
    (site / "sglang_ext" / "__init__.py").write_text("")
    (site / "sglang_ext" / "bootstrap.py").write_text("def first_import(:\n")
    damaged = python(venv, "-c", "import sglang")
    assert (damaged.status, damaged.out) == (0, "stock\n")
    assert "running stock, unpatched: its bootstrap is damaged (SyntaxError" in damaged.err
    assert "pip install --force-reinstall --no-deps sglang-ext" in damaged.err and "Traceback" not in damaged.err


def test_pip_check_is_clean() -> None:
    done = run(sys.executable, "-m", "pip", "check", env=shell())
    assert done.status == 0, done.out


def test_the_command_line_starts_without_anything_heavy() -> None:
    script = str(Path(sys.executable).with_name("sglang-ext"))
    for words in (("--help",), ("verify-env", "--help"), ("gate", "--help"), ("launch", "--help")):
        done = run(sys.executable, "-X", "importtime", script, *words)
        assert done.status == 0
        loaded = {line.rpartition("|")[2].strip() for line in done.err.splitlines() if line.startswith("import time")}
        assert not loaded & {"torch", "sglang", "numpy", "psutil", "asyncio", "tomllib"}, words
