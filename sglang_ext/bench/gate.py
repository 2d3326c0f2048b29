"""The gate: a command runs only if the server is verified before, and its result counts only if it still is after."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from sglang_ext.run.process import Identity, is_alive
from sglang_ext.verify.check import unseen
from sglang_ext.verify.faults import FAULTS, code_of

SCHEMA = "sglang-ext/gate/1"
LOST = 4  # verified before, not after
TICK = 1.0  # seconds between two looks at whether the server still lives


class Watch:
    """Says once, while the command still runs, that a verified worker has ended: a long benchmark need not be waited for."""

    def __init__(self, report: dict[str, Any], say: Callable[[str], object]) -> None:
        self.say, self.told = say, False
        self.workers = [(w["label"], Identity(w["pid"], w["start_time"])) for w in report["workers"] if w["counts"]]

    def __call__(self) -> None:
        if self.told:
            return
        gone = [f"{label} (pid {identity.pid})" for label, identity in self.workers if not is_alive(identity)]
        if gone:
            self.told = True
            self.say(f"ended while the command runs, whose result will not count: {', '.join(gone)}")


def pass_through(command: Sequence[str], tick: Callable[[], object] = lambda: None) -> tuple[int, bool]:
    """Run ``command`` with our own stdio. Returns its exit status (128+N when it died of signal N), and whether we were
    told to end (SIGTERM), which is handed on to it.

    A Ctrl-C reaches the command too (same terminal); it decides, and we still verify afterwards. Where SIGINT was ignored
    when we were started ("&" in a script), the command is started so too. ``tick`` is called every second while it runs.
    """
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = signal.SIG_IGN if ignored == signal.SIG_IGN else signal.SIG_DFL
    try:
        child = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, own))
    except OSError as error:
        signal.signal(signal.SIGINT, ignored)
        raise FileNotFoundError(f"{command[0]!r} cannot be run ({error.strerror}); give a command after --") from None

    told = False

    def hand_on(number: int, _frame: object) -> None:
        nonlocal told
        told = True
        child.send_signal(number)

    terminate = signal.signal(signal.SIGTERM, hand_on)
    try:
        while True:
            try:
                status = child.wait(timeout=TICK)
                break
            except subprocess.TimeoutExpired:
                tick()
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, ignored)
    return status if status >= 0 else 128 - status, told


def gate(
    check: Callable[[], dict[str, Any]],
    exit_code: Callable[[str], int],
    command: Sequence[str],
    say: Callable[[str], object] = lambda text: None,
) -> tuple[int, dict[str, Any]]:
    """Verify, run, verify again. Returns the exit status and the report with both verifications.

    The status is the command's own when both verdicts are PASS; otherwise the first verdict's, or `LOST`.
    """
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "before": check(),
        "after": None,
        "same_server": None,
        "command": {"ran": False, "exit": None, "seconds": None, "told_to_end": None},
    }
    status = exit_code(report["before"]["verdict"])
    if status == 0:
        began = time.time()
        own, told = pass_through(command, Watch(report["before"], say))
        report["command"] = {"ran": True, "exit": own, "seconds": time.time() - began, "told_to_end": told}
        report["after"] = look_again(check, say)
        same = same_server(report["before"], report["after"])
        status = own if report["after"]["verdict"] == "PASS" and same else LOST
        report["same_server"] = same
    report["exit"] = status
    return status, report


def look_again(check: Callable[[], dict[str, Any]], say: Callable[[str], object]) -> dict[str, Any]:
    """The second verification. The command has run: what would refuse a first look must not cost its status and the report."""
    try:
        return check()
    except FAULTS as error:
        code, text = str(code_of(error)), str(error)
    except OSError as error:
        code, text = "no_server", f"it was verified before and cannot be looked at again: {error}"
    say(f"{code}: {text}")
    return unseen(code, text)


def same_server(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """The same workers, not others that took their place: by pid and start time."""

    def workers(report: dict[str, Any]) -> set[tuple[int, int]]:
        return {(w["pid"], w["start_time"]) for w in report["workers"] if w["counts"]}

    return workers(before) == workers(after)
