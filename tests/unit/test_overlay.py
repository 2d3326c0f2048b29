"""The overlay: right bytes or a sentence, whoever built it and wherever it is kept; and stock stays as it is."""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import stat as stat_bits
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ext.patchset import overlay
from sglang_ext.patchset.overlay import OverlayError, cache_base, prepare
from sglang_ext.patchset.series import patch_set_digest
from tests.unit.overlay_case import ONE, PATCHED, TWO, Case, sha256, write_patches

ROOT = Path(__file__).resolve().parents[2]


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_patched_copies_are_made_and_stock_stays(tmp_path: Path) -> None:
    case = Case(tmp_path)
    before = snapshot(case.root)
    prepared = case.prepare()
    assert (prepared.mode, prepared.release) == ("overlay", "9.9.1")
    assert prepared.digest == patch_set_digest(case.patches)
    assert prepared.hashes == {target: sha256(data) for target, data in PATCHED.items()}
    assert prepared.files == {target: str(case.folder() / target) for target in PATCHED}
    assert {target: Path(path).read_bytes() for target, path in prepared.files.items()} == PATCHED
    assert snapshot(case.root) == before
    assert stat_bits.S_IMODE(case.folder().stat().st_mode) == 0o700


def test_a_second_call_uses_what_is_there(tmp_path: Path) -> None:
    case = Case(tmp_path)
    first = case.prepare()
    before = snapshot(case.cache)
    second = case.prepare()
    assert (second.files, second.hashes, second.digest) == (first.files, first.hashes, first.digest)
    assert snapshot(case.cache) == before


def test_another_patch_set_or_pristine_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    case = Case(tmp_path)
    first = case.prepare()
    other = {**PATCHED, TWO: PATCHED[TWO] + b"MORE = 1\n"}
    write_patches(case.patches, other)
    second = case.prepare()
    assert Path(second.files[TWO]).read_bytes() == other[TWO]
    assert Path(first.files[TWO]).read_bytes() == PATCHED[TWO]
    assert first.digest != second.digest and len(list((case.cache / "overlay").iterdir())) == 2


def test_bytecode_lies_beside_the_copies_and_is_checked_by_hash(tmp_path: Path) -> None:
    case = Case(tmp_path)
    for target, path in case.prepare().files.items():
        cached = Path(importlib.util.cache_from_source(path))
        assert cached.is_relative_to(case.folder())
        data = cached.read_bytes()
        assert int.from_bytes(data[4:8], "little") == 0b11  # PEP 552: hash-based, checked
        assert data[8:16] == importlib.util.source_hash(PATCHED[target])
        assert marshal.loads(data[16:]).co_filename == path
    assert list(case.root.rglob("__pycache__")) == []


def test_bytecode_is_made_for_another_python_too(tmp_path: Path) -> None:
    case = Case(tmp_path)
    cached = [Path(importlib.util.cache_from_source(path)) for path in case.prepare().files.values()]
    for path in cached:
        path.unlink()
    case.prepare()
    assert all(path.exists() for path in cached)
    names = {marshal.loads(path.read_bytes()[16:]).co_filename for path in cached}
    assert names == {str(case.folder() / target) for target in PATCHED}


def test_eight_processes_at_once_build_one_overlay(tmp_path: Path) -> None:
    case = Case(tmp_path)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from sglang_ext.patchset.overlay import prepare
import py_compile, shutil, tomllib, sglang_ext.patchset.diff  # loaded before the start signal: all build at once
print("ready", flush=True)
sys.stdin.readline()
prepared = prepare(sys.argv[2], cache=sys.argv[3], patches=sys.argv[4])
print(*sorted(prepared.files.values()), prepared.mode)
"""
    words = [sys.executable, "-I", "-S", "-c", code, *map(str, (ROOT, case.root, case.cache, case.patches))]
    builders = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for builder in builders:
        assert builder.stdout is not None and builder.stdout.readline() == "ready\n"
    for builder in builders:
        assert builder.stdin is not None
        builder.stdin.write("\n")
        builder.stdin.flush()
    results = {builder.communicate(timeout=30) for builder in builders}
    assert len(results) == 1, results
    ((out, err),) = results
    assert err == "" and out.split() == [*sorted(str(case.folder() / t) for t in PATCHED), "overlay"]
    assert {t: (case.folder() / t).read_bytes() for t in PATCHED} == PATCHED


def test_a_scratch_folder_left_by_a_killed_build_is_not_in_the_way(tmp_path: Path) -> None:
    case = Case(tmp_path)
    folder = case.prepare().files[ONE].removesuffix("/" + ONE)
    shutil.rmtree(folder)
    # In a container the next start has the same pid.
    for name in (f"{folder}.{os.getpid()}.tmp", f"{folder}.tmp"):
        os.mkdir(name)
    assert case.prepare().mode == "overlay"


# --- our own files ----------------------------------------------------------------------------------------


def test_a_patch_set_that_does_not_make_the_locked_bytes_is_broken(tmp_path: Path) -> None:
    case = Case(tmp_path)
    lock = (case.patches / "upstream.toml").read_text()
    write_patches(case.patches, {**PATCHED, TWO: PATCHED[TWO] + b"MORE = 1\n"})
    (case.patches / "upstream.toml").write_text(lock)
    sentence = case.refused("patch_set_broken")
    assert TWO in sentence and "pip install --force-reinstall --no-deps sglang-ext" in sentence
    assert not case.cache.exists()


def test_a_patch_set_without_a_locked_target_is_broken(tmp_path: Path) -> None:
    case = Case(tmp_path)
    (case.patches / "series").write_text("one.patch\n")
    assert TWO in case.refused("patch_set_broken")


@pytest.mark.parametrize("name", ["series", "one.patch", "upstream.toml"])
def test_a_missing_file_of_ours_is_a_value_error_with_its_name(tmp_path: Path, name: str) -> None:
    case = Case(tmp_path)
    (case.patches / name).unlink()
    with pytest.raises(ValueError, match=name):  # what the import hook catches
        case.prepare()


def test_the_shipped_patches_are_found() -> None:
    folder = overlay.patches_folder()
    assert {"series", "upstream.toml"} <= set(os.listdir(folder))


# --- where it is kept -------------------------------------------------------------------------------------


def test_cache_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(tmp_path / "chosen"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_base() == str(tmp_path / "chosen")
    monkeypatch.delenv("SGLANG_EXT_CACHE_DIR")
    assert cache_base() == str(tmp_path / "xdg" / "sglang-ext")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_base() == str(tmp_path / "home" / ".cache" / "sglang-ext")


def test_a_relative_choice_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", "here")
    assert cache_base() == str(tmp_path / "here")


def test_without_a_home_it_is_said_and_nothing_lands_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path / "case")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SGLANG_EXT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "~")  # what expanduser leaves of "~" for a uid without a name
    with pytest.raises(OverlayError, match="set SGLANG_EXT_CACHE_DIR") as error:
        prepare(str(case.root), patches=str(case.patches))
    assert error.value.code == "overlay_unwritable"
    assert os.listdir(tmp_path) == ["case"]
