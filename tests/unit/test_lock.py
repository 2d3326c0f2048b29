"""The lock: read, written back the same, malformed in every way, and never changing known bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sglang_ext.patchset.lock import (
    Lock,
    LockedFile,
    LockError,
    Release,
    dump_lock,
    load_lock,
    version_key,
    with_release,
)

if TYPE_CHECKING:
    from pathlib import Path

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
WHEEL = "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl"
TARGET = "sglang/srt/entrypoints/engine.py"


def _release(version: str = "0.5.23", **changes: object) -> Release:
    parts: dict[str, object] = {"patchset": D, "wheels": {WHEEL: A}, "files": {TARGET: LockedFile(B, C)}}
    return Release(version, **(parts | changes))  # type: ignore[arg-type]


def test_written_and_read_back(tmp_path: Path) -> None:
    lock = Lock([_release("0.5.23"), _release("0.5.9")])
    path = tmp_path / "upstream.toml"
    path.write_text(dump_lock(lock))
    again = load_lock(str(path))
    assert again.releases == lock.releases
    assert dump_lock(again) == dump_lock(lock)
    assert again.supported() == ("0.5.9", "0.5.23")
    release = again.release("0.5.23")
    assert release is not None
    assert release.wheels == {WHEEL: A}
    assert release.files[TARGET].pristine == B
    assert release.files[TARGET].patched == C
    assert release.patchset == D


def test_unknown_release() -> None:
    lock = Lock([_release()])
    assert lock.release("0.5.24") is None
    assert lock.get("0.5.23") == _release()
    with pytest.raises(LockError, match=r"sglang 0\.5\.24 is not in the lock; supported: 0\.5\.23"):
        lock.get("0.5.24")
    with pytest.raises(LockError, match="supported: no release"):
        Lock([]).get("0.5.24")


def test_what_is_supported_in_words() -> None:
    assert Lock([]).described() == "no release"
    assert Lock([_release()]).described() == "0.5.23"
    lock = Lock([_release("0.5.23"), _release("0.5.9"), _release("0.5.10.post1")])
    assert lock.described() == "0.5.9 to 0.5.23 (3 releases)"
    with pytest.raises(LockError, match=r"sglang 0\.5\.8 is not in the lock; supported: 0\.5\.9 to 0\.5\.23 \(3 rel"):
        lock.get("0.5.8")


def test_the_patches_a_release_takes(tmp_path: Path) -> None:
    names = ("engine/0.5.9.patch", "b.patch")
    path = tmp_path / "upstream.toml"
    path.write_text(dump_lock(Lock([_release(patches=names)])))
    assert load_lock(path).get("0.5.23").patches == names
    assert with_release(load_lock(path), _release(patches=("c.patch",))).get("0.5.23").patches == ("c.patch",)


@pytest.mark.parametrize(
    "name", ["../a.patch", "/a.patch", "a//b.patch", "a.diff", "a b.patch", "./a.patch", "a\\\\b.patch"]
)
def test_patches_stay_below_their_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "upstream.toml"
    path.write_text(dump_lock(Lock([_release(patches=("a.patch",))])).replace('["a.patch"]', f'["{name}"]'))
    with pytest.raises(LockError, match="`patches` is"):
        load_lock(path)
    path.write_text(dump_lock(Lock([_release(patches=("a.patch",))])).replace('["a.patch"]', "7"))
    with pytest.raises(LockError, match="`patches` is 7"):
        load_lock(path)


def test_a_lock_with_other_line_endings_or_comments_is_read_too(tmp_path: Path) -> None:
    """What is not as we write it takes the long way, and means the same."""
    text = dump_lock(Lock([_release(patches=("a.patch",))]))
    path = tmp_path / "upstream.toml"
    path.write_text(text)
    lock = load_lock(path)
    for other in (
        text.replace("\n", "\r\n"),
        text.replace("schema = 1", "schema = 1  # so far"),
        text.replace(" = ", "="),
    ):
        path.write_bytes(other.encode())
        assert load_lock(path).releases == lock.releases


def test_version_order() -> None:
    versions = ["0.4.6.post5", "0.5.9", "0.5.10rc1", "0.5.10", "0.5.10.post1", "0.5.10.post2", "0.5.11"]
    assert sorted(set(versions), key=version_key) == versions


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("schema = 1", "schema = 2", "has schema 2, expected 1"),
        ("schema = 1\n", "", "has schema None, expected 1"),
        ("schema = 1", "schema = 1\nextra = 1", "unknown key `extra`"),
        ("[release", "[releases", "unknown key `releases`"),
        ("patchset = ", "patchsets = ", "unknown key `patchsets`"),
        (A, "a" * 63, f"`{WHEEL}` is '{'a' * 63}', expected a sha256"),
        (B, "B" * 64, "`pristine` is"),
        (f'"{C}"', "7", "`patched` is 7"),
        (f'pristine = "{B}"\n', "", "`pristine` is None"),
        (f'"{WHEEL}" = "{A}"\n', "", "lists no wheels"),
        ('"0.5.23".wheels]', '"0.5.23".wheel]', "unknown key `wheel`"),
        ("schema", "schema = = ", "is not TOML"),
    ],
)
def test_malformed(tmp_path: Path, old: str, new: str, part: str) -> None:
    text = dump_lock(Lock([_release()]))
    assert old in text
    path = tmp_path / "upstream.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(LockError) as caught:
        load_lock(path)
    assert part in str(caught.value)
    assert "check_patches.py --write" in str(caught.value)


def test_missing_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot be read"):
        load_lock(tmp_path / "upstream.toml")
    (tmp_path / "upstream.toml").write_bytes(b"\xff")
    with pytest.raises(LockError, match="is not TOML"):
        load_lock(tmp_path / "upstream.toml")


def test_with_release_keeps_known_wheels_and_replaces_patched() -> None:
    other = "sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl"
    lock = with_release(None, _release())
    lock = with_release(lock, _release(patchset=A, wheels={other: B}, files={TARGET: LockedFile(B, D)}))
    release = lock.get("0.5.23")
    assert release.wheels == {WHEEL: A, other: B}
    assert release.files == {TARGET: LockedFile(B, D)}
    assert release.patchset == A
    assert with_release(lock, _release("0.5.24")).supported() == ("0.5.23", "0.5.24")


def test_with_release_never_changes_known_bytes() -> None:
    lock = Lock([_release()])
    with pytest.raises(LockError, match="one name, two files"):
        with_release(lock, _release(wheels={WHEEL: B}))
    with pytest.raises(LockError, match="the wheels differ"):
        with_release(lock, _release(files={TARGET: LockedFile(A, C)}))
