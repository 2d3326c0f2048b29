"""doctor on the interpreter and what runs at its start: the fault is made in a folder of its own, or in a real Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext import bootstrap
from sglang_ext.doctor import interpreter, startup
from sglang_ext.doctor.here import Here, here
from sglang_ext.doctor.result import Result
from sglang_ext.patchset import overlay
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock

ROOT = Path(__file__).resolve().parents[2]
BARE: str = getattr(sys, "_base_executable", sys.executable)  # nothing of ours is installed there
ARMED = SimpleNamespace(**{bootstrap.MARK: "first"})


def flags(**on: Any) -> SimpleNamespace:
    names = ("isolated", "ignore_environment", "no_user_site", "safe_path", "no_site", "dont_write_bytecode")
    return SimpleNamespace(**{name: on.get(name, False) for name in names})


def place(*folders: Path, on: dict[str, Any] | None = None, **fields: Any) -> Here:
    """An environment whose sys.path and site folders are these."""
    plain = Here(
        BARE, (3, 11), flags(**(on or {})), (), (), tuple(map(str, folders)), tuple(map(str, folders)), "/std", {}, "/"
    )
    return plain._replace(**fields)


def only(results: Any) -> Result:
    (result,) = results
    return result


def our_pth(folder: Path, *, package: bool = True) -> Path:
    """Our .pth in a site folder, as it is installed."""
    folder.mkdir(exist_ok=True)
    if package:
        (folder / "sglang_ext").mkdir()
        (folder / "sglang_ext" / "__init__.py").write_text("")
    return Path(shutil.copy(ROOT / "sglang_ext.pth", folder))


# The interpreter.


def wheels(folder: Path, monkeypatch: pytest.MonkeyPatch, *tags: str) -> None:
    """A lock with one release, whose wheels have these tags."""
    names = {f"sglang-9.9.1-{tag}.whl": "0" * 64 for tag in tags}
    lock = Lock([Release("9.9.1", "0" * 64, names, {"sglang/x.py": LockedFile("0" * 64, "1" * 64)})])
    (folder / "upstream.toml").write_text(dump_lock(lock))
    monkeypatch.setattr(overlay, "patches_folder", lambda: str(folder))


@pytest.mark.parametrize(
    ("version", "tags", "part"),
    [
        ((3, 11), ("cp311-cp311-linux_x86_64", "cp312-cp312-linux_x86_64"), None),
        ((3, 13), ("cp311-cp311-linux_x86_64", "cp312-cp312-linux_x86_64"), "sglang 9.9.1 has wheels for: 3.11, 3.12"),
        ((3, 13), ("py3-none-any",), None),
        ((3, 10), ("py3-none-any",), "Python 3.10, expected 3.11 to 3.13"),
        ((3, 14), ("py3-none-any",), "Python 3.14, expected 3.11 to 3.13"),
    ],
)
def test_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], tags: tuple[str, ...], part: str | None
) -> None:
    wheels(tmp_path, monkeypatch, *tags)
    result = only(interpreter.check_version(place(version=version)))
    assert (
        result.state == ("fail" if part else "ok") and (part or "") in result.message and bool(result.fix) == bool(part)
    )


def test_our_own_range_is_pyprojects() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = tomllib.load(file)["project"]["requires-python"]
    (oldest, newest) = (f"{v[0]}.{v[1]}" for v in (interpreter.OLDEST, (3, interpreter.NEWEST[1] + 1)))
    assert wanted == f">={oldest},<{newest}"


@pytest.mark.parametrize(
    ("on", "environ", "states", "parts"),
    [
        ({}, {}, ["ok"], [""]),
        ({"no_site": 1}, {}, ["fail"], ["-S"]),
        # -I brings -E, -s and -P along: one line, not four
        ({"isolated": 1, "ignore_environment": 1, "no_user_site": 1, "safe_path": True}, {}, ["note"], ["-I"]),
        ({"ignore_environment": 1}, {}, ["note"], ["-E is in force: PYTHONPATH"]),
        ({"no_user_site": 1}, {}, ["note"], ["-s"]),
        ({"no_user_site": 1}, {"PYTHONNOUSERSITE": "1"}, ["note"], ["PYTHONNOUSERSITE"]),
        ({"safe_path": True}, {"PYTHONSAFEPATH": "1"}, ["note"], ["PYTHONSAFEPATH"]),
        ({"dont_write_bytecode": 1}, {}, ["note"], ["-B"]),
        ({"no_site": 1, "ignore_environment": 1}, {}, ["fail", "note"], ["-S", "-E"]),
    ],
)
def test_flags(on: dict[str, Any], environ: dict[str, str], states: list[str], parts: list[str]) -> None:
    results = list(interpreter.check_flags(place(on=on, environ=environ)))
    assert [result.state for result in results] == states
    assert all(part in result.message for part, result in zip(parts, results, strict=True))


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-s", "-P", "-B"])
def test_flags_of_a_real_python(flag: str) -> None:
    """sys.flags as a real interpreter sets them, and the switches its children get."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from sglang_ext.doctor import here, interpreter\n"
        "now = here.here()\n"
        "print(json.dumps([now.switches, [r.message for r in interpreter.check_flags(now)]]))\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([BARE, flag, "-c", code, str(ROOT)], env=environ, capture_output=True, text=True, check=True)
    switches, messages = json.loads(done.stdout)
    assert flag in switches
    assert any(message.startswith((f"{flag} is in force", f"Python runs with {flag}")) for message in messages)


def test_hook_of_this_process() -> None:
    assert only(interpreter.check_hook(place(finders=(ARMED,)))).state == "ok"
    for on, part in (({"no_site": 1}, "-S"), ({"ignore_environment": 1}, "-E or -I"), ({}, "neither")):
        result = only(interpreter.check_hook(place(on=on)))
        assert result.state == "fail" and part in result.message and result.fix


def sitecustomize_of(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "sitecustomize.py"
    file.write_text(text)
    return file


def child_place(*entries: Path | str, **fields: Any) -> Here:
    """A real Python without our .pth, and with a PYTHONPATH."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SGLANG_"))}
    path = os.pathsep.join(map(str, entries))
    return place(environ=environ | {"PYTHONPATH": path}, **fields)


def test_child_is_really_started() -> None:
    """Armed by our own sitecustomize; not, where the entry is relative and the child is elsewhere; not under -E and -S."""
    assert only(interpreter.check_child(child_place(ROOT / "sitecustomize"))).state == "ok"
    relative = only(interpreter.check_child(child_place("sitecustomize", cwd=str(ROOT))))
    assert relative.state == "fail" and "absolute" in relative.fix
    for switch in ("-E", "-I", "-S"):
        result = only(interpreter.check_child(child_place(ROOT / "sitecustomize", switches=(switch,))))
        assert result.state == "fail" and "not have the import hook armed" in result.message


def test_child_that_cannot_run_prints_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What start-up code of others writes is counted, never repeated: it may be anything."""
    sitecustomize_of(tmp_path / "dead", "raise SystemExit('SECRET_VALUE')")
    dead = only(interpreter.check_child(child_place(tmp_path / "dead")))
    assert dead.state == "fail" and "status 1" in dead.message and "SECRET" not in str(dead)
    loud = tmp_path / "loud"
    sitecustomize_of(loud, "import sys; sys.stderr.write('SECRET_VALUE\\n'); raise RuntimeError('SECRET_VALUE')")
    results = list(interpreter.check_child(child_place(loud)))
    assert [result.state for result in results] == ["fail", "warn"] and "SECRET" not in str(results)
    monkeypatch.setattr(interpreter, "PATIENCE", 0.5)
    sitecustomize_of(tmp_path / "slow", "import time; time.sleep(5)")
    assert only(interpreter.check_child(child_place(tmp_path / "slow"))).state == "unknown"
    missing = child_place(executable=str(tmp_path / "python"))
    assert only(interpreter.check_child(missing)).state == "unknown"


# sitecustomize, usercustomize.


def test_an_installed_pth_needs_no_sitecustomize(tmp_path: Path) -> None:
    our_pth(tmp_path / "site")
    debian = sitecustomize_of(tmp_path / "std", "")
    result = only(startup.check_sitecustomize(place(tmp_path / "std", tmp_path / "site", stdlib=str(tmp_path / "std"))))
    assert result.state == "ok" and "not needed" in result.message
    assert result.seen == (f"{debian} (the distribution's (Debian, Ubuntu))",)


@pytest.mark.parametrize(
    ("folder", "text", "whose"),
    [
        ("std", "", "Debian"),
        ("site/ddtrace/bootstrap", "", "ddtrace's"),
        ("site/opentelemetry/instrumentation/auto_instrumentation", "", "OpenTelemetry's"),
        ("site/newrelic/bootstrap", "", "New Relic's"),
        ("mine", "", "somebody else's"),
    ],
)
def test_ours_is_needed_and_hidden(tmp_path: Path, folder: str, text: str, whose: str) -> None:
    theirs = sitecustomize_of(tmp_path / folder, text)
    path = (theirs.parent, ROOT / "sitecustomize")
    result = only(startup.check_sitecustomize(place(*path, stdlib=str(tmp_path / "std"))))
    assert result.state == "fail" and str(theirs) in result.message and whose in result.message
    assert "first on PYTHONPATH" in result.fix
    assert [line.rpartition(" (")[2] for line in result.seen][-1] == "ours, hidden)"


def test_our_sitecustomize_first_is_live(tmp_path: Path) -> None:
    theirs = sitecustomize_of(tmp_path / "theirs", "")
    result = only(startup.check_sitecustomize(place(ROOT / "sitecustomize", theirs.parent)))
    assert result.state == "ok" and "hands on" in result.message
    assert result.seen[1] == f"{theirs} (somebody else's, hidden)"


def test_nothing_arms_the_hook(tmp_path: Path) -> None:
    result = only(startup.check_sitecustomize(place(tmp_path)))
    assert result.state == "fail" and "nothing arms the hook" in result.message
    assert only(startup.check_sitecustomize(place(ROOT / "sitecustomize", on={"no_site": 1}))).state == "fail"


def test_debians_own_python_hides_ours() -> None:
    """The real thing, where this machine has it: the standard library's folder comes before site-packages."""
    theirs = Path("/usr/lib/python3.11/sitecustomize.py")
    if not theirs.exists() or not Path("/usr/bin/python3.11").exists():
        pytest.skip("no Debian or Ubuntu python3.11 with a sitecustomize here")
    done = subprocess.run(
        ["/usr/bin/python3.11", "-I", "-c", "import json, sys; print(json.dumps(sys.path))"],
        capture_output=True,
        check=True,
    )
    path = [*json.loads(done.stdout), str(ROOT / "sitecustomize")]
    result = only(startup.check_sitecustomize(place(path=tuple(path), stdlib=str(theirs.parent))))
    assert result.state == "fail" and f"hidden by {theirs}, which is the distribution's" in result.message


def test_usercustomize(tmp_path: Path) -> None:
    assert only(startup.check_usercustomize(place(tmp_path))).state == "ok"
    (tmp_path / "usercustomize.py").write_text("")
    result = only(startup.check_usercustomize(place(tmp_path)))
    assert result.state == "note" and "runs at every start" in result.message
    result = only(startup.check_usercustomize(place(tmp_path, on={"no_user_site": 1})))
    assert result.state == "note" and "not run" in result.message


# .pth and .start files.


def test_pth_files_in_the_order_python_runs_them(tmp_path: Path) -> None:
    """By name within a folder, hidden ones not; held against a real interpreter."""
    site = tmp_path / "site"
    our_pth(site)
    for name, text in {
        "zz.pth": "import sys; sys.ran.append('zz')\n",
        "a1.pth": "# comment\n/nowhere\nimport sys; sys.ran.append('a1')\n",
        ".hidden.pth": "import sys; sys.ran.append('hidden')\n",
        "paths.pth": "/nowhere\n",
        "tab.pth": "import\tsys; sys.ran.append('tab')\n",
    }.items():
        (site / name).write_text(text)
    result = only(startup.check_pth(place(site)))
    assert result.state == "ok" and "number 2 of the 4" in result.message
    assert [Path(line.removesuffix(" (ours)")).name for line in result.seen] == [
        "a1.pth",
        "sglang_ext.pth",
        "tab.pth",
        "zz.pth",
    ]
    code = f"import site, sys; sys.ran = []; site.addsitedir({str(site)!r}); print(*sys.ran)"
    done = subprocess.run([BARE, "-I", "-c", code], capture_output=True, text=True, check=True)
    hidden = ["hidden"] if "hidden" in done.stdout else []  # skipped since 3.12.4 and 3.11.9 only
    assert done.stdout.split() == [*hidden, "a1", "tab", "zz"]


def test_our_pth_twice(tmp_path: Path) -> None:
    for name in ("user", "site"):
        our_pth(tmp_path / name)
    result = only(startup.check_pth(place(tmp_path / "user", tmp_path / "site")))
    assert result.state == "warn" and "2 site folders" in result.message and str(tmp_path / "user") in result.fix


def test_our_pth_left_behind_emptied_or_missing(tmp_path: Path) -> None:
    left = our_pth(tmp_path / "left", package=False)
    result = only(startup.check_pth(place(tmp_path / "left")))
    assert result.state == "fail" and f"{left} was left behind" in result.message
    emptied = our_pth(tmp_path / "emptied")
    emptied.write_text("")
    result = only(startup.check_pth(place(tmp_path / "emptied")))
    assert result.state == "fail" and "no line that arms the hook" in result.message
    (tmp_path / "empty").mkdir()
    assert only(startup.check_pth(place(tmp_path / "empty"))).state == "note"


def test_a_python_that_no_longer_runs_import_lines(tmp_path: Path) -> None:
    our_pth(tmp_path / "site")
    result = only(startup.check_pth(place(tmp_path / "site", version=(3, 18))))
    assert result.state == "fail" and "no longer runs import lines" in result.message


def test_start_files(tmp_path: Path) -> None:
    assert only(startup.check_start(place(tmp_path))).state == "ok"
    (tmp_path / "other.start").write_text("other:init\n")
    assert only(startup.check_start(place(tmp_path))).message.endswith("Python 3.11 ignores them")
    assert only(startup.check_start(place(tmp_path, version=(3, 15)))).state == "note"
    (tmp_path / "sglang_ext.start").write_text("sglang_ext.bootstrap:arm\n")
    result = only(startup.check_start(place(tmp_path, version=(3, 15))))
    assert result.state == "fail" and "ignored" in result.message


# Here.


def test_here_is_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = here()
    assert now.executable == sys.executable and now.version == sys.version_info[:2]
    assert all(os.path.isdir(folder) for folder in now.folders)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert here().cwd is None and here().child_path == here().path
