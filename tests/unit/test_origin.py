"""What the launcher imports upstream from, and whether stock came over what was there: silent un-patching, each by its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from sglang_ext.delivery import preflight
from sglang_ext.patchset import former, origin, overlay
from sglang_ext.patchset.inplace import put_in
from sglang_ext.reasons import TABLE
from tests.unit.small_upstream import OTHER, OURS, Site

ROOT = Path(__file__).resolve().parents[2]


def package(place: Path) -> Path:
    (place / "sglang").mkdir(parents=True)
    (place / "sglang" / "__init__.py").write_text("")
    return place


def installed(place: Path, name: str = "sglang", version: str = "9.9.1", **files: str) -> Path:
    """A metadata folder that claims the package."""
    info = place / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("sglang/__init__.py,,\nother.py,,\n")
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text)
    return info


def refused(code: str, path: list[Path], cwd: Path | None = None) -> str:
    with pytest.raises(preflight.Refused) as error:
        preflight.find_upstream([str(place) for place in path], str(cwd) if cwd else None)
    assert error.value.code == code and TABLE[code]
    return str(error.value)


def test_a_copy_in_the_folder_a_server_is_started_in(tmp_path: Path) -> None:
    site, scratch = package(tmp_path / "site"), package(tmp_path / "scratch")
    installed(site)
    assert preflight.find_upstream([str(site)], str(tmp_path)) == str(site)
    sentence = refused("upstream_shadowed", [site], scratch)
    assert f"would import {scratch}/sglang, as it is started in this folder" in sentence
    assert f"not the installed sglang 9.9.1 in {site}; start it in another one" in sentence
    # Also one that has metadata of its own: it is not the environment's.
    installed(scratch)
    refused("upstream_shadowed", [site], scratch)
    (scratch / "sglang" / "__init__.py").unlink()  # a folder without one hides nothing
    assert preflight.find_upstream([str(site)], str(scratch)) == str(site)


def test_a_copy_on_pythonpath(tmp_path: Path) -> None:
    site, scratch = package(tmp_path / "site"), package(tmp_path / "scratch")
    installed(site)
    assert f"take {scratch} off PYTHONPATH" in refused("upstream_shadowed", [scratch, site])
    installed(scratch)  # an installation of its own, put first on purpose
    assert preflight.find_upstream([str(scratch), str(site)], None) == str(scratch)


def test_a_source_tree_that_the_metadata_points_to_hides_nothing(tmp_path: Path) -> None:
    source, site = package(tmp_path / "work" / "python"), tmp_path / "site"
    installed(site, direct_url__json=json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}}))
    assert preflight.find_upstream([str(source), str(site)], None) == str(source)
    other = package(tmp_path / "work" / "python-old")  # its name begins alike
    refused("upstream_shadowed", [other, site])


def test_there_is_none(tmp_path: Path) -> None:
    refused("sglang_missing", [tmp_path], tmp_path)


@pytest.mark.parametrize(("name", "version"), [("sglang_fork", "1.0"), ("sglang", "9.9.0")])
def test_two_distributions_own_the_package(tmp_path: Path, name: str, version: str) -> None:
    """Another one, or what a cut-off upgrade has left of itself; a plug-in that adds files owns nothing of it."""
    site = package(tmp_path / "site")
    installed(site)
    plug_in = installed(site, "sglang_plugin", "2")
    (plug_in / "RECORD").write_text("sglang/srt/plugin.py,,\n")
    assert origin.rivals(str(site)) is None
    installed(site, name, version)
    sentence = refused("upstream_two_owners", [site])
    assert "found sglang/__init__.py installed by" in sentence
    assert f"{name} {version}" in sentence and "sglang 9.9.1" in sentence and "pip uninstall sglang" in sentence


def test_a_plug_in_that_writes_over_a_file_is_an_owner(tmp_path: Path) -> None:
    site = package(tmp_path / "site")
    info = installed(site)
    with (info / "RECORD").open("a") as record:
        record.write("sglang/srt/server_args.py,sha256=x,1\n")
    (installed(site, "sglang_plugin", "2") / "RECORD").write_text("sglang/srt/server_args.py,sha256=y,2\n")
    assert "sglang/srt/server_args.py installed by sglang 9.9.1 and sglang_plugin 2" in refused(
        "upstream_two_owners", [site]
    )


STARTED = "import sys; from sglang_ext.delivery import preflight; print(preflight.working_folder(), *preflight.start_up_path())"


@pytest.mark.parametrize("flag", ["", "-P"])
def test_the_server_is_started_with_m_whatever_we_were_started_by(tmp_path: Path, flag: str) -> None:
    """The console script's own first entry is the folder of the script; `python -m` has the working folder there."""
    (tmp_path / "ours.py").write_text(STARTED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in ([str(tmp_path / "ours.py")], ["-m", "ours"], ["-c", STARTED]):
        if flag and words[0] == "-m":
            continue
        command = [sys.executable, *([flag] if flag else []), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        cwd, *path = done.stdout.split()
        assert cwd == ("None" if flag else str(tmp_path))
        assert (
            str(ROOT) in path and str(tmp_path) not in path
        )  # not always first: a `.pth` file may put others before it


def test_the_child_imports_the_folder_it_is_started_in_first(tmp_path: Path) -> None:
    """What the rule rests on: Python itself, started as the supervisor starts upstream."""
    site, scratch = package(tmp_path / "site"), package(tmp_path / "scratch")
    for place in (site, scratch):
        (place / "sglang" / "launch_server.py").write_text("print(__file__)\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for flags, found in (([], scratch), (["-P"], site)):
        command = [sys.executable, *flags, "-m", "sglang.launch_server"]
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(found / "sglang" / "launch_server.py")


# Stock over a baked wheel or a patched tree.


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, monkeypatch)
    monkeypatch.setattr(overlay, "patches_folder", lambda: str(made.patches))
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(former.MODE, raising=False)
    return made


def launched(site: Site) -> tuple[str, str | None]:
    """A launch, as far as it looks at upstream: the mode, and what is said of the one before."""
    prepared = preflight.check_upstream(str(site.root))
    return prepared.mode, preflight.was_replaced(str(site.root), prepared.mode)


def test_stock_over_a_baked_wheel_is_said_once(site: Site) -> None:
    stock = site.snapshot()
    assert launched(site) == ("overlay", None)
    for name, data in OURS.items():
        (site.root / name).write_bytes(data)
    os.rename(site.info, site.root / "sglang-9.9.1+ext.1.dist-info")
    assert launched(site) == ("baked", None) == launched(site)
    site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 'a'")  # over it, by copies: nothing was installed
    assert launched(site) == ("overlay", None) == launched(site)
    (site.local / "a.patch").unlink()
    os.rename(site.root / "sglang-9.9.1+ext.1.dist-info", site.info)
    for name, data in stock.items():
        (site.root / name).write_bytes(data)
    mode, told = launched(site)
    assert mode == "overlay" and told is not None and TABLE["upstream_replaced"]
    assert (
        f"the sglang in {site.root} was 9.9.1+ext.1, from a baked wheel, at its last launch, and is stock now" in told
    )
    assert launched(site) == ("overlay", None)


def test_stock_over_a_tree_patched_in_place(site: Site) -> None:
    stock = site.snapshot()
    put_in(*site.where())
    assert launched(site) == ("in_place", None)
    for name in site.snapshot().keys() - stock.keys():
        (site.root / name).unlink()
    for name, data in stock.items():
        (site.root / name).write_bytes(data)
    told = str(launched(site)[1])
    assert "was 9.9.1, patched in place, at its last launch" in told and "run: sglang-ext patches apply" in told


def test_a_mode_that_is_demanded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(former.MODE, "in_place")
    with pytest.raises(preflight.Refused, match="by mode in_place, found overlay") as error:
        preflight.check_upstream(str(site.root))
    assert error.value.code == "mode_differs"
    put_in(*site.where())
    assert preflight.check_upstream(str(site.root)).mode == "in_place"
    monkeypatch.setenv(former.MODE, "backed")
    with pytest.raises(preflight.Refused, match="expected one of overlay, baked, in_place, found 'backed'"):
        preflight.check_upstream(str(site.root))


def test_a_cache_that_cannot_be_written_only_forgets(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(*site.where())
    (site.base / "file").write_text("")
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(site.base / "file"))
    assert launched(site) == ("in_place", None)
    (site.base / "cache" / "launched").mkdir(parents=True)
    (site.base / "cache" / "launched" / "x").write_text("")
    assert former.former(str(site.base / "cache"), str(site.root)) is None


def test_a_hand_edit_is_told_to_be_adopted(site: Site) -> None:
    """One of a file that was installed as released; what was installed otherwise, or is gone, is installed again."""
    (name, data), *_ = OURS.items()
    site.edit(name, b"line_9 = 9", b"line_9 = 0")
    with pytest.raises(preflight.Refused, match="sglang-ext patches adopt, or undo it: pip install") as error:
        preflight.check_upstream(str(site.root))
    assert error.value.code == "upstream_file_changed"
    (site.root / name).unlink()
    with pytest.raises(preflight.Refused, match=r"; run: pip install --force-reinstall"):
        preflight.check_upstream(str(site.root))
    (site.info / "RECORD").unlink()
    (site.root / name).write_bytes(data + b"#\n")
    with pytest.raises(preflight.Refused, match=r"; run: pip install --force-reinstall"):
        preflight.check_upstream(str(site.root))


def test_files_that_are_patched_themselves_need_no_hook(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "upstream_root", lambda: str(site.root))
    monkeypatch.delenv("SGLANG_EXT", raising=False)
    with pytest.raises(preflight.Refused) as error:
        preflight.check_hook([], sys.flags)
    assert error.value.code == "hook_not_armed"
    put_in(*site.where())
    preflight.check_hook([], sys.flags)
    site.edit(next(iter(OURS)), b"line_9 = 9", b"line_9 = 0")  # not as it was made: nobody knows what it does
    with pytest.raises(preflight.Refused):
        preflight.check_hook([], sys.flags)


# --- local patches that another copy of ours has


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This checkout in front of an installed sglang-ext; the folder of that one's local patches, which holds one."""
    (tmp_path / "site" / "sglang_ext").mkdir(parents=True)
    info = tmp_path / "site" / "sglang_ext-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-ext\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SGLANG_EXT_LOCAL_PATCHES", raising=False)
    home = tmp_path / "config" / "sglang-ext" / "patches" / "local"
    home.mkdir(parents=True, mode=0o700)
    (home / "srt.engine.patch").write_text("")
    return home


def test_a_checkout_does_not_leave_out_what_was_adopted(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        preflight.Refused, match=r"found the one in .* leaves out the local patches srt\.engine; start"
    ) as error:
        preflight.check_local_patches()
    assert error.value.code == "local_patches_hidden" and str(both.parents[3] / "site") in str(error.value)
    monkeypatch.setenv("SGLANG_EXT_LOCAL_PATCHES", str(both))
    preflight.check_local_patches()  # they are named


def test_a_checkout_may_stand_in_front_of_one_without_local_patches(both: Path) -> None:
    (both / "srt.engine.patch").unlink()
    preflight.check_local_patches()


def test_nothing_is_missed_of_a_sglang_ext_that_is_not_installed(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distributions", lambda **_: [])
    preflight.check_local_patches()
