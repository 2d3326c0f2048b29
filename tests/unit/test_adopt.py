"""Hand edits become local patches, the tree stock; put in again they give the same bytes. Or a sentence, and no change."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_ext.patchset import adopt as adopting
from sglang_ext.patchset import journal
from sglang_ext.patchset.adopt import Adopted, Asked, adopt
from sglang_ext.patchset.header import KEYS, lint_header
from sglang_ext.patchset.inplace import put_in, take_out
from sglang_ext.patchset.local import FOLDER, local_files, local_names, parsed
from sglang_ext.patchset.local_store import keep, names_for
from sglang_ext.patchset.merge import merge
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.tree import Tree
from tests.unit.small_upstream import BODY, DATA, FILES, ONE, OTHER, OURS, PACKAGE, TWO, WHEEL, Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def run(site: Site, *files: str, **asked: object) -> Adopted:
    return adopt(*site.where(), Asked(files, wheel=str(site.wheel), **asked), lambda text: None)  # type: ignore[arg-type]


def refused(site: Site, part: str, *files: str, code: str = "adopt_refused", **asked: object) -> None:
    """One sentence with ``part`` in it, and nothing was changed."""
    before, known = site.snapshot(), local_names(str(site.local))
    with pytest.raises(PatchError) as error:
        run(site, *files, **asked)
    assert part in str(error.value) and getattr(error.value, "code", None) == code, error.value
    assert site.snapshot() == before and local_names(str(site.local)) == known


def test_edits_become_patches_and_the_tree_stock(site: Site) -> None:
    before = site.snapshot()
    edited = {
        ONE: site.edit(ONE, b"line_30 = 30", b"line_30 = 'mine'"),
        OTHER: site.edit(OTHER, b"line_3 = 3\n", b"\n\nline_3 = 33\n"),
        PACKAGE: site.edit(PACKAGE, b"line_39 = 39\n", b""),
        DATA: site.edit(DATA, b'"c": 3\n}\n', b'"c": 4\n}'),
    }
    found = run(site)
    assert site.snapshot() == before
    assert Tree(str(site.root)).edited() == ([], [], [])
    names = ["srt.N=1-block=[2--3].json.patch", "srt.deep.__init__.patch", "srt.one.patch", "srt.other.patch"]
    assert list(found.patches) == names == local_names(str(site.local))
    assert (site.local / "series").read_text().split("\n") == [*names, ""]
    edited[ONE] = edited[ONE].replace(b"line_5 = 5", b"line_5 = 'ours'")
    put_in(*site.where())
    assert {name: (site.root / name).read_bytes() for name in FILES} == {**FILES, **OURS, **edited}
    assert run(site).patches == {}  # and back: what is in already is adopted no second time


def test_nothing_to_adopt(site: Site) -> None:
    found = run(site)
    assert (found.patches, found.stock, found.left) == ({}, (), ())
    assert not site.local.exists()


def test_headers_say_what_the_lint_wants(site: Site) -> None:
    site.edit(ONE, b"line_30 = 30", b"line_30 = 'mine'")
    run(site, name="mine", subject="Make thirty mine")
    (patch,) = parsed(local_files(str(site.local)))
    keys = [line.partition(":")[0] for line in patch.header.splitlines() if line]
    assert keys == list(KEYS) and "Subject: Make thirty mine\nReason: local\n" in patch.header
    assert all("Probe" in fault for fault in lint_header(patch))


def test_edits_beside_our_own_lines(site: Site) -> None:
    """The patch is made on top of ours: its context is what will be there."""
    site.edit(ONE, b"line_4 = 4\n", b"line_4 = 'mine'\n")
    run(site)
    put_in(*site.where())
    assert (site.root / ONE).read_bytes() == OURS[ONE].replace(b"line_4 = 4", b"line_4 = 'mine'")


def test_edits_on_our_own_lines_are_refused(site: Site) -> None:
    site.edit(ONE, b"line_5 = 5\n", b"line_5 = 'mine'\n")
    refused(site, "lie on lines of a patch: Patch one.patch")


def test_merge() -> None:
    old = b"".join(b"%d\n" % number for number in range(8))
    one = old.replace(b"3\n", b"three\n")
    assert merge(old, one, old) == merge(old, old, one) == merge(old, one, one) == one
    assert merge(old, one, old.replace(b"4\n", b"four\n")) == one.replace(b"4\n", b"four\n")
    assert merge(old, one, old.replace(b"2\n", b"2\nmore\n")) == one.replace(b"2\n", b"2\nmore\n")
    assert merge(old, one, old.replace(b"3\n", b"drei\n")) is None
    assert merge(old, old + b"x\n", old + b"y\n") is None
    assert merge(old, old.replace(b"2\n3\n", b""), old.replace(b"3\n", b"")) is None


def test_a_tree_patched_by_hand_is_only_made_stock(site: Site) -> None:
    before = site.snapshot()
    for name, data in OURS.items():
        (site.root / name).write_bytes(data)
    found = run(site)
    assert found.patches == {} and set(found.stock) == set(OURS) and site.snapshot() == before


def test_edits_of_a_tree_patched_in_place(site: Site) -> None:
    before = site.snapshot()
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    put_in(*site.where())
    site.edit(ONE, b"line_30 = 30", b"line_30 = 'mine'")
    edited = site.edit(OTHER, b"line_30 = 30", b"line_30 = 'mine'")
    refused(site, "adopted all together", ONE)
    found = run(site)
    assert found.was_in_place and list(found.patches) == ["srt.one.patch", "srt.other.patch"]
    assert site.snapshot() == before
    put_in(*site.where())
    assert (site.root / OTHER).read_bytes() == edited
    put_in(*site.where(), without=["srt.other"])
    assert (site.root / OTHER).read_bytes() == FILES[OTHER].replace(b"line_9 = 9", b"line_9 = 'a'")


def test_a_second_edit_of_a_file(site: Site) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 'first'")
    run(site)
    site.edit(OTHER, b"line_30 = 30", b"line_30 = 'second'")
    run(site)
    assert local_names(str(site.local)) == ["srt.other.patch", "srt.other-2.patch"]
    put_in(*site.where())
    data = FILES[OTHER].replace(b"line_3 = 3\n", b"line_3 = 'first'\n").replace(b"line_30 = 30", b"line_30 = 'second'")
    assert (site.root / OTHER).read_bytes() == data


def test_chosen_files_and_groups(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ONE, TWO, OTHER):
        site.edit(name, b"line_30 = 30", b"line_30 = 'mine'")
    found = run(site, OTHER, name="solo")
    assert list(found.patches) == ["solo.patch"] and sorted(found.left) == [TWO, ONE]
    monkeypatch.chdir(site.root / "sglang/srt")
    found = run(site, "one.py", str(site.root / TWO), name="pair")
    assert list(found.patches) == ["pair/srt.one.patch", "pair/srt.deep.two.patch"]
    put_in(*site.where(), without=["pair"])
    assert (site.root / ONE).read_bytes() == OURS[ONE] and (site.root / OTHER).read_bytes() != FILES[OTHER]


def test_a_dry_run_writes_nothing(site: Site) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    before = site.snapshot()
    assert list(run(site, dry_run=True).patches) == ["srt.other.patch"]
    assert site.snapshot() == before and not site.local.exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda data: data.replace(b"\n", b"\r\n"), "CRLF line endings"),
        (lambda data: b"\xef\xbb\xbf" + data, "byte order mark"),
        (lambda data: data + b"\xff\n", "no UTF-8 text"),
        (lambda data: data + b"\0\n", "no UTF-8 text"),
    ],
)
def test_what_is_no_text_is_refused(site: Site, change: Callable[[bytes], bytes], part: str) -> None:
    site.edit(ONE, b"line_3 = 3", b"line_3 = 0")
    (site.root / OTHER).write_bytes(change(FILES[OTHER]))
    refused(site, part)


def test_what_does_not_compile_is_refused(site: Site) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = (")
    refused(site, "does not compile", code="local_patch_misfit")


def test_added_and_deleted_files(site: Site) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    (site.root / "sglang/srt/tuned.json").write_text("{}")
    (site.root / "sglang/srt/mine.py").write_text("")
    refused(site, "mine.py is not upstream's")
    (site.root / TWO).unlink()
    refused(site, "two.py was deleted")
    (site.root / TWO).write_bytes(FILES[TWO])
    found = run(site, leave_added=True)
    assert list(found.patches) == ["srt.other.patch"]
    assert list(found.left) == ["sglang/srt/mine.py", "sglang/srt/tuned.json"]
    assert (site.root / "sglang/srt/mine.py").exists()


@pytest.mark.parametrize("name", ["a/b", "a b", "..", ".", "a,b", "a#b", "/a"])
def test_names_that_are_none(site: Site, name: str) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    refused(site, "cannot name a patch", name=name)


def test_a_taken_name(site: Site) -> None:
    site.add_local("a.patch", ONE, b"line_9 = 9", b"line_9 = 'a'")
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    refused(site, "there is a local patch or group a already", name="a")
    refused(site, "is not an edited file", ONE)


@pytest.mark.parametrize("files", [(OTHER,), (OTHER, TWO)])
def test_a_name_that_is_a_groups_joins_no_group(site: Site, files: tuple[str, ...]) -> None:
    """`--without fast` would leave out what it did not before."""
    site.add_local("fast/x.patch", ONE, b"line_9 = 9", b"line_9 = 'a'")
    for name in files:
        site.edit(name, b"line_3 = 3", b"line_3 = 0")
    refused(site, "there is a local patch or group fast already", *files, name="fast")


def test_two_files_of_a_group_with_one_name(site: Site) -> None:
    """deep/two.py and deep.two.py are called alike; neither patch may take the place of the other."""
    found = names_for(str(site.local), [TWO, "sglang/srt/deep.two.py"], "pair")
    assert found == {TWO: "pair/srt.deep.two.patch", "sglang/srt/deep.two.py": "pair/srt.deep.two-2.patch"}
    site.add_local("srt.deep.two/x.patch", ONE, b"line_9 = 9", b"line_9 = 'a'")
    assert names_for(str(site.local), [TWO], None) == {TWO: "srt.deep.two-2.patch"}


SERIES = "# mine, in this order\nz.patch   # first of all\n\ny.patch"


def test_lines_are_added_to_series_and_nothing_else_is_changed(site: Site) -> None:
    for name, target in (("z.patch", ONE), ("y.patch", TWO), ("unlisted.patch", PACKAGE)):
        site.add_local(name, target, b"line_20 = 20", b"line_20 = 0")
    (site.local / "series").write_text(SERIES)
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    before = local_names(str(site.local))
    run(site)
    assert (site.local / "series").read_text() == SERIES + "\nunlisted.patch\nsrt.other.patch\n"
    assert local_names(str(site.local)) == [*before, "srt.other.patch"]
    put_in(*site.where())


@pytest.mark.parametrize("name", ["my fix.patch", "group/a b.patch", "a#b.patch", "#.patch"])
def test_a_name_that_series_cannot_hold_is_said_before_anything_is_written(site: Site, name: str) -> None:
    """It works while no order is written down; with its line in series every launch would be refused."""
    site.add_local(name, ONE, b"line_9 = 9", b"line_9 = 'a'")
    assert local_names(str(site.local)) == [name]
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    refused(site, f"{name} has a name that cannot be listed in series", dry_run=True)
    refused(site, "rename it, then run this again")
    assert not (site.local / "series").exists()
    (site.local / name).rename(site.local / "named.patch")
    run(site)
    assert local_names(str(site.local)) == ["named.patch", "srt.other.patch"]


@pytest.mark.parametrize("moment", ["_pristine", "_make", "patched"])
def test_a_save_while_it_runs_is_not_lost(site: Site, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    deed = getattr(adopting, moment)

    def slow(*args: object) -> object:
        done = deed(*args)
        site.edit(OTHER, b"line_9 = 9", b"line_9 = 'saved'")
        return done

    monkeypatch.setattr(adopting, moment, slow)
    with pytest.raises(PatchError, match=r"other\.py was changed while this ran: .* run this again") as error:
        run(site)
    assert getattr(error.value, "code", None) == "tree_busy"
    assert b"'saved'" in (site.root / OTHER).read_bytes() and not site.local.exists()
    assert not (site.info / "sglang-ext").exists()
    monkeypatch.undo()
    monkeypatch.setenv(FOLDER, str(site.local))
    run(site)
    put_in(*site.where())
    assert b"'saved'" in (site.root / OTHER).read_bytes() and b"line_3 = 0" in (site.root / OTHER).read_bytes()


def test_a_save_while_the_patches_are_written_is_not_lost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")

    def slow(*args: object) -> None:
        keep(*args)  # type: ignore[arg-type]
        site.edit(OTHER, b"line_9 = 9", b"line_9 = 'saved'")

    monkeypatch.setattr(adopting, "keep", slow)
    with pytest.raises(PatchError, match=r"other\.py was changed while this ran"):
        run(site)
    assert (site.root / OTHER).read_bytes() == edited.replace(b"line_9 = 9", b"line_9 = 'saved'")
    monkeypatch.setattr(adopting, "keep", keep)
    assert list(run(site).patches) == ["srt.other-2.patch"]
    put_in(*site.where())
    assert (site.root / OTHER).read_bytes() == edited.replace(b"line_9 = 9", b"line_9 = 'saved'")


def test_a_tree_that_may_not_be_written_leaves_no_patches_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    site.edit(TWO, b"line_3 = 3", b"line_3 = 0")
    closed = str(site.root / "sglang/srt/deep")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != closed)
    refused(site, "nothing was changed", code="tree_unwritable")
    assert not site.local.exists()
    monkeypatch.undo()
    monkeypatch.setenv(FOLDER, str(site.local))
    write = journal._write

    def full(path: str, data: bytes, like: str | None) -> None:
        if path.endswith("journal.json.tmp"):
            raise OSError(28, "No space left on device", path)
        write(path, data, like)

    monkeypatch.setattr(journal, "_write", full)
    refused(site, "nothing was changed", code="tree_unwritable")
    assert not site.local.exists()


def test_without_edits_a_tree_patched_in_place_stays_so(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    put_in(*site.where())
    before = site.snapshot()
    for dry_run in (True, False):
        found = run(site, dry_run=dry_run)
        assert (found.patches, found.stock, found.left) == ({}, (), ()) and site.snapshot() == before


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_file_that_is_empty_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    empty = "sglang/srt/__init__.py"
    monkeypatch.setitem(FILES, empty, b"")
    site = Site(tmp_path, monkeypatch)
    before = site.snapshot()
    (site.root / empty).write_bytes(b"import os\nx = 1" + end)
    (site.root / OTHER).write_bytes(b"")  # and one that is empty now
    found = run(site)
    assert site.snapshot() == before and list(found.patches) == ["srt.__init__.patch", "srt.other.patch"]
    assert "\n@@ -0,0 +1,2 @@\n+import os\n" in (site.local / "srt.__init__.patch").read_text()
    put_in(*site.where())
    assert (site.root / empty).read_bytes() == b"import os\nx = 1" + end
    assert (site.root / OTHER).read_bytes() == b""
    assert put_in(*site.where()).deed == "already"
    take_out(*site.where())
    assert site.snapshot() == before


def test_only_the_locked_wheel_is_believed(site: Site, tmp_path: Path) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    good = site.wheel.read_bytes()
    with zipfile.ZipFile(site.wheel, "a") as wheel:
        wheel.writestr("more", "")
    refused(site, "expected one of the lock's wheels", code="wheel_wrong")
    site.wheel.unlink()
    refused(site, "cannot be read", code="wheel_missing")
    site.wheel.write_bytes(good)
    record = (site.info / "RECORD").read_text()
    row = next(line for line in record.splitlines() if "other.py" in line)
    other = row.replace("sha256=" + row.split("=")[1][0], "sha256=" + ("A" if row.split("=")[1][0] != "A" else "B"))
    (site.info / "RECORD").write_text(record.replace(row, other))
    refused(site, "the tree is from another wheel", code="wheel_wrong")


def test_the_wheel_comes_from_the_cache(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_ext.patchset.file_check import sha256

    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(site.base / "cache"))
    place = site.base / "cache" / "wheels" / sha256(site.wheel.read_bytes()) / WHEEL
    place.parent.mkdir(parents=True)
    site.wheel.rename(place)
    found = adopt(*site.where(), Asked(), lambda text: None)
    assert list(found.patches) == ["srt.other.patch"]


@pytest.mark.parametrize("wrong", [False, True])
def test_the_wheel_comes_through_pip(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: bool) -> None:
    """By a stand-in that is called as pip would be: the user's own configuration then says from which index."""
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(site.base / "cache"))
    served = site.base / "served.whl"
    site.wheel.rename(served)
    if wrong:
        served.write_bytes(b"another")
    pip = tmp_path / "python"
    pip.write_text(
        f"#!{sys.executable}\nimport json, shutil, sys\njson.dump(sys.argv, open({str(tmp_path / 'argv')!r}, 'w'))\n"
        f"shutil.copy({str(served)!r}, sys.argv[sys.argv.index('--dest') + 1] + '/{WHEEL}')\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    said: list[str] = []
    if wrong:
        with pytest.raises(PatchError, match="expected one of the lock's wheels"):
            adopt(*site.where(), Asked(), said.append)
        return
    adopt(*site.where(), Asked(), said.append)
    argv = json.loads((tmp_path / "argv").read_text())
    assert argv[1:4] == ["-m", "pip", "download"] and argv[-1] == "sglang==9.9.1" and said == [f"downloading {WHEEL}"]


def test_a_missing_home_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.local.write_text("a file, no folder")
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    refused(site, "cannot be written", code="tree_unwritable")


def test_the_whole_body_may_go_but_one_line(site: Site) -> None:
    (site.root / OTHER).write_bytes(b"x = 1\n")
    run(site)
    put_in(*site.where())
    assert (site.root / OTHER).read_bytes() == b"x = 1\n" and len(BODY) > 6
