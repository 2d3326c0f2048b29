"""One real server, TP=2: its workers changed, its run directory forged, readers kept out, and at last a rank killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.contract.model import Contract
from tests.e2e.conftest import NCCL, Done, cli, run, sets
from tests.rig.environment import RIG
from tests.rig.server import Server, free_port

from .matrix import Matrix, Row, fault, judged, refused
from .places import AS_NOBODY, NOBODY, needs_other_users
from .standins import SCRIPT

MEDDLER = Path(__file__).parent / "meddler"
Act = Callable[["Live"], Any]


class Live:
    """The server, its run directory and its workers."""

    def __init__(self, server: Server, orders: Path) -> None:
        self.server, self.orders = server, orders
        found = re.search(r"; run (\S+)", server.text())
        assert found
        self.run = Path(found.group(1))
        self.pids = [process.pid for process in server.titled("sglang::scheduler")]
        self.main = int(json.loads((self.run / "server.json").read_text())["main"]["pid"])
        assert len(self.pids) == 2

    def order(self, rank: int, text: str) -> None:
        """Have the worker itself change its environment: NAME=VALUE sets, NAME deletes."""
        orders = self.orders / str(self.pids[rank])
        orders.with_suffix(".tmp").write_text(text)
        orders.with_suffix(".tmp").rename(orders)
        deadline = time.monotonic() + 30
        while orders.exists():
            assert time.monotonic() < deadline, "the worker did not take the order"
            time.sleep(0.01)

    @contextlib.contextmanager
    def changed(self, rank: int, change: str, back: str) -> Iterator[None]:
        self.order(rank, change)
        try:
            yield
        finally:
            self.order(rank, back)

    def record(self, rank: int) -> Path:
        return self.run / "workers" / f"{self.pids[rank]}.json"

    @contextlib.contextmanager
    def edited(self, path: Path, change: Callable[[bytes], bytes | None]) -> Iterator[None]:
        """A file with other bytes (None: gone) for a while."""
        before = path.read_bytes()
        after = change(before)
        path.unlink()
        if after is not None:
            path.write_bytes(after)
            path.chmod(0o600)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            path.write_bytes(before)
            path.chmod(0o600)

    def verify(self, *words: str, where: tuple[str, ...] | None = None, before: tuple[str, ...] = ()) -> Done:
        """verify-env: `out` its JSON, `err` the rest; of one look."""
        report = self.orders.parent / "report.json"
        chosen = ("--run", str(self.run)) if where is None else where
        try:
            done = run(*before, SCRIPT, "verify-env", *chosen, *words, "--json", str(report))
            return Done(done.status, report.read_text() if report.exists() else "", done.out + done.err)
        finally:
            report.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def live(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Started in a shell with a left-over run directory, and an overlay that is there."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "orders").mkdir()
    environment = {
        "RIG_MEDDLE": str(folder / "orders"),
        "PYTHONPATH": os.pathsep.join((str(MEDDLER), str(RIG))),
        "SGLANG_EXT_RUN_DIR": str(folder / "left-over"),
        "SGLANG_EXT_RUN_ID": "left-over",
        "NCCL_PROTO": "Simple",
    }
    options = [*sets(NCCL), "--absent", "NCCL_GRAPH_FILE"]
    with Server(folder / "log", options=options, model=models["deepseek"], environment=environment) as server:
        yield Live(server.wait_ready(), folder / "orders")


# --- rows: each leaves the server as it was -----------------------------------------------------------------


def _left_over_run(live: Live) -> Done:
    assert str(live.run) != str(live.orders.parent / "left-over")
    return live.verify(where=("--port", str(live.server.port)))


def _changed(live: Live) -> Done:
    with live.changed(1, "NCCL_PROTO=Simple", "NCCL_PROTO=LL"):
        return live.verify()


def _deleted(live: Live) -> Done:
    with live.changed(0, "NCCL_ALGO", "NCCL_ALGO=Ring"):
        return live.verify()


def _added(live: Live) -> Done:
    with live.changed(1, "NCCL_GRAPH_FILE=/g.xml", "NCCL_GRAPH_FILE"):
        return live.verify()


def _extra(live: Live) -> Done:
    with live.changed(1, "NCCL_BUFFSIZE=8388608", "NCCL_BUFFSIZE"):
        return live.verify()


def _extra_differs(live: Live) -> Done:
    with live.changed(1, "NCCL_CUMEM_ENABLE=1", "NCCL_CUMEM_ENABLE=0"):
        return live.verify()


def _own_shell(live: Live) -> Done:
    return live.verify("--set", "NCCL_BUFFSIZE=8388608", before=("env", "NCCL_BUFFSIZE=8388608"))


def _another_contract(live: Live) -> Done:
    return live.verify("--set", "NCCL_PROTO=Simple")


def _changed_under_the_gate(live: Live) -> Done:
    order = live.orders / str(live.pids[0])
    command = (
        f"echo NCCL_PROTO=Simple > {order}.tmp && mv {order}.tmp {order} && while [ -e {order} ]; do sleep 0.05; done"
    )
    try:
        return run(SCRIPT, "gate", "--run", str(live.run), "--", "sh", "-c", command)
    finally:
        live.order(0, "NCCL_PROTO=LL")


def _attestation_gone(live: Live) -> Done:
    with live.edited(live.record(1), lambda _: None):
        return live.verify()


def _attestation_torn(live: Live) -> Done:
    with live.edited(live.record(1), lambda raw: raw[: len(raw) // 2]):
        return live.verify()


def rewritten(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def act(raw: bytes) -> bytes:
        value = json.loads(raw)
        change(value)
        return json.dumps(value, indent=1, sort_keys=True).encode()

    return act


def _attestation_stale(live: Live) -> Done:
    with live.edited(live.record(1), rewritten(lambda r: r.update(start_time=r["start_time"] - 1))):
        return live.verify()


def _attestation_forged(live: Live) -> Done:
    with live.edited(live.record(1), rewritten(lambda r: r["entered"]["values"].update(NCCL_PROTO="Simple"))):
        return live.verify()


def _repair_forged(live: Live) -> Done:
    with live.edited(live.record(0), rewritten(lambda r: r["entered"]["repaired"].append("NCCL_PROTO"))):
        return live.verify()


def _digest_forged(live: Live) -> Done:
    with live.edited(live.record(0), rewritten(lambda r: r.update(contract="0" * 64))):
        return live.verify()


def _attestation_is_a_link(live: Live) -> Done:
    elsewhere = live.orders.parent / "record.json"
    elsewhere.write_bytes(live.record(1).read_bytes())
    with live.edited(live.record(1), lambda _: None):
        live.record(1).symlink_to(elsewhere)
        return live.verify()


def _attestation_of_another_user(live: Live) -> Done:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(live.record(1), NOBODY, NOBODY)
    try:
        return live.verify()
    finally:
        os.chown(live.record(1), 0, 0)


def _socket_of_another(live: Live) -> Done:
    """Somebody listens in a worker's place and would say what is wanted."""
    path = live.record(1).with_suffix(".sock")
    kept = path.with_suffix(".kept")
    path.rename(kept)
    handle = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{handle}/{path.name}")
            listener.listen()
            return live.verify()
    finally:
        os.close(handle)
        kept.rename(path)


def _contract_edited(live: Live) -> Done:
    with live.edited(live.run / "contract.json", lambda raw: raw.replace(b'"LL"', b'"Simple"')):
        return live.verify()


def _contract_replaced(live: Live) -> Done:
    """Edited with the digest that fits: less is demanded, and all of it is there."""

    def weaker(raw: bytes) -> bytes:
        terms = dict(Contract.from_json(json.loads(raw)).terms)
        del terms["NCCL_PROTO"]
        return json.dumps(Contract(terms).to_json()).encode()

    with live.edited(live.run / "contract.json", weaker):
        return live.verify()


def _contract_gone(live: Live) -> Done:
    with live.edited(live.run / "contract.json", lambda _: None):
        return live.verify()


def _run_json_gone(live: Live) -> Done:
    with live.edited(live.run / "run.json", lambda _: None):
        return live.verify()


def _server_json_torn(live: Live) -> Done:
    with live.edited(live.run / "server.json", lambda raw: raw[:40]):
        return live.verify()


def _fewer_expected(live: Live) -> Done:
    with live.edited(live.run / "server.json", rewritten(lambda s: s["expected"].update(here=1, workers=1, tp=1))):
        return live.verify()


def _main_reused(live: Live) -> Done:
    with live.edited(live.run / "server.json", rewritten(lambda s: s["main"].update(start_time=7))):
        return live.verify()


def _run_dir_open(live: Live) -> Done:
    live.run.chmod(0o755)
    try:
        return live.verify()
    finally:
        live.run.chmod(0o700)


def _run_dir_open_by_port(live: Live) -> Done:
    live.run.chmod(0o777)
    try:
        return live.verify(where=("--port", str(live.server.port)))
    finally:
        live.run.chmod(0o700)


def as_nobody(live: Live, *words: str, where: tuple[str, ...]) -> Done:
    """Another user looks; a report it cannot write is no part of this, so JSON and table are two looks."""
    needs_other_users()
    asked = [*AS_NOBODY, SCRIPT, "verify-env", *where, *words]
    done, table = run(*asked, "--json"), run(*asked)
    return Done(done.status, done.out, table.out + table.err)


def _denied(live: Live) -> Done:
    return as_nobody(live, *sets(NCCL), where=("--pid", str(live.main)))


def _denied_no_contract(live: Live) -> Done:
    return as_nobody(live, where=("--pid", str(live.main)))


def _denied_run(live: Live) -> Done:
    return as_nobody(live, where=("--run", str(live.run)))


def _denied_port(live: Live) -> Done:
    return as_nobody(live, *sets(NCCL), where=("--port", str(live.server.port)))


def _worker_stopped(live: Live) -> Done:
    os.kill(live.pids[1], signal.SIGSTOP)
    try:
        return live.verify("--require", "attested")
    finally:
        os.kill(live.pids[1], signal.SIGCONT)


def _exec_demanded_after_a_change(live: Live) -> Done:
    """Right again, but the change was seen by nobody: what is now equals the contract, and so does the start."""
    with live.changed(0, "NCCL_PROTO=LL128", "NCCL_PROTO=LL"):
        pass
    return live.verify("--require", "exec")


def launch(live: Live, *words: str) -> Done:
    return run(*live.server.command, *words, env=live.server.environment)


def _port_of_sglang(live: Live) -> Done:
    return launch(live)


def _run_dir_of_a_live_run(live: Live) -> Done:
    return launch(live, "--port", str(free_port()), "--run-dir", str(live.run))


RUN = ("NCCL_PROTO", "expected LL", "found Simple")
ROWS = [
    fault("a left-over SGLANG_EXT_RUN_DIR in the launching shell", "PASS", None, 0, ("2 of 2", "hook overlay"), _left_over_run),
    fault("a value changed in one worker after the start", "FAIL", "changed_in_process", 1, ("TP1", *RUN, "right at the worker's first line"), _changed),
    fault("a variable deleted in one worker after the start", "FAIL", "changed_in_process", 1, ("TP0", "NCCL_ALGO", "expected Ring", "found (absent)"), _deleted),
    fault("an unwanted variable added in one worker", "FAIL", "changed_in_process", 1, ("TP1", "NCCL_GRAPH_FILE", "expected (absent)", "found /g.xml"), _added),
    fault("one rank holds an extra NCCL variable", "FAIL", "ranks_differ", 1, ("NCCL_BUFFSIZE", "(absent) on TP0", "8388608 on TP1"), _extra),
    fault("one rank differs in an NCCL variable upstream set", "FAIL", "ranks_differ", 1, ("NCCL_CUMEM_ENABLE", "0 on TP0", "1 on TP1"), _extra_differs),
    fault("the asking shell holds the variable, the workers do not", "FAIL", "missing", 1, ("TP0", "NCCL_BUFFSIZE", "expected 8388608", "found none"), _own_shell),
    fault("another contract than the server's is asked for", "FAIL", "different", 1, ("TP0", "NCCL_PROTO", "expected Simple", "found LL"), _another_contract),
    fault("a value changed while a gated command runs", "FAIL", "changed_in_process", 4, ("TP0", *RUN), _changed_under_the_gate),
    fault("an attestation gone", "FAIL", "hook_inactive", 1, ("TP1", "attests nothing", "expected", "found none"), _attestation_gone),
    fault("an attestation cut off", "UNKNOWN", "attestation_bad", 3, ("TP1", "no whole JSON", "not believed"), _attestation_torn),
    fault("an attestation of another process (start time)", "UNKNOWN", "attestation_bad", 3, ("TP1", "another start time", "expected pid", "found pid"), _attestation_stale),
    fault("an attestation with an edited value", "UNKNOWN", "attestation_bad", 3, ("TP1", "edited", "expected", "found"), _attestation_forged),
    fault("an attestation with a repair that never was", "UNKNOWN", "attestation_bad", 3, ("TP0", "edited"), _repair_forged),
    fault("an attestation with another contract's digest", "UNKNOWN", "attestation_bad", 3, ("TP0", "edited"), _digest_forged),
    fault("an attestation that is a link", "UNKNOWN", "attestation_bad", 3, ("TP1", "cannot be read"), _attestation_is_a_link),
    fault("an attestation written by another user", "UNKNOWN", "attestation_bad", 3, ("TP1", "uid 65534", "not believed"), _attestation_of_another_user),
    fault("another process listens in a worker's place", "UNKNOWN", "attestation_bad", 3, ("TP1", "expected the worker itself", "listens in its place"), _socket_of_another),
    fault("contract.json edited", "refused", "contract_invalid", 2, ("expected the digest", "found", "start the server again"), _contract_edited),
    fault("contract.json edited, with the digest that fits", "FAIL", "contract_edited", 1, ("TP0", "expected", "found", "contract.json"), _contract_replaced),
    fault("contract.json gone", "refused", "no_contract", 2, ("no contract, or an empty one", "--set"), _contract_gone),
    fault("run.json gone", "refused", "run_dir_unusable", 2, ("run.json", "not believed", "start the server again"), _run_json_gone),
    fault("server.json cut off", "refused", "run_dir_unusable", 2, ("server.json", "not believed", "start the server again"), _server_json_torn),
    fault("server.json edited: fewer ranks expected", "FAIL", "extra_ranks", 1, ("found 2 of 1", "TP0, TP1"), _fewer_expected),
    fault("server.json names a process of another start time", "UNKNOWN", "no_server", 3, ("has ended", "expected start time", "found"), _main_reused),
    fault("the run directory opened to others, --run", "refused", "run_dir_unusable", 2, ("mode 0755", "expected 0700", "name one"), _run_dir_open),
    fault("the run directory opened to others, --port", "refused", "no_contract", 2, ("mode 0777", "expected 0700", "name one"), _run_dir_open_by_port),
    fault("another user asks, with a contract", "UNKNOWN", "not_seen", 3, ("TP0", "NCCL_ALGO", "expected Ring", "is not permitted"), _denied),
    fault("another user asks, without a contract", "refused", "no_contract", 2, ("cannot be looked into", "--set"), _denied_no_contract),
    fault("another user asks by run directory", "refused", "run_dir_unusable", 2, ("Permission denied",), _denied_run),
    fault("another user asks by port", "UNKNOWN", "no_server", 3, ("we can look into",), _denied_port),
    fault("a stopped worker, its own answer demanded", "UNKNOWN", "witness_missing", 3, ("TP1", "attested was demanded", "did not answer within"), _worker_stopped),
    fault("a value changed and changed back", "PASS", None, 0, ("2 of 2",), _exec_demanded_after_a_change),
    fault("the port is taken by SGLang", "refused", "port_taken", 1, ("127.0.0.1", "choose another --port"), _port_of_sglang),
    fault("the run directory is that of a live run", "refused", "run_dir_unusable", 2, ("exists already", "name one that does not"), _run_dir_of_a_live_run),
]  # fmt: skip


def outcome(row: Row, done: Done) -> str:
    if row.exit == 4:
        assert done.status == 4 and "verified before, but not after" in done.err
        lines = [text for text in done.err.splitlines() if f"fail {row.code}: " in text]
        assert len(lines) == 1 and "FAIL: 1 of 2 workers" in done.err
        return lines[0].partition(": ")[2]
    if row.verdict == "refused":
        return refused(row, Done(done.status, "", done.err))
    return judged(row, Done(done.status, done.err, ""), json.loads(done.out))


@pytest.mark.parametrize(("row", "act"), ROWS)
def test_seen(row: Row, act: Act, live: Live, matrix: Matrix, request: pytest.FixtureRequest) -> None:
    matrix.add(request, row, outcome(row, act(live)), {str(live.run): "DIR/run"})
    assert cli("verify-env", "--run", str(live.run)).status == 0, "the row left something behind"


# --- the last ones: they end the server -----------------------------------------------------------------------


def _rank_killed(live: Live) -> Done:
    """Upstream is held, or it would have ended everything before anybody could look."""
    for pid in (live.main, live.pids[0]):
        os.kill(pid, signal.SIGSTOP)
    os.kill(live.pids[1], signal.SIGKILL)
    while Path(f"/proc/{live.pids[1]}/stat").read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.01)
    return live.verify()


def _server_goes_with_its_rank(live: Live) -> Done:
    for pid in (live.main, live.pids[0]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert live.server.process is not None
    status = live.server.process.wait(timeout=60)
    live.server.wait_gone(10.0)
    return Done(status, "", "\n".join(t for t in live.server.text().splitlines() if "sglang-ext: " in t))


def _verified_too_late(live: Live) -> Done:
    return live.verify()


@pytest.mark.parametrize(
    ("row", "act"),
    [
        fault("a rank killed", "FAIL", "missing_ranks", 1, ("found 1 of 2", "(TP0)", "TP1 missing"), _rank_killed),
        fault("a rank killed while serving: the launcher", "stopped", "server_ended", 1, ("while serving", "TP1 (pid", "had ended before it"), _server_goes_with_its_rank),
        fault("--run of a server that has ended", "UNKNOWN", "no_server", 3, ("has ended",), _verified_too_late),
    ],
)  # fmt: skip
def test_ended(row: Row, act: Act, live: Live, matrix: Matrix, request: pytest.FixtureRequest) -> None:
    done = act(live)
    said = refused(row, done) if row.verdict == "stopped" else outcome(row, done)
    matrix.add(request, row, said, {str(live.run): "DIR/run"})
