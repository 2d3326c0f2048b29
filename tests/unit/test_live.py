"""The live reader against the target's own getenv: real interpreters, processes that cannot be read, and others never still."""

from __future__ import annotations

import copy
import glob
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglang_ext.verify import live
from tests.unit.live_children import child

ROOT = Path(__file__).resolve().parents[2]
STATES = {"ok", "denied", "gone", "unavailable"}


def _interpreters() -> list[str]:
    """This Python, pyenv's CPythons and the distribution's, each once."""
    versions = glob.glob(str(Path.home() / ".pyenv" / "versions" / "3.1[0-9].*" / "bin" / "python"))
    system = [path for path in (shutil.which("python3", path="/usr/bin"),) if path]
    found: dict[str, str] = {}
    for path in [*sorted(versions), *system, sys.executable]:
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


GETENV = r"""
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def getenv(name):
    value = libc.getenv(os.fsencode(name))
    return None if value is None else value.decode("utf-8", "surrogateescape")
def report(names=(), **more):
    names = set(os.environ) | set(names)
    print(json.dumps({**more, "getenv": {name: getenv(name) for name in names}}), flush=True)
    sys.stdin.read()
"""

CHANGES = (
    GETENV
    + r"""
os.environ["MODIFIED"] = "new"
os.environ["SHORTENED"] = "s"
del os.environ["DELETED"]
os.environ["ADDED"] = "a" * 300
os.environ["EMPTY"] = ""
os.environ["EQUALS"] = "a=b=c"
os.environb[b"BYTES"] = b"\xff\xfe\xc3\xa9"
titled = False
try:
    import setproctitle
except ImportError:
    pass
else:
    setproctitle.setproctitle("sglang::scheduler_TP0")
    with open("/proc/self/cmdline") as file:  # without its C part, setproctitle does nothing
        titled = file.read().startswith("sglang::scheduler_TP0")
os.environ["AFTER_TITLE"] = "1"
del os.environ["DELETED_LATE"]
libc.setenv(b"C_ONLY", b"from C", 1)
libc.setenv(b"INHERITED_07", b"over from C", 1)
report(["C_ONLY", "DELETED", "DELETED_LATE"], titled=titled)
"""
)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        **{f"INHERITED_{index:02}": f"value {index}" for index in range(40)},
        "MODIFIED": "old",
        "SHORTENED": "long " * 100,
        "DELETED": "1",
        "DELETED_LATE": "1",
        "PYTHONUTF8": "1",
    }


@pytest.mark.parametrize("python", _interpreters())
def test_equals_the_childs_own_getenv(python: str) -> None:
    with child([python, "-c", CHANGES], _environment()) as (pid, line):
        reading = live.read_live(pid)
        told = json.loads(line)
        expected = {name: value for name, value in told["getenv"].items() if value is not None}
        assert reading.state == "ok", reading.detail
        assert reading.values == expected
        assert reading.values["C_ONLY"] == "from C"
        assert reading.values["BYTES"] == "\udcff\udcfe\xe9"
        assert {"DELETED", "DELETED_LATE"}.isdisjoint(reading.values)
        assert live.read_live(pid) == reading, "from the cache"
        if told["titled"]:
            assert b"INHERITED_39=" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("python", _interpreters())
def test_the_memory_image_tells_the_same_as_the_file(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with child([python, "-c", CHANGES], _environment()) as (pid, _):
        expected = live.read_live(pid)
        monkeypatch.setattr(live, "_locate", lambda *_: None)
        assert live.read_live(pid) == expected


def test_this_very_process() -> None:
    os.environ["SGLANG_EXT_TEST_LIVE"] = "here"
    try:
        assert live.read_live(os.getpid()).values["SGLANG_EXT_TEST_LIVE"] == "here"
    finally:
        del os.environ["SGLANG_EXT_TEST_LIVE"]
    assert "SGLANG_EXT_TEST_LIVE" not in live.read_live(os.getpid()).values


def test_two_mebibytes_are_read_whole() -> None:
    code = GETENV + (
        "for index in range(512): os.environ[f'PART_{index}'] = chr(97 + index % 26) * 2048\n"
        "os.environ['LONG'] = 'l' * (1 << 20)\n"
        "report()\n"
    )
    with child([sys.executable, "-c", code]) as (pid, line):
        reading = live.read_live(pid)
        assert reading.state == "ok", reading.detail
        assert reading.values == json.loads(line)["getenv"]
        assert sum(map(len, reading.values.values())) > 2 << 20


def test_more_than_eight_mebibytes_are_refused() -> None:
    code = GETENV + "os.environ['LONG'] = 'l' * (9 << 20)\nprint(flush=True)\nsys.stdin.read()\n"
    with child([sys.executable, "-c", code]) as (pid, _):
        reading = live.read_live(pid)
        assert (reading.state, reading.values) == ("unavailable", {})
        assert "larger than 8 MiB" in reading.detail


@pytest.mark.parametrize("pause", [0.0, 0.003])
def test_a_process_that_never_stops_changing(pause: float) -> None:
    code = (
        "import os, time\nprint(flush=True)\n"
        "while True:\n"
        "    for index in range(50):\n"
        "        os.environ['FLIP'] = 'ab'[index % 2] * 500\n"
        "        os.environ[f'COMES_AND_GOES_{index}'] = 'x' * index\n"
        "    for index in range(50): del os.environ[f'COMES_AND_GOES_{index}']\n"
        f"    time.sleep({pause}) if {pause} else None\n"
    )
    env = {**os.environ, "FLIP": "a" * 500, "STAYS": "s" * 700, "LAST": "l"}
    with child([sys.executable, "-c", code], env) as (pid, _):
        readings = [live.read_live(pid) for _ in range(60)]
        assert {reading.state for reading in readings} <= {"ok", "unavailable"}
        for reading in readings:
            if reading.state == "ok":
                assert reading.values["FLIP"] in ("a" * 500, "b" * 500)
                assert (reading.values["STAYS"], reading.values["LAST"]) == ("s" * 700, "l")
            else:
                assert reading.values == {}
        if pause:
            assert any(reading.state == "ok" for reading in readings)


# --- processes that cannot be read ----------------------------------------------------------------------


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 1 << 80])
def test_no_process_id(pid: int) -> None:
    assert live.read_live(pid).state == "gone"


def test_exited_and_reaped() -> None:
    with child([sys.executable, "-c", "print()"]) as (pid, _):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        zombie = live.read_live(pid)
    assert (zombie.state, zombie.values) == ("gone", {})
    assert "zombie" in zombie.detail
    reaped = live.read_live(pid)
    assert (reaped.state, reaped.values) == ("gone", {})
    assert str(pid) in reaped.detail


def test_vanishing_at_any_moment() -> None:
    for delay in range(20):
        with child([sys.executable, "-c", "print(flush=True)\nimport sys\nsys.stdin.read()"]) as (pid, _):
            for turn in range(6):
                if turn == 1 + delay % 4:
                    os.kill(pid, signal.SIGKILL)
                assert live.read_live(pid).state in ("ok", "gone", "unavailable")


def test_starting_up() -> None:
    """Read from the moment of exec on: before libc is ready there is no answer, and never a wrong one."""
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-S", "-c", "pass"], env={"ONLY": "1"})
        try:
            while process.poll() is None:
                reading = live.read_live(process.pid)
                assert reading.state in STATES
                if reading.state == "ok":
                    # LC_CTYPE: CPython's own C locale coercion (PEP 538).
                    assert reading.values.items() - {("LC_CTYPE", "C.UTF-8")} <= {("ONLY", "1")}
        finally:
            process.kill()
            process.wait()


def _read_unprivileged(pid: int) -> live.LiveEnviron:
    """`read_live` in a forked child that is not root and has no part in the target."""
    readable, writable = os.pipe()
    reader = os.fork()
    if reader == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(writable, pickle.dumps(live.read_live(pid)))
            status = 0
        finally:
            os._exit(status)
    os.close(writable)
    with open(readable, "rb") as pipe:
        data = pipe.read()
    assert os.waitpid(reader, 0)[1] == 0
    answer = pickle.loads(data)
    assert isinstance(answer, live.LiveEnviron)
    return answer


def test_permission_denied() -> None:
    code = "import ctypes, sys\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nprint(flush=True)\nsys.stdin.read()"
    with child([sys.executable, "-c", code]) as (pid, _):  # 4: PR_SET_DUMPABLE
        reading = _read_unprivileged(pid)
    assert (reading.state, reading.values) == ("denied", {})
    assert "EACCES" in reading.detail or "EPERM" in reading.detail


def test_descriptors_are_closed() -> None:
    with child([sys.executable, "-c", "import sys\nprint(flush=True)\nsys.stdin.read()"]) as (pid, _):
        before = os.listdir("/proc/self/fd")
        live.clear_cache()
        for target in (pid, os.getpid(), 1, 2, 1 << 30):
            live.read_live(target)
        assert os.listdir("/proc/self/fd") == before


def test_time_is_bounded_for_a_target_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three attempts, and no more."""
    attempts: list[int] = []

    def torn(proc: int) -> live.LiveEnviron:
        attempts.append(proc)
        raise live._RetryError("it changed while it was being read")

    monkeypatch.setattr(live, "_attempt", torn)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    reading = live.read_live(os.getpid())
    assert (reading.state, len(attempts)) == ("unavailable", 3)
    assert "it changed while it was being read" in reading.detail


# --- pure parts -----------------------------------------------------------------------------------------


def test_blocks() -> None:
    assert live.plan_blocks([]) == []
    assert live.plan_blocks([5]) == [[5]]
    assert live.plan_blocks([1, 11, 22, 32], gap=10) == [[1, 11], [22, 32]]


def test_entries() -> None:
    assert live.parse_entries([b"A=1", b"A=2", b"B", b"=c", b"", b"D=", b"E==", b"\xff=\xfe"]) == {
        "A": "1",
        "D": "",
        "E": "=",
        "\udcff": "\udcfe",
    }


def test_reading_is_a_value() -> None:
    reading = live.LiveEnviron("ok", {"TOKEN": "hidden"}, "Read.")
    assert reading == copy.copy(reading) == pickle.loads(pickle.dumps(reading))
    assert reading != live.LiveEnviron("ok", {}, "Read.")
    assert reading != "ok"
    assert "hidden" not in repr(reading)
    with pytest.raises(AttributeError):
        reading.state = "gone"
    with pytest.raises(AttributeError):
        del reading.values
    with pytest.raises(AttributeError):
        reading.other = 1


def test_import_stays_light() -> None:
    """The command that uses it has 60 ms in all; each of these modules alone takes 3 to 10 of them."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules)\n"
        "import sglang_ext.verify.live\n"
        "heavy = {'dataclasses', 'inspect', 're', 'typing', 'enum', 'ctypes'}\n"
        "print(*sorted(heavy & set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
