"""Processes that do not cooperate: what is seen in them, and what cannot be."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.run.process import stat
from tests.e2e.conftest import Done, cli, run

from .matrix import Matrix, Row, fault, judged
from .places import AS_NOBODY, NOBODY, can_mount, needs_other_users
from .standins import GOOD, HALF, NUL, SERVER, SPACES, T0, T1, TITLE, TP2, WANT, look, process, run_directory


def plain(code: str = "", env: dict[str, str] = GOOD, *words: str) -> Callable[[], Done]:
    """One process, judged by WANT or by ``words``."""

    def act() -> Done:
        with process(code, env=env) as pid:
            return look(pid, *(words or WANT))

    return act


def server(*titles: str, env: dict[str, str] = GOOD, words: tuple[str, ...] = ()) -> Callable[[], Done]:
    """A server's processes, judged by WANT."""

    def act() -> Done:
        with process(SERVER, *(TP2 if titles[0].startswith("sglang::") else ()), *titles, env=env) as pid:
            return look(pid, *WANT, *words)

    return act


def eight(without: int | None, change: str = "") -> list[str]:
    """The words of a server of eight ranks; all but ``without`` with ``change``. Without a change: the first seven."""
    ranks = [f"sglang::scheduler_TP{rank}" for rank in range(8)]
    changed = [rank if number == without else f"{rank},{change}" for number, rank in enumerate(ranks)]
    return ["sglang.launch_server", "--tp", "8", *(changed if change else ranks[:7])]


def denied() -> Done:
    needs_other_users()
    with process("", env=GOOD) as pid:
        return look(pid, *WANT, before=AS_NOBODY)


def denied_server() -> Done:
    needs_other_users()
    with process(SERVER, *TP2, T0, T1, env=GOOD) as pid:
        return look(pid, *WANT, before=AS_NOBODY)


def denied_no_contract() -> Done:
    needs_other_users()
    with process(SERVER, *TP2, T0, T1, env=GOOD) as pid:
        return look(pid, before=AS_NOBODY)


def masked(code: str) -> Callable[[], Done]:
    """Live is closed by a file of root's over /proc/PID/mem, as container runtimes mask files; exec stays open."""

    def act() -> Done:
        needs_other_users()
        if not can_mount():
            pytest.skip("needs the right to mount")
        with process(code, env=GOOD, before=AS_NOBODY) as pid:
            script = 'touch /tmp/closed.$$ && chmod 0 /tmp/closed.$$ && mount --bind /tmp/closed.$$ "$0" && rm -f /tmp/closed.$$; exec "$@"'
            mask = ("unshare", "-m", "sh", "-c", script, f"/proc/{pid}/mem")
            return look(pid, *WANT, before=(*mask, *AS_NOBODY))

    return act


def gone() -> Done:
    with process("", env=GOOD) as pid:
        pass
    return look(pid, *WANT)


def own_shell() -> Done:
    """As `docker exec`: the variables are in the shell that asks, not in the workers."""
    with process(SERVER, *TP2, T0, T1, env={"NCCL_P2P_LEVEL": "SYS"}) as pid:
        return look(pid, *WANT, before=("env", *(f"{n}={v}" for n, v in GOOD.items())))


def carrying(owner: int, variables: dict[str, str], *words: str, as_owner: bool = False) -> Callable[[Path], Done]:
    """A server whose processes carry a run directory of ``owner``'s that holds a contract of ``variables``."""

    def act(folder: Path) -> Done:
        if owner:
            needs_other_users()
        env = {**GOOD, "SGLANG_EXT_RUN_DIR": str(run_directory(folder, owner, variables))}
        with process(SERVER, *TP2, T0, T1, env=env, before=AS_NOBODY if as_owner else ()) as pid:
            return look(pid, *words)

    return act


def left_over(*words: str) -> Callable[[Path], Done]:
    """A stock server started in a shell where SGLANG_EXT_RUN_DIR of an ended run is still set."""

    def act(folder: Path) -> Done:
        env = {**GOOD, "SGLANG_EXT_RUN_DIR": str(folder / "run-1a2b3c4d")}
        with process(SERVER, *TP2, T0, T1, env=env) as pid:
            return look(pid, *words)

    return act


def damaged(text: str) -> Callable[[Path], Done]:
    def act(folder: Path) -> Done:
        path = run_directory(folder, 0, GOOD)
        (path / "contract.json").write_text(text)
        with process(SERVER, *TP2, T0, T1, env={**GOOD, "SGLANG_EXT_RUN_DIR": str(path)}) as pid:
            return look(pid)

    return act


def another_servers_run(folder: Path) -> Done:
    """A shell inside one server starts another one."""
    path = run_directory(folder, 0, {"NCCL_PROTO": "LL"})
    record = {"expected": dict.fromkeys(("tp", "pp", "dp", "nnodes", "workers", "here"), 1)}
    (path / "server.json").write_text(json.dumps({**record, "main": {"pid": os.getpid(), "start_time": 1}}))
    with process(SERVER, *TP2, T0, T1, env={**GOOD, "SGLANG_EXT_RUN_DIR": str(path)}) as pid:
        return look(pid, *WANT)


def stale(folder: Path) -> Done:
    """Workers that were there before the run they are claimed for: their values fit, and they attest nothing."""
    with process(SERVER, *TP2, T0, T1, env=GOOD) as pid:
        main = stat(pid)
        assert main is not None
        path = run_directory(folder, 0, GOOD)
        expected = dict.fromkeys(("pp", "dp", "nnodes"), 1) | dict.fromkeys(("tp", "workers", "here"), 2)
        (path / "server.json").write_text(json.dumps({"expected": expected, "main": main.identity._asdict()}))
        report = folder / "report.json"
        done = cli("verify-env", "--run", str(path), "--json", str(report))
        return Done(done.status, report.read_text(), done.out + done.err)


# As a title is written over a worker's command line, in a child of a multiprocessing fork server. The fork server was started
# with what was set then; its parent has set the wanted value since.
FORKED = """
import multiprocessing
def work(title, pipe):
    import ctypes, time
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, size = int(fields[45]), int(fields[46]) - int(fields[45])
    ctypes.memmove(start, title.encode() + bytes(size - len(title)), size)
    pipe.send("ready")
    time.sleep(600)
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    from multiprocessing import forkserver
    forkserver.ensure_running()
    os.environ["NCCL_PROTO"] = "LL"
    mine, theirs = context.Pipe()
    for rank in range(2):
        context.Process(target=work, args=(f"sglang::scheduler_TP{rank}", theirs), daemon=True).start()
        assert mine.recv() == "ready"
    print("ready", flush=True)
    sys.stdin.read()
"""


def forked(before: str) -> Callable[[Path], Done]:
    """Workers of a fork server that was started with NCCL_PROTO=``before``."""

    def act(folder: Path) -> Done:
        script = folder / "main.py"
        script.write_text("import os, sys\n" + FORKED)
        start = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
        with process(start, *TP2, env=GOOD | {"NCCL_PROTO": before}) as pid:
            return look(pid, *WANT)

    return act


def reused(folder: Path) -> Done:
    """The run's main process has ended and its pid is another process's now."""
    path = run_directory(folder, 0, GOOD)
    with process("", env=GOOD) as pid:
        (path / "server.json").write_text(json.dumps({"main": {"pid": pid, "start_time": 12345}}))
        done = cli("verify-env", "--run", str(path), "--json")
        return Done(done.status, done.out, cli("verify-env", "--run", str(path)).out)


# Answers only when it is dead: a helper holds its connection, and tells the truth of a moment ago.
DYING = """
import time
from sglang_ext import bootstrap
from sglang_ext.delivery.context import open_run
from sglang_ext.delivery.witness import Witness, read_now
from sglang_ext.run.process import is_alive, myself
class Dying(Witness):
    def answer(self):
        me, said = myself(), super().answer()
        if os.fork():
            os.kill(me.pid, 9)
        while is_alive(me):
            time.sleep(0.005)
        return said
bootstrap.STATUS.mode = "overlay"
context = open_run(sys.argv[-1])
witness = Dying(context, {"node": 0, "dp": None, "pp": 0, "tp": 0})
witness.entered(read_now(context), [])
witness.serve()
print("ready", flush=True)
time.sleep(600)
"""
BELOW = """
worker = subprocess.Popen([sys.executable, "-c", "import os, sys\\n" + sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE)
assert worker.stdout.readline() == b"ready\\n"
"""


def killed_while_read(folder: Path) -> Done:
    """The worker is killed between two looks at it. One look: there is no second one to be had."""
    path = run_directory(folder, 0, GOOD)
    with process(BELOW, DYING, str(path), env={**GOOD, "SGLANG_EXT_RUN_DIR": str(path)}) as pid:
        main = stat(pid)
        assert main is not None
        expected = dict.fromkeys(("tp", "pp", "dp", "nnodes", "workers", "here"), 1)
        (path / "server.json").write_text(json.dumps({"expected": expected, "main": main.identity._asdict()}))
        report = folder / "report.json"
        done = cli("verify-env", "--run", str(path), "--json", str(report))
        return Done(done.status, report.read_text(), done.out + done.err)


def seam_left_over(folder: Path) -> Done:
    """The engine seam of a server started without the launcher, in a shell where the variables of an ended run are set."""
    path = run_directory(folder, 0, {"NCCL_PROTO": "Simple"})
    code = "from sglang_ext.delivery.context import current_or_own\nprint(current_or_own().directory.path)\n"
    done = run(sys.executable, "-c", code, env={**os.environ, "SGLANG_EXT_RUN_DIR": str(path)})
    assert done.out.strip() and done.out.strip() != str(path)
    return Done(done.status, "", done.err)


def not_started(folder: Path) -> Done:
    path = run_directory(folder, 0, GOOD)
    done = cli("verify-env", "--run", str(path), "--json")
    return Done(done.status, done.out, cli("verify-env", "--run", str(path)).out)


def no_such_run(folder: Path) -> Done:
    done = cli("verify-env", "--run", str(folder / "gone"))
    return Done(done.status, "", done.err)


def open_run_dir(folder: Path) -> Done:
    path = run_directory(folder, 0, GOOD)
    path.chmod(0o755)
    done = cli("verify-env", "--run", str(path))
    return Done(done.status, "", done.err)


def several() -> Done:
    with process(SERVER, *TP2, T0, T1, env=GOOD) as first, process(SERVER, *TP2, T0, T1, env=GOOD) as second:
        done = cli("verify-env", *WANT)
        assert str(first) in done.err and str(second) in done.err
        return Done(done.status, "", done.err)


def leftovers() -> Done:
    """The schedulers of a server that is gone, beside one that runs."""
    with process(SERVER, *TP2, T0, T1, env=GOOD), process(SERVER, *TP2, T0, T1, env=GOOD) as dead:
        os.kill(dead, 9)
        while Path(f"/proc/{dead}/stat").read_text().rpartition(") ")[2][0] != "Z":
            time.sleep(0.001)
        done = cli("verify-env", *WANT)
        assert "orphans" in done.err
        return Done(done.status, "", done.err)


def none_at_all() -> Done:
    done = cli("verify-env", *WANT, "--json")
    return Done(done.status, done.out, cli("verify-env", *WANT).out)


def no_port() -> Done:
    done = cli("verify-env", *WANT, "--port", "1", "--json")
    return Done(done.status, done.out, cli("verify-env", *WANT, "--port", "1").out)


CHANGED = "os.environ['NCCL_PROTO'] = 'Simple'"
RIGHT_NOW = "os.environ['NCCL_PROTO'] = 'LL'"
CUDA = "CUDA_DEVICE_MAX_CONNECTIONS"

ROWS: list[tuple[str, str, str, str | None, int, str | tuple[str, ...], Callable[..., Any]]] = [
    ("missing", "a variable that was never set", "FAIL", "missing", 1, ("NCCL_ALGO", "expected Ring", "found none"), plain("", {"NCCL_PROTO": "LL"})),
    ("different", "another value at the start", "FAIL", "different", 1, ("NCCL_PROTO", "expected LL", "found Simple"), plain("", GOOD | {"NCCL_PROTO": "Simple"})),
    ("unwanted", "a variable that must be absent", "FAIL", "unwanted", 1, ("NCCL_P2P_DISABLE", "expected (absent)", "found 1"), plain("", GOOD | {"NCCL_P2P_DISABLE": "1"})),
    ("empty", "an empty value in the place of the wanted one", "FAIL", "different", 1, ("NCCL_PROTO", "expected LL", "found ''"), plain("", GOOD | {"NCCL_PROTO": ""})),
    ("quoted", "quotes kept from an env-file", "FAIL", "quoted", 1, ("NCCL_PROTO", "expected LL", 'found "LL" with the quotes'), plain("", GOOD | {"NCCL_PROTO": '"LL"'})),
    ("changed", "changed after the start; nobody attests", "FAIL", "changed_in_process", 1, ("NCCL_PROTO", "expected LL", "found Simple", "was started with the wanted value"), plain(CHANGED)),
    ("deleted", "deleted after the start; nobody attests", "FAIL", "changed_in_process", 1, ("NCCL_ALGO", "expected Ring", "found (absent)"), plain("del os.environ['NCCL_ALGO']")),
    ("added", "an unwanted variable added after the start", "FAIL", "changed_in_process", 1, ("NCCL_P2P_DISABLE", "expected (absent)", "found 1"), plain("os.environ['NCCL_P2P_DISABLE'] = '1'")),
    ("right_only_now", "right only since some time after the start", "UNKNOWN", "maybe_too_late", 3, ("NCCL_PROTO", "expected LL", "started with Simple"), plain(RIGHT_NOW, GOOD | {"NCCL_PROTO": "Simple"})),
    ("all_nul", "/proc/PID/environ all NUL, the value right", "PASS", None, 0, ("1 of 1",), plain(NUL)),
    ("title_text", "/proc/PID/environ full of title text, the value right", "PASS", None, 0, ("1 of 1",), plain(TITLE)),
    ("all_nul_missing", "/proc/PID/environ all NUL, a variable missing", "FAIL", "missing", 1, ("NCCL_ALGO", "found none"), plain(NUL, {"NCCL_PROTO": "LL"})),
    ("all_nul_denied", "/proc/PID/environ all NUL and its memory closed", "UNKNOWN", "not_seen", 3, ("NCCL_ALGO", "expected Ring", "is not permitted"), masked(NUL)),
    ("exec_alone", "/proc/PID/environ right and its memory closed: the start is not now", "UNKNOWN", "not_seen", 3, ("NCCL_ALGO", "expected Ring", "is not permitted"), masked("")),
    ("half_nul", "the first part of /proc/PID/environ NUL: what still stands behind it is not believed", "PASS", None, 0, ("1 of 1",), plain(HALF)),
    ("half_nul_changed", "the same, and the value that still stands there is not the one in memory", "FAIL", "different", 1, ("NCCL_PROTO", "expected LL", "found Simple"), plain(CHANGED + HALF)),
    ("half_nul_denied", "the same with its memory closed", "UNKNOWN", "not_seen", 3, ("NCCL_ALGO", "expected Ring", "is not permitted"), masked(HALF)),
    ("spaces", "/proc/PID/environ full of blanks, a variable missing", "FAIL", "missing", 1, ("NCCL_ALGO", "found none"), plain(SPACES, {"NCCL_PROTO": "LL"})),
    ("spaces_denied", "/proc/PID/environ full of blanks and its memory closed", "UNKNOWN", "not_seen", 3, ("NCCL_ALGO", "expected Ring", "is not permitted"), masked(SPACES)),
    ("no_environment", "a process started with an empty environment", "FAIL", "missing", 1, ("NCCL_ALGO", "expected Ring", "found none"), plain("", {})),
    ("set_in_c", "changed by a library, with setenv: neither /proc/PID/environ nor os.environ shows it", "FAIL", "changed_in_process", 1, ("NCCL_PROTO", "expected LL", "found Simple"), plain('libc.setenv(b"NCCL_PROTO", b"Simple", 1); assert os.environ["NCCL_PROTO"] == "LL"')),
    ("exec_demanded", "--require exec where it is overwritten", "UNKNOWN", "witness_missing", 3, ("exec was demanded", "overwritten by setproctitle"), plain(NUL, GOOD, *WANT, "--require", "exec")),
    ("attested_demanded", "--require attested of a process that is not ours", "UNKNOWN", "witness_missing", 3, ("attested was demanded", "not of a run of ours"), plain("", GOOD, *WANT, "--require", "attested")),
    ("denied", "a process of another user", "UNKNOWN", "not_seen", 3, ("NCCL_ALGO", "expected Ring", "is not permitted"), denied),
    ("denied_server", "a server of another user, a contract given", "UNKNOWN", "not_seen", 3, ("TP0", "NCCL_ALGO", "expected Ring", "is not permitted"), denied_server),
    ("denied_no_contract", "a server of another user, no contract given", "refused", "no_contract", 2, ("cannot be looked into", "--set"), denied_no_contract),
    ("gone", "--pid of a process that has ended", "UNKNOWN", "no_server", 3, ("there is no process",), gone),
    ("own_shell", "verify-env in a shell that has the variables while the workers do not", "FAIL", "missing", 1, ("TP0", "NCCL_ALGO", "expected Ring", "found none"), own_shell),
    ("one_rank", "one rank holds another value than the server was started with", "FAIL", "overwritten", 1, ("TP1", "NCCL_PROTO", "expected LL", "found Simple"), server(T0, f"{T1},NCCL_PROTO=Simple")),
    ("ranks_differ", "one rank differs in an NCCL variable outside the contract", "FAIL", "ranks_differ", 1, ("NCCL_BUFFSIZE", "(absent) on TP0", "8388608 on TP1"), server(T0, f"{T1},NCCL_BUFFSIZE=8388608")),
    ("one_of_eight", "eight ranks, one of them without a variable", "FAIL", "missing", 1, ("TP5", "NCCL_ALGO", "expected Ring", "found none"), server(*eight(5, "NCCL_ALGO=Ring"), env={"NCCL_PROTO": "LL"})),
    ("one_of_eight_more", "eight ranks that hold the contract, one of them with NCCL_BUFFSIZE as well", "FAIL", "ranks_differ", 1, ("NCCL_BUFFSIZE is (absent) on TP0, TP1, TP2, TP3, TP4, TP5, TP6, 1048576 on TP7",), server(*eight(None), "sglang::scheduler_TP7,NCCL_BUFFSIZE=1048576")),
    ("seven_of_eight", "seven of eight ranks are there", "FAIL", "missing_ranks", 1, ("found 7 of 8", "TP7 missing"), server(*eight(None))),
    ("stock_overwrites", "a value that stock SGLang always overwrites", "FAIL", "overwritten", 1, ("TP0", CUDA, "expected 32", "found 8", "stock SGLang"), server(f"{T0},{CUDA}=8", f"{T1},{CUDA}=8", env=GOOD | {CUDA: "32"}, words=("--set", f"{CUDA}=32"))),
    ("rank_missing", "a rank is not there", "FAIL", "missing_ranks", 1, ("found 1 of 2", "TP1 missing"), server(T0)),
    ("rank_missing_all_processes", "a rank is not there, and helpers decide too", "FAIL", "missing_ranks", 1, ("found 1 of 2", "TP1 missing"), server(T0, "sglang::detokenizer", words=("--all-processes",))),
    ("rank_left_over", "a scheduler of an earlier launch below the server", "FAIL", "extra_ranks", 1, ("found 3 of 2", "TP1, TP1"), server(T0, T1, T1)),
    ("same_rank", "two schedulers claim one rank", "FAIL", "extra_ranks", 1, ("claim the same rank", "TP1, TP1"), server(T1, T1)),
    ("sizes_untold", "sizes in a --config file", "UNKNOWN", "expected_unknown", 3, ("found 2 schedulers", "expected"), server("sglang.launch_server", "--config", "c.yaml", T0, T1)),
    ("still_starting", "a rank comes while --wait waits", "PASS", None, 0, ("2 of 2",), server(T0, T1 + "-later", words=("--wait", "20"))),
    ("never_starts", "a rank does not come while --wait waits", "FAIL", "missing_ranks", 1, ("found 1 of 2",), server(T0, words=("--wait", "0.5"))),
    ("one_comes", "waited for before it is a server to see; one rank never comes", "FAIL", "missing_ranks", 1, ("found 1 of 2",), server(T0 + "-later", words=("--wait", "4"))),
    ("several", "two servers, none named", "refused", "several_servers", 2, ("2 SGLang servers", "--pid"), several),
    ("leftovers", "schedulers of a dead server beside a living one", "refused", "several_servers", 2, ("orphans", "--pid"), leftovers),
    ("none_at_all", "no server", "UNKNOWN", "no_server", 3, ("no SGLang server",), none_at_all),
    ("no_port", "no server on that port", "UNKNOWN", "no_server", 3, ("port 1",), no_port),
    ("others_contract", "a server that carries another user's run with a contract that fits", "refused", "no_contract", 2, ("belongs to uid 65534", "expected the server's own"), carrying(NOBODY, GOOD)),
    ("others_empty_contract", "another user's server with an empty contract of its own", "refused", "no_contract", 2, ("no contract, or an empty one", "--set"), carrying(NOBODY, {}, as_owner=True)),
    ("empty_contract", "a run with an empty contract", "refused", "no_contract", 2, ("no contract, or an empty one", "--set"), carrying(0, {})),
    ("others_run_noted", "a server that carries another user's run, a contract given", "PASS", "run_not_believed", 0, ("belongs to uid 65534",), carrying(NOBODY, {}, *WANT)),
    ("left_over", "a stock server in a shell with a left-over SGLANG_EXT_RUN_DIR", "refused", "no_contract", 2, ("No such file", "--set"), left_over()),
    ("left_over_noted", "the same, a contract given", "PASS", "run_not_believed", 0, ("not ours", "No such file"), left_over(*WANT)),
    ("another_servers_run", "a server that carries the run of another server", "PASS", "run_not_believed", 0, ("of another server", "expected"), another_servers_run),
    ("contract_torn", "contract.json cut off", "refused", "run_dir_unusable", 2, ("contract.json", "not believed"), damaged('{"digest": "')),
    ("pid_reused", "the server's pid is another process's now", "UNKNOWN", "no_server", 3, ("has ended", "expected start time", "found"), reused),
    ("stale", "workers that were there before the run they are claimed for, with the right values", "FAIL", "hook_inactive", 1, ("TP0", "attests nothing", "expected workers/", "found none"), stale),
    ("forked_old", "workers of a fork server that was started before the wanted value was set", "FAIL", "different", 1, ("TP0", "NCCL_PROTO", "expected LL", "found Simple"), forked("Simple")),
    ("forked_same", "workers of a fork server that was started with the wanted value", "PASS", "forked", 0, ("TP0", "forked off a multiprocessing fork server"), forked("LL")),
    ("killed_while_read", "a worker killed while it is being read", "UNKNOWN", "worker_gone", 3, ("TP0", "ended while it was being read"), killed_while_read),
    ("not_started", "a run that has not come as far as its workers", "UNKNOWN", "no_server", 3, ("not come as far",), not_started),
    ("no_such_run", "--run of a directory that is not there", "refused", "run_dir_unusable", 2, ("No such file", "name one that exists"), no_such_run),
    ("open_run_dir", "--run of a directory open to others", "refused", "run_dir_unusable", 2, ("mode 0755", "expected 0700", "name one"), open_run_dir),
]  # fmt: skip
WITH_FOLDER = (
    "others",
    "empty_c",
    "left_over",
    "another",
    "contract_torn",
    "pid_",
    "not_started",
    "no_such",
    "open_run",
    "killed_while",
    "stale",
    "forked",
)


def rows() -> Iterator[object]:
    for name, text, verdict, code, status, says, act in ROWS:
        act.__name__ = name
        yield fault(text, verdict, code, status, says, act)


@pytest.mark.parametrize(("row", "act"), list(rows()))
def test_seen(
    row: Row, act: Callable[..., Done], open_place: Path, matrix: Matrix, request: pytest.FixtureRequest
) -> None:
    done = act(open_place) if act.__name__.startswith(WITH_FOLDER) else act()
    report: Any = json.loads(done.out) if done.out and row.verdict != "refused" else None
    text = Done(done.status, done.err if report else done.out, "" if report else done.err)
    also = ("not_seen",) if row.code == "worker_gone" else ()
    matrix.add(request, row, judged(row, text, report, also), {str(open_place): "DIR"})
    if row.verdict == "UNKNOWN":
        assert "missing" not in {p["code"] for p in report["problems"]}
        assert text.out.splitlines()[-1].startswith("UNKNOWN: ")


@pytest.mark.parametrize(
    ("row", "act"),
    [fault("sglang started without the launcher where SGLANG_EXT_RUN_DIR is left over", "ignored", None, 0, ("SGLANG_EXT_RUN_DIR", "did not start this one", "unset it"), seam_left_over)],
)  # fmt: skip
def test_left_over(
    row: Row, act: Callable[[Path], Done], open_place: Path, matrix: Matrix, request: pytest.FixtureRequest
) -> None:
    done = act(open_place)
    assert done.status == row.exit
    (said,) = done.err.splitlines()
    matrix.add(request, row, said.removeprefix("sglang-ext: "), {str(open_place): "DIR"})
