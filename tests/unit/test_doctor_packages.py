"""doctor on installed packages and the files to be patched: fake site-packages, real metadata layouts, real hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext.doctor import packages, upstream
from sglang_ext.doctor.distributions import distributions, normal, packages_of
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.pins import Pin, parse, rejects
from sglang_ext.doctor.result import Result
from sglang_ext.patchset import overlay
from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock
from sglang_ext.patchset.series import patch_set_digest

FLAGS = SimpleNamespace(safe_path=False, no_site=False, no_user_site=False)
VERSION = "9.9.1"
ONE, TWO = "sglang/srt/one.py", "sglang/srt/two.py"
PRISTINE = {ONE: "WHO = 'stock'\n", TWO: "WHO = 'stock'\n"}
PATCHED = {ONE: "WHO = 'patched'\n", TWO: "WHO = 'patched'\nMORE = 1\n"}


def place(*path: Path, cwd: Path | None = None, **fields: Any) -> Here:
    found = tuple(map(str, path))
    plain = Here("python", (3, 11), FLAGS, (), (), found, found, "/std", {}, str(cwd) if cwd else None)
    return plain._replace(**fields)


def only(results: Any) -> Result:
    (result,) = results
    return result


def install(
    site: Path, name: str, version: str, *, record: str = "", requires: tuple[str, ...] = (), **files: str
) -> Path:
    """A distribution's metadata folder; a License header with blank-looking lines, as sglang's own has."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    headers = [f"Name: {name}", f"Version: {version}", "License: Apache", "        ", "           a licence"]
    headers += [f"Requires-Dist: {line}" for line in requires]
    (folder / "METADATA").write_text("\n".join([*headers, "", "Requires-Dist: sglang===0.0.1 is only said here", ""]))
    (folder / "RECORD").write_text(record)
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text)
    return folder


def package(place: Path, name: str = "sglang", files: dict[str, str] | None = None) -> Path:
    (place / name).mkdir(parents=True, exist_ok=True)
    (place / name / "__init__.py").write_text("")
    for target, text in (files or {}).items():
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        (place / target).write_text(text)
    return place / name


@pytest.fixture(autouse=True)
def patch_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A patch set of our own for a small sglang 9.9.1, with its lock; caches and runs stay in tmp_path."""
    folder = tmp_path / "patches"
    folder.mkdir()
    for target in PRISTINE:
        name = Path(target).stem + ".patch"
        (folder / name).write_text(
            render(make(target, PRISTINE[target].encode(), PATCHED[target].encode(), name, "Subject: x\n\n"))
        )
    (folder / "series").write_text("two.patch\none.patch\n")
    files = {
        t: LockedFile(*(hashlib.sha256(side[t].encode()).hexdigest() for side in (PRISTINE, PATCHED))) for t in PRISTINE
    }
    wheels = {f"sglang-{VERSION}-cp311-cp311-linux_x86_64.whl": "0" * 64}
    names = ("one.patch", "two.patch")  # another order than the series': what counts is the release's own list
    release = Release(VERSION, patch_set_digest(folder, names), wheels, files, names)
    (folder / "upstream.toml").write_text(dump_lock(Lock([release])))
    monkeypatch.setattr(overlay, "patches_folder", lambda: str(folder))
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages with sglang 9.9.1 as released."""
    folder = tmp_path / "site-packages"
    package(folder, files=PRISTINE)
    install(folder, "sglang", VERSION, record="sglang/__init__.py,,\n")
    return folder


# Names and pins.


def test_names_are_normalised() -> None:
    assert {normal(name) for name in ("Sglang_Ext", "sglang-ext", "sglang.ext", "sglang--ext")} == {"sglang-ext"}


@pytest.mark.parametrize(
    ("requirement", "name", "pins"),
    [
        ("sglang==0.5.23", "sglang", [Pin("==", "0.5.23")]),
        ("sglang[all] (>=0.5,!=0.5.9) ; python_version > '3'", "sglang", [Pin(">=", "0.5"), Pin("!=", "0.5.9")]),
        ("sglang ===0.5.23+ext.1", "sglang", [Pin("===", "0.5.23+ext.1")]),
        ("sglang", "sglang", []),
        (
            "sglang[srt]==0.4.6; extra == 'rollout'",
            "sglang",
            [],
        ),  # asked for by an extra: nobody can tell whether it was
        ("sglang==0.4.6; python_version < '3.9'", "sglang", []),
        ("sglang==0.5.23; sys_platform == 'linux'", "sglang", [Pin("==", "0.5.23")]),
        ("sglang @ https://host/sglang.whl", "sglang", []),
        ("sglang-kernel~=0.4", "sglang-kernel", [Pin("~=", "0.4")]),
    ],
)
def test_requirements(requirement: str, name: str, pins: list[Pin]) -> None:
    assert parse(requirement) == (name, pins)


@pytest.mark.parametrize("installed", ["0.5.9", "0.5.23", "0.5.23+ext.1", "0.5.23.post1", "0.5.24rc1", "0.6.0"])
def test_pins_as_packaging_has_them(installed: str) -> None:
    """Held against the reference where a clause is about releases as upstream makes them."""
    specifiers = pytest.importorskip("packaging.specifiers")
    for operator in ("==", "===", "!=", "<=", ">=", "<", ">"):
        for version in ("0.5.23", "0.5.9", "0.6.0"):
            expected = not specifiers.SpecifierSet(operator + version, prereleases=True).contains(installed)
            if (operator, installed, version) == (">", "0.5.23.post1", "0.5.23") or (operator, installed) == (
                "<",
                "0.5.24rc1",
            ):
                continue  # PEP 440's exclusive ordering: no post release of the bound, and no pre-release before it
            assert rejects(Pin(operator, version), installed) == expected, (operator, version, installed)
    assert rejects(Pin("==", "0.5.*"), "0.6.0") and not rejects(Pin("==", "0.5.*"), "0.5.23+ext.1")
    assert rejects(Pin("==", "0.5.23+ext.1"), "0.5.23") and not rejects(Pin("==", "0.5.23+ext.1"), "0.5.23+ext.1")


def test_pins_a_baked_wheel_breaks(tmp_path: Path) -> None:
    """E.g. `sglang===9.9.1`: stock met it, the build of the same release with a local version does not."""
    baked = tmp_path / "baked"
    install(baked, "sglang", f"{VERSION}+ext.1")
    install(baked, "good", "1", requires=(f"sglang=={VERSION}", f"sglang>={VERSION}", "numpy===1"))
    assert only(packages.check_pins(place(baked))).state == "ok"
    install(baked, "strict", "1", requires=(f"sglang==={VERSION}",))
    install(baked, "never", "2", requires=(f"SGLang!={VERSION}",))
    results = list(packages.check_pins(place(baked)))
    assert [r.state for r in results] == ["warn", "warn"]
    assert results[1].message.startswith(f"strict 1 requires sglang==={VERSION}, found {VERSION}+ext.1")
    assert f"sglang=={VERSION}+ext.1" in results[1].fix


def test_a_baked_wheel_that_was_replaced_by_stock(tmp_path: Path) -> None:
    install(tmp_path / "s", "sglang", VERSION)
    install(tmp_path / "s", "fleet", "1", requires=(f"sglang=={VERSION}+ext.1",))
    result = only(packages.check_pins(place(tmp_path / "s")))
    assert result.state == "fail" and "replaced by the stock one" in result.fix
    assert only(packages.check_pins(place(tmp_path / "nothing"))).state == "note"


# Which sglang.


def test_sglang_in_the_lock_or_not(site: Path, tmp_path: Path) -> None:
    assert only(packages.check_sglang(place(site))).state == "ok"
    result = only(packages.check_sglang(place(tmp_path / "empty")))
    assert (
        result.state == "fail" and "no sglang can be imported" in result.message and f"sglang=={VERSION}" in result.fix
    )
    other = tmp_path / "other"
    package(other)
    assert only(packages.check_sglang(place(other))).state == "warn"  # no metadata
    install(other, "sglang", "0.0.1")
    result = only(packages.check_sglang(place(other)))
    assert result.state == "fail" and "0.0.1" in result.message and VERSION in result.message
    install(tmp_path / "hollow", "sglang", VERSION)
    result = only(packages.check_sglang(place(tmp_path / "hollow")))
    assert result.state == "fail" and "no sglang package beside it" in result.message
    baked = tmp_path / "baked"
    package(baked)
    install(baked, "sglang", f"{VERSION}+ext.1")
    assert "local version +ext.1" in only(packages.check_sglang(place(baked))).message


def test_a_scratch_copy_hides_the_installed_one(site: Path, tmp_path: Path) -> None:
    """In the folder the server is started in, or on PYTHONPATH; a folder without __init__.py hides nothing."""
    scratch = tmp_path / "scratch"
    copy = package(scratch)
    for here, fix in ((place(site, cwd=scratch), "another folder"), (place(scratch, site), "off PYTHONPATH")):
        result = only(packages.check_shadow(here))
        assert result.state == "fail" and str(copy) in result.message and fix in result.fix
        assert result.seen == (f"{site / 'sglang'} (hidden)",)
    safe = SimpleNamespace(safe_path=True)
    assert only(packages.check_shadow(place(site, cwd=scratch, flags=safe))).state == "ok"
    (copy / "__init__.py").unlink()
    assert only(packages.check_shadow(place(site, cwd=scratch))).state == "ok"
    assert only(packages.check_shadow(place(tmp_path / "empty"))).state == "note"


def test_editable_installs(tmp_path: Path) -> None:
    """A checkout that the metadata points to hides nothing; one behind an import finder is missed by the launcher."""
    source, site = tmp_path / "work" / "python", tmp_path / "site"
    package(source)
    origin = json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}})
    install(site, "sglang", VERSION, direct_url__json=origin)
    assert only(packages.check_shadow(place(source, site))).state == "ok"
    result = only(packages.check_editable(place(source, site)))
    assert result.state == "note" and str(source) in result.message
    result = only(packages.check_sglang(place(site)))
    assert result.state == "fail" and "import finder" in result.message
    assert only(packages.check_editable(place(tmp_path / "none"))).state == "ok"


def test_sglang_ext_hidden_hollow_or_not_installed(tmp_path: Path) -> None:
    site, checkout = tmp_path / "site", tmp_path / "checkout"
    assert only(packages.check_sglang_ext(place(site))).state == "note"
    install(site, "sglang_ext", "0.1.0")
    assert only(packages.check_sglang_ext(place(site))).state == "fail"
    package(site, "sglang_ext")
    assert only(packages.check_sglang_ext(place(site))).state == "ok"
    package(checkout, "sglang_ext")
    result = only(packages.check_sglang_ext(place(checkout, site)))
    assert result.state == "warn" and str(checkout) in result.message and str(checkout) in result.fix


def test_two_owners_of_one_package(site: Path) -> None:
    assert only(packages.check_owners(place(site))).state == "ok"
    install(site, "sglang_fork", "1", record="sglang/__init__.py,,\nother.py,,\n")
    result = only(packages.check_owners(place(site)))
    assert (
        result.state == "fail" and f"sglang {VERSION}, sglang_fork 1 both install the sglang package" in result.message
    )


def test_two_metadata_folders_of_one_name(site: Path) -> None:
    assert only(packages.check_duplicates(place(site))).state == "ok"
    install(site, "numpy", "1")
    install(site, "NumPy", "2")
    assert only(packages.check_duplicates(place(site))).state == "warn"
    install(site, "sglang", "9.9.0")
    worst = [r for r in packages.check_duplicates(place(site)) if r.state == "fail"]
    assert len(worst) == 1 and f"9.9.0 and {VERSION}" in worst[0].message


def test_the_same_folder_twice_on_the_path_is_no_duplicate(site: Path, tmp_path: Path) -> None:
    """Nor is lib64 that is a link to lib. The first spelling counts, and the order stays."""
    (tmp_path / "lib64").symlink_to(site)
    install(tmp_path / "z", "a", "1")
    path = [str(site), str(tmp_path / "z"), str(site) + "/", str(tmp_path / "lib64"), "/nowhere"]
    assert [one.place for one in distributions(path)] == [str(site), str(tmp_path / "z")]
    assert packages_of([str(site), str(site)], "sglang") == [str(site / "sglang")]


# The files.


def test_files_as_released_patched_half_changed_and_of_another_release(site: Path) -> None:
    result = only(upstream.check_files(place(site)))
    assert result.state == "ok" and "as released" in result.message and len(result.seen) == 2
    (site / ONE).write_text(PATCHED[ONE])
    result = only(upstream.check_files(place(site)))
    assert result.state == "fail" and "patched in part only" in result.message and "--force-reinstall" in result.fix
    (site / TWO).write_text(PATCHED[TWO])
    result = only(upstream.check_files(place(site)))
    assert result.state == "ok" and "patched already" in result.message
    (site / TWO).write_text("# my edit\n")
    result = only(upstream.check_files(place(site)))
    assert result.state == "fail" and f"{TWO} is not sglang {VERSION} as released" in result.message
    shutil.move(site / f"sglang-{VERSION}.dist-info", site / "sglang-1.0.dist-info")
    result = only(upstream.check_files(place(site)))
    assert result.state == "fail" and "sglang 1.0" in result.message and "not supported" in result.message


def test_files_that_are_not_what_the_metadata_says(site: Path) -> None:
    shutil.move(site / f"sglang-{VERSION}.dist-info", site / "sglang-1.0.dist-info")
    results = list(upstream.check_files(place(site)))
    assert [r.state for r in results] == ["ok", "warn"] and "the metadata says sglang 1.0" in results[1].message


def test_files_of_the_copy_that_would_be_imported(site: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    package(scratch, files={ONE: "# edited\n", TWO: PRISTINE[TWO]})
    assert only(upstream.check_files(place(site, cwd=scratch))).state == "fail"
    assert only(upstream.check_files(place(tmp_path / "none"))).state == "note"


# The overlay cache and the place of runs.


def test_overlay_not_there_yet_then_there(site: Path, tmp_path: Path) -> None:
    here = place(site)
    result = only(upstream.check_overlay(here))
    assert result.state == "ok" and "not there yet" in result.message
    assert not (tmp_path / "cache").exists()  # doctor writes nothing
    prepared = overlay.prepare(str(site))
    (folder,) = (tmp_path / "cache" / "overlay").iterdir()
    found = upstream.planned(here)
    assert found is not None and found.key == folder.name
    assert prepared.mode == "overlay"
    result = only(upstream.check_overlay(here))
    assert result.state == "ok" and "as written" in result.message


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda folder: (folder / ONE).write_text("# changed\n"), "is not what was written"),
        (lambda folder: (folder / ONE).unlink(), "is not what was written: sha256 No such fil"),
        (lambda folder: folder.chmod(0o777), "mode 0777"),
        (lambda folder: os.chown(folder, 12345, -1), "uid 12345"),
        (lambda folder: (shutil.move(folder, f"{folder}x"), folder.symlink_to(f"{folder}x")), "a link or file"),
    ],
)
def test_overlay_that_is_not_to_be_believed(site: Path, tmp_path: Path, spoil: Any, part: str) -> None:
    overlay.prepare(str(site))
    (folder,) = (tmp_path / "cache" / "overlay").iterdir()
    try:
        spoil(folder)
    except PermissionError:
        pytest.skip("needs root")
    result = only(upstream.check_overlay(place(site)))
    assert result.state == "fail" and part in result.message and result.fix
    with pytest.raises(overlay.OverlayError):  # a worker would refuse it as well
        overlay.prepare(str(site))


def test_overlay_that_cannot_be_written(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = place(site)
    monkeypatch.setattr(upstream, "ROOM", 1 << 62)
    result = only(upstream.check_overlay(here))
    assert result.state == "fail" and "MiB free" in result.message
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = only(upstream.check_overlay(here))
    assert result.state == "fail" and "not writable" in result.message and "SGLANG_EXT_CACHE_DIR" in result.fix
    monkeypatch.delenv("SGLANG_EXT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    result = only(upstream.check_overlay(here))
    assert result.state == "fail" and "no home folder" in result.message


def test_overlay_is_not_needed_or_cannot_be_made(site: Path, tmp_path: Path) -> None:
    (site / ONE).write_text("# edited\n")
    assert only(upstream.check_overlay(place(site))).state == "note"
    for target, text in PATCHED.items():
        (site / target).write_text(text)
    assert only(upstream.check_overlay(place(site))).state == "ok"
    assert only(upstream.check_overlay(place(tmp_path / "none"))).state == "note"


def test_place_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = place()
    assert only(upstream.check_run_place(here)).state == "ok"
    base = tmp_path / "runtime" / "sglang-ext"
    base.mkdir(mode=0o755)
    base.chmod(0o755)
    result = only(upstream.check_run_place(here))
    assert result.state == "fail" and "0755" in result.message and "chmod 700" in result.fix
    base.chmod(0o700)
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(base))
    monkeypatch.setattr("sglang_ext.run.directory.default_base", lambda: str(base))
    result = only(upstream.check_run_place(here))
    assert result.state == "fail" and "not writable" in result.message


def test_a_lock_that_cannot_be_read_is_an_unknown(site: Path, patch_set: Path) -> None:
    from sglang_ext.doctor.checks import Check, run

    (patch_set / "upstream.toml").write_text("nonsense")
    for where in ("packages.check_sglang", "upstream.check_files", "upstream.check_overlay"):
        result = only(run(Check("x", where), place(site)))
        assert result.state == "unknown" and "LockError" in result.message and "upstream.toml" in result.message
