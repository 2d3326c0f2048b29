"""An installed tree: RECORD read and changed row by row, edits found; what it is, as a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_ext.patchset.inplace import put_in
from sglang_ext.patchset.installed import OverlayError, stated_version
from sglang_ext.patchset.plan import plan
from sglang_ext.patchset.tree import Installed, Tree, TreeError, recorded
from sglang_ext.patchset.tree_status import look
from tests.unit.small_upstream import DATA, FILES, INFO, ONE, OTHER, OURS, TWO, Site, sha256


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_fresh_tree_is_as_record_says(site: Site) -> None:
    tree = Tree(str(site.root))
    assert (tree.version, tree.info) == ("9.9.1", INFO)
    assert tree.edited() == ([], [], [])
    assert {name: tree.record.sha256(name) for name in FILES} == {name: sha256(data) for name, data in FILES.items()}
    assert recorded(str(site.root), "9.9.1", ONE) == sha256(FILES[ONE])
    assert recorded(str(site.root), "9.9.1", "sglang/none.py") is None


def test_edits_are_found(site: Site) -> None:
    site.edit(ONE, b"line_5 = 5", b"line_5 = 6")  # the same size
    (site.root / TWO).unlink()
    (site.root / "sglang/srt/mine.py").write_text("")
    (site.root / "sglang/srt/__pycache__").mkdir()
    (site.root / "sglang/srt/__pycache__/one.cpython-311.pyc").write_bytes(b"")
    assert Tree(str(site.root)).edited() == ([ONE], [TWO], ["sglang/srt/mine.py"])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_the_rows_that_change_change(end: str) -> None:
    text = f'a.py,sha256=AA,1{end}"b,""c"".py",sha256=AA,2{end}c.py,,{end}'.encode()
    record = Installed(text)
    assert record.changed({}, "ours/") == text
    new = record.fresh_row('b,"c".py', b"x")
    assert new.startswith('"b,""c"".py",sha256=') and new.endswith(f",1{end}")
    rows = {'b,"c".py': new, "ours/2": record.fresh_row("ours/2", b""), "ours/1": record.fresh_row("ours/1", b"")}
    changed = Installed(record.changed(rows, "ours/"))
    assert [line.split("sha256")[0] for line in changed.lines] == [
        "a.py,", '"b,""c"".py",', f"c.py,,{end}", "ours/1,", "ours/2,",
    ]  # fmt: skip
    assert changed.changed({'b,"c".py': record.row('b,"c".py')}, "ours/") == text


def test_what_is_no_tree_is_refused(site: Site, tmp_path: Path) -> None:
    for root, code in ((tmp_path / "none", "sglang_missing"), (tmp_path / "patches", "sglang_missing")):
        with pytest.raises(TreeError) as error:
            Tree(str(root))
        assert error.value.code == code
    (site.info / "RECORD").unlink()
    with pytest.raises(TreeError, match="RECORD cannot be read") as error:
        Tree(str(site.root))
    assert error.value.code == "record_unusable"
    (site.info / "METADATA").unlink()
    with pytest.raises(TreeError, match="has 0 metadata folders"):
        Tree(str(site.root))


def states(site: Site) -> tuple[object, object, dict[object, object], list[object]]:
    report = look(*site.where())
    targets, problems = report["targets"], report["problems"]
    assert isinstance(targets, list) and isinstance(problems, list)
    return (
        report["state"],
        report["mode"],
        {one["file"]: (one["found"], one["state"]) for one in targets},
        [one["code"] for one in problems],
    )


def test_status_of_every_state(site: Site) -> None:
    pristine, patched = ("pristine", "not_applied"), ("patched", "applied")
    assert states(site) == ("pristine", "overlay", {ONE: pristine, TWO: pristine}, [])
    (site.root / ONE).write_bytes(OURS[ONE])
    assert states(site) == ("half", "none", {ONE: patched, TWO: pristine}, ["upstream_half_patched"])
    (site.root / TWO).write_bytes(OURS[TWO])
    assert states(site) == ("patched", "baked", {ONE: patched, TWO: patched}, [])  # by hand: the word of a plan
    site.edit(OTHER, b"line_1 = 1", b"line_1 = 0")
    assert states(site) == ("edited", "none", {ONE: patched, TWO: patched}, ["upstream_file_changed"])
    (site.root / OTHER).write_bytes(FILES[OTHER])
    put_in(*site.where())
    assert states(site) == ("patched", "in_place", {ONE: patched, TWO: patched}, [])
    site.edit(ONE, b"line_1 = 1", b"line_1 = 0")
    assert states(site)[2][ONE] == ("edited", "neither")
    for name in (ONE, TWO):
        (site.root / name).write_bytes(FILES[name])
        now = {ONE: pristine, TWO: patched if name == ONE else pristine}
        assert states(site) == ("half", "in_place", now, ["upstream_half_patched"])
        with pytest.raises(OverlayError) as error:
            plan(*site.where())
        assert error.value.code == "upstream_half_patched"
    put_in(*site.where())
    assert states(site)[0] == "patched"


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("how", ["stock", "by hand", "in place"])
def test_status_and_a_plan_have_one_word(site: Site, how: str, local: bool) -> None:
    if local:
        site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    for name, data in OURS.items() if how == "by hand" else ():
        (site.root / name).write_bytes(data)
    if how == "in place":
        put_in(*site.where())
    assert look(*site.where())["mode"] == plan(*site.where()).mode


def test_what_was_left_out_and_deleted_since_is_no_slip(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    site.add_local("b.patch", DATA, b'"b": 2', b'"b": 9')
    digest = put_in(*site.where(), without=["a"]).digest
    (site.local / "a.patch").unlink()
    report = status(site)
    assert (report["problems"], report["without"], report["digest"]) == ([], [], digest)


def test_a_digest_that_is_not_known_is_compared_with_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(*site.where())
    monkeypatch.setenv("SGLANG_EXT_WITHOUT", "nix")
    assert [one["code"] for one in status(site)["problems"]] == ["local_patch_unknown"]


def test_a_metadata_folder_that_an_uninstall_left_is_none(site: Site) -> None:
    left = site.root / "sglang-9.9.0.dist-info" / "sglang-ext"
    left.mkdir(parents=True)
    assert Tree(str(site.root)).version == "9.9.1" == stated_version(str(site.root))
    (left / "journal.json").write_text("{}")  # pip takes along what RECORD lists; this it does not
    assert plan(*site.where()).mode == "overlay"
    (site.info / "METADATA").unlink()
    assert stated_version(str(site.root)) == "unknown"
    left.parent.rename(site.base / "gone")
    assert stated_version(str(site.root)) == "9.9.1"


def status(site: Site) -> dict[str, Any]:
    return look(*site.where())


def test_status_says_which_local_patches_fit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 'a'")
    site.add_local("b.patch", OTHER, b"line_9 = 9", b"line_9 = 'b'")
    site.add_local("c.patch", DATA, b'"b": 2', b'"b": 9')
    report = status(site)
    assert [(one["name"], one["in"], one["fits"]) for one in report["local"]] == [
        ("a", True, True), ("b", True, False), ("c", True, True),
    ]  # fmt: skip
    assert "local/b.patch" in report["problems"][0]["message"]
    monkeypatch.setenv("SGLANG_EXT_WITHOUT", "b")
    report = status(site)
    assert report["problems"] == [] and report["without"] == ["b"] and report["digest"] != site.digest
    monkeypatch.setenv("SGLANG_EXT_WITHOUT", "nix")
    assert [one["code"] for one in status(site)["problems"]] == ["local_patch_unknown"]


def test_another_release_is_not_supported(site: Site) -> None:
    site.info.rename(site.root / "sglang-9.9.2.dist-info")
    report = look(*site.where())
    assert (report["supported"], report["state"], report["mode"]) == (False, "unsupported", "none")
