"""A user's own patches through a rebase: carried where they lie in the folder, never written elsewhere, and none lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sglang_ext.patchset.diff import apply, parse
from sglang_ext.patchset.rebase.land import fingerprint
from tests.unit import rebase_scene
from tests.unit.rebase_scene import CHANGED, OTHERS, SHIFTED, STOCK, Scene, own, wheel

scene = rebase_scene.scene  # the fixture


def test_own_patches_are_carried_along(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    path = own(scene)
    text = path.read_bytes()
    wheel(scene.wheels, "0.5.24", SHIFTED, b"# more\n" + OTHERS)
    assert scene.run("0.5.24") == 0
    assert path.read_bytes() == text
    assert "local/mine.patch" not in (scene.patches / "upstream.toml").read_text()
    # A neighbour changed: a text with less context serves both, and takes the place of the old one.
    wheel(scene.wheels, "0.5.25", STOCK, OTHERS.replace(b"line_7 = 7", b"line_7 = 70"))
    assert scene.run("0.5.25") == 0
    assert path.read_bytes() != text
    mine = parse(path.read_text(), "mine")
    assert b"line_9 = 90" in apply(mine, OTHERS) and mine.header == "Subject: mine\n"
    assert f"wrote {path}" in capsys.readouterr().out
    assert scene.checked()


def test_own_patch_that_serves_the_new_release_only_is_left_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With little context its place is one of five alike, so no text serves both."""
    blocks = "".join(f"x = {number}\nif x:\n    pass\ny = x\n" for number in range(5)).encode()
    scene = Scene(tmp_path, other=blocks)
    path = own(scene, (b"x = 3\nif x:\n    pass\n", b"x = 3\nif x:\n    y = 0\n"), stock=blocks)
    text = path.read_bytes()
    new = b"# more\n" + blocks.replace(b"x = 3", b"x = 33")
    wheel(scene.wheels, "0.5.24", STOCK, new)
    assert scene.run("0.5.24") == 0
    assert path.read_bytes() == text
    left = scene.left / "0.5.24" / "local" / "mine" / "carried.patch"
    assert f"left for you: {left}" in capsys.readouterr().out
    assert b"x = 33\nif x:\n    y = 0\n" in apply(parse(left.read_text(), "mine"), new)


def test_own_patches_elsewhere_stay_as_they_are(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(scene)
    folder = scene.folder / "home"
    path.parent.rename(folder)
    monkeypatch.setenv("SGLANG_EXT_LOCAL_PATCHES", str(folder))
    wheel(scene.wheels, "0.5.24", STOCK, OTHERS.replace(b"line_7 = 7", b"line_7 = 70"))
    before = fingerprint(str(folder))
    assert scene.run("0.5.24") == 0
    assert fingerprint(str(folder)) == before
    assert (scene.left / "0.5.24" / "local" / "mine" / "carried.patch").is_file()
    assert scene.checked()


def test_another_patch_of_that_name_here_stays_as_it_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's are read elsewhere: what lies in patches/local is none of the run's, whatever it is called."""
    path = own(scene)
    folder = scene.folder / "home"
    shutil.copytree(path.parent, folder)
    path.write_text("mine alone\n")
    monkeypatch.setenv("SGLANG_EXT_LOCAL_PATCHES", str(folder))
    wheel(scene.wheels, "0.5.24", STOCK, OTHERS.replace(b"line_7 = 7", b"line_7 = 70"))
    before = fingerprint(str(folder))
    assert scene.run("0.5.24") == 0
    assert path.read_text() == "mine alone\n" and fingerprint(str(folder)) == before
    assert (scene.left / "0.5.24" / "local" / "mine" / "carried.patch").is_file()


@pytest.mark.parametrize("link", ["local", "mine.patch"])
def test_own_patches_behind_a_link_stay_as_they_are(scene: Scene, link: str) -> None:
    """A link is carried over as one: writing through it would change what it leads to before anything has landed."""
    path = own(scene)
    linked = path.parent if link == "local" else path
    linked.rename(scene.folder / link)
    linked.symlink_to(scene.folder / link)
    text = path.read_bytes()
    wheel(scene.wheels, "0.5.24", STOCK, OTHERS.replace(b"line_7 = 7", b"line_7 = 70"))
    assert scene.run("0.5.24") == 0
    assert path.read_bytes() == text and linked.is_symlink()
    assert (scene.left / "0.5.24" / "local" / "mine" / "carried.patch").is_file()


def test_own_patches_that_the_variable_names_here_are_carried(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(scene)
    text = path.read_bytes()
    (scene.folder / "link").symlink_to(path.parent)
    monkeypatch.setenv("SGLANG_EXT_LOCAL_PATCHES", str(scene.folder / "link"))
    wheel(scene.wheels, "0.5.24", STOCK, OTHERS.replace(b"line_7 = 7", b"line_7 = 70"))
    assert scene.run("0.5.24") == 0
    assert path.read_bytes() != text


def test_own_patch_of_another_release_is_named(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    path = own(scene)
    path.write_text(path.read_text().replace("line_8 = 8", "line_8 = 9"))
    wheel(scene.wheels, "0.5.24", STOCK)
    assert scene.run("0.5.24") == 2
    assert "In sglang 0.5.23, which it is carried from: Patch local/mine.patch" in capsys.readouterr().err


def test_own_patch_that_needs_a_person_stops_all(scene: Scene) -> None:
    own(scene)
    wheel(scene.wheels, "0.5.24", CHANGED, OTHERS.replace(b"line_9 = 9", b"line_9 = 99"))
    before = fingerprint(str(scene.patches))
    assert scene.run("0.5.24") == 1
    assert fingerprint(str(scene.patches)) == before
    assert b"<<<<<<<" in (scene.left / "0.5.24" / "local" / "mine" / "other.py").read_bytes()
