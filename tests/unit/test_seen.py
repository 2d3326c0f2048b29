"""A look that is spared: only while every file it rested on is untouched, and never on anybody else's word."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_ext.patchset import overlay, seen
from sglang_ext.patchset.local import WITHOUT
from sglang_ext.patchset.overlay import OverlayError, Prepared, prepare
from tests.unit.small_upstream import FILES, INFO, ONE, OTHER, OURS, TWO, Site


class Case:
    """A small upstream with a local patch, looked at through one cache; ``looks`` counts the whole looks."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = Site(base, monkeypatch)
        self.site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 'a'")
        self.cache = base / "cache"
        self.looks = 0
        whole = overlay._prepare

        def counted(root: str, patches: str, base: str) -> object:
            self.looks += 1
            return whole(root, patches, base)

        monkeypatch.setattr(overlay, "_prepare", counted)
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(seen, "SETTLED", 3_600_000_000_000)

    def age(self) -> None:
        """From here on what is there now has been there for long enough."""
        time.sleep(0.02)
        self.monkeypatch.setattr(seen, "SETTLED", 0)

    def prepare(self) -> Prepared:
        root, patches = self.site.where()
        return prepare(root, cache=str(self.cache), patches=patches)

    def records(self) -> list[Path]:
        return sorted((self.cache / "seen").iterdir()) if (self.cache / "seen").exists() else []

    def settled(self) -> Prepared:
        """Ready, recorded, and the next look is spared."""
        self.prepare()
        self.age()
        prepared = self.prepare()
        self.looks = 0
        return prepared


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def same(one: Prepared, other: Prepared) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in Prepared.__slots__)


def test_a_second_look_is_spared_and_says_the_same(case: Case) -> None:
    first = case.settled()
    again = case.prepare()
    assert case.looks == 0 and same(first, again)
    assert (again.mode, again.local, set(again.files)) == ("overlay", ("a",), {ONE, TWO, OTHER})
    (record,) = case.records()
    assert record.stat().st_mode & 0o777 == 0o600 and record.parent.stat().st_mode & 0o777 == 0o700


def test_without_local_patches_as_well(case: Case) -> None:
    shutil.rmtree(case.site.local)
    first = case.settled()
    again = case.prepare()
    assert case.looks == 0 and same(first, again) and (again.local, set(again.files)) == ((), set(OURS))
    case.site.add_local("a.patch", OTHER, b"line_30 = 30", b"line_30 = 'a'")
    assert case.prepare().local == ("a",)


def test_a_group_by_a_link(case: Case, tmp_path: Path) -> None:
    case.site.add_local("group/b.patch", ONE, b"line_30 = 30", b"line_30 = 'b'")
    shutil.move(case.site.local / "group", tmp_path / "elsewhere")
    (case.site.local / "group").symlink_to(tmp_path / "elsewhere")
    first = case.settled()
    assert first.local == ("a", "group/b")
    path = tmp_path / "elsewhere" / "b.patch"
    keeping_its_date(path, lambda path: path.write_bytes(path.read_bytes().replace(b"'b'", b"'c'")))
    assert case.prepare().digest != first.digest


def keeping_its_date(path: Path, change: Callable[[Path], object]) -> None:
    """As somebody does who wants it not to be seen."""
    before = path.stat()
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])


def copy(case: Case, name: str) -> Path:
    (folder,) = (case.cache / "overlay").iterdir()
    return folder / name


def left(case: Case, name: str) -> None:
    """Something that an apply or revert leaves."""
    folder = case.site.info / "sglang-ext"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("{}")


TOUCHES: dict[str, tuple[Callable[[Case], object], str]] = {
    "stock": (lambda case: keeping_its_date(case.site.root / ONE, byte), "upstream_file_changed"),
    "stock of a local patch": (lambda case: keeping_its_date(case.site.root / OTHER, byte), "upstream_file_changed"),
    "copy": (lambda case: keeping_its_date(copy(case, TWO), byte), "overlay_tampered"),
    "copy gone": (lambda case: copy(case, TWO).unlink(), "overlay_tampered"),
    "folder opened": (lambda case: copy(case, "").chmod(0o777), "overlay_untrusted"),
    "folder below opened": (lambda case: copy(case, "sglang/srt").chmod(0o777), "overlay_untrusted"),
    "patch": (lambda case: keeping_its_date(case.site.patches / "one.patch", byte), ""),
    "lock": (lambda case: (case.site.patches / "upstream.toml").write_text("nonsense"), ""),
    "local patch": (lambda case: keeping_its_date(case.site.local / "a.patch", byte), "local_patch_misfit"),
    "journal": (lambda case: left(case, "journal.json"), "tree_interrupted"),
    "record of an apply": (lambda case: left(case, "applied.json"), "upstream_file_changed"),
    "patch below a group": (
        lambda case: case.site.add_local("group/notes/b.patch", OTHER, b"line_3 = 3", b"line_3 = 0"),
        "local_patch_misfit",
    ),
    "local folder opened": (lambda case: case.site.local.chmod(0o777), "local_patch_misfit"),
}


@pytest.mark.parametrize("what", TOUCHES)
def test_a_file_that_was_touched_is_looked_at(case: Case, what: str) -> None:
    """Also where it kept its size, and got its date back."""
    touch, code = TOUCHES[what]
    (case.site.info / "sglang-ext").mkdir()  # one that could not be removed
    (case.site.local / "group" / "notes").mkdir(parents=True)
    case.settled()
    touch(case)
    with pytest.raises((OverlayError, ValueError)) as error:
        case.prepare()
    assert case.looks == 1 and getattr(error.value, "code", "") == code


def test_what_comes_and_goes_is_seen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    one = case.settled()
    case.site.add_local("group/b.patch", ONE, b"line_30 = 30", b"line_30 = 'b'")
    both = case.settled()
    assert both.local == ("a", "group/b") and both.digest != one.digest
    (case.site.local / "group" / "b.patch").unlink()
    case.looks = 0
    assert same(case.prepare(), one) and case.looks >= 1
    (case.site.local / "series").write_text("none.patch\n")
    with pytest.raises(OverlayError):
        case.prepare()
    (case.site.local / "series").unlink()
    monkeypatch.setenv(WITHOUT, "a")
    assert case.prepare().local == ()
    monkeypatch.delenv(WITHOUT)
    case.settled()
    os.rename(case.site.root / INFO, case.site.root / "sglang-9.9.2.dist-info")
    case.prepare()
    assert case.looks >= 1


def test_bytecode_that_was_exchanged_is_not_passed_over(case: Case) -> None:
    first = case.settled()
    cached = Path(importlib.util.cache_from_source(first.files[ONE]))
    cached.unlink()
    case.prepare()
    assert case.looks >= 1 and cached.exists()  # made again


@pytest.mark.parametrize("bits", [0o644, 0o660, 0o666])
def test_a_record_that_others_can_reach_is_not_believed(case: Case, bits: int) -> None:
    case.settled()
    case.records()[0].chmod(bits)
    case.prepare()
    assert case.looks >= 1


def test_a_record_by_a_link_is_not_believed(case: Case, tmp_path: Path) -> None:
    case.settled()
    (record,) = case.records()
    shutil.move(record, tmp_path / "elsewhere")
    record.symlink_to(tmp_path / "elsewhere")
    assert seen.recall(str(record)) is None and seen.recall(str(tmp_path / "elsewhere")) is not None


def test_a_record_that_was_cut_off_is_none(case: Case) -> None:
    case.settled()
    (record,) = case.records()
    whole = record.read_bytes()
    for length in reversed(range(len(whole) - 1)):  # without its last newline it is whole
        os.truncate(record, length)
        assert seen.recall(str(record)) is None, length
    record.write_bytes(whole)
    assert seen.recall(str(record)) is not None


def test_nothing_is_recorded_of_what_was_just_touched(case: Case) -> None:
    """A second write within one tick of the file system's clock would not show."""
    for _ in range(3):
        case.prepare()
    assert case.looks == 3 and case.records() == []


def test_a_change_while_it_is_recorded_leaves_an_old_mark_behind(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.prepare()
    marks = seen.marks

    def disturbed(paths: object) -> object:
        found = marks(paths)  # type: ignore[arg-type]
        keeping_its_date(copy(case, TWO), byte)
        return found

    case.age()
    monkeypatch.setattr(seen, "marks", disturbed)
    with pytest.raises(OverlayError):
        case.prepare()
    assert case.records() == []


def test_copies_that_others_may_read_are_hashed_by_every_process(case: Case) -> None:
    """As in an image, where they are root's or for several users."""
    case.prepare()
    copy(case, "").chmod(0o755)
    case.age()
    case.prepare()
    assert case.records() == []


def test_where_nothing_can_be_written_every_look_is_whole(case: Case) -> None:
    case.prepare()
    (case.cache / "seen").write_text("")
    case.age()
    case.looks = 0
    assert same(case.prepare(), case.prepare()) and case.looks == 4  # each of them again, for the record
    assert set(OURS) < set(case.prepare().files) and FILES[ONE]


def test_paths_that_a_record_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a\nb").write_text("")
    assert seen.marks([str(tmp_path / "a\nb")]) is None
    monkeypatch.setattr(seen, "SETTLED", 0)
    time.sleep(0.02)
    assert seen.marks([str(tmp_path / "none")]) == {str(tmp_path / "none"): seen.NONE}
