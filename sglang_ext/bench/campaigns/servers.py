"""An arm's server, from the harness's side: started through a keeper, waited for, ended with everything it started.

    with servers.start(argv, environment, log) as server:
        server.wait_until_it_serves(port, timeout, tell)

Leaving the block ends it. So does the harness's own death, whatever it is of: see `keeper`.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from sglang_ext.bench.fingerprint import harmless
from sglang_ext.bench.report.text import printable
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.delivery.ending import send
from sglang_ext.delivery.supervisor import interpreter_flags
from sglang_ext.hide import presentable
from sglang_ext.reasons import TABLE
from sglang_ext.run.listeners import listeners
from sglang_ext.run.process import Identity, Stat, all_stats, is_alive
from sglang_ext.verify.discover import children, descendants
from sglang_ext.verify.select import NoServerError, every, names

HOST = "127.0.0.1"
PORTS = range(20000, 32000, 7)  # below Linux's ephemeral range: a connection made meanwhile cannot take one
LOOK = 0.5  # seconds between two questions whether it serves
TOLD = 30.0  # seconds between two signs of life while it starts
ANSWER = 10.0  # seconds for one such question
ENDING = 120.0  # seconds the keeper may take to end everything; its own limits add up to less
READY = ("/ready", "/health")  # the first that the release knows: /health may generate a token at every look
OUR_WORDS = re.compile(r"^sglang-ext: (.+)$", re.MULTILINE)
STOPPING = "stopping the server: "  # what the launcher says of a verdict it may not serve with
SEE_LOG = "; see its log above"  # how the launcher ends where a terminal shows the log; here it is a file, and named
ERROR = re.compile(r"(?:\[[^\]]*\] *)?((?:\w+\.)*\w*(?:Error|Exception)(?::.*|$))")  # behind the prefix of a log line
QUOTED = 200  # characters of such a line that are told
LAST_WORDS = 64 << 10  # bytes of a log's end that are looked through


class LaunchError(Exception):
    """A server that does not serve; ``fault`` says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.fault = Fault(code, text)


class Left(NamedTuple):
    """How a server ended: how many of its processes had to be killed, and which are there all the same."""

    killed: int
    there: tuple[int, ...]


def free_port(ports: Sequence[int] = PORTS) -> int:
    """A port nobody listens on. Raises LaunchError where there is none."""
    first = os.getpid() % len(ports)  # two campaigns on one host begin at different ones
    for port in (*ports[first:], *ports[:first]):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise LaunchError("port_taken", f"expected a free port from {ports[0]} to {ports[-1]}, found every one taken")


def leftovers(spare: frozenset[int] = frozenset()) -> Fault | None:
    """SGLang servers that run on this host already and are none of ``spare`` (pids): whatever they use is not the arm's."""
    try:
        found = [server for server in every() if not server.pids & spare]
    except NoServerError:
        return None
    if not found:
        return None
    return Fault(
        "server_left_over",
        f"expected no other SGLang server on this host, found {names(found)}; end it, or wait for it",
    )


class Server:
    """One server and its keeper."""

    def __init__(self, keeper: subprocess.Popen[bytes], log: str) -> None:
        self.keeper, self.log = keeper, log
        self.main = Identity(0, 0)
        self.status: int | None = None  # of the first process, once it has ended
        self.left: Left | None = None
        self._heard = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> set[int]:
        """Every process of this server now, its first and its keeper among them."""
        below = descendants(self.keeper.pid, children(all_stats()))
        return {self.keeper.pid, *(entry.pid for entry in below)}

    def listen(self, timeout: float) -> dict[str, Any] | None:
        """The keeper's next word, or None when it says nothing within ``timeout`` seconds. {} when it is gone."""
        assert self.keeper.stdout is not None
        handle, deadline = self.keeper.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._heard:
            if not select.select([handle], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                return None
            piece = os.read(handle, 4096)
            if not piece:
                return {}
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        if "ended" in found:
            self.status = found["ended"]
        return found

    def check(self, timeout: float = 0.0) -> None:
        """Raise LaunchError once the server has ended by itself, or its keeper was killed."""
        found = self.listen(timeout)
        if found == {}:
            raise LaunchError(
                "keeper_lost", f"the keeper of the server (pid {self.keeper.pid}) was ended by somebody else"
            )
        if found is not None and "ended" in found:
            raise LaunchError(*self.why_it_ended())

    def why_it_ended(self) -> tuple[str, str]:
        """Code and sentence: the launcher's own where it gave one."""
        words = last_words(self.log)
        said, error = OUR_WORDS.findall(words), last_error(words)
        why = f"; its last error: {error}" if error else ""
        code, colon, text = said[-1].partition(": ") if said else ("", "", "")
        if colon and code in TABLE:
            return code, text.removesuffix(SEE_LOG) + (why if code == "server_ended" else "")
        if said and said[-1].startswith(STOPPING):
            return "not_verified", f"the launcher did not let it serve: {said[-1].removeprefix(STOPPING)}"
        status = self.status
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return "server_ended", f"the server ended with {how}{why}"

    def wait_until_it_serves(self, port: int, timeout: float, tell: Callable[[str], None]) -> float:
        """Wait until it says it is ready, and it is who listens there; returns when that was (time.time()).

        Raises LaunchError when it ends before, or is not ready within ``timeout`` seconds.
        """
        began = told = time.monotonic()
        while True:
            self.check(LOOK)
            waited = time.monotonic() - began
            if listening(port):
                if not listeners(port, self.pids):
                    raise LaunchError(
                        "port_taken",
                        f"port {port}, free a moment ago, is answered by a process that is not the server's",
                    )
                if ready(port):
                    return time.time()
            if waited > timeout:
                raise LaunchError(
                    "server_not_ready", f"expected it ready within {timeout:g} s (ready_timeout_s), found it is not"
                )
            if time.monotonic() - told >= TOLD:
                told = time.monotonic()
                tell(f"starting, {waited:.0f} s so far")

    def stop(self) -> Left:
        """End it and everything it started. Safe to call again. An interrupt meanwhile ends the grace, and is raised once nothing
        is left to end: whoever asked for the end of the campaign meant more than this server's.
        """
        if self.left is not None:
            return self.left
        word, told = b"end\n", None
        while self.left is None:
            try:
                self.left = self._end(word)
            except KeyboardInterrupt as interrupt:
                word, told = b"kill\n", interrupt
        for pipe in (self.keeper.stdin, self.keeper.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass  # nobody is at its other end
        self.keeper.wait()
        if told is not None:
            raise told
        return self.left

    def _end(self, word: bytes) -> Left:
        """Tell the keeper, and wait for its last one."""
        self._say(word)
        found = self._last(ENDING)
        if "left" in found:
            return Left(int(found.get("killed", 0)), tuple(found["left"]))
        # The keeper was killed: the kernel told the server to end, and what stays is ended here.
        self.keeper.kill()
        return sweep(self.main)

    def _say(self, word: bytes) -> None:
        assert self.keeper.stdin is not None
        try:
            self.keeper.stdin.write(word)
            self.keeper.stdin.flush()
        except OSError:
            pass  # it is gone; `listen` tells

    def _last(self, timeout: float) -> dict[str, Any]:
        """What the keeper says at its end."""
        deadline = time.monotonic() + timeout
        while (found := self.listen(max(deadline - time.monotonic(), 0.0))) is not None:
            if found == {} or "left" in found:
                return found
        return {}


def start(argv: Sequence[str], environment: Mapping[str, str], log: str) -> Server:
    """Start a server that writes to ``log``. Raises LaunchError."""
    keeper = subprocess.Popen(
        [sys.executable, *interpreter_flags(), "-m", "sglang_ext.bench.campaigns.keeper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    server = Server(keeper, log)
    try:
        server._say(json.dumps({"argv": list(argv), "environment": dict(environment), "log": log}).encode() + b"\n")
        found = server.listen(ENDING) or {}
        if "pid" not in found:
            raise LaunchError("server_ended", found.get("failed", "the keeper of the server said nothing"))
        server.main = Identity(found["pid"], found["start_time"])
    except BaseException:
        server.stop()
        raise
    return server


def sweep(main: Identity) -> Left:
    """End what is left of a server whose keeper was killed: the session of its first process, by pid and start time."""
    if main.pid == 0:
        return Left(0, ())
    deadline = time.monotonic() + ANSWER
    while is_alive(main) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed, there = 0, [s for s in all_stats().values() if _of(main, s)]
    deadline = time.monotonic() + ANSWER
    while there and time.monotonic() < deadline:
        killed += sum(send(entry.identity, signal.SIGKILL) for entry in there)
        time.sleep(0.05)
        there = [s for s in all_stats().values() if _of(main, s)]
    return Left(killed, tuple(entry.pid for entry in there))


def _of(main: Identity, entry: Stat) -> bool:
    # A session whose leader is gone keeps its number from being given to another process while somebody is in it.
    return bool(entry.alive and entry.session == main.pid and entry.start_time >= main.start_time)


def listening(port: int) -> bool:
    """Does anybody listen on ``port`` here?"""
    with socket.socket() as probe:
        probe.settimeout(ANSWER)
        return probe.connect_ex((HOST, port)) == 0


def ready(port: int) -> bool:
    """Does the server on ``port`` say that it serves?"""
    for path in READY:
        connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if status != 404:
            return status == 200
    return False


def last_error(words: str) -> str | None:
    """The last line of a log that looks like an exception's, as far as it may be shown."""
    for line in reversed(words.splitlines()):
        if found := ERROR.match(line.strip()):
            shown = printable(presentable(harmless(found[1])) or "")
            return shown if len(shown) <= QUOTED else f"{shown[: QUOTED - 3]}..."
    return None


def last_words(log: str) -> str:
    """The end of a log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(os.path.getsize(log) - LAST_WORDS, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
