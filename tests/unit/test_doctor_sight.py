"""doctor on what may be looked at here, on this shell's switches, and on what earlier runs left: real processes and folders."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.delivery.context import new_run
from sglang_ext.doctor import leftovers, sight_check
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import Result
from sglang_ext.run.directory import RunDirectory
from sglang_ext.run.process import all_stats, is_alive, stat
from sglang_ext.verify import sight

ROOT = Path(__file__).resolve().parents[2]
FLAGS = SimpleNamespace(safe_path=False, no_site=False, no_user_site=False)
NOBODY = 65534


def place(*path: Path, **environ: str) -> Here:
    found = tuple(map(str, path))
    return Here("python", (3, 11), FLAGS, (), (), found, found, "/std", environ, None)


def only(results: Any) -> Result:
    (result,) = results
    return result


# Sight.


def test_a_stranger_is_really_looked_into_and_ends() -> None:
    before = set(all_stats())
    state, detail = sight_check.try_a_stranger()
    assert state in ("ok", "denied"), (
        detail
    )  # denied under ptrace_scope 1 without CAP_SYS_PTRACE: the machine's own rule
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(
        entry.alive and sight_name(pid) == "cat"  # it may end between two questions
        for pid, entry in all_stats().items()
        if pid not in before
    ):
        time.sleep(0.01)
    left = [p for p, e in all_stats().items() if p not in before and e.alive and e.ppid == 1 and sight_name(p) == "cat"]
    assert left == []


def sight_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("state", "everybody", "expected", "part"),
    [
        ("ok", True, "ok", "every server"),
        ("ok", False, "note", "other users"),
        ("denied", False, "warn", "cannot be read"),
        ("unavailable", False, "unknown", "not known: no shell"),
    ],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, state: str, everybody: bool, expected: str, part: str) -> None:
    monkeypatch.setattr(sight_check, "try_a_stranger", lambda: (state, "no shell."))
    monkeypatch.setattr(sight_check, "sees_everybody", lambda: everybody)
    result = only(sight_check.check_memory(place()))
    assert result.state == expected and part in result.message
    assert any(line.startswith(f"uid {os.geteuid()}, with") for line in result.seen)
    assert bool(result.fix) == (expected != "ok")


def test_memory_as_another_user() -> None:
    """Really without root's rights, where this machine lets us become somebody else."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    code = (
        "import os, sys, types; sys.path.insert(0, sys.argv[1])\n"
        "from sglang_ext.doctor import sight_check\n"
        "import subprocess, time, sglang_ext.verify.live\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "print(next(sight_check.check_memory(None)).state, sight_check.sees_everybody())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, cwd="/", timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in (["note", "False"], ["warn", "False"])


def test_no_shell_to_try_it_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight_check, "STRANGER", "exit 3")
    assert sight_check.try_a_stranger()[0] == "unavailable"


def viewer(**how: Any) -> sight.Viewer:
    who = {"uid": 0, "gids": frozenset(), "capabilities": 0, "users": sight.INITIAL_USERS, "label": "", "scope": 0}
    return sight.Viewer(**who | {"hidepid": "", "proc_gid": 0} | how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uid", "capabilities", "everybody"),
    [
        (0, "000001ffffffffff", True),
        (0, "00000000a80425fb", False),
        (1000, "0000000000080000", True),
        (1000, "0", False),
    ],
)
def test_root_without_the_capability_does_not_see_everybody(
    monkeypatch: pytest.MonkeyPatch, uid: int, capabilities: str, everybody: bool
) -> None:
    """As in a container by Docker's default (a80425fb): verify-env says so, and so does doctor."""
    monkeypatch.setattr(sight_check, "ourselves", lambda: viewer(uid=uid, capabilities=int(capabilities, 16)))
    monkeypatch.setattr(sight_check, "try_a_stranger", lambda: ("ok", ""))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert sight_check.sees_everybody() is everybody
    result = only(sight_check.check_memory(place()))
    assert result.state == ("ok" if everybody else "note")
    assert ("CAP_SYS_PTRACE" in result.fix) == (uid == 0 and not everybody)
    assert any(line == f"uid {uid}, {'with' if everybody else 'without'} CAP_SYS_PTRACE" for line in result.seen)


def test_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    for how, state in (
        ({"hidepid": "2"}, "warn"),
        ({"hidepid": "2", "capabilities": sight.SYS_PTRACE}, "ok"),
        ({"hidepid": "2", "proc_gid": 7, "gids": frozenset({7})}, "ok"),
        ({"hidepid": ""}, "ok"),
    ):
        monkeypatch.setattr(sight, "ourselves", lambda how=how: viewer(**how))
        result = only(sight_check.check_proc(place()))
        assert result.state == state and ("hidepid=2" in result.message) == (state == "warn")
    monkeypatch.setattr(sight_check, "text_of", lambda path: None)
    assert only(sight_check.check_proc(place())).state == "fail"


def test_without_proc_nobody_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "status", lambda pid: {})
    assert sight_check.sees_everybody() is False


# Switches.


@pytest.mark.parametrize(("value", "state"), [("0", "fail"), ("require", "ok"), ("off", "warn"), ("", "ok")])
def test_switch(value: str, state: str) -> None:
    result = only(sight_check.check_switch(place(**({"SGLANG_EXT": value} if value else {}))))
    assert result.state == state and bool(result.fix) == (state != "ok")


def test_a_run_left_over_in_the_shell() -> None:
    _, left = sight_check.check_switch(place(SGLANG_EXT_RUN_DIR="/run/x"))
    assert left.state == "warn" and left.fix == "run: unset SGLANG_EXT_RUN_DIR"


def test_upstreams_plugins(tmp_path: Path) -> None:
    folder = tmp_path / "smg-1.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text(
        "[console_scripts]\nx = a:b\n[sglang.srt.plugins]\nsmg = smg:load\nother = o:l\n"
    )
    assert only(sight_check.check_plugins(place(tmp_path))).state == "ok"
    result = only(sight_check.check_plugins(place(tmp_path, SGLANG_PLUGINS="smg")))
    assert result.state == "note" and "other will not be loaded" in result.message
    result = only(sight_check.check_plugins(place(tmp_path, SGLANG_PLUGINS="smg, mine")))
    assert result.state == "warn" and "called mine" in result.message and "other, smg" in result.fix


def test_sudo() -> None:
    assert only(sight_check.check_sudo(place())).state == "ok"
    lost = only(sight_check.check_sudo(place(SUDO_USER="me")))
    assert lost.state == "warn" and "--preserve-env" in lost.fix
    assert only(sight_check.check_sudo(place(SUDO_USER="me", NCCL_PROTO="LL"))).state == "note"


# Leftovers.


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("SGLANG_EXT_CACHE_DIR", str(tmp_path / "cache"))
    return runtime / "sglang-ext"


@contextlib.contextmanager
def sleeper(**environ: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], env=os.environ | environ)
    try:
        while process.poll() is None and sight_name(process.pid) != "sleep":
            time.sleep(0.005)
        yield process
    finally:
        process.kill()
        process.wait()


def disown(run: RunDirectory) -> str:
    """Its owner is gone: as after a launcher that was killed. Returns the run id."""
    record = run.read("run.json")
    assert record is not None
    record["owner"]["start_time"] += 1
    run.write("run.json", record)
    return str(record["id"])


def test_no_runs_and_living_ones(base: Path) -> None:
    assert only(leftovers.check_runs(place())).state == "ok"
    new_run(decide(None, (), (), {}), mode="launcher", policy="strict")
    result = only(leftovers.check_runs(place()))
    assert result.state == "ok" and "1 running" in result.message


def test_a_run_whose_owner_is_gone_and_its_processes(base: Path) -> None:
    """By recorded identity, and by the run id a process was started with; a reused pid is nobody's; nothing is touched."""
    run = new_run(decide(None, (), (), {}), mode="launcher", policy="strict").directory
    run_id = disown(run)
    result = only(leftovers.check_runs(place()))
    assert result.state == "note" and ": 1; a later" in result.message and result.seen == (run.path,)
    with sleeper() as recorded, sleeper(SGLANG_EXT_RUN_ID=run_id) as carrying, sleeper() as stranger:
        for process, shift in ((recorded, 0), (stranger, 1)):
            found = stat(process.pid)
            assert found is not None
            run.write(f"workers/{process.pid}.json", {"pid": process.pid, "start_time": found.start_time + shift})
        alive, dead = leftovers.check_runs(place())
        assert (alive.state, dead.state) == ("warn", "note")
        assert {int(line.split()[1].rstrip(",")) for line in alive.seen} == {recorded.pid, carrying.pid}
        assert all(process.poll() is None for process in (recorded, carrying, stranger))
    assert Path(run.path).is_dir()


def test_a_shell_with_a_run_id_left_over_is_no_process_of_that_run(base: Path) -> None:
    run_id = disown(new_run(decide(None, (), (), {}), mode="launcher", policy="strict").directory)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sglang_ext.doctor import leftovers\n"
        "print(*(r.state for r in leftovers.check_runs(None)))\n"
    )
    environ = os.environ | {"SGLANG_EXT_RUN_ID": run_id}
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["note"]


def test_runs_of_another_pid_namespace_are_not_called_dead(base: Path) -> None:
    run = new_run(decide(None, (), (), {}), mode="launcher", policy="strict").directory
    disown(run)
    run.write("run.json", (run.read("run.json") or {}) | {"pid_namespace": "pid:[1]"})
    result = only(leftovers.check_runs(place()))
    assert result.state == "note" and "another pid namespace" in result.message and result.seen == (run.path,)


def test_what_is_no_run_directory(base: Path) -> None:
    base.mkdir(mode=0o700)
    (base / "notes").mkdir(mode=0o700)
    (base / "open").mkdir()
    (base / "open").chmod(0o755)
    (base / "torn").mkdir(mode=0o700)
    (base / "torn" / "run.json").write_text("{")
    result = only(leftovers.check_runs(place()))
    assert result.state == "note" and ": 3" in result.message and len(result.seen) == 3
    base.chmod(0o777)  # the check on the place says what is wrong with it
    assert only(leftovers.check_runs(place())).state == "ok"


def orphan(title: str) -> int:
    """A process with this title whose parent has ended. Returns its pid."""
    code = "import sys, time; print(__import__('os').getpid(), flush=True); time.sleep(60)"
    shell = f'exec -a {title!r} {sys.executable} -c "{code}" &'
    done = subprocess.Popen(["bash", "-c", shell], stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    pid = int(done.stdout.readline())
    done.wait()
    return pid


def test_orphans(base: Path) -> None:
    pid = orphan("sglang::scheduler_TP1")
    try:
        deadline = time.monotonic() + 5
        while (found := stat(pid)) is not None and found.ppid != 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        if found is None or found.ppid != 1:
            pytest.skip("orphans go to a subreaper here, not to pid 1")
        result = only(leftovers.check_orphans(place()))
        assert result.state == "warn" and str(pid) in result.fix
        assert any(
            line.startswith(f"pid {pid}, start time {found.start_time}: sglang::scheduler_TP1") for line in result.seen
        )
        assert is_alive(found.identity)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_ext.verify.discover.find_servers", list)
    assert only(leftovers.check_orphans(place())).state == "ok"


def test_overlays_of_others(base: Path, tmp_path: Path) -> None:
    assert only(leftovers.check_overlays(place())).state == "ok"
    old = tmp_path / "cache" / "overlay" / "0123456789abcdef01234567"
    (old / "sglang").mkdir(parents=True)
    (old / "sglang" / "x.py").write_bytes(bytes(1 << 20))
    (tmp_path / "cache" / "overlay" / "0123.4567.tmp").mkdir()
    result = only(leftovers.check_overlays(place()))
    assert result.state == "note" and ": 2, 1.0 MiB" in result.message
    assert old.is_dir()


def test_overlays_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_EXT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert only(leftovers.check_overlays(place())).state == "unknown"
    assert json.dumps(only(leftovers.check_overlays(place())))  # plain data
