"""The run directory: private and ours, written whole or not at all, and believed only when it is fit to be."""

from __future__ import annotations

import fcntl
import json
import os
import stat as stat_bits
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import ContractError
from sglang_ext.delivery.context import Context, new_run, open_run
from sglang_ext.delivery.old_runs import ENDED, KEEP_DEAD_RUNS, is_elsewhere, mark_ended, prune
from sglang_ext.run import directory as runs
from sglang_ext.run.directory import RunDirectory, RunError, begin, check_trusted, default_base
from sglang_ext.run.process import myself, namespace

ROOT_USER = os.geteuid() == 0
NOBODY = 65534


def mode(path: str | Path) -> int:
    return stat_bits.S_IMODE(os.lstat(path).st_mode)


def create(path: Path) -> RunDirectory:
    return RunDirectory.create(str(path / "run"))


def launch(path: Path, *sets: str) -> Context:
    return new_run(decide(None, sets, [], {}), mode="launcher", policy="strict", path=str(path / "run"))


# --- trust ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o277])
def test_what_we_create_is_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    # umask is the process's own: a child sets it.
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from sglang_ext.run.directory import RunDirectory
os.umask({umask})
directory = RunDirectory.create(sys.argv[1])
directory.write("run.json", {{"a": 1}})
directory.write("workers/1.json", {{"a": 1}})
"""
    path = tmp_path / "run"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(path)], check=True)
    check_trusted(str(path))
    assert [mode(path / name) for name in ("", "workers", "refused")] == [0o700] * 3
    for name in ("run.json", "workers/1.json"):
        assert mode(path / name) & 0o077 == 0
    assert RunDirectory.open(str(path)).read("run.json") == {"a": 1}


@pytest.mark.parametrize("bits", [0o777, 0o755, 0o750, 0o701, 0o720])
def test_a_directory_open_to_others_is_not_believed(tmp_path: Path, bits: int) -> None:
    path = create(tmp_path).path
    os.chmod(path, bits)
    with pytest.raises(RunError, match=f"has mode {bits:04o}, expected 0700; name one that a launch has made"):
        RunDirectory.open(path)


def test_a_link_a_file_and_nothing_are_not_believed(tmp_path: Path) -> None:
    path = create(tmp_path).path
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "file").write_text("{}")
    for name in ("link", "file"):
        with pytest.raises(RunError, match="is not a directory but a link or file"):
            RunDirectory.open(str(tmp_path / name))
    with pytest.raises(RunError, match="cannot be read"):
        RunDirectory.open(str(tmp_path / "nothing"))


def test_a_directory_is_made_only_once(tmp_path: Path) -> None:
    path = create(tmp_path).path
    with pytest.raises(RunError, match="exists already; name one that does not"):
        RunDirectory.create(path)
    with pytest.raises(RunError, match="cannot be created"):
        RunDirectory.create(str(tmp_path / "no" / "such" / "parent"))


if ROOT_USER:

    def as_nobody(folder: Path, function: Callable[[], None]) -> int:
        """The exit status of ``function`` in a fork that runs in ``folder`` as nobody: 0, or 1 where it raised."""
        folder.chmod(0o755)  # the folders above may stay closed: it is entered before
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.chdir(folder)
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                function()
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_somebody_else_s_directory_is_not_believed(tmp_path: Path) -> None:
        path = create(tmp_path).path

        def refused() -> None:
            with pytest.raises(RunError, match="belongs to uid 0, expected 65534"):
                check_trusted("run")

        assert as_nobody(tmp_path, refused) == 0
        # Root may look into anybody's.
        os.chown(path, NOBODY, NOBODY)
        check_trusted(path)
        assert as_nobody(tmp_path, lambda: check_trusted("run")) == 0

    def test_a_file_of_neither_us_nor_the_owner_is_not_believed(tmp_path: Path) -> None:
        directory = create(tmp_path)
        directory.write("run.json", {"a": 1})
        os.chown(directory.file("run.json"), NOBODY, NOBODY)
        with pytest.raises(RunError, match=f"belongs to uid {NOBODY}, not to the run's owner"):
            directory.read("run.json")
        os.chown(directory.path, NOBODY, NOBODY)
        assert directory.read("run.json") == {"a": 1}


# --- writing and reading ----------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    directory = create(tmp_path)
    value = {"text": "ä\udcff", "number": 1.5, "none": None, "list": [{"a": "b"}]}
    directory.write("run.json", value)
    directory.write("workers/7.json", {"pid": 7})
    assert directory.read("run.json") == value
    assert RunDirectory.open(directory.path).read("workers/7.json") == {"pid": 7}
    assert directory.read("server.json") is None
    assert directory.names("workers") == ["workers/7.json"]
    assert directory.names("nowhere") == []
    assert mode(directory.file("run.json")) == 0o600


def everything_below(path: str) -> set[str]:
    return {os.path.relpath(os.path.join(where, name), path) for where, _, names in os.walk(path) for name in names}


@pytest.mark.parametrize("value", [{"a": {1, 2}}, {"a": object()}, {"a": [], "b": b"bytes"}])
def test_a_value_that_is_no_json_leaves_the_old_file_and_no_other(tmp_path: Path, value: dict[str, Any]) -> None:
    directory = create(tmp_path)
    directory.write("run.json", {"a": 1})
    with pytest.raises(TypeError):
        directory.write("run.json", value)
    assert directory.read("run.json") == {"a": 1}
    assert everything_below(directory.path) == {"run.json"}


def test_a_write_that_fails_leaves_no_scratch_file(tmp_path: Path) -> None:
    directory = create(tmp_path)
    os.mkdir(directory.file("server.json"))  # a folder in its place: the rename fails, for root too
    with pytest.raises(RunError, match=r"server\.json cannot be written \(Is a directory\)"):
        directory.write("server.json", {"a": 1})
    assert everything_below(directory.path) == set()
    with pytest.raises(RunError, match="cannot be written"):
        directory.write("no/such/folder.json", {"a": 1})


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    directory = create(tmp_path)
    directory.write("run.json", {"n": 0, "text": ""})
    done = threading.Event()

    def write() -> None:
        for number in range(1, 200):
            directory.write("run.json", {"n": number, "text": "x" * number * 50})
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = []
    while not done.is_set():
        value = directory.read("run.json")
        assert value is not None and len(value["text"]) == value["n"] * 50
        seen.append(value["n"])
    thread.join()
    assert seen == sorted(seen) and directory.read("run.json")["n"] == 199  # type: ignore[index]


def put_text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def put_link(path: Path) -> None:
    path.with_name("elsewhere").write_text('{"a": 1}')
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (put_text('{"a": 1'), "holds no whole JSON object"),
        (put_text(""), "holds no whole JSON object"),
        (put_text("[1]"), "holds no whole JSON object"),
        (put_text("null"), "holds no whole JSON object"),
        (put_text("[" * 100_000), "holds no whole JSON object"),
        (lambda path: path.write_bytes(b'{"a": "\xff"}'), "holds no whole JSON object"),
        (put_text('{"a": "' + "x" * runs.BIGGEST + '"}'), "holds no whole JSON object"),
        (put_link, "cannot be read"),
        (lambda path: path.mkdir(), "is no regular file"),
        (lambda path: os.mkfifo(path), "is no regular file"),
    ],
    ids=["torn", "empty", "list", "null", "deep", "no text", "huge", "link", "folder", "fifo"],
)
def test_what_is_no_whole_file_of_ours_is_not_believed(tmp_path: Path, put: Callable[[Path], object], why: str) -> None:
    directory = create(tmp_path)
    put(Path(directory.file("run.json")))
    with pytest.raises(RunError, match=why) as error:
        directory.read("run.json")
    assert directory.file("run.json") in str(error.value)


def test_reading_leaks_no_descriptor(tmp_path: Path) -> None:
    directory = create(tmp_path)
    directory.write("good.json", {})
    Path(directory.file("torn.json")).write_text("{")
    os.mkdir(directory.file("folder.json"))

    def read_all() -> None:
        directory.read("good.json")
        for name in ("torn.json", "folder.json"):
            with pytest.raises(RunError):
                directory.read(name)

    read_all()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read_all()
    assert len(os.listdir("/proc/self/fd")) == before


# --- where they live, and for how long --------------------------------------------------------------------


def test_default_base_is_per_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_base() == str(tmp_path / "sglang-ext")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert default_base() == f"/tmp/sglang-ext-{os.geteuid()}"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_base() == f"/tmp/sglang-ext-{os.geteuid()}"


def test_fresh_runs_have_names_of_their_own_below_a_private_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    paths = [RunDirectory.create().path for _ in range(5)]
    assert len(set(paths)) == 5 and {os.path.dirname(path) for path in paths} == {str(tmp_path / "sglang-ext")}
    assert mode(tmp_path / "sglang-ext") == 0o700
    os.chmod(tmp_path / "sglang-ext", 0o777)
    with pytest.raises(RunError, match="has mode 0777"):
        RunDirectory.create()


def dead_owner() -> tuple[int, int]:
    me = myself()
    return me.pid, me.start_time - 1  # the pid lives, that process does not


def make_run(base: Path, name: str, age: float, owner: tuple[int, int], *, ended: bool = True, **more: object) -> Path:
    """A run of long ago that nothing has been written to since; ``ended``: its end was noted then."""
    directory = RunDirectory.create(str(base / name))
    run = begin(directory, mode="launcher", policy="strict", dry_run=False, owner=owner)
    directory.write("run.json", run | {"created": time.time() - age} | more)
    directory.write("workers/1.json", {})
    if ended:
        mark_ended(directory)
    make_old(base / name, age)
    return base / name


def make_old(path: Path, age: float) -> None:
    for file in path.rglob("*"):
        os.utime(file, (time.time() - age,) * 2)


def test_prune_drops_old_runs_of_the_dead_and_nothing_else(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    old = KEEP_DEAD_RUNS + 60
    drop = make_run(base, "old-dead", old, dead_owner())
    keep = [
        make_run(base, "old-living", old, tuple(myself())),  # type: ignore[arg-type]
        make_run(base, "young-dead", KEEP_DEAD_RUNS - 60, dead_owner()),
    ]
    odd = make_run(base, "odd", old, dead_owner())
    RunDirectory(str(odd)).write("run.json", {"created": "yesterday", "owner": None})
    torn = make_run(base, "torn", old, dead_owner())
    (torn / "run.json").write_text("{")
    opened = make_run(base, "opened", old, dead_owner())
    opened.chmod(0o755)
    stranger = base / "not-a-run"
    stranger.mkdir(mode=0o700)
    target = make_run(tmp_path, "linked", old, dead_owner())
    (base / "link").symlink_to(target)
    (base / "file").write_text("x")
    prune(str(base))
    assert not drop.exists()
    for path in (*keep, odd, torn, opened, stranger, target, base / "file"):
        assert path.exists(), path


def test_a_run_that_served_for_days_is_kept_for_a_day_after_its_end(tmp_path: Path) -> None:
    """Its directory says nothing of when a killed server ended: the launch that finds it so, a restart, notes it."""
    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    run = make_run(base, "served", 3 * KEEP_DEAD_RUNS, dead_owner(), ended=False)
    prune(str(base))
    assert (run / ENDED).exists() and (run / ENDED).stat().st_size == 0
    prune(str(base))
    assert run.exists()
    make_old(run, KEEP_DEAD_RUNS - 60)
    mark_ended(RunDirectory(str(run)))  # noted once
    prune(str(base))
    assert run.exists()
    make_old(run, KEEP_DEAD_RUNS + 60)
    prune(str(base))
    assert not run.exists()


def test_a_run_that_is_still_written_to_is_kept(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    run = make_run(base, "logs", 3 * KEEP_DEAD_RUNS, dead_owner())
    (run / "nccl.host.1.log").write_text("a worker that has outlived its launcher")
    prune(str(base))
    assert run.exists()


def test_a_run_of_another_pid_namespace_is_left_alone(tmp_path: Path) -> None:
    """Containers that share /tmp: the owner's pid means nothing here."""
    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    age = 3 * KEEP_DEAD_RUNS
    away = make_run(base, "container", age, dead_owner(), pid_namespace="pid:[1]")
    here = make_run(base, "here", age, dead_owner())
    untold = make_run(base, "earlier-release", age, dead_owner(), pid_namespace="")
    assert (RunDirectory(str(here)).read("run.json") or {})["pid_namespace"] == namespace("self", "pid") != ""
    assert is_elsewhere({"pid_namespace": "pid:[1]"}) and not is_elsewhere({})
    prune(str(base))
    assert away.exists() and not here.exists() and not untold.exists()


def test_prune_trusts_no_base_that_others_can_write_to(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    run = make_run(base, "old-dead", KEEP_DEAD_RUNS + 60, dead_owner())
    base.chmod(0o777)
    prune(str(base))
    assert run.exists()
    prune(str(tmp_path / "nowhere"))
    base.chmod(0o700)
    prune(str(base))
    assert not run.exists()


# --- a run ------------------------------------------------------------------------------------------------


def test_a_run_is_read_as_it_was_begun(tmp_path: Path) -> None:
    made = launch(tmp_path, "NCCL_PROTO=LL", "NCCL_ALGO=Ring")
    read = open_run(made.directory.path)
    assert (read.id, read.contract, read.launched, read.strict, read.dry_run) == (
        made.id,
        made.contract,
        True,
        True,
        False,
    )
    assert read.run["owner"] == myself()._asdict()
    environment: dict[str, str] = {}
    read.mark(environment)
    assert environment == {
        "SGLANG_EXT_RUN_DIR": made.directory.path,
        "SGLANG_EXT_RUN_ID": made.id,
        "SPT_NOENV": "1",
    }


def test_two_runs_in_one_place_have_different_ids(tmp_path: Path) -> None:
    first = launch(tmp_path).id
    os.rename(tmp_path / "run", tmp_path / "moved")
    assert launch(tmp_path).id != first


def tamper_value(stored: dict[str, Any]) -> None:
    stored["variables"]["NCCL_PROTO"]["want"] = "Simple"


def tamper_drop(stored: dict[str, Any]) -> None:
    del stored["variables"]["NCCL_PROTO"]


def tamper_add(stored: dict[str, Any]) -> None:
    stored["variables"]["NCCL_DEBUG"] = {"want": None, "source": "flag"}


def tamper_digest(stored: dict[str, Any]) -> None:
    stored["digest"] = "0" * 64


@pytest.mark.parametrize("tamper", [tamper_value, tamper_drop, tamper_add, tamper_digest])
def test_a_tampered_contract_is_an_error(tmp_path: Path, tamper: Callable[[dict[str, Any]], None]) -> None:
    context = launch(tmp_path, "NCCL_PROTO=LL", "NCCL_ALGO=Ring")
    path = Path(context.directory.file("contract.json"))
    stored = json.loads(path.read_text())
    tamper(stored)
    path.write_text(json.dumps(stored))
    with pytest.raises(ContractError, match="expected the digest of its variables"):
        open_run(context.directory.path)


@pytest.mark.parametrize("missing", ["run.json", "contract.json"])
def test_a_run_without_its_files_is_none(tmp_path: Path, missing: str) -> None:
    context = launch(tmp_path, "NCCL_PROTO=LL")
    os.unlink(context.directory.file(missing))
    with pytest.raises(RunError, match="is no run directory of this sglang-ext"):
        open_run(context.directory.path)


def test_a_run_of_another_schema_is_none(tmp_path: Path) -> None:
    context = launch(tmp_path, "NCCL_PROTO=LL")
    context.directory.write("run.json", context.run | {"schema": "sglang-ext/run/0"})
    with pytest.raises(RunError, match="is no run directory of this sglang-ext"):
        open_run(context.directory.path)


def test_a_refusal_is_left_for_the_supervisor_and_said_in_one_sentence(tmp_path: Path) -> None:
    context = launch(tmp_path)
    exit_ = context.refuse("too_late", "NCCL_PROTO: too late; fix it")
    assert isinstance(exit_, SystemExit) and exit_.code == "sglang-ext: too_late: NCCL_PROTO: too late; fix it"
    (name,) = context.directory.names("refused")
    left = context.directory.read(name)
    assert left is not None
    assert (left["code"], left["message"], left["pid"]) == ("too_late", "NCCL_PROTO: too late; fix it", os.getpid())


def test_a_refusal_is_said_even_where_it_cannot_be_written(tmp_path: Path) -> None:
    context = launch(tmp_path)
    os.rmdir(context.directory.file("refused"))
    assert str(context.refuse("too_late", "why").code) == "sglang-ext: too_late: why"


def test_a_run_is_not_cleaned_away_while_it_is_held(tmp_path: Path) -> None:
    """As systemd-tmpfiles asks: a shared lock, without waiting (tmpfiles.d(5)). The lock goes with its process."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sglang_ext.run.directory import RunDirectory\n"
        "RunDirectory.create(sys.argv[2]).hold()\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    root, run = str(Path(__file__).resolve().parents[2]), str(tmp_path / "run")
    command = [sys.executable, "-c", code, root, run]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        handle = os.open(run, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        holder.communicate()
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(handle)
