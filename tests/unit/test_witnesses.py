"""The witnesses of one worker: real blocks of real processes, stored records of all kinds, and who may answer."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.delivery.context import new_run
from sglang_ext.run import attestation
from sglang_ext.run.directory import RunDirectory
from sglang_ext.run.process import stat
from sglang_ext.verify.witnesses import Block, dial, hear, look, parse_exec, read_exec, read_now, read_record

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
ROOT_USER = os.geteuid() == 0


@contextlib.contextmanager
def child(code: str, *words: object, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has printed its first line (kept in ``first``); it ends with the block."""
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        process.first = process.stdout.readline().strip()  # type: ignore[attr-defined]
        assert process.first, f"the child ended with status {process.wait(10)}"  # type: ignore[attr-defined]
        yield process
    finally:
        process.kill()
        process.communicate()


def as_another(function: Callable[[], Any]) -> Any:
    """``function()`` in a fork that is not allowed to look into a non-dumpable process: no longer root, if we are."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if ROOT_USER:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            with open(writer, "wb") as file:
                file.write(pickle.dumps(function()))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return pickle.loads(answer)


# --- exec: /proc/PID/environ ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (b"", "is empty"),
        (b"\0" * 500, "starts with 500 NULs"),
        # What SGLang leaves: it assigned NCCL_CUMEM_ENABLE before setproctitle, outside of the wiped piece.
        (b"\0" * 300 + b"NCCL_CUMEM_ENABLE=0\0NCCL_NVLS_ENABLE=0\0", "starts with 300 NULs"),
        (b"\0A=1\0", "starts with 1 NULs"),
        (b"XXXXXXXXXXXXXXXX\0\0\0\0NCCL_CUMEM_ENABLE=0\0", "is title text"),
        (b"duler_TP0\0\0\0", "is title text"),
        (b"no-equals\0A=1\0", "is title text"),
        (b"=value-without-name\0A=1\0", "is title text"),
    ],
)
def test_overwritten_block_says_nothing(raw: bytes, detail: str) -> None:
    block = parse_exec(raw)
    assert (block.state, block.values) == ("clobbered", {})
    assert detail in block.detail and "setproctitle" in block.detail
    for name in ("NCCL_CUMEM_ENABLE", "NCCL_PROTO", "A"):
        assert block.reading(name) == ("clobbered", None, block.detail)


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"A=1\0B=2\0", {"A": "1", "B": "2"}),
        (b"A=1\0B=2", {"A": "1", "B": "2"}),
        (b"A=1\0odd\0B=2\0", {"A": "1", "B": "2"}),
        (b"A=1\0A=2\0", {"A": "1"}),  # getenv gives the first
        (b"A=\0B=a=b\0", {"A": "", "B": "a=b"}),
        (b"A=\xff\xfe\0", {"A": "\udcff\udcfe"}),
        (b"A=x\ny\0B=\xc3\xa4\0", {"A": "x\ny", "B": "ä"}),
        (b"A=1\0\0\0B=2\0", {"A": "1", "B": "2"}),
    ],
)
def test_intact_block(raw: bytes, values: dict[str, str]) -> None:
    block = parse_exec(raw)
    assert (block.state, block.values) == ("ok", values)
    assert block.reading("A")[:2] == ("value", values["A"])
    assert block.reading("NOT_THERE")[:2] == ("absent", None)


def test_exec_shows_the_start_and_live_shows_now() -> None:
    code = "import os, sys; os.environ['NCCL_ALGO'] = 'Tree'; print('ready', flush=True); sys.stdin.read()"
    with child(code, env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}) as process:
        started, now = read_exec(process.pid), read_now(process.pid)
    assert started.values == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    assert (now.reading("NCCL_ALGO").value, now.reading("NCCL_PROTO").value) == ("Tree", "LL")
    assert now.reading("NCCL_DEBUG").state == "absent"


# Does to itself what setproctitle does: moves the strings away, then overwrites where they were.
CLOBBER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
for name, value in list(os.environb.items()):
    libc.setenv(name, value, 1)
with open("/proc/self/stat") as file:
    fields = file.read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_that_overwrote_its_block_is_still_seen_live() -> None:
    with child(CLOBBER, env={"NCCL_PROTO": "LL", "LC_ALL": "C"}) as process:
        started, now = read_exec(process.pid), read_now(process.pid)
    assert started.state == "clobbered" and "NULs" in started.detail
    assert now.reading("NCCL_PROTO").value == "LL"


def test_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert read_exec(process.pid) == Block("gone", {}, "the process has ended")
    assert read_now(process.pid).state == "gone"


# Closed to everybody without CAP_SYS_PTRACE, its own user included.
NON_DUMPABLE = """
import ctypes, sys
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def test_denied_is_denied_not_absent() -> None:
    with child(NON_DUMPABLE, env={"NCCL_PROTO": "LL"}) as process:
        pid = process.pid
        started, now = as_another(lambda: (read_exec(pid), read_now(pid)))
    for block in (started, now):
        assert (block.state, block.values) == ("denied", {})
        assert block.reading("NCCL_PROTO")[:2] == ("denied", None)
        assert not block.reading("NCCL_PROTO").says
    assert "permission denied" in started.detail


# --- attested: the stored record --------------------------------------------------------------------------


def run_directory(path: Path) -> RunDirectory:
    contract = decide(None, ["NCCL_PROTO=LL", "MY_KNOB=1"], ["NCCL_P2P_DISABLE"], {})
    return new_run(contract, mode="launcher", policy="strict", path=str(path / "run")).directory


def record_of_us() -> dict[str, Any]:
    me = stat(os.getpid())
    assert me is not None
    return {
        "schema": attestation.SCHEMA,
        "pid": me.pid,
        "start_time": me.start_time,
        "rank": {"node": 0, "dp": None, "pp": 0, "tp": 1},
        "hook": {"mode": "overlay"},
        "entered": {"time": 1.0, "values": {"NCCL_PROTO": "LL"}, "repaired": []},
    }


def read_of_us(directory: RunDirectory) -> tuple[dict[str, Any] | None, str]:
    me = stat(os.getpid())
    assert me is not None
    return read_record(directory, me.pid, me.start_time)


def test_a_good_record_is_believed(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    assert read_of_us(directory) == (None, "")
    directory.write(attestation.record_name(os.getpid()), record_of_us())
    assert read_of_us(directory) == (record_of_us(), "")
    assert read_record(None, os.getpid(), 1) == (None, "")


@pytest.mark.parametrize(
    "change",
    [
        {"start_time": 1},  # of an earlier process with this pid
        {"pid": 1},
        {"schema": "sglang-ext/attestation/0"},
        {"schema": None},
        {"entered": None},
        {"entered": {"values": None, "repaired": []}},
        {"entered": {"values": {}}},
        {"entered": {"values": {}, "repaired": "NCCL_PROTO"}},
        {"rank": [1]},
        {"hook": None},
        {"hook": "overlay"},
    ],
    ids=repr,
)
def test_a_record_of_another_process_or_shape_is_not(tmp_path: Path, change: dict[str, Any]) -> None:
    directory = run_directory(tmp_path)
    directory.write(attestation.record_name(os.getpid()), record_of_us() | change)
    record, fault = read_of_us(directory)
    assert record is None and "is not of this process" in fault


def put_torn(path: Path) -> None:
    path.write_text(json.dumps(record_of_us())[:-20])


def put_list(path: Path) -> None:
    path.write_text("[]")


def put_nothing(path: Path) -> None:
    path.write_text("")


def put_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe{}")


def put_deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def put_link(path: Path) -> None:
    path.with_suffix(".elsewhere").write_text(json.dumps(record_of_us()))
    path.symlink_to(path.with_suffix(".elsewhere"))


def put_folder(path: Path) -> None:
    path.mkdir()


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_foreign(path: Path) -> None:
    path.write_text(json.dumps(record_of_us()))
    os.chown(path, NOBODY, NOBODY)


BAD_FILES = [put_torn, put_list, put_nothing, put_bytes, put_deep, put_link, put_folder, put_fifo]


@pytest.mark.parametrize("put", [*BAD_FILES, *([put_foreign] if ROOT_USER else [])])
def test_a_file_that_is_no_record_of_ours_is_a_fault(tmp_path: Path, put: Callable[[Path], None]) -> None:
    directory = run_directory(tmp_path)
    put(Path(directory.file(attestation.record_name(os.getpid()))))
    record, fault = read_of_us(directory)
    assert record is None and f"{os.getpid()}.json" in fault


# --- attested: the worker's answer, now -------------------------------------------------------------------

WORKER = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from sglang_ext.delivery.context import open_run
from sglang_ext.delivery.witness import Witness, read_now
context = open_run(sys.argv[2])
witness = Witness(context, {"node": 0, "dp": None, "pp": 0, "tp": 1})
witness.entered(read_now(context), [])
witness.serve()
libc = ctypes.CDLL(None)
print("ready", flush=True)
for line in sys.stdin:
    how, name, *value = line.split()
    if how == "setenv":
        libc.setenv(name.encode(), value[0].encode(), 1)
    elif how == "unsetenv":
        libc.unsetenv(name.encode())
    else:
        os.environ[name] = value[0]
    print("done", flush=True)
"""


def tell(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_a_worker_answers_with_what_getenv_gives_now(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    start = {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring", "HF_TOKEN": "hf_secret", "SOME_PATH": "/x", "MY_KNOB": "1"}
    with child(WORKER, directory.path, env=start) as process:
        started = stat(process.pid)
        assert started is not None
        record, fault = read_record(directory, process.pid, started.start_time)
        assert fault == "" and record is not None
        asked = {"MY_KNOB": "1", "NCCL_ALGO": "Ring", "NCCL_P2P_DISABLE": None, "NCCL_PROTO": "Simple"}
        assert record["entered"]["values"] == asked
        answer, why = attestation.ask(directory, process.pid)
        assert why == "" and answer is not None
        assert (answer["values"], answer["pid"]) == (asked, process.pid)

        tell(process, "setenv NCCL_PROTO LL")  # behind Python's back, as nccl.conf or a C library would
        tell(process, "environ NCCL_P2P_DISABLE 1")
        tell(process, "unsetenv NCCL_ALGO")
        tell(process, "setenv NCCL_DEBUG INFO")
        seen = look(directory, process.pid, started.start_time, dial(directory, process.pid))
    assert seen.attested.values == {"MY_KNOB": "1", "NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL"}
    assert {n: seen.live.values.get(n) for n in ("NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_ALGO", "NCCL_DEBUG")} == {
        "NCCL_PROTO": "LL",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_ALGO": None,
        "NCCL_DEBUG": "INFO",
    }
    assert seen.exec.values == start
    assert seen.record is not None and seen.record["entered"]["values"] == asked


def test_a_worker_speaks_for_the_names_it_was_asked_for_only(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    with child(WORKER, directory.path, env={"MY_KNOB": "1", "OTHER_KNOB": "2"}) as process:
        started = stat(process.pid)
        assert started is not None
        seen = look(directory, process.pid, started.start_time, dial(directory, process.pid))
    assert seen.attested.reading("MY_KNOB").value == "1"  # of the run's contract
    assert seen.attested.reading("NCCL_P2P_DISABLE").state == "absent"  # of the run's contract
    assert seen.attested.reading("NCCL_ALGO").state == "absent"  # every tuning variable is told
    # It was never asked for this one: absent would be a lie, and with live denied a wrong PASS of --absent.
    assert seen.attested.reading("OTHER_KNOB").state == "not_read"
    assert seen.live.reading("OTHER_KNOB").value == "2"


def test_a_worker_answers_again_and_again_and_to_many(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    answers: list[tuple[dict[str, Any] | None, str]] = []
    with child(WORKER, directory.path, env={"NCCL_PROTO": "LL"}) as process:
        # Somebody who asks and goes away without listening must not cost the next one the answer.
        handle, path = attestation.short_path(directory, attestation.socket_name(process.pid))
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(path)
        os.close(handle)
        threads = [
            threading.Thread(target=lambda: answers.append(attestation.ask(directory, process.pid, 5.0)))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(answer or {}).get("values", {}).get("NCCL_PROTO") for answer, _ in answers] == ["LL"] * 6


def test_the_socket_works_at_the_end_of_a_long_path_and_is_private(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    directory = run_directory(deep)
    with child(WORKER, directory.path, env={"NCCL_PROTO": "LL"}) as process:
        answer, why = attestation.ask(directory, process.pid)
        mode = os.stat(directory.file(attestation.socket_name(process.pid))).st_mode
    assert answer is not None and answer["values"]["NCCL_PROTO"] == "LL", why
    assert mode & 0o777 == 0o600


@contextlib.contextmanager
def listening(directory: RunDirectory, pid: int, serve: Callable[[socket.socket], None] | None) -> Iterator[None]:
    """This process listens on the socket of ``pid``; ``serve`` handles one connection, None never accepts any."""
    handle, path = attestation.short_path(directory, attestation.socket_name(pid))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.close(handle)
    listener.listen(1)

    def loop() -> None:
        # An asker may be gone, and with it the test's listener, before this thread gets a turn.
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                assert serve is not None
                serve(connection)

    thread = threading.Thread(target=loop, daemon=True)
    if serve is not None:
        thread.start()
    try:
        yield
    finally:
        listener.close()
        if serve is not None:
            thread.join(5)


GOOD = json.dumps({"values": {"NCCL_PROTO": "LL"}}).encode()


def test_nobody_else_may_answer_for_a_worker(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    victim = subprocess.Popen(["sleep", "60"])
    try:
        with listening(directory, victim.pid, lambda connection: connection.sendall(GOOD)):
            answer, why = attestation.ask(directory, victim.pid)
    finally:
        victim.kill()
        victim.wait()
    assert answer is None and why == f"process {os.getpid()} listens in its place"


def test_the_worker_itself_may(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    with listening(directory, os.getpid(), lambda connection: connection.sendall(GOOD)):
        assert attestation.ask(directory, os.getpid()) == ({"values": {"NCCL_PROTO": "LL"}}, "")


def test_no_answer_times_out(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    began = time.monotonic()
    with listening(directory, os.getpid(), None):
        answer, why = attestation.ask(directory, os.getpid(), 0.2)
    assert answer is None and why == "it did not answer within 0.2 s"
    assert 0.2 <= time.monotonic() - began < 2.0


def test_an_answer_in_drops_times_out_as_a_whole(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not stop.wait(0.05):
            connection.sendall(b" ")

    began = time.monotonic()
    with listening(directory, os.getpid(), drip):
        answer, why = attestation.ask(directory, os.getpid(), 0.3)
        stop.set()
    assert answer is None and why == "it did not answer within 0.3 s"
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "was cut off"),
        (GOOD[:-3], "was cut off"),
        (b"\xff", "was cut off"),
        (b"[" * 100_000, "was cut off"),
        (b"[]", "another shape"),
        (b"{}", "another shape"),
        (b'{"values": ["NCCL_PROTO"]}', "another shape"),
        (b" " * (attestation.LARGEST_ANSWER + 70_000) + GOOD, "has no end"),
    ],
    ids=["nothing", "torn", "no text", "deep", "list", "no values", "values a list", "endless"],
)
def test_an_answer_that_is_none(tmp_path: Path, sent: bytes, why: str) -> None:
    directory = run_directory(tmp_path)
    with listening(directory, os.getpid(), lambda connection: connection.sendall(sent)):
        answer, found = attestation.ask(directory, os.getpid())
    assert answer is None and why in found


def test_nobody_listens(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    with listening(directory, os.getpid(), None):
        pass  # it has ended; its socket file is still there
    assert attestation.ask(directory, os.getpid()) == (None, "its socket does not answer (Connection refused)")
    assert attestation.ask(directory, 1) == (None, "its socket does not answer (No such file or directory)")
    nowhere = RunDirectory(str(tmp_path / "nowhere"))
    assert attestation.ask(nowhere, 1) == (
        None,
        "its run directory cannot be opened (No such file or directory)",
    )


def test_without_a_record_nobody_is_asked(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    with listening(directory, os.getpid(), lambda connection: connection.sendall(GOOD)):
        assert hear(dial(directory, os.getpid()), None)[0].state == "unavailable"
    os.unlink(directory.file(attestation.socket_name(os.getpid())))
    with listening(directory, os.getpid(), lambda connection: connection.sendall(GOOD)):
        assert dial(None, os.getpid()) is None and hear(None, record_of_us())[0].state == "unavailable"
        helper = look(directory, os.getpid(), 0, None, ask=False).attested
        assert helper == Block("unavailable", {}, "helpers attest nothing")
        assert hear(dial(directory, os.getpid()), record_of_us())[0].values == {"NCCL_PROTO": "LL"}
