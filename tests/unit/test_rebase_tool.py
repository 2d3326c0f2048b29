"""tools/rebase_patches.py on tiny wheels: what it writes and leaves, how it exits, and that nothing lands by halves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.patchset.diff import apply, make, parse, render
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.rebase import land
from sglang_ext.patchset.rebase.land import LandError, fingerprint, swap, variant_files
from sglang_ext.patchset.series import patch_names
from tools import check_patches, rebase_patches

TOOL = Path(rebase_patches.__file__)
TARGET, OTHER = "sglang/srt/worker.py", "sglang/srt/other.py"
STOCK = (
    b"import os\nimport zmq\n\n\ndef first(args):\n    return os.name\n\n\ndef launch(args):\n    return zmq, args\n"
)
PATCHED = STOCK.replace(b"import zmq\n", b"from sglang_ext.seams import keep\nimport zmq\n").replace(
    b"def launch", b"@keep\ndef launch"
)
OTHERS = "".join(f"line_{number} = {number}\n" for number in range(20)).encode()
HEADER = "Subject: x\nReason: local\nWhy-Not-A-Plugin: x\nForwarded: no: x\nRetire-When: x\nProbe: seam launch keep\n\n"
SHIFTED = b"import sys\n" + STOCK  # the text fits, at other lines
CHANGED = STOCK.replace(b"import os\n", b"import os  # noqa\n")  # it must be merged
RENAMED = STOCK.replace(b"def launch", b"def start")
TOUCHED = STOCK.replace(b"def launch", b"@traced\ndef launch")  # a conflict at its place


def wheel(folder: Path, version: str, source: bytes | None, other: bytes = OTHERS, python: str = "cp311") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"sglang-{version}-{python}-{python}-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(path, "w") as made:
        if source is not None:
            made.writestr(TARGET, source)
        made.writestr(OTHER, other)
        made.writestr("tag.txt", python)
    return path


class Scene:
    """A folder of patches that knows 0.5.23, and a folder of wheels."""

    def __init__(self, folder: Path, entry: str = "worker/", other: bytes = OTHERS) -> None:
        release = "0.5.23"
        self.folder, self.patches, self.wheels = folder, folder / "patches", folder / "wheels"
        name = f"worker/{release}.patch" if entry == "worker/" else entry
        (self.patches / name).parent.mkdir(parents=True)
        (self.patches / name).write_text(render(make(TARGET, STOCK, PATCHED, name, HEADER)))
        (self.patches / "series").write_text(f"# in order\n{entry}  # the only one\n")
        old = wheel(self.wheels, release, STOCK, other)
        assert check_patches.main(["--patches", str(self.patches), "--write", "--wheel", str(old)]) == 0

    def run(self, to: str, *more: str) -> int:
        command = ["--patches", str(self.patches), "--wheels", str(self.wheels), "--to", to, *more]
        return rebase_patches.main(command)

    def subprocess(self, to: str, *before: str, **more: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, *(before or (str(TOOL),)), "--patches", str(self.patches)]
        command += ["--wheels", str(self.wheels), "--to", to]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)

    @property
    def left(self) -> Path:
        return self.folder / ".rig" / "rebase"

    @property
    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.patches)) for path in self.patches.rglob("*.patch"))

    def checked(self) -> bool:
        """Does tools/check_patches.py find the folder good, with every wheel of the lock?"""
        return check_patches.main(["--patches", str(self.patches), "--wheels", str(self.wheels)]) == 0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.delenv("SGLANG_EXT_LOCAL_PATCHES", raising=False)
    return Scene(tmp_path)


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


def test_own_patch_of_another_release_is_named(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    path = own(scene)
    path.write_text(path.read_text().replace("line_8 = 8", "line_8 = 9"))
    wheel(scene.wheels, "0.5.24", STOCK)
    assert scene.run("0.5.24") == 2
    assert "In sglang 0.5.23, which it is carried from: Patch local/mine.patch" in capsys.readouterr().err


def test_without_git(scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Needed only where something must be merged; then one sentence says so."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    wheel(scene.wheels, "0.5.24", SHIFTED)
    wheel(scene.wheels, "0.5.25", CHANGED)
    assert scene.run("0.5.24") == 0
    assert scene.run("0.5.25") == 2
    assert "git is not installed: install git." in capsys.readouterr().err


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


# --- a user's own


def own(scene: Scene, change: tuple[bytes, bytes] = (b"line_9 = 9", b"line_9 = 90"), stock: bytes = OTHERS) -> Path:
    path = scene.patches / "local" / "mine.patch"
    path.parent.mkdir()
    path.write_text(render(make(OTHER, stock, stock.replace(*change), "local/mine.patch", "Subject: mine\n")))
    return path


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


def test_an_editor_that_has_a_file_open_is_in_nobodys_way(scene: Scene) -> None:
    """Emacs marks it by a link that leads nowhere."""
    for name in (".#series", "worker/.#0.5.23.patch"):
        (scene.patches / name).symlink_to("user@host.1234:1700000000")
    before = fingerprint(str(scene.patches))
    wheel(scene.wheels, "0.5.24", CHANGED)
    assert scene.run("0.5.24") == 0
    assert (scene.patches / ".#series").is_symlink() and fingerprint(str(scene.patches)) != before
    assert scene.checked()


def test_a_file_that_cannot_be_read_is_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (scene.patches / "notes").symlink_to(scene.folder)  # a folder, where a walk has it among the folders
    (scene.patches / "loop").symlink_to("loop")
    fingerprint(str(scene.patches))

    def closed(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(land, "_content", closed)
    wheel(scene.wheels, "0.5.24", CHANGED)
    assert scene.run("0.5.24") == 2
    assert "cannot be read (Permission denied): open it or move it away." in capsys.readouterr().err


def test_own_patch_that_needs_a_person_stops_all(scene: Scene) -> None:
    own(scene)
    wheel(scene.wheels, "0.5.24", CHANGED, OTHERS.replace(b"line_9 = 9", b"line_9 = 99"))
    before = fingerprint(str(scene.patches))
    assert scene.run("0.5.24") == 1
    assert fingerprint(str(scene.patches)) == before
    assert b"<<<<<<<" in (scene.left / "0.5.24" / "local" / "mine" / "other.py").read_bytes()


# --- nothing by halves

KILLER = """
import os, signal, sys
count, steps = int(sys.argv.pop(1)), 0
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.utime", "shutil.copytree",
          "shutil.rmtree", "subprocess.Popen", "ctypes.dlopen", "ctypes.dlsym", "os.scandir", "os.listdir"}
def hook(event, args):
    global steps
    if event in EVENTS and armed and not (event == "open" and str(args[0]).endswith((".py", ".pyc"))):
        steps += 1
        if steps == count:
            os.kill(os.getpid(), signal.SIGKILL)
armed = False
sys.addaudithook(hook)
sys.path.insert(0, sys.argv.pop(1))
from tools import rebase_patches
armed = True
code = rebase_patches.main(sys.argv[1:])
print(steps, file=sys.stderr)
sys.exit(code)
"""


def killed(scene: Scene, step: int) -> tuple[int, bytes]:
    """The tool, killed as it is about to touch the file system for the step-th time."""
    root = str(TOOL.parents[1])
    with scene.subprocess("0.5.24", "-c", KILLER, str(step), root) as process:
        _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.mark.parametrize("every", [15, pytest.param(7, marks=pytest.mark.e2e)])
def test_killed_at_any_step_nothing_is_half_landed(tmp_path: Path, every: int) -> None:
    model = Scene(tmp_path / "model")
    wheel(model.wheels, "0.5.24", CHANGED)
    before = fingerprint(str(model.patches))
    done = Scene(tmp_path / "done")
    shutil.copy(
        *(str(folder / "sglang-0.5.24-cp311-cp311-manylinux_2_34_x86_64.whl") for folder in (model.wheels, done.wheels))
    )
    code, error = killed(done, 0)
    assert code == 0, error
    after, steps = fingerprint(str(done.patches)), int(error.split()[-1])
    assert after != before and steps > 40
    landed = 0
    if os.environ.get("REBASE_ALL_STEPS"):
        every = 1
    for step in sorted({*range(1, steps + 1, every), steps}):
        code, _ = killed(model, step)
        found = fingerprint(str(model.patches))
        assert code == -signal.SIGKILL
        assert found in (before, after), f"half landed at step {step}"
        if found == after:
            landed += 1
            break
        assert patch_names(model.patches, "0.5.24") == ("worker/0.5.23.patch",)
    if not landed:
        assert killed(model, 0)[0] == 0  # and what the killed runs left behind is in nobody's way
    assert fingerprint(str(model.patches)) == after


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_leaves_no_scratch(scene: Scene, number: signal.Signals, code: int) -> None:
    wheel(scene.wheels, "0.5.24", CHANGED)
    before = fingerprint(str(scene.patches))
    waiting = "import signal, sys, time\nsys.path.insert(0, sys.argv.pop(1))\nfrom tools import rebase_patches\n"
    waiting += (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background starts with it ignored
    )
    waiting += "from sglang_ext.patchset.rebase import land\n"
    waiting += "def swap(*a):\n    print('here', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
    waiting += "land.swap = swap\nsys.exit(rebase_patches.main(sys.argv[1:]))\n"
    with scene.subprocess("0.5.24", "-c", waiting, str(TOOL.parents[1])) as process:
        assert process.stderr is not None
        assert b"here" in process.stderr.readline()
        time.sleep(0.1)
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == code
    assert fingerprint(str(scene.patches)) == before
    assert [path.name for path in (scene.left / "0.5.24").iterdir()] == []


def test_someone_else_changed_the_patches_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(scene.wheels, "0.5.24", CHANGED)
    build = land.build

    def slow(*args: Any) -> object:
        (scene.patches / "local").mkdir()
        (scene.patches / "local" / "new.patch").write_text("theirs\n")
        return build(*args)

    monkeypatch.setattr(land, "build", slow)
    assert scene.run("0.5.24") == 2
    assert "changed by someone else" in capsys.readouterr().err
    assert (scene.patches / "local" / "new.patch").read_text() == "theirs\n"
    assert scene.names == ["local/new.patch", "worker/0.5.23.patch"]


def test_the_swap_says_why_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(LandError, match="No such file"):
        swap(str(tmp_path / "b"), str(tmp_path / "a"))
    assert (tmp_path / "a").is_dir()
