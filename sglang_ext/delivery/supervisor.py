"""The supervisor: starts upstream as its child, watches over it, ends it. Torch-free: it lives beside a 1T model for weeks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from sglang_ext.delivery.context import Context
from sglang_ext.delivery.ending import end, hear_children, listen, members
from sglang_ext.delivery.guardian import Guardian
from sglang_ext.delivery.options import LOG_SUBSYSTEMS, LOG_VARIABLES, log_folder
from sglang_ext.delivery.preflight import address
from sglang_ext.delivery.vigil import SETTLE, Vigil
from sglang_ext.run.directory import RunError
from sglang_ext.run.process import Identity, is_alive, myself, stat

GRACE = 30.0  # seconds a serving upstream gets to finish its requests once asked to end
TICK = 0.1  # seconds between two looks
SILENT = 5.0  # seconds a server may answer on its port without one worker attesting
BURIAL = 5.0  # seconds a killed process has to be gone: one that waits in the kernel (state D) may never be


def interpreter_flags() -> list[str]:
    """The flags that decide whether the hook is armed: a child must be started as this process was."""
    flags = sys.flags
    if flags.isolated:
        return ["-I"]
    switches = (("-E", flags.ignore_environment), ("-s", flags.no_user_site), ("-P", flags.safe_path))
    return [switch for switch, on in switches if on]


def nccl_log(run_dir: str, what: str) -> dict[str, str]:
    """What has NCCL write a log per process into the run: it is delivered like NCCL's other variables, and demanded of nobody.

    Over what the shell says, because a log that goes elsewhere is no witness.
    """
    file = log_folder(run_dir) + "nccl.%h.%p.log"
    return dict(zip(LOG_VARIABLES, ("INFO", LOG_SUBSYSTEMS[what], file), strict=True))


class Supervisor:
    """One launch from start to end. ``say`` prints one line of progress."""

    def __init__(
        self, context: Context, arguments: Sequence[str], say: Callable[[str], None], *, log: str | None = None
    ) -> None:
        self.context, self.arguments, self.say, self.log = context, list(arguments), say, log
        self.signals: list[int] = []
        self.gone: list[str] = []  # the first workers that ended while it served, and before it did
        self.child: subprocess.Popen[bytes] | None = None
        self.main = Identity(0, 0)
        hear_children()
        # Before anything else is started or threaded: the guardian is a bare fork.
        self.guardian = Guardian()
        listen(self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signals.append(number)

    @property
    def interrupted(self) -> bool:
        return bool(self.signals)

    def start(self) -> None:
        """Start upstream in a session of its own: a Ctrl-C reaches us, and we decide whom to signal."""
        environment = dict(os.environ)
        self.context.contract.apply_to(environment)
        self.context.mark(environment)
        if self.log is not None:
            environment.update(nccl_log(self.context.directory.path, self.log))
        command = [sys.executable, *interpreter_flags(), "-m", "sglang.launch_server", *self.arguments]
        self.guardian.expect(self.context.id)
        self.child = subprocess.Popen(command, env=environment, start_new_session=True)
        started = stat(self.child.pid)
        self.main = Identity(self.child.pid, started.start_time if started else 0)
        self.guardian.watch(self.main, self.context.id)

    def ended(self) -> int | None:
        """Upstream's exit status once it has one (negative: the signal it died of)."""
        assert self.child is not None
        return self.child.poll()

    def refusal(self) -> dict[str, Any] | None:
        """The first refusal a process of the run left behind: code and message."""
        for name in self.context.directory.names("refused"):
            try:
                return self.context.directory.read(name)
            except RunError:
                continue  # half written as its process died; the log has it
        return None

    def wait_until_attested(self) -> str:
        """Wait until every expected scheduler of this node says it is built.

        Returns "ready", or why there is nothing more to wait for: "ended", "refused", "interrupted", or "silent": it
        serves already and no worker attests, so none ever will.
        """
        began = told = time.monotonic()
        probed, heard = began, None
        while True:
            if self.interrupted:
                return "interrupted"
            if self.refusal() is not None:
                return "refused"
            if self.ended() is not None:
                return "ended"
            expected, ready = self._count()
            if expected is not None and ready >= expected:
                return "ready"
            if time.monotonic() - probed >= 1.0:
                probed = time.monotonic()
                heard = (heard or probed) if self._serves() and not self.context.directory.names("workers") else None
                if heard is not None and probed - heard >= SILENT:
                    return "silent"
            if time.monotonic() - told >= 10.0:
                told = time.monotonic()
                what = "starting upstream" if expected is None else f"{ready} of {expected} workers ready"
                self.say(f"{what} ({told - began:.0f} s)")
            time.sleep(TICK)

    def _serves(self) -> bool:
        """Does upstream listen? Its port was free before it was started."""
        host, port = address(self.arguments)
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return True
        except (OSError, UnicodeError):  # the second of a host no resolver can be asked for
            return False

    def _count(self) -> tuple[int | None, int]:
        directory = self.context.directory
        server = directory.read("server.json")
        if server is None:
            return None, 0
        ready = 0
        for name in directory.names("workers"):
            try:
                record = directory.read(name)
            except RunError:
                continue
            if record and "ready" in record and is_alive(Identity(record["pid"], record["start_time"])):
                ready += 1
        return int(server["expected"]["here"]), ready

    def wait_until_ended(self) -> str:
        """Serve: returns "ended" or "interrupted". Says at once, and keeps, which workers were the first to end."""
        vigil = Vigil(self.context.directory)
        try:
            while True:
                if self.interrupted:
                    return "interrupted"
                if self.ended() is not None:
                    return "ended"
                if first := vigil.wait(TICK):
                    time.sleep(SETTLE)
                    if not self.interrupted and self.ended() is None:
                        self.gone = first
                        self.say(f"ended while the server serves: {', '.join(first)}")
        finally:
            vigil.close()

    def stop(self, grace: float = GRACE) -> list[int]:
        """End everything this launch started, and nothing else. A further signal from the user ends the grace.

        Returns the pids of what is there all the same: it has been killed, and does not come back from the kernel.
        """
        left: list[int] = []
        if self.child is not None:
            seen = len(self.signals)
            if seen and self.ended() is None:
                self.say("ending the server; interrupt again to kill it")
            spare = frozenset((os.getpid(), self.guardian.pid, os.getppid()))
            if self.ended() is None or members(self.main, self.context.id, spare):
                end(
                    self.main,
                    self.context.id,
                    grace=grace,
                    spare=spare,
                    hurry=lambda: len(self.signals) > seen,
                )
            left = self._bury(spare)
        self.guardian.dismiss()
        return left

    def _bury(self, spare: frozenset[int]) -> list[int]:
        """Wait for what has been killed, and say what does not go: no launcher may be held by it for ever."""
        assert self.child is not None
        try:
            self.child.wait(timeout=BURIAL)
        except subprocess.TimeoutExpired:
            pass  # said below, with whatever else is left
        left = members(self.main, self.context.id, spare)
        if left:
            which = ", ".join(f"{entry.pid} (state {entry.state})" for entry in left)
            self.say(
                f"not_ended: expected nothing left of this launch, found {which}, killed and still there; state D waits in the "
                "kernel for a driver or a disk: see dmesg, and restart the host where it stays"
            )
        return [entry.pid for entry in left]


def die_as(signals: Sequence[int]) -> int:
    """The exit status after the first signal received: 130 for SIGINT; of SIGTERM and SIGHUP this process really dies."""
    first = signals[0]
    if first == signal.SIGINT:
        return 130
    signal.signal(first, signal.SIG_DFL)
    os.kill(myself().pid, first)
    return 128 + first  # not reached: the default action ends the process
