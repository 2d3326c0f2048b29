"""An overlay that is there already is believed only as it was written, where nobody else could have written it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.overlay_case import ONE, PATCHED, PRISTINE, TWO, Case, sha256

NOBODY = 65534
ROOT_USER = os.geteuid() == 0


def put(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        put(PATCHED[ONE] + b"import evil\n"),
        put(PATCHED[ONE][:-10]),
        put(b""),
        put(PRISTINE[ONE]),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: shutil.rmtree(path.parent),
    ],
    ids=["added", "truncated", "empty", "pristine", "missing", "folder", "folder missing"],
)
def test_a_file_that_is_not_as_written_stops(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    case = Case(tmp_path)
    path = Path(case.prepare().files[ONE])
    damage(path)
    sentence = case.refused("overlay_tampered")
    assert str(path) in sentence or TWO in sentence
    assert f"expected {sha256(PATCHED[ONE])[:12]}" in sentence or TWO in sentence
    assert f"remove {case.folder()} and start again" in sentence


@pytest.mark.parametrize("bits", [0o770, 0o702, 0o777, 0o720])
def test_a_folder_others_can_write_to_is_not_trusted(tmp_path: Path, bits: int) -> None:
    case = Case(tmp_path)
    case.prepare()
    case.folder().chmod(bits)
    sentence = case.refused("overlay_untrusted")
    assert f"with mode {bits:04o}" in sentence and "SGLANG_EXT_CACHE_DIR" in sentence
    case.folder().chmod(0o755)  # others may read it: an image may carry it
    assert case.prepare().mode == "overlay"


@pytest.mark.parametrize("below", ["sglang/srt", "sglang/srt/__pycache__", ONE])
def test_nor_one_with_a_place_below_that_others_can_write_to(tmp_path: Path, below: str) -> None:
    """Bytecode is believed by a hash of its source that everybody can compute: who may put some there could have it run."""
    case = Case(tmp_path)
    case.prepare()
    case.folder().chmod(0o755)
    place = case.folder() / below
    place.chmod(place.stat().st_mode | 0o022)
    assert str(place) in case.refused("overlay_untrusted")


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_whatever_the_umask_nobody_else_may_write(tmp_path: Path, umask: int) -> None:
    case = Case(tmp_path)
    before = os.umask(umask)
    try:
        shutil.rmtree(Path(case.prepare().files[ONE]).parent / "__pycache__")
        case.prepare()  # makes the bytecode anew
        assert case.prepare().mode == "overlay"
    finally:
        os.umask(before)
    assert not any(path.stat().st_mode & 0o022 for path in case.folder().rglob("*"))


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_is_not_trusted(tmp_path: Path, kind: str) -> None:
    case = Case(tmp_path)
    case.prepare()
    folder = case.folder()
    os.rename(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere") if kind == "link" else folder.write_text("")
    case.refused("overlay_untrusted")


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.prepare()
    folder = case.folder()
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "target-of-somebody-else")
    case.refused("overlay_untrusted")
    assert not (tmp_path / "target-of-somebody-else").exists()


def test_a_cache_that_is_no_folder_cannot_be_written(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.cache.write_text("")
    sentence = case.refused("overlay_unwritable")
    assert str(case.cache) in sentence and "set SGLANG_EXT_CACHE_DIR to a writable folder" in sentence


def as_user(function: Callable[[], None]) -> None:
    """``function()`` in a fork that permissions hold for: as nobody, if we are root. Its assertion is ours."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if ROOT_USER:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            function()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def within(base: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A case by relative paths: nobody may not pass through the folders above, but may be in this one."""
    Case(base).prepare()  # whatever it imports on demand is imported now, while we can
    shutil.rmtree(base / "cache")
    for path in (base, *base.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    monkeypatch.chdir(base)
    return Case(Path())


def test_a_cache_we_may_not_write_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = within(tmp_path, monkeypatch)
    case.cache.mkdir()
    case.cache.chmod(0o555)
    as_user(lambda: check_unwritable(case))
    assert list(case.cache.iterdir()) == []
    case.cache.chmod(0o755)


def check_unwritable(case: Case) -> None:
    assert "(Permission denied); set SGLANG_EXT_CACHE_DIR to a writable" in case.refused("overlay_unwritable")


def test_a_ready_overlay_in_a_read_only_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = within(tmp_path, monkeypatch)
    cached = [Path(importlib.util.cache_from_source(path)) for path in case.prepare().files.values()]
    cached[0].unlink()  # made by another Python: this one has no bytecode there and cannot write any
    folders = [path for path in (case.cache, *case.cache.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    for path in case.cache.rglob("*.py"):
        path.chmod(0o444)
    as_user(lambda: check_used(case))
    assert not cached[0].exists() and cached[1].exists()
    for path in folders:
        path.chmod(0o755)


def check_used(case: Case) -> None:
    prepared = case.prepare()
    assert prepared.mode == "overlay"
    assert {target: Path(path).read_bytes() for target, path in prepared.files.items()} == PATCHED


if ROOT_USER:

    def test_a_folder_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        case = Case(tmp_path)
        case.prepare()
        os.chown(case.folder(), NOBODY, NOBODY)
        assert f"belongs to uid {NOBODY}" in case.refused("overlay_untrusted")
        # To its owner it is his own; root's is good for everybody.
        shutil.rmtree(tmp_path / "cache")
        own = within(tmp_path, monkeypatch)
        own.prepare()
        os.chown(own.folder(), NOBODY, NOBODY)
        for path in (own.cache, *own.cache.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        as_user(lambda: check_used(own))
