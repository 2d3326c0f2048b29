"""Streams nobody reads, and words of the command line that would do harm if they were taken for something else."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_ext.bench.receipt import write
from sglang_ext.cli import main, parser_of
from sglang_ext.console import Stream
from sglang_ext.grammar import VERBS

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


@pytest.mark.parametrize(
    ("verb", "schema", "kept"),
    [
        (f"{ABSENT} --json", "verify/1", False),
        (f"{ABSENT} --json", "verify-all/1", False),
        (f"{ABSENT} --json", "bench/1", True),  # a receipt
        ("lint --json", "lint/1", False),
        ("lint --json", "verify/1", True),
        ("doctor --json", "gate/1", True),
        ("gate --pid $$ --absent NCCL_NOT_THERE --json", "bench/1", True),
        ("diff run:/nowhere run:/nowhere --json", "verify/1", True),
        ("build-wheel --from /nowhere.whl --json", "lint/1", True),
    ],
)
def test_a_report_replaces_only_one_of_its_kind(verb: str, schema: str, kept: bool, tmp_path: Path) -> None:
    """`diff A B --json A`, `lint --json profile.toml`: a slip must not cost a file."""
    file, before = tmp_path / "file", f'{{"schema": "sglang-ext/{schema}"}}'
    file.write_text(before)
    status, _, err = shell(f"$V {verb} {file}{' -- true' if 'gate' in verb else ''}")
    assert (file.read_text() == before) == kept
    assert not kept or (status == 2 and err.startswith("sglang-ext: receipt_unwritable: --json: ")), err


def test_a_terminal_does_not_obey_a_title() -> None:
    """Any process may call itself what it likes; root's `--all-processes` on a shared host prints it."""
    title = r"$'sglang::detokenizer\e]0;owned\a'"
    look = "$V verify-env --pid $child --all-processes --absent NCCL_X"
    _, out, err = shell(f"(exec -a {title} sleep 60) & child=$!; sleep 0.3; {look}; kill $child")
    assert "owned" in out and "\x1b" not in out + err and "\a" not in out + err


def test_a_torn_report_is_replaced(tmp_path: Path) -> None:
    """A disk that was full once must not end every later look."""
    file = tmp_path / "v.json"
    assert shell(f"$V {ABSENT} --json {file}")[0] == 0
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    assert shell(f"$V {ABSENT} --json {file}")[0] == 0 and json.loads(file.read_text())["verdict"] == "PASS"
    log = tmp_path / "log.txt"
    log.write_text("lines of before\n")
    assert shell(f"$V {ABSENT} --json /dev/stdout >> {log}")[0] == 0 and "PASS" in log.read_text()


def test_a_gate_knows_how_its_command_ended_where_sigchld_was_ignored() -> None:
    status, _, err = shell("trap '' CHLD; exec $V gate --pid $$ --absent NCCL_NOT_THERE -- sh -c 'exit 3'")
    assert status == 3, err


def test_a_report_replaces_no_text_and_fills_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "empty").touch()
    status, _, err = shell(f"$V {ABSENT} --json {tmp_path / 'a.py'}")
    assert (status, (tmp_path / "a.py").read_text()) == (2, "x = 1\n") and "holds something else" in err
    assert shell(f"$V {ABSENT} --json {tmp_path / 'empty'}")[0] == 0 and (tmp_path / "empty").read_text()


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


@pytest.mark.parametrize("name", VERBS)
def test_no_option_goes_by_its_beginning(name: str) -> None:
    parser = parser_of(name)
    assert not parser.allow_abbrev
    longest = max((word for action in parser._actions for word in action.option_strings), key=len)
    _, left = parser.parse_known_args([longest[:-1], *(["x", "x"] if name != "gate" else [])])
    assert longest[:-1] in left


@pytest.mark.parametrize("words", [["gate", "--all", "--", "true"], ["bench", "run", "suite.toml", "--all"]])
def test_all_is_not_all_processes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and "unrecognized arguments: --all" in capsys.readouterr().err


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
