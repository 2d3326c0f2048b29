"""doctor on NCCL: libraries with a real version banner, loader variables, configuration files, a shell's variables, plugins."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext.doctor import loading, nccl_setup
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import Result
from sglang_ext.nccl import conf

FLAGS = SimpleNamespace(safe_path=False, no_site=False, no_user_site=False)


def place(*path: Path, **environ: str) -> Here:
    found = tuple(map(str, path))
    return Here("python", (3, 11), FLAGS, (), (), found, found, "/std", environ, None)


def only(results: Any) -> Result:
    (result,) = results
    return result


def library(file: Path, version: str | None) -> Path:
    """An ELF header and, where a version is given, NCCL's banner: what tells a libnccl from another file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    banner = f"NCCL version {version}+cuda13.0\0".encode() if version else b""
    file.write_bytes(b"\x7fELF" + struct.pack("<4B8x", 2, 1, 1, 0) + bytes(48) + b"NCCL version info only\0" + banner)
    return file


def wheel(site: Path, version: str, *, stated: str | None = None, name: str = "nvidia_nccl_cu13") -> Path:
    """A site-packages with NCCL's wheel: its library, and the metadata that claims it."""
    folder = site / f"{name}-{stated or version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,sha256=x,1\n")
    (folder / "METADATA").write_text(f"Name: {name}\nVersion: {stated or version}\n\n")
    return library(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", version)


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No loader cache, no default folders, no configuration files but those a test makes."""
    monkeypatch.setattr(loading, "DEFAULTS", ())
    monkeypatch.setattr(loading, "CACHE", str(tmp_path / "no-cache"))
    monkeypatch.setattr(conf, "SYSTEM_FILE", str(tmp_path / "etc-nccl.conf"))
    monkeypatch.setattr(nccl_setup, "home", lambda: str(tmp_path / "home"))


# The library.


def test_library_by_its_bytes(tmp_path: Path) -> None:
    file = wheel(tmp_path, "2.30.7")
    result = only(nccl_setup.check_library(place(tmp_path)))
    assert (
        result.state == "ok"
        and f"{file} is NCCL 2.30.7" in result.message
        and result.seen == ("nvidia-nccl-cu13 2.30.7",)
    )


def test_library_that_is_not_what_the_metadata_says(tmp_path: Path) -> None:
    """A second wheel for another CUDA wrote over the first one's file."""
    wheel(tmp_path, "2.28.9", stated="2.30.7")
    result = only(nccl_setup.check_library(place(tmp_path)))
    assert (
        result.state == "fail"
        and "2.28.9 by its bytes" in result.message
        and "nvidia-nccl-cu13 2.30.7" in result.message
    )
    wheel(tmp_path, "2.28.9", name="nvidia_nccl_cu12")
    result = only(nccl_setup.check_library(place(tmp_path)))
    assert result.state == "fail" and "both claim it" in result.message and "cu12 2.28.9" in result.message


def test_library_that_is_gone_tells_nothing_or_is_another_places(tmp_path: Path) -> None:
    file = wheel(tmp_path / "a", "2.30.7")
    wheel(tmp_path / "b", "2.29.7")
    results = list(nccl_setup.check_library(place(tmp_path / "a", tmp_path / "b")))
    assert [r.state for r in results] == ["ok", "note"] and "comes later" in results[1].message
    library(file, None)
    result = only(nccl_setup.check_library(place(tmp_path / "a")))
    assert result.state == "unknown" and "tells no NCCL version" in result.message
    file.unlink()
    result = only(nccl_setup.check_library(place(tmp_path / "a")))
    assert result.state == "fail" and "--force-reinstall" in result.fix
    assert only(nccl_setup.check_library(place(tmp_path / "none"))).state == "warn"
    system = library(tmp_path / "sys" / "libnccl.so.2", "2.21.5")
    result = only(nccl_setup.check_library(place(tmp_path / "none", LD_LIBRARY_PATH=str(system.parent))))
    assert result.state == "note" and "2.21.5" in result.message


# The loader.


def test_loader_without_another_library(tmp_path: Path) -> None:
    file = wheel(tmp_path, "2.30.7")
    alike = {"LD_LIBRARY_PATH": str(file.parent), "LD_PRELOAD": str(file), "SGLANG_NCCL_SO_PATH": str(file)}
    for environ in ({}, {"LD_PRELOAD": "libjemalloc.so.2", "LD_LIBRARY_PATH": "/nowhere::"}):
        assert only(nccl_setup.check_loader(place(tmp_path, **environ))).state == "ok"
    assert "warn" not in [r.state for r in nccl_setup.check_loader(place(tmp_path, **alike))]


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("LD_PRELOAD", "/lib/x.so:{file}", "every process has that one"),
        ("LD_LIBRARY_PATH", "/nowhere:{folder}", "before torch gets that one"),
        ("SGLANG_NCCL_SO_PATH", "{file}", "two NCCL libraries"),
    ],
)
def test_loader_with_another_library(tmp_path: Path, variable: str, value: str, part: str) -> None:
    wheel(tmp_path / "site", "2.30.7")
    other = library(tmp_path / "mine" / "libnccl.so.2", "2.27.3")
    environ = {variable: value.format(file=other, folder=other.parent)}
    result = only(nccl_setup.check_loader(place(tmp_path / "site", **environ)))
    assert (
        result.state == "warn"
        and part in result.message
        and str(other) in result.message
        and "2.27.3" in result.message
    )


def test_loader_with_a_library_that_is_not_there(tmp_path: Path) -> None:
    wheel(tmp_path, "2.30.7")
    result = only(nccl_setup.check_loader(place(tmp_path, LD_PRELOAD="/gone/libnccl.so.2")))
    assert result.state == "fail" and "/gone/libnccl.so.2" in result.message
    result = only(nccl_setup.check_loader(place(tmp_path, SGLANG_NCCL_SO_PATH="/gone/libnccl.so.2")))
    assert result.state == "warn" and "switches itself off" in result.message


def test_loaders_cache_and_order(tmp_path: Path) -> None:
    """LD_LIBRARY_PATH, then the cache; names with a slash are paths."""
    one, two = (library(tmp_path / name / "libnccl-net.so", None) for name in ("one", "two"))
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(
        b"glibc-ld.so.cache1.1\0\0" + b"\0".join([b"libnccl-net.so", os.fsencode(two), b"/x/other-libnccl-net.so", b""])
    )
    assert loading.cached("libnccl-net.so", str(cache)) == [str(two)]
    assert loading.find("libnccl-net.so", {"LD_LIBRARY_PATH": f"/nowhere;{one.parent}"}) == str(one)
    assert loading.find("libnccl-net.so", {}) is None
    assert loading.find(str(two), {}) == str(two)
    assert loading.find("/gone/x.so", {}) is None


# Configuration files.


def test_configuration_files(tmp_path: Path) -> None:
    wheel(tmp_path, "2.30.7")
    home = tmp_path / "home"
    home.mkdir()
    result = only(nccl_setup.check_config(place(tmp_path, HOME=str(home))))
    assert result.state == "ok" and str(home / ".nccl.conf") in result.message
    (home / ".nccl.conf").write_text("# mine\nNCCL_PROTO=LL\nNCCL_ALGO=Ring\nNCCL_PROTO=Simple\nAWS_SECRET=hunter2\n")
    result = only(nccl_setup.check_config(place(tmp_path, HOME=str(home), NCCL_ALGO="Tree")))
    assert result.state == "note" and "NCCL_ALGO, NCCL_PROTO" in result.message and "hunter2" not in str(result)
    assert result.seen == (
        "another variable, not shown, line 5",
        "NCCL_ALGO=Ring, line 3 (not in force: environment has it)",
        "NCCL_PROTO=LL, line 2",
    )


def test_configuration_file_named_and_not_there_or_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path, "2.30.7")
    result = only(nccl_setup.check_config(place(tmp_path, NCCL_CONF_FILE=str(tmp_path / "gone.conf"))))
    assert result.state == "warn" and "gone.conf" in result.message
    (tmp_path / "etc-nccl.conf").write_text("NCCL_PROTO=LL\n")

    def closed(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    load = conf.load
    monkeypatch.setattr(conf, "load", lambda env, version, home: load(env, version, home, closed))
    states = [r.state for r in nccl_setup.check_config(place(tmp_path))]
    assert states and set(states) == {"unknown"}


# Variables.


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("NCCL_P2P_LEVEL", "sys", "value_ignored"),
        ("NCCL_BUFFSIZE", "4M", "value_misread"),
        ("NCCL_PROTO", "LL, Simple", "value_refused"),
        ("NCCL_PROTOO", "LL", "name_misspelt"),
    ],
)
def test_variables_that_nccl_takes_otherwise(tmp_path: Path, name: str, value: str, code: str) -> None:
    wheel(tmp_path, "2.30.7")
    results = list(nccl_setup.check_variables(place(tmp_path, **{name: value})))
    found = next(r for r in results if r.message.startswith(f"{code}: {name}"))
    assert found.state == "fail" and found.fix


def test_variables_that_are_well_or_absent(tmp_path: Path) -> None:
    wheel(tmp_path, "2.30.7")
    assert only(nccl_setup.check_variables(place(tmp_path, PATH="/bin"))).state == "ok"
    result = only(nccl_setup.check_variables(place(tmp_path, NCCL_ALGO="Ring", NCCL_P2P_LEVEL="SYS")))
    assert result.state == "ok" and "by NCCL 2.30.7" in result.message
    assert result.seen == ("NCCL_ALGO=Ring", "NCCL_P2P_LEVEL=SYS")


def test_variables_of_files_are_read_too_and_secrets_are_not_shown(tmp_path: Path) -> None:
    wheel(tmp_path, "2.30.7")
    (tmp_path / "etc-nccl.conf").write_text("NCCL_P2P_LEVEL=sys\nNCCL_AUTH_TOKEN=hunter2\n")
    results = list(nccl_setup.check_variables(place(tmp_path, NCCL_API_KEY="hunter3")))
    assert any(r.state == "fail" and "NCCL_P2P_LEVEL" in r.message and "etc-nccl.conf" in str(r) for r in results)
    assert "hunter" not in str(results) and "hunter" not in str(list(nccl_setup.check_config(place(tmp_path))))


# Plugins.


def test_plugins_none_named_and_none_found(tmp_path: Path) -> None:
    wheel(tmp_path, "2.30.7")
    assert only(nccl_setup.check_plugins(place(tmp_path))).state == "ok"
    assert only(nccl_setup.check_plugins(place(tmp_path, NCCL_NET_PLUGIN="none"))).state == "ok"


def test_plugins_named_but_not_findable(tmp_path: Path) -> None:
    wheel(tmp_path, "2.30.7")
    ofi, aws = nccl_setup.check_plugins(place(tmp_path, NCCL_NET_PLUGIN="ofi,aws"))
    assert "libnccl-net-ofi.so" in ofi.message and "libnccl-net-aws.so" in aws.message
    result = only(nccl_setup.check_plugins(place(tmp_path, NCCL_TUNER_PLUGIN="mine")))
    assert result.state == "warn" and "mine or libnccl-tuner-mine.so" in result.message


def test_plugins_named_in_nccls_own_file(tmp_path: Path) -> None:
    """No shell shows them: NCCL reads its files before it looks for a plugin."""
    wheel(tmp_path, "2.30.7")
    file = Path(conf.SYSTEM_FILE)
    file.write_text("NCCL_NET_PLUGIN=ofi\nNCCL_TUNER_PLUGIN=mine\n")
    tuner = library(tmp_path / "plugins" / "libnccl-tuner-mine.so", None)
    environ = {"LD_LIBRARY_PATH": str(tuner.parent)}
    net, found = nccl_setup.check_plugins(place(tmp_path, **environ))
    assert net.state == "warn" and f"NCCL_NET_PLUGIN in {file} names ofi" in net.message
    assert net.fix.endswith(f"or unset NCCL_NET_PLUGIN in {file}")
    assert found.state == "note" and f"as NCCL_TUNER_PLUGIN in {file} says" in found.message
    (shells,) = nccl_setup.check_plugins(place(tmp_path, NCCL_NET_PLUGIN="none", **environ))  # the shell wins
    assert "tuner" in shells.message


def test_plugins_that_would_be_loaded(tmp_path: Path) -> None:
    wheel(tmp_path / "site", "2.30.7")
    plugins = tmp_path / "plugins"
    for name in ("libnccl-net.so", "libnccl-tuner-mine.so", "libnccl-env.so"):
        library(plugins / name, None)
    environ = {"LD_LIBRARY_PATH": str(plugins), "NCCL_TUNER_PLUGIN": "mine"}
    net, tuner, env = nccl_setup.check_plugins(place(tmp_path / "site", **environ))
    assert (net.state, tuner.state, env.state) == ("note", "note", "warn")
    assert "default name" in net.message and "as NCCL_TUNER_PLUGIN says" in tuner.message
    assert "answers every look-up" in env.message and "NCCL_ENV_PLUGIN=none" in env.fix
    old = tmp_path / "old"
    wheel(old, "2.27.7")  # has no env plugins yet
    assert len(list(nccl_setup.check_plugins(place(old, **environ)))) == 2


def test_the_version_is_the_chosen_librarys(tmp_path: Path) -> None:
    """Rules are taken of what would be loaded; of the newest where no library tells."""
    wheel(tmp_path / "site", "2.30.7")
    other = library(tmp_path / "mine" / "libnccl.so.2", "2.27.3")
    assert nccl_setup.version_here(place(tmp_path / "site")) == (2, 30, 7)
    assert nccl_setup.version_here(place(tmp_path / "site", SGLANG_NCCL_SO_PATH=str(other))) == (2, 27, 3)
    assert nccl_setup.version_here(place(tmp_path / "site", SGLANG_NCCL_SO_PATH="/gone")) == (2, 30, 7)
    assert nccl_setup.version_here(place(tmp_path / "none")) is None
