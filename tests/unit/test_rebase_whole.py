"""A rebase lands whole or not at all: killed at any step, ended by a signal, or with somebody else at the patches."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.patchset.rebase import land
from sglang_ext.patchset.rebase.land import LandError, fingerprint, swap
from sglang_ext.patchset.series import patch_names
from tests.unit import rebase_scene
from tests.unit.rebase_scene import CHANGED, TOOL, Scene, wheel

scene = rebase_scene.scene  # the fixture

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
