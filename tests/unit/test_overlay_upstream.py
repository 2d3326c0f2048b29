"""Which upstream an overlay is made for: told by its bytes, and one that was edited or is not supported is named with the fix.

At the end, where sglang is installed, the real one.
"""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from sglang_ext.patchset import overlay
from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.installed import installed_version
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock
from sglang_ext.patchset.overlay import OverlayError, identify, prepare
from sglang_ext.patchset.series import patch_set_digest
from tests.unit.overlay_case import ONE, PATCHED, PRISTINE, TWO, Case, sha256, write_tree


def test_a_patched_upstream_is_baked(tmp_path: Path) -> None:
    case = Case(tmp_path)
    write_tree(case.root, PATCHED)
    prepared = case.prepare()
    assert (prepared.mode, prepared.release, prepared.files) == ("baked", "9.9.1", {})
    assert prepared.hashes == {target: sha256(data) for target, data in PATCHED.items()}
    assert not case.cache.exists()


def test_half_patched_stops(tmp_path: Path) -> None:
    case = Case(tmp_path)
    write_tree(case.root, {ONE: PATCHED[ONE]})
    sentence = case.refused("upstream_half_patched")
    assert "sglang 9.9.1" in sentence and "patched in part only" in sentence
    assert "run: pip install --force-reinstall --no-deps sglang==9.9.1" in sentence
    assert not case.cache.exists()


@pytest.mark.parametrize("target", [ONE, TWO])
@pytest.mark.parametrize("kind", ["byte", "line", "missing"])
def test_an_edited_file_is_named(tmp_path: Path, target: str, kind: str) -> None:
    case = Case(tmp_path)
    path = case.root / target
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(PRISTINE[target].replace(b"\n", b" \n", 1) if kind == "byte" else PRISTINE[target] + b"#\n")
    sentence = case.refused("upstream_file_changed")
    assert str(path) in sentence and "is not sglang 9.9.1 as released" in sentence
    assert f"expected {sha256(PRISTINE[target])[:12]}" in sentence
    found = "no such file" if kind == "missing" else sha256(path.read_bytes())[:12]
    assert f"sha256 {found}" in sentence
    assert "pip install --force-reinstall --no-deps sglang==9.9.1" in sentence
    assert not case.cache.exists()


def test_an_edited_file_among_patched_ones_is_changed_not_half_patched(tmp_path: Path) -> None:
    case = Case(tmp_path)
    write_tree(case.root, {ONE: PATCHED[ONE], TWO: PRISTINE[TWO] + b"#\n"})
    assert TWO in case.refused("upstream_file_changed")


def test_an_unsupported_release_is_named_with_the_fix(tmp_path: Path) -> None:
    case = Case(tmp_path)
    os.rename(case.root / "sglang-9.9.1.dist-info", case.root / "sglang-9.10.0.dist-info")
    write_tree(case.root, {ONE: PRISTINE[ONE] + b"# new\n"}, "9.10.0")
    sentence = case.refused("unsupported_upstream")
    assert f"sglang 9.10.0 in {case.root} is not supported" in sentence
    assert "which patches 9.9.1" in sentence and 'run: pip install "sglang==9.9.1"' in sentence


@pytest.mark.parametrize("versions", [(), ("9.9.1", "9.9.2")])
def test_a_release_that_cannot_be_told_is_unsupported(tmp_path: Path, versions: tuple[str, ...]) -> None:
    case = Case(tmp_path)
    os.rmdir(case.root / "sglang-9.9.1.dist-info")
    for version in versions:
        (case.root / f"sglang-{version}.dist-info").mkdir()
    (case.root / "sglang_ext-9.9.1.dist-info").mkdir()  # ours is no sglang
    assert case.prepare().mode == "overlay"  # the bytes decide, not the metadata
    write_tree(case.root, {ONE: b""}, versions[0] if versions else "9.9.1")
    if not versions:
        os.rmdir(case.root / "sglang-9.9.1.dist-info")
    assert "sglang unknown in" in case.refused("unsupported_upstream")


def test_the_lock_chooses_the_release_by_bytes(tmp_path: Path) -> None:
    old = {target: data + b"# old\n" for target, data in PRISTINE.items()}
    locks = [
        Release(
            version,
            "0" * 64,
            {"w.whl": "0" * 64},
            {t: LockedFile(sha256(files[t]), sha256(PATCHED[t] + version.encode())) for t in files},
        )
        for version, files in (("9.9.0", old), ("9.9.1", PRISTINE))
    ]
    root = write_tree(tmp_path, old, "9.9.1")  # its metadata lies
    kind, release, hashes = identify(str(root), Lock(locks))
    assert (kind, release.version, hashes) == ("pristine", "9.9.0", {t: sha256(d) for t, d in old.items()})


def test_a_post_release_with_the_same_files_is_told_by_its_metadata(tmp_path: Path) -> None:
    files = {t: LockedFile(sha256(PRISTINE[t]), sha256(PATCHED[t])) for t in PRISTINE}
    lock = Lock([Release(version, "0" * 64, {"w.whl": "0" * 64}, files) for version in ("9.9.1", "9.9.1.post1")])
    for version in ("9.9.1", "9.9.1.post1"):
        root = write_tree(tmp_path / version, PRISTINE, version)
        assert identify(str(root), lock)[1].version == version
    assert identify(str(write_tree(tmp_path / "odd", PRISTINE, "9.9.7")), lock)[1].version == "9.9.1"


def test_a_refusal_names_the_installed_release_and_the_range(tmp_path: Path) -> None:
    files = {t: LockedFile(sha256(PRISTINE[t]), sha256(PATCHED[t])) for t in PRISTINE}
    lock = Lock([Release(v, "0" * 64, {"w.whl": "0" * 64}, files) for v in ("9.9.1", "9.9.2", "9.10.0")])
    root = write_tree(tmp_path, {ONE: b"", TWO: b""}, "9.9.2rc1")
    with pytest.raises(OverlayError) as error:
        identify(str(root), lock)
    assert error.value.code == "unsupported_upstream"
    assert str(error.value) == (
        f"sglang 9.9.2rc1 in {root} is not supported by this sglang-ext, which patches 9.9.1 to 9.10.0 (3 releases); "
        'run: pip install "sglang==9.10.0"'
    )


def test_each_release_takes_its_variant(tmp_path: Path) -> None:
    """Two releases, two variants of one patch: the lock says which, and each overlay has the digest of its own set."""
    patches = tmp_path / "patches"
    (patches / "one").mkdir(parents=True)
    (patches / "series").write_text("one/\n")
    releases, found = [], {}
    for version, name in (("9.9.1", "stock"), ("9.9.3", "other")):
        stock = b"def who():\n    return 'NAME'\n".replace(b"NAME", name.encode())
        patched = stock.replace(b"return", b"return 'our ' +")
        variant = f"one/{version}.patch"
        (patches / variant).write_text(render(make(ONE, stock, patched, variant, "Subject: x\n\n")))
        digest = patch_set_digest(patches, [variant])
        files = {ONE: LockedFile(sha256(stock), sha256(patched))}
        releases.append(Release(version, digest, {"w.whl": "0" * 64}, files, [variant]))
        write_tree(tmp_path / version, {ONE: stock}, version)
        found[version] = digest, patched
    (patches / "upstream.toml").write_text(dump_lock(Lock(releases)))
    for version, (digest, patched) in found.items():
        prepared = prepare(str(tmp_path / version), cache=str(tmp_path / "cache"), patches=str(patches))
        assert (prepared.mode, prepared.release, prepared.digest) == ("overlay", version, digest)
        assert Path(prepared.files[ONE]).read_bytes() == patched
    assert found["9.9.1"][0] != found["9.9.3"][0]


# --- the real upstream ------------------------------------------------------------------------------------


_SPEC = PathFinder.find_spec("sglang")

if _SPEC is not None and _SPEC.origin is not None:
    INSTALLED = Path(_SPEC.origin).parent.parent
    TARGETS = (
        "sglang/srt/entrypoints/engine.py",
        "sglang/srt/managers/scheduler.py",
        "sglang/srt/models/deepseek_v2.py",
    )

    @pytest.mark.e2e
    def test_the_installed_sglang_gets_the_locked_overlay(tmp_path: Path) -> None:
        before = {t: (INSTALLED / t).read_bytes() for t in TARGETS}
        prepared = prepare(str(INSTALLED), cache=str(tmp_path))
        if prepared.mode == "overlay":
            assert {t: overlay.sha256_file(p) for t, p in prepared.files.items()} == prepared.hashes
            assert all(b"sglang_ext" in Path(path).read_bytes() for path in prepared.files.values())
        assert {t: (INSTALLED / t).read_bytes() for t in TARGETS} == before

    @pytest.mark.e2e
    def test_one_edited_byte_of_the_installed_sglang_is_found(tmp_path: Path) -> None:
        version = installed_version(str(INSTALLED))
        files = {t: (INSTALLED / t).read_bytes() for t in TARGETS}
        root = write_tree(tmp_path / "site", files, version)
        assert prepare(str(root), cache=str(tmp_path / "cache")).release == version
        edited = root / TARGETS[0]
        edited.write_bytes(edited.read_bytes().replace(b"import", b"Import", 1))
        with pytest.raises(OverlayError, match=TARGETS[0]) as error:
            prepare(str(root), cache=str(tmp_path / "cache"))
        assert error.value.code == "upstream_file_changed"
