"""What runs at a Python's start, and what stands beside NCCL on disk: the doctor, the launcher, and any other Python there.

In the doctor's rows the verdict is the state of the check whose name stands in the place of the code (doctor.md).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Done, run

from .matrix import Matrix, Row, fault, refused
from .places import TARGETS, Place
from .standins import claim, library

OURS = ROOT / "sitecustomize"
SAYS_SO = "import sys; sys.stderr.write('theirs ran\\n')\n"
# Says whether the hook is armed without importing anything of ours, and does what any program does.
ANY = "import sys, json; print('ran', any(hasattr(f, '_sglang_ext') for f in sys.meta_path))"
WHEEL = "nvidia/nccl/lib/libnccl.so.2"
Act = Callable[[Place], Done]


def bare(place: Place) -> None:
    """As from a checkout: armed by sitecustomize/ on PYTHONPATH, not by the installed .pth."""
    (place.site / "sglang_ext.pth").unlink()


def theirs(place: Place, text: str = SAYS_SO) -> str:
    """A folder with somebody else's sitecustomize."""
    folder = place.folder / "theirs"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def doctor(
    place: Place, env: Mapping[str, str] | None = None, flags: tuple[str, ...] = (), cwd: str | None = None
) -> Done:
    """`sglang-ext doctor --json` in that place, with a home of its own."""
    command = [place.python, *flags, "-m", "sglang_ext", "doctor", "--json"]
    return run(*command, env=place.environment({"HOME": str(place.folder), **(env or {})}), cwd=cwd or "/")


def sane(place: Place) -> Place:
    """With an NCCL and its package: all the doctor would miss in an otherwise empty Python."""
    library(place.site / WHEEL)
    claim(place.site, "nvidia_nccl_cu13", "2.30.7")
    return place


# --- doctor -------------------------------------------------------------------------------------------------


def _nothing_wrong(place: Place) -> Done:
    return doctor(sane(place))


def _distribution_sitecustomize(place: Place) -> Done:
    bare(sane(place))
    first = theirs(place, "")
    return doctor(place, {"PYTHONPATH": os.pathsep.join((first, str(OURS)))})


def _none_arms(place: Place) -> Done:
    bare(sane(place))
    return doctor(place)


def _not_needed(place: Place) -> Done:
    return doctor(sane(place), {"PYTHONPATH": theirs(place, "")})


def _relative_path(place: Place) -> Done:
    bare(sane(place))
    shutil.copytree(OURS, place.folder / "ours")
    return doctor(place, {"PYTHONPATH": "ours"}, cwd=str(place.folder))


def _flag_S(place: Place) -> Done:
    return doctor(sane(place), {"PYTHONPATH": str(place.site)}, ("-S",))


def _flag_E(place: Place) -> Done:
    bare(sane(place))
    return doctor(place, {"PYTHONPATH": str(OURS)}, ("-E",))


def _flag_I_installed(place: Place) -> Done:
    return doctor(sane(place), {"PYTHONPATH": str(OURS)}, ("-I",))


def _pth_cut(place: Place) -> Done:
    (sane(place).site / "sglang_ext.pth").write_text("# sglang-ext\n")
    return doctor(place)


def _noisy_start(place: Place) -> Done:
    return doctor(sane(place), {"PYTHONPATH": theirs(place)})


def _two_owners(place: Place) -> Done:
    claim(sane(place).site, "nvidia_nccl_cu12", "2.28.9")
    return doctor(place)


def _metadata(place: Place) -> Done:
    library(sane(place).site / WHEEL, "2.28.9")
    return doctor(place)


def _wheel_gone(place: Place) -> Done:
    (sane(place).site / WHEEL).unlink()
    return doctor(place)


def _library_path(place: Place) -> Done:
    other = library(place.folder / "system" / "libnccl.so.2", "2.27.7")
    return doctor(sane(place), {"LD_LIBRARY_PATH": str(other.parent)})


def _other_name(place: Place) -> Done:
    other = library(place.folder / "own" / "libnccl.so.2", "2.27.7")
    return doctor(sane(place), {"SGLANG_NCCL_SO_PATH": str(other)})


def _conf_file(place: Place) -> Done:
    (place.folder / ".nccl.conf").write_text("NCCL_GRAPH_FILE=/opt/graph.xml\n")
    return doctor(sane(place))


def _conf_file_gone(place: Place) -> Done:
    return doctor(sane(place), {"NCCL_CONF_FILE": str(place.folder / "gone.conf")})


def _value(place: Place) -> Done:
    return doctor(sane(place), {"NCCL_P2P_LEVEL": "sys"})


def _name(place: Place) -> Done:
    return doctor(sane(place), {"NCLL_PROTO": "LL"})


def _plugin_gone(place: Place) -> Done:
    return doctor(sane(place), {"NCCL_TUNER_PLUGIN": "libnccl-tuner-of-nobody.so"})


def _sudo(place: Place) -> Done:
    return doctor(sane(place), {"SUDO_USER": "me"})


def _switched_off(place: Place) -> Done:
    return doctor(sane(place), {"SGLANG_EXT": "0"})


def _shadow(place: Place) -> Done:
    folder = place.folder / "scratch"
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").touch()
    return doctor(sane(place), cwd=str(folder))


DOCTOR = [
    fault("nothing is wrong", "ok", "interpreter.child", 0, ("from another folder, has the import hook armed",), _nothing_wrong),
    fault("a checkout's sitecustomize behind another one on PYTHONPATH", "fail", "startup.sitecustomize", 1, ("our sitecustomize is needed and hidden by", "comes first", "first on PYTHONPATH"), _distribution_sitecustomize),
    fault("neither .pth nor sitecustomize of ours is read", "fail", "startup.sitecustomize", 1, ("nothing arms the hook", "pip install sglang-ext"), _none_arms),
    fault("another sitecustomize, and ours installed by its .pth", "ok", "startup.sitecustomize", 0, ("somebody else's", "ours is not needed"), _not_needed),
    fault("a relative entry of PYTHONPATH: lost in every child that starts elsewhere", "fail", "interpreter.child", 1, ("from another folder", "does not have the import hook armed", "absolute paths"), _relative_path),
    fault("python -S", "fail", "interpreter.flags", 1, ("-S", "nothing arms the hook", "drop -S"), _flag_S),
    fault("python -E in a checkout", "fail", "interpreter.hook", 1, ("-E or -I ignores PYTHONPATH", "drop the flag"), _flag_E),
    fault("python -I where the .pth is installed", "note", "interpreter.flags", 0, ("-I is in force", "an installed .pth still counts"), _flag_I_installed),
    fault("our .pth without its line", "fail", "startup.pth", 1, ("sglang_ext.pth has no line that arms the hook", "pip install"), _pth_cut),
    fault("a sitecustomize that writes to stderr at every start", "warn", "interpreter.child", 0, ("writes to stderr", "1 lines"), _noisy_start),
    fault("two packages claim one libnccl", "fail", "nccl.library", 1, ("NCCL 2.30.7 by its bytes", "both claim it", "the last one installed won"), _two_owners),
    fault("the package says 2.30.7, the file is 2.28.9", "fail", "nccl.library", 1, ("NCCL 2.28.9 by its bytes", "expected that of nvidia-nccl-cu13 2.30.7"), _metadata),
    fault("the package is there, its libnccl is not", "fail", "nccl.library", 1, ("nvidia-nccl-cu13 2.30.7 is installed", "is not there"), _wheel_gone),
    fault("another libnccl on LD_LIBRARY_PATH", "warn", "nccl.loader", 0, ("LD_LIBRARY_PATH has", "NCCL 2.27.7"), _library_path),
    fault("another libnccl in SGLANG_NCCL_SO_PATH", "warn", "nccl.loader", 0, ("SGLANG_NCCL_SO_PATH names", "NCCL 2.27.7", "two NCCL libraries"), _other_name),
    fault("~/.nccl.conf sets a variable that no environment shows", "note", "nccl.config", 0, (".nccl.conf sets NCCL_GRAPH_FILE", "no environment shows it"), _conf_file),
    fault("NCCL_CONF_FILE names a file that is not there", "warn", "nccl.config", 0, ("gone.conf", "not there", "not read instead"), _conf_file_gone),
    fault("NCCL_P2P_LEVEL=sys in the shell", "fail", "nccl.variables", 1, ("value_ignored", "NCCL_P2P_LEVEL", "found sys", "write SYS"), _value),
    fault("NCLL_PROTO in the shell", "fail", "nccl.variables", 1, ("name_misspelt", "NCLL_PROTO", "slip of NCCL_PROTO"), _name),
    fault("NCCL_TUNER_PLUGIN names a plugin that is not there", "warn", "nccl.plugins", 0, ("NCCL_TUNER_PLUGIN names", "NCCL goes on without"), _plugin_gone),
    fault("a sudo shell that has lost the variables", "warn", "sight.sudo", 0, ("NCCL_", "sudo"), _sudo),
    fault("SGLANG_EXT=0 in the shell", "fail", "sight.switch", 1, ("SGLANG_EXT=0",), _switched_off),
    fault("a copy of sglang in the folder the server is started in", "fail", "packages.shadow", 1, ("would be imported from", "is hidden", "start in another folder"), _shadow),
]  # fmt: skip


@pytest.mark.parametrize(("row", "act"), DOCTOR)
def test_doctor(row: Row, act: Act, place: Place, matrix: Matrix, request: pytest.FixtureRequest) -> None:
    done = act(place)
    assert done.status == row.exit and "Traceback" not in done.err, done.out + done.err
    report: dict[str, Any] = json.loads(done.out)
    found = [one for one in report["checks"] if one["check"] == row.code and one["state"] == row.verdict]
    assert found, [one for one in report["checks"] if one["state"] not in ("ok", "note")]
    if row.exit == 0:
        assert not [one for one in report["checks"] if one["state"] == "fail"]
    (one, *_) = found
    sentence = one["message"] + (f". Fix: {one['fix']}" if one["fix"] else "")
    matrix.add(request, row, sentence, {str(place.folder): "DIR", str(ROOT): "CHECKOUT"})


# --- the launcher -------------------------------------------------------------------------------------------


def _launch_hidden(place: Place) -> Done:
    bare(place)
    return place.launch(env={"PYTHONPATH": os.pathsep.join((theirs(place), str(OURS)))})


def _launch_broken_before_ours(place: Place) -> Done:
    bare(place)
    broken = theirs(place, "raise RuntimeError('broken')\n")
    return place.launch(env={"PYTHONPATH": os.pathsep.join((broken, str(OURS)))})


def _launch_empty_path(place: Place) -> Done:
    bare(place)
    return place.launch(env={"PYTHONPATH": ""})


def _launch_pth_cut(place: Place) -> Done:
    (place.site / "sglang_ext.pth").write_text("# sglang-ext\n")
    return place.launch()


LAUNCH = [
    fault("somebody else's sitecustomize hides ours, in a checkout", "refused", "hook_not_armed", 1, ("theirs/sitecustomize.py was read", "in place of our sitecustomize/", "put ours first"), _launch_hidden),
    fault("a broken sitecustomize before ours, in a checkout", "refused", "hook_not_armed", 1, (".pth", "sitecustomize/"), _launch_broken_before_ours),
    fault("PYTHONPATH empty, in a checkout", "refused", "hook_not_armed", 1, (".pth", "sitecustomize/"), _launch_empty_path),
    fault("our .pth without its line", "refused", "hook_not_armed", 1, (".pth", "pip install sglang-ext"), _launch_pth_cut),
]  # fmt: skip


@pytest.mark.parametrize(("row", "act"), LAUNCH)
def test_launch(row: Row, act: Act, place: Place, matrix: Matrix, request: pytest.FixtureRequest) -> None:
    matrix.add(request, row, refused(row, act(place)), {str(place.folder): "DIR"})


# --- any other Python: undisturbed, and sglang patched where it is imported ----------------------------------


def any_python(env: Mapping[str, str], before: Callable[[Place], object] = lambda place: None, *flags: str) -> Act:
    """A program that has nothing to do with sglang."""

    def act(place: Place) -> Done:
        before(place)
        environment = {name: value.replace("THEIRS", str(place.folder / "theirs")) for name, value in env.items()}
        return run(place.python, *flags, "-c", ANY, env=place.environment(environment))

    return act


def shows(env: Mapping[str, str], before: Callable[[Place], object] = lambda place: None) -> Act:
    """A program that imports sglang, without the launcher."""

    def act(place: Place) -> Done:
        before(place)
        environment = {name: value.replace("THEIRS", str(place.folder / "theirs")) for name, value in env.items()}
        return place.show(environment)

    return act


def no_sglang(place: Place) -> None:
    (place.site / "sglang").rename(place.site / "gone")


def half_sglang(place: Place) -> None:
    for target in TARGETS:
        place.upstream(TARGETS.index(target)).unlink()


def no_package(place: Place) -> None:
    place.package.rename(place.folder / "gone")


def broken_package(place: Place) -> None:
    (place.package / "bootstrap.py").write_text("def (\n")


def their_hook(place: Place) -> None:
    theirs(place)


def another_checkout(place: Place) -> None:
    theirs(place, (OURS / "sitecustomize.py").read_text())


def their_broken_hook(place: Place) -> None:
    theirs(place, "raise RuntimeError('theirs is broken')\n")


def in_turn(*deeds: Callable[[Place], object]) -> Callable[[Place], object]:
    return lambda place: [deed(place) for deed in deeds]


BOTH = {"PYTHONPATH": f"{OURS}{os.pathsep}THEIRS"}
PYTHON = [
    ("sglang_absent", "sglang is not installed: any other program", "undisturbed", 0, "", any_python({}, no_sglang)),
    ("sglang_half", "sglang half uninstalled: any other program", "undisturbed", 0, "", any_python({}, half_sglang)),
    ("package_gone", "our package gone, its .pth left: any other program", "undisturbed", 0, "", any_python({}, no_package)),
    ("package_broken", "our package does not compile: any other program", "undisturbed", 0, "", any_python({}, broken_package)),
    ("nested", "a program below a run of ours: its variables are inherited", "undisturbed", 0, "", any_python({"SGLANG_EXT_RUN_ID": "run-1a2b3c4d", "SGLANG_EXT_RUN_DIR": "/tmp/run-1a2b3c4d"})),
    ("theirs_too", "another sitecustomize beside our .pth: both run", "undisturbed", 0, "theirs ran", any_python({"PYTHONPATH": "THEIRS"}, their_hook)),
    ("theirs_behind", "another sitecustomize behind ours on PYTHONPATH: ours hands on to it", "undisturbed", 0, "theirs ran", any_python(BOTH, in_turn(bare, their_hook))),
    ("two_checkouts", "two checkouts' sitecustomize/ on PYTHONPATH: any other program", "undisturbed", 0, "", any_python(BOTH, in_turn(bare, another_checkout))),
    ("theirs_broken", "another sitecustomize that is broken, behind ours: Python says so, the hook stays armed", "undisturbed", 0, "theirs is broken", any_python(BOTH, in_turn(bare, their_broken_hook))),
    ("theirs_broken_pth", "another sitecustomize that is broken, beside our .pth", "undisturbed", 0, "theirs is broken", any_python({"PYTHONPATH": "THEIRS"}, their_broken_hook)),
    ("isolated", "python -I: our .pth counts", "undisturbed", 0, "", any_python({}, lambda place: None, "-I")),
    ("empty_path", "PYTHONPATH empty", "undisturbed", 0, "", any_python({"PYTHONPATH": ""})),
]  # fmt: skip
SHOWN = [
    ("import_theirs", "sglang imported where another sitecustomize stands beside our .pth", "patched", 0, "theirs ran", shows({"PYTHONPATH": "THEIRS"}, their_hook)),
    ("import_behind", "sglang imported where another sitecustomize stands behind ours", "patched", 0, "theirs ran", shows(BOTH, in_turn(bare, their_hook))),
]  # fmt: skip


def named(table: list[tuple[str, str, str, int, str, Act]]) -> list[object]:
    made = []
    for name, text, verdict, status, says, act in table:
        act.__name__ = name
        made.append(fault(text, verdict, None, status, says or (), act))
    return made


@pytest.mark.parametrize(("row", "act"), named(PYTHON))
def test_any_python(row: Row, act: Act, place: Place, matrix: Matrix, request: pytest.FixtureRequest) -> None:
    done = act(place)
    assert (done.status, done.out) == (row.exit, "ran True\n"), done
    said = last(done.err)
    assert bool(said) == bool(row.says) and "sglang-ext" not in said, done.err
    matrix.add(request, row, said or "nothing", {str(place.folder): "DIR"})


@pytest.mark.parametrize(("row", "act"), named(SHOWN))
def test_import(row: Row, act: Act, place: Place, matrix: Matrix, request: pytest.FixtureRequest) -> None:
    done = act(place)
    assert done.status == row.exit and done.out.startswith("overlay "), done
    matrix.add(request, row, last(done.err) or "nothing", {str(place.folder): "DIR"})


def last(text: str) -> str:
    """The last line a program wrote; Python's own advice how to see more of it is left out."""
    lines = [line for line in text.splitlines() if line.strip() and "PYTHONVERBOSE" not in line]
    return lines[-1].strip() if lines else ""


def test_the_folder_is_what_it_is_called() -> None:
    assert Path(OURS, "sitecustomize.py").is_file()
