"""Apply and revert in place: all or none, byte for byte, twice the same, and whole again wherever the process ended."""

from __future__ import annotations

import itertools
import os
import shutil
import stat as stat_bits
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sglang_ext.patchset import inplace, journal
from sglang_ext.patchset.adopt import Asked, adopt
from sglang_ext.patchset.applied import of_root
from sglang_ext.patchset.inplace import is_interrupted, put_in, take_out
from sglang_ext.patchset.journal import Lock as TreeLock
from sglang_ext.patchset.local import local_names
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.tree import Tree, TreeError
from sglang_ext.patchset.tree_status import look
from tests.unit.small_upstream import DATA, FILES, INFO, ONE, OTHER, OURS, TWO, Site

KILLED = 9


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def files(site: Site) -> dict[str, bytes]:
    return {name: (site.root / name).read_bytes() for name in FILES}


def refused(code: str, deed: Callable[[], object]) -> str:
    with pytest.raises(PatchError) as error:
        deed()
    assert getattr(error.value, "code", None) == code, error.value
    return str(error.value)


def test_there_and_back(site: Site) -> None:
    before = site.snapshot()
    outcome = put_in(*site.where())
    assert (outcome.deed, outcome.digest, sorted(outcome.files)) == ("applied", site.digest, [TWO, ONE])
    assert files(site) == {**FILES, **OURS}
    assert Tree(str(site.root)).edited() == ([], [], [])  # RECORD is true
    listed = set(Tree(str(site.root)).record.at)
    assert {name for name in site.snapshot() if not name.startswith("sglang/")} <= listed  # so that pip takes it along
    said = of_root(str(site.root))
    assert said is not None and (said.release, said.digest) == ("9.9.1", site.digest)
    applied = site.snapshot()
    assert put_in(*site.where()).deed == "already" and site.snapshot() == applied
    assert take_out(*site.where()).deed == "reverted" and site.snapshot() == before
    assert take_out(*site.where()).deed == "nothing" and site.snapshot() == before
    assert not (site.info / "sglang-ext").exists()


def test_local_patches_come_along_and_can_be_left_out(site: Site) -> None:
    before = site.snapshot()
    made = {
        OTHER: site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'"),
        ONE: site.add_local("b.patch", ONE, b"line_30 = 30", b"line_30 = 'b'").replace(
            b"line_5 = 5", b"line_5 = 'ours'"
        ),
        DATA: site.add_local("c.patch", DATA, b'"b": 2', b'"b": 9'),
    }
    whole = put_in(*site.where())
    assert files(site) == {**FILES, **OURS, **made} and whole.digest != site.digest
    less = put_in(*site.where(), without=["a", "b"])
    assert files(site) == {**FILES, **OURS, DATA: made[DATA]} and less.digest not in (site.digest, whole.digest)
    assert sorted(less.files) == [ONE, OTHER]
    none = put_in(*site.where(), without=["a", "b", "c"])
    assert files(site) == {**FILES, **OURS} and none.digest == site.digest
    assert put_in(*site.where()).digest == whole.digest
    take_out(*site.where())
    assert site.snapshot() == before


def test_one_that_does_not_fit_leaves_everything(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    site.add_local("b.patch", ONE, b"line_5 = 5", b"line_5 = 'mine'")  # on our own line
    before = site.snapshot()
    assert "--without b" in refused("local_patch_misfit", lambda: put_in(*site.where()))
    refused("local_patch_unknown", lambda: put_in(*site.where(), without=["nix"]))
    assert site.snapshot() == before


def test_an_edit_is_never_written_over(site: Site) -> None:
    site.edit(ONE, b"line_9 = 9", b"line_9 = 0")
    before = site.snapshot()
    assert "patches adopt" in refused("upstream_file_changed", lambda: put_in(*site.where()))
    assert site.snapshot() == before
    (site.root / ONE).write_bytes(FILES[ONE])
    put_in(*site.where())
    site.edit(ONE, b"line_9 = 9", b"line_9 = 0")
    before = site.snapshot()
    for deed in (put_in, take_out):
        refused("upstream_file_changed", partial(deed, *site.where()))
    assert site.snapshot() == before


@pytest.mark.parametrize("names", [[ONE], [ONE, TWO]])
def test_what_somebody_else_patched_is_taken_over(site: Site, names: list[str]) -> None:
    before = site.snapshot()
    for name in names:
        (site.root / name).write_bytes(OURS[name])
    put_in(*site.where())
    assert files(site) == {**FILES, **OURS}
    take_out(*site.where())
    assert site.snapshot() == before
    for name in names:
        (site.root / name).write_bytes(OURS[name])
    assert take_out(*site.where()).deed == "reverted" and site.snapshot() == before


def test_mode_and_bytecode(site: Site) -> None:
    (site.root / ONE).chmod(0o755)
    cache = site.root / "sglang/srt/__pycache__"
    cache.mkdir()
    for name in (
        "one.cpython-311.pyc",
        "one.cpython-312.opt-1.pyc",
        "other.cpython-311.pyc",
        "one_more.cpython-311.pyc",
    ):
        (cache / name).write_bytes(b"")
    put_in(*site.where())
    assert stat_bits.S_IMODE((site.root / ONE).stat().st_mode) == 0o755
    assert sorted(path.name for path in cache.iterdir()) == ["one_more.cpython-311.pyc", "other.cpython-311.pyc"]


def test_a_hard_link_elsewhere_keeps_its_bytes(site: Site) -> None:
    os.link(site.root / ONE, site.base / "cache.py")  # as uv links an environment into its cache
    put_in(*site.where())
    assert (site.base / "cache.py").read_bytes() == FILES[ONE] != (site.root / ONE).read_bytes()


def test_only_one_at_a_time(site: Site) -> None:
    with TreeLock(Tree(str(site.root))):
        refused("tree_busy", lambda: put_in(*site.where()))
    put_in(*site.where())


def test_a_tree_of_a_baked_wheel(site: Site) -> None:
    for name, data in OURS.items():
        (site.root / name).write_bytes(data)
    tree = Tree(str(site.root))
    rows = {name: tree.record.fresh_row(name, data) for name, data in OURS.items()}
    (site.info / "RECORD").write_bytes(tree.record.changed(rows, "ours/"))
    site.info.rename(site.root / "sglang-9.9.1+ext.1.dist-info")
    before = site.snapshot()
    assert put_in(*site.where()).deed == "already"
    refused("tree_baked", lambda: take_out(*site.where()))
    assert site.snapshot() == before


@pytest.mark.parametrize("local", [False, True])
def test_an_edited_file_of_a_baked_wheel_is_said(site: Site, local: bool) -> None:
    for name, data in OURS.items():
        (site.root / name).write_bytes(data)
    tree = Tree(str(site.root))
    rows = {name: tree.record.fresh_row(name, data) for name, data in OURS.items()}
    (site.info / "RECORD").write_bytes(tree.record.changed(rows, "ours/"))
    site.edit(ONE, b"line_9 = 9", b"line_9 = 0")
    if local:
        site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    before = site.snapshot()
    assert "adopt it there" in refused("upstream_file_changed", lambda: put_in(*site.where()))
    (site.root / ONE).unlink()
    refused("upstream_file_changed", lambda: put_in(*site.where()))
    assert {**before, ONE: b""} == {**site.snapshot(), ONE: b""}


def test_two_files_that_are_the_same_share_what_is_kept_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes with the last of them: RECORD never lists what is not there, and a revert needs no download."""
    twins = ("sglang/srt/a.py", "sglang/srt/z.py")
    for name in twins:
        monkeypatch.setitem(FILES, name, FILES[OTHER])
    site = Site(tmp_path, monkeypatch)
    before = site.snapshot()
    for name in twins:
        site.add_local(f"{name[-4]}.patch", name, b"line_9 = 9", b"line_9 = 'mine'")
    for gone in "az":
        put_in(*site.where())
        put_in(*site.where(), without=[gone])
        tree = Tree(str(site.root))
        assert [name for name in tree.record.at if tree.read(name) is None] == []
        take_out(*site.where())
        assert site.snapshot() == before


def test_a_save_while_it_runs_is_not_lost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    make = inplace.changes_to

    def slow(*args: object) -> object:
        made = make(*args)  # type: ignore[arg-type]
        site.edit(ONE, b"line_9 = 9", b"line_9 = 'saved'")
        return made

    for deed in (put_in, take_out):
        before = site.snapshot()
        monkeypatch.setattr(inplace, "changes_to", slow)
        assert "was changed while this ran" in refused("tree_busy", partial(deed, *site.where()))
        saved = before[ONE].replace(b"line_9 = 9", b"line_9 = 'saved'")
        assert site.snapshot() == {**before, ONE: saved}
        monkeypatch.setattr(inplace, "changes_to", make)
        (site.root / ONE).write_bytes(before[ONE])
        deed(*site.where())


def test_inside_a_git_repository(site: Site) -> None:
    (site.base / ".git").mkdir()
    (site.base / ".git" / "HEAD").write_text("broken\n")
    before = site.snapshot()
    put_in(*site.where())
    take_out(*site.where())
    assert site.snapshot() == before and sorted(p.name for p in (site.base / ".git").iterdir()) == ["HEAD"]


def test_a_damaged_backup_is_not_used(site: Site) -> None:
    put_in(*site.where())
    for path in (site.info / "sglang-ext" / "pristine").iterdir():
        path.write_bytes(b"")
    refused("upstream_file_changed", lambda: take_out(*site.where()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_where_nothing_may_be_written(site: Site) -> None:
    (site.root / "sglang/srt").chmod(0o555)
    before = site.snapshot()
    refused("tree_unwritable", lambda: put_in(*site.where()))
    (site.root / "sglang/srt").chmod(0o755)
    assert site.snapshot() == before


def test_a_full_disk_changes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before = site.snapshot()

    def full(path: str, data: bytes, like: str | None) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(journal, "_write", full)
    assert "nothing was changed" in refused("tree_unwritable", lambda: put_in(*site.where()))
    assert site.snapshot() == before


# --- ended anywhere


def ended_at(number: int, deed: Callable[[], object]) -> bool:
    """``deed()`` in a process that ends, without another word, at its ``number``-th step. Did it get there?"""
    pid = os.fork()
    if pid == 0:
        steps = itertools.count()

        def step(what: str) -> None:
            if next(steps) == number:
                os._exit(KILLED)

        journal.step = step
        try:
            deed()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == KILLED


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.e2e)])
@pytest.mark.parametrize("again", ["apply", "revert"])
@pytest.mark.parametrize("first", ["apply", "revert"])
def test_ended_at_every_step_and_run_again(site: Site, first: str, again: str, every: int) -> None:
    stock = site.snapshot()
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    put_in(*site.where())
    patched = site.snapshot()
    deeds: dict[str, Callable[[], object]] = {
        "apply": lambda: put_in(*site.where()),
        "revert": lambda: take_out(*site.where()),
    }
    results = {"apply": patched, "revert": stock}
    start = site.base / "start"
    if first == "apply":
        take_out(*site.where())
    shutil.copytree(site.root, start)
    number = 0
    seen_interrupted = 0
    for number in itertools.count(step=every):
        shutil.rmtree(site.root)
        shutil.copytree(start, site.root)
        if not ended_at(number, deeds[first]):
            break
        seen_interrupted += is_interrupted(str(site.root))
        if number % 2:  # and once more, on the way back to order
            ended_at(number // 2, deeds[again])
        deeds[again]()
        assert site.snapshot() == results[again], number
        assert not is_interrupted(str(site.root))
        assert Tree(str(site.root)).edited() == ([], [], [])
    assert number > 15 and seen_interrupted > 3 // every


def test_before_the_journal_nothing_has_happened_after_it_everything_will(site: Site) -> None:
    stock = {name: data for name, data in site.snapshot().items() if name.startswith("sglang/")}
    for number in itertools.count():
        if not ended_at(number, lambda: put_in(*site.where())):
            break
        if not is_interrupted(str(site.root)):
            now = {name: data for name, data in site.snapshot().items() if name.startswith("sglang/")}
            assert now in (stock, {**stock, **OURS})
        take_out(*site.where())


def test_a_file_changed_after_an_interruption_is_not_written_over(site: Site) -> None:
    for number in itertools.count():
        assert ended_at(number, lambda: put_in(*site.where()))
        if is_interrupted(str(site.root)):
            break
    site.edit(ONE, b"line_9 = 9", b"line_9 = 0")
    message = refused("tree_interrupted", lambda: take_out(*site.where()))
    assert "--force-reinstall --no-deps sglang==9.9.1" in message
    (site.root / ONE).write_bytes(FILES[ONE])
    take_out(*site.where())
    assert files(site) == FILES


def test_an_install_ends_what_was_interrupted(site: Site) -> None:
    """pip takes along what RECORD lists, which is not the journal; it is of another tree then."""
    stock = site.snapshot()
    site.add_local("a.patch", ONE, b"line_9 = 9", b"line_9 = 'a'")
    put_in(*site.where())
    for number in itertools.count():
        assert ended_at(number, lambda: put_in(*site.where(), without=["a"]))
        if is_interrupted(str(site.root)):
            break
    for name in Tree(str(site.root)).record.at:
        (site.root / name).unlink()
    for name, data in stock.items():
        (site.root / name).write_bytes(data)
    outcome = take_out(*site.where())
    assert (outcome.deed, outcome.recovered) == ("nothing", True) and site.snapshot() == stock
    put_in(*site.where(), without=["a"])
    take_out(*site.where())
    assert site.snapshot() == stock


def test_a_broken_journal_is_said(site: Site) -> None:
    (site.info / "sglang-ext").mkdir()
    (site.info / "sglang-ext" / "journal.json").write_text("{")
    with pytest.raises(TreeError, match=rf"{INFO}/sglang-ext/journal\.json cannot be read"):
        put_in(*site.where())


def test_what_was_interrupted_is_seen_and_an_adopt_can_be_run_again(site: Site) -> None:
    stock = site.snapshot()
    asked = Asked(wheel=str(site.wheel))
    for number in itertools.count():
        edited = site.edit(OTHER, b"line_9 = 9", b"line_9 = 'mine'")
        ended = ended_at(number, lambda: adopt(*site.where(), asked, lambda text: None))
        if is_interrupted(str(site.root)):
            report = look(*site.where())
            assert report["state"] == "interrupted" and report["problems"]
        if site.snapshot() != stock:
            adopt(*site.where(), asked, lambda text: None)
        assert site.snapshot() == stock
        assert local_names(str(site.local)) == ["srt.other.patch"]
        put_in(*site.where())
        assert (site.root / OTHER).read_bytes() == edited
        take_out(*site.where())
        shutil.rmtree(site.local)
        if not ended:
            break
    assert number > 5
