"""Upstream, patches and overlay: what may be imported, and what is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Done

from .matrix import Matrix, Row, fault, refused
from .places import (
    AS_NOBODY,
    NOBODY,
    TARGETS,
    Place,
    can_mount,
    hand_to_nobody,
    needs_other_users,
    nobody_can_run,
    small_disk,
)

REINSTALL = "pip install --force-reinstall --no-deps sglang==0.5.23"


def edit(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))


def patch_all(place: Place) -> list[bytes]:
    """The patched bytes of every target, from the overlay."""
    return [(place.overlay / target).read_bytes() for target in TARGETS]


# --- upstream ---------------------------------------------------------------------------------------------


def _edited_by_a_byte(place: Place) -> Done:
    edit(place.upstream(1), b"import", b"Import")
    return place.launch()


def _hand_edited(place: Place) -> Done:
    with place.upstream(0).open("a") as file:
        file.write('\nos.environ["NCCL_PROTO"] = "LL"\n')
    return place.launch()


def _line_endings(place: Place) -> Done:
    path = place.upstream(2)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    return place.launch()


def _truncated(place: Place) -> Done:
    os.truncate(place.upstream(1), 5000)
    return place.launch()


def _target_gone(place: Place) -> Done:
    place.upstream(2).unlink()
    return place.launch()


def _half_patched(place: Place) -> Done:
    place.upstream(0).write_bytes(patch_all(place)[0])
    return place.launch()


def _another_release(place: Place) -> Done:
    (info,) = place.site.glob("sglang-*.dist-info")
    info.rename(info.with_name("sglang-0.5.24.dist-info"))
    edit(place.upstream(0), b"import", b"import ")
    return place.launch()


def _sglang_missing(place: Place) -> Done:
    (place.site / "sglang").rename(place.site / "elsewhere")
    return place.launch()


def _scratch_copy(place: Place) -> Path:
    """A copy somebody left: of the very release, without its metadata."""
    shutil.copytree(place.site / "sglang", place.folder / "scratch" / "sglang")
    return place.folder / "scratch"


def _started_beside_a_copy(place: Place) -> Done:
    return place.launch(cwd=_scratch_copy(place))


def _copy_on_pythonpath(place: Place) -> Done:
    return place.launch(env={"PYTHONPATH": str(_scratch_copy(place))})


def _two_owners(place: Place) -> Done:
    info = place.site / "sglang_fork-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("sglang/__init__.py,,\n")
    return place.launch()


def _stock_where_baked_is_demanded(place: Place) -> Done:
    return place.launch(env={"SGLANG_EXT_MODE": "baked"})


# --- our own patches --------------------------------------------------------------------------------------


def _patch_tampered(place: Place) -> Done:
    edit(place.package / "patches" / "engine" / "0.5.9.patch", b"\n+@", b"\n+# edited\n+@")
    return place.launch()


def _patch_no_longer_fits(place: Place) -> Done:
    path = place.package / "patches" / "scheduler" / "0.5.9.patch"
    lines = path.read_bytes().split(b"\n")
    index = next(i for i, line in enumerate(lines) if line.startswith(b"@@")) + 1
    lines[index] = b" # a line that upstream does not have"
    path.write_bytes(b"\n".join(lines))
    return place.launch()


def _patch_changed_within_its_form(place: Place) -> Done:
    edit(
        place.package / "patches" / "scheduler" / "0.5.9.patch",
        b"\n+@_sglang_ext.worker_entry",
        b"\n+@_sglang_ext.worker_entrY",
    )
    return place.launch()


def _patch_missing(place: Place) -> Done:
    (place.package / "patches" / "deepseek_v2" / "0.5.9.patch").unlink()
    return place.launch()


def _lock_tampered(place: Place) -> Done:
    lock = place.package / "patches" / "upstream.toml"
    edit(lock, b'patched = "', b'patched = "0000000')
    return place.launch()


def _lock_expects_another_result(place: Place) -> Done:
    lock = place.package / "patches" / "upstream.toml"
    text = lock.read_text()
    at = text.index('patched = "', text.index('[release."0.5.23".files')) + len('patched = "')
    lock.write_text(text[:at] + "0" * 8 + text[at + 8 :])
    return place.launch()


def _lock_missing(place: Place) -> Done:
    (place.package / "patches" / "upstream.toml").unlink()
    return place.launch()


# --- the overlay ------------------------------------------------------------------------------------------


def _overlay_edited(place: Place) -> Done:
    edit(place.overlay / TARGETS[0], b"import", b"Import")
    return place.launch()


def _overlay_truncated(place: Place) -> Done:
    os.truncate(place.overlay / TARGETS[1], 100)
    return place.launch()


def _overlay_file_gone(place: Place) -> Done:
    (place.overlay / TARGETS[2]).unlink()
    return place.launch()


def _overlay_of_another_user(place: Place) -> Done:
    needs_other_users()
    hand_to_nobody(place.overlay)
    return place.launch()


def _overlay_group_writable(place: Place) -> Done:
    place.overlay.chmod(0o770)
    return place.launch()


def _overlay_is_a_link(place: Place) -> Done:
    folder = place.overlay
    folder.rename(place.folder / "moved")
    folder.symlink_to(place.folder / "moved")
    return place.launch()


def _cache_unwritable(place: Place) -> Done:
    place.cache.mkdir(mode=0o555)
    if os.geteuid() != 0:
        return place.launch()
    needs_other_users()
    os.chown(place.runtime, NOBODY, NOBODY)
    return place.launch(before=AS_NOBODY)


def _cache_full(place: Place) -> Done:
    if not can_mount():
        pytest.skip("needs the right to mount")
    return place.launch(before=small_disk(place.cache))


def _cache_is_a_file(place: Place) -> Done:
    place.cache.touch()
    return place.launch()


def _no_home(place: Place) -> Done:
    needs_other_users()
    os.chown(place.runtime, NOBODY, NOBODY)
    unset = dict.fromkeys(("SGLANG_EXT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"), "UNSET")
    return place.launch(before=("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"), env=unset)


@pytest.mark.parametrize(
    ("row", "act"),
    [
        fault("a file of upstream edited by one byte", "refused", "upstream_file_changed", 1, ("scheduler.py", "sha256", "expected", REINSTALL), _edited_by_a_byte),
        fault("upstream edited by hand (os.environ lines)", "refused", "upstream_file_changed", 1, ("engine.py", "expected", REINSTALL), _hand_edited),
        fault("upstream's line endings changed to CRLF", "refused", "upstream_file_changed", 1, ("deepseek_v2.py", "expected", REINSTALL), _line_endings),
        fault("upstream's file cut off", "refused", "upstream_file_changed", 1, ("scheduler.py", "expected", REINSTALL), _truncated),
        fault("upstream's file gone", "refused", "upstream_file_changed", 1, ("deepseek_v2.py", "no such file", REINSTALL), _target_gone),
        fault("upstream half patched", "refused", "upstream_half_patched", 1, ("0.5.23", "expected all", "found sglang/srt/entrypoints/engine.py", REINSTALL), _half_patched),
        fault("stock reinstalled over us: another release", "refused", "unsupported_upstream", 1, ("sglang 0.5.24", "patches 0.5.9 to 0.5.23", "pip install"), _another_release),
        fault("launched in a folder that holds a copy of sglang", "refused", "upstream_shadowed", 1, ("scratch/sglang", "as it is started in this folder", "not the installed sglang 0.5.23", "start it in another"), _started_beside_a_copy),
        fault("a copy of sglang on PYTHONPATH", "refused", "upstream_shadowed", 1, ("scratch/sglang", "not the installed sglang 0.5.23", "off PYTHONPATH"), _copy_on_pythonpath),
        fault("two distributions have installed sglang", "refused", "upstream_two_owners", 1, ("expected", "installed by sglang 0.5.23 and sglang_fork 1.0", "pip uninstall"), _two_owners),
        fault("stock where SGLANG_EXT_MODE demands a baked wheel", "refused", "mode_differs", 1, ("demands", "found overlay", "install or patch"), _stock_where_baked_is_demanded),
        fault("sglang is not installed", "refused", "sglang_missing", 1, ("no sglang", "pip install sglang-ext"), _sglang_missing),
        fault("a patch file edited (hunk counts wrong)", "refused", "patch_set_broken", 1, ("engine/0.5.9.patch", "pip install"), _patch_tampered),
        fault("a patch that no longer fits", "refused", "patch_set_broken", 1, ("scheduler/0.5.9.patch", "pip install"), _patch_no_longer_fits),
        fault("a patch edited so that it still applies", "refused", "patch_set_broken", 1, ("scheduler.py", "the lock expects", "pip install"), _patch_changed_within_its_form),
        fault("a patch file gone", "refused", "patch_set_broken", 1, ("deepseek_v2/0.5.9.patch", "pip install"), _patch_missing),
        fault("the lock damaged", "refused", "patch_set_broken", 1, ("upstream.toml", "expected a sha256", "pip install"), _lock_tampered),
        fault("the lock expects another result", "refused", "patch_set_broken", 1, ("engine.py", "the lock expects", "pip install"), _lock_expects_another_result),
        fault("the lock gone", "refused", "patch_set_broken", 1, ("upstream.toml", "pip install"), _lock_missing),
        fault("an overlay file edited", "refused", "overlay_tampered", 1, ("engine.py", "expected", "remove"), _overlay_edited),
        fault("an overlay file cut off", "refused", "overlay_tampered", 1, ("scheduler.py", "expected", "remove"), _overlay_truncated),
        fault("an overlay file gone", "refused", "overlay_tampered", 1, ("deepseek_v2.py", "No such file", "remove"), _overlay_file_gone),
        fault("the overlay belongs to another user", "refused", "overlay_untrusted", 1, ("uid 65534", "expected uid 0", "remove it"), _overlay_of_another_user),
        fault("the overlay is writable for a group", "refused", "overlay_untrusted", 1, ("mode 0770", "expected", "remove it"), _overlay_group_writable),
        fault("the overlay is a link to elsewhere", "refused", "overlay_untrusted", 1, ("link", "expected", "remove it"), _overlay_is_a_link),
        fault("the cache folder is read-only and empty", "refused", "overlay_unwritable", 1, ("Permission denied", "SGLANG_EXT_CACHE_DIR"), _cache_unwritable),
        fault("the cache folder's disk is full", "refused", "overlay_unwritable", 1, ("No space left", "SGLANG_EXT_CACHE_DIR"), _cache_full),
        fault("the cache folder is a file", "refused", "overlay_unwritable", 1, ("SGLANG_EXT_CACHE_DIR",), _cache_is_a_file),
        fault("a user without a home folder", "refused", "overlay_unwritable", 1, ("no home folder", "SGLANG_EXT_CACHE_DIR"), _no_home),
    ],
)  # fmt: skip
def test_refused(
    row: Row, act: Callable[[Place], Done], place: Place, matrix: Matrix, request: pytest.FixtureRequest
) -> None:
    matrix.add(request, row, refused(row, act(place)), {str(place.folder): "DIR"})
    if (row.code or "").startswith("overlay_unwritable"):
        assert not list(place.cache.rglob("*.tmp")) if place.cache.is_dir() else True


# --- no launcher: one line and stock, or an error where that was demanded -----------------------------------


def edited(place: Place) -> Place:
    edit(place.upstream(1), b"import", b"Import")
    return place


def _elsewhere(place: Place) -> Done:
    return edited(place).show()


def _required(place: Place) -> Done:
    return edited(place).show({"SGLANG_EXT": "require"})


def _in_a_run(place: Place) -> Done:
    return edited(place).show({"SGLANG_EXT_RUN_ID": "a-run"})


def _switched_off_elsewhere(place: Place) -> Done:
    return edited(place).show({"SGLANG_EXT": "0"})


def _pristine_again(place: Place) -> Done:
    """Baked, then stock reinstalled over it."""
    stock = [(place.site / target).read_bytes() for target in TARGETS]
    baked = patch_all(place)
    for target, data in zip(TARGETS, baked, strict=True):
        (place.site / target).write_bytes(data)
    done = place.show()
    assert done.out == f"baked {place.upstream(1)}\n" and done.err == "", done
    for target, data in zip(TARGETS, stock, strict=True):
        (place.site / target).write_bytes(data)
    return place.show()


def _overlay_gone(place: Place) -> Done:
    folder = place.overlay
    folder.rename(place.folder / "away")
    return place.show()


def _cache_read_only_but_ready(place: Place) -> Done:
    assert place.overlay
    for path in [place.cache, *place.cache.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return place.show(before=AS_NOBODY if os.geteuid() == 0 and nobody_can_run() else ())


def _our_package_gone(place: Place) -> Done:
    place.package.rename(place.folder / "away")
    return place.show()


STOCK, PATCHED, ERROR = "stock", "patched", "ImportError"


@pytest.mark.parametrize(
    ("row", "act"),
    [
        fault("edited upstream, started without the launcher", STOCK, "upstream_file_changed", 0, ("running stock, unpatched", "scheduler.py", "expected", REINSTALL), _elsewhere),
        fault("edited upstream and SGLANG_EXT=require", ERROR, "upstream_file_changed", 1, ("scheduler.py", "expected", REINSTALL), _required),
        fault("edited upstream in a worker of our launcher", ERROR, "upstream_file_changed", 1, ("scheduler.py", "expected", REINSTALL), _in_a_run),
        fault("edited upstream and SGLANG_EXT=0, without the launcher", STOCK, None, 0, (), _switched_off_elsewhere),
        fault("baked, then stock of the same release reinstalled over it", PATCHED, None, 0, (), _pristine_again),
        fault("the overlay folder gone", PATCHED, None, 0, (), _overlay_gone),
        fault("the cache read-only, another user's (root's), with a ready overlay", PATCHED, None, 0, (), _cache_read_only_but_ready),
        fault("our package gone, its .pth left behind", STOCK, None, 0, ("package is gone", "remove that file"), _our_package_gone),
    ],
)  # fmt: skip
def test_imported(
    row: Row, act: Callable[[Place], Done], place: Place, matrix: Matrix, request: pytest.FixtureRequest
) -> None:
    done = act(place)
    assert done.status == row.exit, done
    said = [text for text in done.err.splitlines() if text.startswith(("sglang-ext: ", "ImportError: sglang-ext: "))]
    if row.verdict == PATCHED:
        assert done.out == f"overlay {place.overlay / TARGETS[1]}\n", done
    elif row.exit == 0:
        assert done.out == f"none {place.upstream(1)}\n", done
    assert len(said) == (1 if row.says else 0), done.err
    if row.code:
        assert f": {row.code}: " in said[0]
    matrix.add(request, row, said[0] if said else "nothing", {str(place.folder): "DIR"})
