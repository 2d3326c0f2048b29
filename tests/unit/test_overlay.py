"""The overlay: right bytes or a sentence, whoever built it, whatever became of it; and stock stays as it is.

A small upstream with two targets and patches of its own; at the end, where sglang is installed, the real one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import shutil
import stat as stat_bits
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from sglang_ext.patchset import overlay
from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.installed import installed_version
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock
from sglang_ext.patchset.overlay import OverlayError, Prepared, cache_base, identify, prepare
from sglang_ext.patchset.series import patch_set_digest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
ROOT_USER = os.geteuid() == 0

ONE, TWO = "sglang/srt/one.py", "sglang/srt/deep/two.py"
PRISTINE = {
    ONE: b'"""One."""\n\n\ndef who():\n    return "stock"\n\n\ndef fails():\n    raise ValueError("here")\n',
    TWO: b"import os\n\nVALUE = 1\nNAME = os.name\n",
}
PATCHED = {
    ONE: PRISTINE[ONE].replace(b'"stock"', b'"patched"'),
    TWO: PRISTINE[TWO].replace(b"VALUE = 1", b"VALUE = 2"),
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_tree(root: Path, files: dict[str, bytes], version: str = "9.9.1") -> Path:
    """A site-packages folder with an sglang of ``version`` in it."""
    for name, data in {"sglang/__init__.py": b"", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / f"sglang-{version}.dist-info").mkdir(exist_ok=True)
    return root


def write_patches(folder: Path, patched: dict[str, bytes] = PATCHED, version: str = "9.9.1") -> Path:
    """A patch set that makes ``patched`` of PRISTINE, with its lock."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for target, data in PRISTINE.items():
        name = Path(target).stem + ".patch"
        (folder / name).write_text(render(make(target, data, patched[target], name, "Subject: x\n\n")))
        names.append(name)
    (folder / "series").write_text("\n".join(names) + "\n")
    files = {t: LockedFile(sha256(PRISTINE[t]), sha256(patched[t])) for t in PRISTINE}
    release = Release(version, patch_set_digest(folder), {"sglang.whl": "0" * 64}, files)
    (folder / "upstream.toml").write_text(dump_lock(Lock([release])))
    return folder


class Case:
    """One upstream, one patch set, one cache."""

    def __init__(self, base: Path) -> None:
        self.root = write_tree(base / "site", PRISTINE)
        self.patches = write_patches(base / "patches")
        self.cache = base / "cache"

    def prepare(self) -> Prepared:
        return prepare(str(self.root), cache=str(self.cache), patches=str(self.patches))

    def refused(self, code: str) -> str:
        """The sentence of the OverlayError with ``code``."""
        with pytest.raises(OverlayError) as error:
            self.prepare()
        assert error.value.code == code
        return str(error.value)

    def folder(self) -> Path:
        (folder,) = (self.cache / "overlay").iterdir()
        return folder


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


# --- building ---------------------------------------------------------------------------------------------


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


# --- what is not believed ---------------------------------------------------------------------------------


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


# --- which upstream it is ---------------------------------------------------------------------------------


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
