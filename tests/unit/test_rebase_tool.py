"""tools/rebase_patches.py on tiny wheels: what it writes and leaves, what it refuses, and how it exits."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from sglang_ext.patchset.diff import apply, parse
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.rebase.land import fingerprint, variant_files
from tests.unit import rebase_scene
from tests.unit.rebase_scene import CHANGED, HEADER, PATCHED, SHIFTED, STOCK, TARGET, TOUCHED, Scene, wheel
from tools import rebase_patches

scene = rebase_scene.scene  # the fixture


# --- what lands


def test_a_text_that_fits_writes_the_lock_only(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    for python in ("cp311", "cp312"):
        wheel(scene.wheels, "0.5.24", SHIFTED, python=python)
    assert scene.run("0.5.24", "--json") == 0
    report = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    (target,) = report["targets"]
    assert (report["schema"], report["from"], report["to"]) == ("sglang-ext/rebase/1", "0.5.23", "0.5.24")
    assert (target["state"], target["how"], target["file"]) == ("offset", "as_is", TARGET)
    assert report["written"] == [str(scene.patches / "upstream.toml")]
    assert scene.names == ["worker/0.5.23.patch"]
    release = load_lock(scene.patches / "upstream.toml").get("0.5.24")
    assert release.patches == ("worker/0.5.23.patch",) and len(release.wheels) == 2
    assert scene.checked()
    assert "launch" in (scene.left / "0.5.24" / "report.md").read_text()


def test_a_merged_text_becomes_a_variant(scene: Scene) -> None:
    path = wheel(scene.wheels, "0.5.24", CHANGED)
    report = scene.folder / "for-review.md"
    assert scene.run("0.5.24", "--report", str(report)) == 0
    assert scene.names == ["worker/0.5.23.patch", "worker/0.5.24.patch"]
    text = (scene.patches / "worker" / "0.5.24.patch").read_text()
    assert text.startswith(HEADER)
    with zipfile.ZipFile(path) as made:
        assert b"noqa\nfrom sglang_ext" in apply(parse(text, "x"), made.read(TARGET))
    assert scene.checked()
    page = report.read_text()
    assert "merged" in page and "+from sglang_ext.seams import keep" in page and path.name in page
    # The next release has the neighbours of the one before: the newest text serves it.
    wheel(scene.wheels, "0.5.25", b"import sys\n" + CHANGED)
    assert scene.run("0.5.25") == 0
    assert scene.names == ["worker/0.5.23.patch", "worker/0.5.24.patch"]
    assert scene.checked()


def test_backward_renames_the_variant(scene: Scene) -> None:
    """A variant is named by the first release it is for."""
    wheel(scene.wheels, "0.5.22", SHIFTED)
    assert scene.run("0.5.22") == 0
    assert scene.names == ["worker/0.5.22.patch"]
    lock = load_lock(scene.patches / "upstream.toml")
    assert {release.patches for release in lock.releases} == {("worker/0.5.22.patch",)}
    wheel(scene.wheels, "0.5.21", CHANGED)
    assert scene.run("0.5.21") == 0
    assert scene.names == ["worker/0.5.21.patch", "worker/0.5.22.patch"]
    assert scene.checked()


def test_a_release_in_between_changes_no_other(scene: Scene) -> None:
    wheel(scene.wheels, "0.5.25", SHIFTED)
    wheel(scene.wheels, "0.5.24", CHANGED)
    assert scene.run("0.5.25") == 0
    assert scene.run("0.5.24") == 0
    assert scene.names == ["worker/0.5.23.patch", "worker/0.5.24.patch", "worker/0.5.25.patch"]
    assert scene.checked()


def test_one_text_for_all_gives_way_to_variants(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "worker.patch")
    wheel(scene.wheels, "0.5.24", SHIFTED)
    assert scene.run("0.5.24") == 0
    assert scene.names == ["worker.patch"]
    wheel(scene.wheels, "0.5.25", CHANGED)
    assert scene.run("0.5.25") == 0
    assert scene.names == ["worker/0.5.23.patch", "worker/0.5.25.patch"]
    assert (scene.patches / "series").read_text() == "# in order\nworker/  # the only one\n"
    assert scene.checked()


def test_names_of_variants() -> None:
    a, b = b"a", b"b"
    wanted = [("0.5.9", a), ("0.5.10", a), ("0.5.11", b), ("0.5.12", a)]
    assert variant_files("x/", {}, wanted) == {"x/0.5.9.patch": a, "x/0.5.11.patch": b, "x/0.5.12.patch": a}
    # An earlier name that fits stays; one that would serve a release before it does not.
    assert variant_files("x/", {"x/0.5.8.patch": a}, wanted[:2]) == {"x/0.5.8.patch": a}
    assert variant_files("x/", {"x/0.5.10.patch": a}, wanted[:2]) == {"x/0.5.9.patch": a}


# --- what does not
RENAMED = STOCK.replace(b"def launch", b"def start")


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (RENAMED, "gone"),
        (TOUCHED, "conflict"),
        (STOCK.replace(b"\n", b"\r\n"), "conflict"),
        (PATCHED, "upstreamed"),
        (None, "gone"),
        (STOCK + b"\n\ndef launch(args):\n    return 1\n", "conflict"),
    ],
)
def test_what_needs_a_person_leaves_the_patches_alone(
    scene: Scene, source: bytes | None, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(scene.wheels, "0.5.24", source)
    before = fingerprint(str(scene.patches))
    assert scene.run("0.5.24", "--json", "-") == 1
    report = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert [target["state"] for target in report["targets"]] == [state]
    assert report["written"] == []
    assert fingerprint(str(scene.patches)) == before
    assert sorted(path.name for path in scene.folder.iterdir()) == [".rig", "patches", "wheels"]
    assert all(Path(name).is_relative_to(scene.left) and Path(name).is_file() for name in report["left"])


def test_a_dry_run_writes_nothing_at_all(scene: Scene) -> None:
    for version, source, code in (("0.5.24", CHANGED, 0), ("0.5.25", TOUCHED, 1)):
        wheel(scene.wheels, version, source)
        before = fingerprint(str(scene.folder))
        assert scene.run(version, "--dry-run") == code
        assert fingerprint(str(scene.folder)) == before


def test_a_person_resolves(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    wheel(scene.wheels, "0.5.24", TOUCHED)
    assert scene.run("0.5.24", "--resolved") == 2
    assert scene.run("0.5.24") == 1
    marked = scene.left / "0.5.24" / "worker" / "worker.py"
    assert b"<<<<<<< sglang 0.5.23, patched" in marked.read_bytes()
    assert scene.run("0.5.24", "--resolved") == 1
    assert "conflict markers are left" in capsys.readouterr().out
    marked.write_bytes(TOUCHED.replace(b"import zmq", b"from sglang_ext.seams import keep\nimport zmq"))
    assert scene.run("0.5.24", "--resolved") == 1
    assert "seam keep is missing" in capsys.readouterr().out
    marked.write_bytes(marked.read_bytes().replace(b"@traced", b"@keep\n@traced"))
    assert scene.run("0.5.24", "--resolved") == 0
    assert "resolved by a person" in capsys.readouterr().out
    assert scene.names == ["worker/0.5.23.patch", "worker/0.5.24.patch"]
    assert scene.checked()


def test_what_a_person_began_is_kept(scene: Scene) -> None:
    wheel(scene.wheels, "0.5.24", TOUCHED)
    assert scene.run("0.5.24") == 1
    marked = scene.left / "0.5.24" / "worker" / "worker.py"
    text = marked.read_bytes()
    marked.write_bytes(b"# begun\n")
    marked.with_name("header.txt").write_text("Subject: mine\n")
    assert scene.run("0.5.24") == 1
    assert (marked.read_bytes(), marked.with_name("worker.py.new").read_bytes()) == (b"# begun\n", text)
    assert scene.run("0.5.24", "--resolved") == 1
    assert marked.read_bytes() == b"# begun\n"
    assert marked.with_name("header.txt").read_text() == "Subject: mine\n"


def test_wheels_that_differ_are_refused(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    wheel(scene.wheels, "0.5.24", STOCK)
    wheel(scene.wheels, "0.5.24", SHIFTED, python="cp312")
    before = fingerprint(str(scene.patches))
    assert scene.run("0.5.24") == 2
    assert "the wheels differ" in capsys.readouterr().err
    assert fingerprint(str(scene.patches)) == before


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--to", "0.5.23"], "is in the lock already"),
        (["--to", "x"], "is no release"),
        (["--to", "0.5.99"], "no wheel of sglang 0.5.99"),
        (["--to", "0.5.24", "--from", "0.5.1"], "0.5.1 is not in the lock"),
        (["--to", "0.5.24", "--patches", "/nowhere"], "is no folder"),
        (["--to", "0.5.24", "--wheels", "/nowhere"], "is no folder"),
        (["--to", "0.5.24", "--report", "/dev/null/x"], "cannot be written"),
    ],
)
def test_input_errors(scene: Scene, more: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    wheel(scene.wheels, "0.5.24", TOUCHED)
    before = fingerprint(str(scene.patches))
    assert scene.run("0.5.24", *more) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("rebase_patches: ") and part in error
    assert fingerprint(str(scene.patches)) == before


def test_a_report_that_cannot_be_written_lands_nothing(scene: Scene) -> None:
    wheel(scene.wheels, "0.5.24", SHIFTED)
    before = fingerprint(str(scene.patches))
    assert scene.run("0.5.24", "--report", "/dev/null/x") == 2
    assert scene.run("0.5.24", "--json", "/dev/null/x") == 2
    assert fingerprint(str(scene.patches)) == before


def test_without_git(scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Needed only where something must be merged; then one sentence says so."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    wheel(scene.wheels, "0.5.24", SHIFTED)
    wheel(scene.wheels, "0.5.25", CHANGED)
    assert scene.run("0.5.24") == 0
    assert scene.run("0.5.25") == 2
    assert "git is not installed: install git." in capsys.readouterr().err


def test_the_help_has_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rebase_patches.main(["--help"])
    said = capsys.readouterr().out.partition("Exit codes: ")[2]
    page = (Path(rebase_patches.__file__).parents[1] / "docs" / "rebase.md").read_text(encoding="utf-8")
    rows = [line.split(" ")[1] for line in page.partition("| exit code |")[2].partition("\n\n")[0].splitlines()[2:]]
    assert rows == ["0", "1", "2", "130"] and all(f"{code} " in said for code in rows)


def test_the_old_wheel_is_needed_only_to_merge(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--patches", str(scene.patches)]
    fits = wheel(scene.folder / "new", "0.5.24", SHIFTED)
    assert rebase_patches.main([*command, "--to", "0.5.24", "--wheel", str(fits)]) == 0
    changed = wheel(scene.folder / "new", "0.5.25", CHANGED)
    command += ["--to", "0.5.25", "--from", "0.5.23", "--wheel", str(changed)]
    assert rebase_patches.main(command) == 2
    assert "of sglang 0.5.23: give its wheel too" in capsys.readouterr().err
    (old,) = scene.wheels.iterdir()
    assert rebase_patches.main([*command, str(old)]) == 0
    old.write_bytes(old.read_bytes() + b" ")
    assert scene.run("0.5.26", "--from", "0.5.23", "--wheel", str(wheel(scene.folder / "new", "0.5.26", STOCK))) == 2
    assert "is not the wheel of that name in the lock" in capsys.readouterr().err
