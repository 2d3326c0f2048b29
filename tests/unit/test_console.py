"""Streams nobody reads, and words of the command line that would do harm if they were taken for something else."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ext.bench.receipt import write
from sglang_ext.cli import main
from sglang_ext.console import Stream

ROOT = Path(__file__).resolve().parents[2]


def shell(line: str) -> tuple[int, str, str]:
    """Run a shell line in which $V is `sglang-ext`; pipefail, so that a broken pipe's status shows."""
    command = ["bash", "-o", "pipefail", "-c", line]
    environment = {**os.environ, "V": f"{sys.executable} -m sglang_ext", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


ABSENT = "verify-env --pid $$ --absent NCCL_NOT_THERE"  # the shell itself: PASS


@pytest.mark.parametrize(
    "line",
    [
        f"$V {ABSENT} >&-",
        f"$V {ABSENT} --json >&-",
        f"$V {ABSENT} 2>&-",
        f"$V {ABSENT} >&- 2>&-",
        f"$V {ABSENT} | true",
        f"$V {ABSENT} --json | head -c 5",
        "$V gate --pid $$ --absent NCCL_NOT_THERE -- true 2>&-",
    ],
)
def test_a_pass_stays_a_pass_where_nobody_listens(line: str) -> None:
    status, _, err = shell(line)
    assert (status, err) == (0, "") or (status == 0 and "Traceback" not in err)


def test_a_terminal_that_has_hung_up_listens_no_more() -> None:
    """EIO, not EPIPE: the verdict of a gate must not become a traceback because its terminal was closed."""
    master, slave = os.openpty()
    os.close(master)
    try:
        with pytest.raises(OSError, match="Input/output error"):
            os.write(slave, b"x")
        assert Stream(slave).write("the verdict\n") == 12
    finally:
        os.close(slave)


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(handle: int, data: bytes) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with open(tmp_path / "out", "wb") as file:
        monkeypatch.setattr("sglang_ext.console.os.write", fails)
        with pytest.raises(OSError, match="Input/output error"):
            Stream(file.fileno()).write("x")


def test_a_gate_says_which_look_is_which_and_the_second_in_one_line() -> None:
    status, out, err = shell("$V gate --pid $$ --absent NCCL_NOT_THERE -- echo measured")
    lines = err.splitlines()
    assert (status, out, lines[0]) == (0, "measured\n", "before the command:")
    assert lines[1].startswith("worker ")  # the table
    assert [line for line in lines if line.startswith("after the command:")] == lines[-1:]
    assert lines[-1].startswith("after the command: PASS: ") and lines[-2].startswith("PASS: ")


def test_an_output_that_cannot_be_kept_is_no_pass() -> None:
    status, _, err = shell(f"$V {ABSENT} --json > /dev/full")
    assert status == 2
    assert err == "sglang-ext: the output cannot be written (No space left on device); name another place\n"


@pytest.mark.parametrize(
    "words",
    [
        ["verify-env", "--run", ""],
        ["verify-env", "--profile", ""],
        ["verify-env", "--profile="],
        ["verify-env", "--port", "0"],
        ["verify-env", "--port", "99999999"],
        ["verify-env", "--wait", "nan"],
        ["verify-env", "--wait", "inf"],
        ["verify-env", "--wait=-5"],
        ["launch", "--run-dir=", "--model-path", "m"],
        ["launch", "--profile=", "--model-path", "m"],
    ],
)
def test_an_empty_or_impossible_value_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_a_gate_does_not_mix_its_report_with_the_commands_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "--json", "-", "--", "true"]) == 2
    assert "stdout belongs to COMMAND" in capsys.readouterr().err


def test_a_launch_without_options_of_sglang_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--set", "A=b"]) == 2
    assert "--model-path" in capsys.readouterr().err


def test_a_receipt_never_replaces_a_pipe_or_a_device(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        write(str(pipe), {"a": 1})
        assert reader.stdout is not None
        assert reader.stdout.read() == '{\n "a": 1\n}\n'
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_receipt_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write(str(tmp_path / "link"), {"a": 1})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == '{\n "a": 1\n}\n'


@pytest.mark.parametrize(("first", "second"), [("bench", "rerun"), ("patches", "adopt")])
def test_a_first_word_alone_helps(first: str, second: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([first, "--help"]) == 0
    assert f"{first} {second}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([first])
    assert ended.value.code == 2 and "needs a second word" in capsys.readouterr().err
