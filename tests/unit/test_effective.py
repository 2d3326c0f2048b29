"""NCCL's own log as a witness: whose log is believed, and what a line or its absence says."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.run import process
from sglang_ext.verify.effective import expand, read_log
from sglang_ext.verify.judge import judge
from sglang_ext.verify.witnesses import Reading

PID = os.getpid()
HOST = socket.gethostname().partition(".")[0]
BASE = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"}


def line(text: str, pid: int = PID) -> str:
    return f"{HOST}:{pid}:{pid} [0] NCCL INFO {text}\n"


LOG = (
    line("NCCL version 2.27.7+cuda12.9")
    + line("NCCL_PROTO set by environment to LL")
    + line("NCCL_BUFFSIZE set by environment to 4194304.")
    + line("ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x2 - Init COMPLETE")
)


def log_of(tmp_path: Path, text: str = LOG, **environment: str):  # type: ignore[no-untyped-def]
    (tmp_path / f"{PID}.log").write_text(text)
    return read_log(PID, PID, {**BASE, "NCCL_DEBUG_FILE": f"{tmp_path}/%p.log", **environment}, neighbours=2)


def test_what_a_line_says(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    assert (log.state, log.version, log.whole) == ("ok", (2, 27, 7), True)
    assert log.reading("NCCL_PROTO")[:2] == ("value", "LL")
    assert log.reading("NCCL_BUFFSIZE")[:2] == ("value", "4194304")


def test_absence_counts_only_where_nccl_must_have_read_it(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    assert log.reading("NCCL_ALGO").state == "absent"  # read for every communicator of two ranks
    assert log.reading("NCCL_IB_HCA").state == "not_read"  # only where there is InfiniBand
    assert log_of(tmp_path, NCCL_DEBUG_SUBSYS="INIT").reading("NCCL_ALGO").state == "not_read"  # such lines are hidden
    assert log_of(tmp_path, LOG[:-1]).reading("NCCL_ALGO").state == "not_read"  # torn: the line may be the missing one
    alone = LOG.replace("nranks 2", "nranks 1")
    assert log_of(tmp_path, alone).reading("NCCL_ALGO").state == "not_read"  # one rank chooses no algorithm


@pytest.mark.parametrize("said", [("LL128",), ("LL128", "LL"), ("LL", "LL128")])
def test_a_value_that_is_not_wanted_speaks_for_all_communicators(tmp_path: Path, said: tuple[str, ...]) -> None:
    head = LOG.replace(line("NCCL_PROTO set by environment to LL"), "")
    log = log_of(tmp_path, head + "".join(line(f"NCCL_PROTO set by environment to {value}") for value in said))
    reading = log.reading("NCCL_PROTO", lambda value: value == "LL")
    assert (reading.state, reading.value, reading.detail) == ("value", "LL128", f"NCCL's log: {', then '.join(said)}")
    judged = judge("NCCL_PROTO", "LL", {"live": Reading("value", "LL"), "effective": reading})
    assert (judged.verdict, judged.reason) == ("FAIL", "not_in_effect")


def test_a_container_s_log_is_called_by_the_container_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "in_our_namespace", lambda pid, kind: kind != "uts")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hostname").write_text("box7.example.org\n")
    (tmp_path / f"nccl.box7.{PID}.log").write_text(LOG)
    environment = {**BASE, "NCCL_DEBUG_FILE": "/nccl.%h.%p.log"}
    for named in ({}, {"HOSTNAME": "another"}):
        log = read_log(PID, PID, environment | named, neighbours=2, root=str(tmp_path))
        assert (log.state, log.path) == ("ok", f"/nccl.box7.{PID}.log")
    (tmp_path / "etc" / "hostname").unlink()
    assert read_log(PID, PID, environment, neighbours=2, root=str(tmp_path)).state == "unavailable"
    assert read_log(PID, PID, environment | {"HOSTNAME": "box7"}, neighbours=2, root=str(tmp_path)).state == "ok"


@pytest.mark.parametrize(
    ("environment", "state", "part"),
    [
        ({"NCCL_DEBUG": "WARN"}, "unavailable", "keeps no NCCL log"),
        ({"NCCL_DEBUG_FILE": ""}, "unavailable", "keeps no NCCL log"),
        ({"NCCL_DEBUG_FILE": "/tmp/all.log"}, "unavailable", "add %p"),
        ({"NCCL_DEBUG_FILE": "/nowhere/%p"}, "unavailable", "no communicator has started"),
    ],
)
def test_where_there_is_no_log(tmp_path: Path, environment: dict[str, str], state: str, part: str) -> None:
    log = log_of(tmp_path, **environment)
    assert log.state == state and part in log.detail
    assert log.reading("NCCL_PROTO").state == state


def test_another_process_s_lines_are_not_this_one_s(tmp_path: Path) -> None:
    log = log_of(tmp_path, line("NCCL_PROTO set by environment to LL", pid=PID + 1))
    assert log.state == "not_read"


def test_a_log_that_is_not_the_worker_s_own_is_not_believed(tmp_path: Path) -> None:
    environment = {**BASE, "NCCL_DEBUG_FILE": f"{tmp_path}/%p.log"}
    (tmp_path / "real").write_text(LOG)
    (tmp_path / f"{PID}.log").symlink_to("real")
    assert read_log(PID, PID, environment, neighbours=2).state == "denied"
    (tmp_path / f"{PID}.log").unlink()
    os.mkfifo(tmp_path / f"{PID}.log")  # reading it would block for ever
    assert read_log(PID, PID, environment, neighbours=2).state == "not_read"
    if os.geteuid() == 0:
        (tmp_path / f"{PID}.log").unlink()
        (tmp_path / f"{PID}.log").write_text(LOG)
        os.chown(tmp_path / f"{PID}.log", 65534, 65534)
        assert "not believed" in read_log(PID, PID, environment, neighbours=2).detail


def test_a_log_older_than_the_worker_is_of_an_earlier_process(tmp_path: Path) -> None:
    path = tmp_path / f"{PID}.log"
    path.write_text(LOG)
    os.utime(path, (1, 1))
    log = read_log(PID, PID, {**BASE, "NCCL_DEBUG_FILE": f"{tmp_path}/%p.log"}, neighbours=2)
    assert log.state == "not_read" and "older than the worker" in log.detail


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/d/%h.%p.log", "/d/host.7.log"),
        ("/d/%%p%p", "/d/%p7"),
        ("/d/%x%p", "/d/%x7"),
        ("/d/%", "/d/%"),
        ("%%%p", "%7"),
    ],
)
def test_how_nccl_expands_the_name(pattern: str, name: str) -> None:
    assert expand(pattern, "host", 7) == name


@given(st.text())
def test_every_pattern_is_expanded(pattern: str) -> None:
    assert isinstance(expand(pattern, "h", 1), str)
