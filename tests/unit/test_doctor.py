"""doctor as a whole: every check alone, the report and its status, and the verb in a real Python of its own."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext.doctor import checks, verb
from sglang_ext.doctor.checks import CHECKS, Check
from sglang_ext.doctor.here import Here, here
from sglang_ext.doctor.report import render, report, status_of
from sglang_ext.doctor.result import FAIL, GRAVITY, NOTE, OK, UNKNOWN, WARN, Result, from_sentence, listed

ROOT = Path(__file__).resolve().parents[2]
ROOM = ROOT / "sglang_ext" / "doctor"
ASKED = Check("a.b", "nowhere.check", decides=True)
ASIDE = Check("a.c", "nowhere.check", decides=False)


# Each check alone.


def test_every_check_is_in_the_table_and_documented() -> None:
    """A function called check_* that no row names would never run."""
    written = {
        f"{file.stem}.{node.name}"
        for file in ROOM.glob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    }
    assert written == {check.where for check in CHECKS}
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert [check.name for check in CHECKS if f"`{check.name}`" not in page] == []


def test_a_check_that_breaks_is_unknown_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises, also what it said before; also a module of ours that is damaged or gone."""

    def breaks(here: Here) -> Iterator[Result]:
        yield Result(OK, "said before")
        raise KeyError("in\nthe middle " + "x" * 500)

    from sglang_ext.doctor import startup

    monkeypatch.setattr(startup, "check_pth", breaks)
    monkeypatch.setattr(startup, "check_start", lambda here: [])
    monkeypatch.setitem(sys.modules, "sglang_ext.doctor.nccl_setup", None)
    found = checks.examine(here())
    assert {check.name for check, _ in found} == {check.name for check in CHECKS}
    by_name: dict[str, list[Result]] = {}
    for check, result in found:
        by_name.setdefault(check.name, []).append(result)
    said, broken = by_name["startup.pth"]
    assert (said.state, broken.state) == (OK, UNKNOWN)
    assert "KeyError" in broken.message and "\n" not in broken.message and len(broken.message) < 260
    assert by_name["startup.start"][0].state == UNKNOWN
    assert all(
        r.state == UNKNOWN and "nccl_setup" in r.message for n in by_name if n.startswith("nccl.") for r in by_name[n]
    )
    assert status_of(found) in (1, 3)


def test_no_check_breaks_on_an_environment_of_nonsense(tmp_path: Path) -> None:
    """Files where folders should be, bytes that are no text, paths that are gone: said, or unknown; never raised."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("sglang-0.5.23.dist-info", "nvidia_nccl_cu13-2.dist-info", "-.dist-info", "x.dist-info"):
        (site / name).mkdir()
        for file in ("METADATA", "RECORD", "direct_url.json", "entry_points.txt"):
            (site / name / file).write_bytes(b"\xff\xfe\0[=\n\n" * 50)
    (site / "broken-1.dist-info").write_text("")
    (site / "sglang").write_text("")
    (site / "a.pth").write_bytes(b"import \xff\n")
    (site / "sglang_ext.pth").mkdir()
    (site / "sitecustomize.py").mkdir()
    environ = {
        "LD_PRELOAD": "::  ",
        "LD_LIBRARY_PATH": ":;:\udcff",
        "NCCL_CONF_FILE": "\udcff",
        "PYTHONPATH": "\udcff",
        "NCCL_\udcff": "\udcff",
    }
    flags = SimpleNamespace(**{name: False for name in dir(sys.flags) if not name.startswith("_")})
    places = (str(site), str(site / "sglang"), "/gone", "", "\udcff")
    now = Here("/gone/python", (3, 11), flags, (), (object(),), places, places, "/gone", environ, None)
    found = checks.examine(now)
    broken = [(c.name, r.message) for c, r in found if "could not be made" in r.message]
    assert broken == []
    assert render(report(found, now)).isprintable() is False  # it has lines
    json.dumps(report(found, now))


# The report.


@pytest.mark.parametrize(
    ("states", "status", "worst"),
    [
        ([OK], 0, OK),
        ([OK, NOTE], 0, NOTE),
        ([NOTE, WARN], 0, WARN),
        ([OK, UNKNOWN], 3, UNKNOWN),
        ([UNKNOWN, FAIL, OK], 1, FAIL),
    ],
)
def test_status(states: list[str], status: int, worst: str) -> None:
    found = report([(ASKED, Result(state, "x")) for state in states], here())
    assert (found["exit"], found["state"]) == (status, worst)
    assert sum(found["counts"].values()) == len(states)


def test_an_unknown_that_does_not_matter() -> None:
    assert status_of([(ASIDE, Result(UNKNOWN, "x"))]) == 0


def test_the_schema() -> None:
    found = report([(ASKED, Result(WARN, "what", "do", ("one", "two"))), (ASIDE, Result(OK, "well"))], here())
    assert found["schema"] == "sglang-ext/doctor/1"
    assert set(found) == {"schema", "exit", "state", "counts", "python", "checks"}
    assert list(found["counts"]) == list(GRAVITY)
    assert found["checks"] == [
        {"check": "a.b", "state": "warn", "decides": True, "message": "what", "fix": "do", "seen": ["one", "two"]},
        {"check": "a.c", "state": "ok", "decides": False, "message": "well", "fix": None, "seen": []},
    ]


def test_the_table() -> None:
    found = report(
        [(ASKED, Result(FAIL, "what", "do", tuple("abcdefghijklmno"))), (ASIDE, Result(OK, "well", "", ("p",)))], here()
    )
    text = render(found)
    assert "a.b  fail     what" in text and "fix:     do" in text and "(--json has them all)" in text
    assert "           p" not in text and "           p" in render(found, everything=True)
    assert text.splitlines()[-1] == "fail: a launch would fail or prove nothing (1 fail, 1 ok)"
    assert "\033[31mfail   \033[0m" in render(found, colour=True) and "\033" not in text


def test_sentences() -> None:
    assert from_sentence(FAIL, "a; b; run: c") == Result(FAIL, "a; b", "run: c")
    assert from_sentence(FAIL, "a") == Result(FAIL, "a")
    assert listed(["a", "b"]) == "a, b" and listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_an_output_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from sglang_ext.cli import main

    monkeypatch.setattr(checks, "CHECKS", (ASIDE,))
    assert main(["doctor", "--json", str(tmp_path / "gone" / "x.json")]) == 2
    assert "x.json cannot be written (No such file or directory)" in capsys.readouterr().err
    assert main(["doctor", "--json", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["schema"] == "sglang-ext/doctor/1"
    assert "a.c" in capsys.readouterr().out
    assert verb.run("-") == 0
    assert json.loads(capsys.readouterr().out)["counts"]["unknown"] == 1


# A whole environment with faults in it, and a real Python.


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A virtual environment with our package but no sglang, a .pth that was left behind, a library that is no NCCL."""
    folder = tmp_path_factory.mktemp("broken")
    venv.create(folder / "venv", symlinks=True)
    site = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sglang_ext", site / "sglang_ext", ignore=skip)
    shutil.copytree(ROOT / "patches", site / "sglang_ext" / "patches", ignore=skip)
    shutil.copy(ROOT / "sglang_ext.pth", site)
    return folder / "venv" / "bin" / "python", site


def doctor(
    python: Path, *words: str, flags: tuple[str, ...] = (), cwd: Path | str = "/", **environ: str
) -> tuple[int, dict[str, Any]]:
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("SGLANG_", "NCCL_", "PYTHON", "LD_", "SUDO_"))}
    command = [str(python), *flags, "-m", "sglang_ext", "doctor", "--json", *words]
    done = subprocess.run(command, env=clean | environ, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and "Traceback" not in done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def states(found: dict[str, Any], name: str) -> list[str]:
    return [one["state"] for one in found["checks"] if one["check"] == name]


def test_the_verb_in_an_environment_without_sglang(broken: tuple[Path, Path], tmp_path: Path) -> None:
    python, _ = broken
    status, found = doctor(python)
    assert (status, found["exit"], found["state"]) == (1, 1, "fail")
    assert states(found, "interpreter.child") == states(found, "startup.pth") == ["ok"]
    assert states(found, "packages.sglang") == ["fail"]
    (message,) = [one["message"] for one in found["checks"] if one["check"] == "packages.sglang"]
    assert str(python) in message
    assert [one for one in found["checks"] if "could not be made" in one["message"]] == []
    # A scratch copy in the folder it is started in: edited, and there is nothing installed that it would hide.
    scratch = tmp_path / "sglang"
    scratch.mkdir()
    (scratch / "__init__.py").write_text("raise SystemExit('imported')")
    status, found = doctor(python, cwd=tmp_path)
    assert (status, states(found, "upstream.files"), states(found, "packages.sglang")) == (1, ["fail"], ["warn"])


def test_the_verb_under_flags(broken: tuple[Path, Path]) -> None:
    """-I keeps the .pth; -S loses everything but can still be told about, where the package is found otherwise."""
    python, site = broken
    _, found = doctor(python, flags=("-I",))
    assert states(found, "interpreter.child") == ["ok"] and states(found, "interpreter.flags")[0] == "note"
    _, found = doctor(python, flags=("-S",), PYTHONPATH=str(site))
    assert states(found, "interpreter.flags")[0] == "fail"
    assert states(found, "interpreter.hook") == states(found, "interpreter.child") == ["fail"]


def test_the_verb_prints_no_secret_and_follows_the_switch(broken: tuple[Path, Path]) -> None:
    python, _ = broken
    secrets = {
        "NCCL_TOKEN": "hunter1",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "SGLANG_EXT_API_KEY": "hunter3",
        "HF_TOKEN": "hunter4",
    }
    _, found = doctor(python, flags=(), cwd="/", SGLANG_EXT="0", **secrets)
    assert states(found, "sight.switch") == ["fail"]
    assert "hunter" not in json.dumps(found)


def test_half_an_installation_can_be_examined(broken: tuple[Path, Path], tmp_path: Path) -> None:
    """Rooms that are gone are told of, one unknown each; the others still speak."""
    python, site = broken
    half = tmp_path / "half"
    shutil.copytree(site / "sglang_ext", half / "sglang_ext")
    shutil.rmtree(half / "sglang_ext" / "nccl")
    (half / "sglang_ext" / "patches" / "upstream.toml").write_text("nonsense")
    status, found = doctor(python, PYTHONPATH=str(half))
    assert status == 3 or status == 1
    assert states(found, "nccl.library") == states(found, "interpreter.version") == ["unknown"]
    assert states(found, "interpreter.child") == ["ok"]


def test_nothing_heavy_is_imported_and_nothing_is_written(tmp_path: Path) -> None:
    """Neither torch nor sglang, though both could be; and no file appears."""
    for name in ("torch", "sglang"):
        (tmp_path / "path" / name).mkdir(parents=True)
        (tmp_path / "path" / name / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "home").mkdir()
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from sglang_ext.doctor import verb\n"
        "sys.stdout = open('/dev/null', 'w'); verb.run(None); sys.stdout = sys.__stdout__\n"
        "print(*sorted({'torch', 'sglang'} & set(sys.modules)))\n"
    )
    environ = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-B", "-c", code, str(ROOT), str(tmp_path / "path")]
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert list((tmp_path / "home").iterdir()) == []
