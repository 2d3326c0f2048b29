"""The baked wheel: upstream's bytes wherever nothing was patched, the overlay's where it was, the same every time.

The upstream is a small one; the real wheels are in tests/e2e/test_baked.py.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Callable
from email.message import Message
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from sglang_ext import __version__
from sglang_ext.patchset.baked import BakeError, Renamer, baked_name, locked_release
from sglang_ext.patchset.lock import LockedFile, Release
from sglang_ext.patchset.overlay import identify, prepare
from sglang_ext.patchset.series import PatchSet
from tests.unit.small_wheel import (
    BAKED,
    FILE,
    FILES,
    INFO,
    ONE,
    PATCHED,
    PRISTINE,
    VERSION,
    case,
    entry,
    raw,
    sha256,
    wheel,
)


def installed(data: bytes, folder: Path) -> Distribution:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
    return PathDistribution(next(folder.glob("sglang-*.dist-info")))


PACKINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "crlf_record": {"end": "\r\n"},
    "stored": {"how": lambda name: entry(name, zipfile.ZIP_STORED)},
    "descriptors": {"pipe": True},
    "descriptors_stored": {"pipe": True, "how": lambda name: entry(name, zipfile.ZIP_STORED)},
    "zip64_entries": {"zip64": True},
    "zip64_descriptors": {"zip64": True, "pipe": True},
    "extra_fields": {"how": lambda name: entry(name, extra=b"UT\x05\x00\x01\x00\x00\x00\x00")},
    "comment": {"comment": b"a comment"},
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_is_not_patched_stays_and_what_is_is_the_overlays(tmp_path: Path, packing: str) -> None:
    made = case(tmp_path / "patches", wheel(**PACKINGS[packing]))
    new = made.bake()
    rename = Renamer(f"{INFO}/", f"sglang-{VERSION}+ext.1.dist-info/")
    changed = {*PRISTINE, "sglang/_version.py", f"{INFO}/METADATA", f"{INFO}/RECORD"}
    with (
        zipfile.ZipFile(io.BytesIO(made.data)) as before,
        zipfile.ZipFile(io.BytesIO(new)) as after,
    ):
        assert after.testzip() is None
        assert after.namelist() == [rename(name) for name in before.namelist()]
        assert after.comment == before.comment
        for old, now in zip(before.infolist(), after.infolist(), strict=True):
            assert (now.date_time, now.external_attr, now.compress_type) == (
                old.date_time,
                old.external_attr,
                old.compress_type,
            )
            if old.filename not in changed:
                assert raw(new)[now.filename] == raw(made.data)[old.filename]
        assert {target: after.read(target) for target in PATCHED} == PATCHED
    # RECORD, file by file, by the standard library's reading of it.
    found = installed(new, tmp_path / "site")
    listed = {str(file): file for file in found.files or ()}
    assert set(listed) == {rename(name) for name in FILES} | {f"sglang-{VERSION}+ext.1.dist-info/RECORD"}
    for name, file in listed.items():
        data = file.read_binary()
        if file.hash is None:
            assert name.endswith("/RECORD") and file.size is None
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert (file.hash.mode, file.hash.value, file.size) == ("sha256", digest, len(data))
    if packing == "crlf_record":
        assert (tmp_path / "site" / rename(f"{INFO}/RECORD")).read_bytes().count(b"\r\n") == len(FILES) + 1
    # The hook's own eyes: patched, of that release, nothing to do.
    assert identify(str(tmp_path / "site"), made.lock)[:2] == ("patched", made.release)
    prepared = prepare(str(tmp_path / "site"), cache=str(tmp_path / "cache"), patches=str(made.patches))
    assert (prepared.mode, prepared.files) == ("baked", {}) and not (tmp_path / "cache").exists()


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    made = case(tmp_path / "patches", wheel())
    assert made.bake() == made.bake() == case(tmp_path / "again", wheel()).bake()
    assert made.bake(2) != made.bake(1)


def test_the_texts(tmp_path: Path) -> None:
    found = installed(case(tmp_path / "patches", wheel()).bake(7), tmp_path / "site")
    assert found.version == f"{VERSION}+ext.7"
    assert found.requires == [f"sglang-ext=={__version__}", "numpy", 'sglang[all]; extra == "dev"']
    assert isinstance(found.metadata, Message)
    body = found.metadata.get_payload()
    assert isinstance(body, str)
    notice, _, rest = body.partition("\n\n")
    assert "Modified" in notice and all(f"`{name}`" in notice for name in (*PRISTINE, "sglang/_version.py"))
    assert rest == f"# SGLang\n\nVersion: {VERSION}\n"  # only the header is one
    scope: dict[str, Any] = {}
    exec((tmp_path / "site/sglang/_version.py").read_bytes(), scope)
    assert scope["__version__"] == scope["version"] == f"{VERSION}+ext.7"
    assert scope["__version_tuple__"] == (9, 9, 1, "ext.7")


def test_the_name_is_a_wheels_name() -> None:
    name, version, build, tags = parse_wheel_filename(BAKED)
    assert (str(name), version, build) == ("sglang", Version(f"{VERSION}+ext.1"), ())
    assert {str(tag) for tag in tags} == {"cp311-cp311-manylinux_2_34_x86_64"}
    assert baked_name(FILE, VERSION, 1) == BAKED
    assert baked_name("sglang-0.5.9-py3-none-any.whl", "0.5.9", 2) == "sglang-0.5.9+ext.2-py3-none-any.whl"


@pytest.mark.parametrize(
    ("pin", "met"),
    [
        ("sglang==0.5.23", True),
        ("sglang>=0.5.23", True),
        ("sglang<=0.5.23", True),
        ("sglang~=0.5.23", True),
        ("sglang==0.5.*", True),
        ("sglang>=0.5.9,<=0.5.23,!=0.5.10rc0", True),
        ("sglang==0.5.23+ext.1", True),
        ("sglang===0.5.23", False),
        ("sglang!=0.5.23", False),
        ("sglang>0.5.23", False),
        ("sglang==0.5.23+ext.2", False),
    ],
)
def test_which_pins_it_meets(pin: str, met: bool) -> None:
    """docs/baked.md says so."""
    assert Requirement(pin).specifier.contains("0.5.23+ext.1") is met


# What is refused.


def refusal(act: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(BakeError) as caught:
        act()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return caught.value.code, text


def test_a_wheel_the_lock_does_not_know(tmp_path: Path) -> None:
    made = case(tmp_path / "patches", wheel())
    assert locked_release(made.lock, FILE) is not None
    code, text = refusal(lambda: locked_release(made.lock, BAKED))
    assert code == "wheel_not_locked" and BAKED in text and VERSION in text


def test_another_hash_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    made = case(tmp_path / "patches", wheel())
    for data in (b"", made.data[:-1], made.data + b"x"):
        code, text = refusal(lambda data=data: made._replace(data=data).bake())  # type: ignore[misc]
        assert code == "wheel_changed" and sha256(made.data)[:12] in text and sha256(data)[:12] in text


def test_patches_that_do_not_give_what_the_lock_says(tmp_path: Path) -> None:
    made = case(tmp_path / "patches", wheel())
    (ours, other), patches = made.release.files.items(), made.patch_set
    broken = Release(
        VERSION, made.release.patchset, made.release.wheels, {**dict([ours]), other[0]: LockedFile("0" * 64, "1" * 64)}
    )
    code, text = refusal(made._replace(release=broken).bake)
    assert code == "patch_set_broken" and other[0] in text
    fewer = made._replace(patch_set=PatchSet(patches.patches[:1], patches.digest))
    assert refusal(fewer.bake)[0] == "patch_set_broken"
    twice = made._replace(patch_set=PatchSet([*patches.patches, patches.patches[0]], patches.digest))
    code, text = refusal(twice.bake)
    assert code == "patch_set_broken" and "one.patch" in text


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("sglang/_version.py", b"version = '9.9.1'", b"version = '9.9.2'"),
        ("sglang/_version.py", b"(9, 9, 1)", b"(\n9, 9, 1)"),
        (f"{INFO}/METADATA", b"Name: sglang\n", b"Name: other\n"),
        (f"{INFO}/METADATA", b"Version: 9.9.1\nLicense", b"License"),
        (f"{INFO}/METADATA", b"Name:", b"Version: 9.9.1\nName:"),
    ],
)
def test_a_wheel_of_another_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: bytes, new: bytes
) -> None:
    assert old in FILES[name]
    monkeypatch.setitem(FILES, name, FILES[name].replace(old, new))
    code, _ = refusal(case(tmp_path / "patches", wheel()).bake)
    assert code == "wheel_changed"


@pytest.mark.parametrize("gone", ["sglang/_version.py", f"{INFO}/METADATA", ONE])
def test_a_wheel_without_a_file_it_must_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    monkeypatch.delitem(FILES, gone)
    code, text = refusal(case(tmp_path / "patches", wheel()).bake)
    assert code == "wheel_changed" and gone in text
