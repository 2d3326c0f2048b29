"""Local patches through the import hook: in the copies and the digest, left out by name; and trees patched in place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_ext.patchset import journal
from sglang_ext.patchset.inplace import put_in, take_out
from sglang_ext.patchset.local import WITHOUT
from sglang_ext.patchset.overlay import OverlayError, Prepared, prepare
from tests.unit.small_upstream import DATA, FILES, ONE, OTHER, OURS, PACKAGE, TWO, Site

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def ready(site: Site) -> Prepared:
    return prepare(str(site.root), cache=str(site.base / "cache"), patches=str(site.patches))


def refused(site: Site, code: str) -> str:
    with pytest.raises(OverlayError) as error:
        ready(site)
    assert error.value.code == code
    return str(error.value)


def copies(prepared: Prepared) -> dict[str, bytes]:
    return {name: Path(path).read_bytes() for name, path in prepared.files.items()}


def test_they_are_in_the_copies_and_in_the_digest(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before = site.snapshot()
    plain = ready(site)
    assert plain.digest == site.digest and plain.local == () and set(plain.files) == set(OURS)
    site.add_local("a.patch", ONE, b"line_30 = 30", b"line_30 = 'a'")
    other = site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    both = ready(site)
    one = OURS[ONE].replace(b"line_30 = 30", b"line_30 = 'a'")
    assert copies(both) == {ONE: one, TWO: OURS[TWO], OTHER: other} == copies(ready(site))
    assert both.local == ("a", "b") and both.digest != plain.digest
    monkeypatch.setenv(WITHOUT, "b")
    less = ready(site)
    assert copies(less) == {ONE: one, TWO: OURS[TWO]} and less.digest not in (both.digest, plain.digest)
    monkeypatch.setenv(WITHOUT, "a,b")
    assert ready(site).digest == plain.digest and ready(site).files == plain.files
    monkeypatch.setenv(WITHOUT, "a,c")
    assert "'c' is no local patch or group" in refused(site, "local_patch_unknown")
    assert site.snapshot() == before


def test_what_cannot_be_used_is_said(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = (")
    assert "does not compile" in refused(site, "local_patch_misfit")
    site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 0")
    site.edit(OTHER, b"line_1 = 1", b"line_1 = 0")
    assert "patches adopt" in refused(site, "upstream_file_changed")
    (site.root / OTHER).write_bytes(FILES[OTHER])
    site.add_local("a.patch", DATA, b'"b": 2', b'"b": 9')
    assert "patches apply" in refused(site, "local_patch_in_place_only")


def test_a_tampered_copy_is_found(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 0")
    Path(ready(site).files[OTHER]).write_bytes(FILES[OTHER])
    refused(site, "overlay_tampered")


def test_a_tree_patched_in_place(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_local("a.patch", ONE, b"line_30 = 30", b"line_30 = 'a'")
    site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    digest = put_in(*site.where()).digest
    prepared = ready(site)
    assert (prepared.mode, prepared.digest, prepared.files) == ("in_place", digest, {})
    monkeypatch.setenv(WITHOUT, "b")
    assert "patches apply" in refused(site, "in_place_stale")
    monkeypatch.delenv(WITHOUT)
    digest = put_in(*site.where(), without=["a"]).digest  # ours are as the lock has them, and a local one is in
    assert (ready(site).mode, ready(site).digest) == ("in_place", digest)
    site.edit(OTHER, b"line_1 = 1", b"line_1 = 0")
    refused(site, "upstream_file_changed")
    (site.info / "sglang-ext" / "journal.json").write_text("{}")
    refused(site, "tree_interrupted")


def ends_after(last: str, deed: Callable[[], object]) -> None:
    """``deed()``, and the process ends after that step."""
    pid = os.fork()
    if pid == 0:
        journal.step = lambda what: os._exit(9) if what == last else None
        try:
            deed()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_a_revert_that_ended_with_a_local_patch_still_in_is_refused(site: Site) -> None:
    """Every file that the lock knows is stock again by then; the digest would be that of a stock set."""
    site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 'a'")
    put_in(*site.where())
    (site.local / "a.patch").unlink()
    ends_after(f"changed {ONE}", lambda: take_out(*site.where()))
    now = site.snapshot()
    assert now[ONE] == FILES[ONE] and now[TWO] == FILES[TWO] and now[OTHER] != FILES[OTHER]
    refused(site, "tree_interrupted")
    take_out(*site.where())
    assert ready(site).digest == site.digest


def test_a_record_that_the_files_do_not_bear_out_is_refused(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 'a'")
    put_in(*site.where())
    (site.local / "a.patch").unlink()
    for name in OURS:
        (site.root / name).write_bytes(FILES[name])
    assert "run: sglang-ext patches apply, or revert" in refused(site, "upstream_half_patched")
    take_out(*site.where())
    assert site.snapshot()[OTHER] == FILES[OTHER] and ready(site).mode == "overlay"


@pytest.mark.parametrize("targets", [FILES, OURS])
def test_a_record_that_cannot_be_read_is_refused(site: Site, targets: dict[str, bytes]) -> None:
    put_in(*site.where())
    for name in OURS:
        (site.root / name).write_bytes(targets[name])
    (site.info / "sglang-ext" / "applied.json").write_text("{")
    refused(site, "upstream_file_changed")


def test_a_record_that_is_closed_to_us_is_said(site: Site) -> None:
    (site.info / "sglang-ext" / "applied.json").mkdir(parents=True)
    assert "applied.json cannot be read (Is a directory)" in refused(site, "upstream_file_changed")


def test_a_record_of_a_release_that_is_not_locked_any_more_is_refused(site: Site) -> None:
    put_in(*site.where())
    said = site.info / "sglang-ext" / "applied.json"
    said.write_text(said.read_text().replace('"9.9.1"', '"9.9.0"'))
    assert 'run: pip install "sglang==9.9.1"' in refused(site, "unsupported_upstream")


def test_what_was_left_out_and_deleted_since_is_no_slip(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_local("a.patch", ONE, b"line_30 = 30", b"line_30 = 'a'")
    site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    digest = put_in(*site.where(), without=["a"]).digest
    (site.local / "a.patch").unlink()
    assert (ready(site).mode, ready(site).digest) == ("in_place", digest)
    monkeypatch.setenv(WITHOUT, "a")
    assert "'a' is no local patch or group" in refused(site, "local_patch_unknown")


def test_a_folder_that_an_uninstall_left_does_not_hide_the_release(site: Site) -> None:
    (site.root / "sglang-9.9.0.dist-info").mkdir()
    other = site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 'a'")
    assert copies(ready(site))[OTHER] == other


def test_local_patches_over_a_baked_tree(site: Site) -> None:
    for name, data in OURS.items():
        (site.root / name).write_bytes(data)
    assert ready(site).mode == "baked"
    other = site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 0")
    prepared = ready(site)
    assert prepared.mode == "overlay" and copies(prepared) == {OTHER: other} and set(prepared.hashes) == {*OURS, OTHER}


def test_local_patches_over_an_installed_baked_wheel(site: Site) -> None:
    """Its metadata folder is called by the whole version."""
    for name, data in OURS.items():
        (site.root / name).write_bytes(data)
    site.info.rename(site.root / "sglang-9.9.1+ext.1.dist-info")
    other = site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 0")
    assert copies(ready(site)) == {OTHER: other}


WITHOUT_HOOK = """
import os, sys
sys.path[:0] = [{root!r}, {checkout!r}]
os.environ["NCCL_PROTO"] = "LL"
import sglang
import sglang_ext.patchset.overlay as overlay
overlay.patches_folder = lambda: {patches!r}
import sglang_ext.delivery.seams
from sglang_ext.bootstrap import SHELL, STATUS
print(STATUS.mode, STATUS.digest, STATUS.release, *STATUS.local, STATUS.why.partition(":")[0], SHELL["NCCL_PROTO"])
"""


def test_patched_files_without_a_hook_say_how_they_were_patched(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image that cannot have an import hook; what only a hook could deliver is not in effect, and is not said to be."""
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(site.base / "cache"))
    site.add_local("a.patch", ONE, b"line_30 = 30", b"line_30 = 'a'")

    def run() -> str:
        code = WITHOUT_HOOK.format(root=str(site.root), checkout=str(ROOT), patches=str(site.patches))
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
        return (done.stdout or done.stderr).strip()

    assert run() == "none None None hook_not_armed LL"
    digest = put_in(*site.where()).digest
    assert run() == f"in_place {digest} 9.9.1 a  LL"
    site.edit(ONE, b"line_1 = 1", b"line_1 = 0")
    assert run().startswith("none None None upstream_file_changed")


IMPORT = """
import sys
sys.path[:0] = [{root!r}, {checkout!r}]
import sglang_ext.patchset.overlay as overlay
overlay.patches_folder = lambda: {patches!r}
from sglang_ext.bootstrap import STATUS, arm
arm()
import sglang.srt.deep, sglang.srt.other, sglang.srt.one, sglang.srt.deep.two
for module in (sglang.srt.deep, sglang.srt.other, sglang.srt.one, sglang.srt.deep.two):
    print(module.__name__, module.line_5, module.line_30, module.__file__.startswith({root!r}))
print(sglang.srt.deep.__path__ == [{root!r} + "/sglang/srt/deep"], STATUS.mode, STATUS.digest)
"""


@pytest.fixture
def imported(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(site.base / "cache"))
    monkeypatch.setenv("SGLANG_EXT", "require")
    code = IMPORT.format(root=str(site.root), checkout=str(ROOT), patches=str(site.patches))

    def run() -> list[str]:
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
        return (done.stdout or done.stderr).splitlines()

    return run


def test_imports_find_them_and_upstreams_file_name(site: Site, imported: Callable[[], list[str]]) -> None:
    """Data beside a module is found by its ``__file__``: one that only local patches change keeps it."""
    site.add_local("a.patch", PACKAGE, b"line_30 = 30", b"line_30 = 'a'")
    site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    site.add_local("c.patch", ONE, b"line_30 = 30", b"line_30 = 'c'")
    assert imported() == [
        "sglang.srt.deep 5 a True",
        "sglang.srt.other 5 b True",
        "sglang.srt.one ours c False",
        "sglang.srt.deep.two ours 30 False",
        f"True overlay {ready(site).digest}",
    ]


def test_a_copy_that_changes_after_it_was_found_does_not_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is hashed again over the bytes that run: a look, or a record of one, is a moment old by then."""
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(site.base / "cache"))
    site.add_local("b.patch", OTHER, b"line_30 = 30", b"line_30 = 'b'")
    lines = IMPORT.format(root=str(site.root), checkout=str(ROOT), patches=str(site.patches)).splitlines()
    top = lines[: lines.index("arm()") + 1]
    for module, name in (("sglang.srt.deep.two", TWO), ("sglang.srt.other", OTHER)):
        code = "\n".join([
            *top,
            "import sglang.srt.one",
            f"copy = STATUS.files[{name!r}]",
            "import os, pathlib",
            "pathlib.Path(copy).write_bytes(pathlib.Path(copy).read_bytes() + b'print(\\'evil\\')')",
            f"import {module}",
        ])  # fmt: skip
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
        assert "ImportError: sglang-ext: overlay_tampered: overlay file" in done.stderr and "evil" not in done.stdout
        shutil.rmtree(site.base / "cache")


def test_a_misfit_is_an_import_error_where_that_is_demanded(site: Site, imported: Callable[[], list[str]]) -> None:
    site.add_local("a.patch", ONE, b"line_5 = 5", b"line_5 = 'a'")
    assert "ImportError: sglang-ext: local_patch_misfit: Patch local/a.patch" in imported()[-1]
    (site.local / "a.patch").write_text("nothing\n")
    assert "ImportError: sglang-ext: local_patch_misfit: Patch local/a.patch" in imported()[-1]
