"""doctor on an upstream with local patches, patched in place, baked, replaced: by what the launcher itself would make of it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext.doctor import leftovers, upstream
from sglang_ext.doctor.checks import CHECKS, run
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import Result
from sglang_ext.patchset import former, overlay
from sglang_ext.patchset.inplace import put_in
from sglang_ext.patchset.local import WITHOUT
from tests.unit.small_upstream import ONE, OTHER, OURS, Site

FLAGS = SimpleNamespace(safe_path=False, no_site=False, no_user_site=False, ignore_environment=False)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, monkeypatch)
    monkeypatch.setattr(overlay, "patches_folder", lambda: str(made.patches))
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(former.MODE, raising=False)
    return made


def look(site: Site, check: Any) -> Result:
    path = (str(site.root),)
    (result,) = check(Here("python", (3, 11), FLAGS, (), (), path, path, "/std", {}, None))
    assert isinstance(result, Result)
    return result


def test_local_patches_are_in_the_folder_it_looks_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(site, upstream.check_local).message == "there are no local patches"
    overlay.prepare(str(site.root))  # an older one, without them
    site.add_local("a.patch", ONE, b"line_30 = 30", b"line_30 = 'a'")
    site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    assert "not there yet" in look(site, upstream.check_overlay).message
    overlay.prepare(str(site.root))
    assert "as written" in look(site, upstream.check_overlay).message
    old = look(site, leftovers.check_overlays)
    assert old.state == "note" and len(old.seen) == 1  # the one without
    found = look(site, upstream.check_local)
    assert (found.state, found.seen) == (
        "ok",
        ("a", "b"),
    ) and "local patches that are in: a, b, of the 2" in found.message
    monkeypatch.setenv(WITHOUT, "b")
    found = look(site, upstream.check_local)
    assert (found.state, found.seen) == ("ok", ("a", "b (left out)"))
    monkeypatch.setenv(WITHOUT, "c")
    assert "'c' is no local patch" in look(site, upstream.check_local).message
    assert look(site, upstream.check_files).state == "ok"


def test_a_local_patch_that_does_not_fit_is_no_fault_of_the_files(site: Site) -> None:
    site.add_local("a.patch", ONE, b"line_5 = 5", b"line_5 = 'a'")
    found = look(site, upstream.check_local)
    assert found.state == "fail" and "leave it out with --without a" in found.message + found.fix
    assert look(site, upstream.check_files).state == "ok" and "as released" in look(site, upstream.check_files).message
    site.edit(OTHER, b"line_1 = 1", b"line_1 = 0")
    (site.local / "a.patch").unlink()
    site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    found = look(site, upstream.check_files)
    assert found.state == "fail" and "sglang-ext patches adopt" in found.fix
    assert look(site, upstream.check_local).state == "note"


def test_a_tree_patched_in_place_with_local_patches_is_not_changed_by_hand(site: Site) -> None:
    site.add_local("a.patch", ONE, b"line_30 = 30", b"line_30 = 'a'")
    digest = str(put_in(*site.where()).digest)
    found = look(site, upstream.check_files)
    assert found.state == "ok" and "patched in place by `patches apply`" in found.message
    assert "no patched copies are needed" in look(site, upstream.check_overlay).message
    assert look(site, upstream.check_mode).message == f"patch set {digest[:12]} gets in by mode in_place"
    assert look(site, upstream.check_local).seen == ("a",)
    site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    found = look(site, upstream.check_files)
    assert found.state == "fail" and found.fix == "run: sglang-ext patches apply"


def test_the_mode_of_the_last_launch_and_the_one_demanded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    base = overlay.cache_base()
    assert look(site, upstream.check_mode).state == "ok" and not os.path.exists(base)  # doctor writes nothing
    former.note(base, str(site.root), "baked", "9.9.1+ext.1")
    for _ in range(2):
        found = look(site, upstream.check_mode)
        assert found.state == "warn" and "was 9.9.1+ext.1, from a baked wheel" in found.message
    for name, data in OURS.items():
        (site.root / name).write_bytes(data)
    assert look(site, upstream.check_mode).state == "ok"
    monkeypatch.setenv(former.MODE, "overlay")
    found = look(site, upstream.check_mode)
    assert found.state == "fail" and "found baked" in found.message and "unset SGLANG_EXT_MODE" in found.fix
    site.edit(ONE, b"line_1 = 1", b"line_1 = 0")
    assert look(site, upstream.check_mode).state == "note"


def test_a_tree_that_is_patched_itself_needs_no_hook(site: Site) -> None:
    path = (str(site.root),)
    bare = Here("python", (3, 11), FLAGS, (), (), path, path, "/std", {}, None)
    about = [check for check in CHECKS if check.hook and check.name != "interpreter.flags"]
    assert {run(check, bare)[0].state for check in about} == {"fail"}
    put_in(*site.where())
    told = [run(check, bare)[0] for check in about]
    assert {one.state for one in told} == {"note"} and all("patched themselves" in one.message for one in told)
