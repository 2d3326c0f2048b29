"""The receipt: schema sglang-ext/bench/1. Everything needed to judge a number and to take it again, and no secret."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat as stat_bits
from collections.abc import Mapping
from typing import Any

from sglang_ext import __version__
from sglang_ext.bench.campaigns import journal
from sglang_ext.bench.campaigns.journal import BIGGEST, HEAD, LOGS, RECEIPT
from sglang_ext.bench.essentials import essentials
from sglang_ext.bench.runner import INVALID, UNRECONCILED, VALID, Outcome

SCHEMA = "sglang-ext/bench/1"
SCHEMAS = (SCHEMA, journal.SCHEMA)
STATUSES = {VALID: (0,), INVALID: (1, 3, 4), UNRECONCILED: (3,), "INCONCLUSIVE": (5,)}  # the exits of each state
KINDS = {"state": (str, "a string"), "exit": (int, "a number"), "suite": (dict, "an object"), "arms": (list, "a list")}
OWN = re.compile(r"campaign\.json|launch-.*\.json|receipt\.json|lock")  # the files of a campaign folder
WINDOW = (
    "server_gen_tok_s is the server's own figure for its last window of decode steps (40 by default) that ended by the time the "
    "run was over: one window, which may hold idle time, prefill or the run before; it is no rate of the run"
)


class ReceiptError(Exception):
    """A receipt, page or plan that cannot be read or written; one sentence."""


def receipt(outcome: Outcome) -> dict[str, Any]:
    """The receipt of a bench run, VALID or not."""
    verified = outcome.before["verdict"] == "PASS" and (outcome.after or {}).get("verdict") == "PASS"
    if outcome.reason is not None and outcome.reason.code == "verdict_lost":
        verified = False  # PASS twice, but of other workers
    launch = {
        "verified": verified,
        "runs": outcome.taken.runs_json(),
        "warmups": outcome.taken.warmups_json(),
    }
    return {
        "schema": SCHEMA,
        "state": outcome.state,
        "reason": None if outcome.state == VALID else str(outcome.reason),
        "exit": outcome.status,
        "time": {"began": outcome.began, "ended": outcome.ended},
        "suite": outcome.suite.to_json(),
        "from": {"suite": os.path.abspath(outcome.suite.path), "sglang_ext": __version__},
        "fingerprint": outcome.fingerprint,
        "arms": [{"name": outcome.suite.name, "launches": [launch]}],
        "comparisons": [],
        "verify": {"before": essentials(outcome.before), "after": outcome.after and essentials(outcome.after)},
        "notes": [WINDOW],
    }


def place_of(path: str) -> str:
    """The receipt's file: ``path`` itself, or the one in the campaign folder ``path``."""
    return os.path.join(path, RECEIPT) if os.path.isdir(path) else path


def load(path: str) -> dict[str, Any]:
    """A receipt of ours, VALID or not, from its file or campaign folder. Raises ReceiptError."""
    file = place_of(path)
    if file != path and not os.path.lexists(file):
        raise ReceiptError(f"receipt {path}: expected a file, or a folder with {RECEIPT} in it, found {_without(path)}")
    found = _read(file)
    if "plan" in found and not found.keys() & {"state", "exit", "arms"}:
        raise ReceiptError(
            f"receipt {file}: expected a receipt, found the plan of a campaign; its receipt is {RECEIPT} beside it, once it "
            "has ended"
        )
    if found.get("schema") not in SCHEMAS:
        raise ReceiptError(
            f"receipt {file}: expected schema {' or '.join(SCHEMAS)}, found {found.get('schema')!r}; name one that bench run "
            "has written"
        )
    if fault := _fault(found):
        raise ReceiptError(f"receipt {file}: {fault}; name one as bench run has written it")
    return found


def _without(folder: str) -> str:
    """What a folder without a receipt is, and how it gets one."""
    far = journal.how_far(folder)
    if far is None:
        return "a folder without one; name another, or let its campaign end"
    finished, blocks, suite = far
    command = shlex.join(["sglang-ext", "bench", "run", suite, "--out", os.path.abspath(folder)])
    return (
        f"a campaign that has not ended ({finished} of {blocks} blocks finished); let it end, or go on with: {command}"
    )


def _read(path: str) -> dict[str, Any]:
    """The JSON object in ``path``. Raises ReceiptError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            regular = stat_bits.S_ISREG(os.fstat(handle).st_mode)
            raw = b"".join(iter(lambda: os.read(handle, BIGGEST), b"")) if regular else b""
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        raise ReceiptError(
            f"receipt {path}: expected a file, found none; name one that bench run has written"
        ) from None
    except OSError as error:
        raise ReceiptError(f"receipt {path} cannot be read ({error.strerror}); open it, or name another") from None
    try:
        value = json.loads(raw) if len(raw) <= BIGGEST else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        what = "something else" if regular else "no regular file"
        raise ReceiptError(
            f"receipt {path}: expected one whole JSON object, found {what}; it is torn or none of ours: take a copy of it, "
            "or measure again"
        )
    return value


def _fault(found: Mapping[str, Any]) -> str | None:
    """Why it is no result: the key, what was expected of it, and what was found."""
    for key in ("state", "reason", "exit", "suite", "arms"):
        if key not in found:
            return f"expected the key {key}, found none"
    for key, (kind, name) in KINDS.items():
        if type(found[key]) is not kind:
            return f"{key}: expected {name}, found {json.dumps(found[key])[:60]}"
    state, reason, status = found["state"], found["reason"], found["exit"]
    if state not in STATUSES:
        return f"state: expected {', '.join(STATUSES)}, found {state[:60]!r}"
    if status not in STATUSES[state]:
        return f"exit: expected {' or '.join(map(str, STATUSES[state]))} of a receipt that is {state}, found {str(status)[:60]}"
    if state == VALID and reason is not None:
        return f"reason: expected null of a receipt that is VALID, found {json.dumps(reason)[:60]}"
    if state != VALID and not (isinstance(reason, str) and reason):
        return f"reason: expected a sentence of a receipt that is {state}, found {json.dumps(reason)[:60]}"
    if not found["arms"] or not all(
        isinstance(arm, dict) and isinstance(arm.get("name"), str) for arm in found["arms"]
    ):
        return "arms: expected one or more, each with its name, found none or others"
    return None


def check_writable(path: str, what: str = "receipt") -> None:
    """Raise ReceiptError now, and not after minutes of measuring, where ``what`` could not be written."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ReceiptError(f"{what} {path}: expected a file name, found a directory; name a file in it")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ReceiptError(
            f"{what} {path}: expected a writable folder, found none at {folder}; make it or name another"
        )


def check_apart(outputs: Mapping[str, str], inputs: Mapping[str, str], folder: str | None = None) -> None:
    """Raise ReceiptError where an output would destroy an input, another output, or a file of a campaign folder.

    ``outputs`` and ``inputs``: what it is -> its path; ``folder``: the campaign's own, in which its receipt may be named again.
    """
    taken = dict(inputs)
    for what, path in outputs.items():
        for other, place in taken.items():
            if same_file(path, place):
                raise ReceiptError(f"{what} {path}: expected a file of its own, found {other}; name another file")
        own = folder is not None and what == "--json" and same_file(path, os.path.join(folder, RECEIPT))
        if not own and _of_a_campaign(os.path.realpath(path), folder):
            raise ReceiptError(
                f"{what} {path}: expected a file of its own, found a name that a campaign keeps in its folder; name another file"
            )
        taken[what] = path


def same_file(one: str, other: str) -> bool:
    """Would writing one destroy the other? By its path, and by its inode where both are there; no device or pipe is destroyed."""
    if any(os.path.lexists(path) and not os.path.isfile(path) for path in (one, other)):
        return False
    try:
        return os.path.realpath(one) == os.path.realpath(other) or os.path.samefile(one, other)
    except OSError:
        return False  # one of them is not there


def _of_a_campaign(path: str, folder: str | None) -> bool:
    """Is it a name that a campaign folder keeps for its own: the plan, launches, the receipt, the lock, what is in logs/?"""
    place, name = os.path.split(path)
    logs = os.path.basename(place) == LOGS
    held = os.path.dirname(place) if logs else place
    if not os.path.lexists(os.path.join(held, HEAD)) and (folder is None or held != os.path.realpath(folder)):
        return False
    return logs or OWN.fullmatch(name) is not None


def place_for(path: str, state: str) -> str:
    """Where a receipt of ``state`` goes that was asked for at ``path``: one without a number replaces none that has one."""
    if state == VALID or not os.path.isfile(path):
        return path
    try:
        earlier = _read(path)
    except ReceiptError:
        return path  # whatever it was, no receipt can be made of it
    if earlier.get("schema") not in SCHEMAS or earlier.get("state") != VALID:
        return path
    return _beside(path, state)


def places_for(path: str) -> list[str]:
    """Everywhere that `place_for` may put what was asked for at ``path``, the path itself first."""
    return [path, *(_beside(path, state) for state in STATUSES if state != VALID)]


def _beside(path: str, state: str) -> str:
    stem, extension = os.path.splitext(path)
    return f"{stem}.{state.lower()}{extension}"


def write(path: str, value: Mapping[str, Any], what: str = "receipt") -> None:
    """`write_text` of a JSON object."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n", what)


def write_text(path: str, text: str, what: str) -> None:
    """Write it so that a reader sees the old file or the whole new one. For sharing: with the mode the umask gives.

    Raises ReceiptError.
    """
    target = os.path.realpath(path)
    scratch = f"{target}.{os.getpid()}.tmp"
    try:
        if os.path.lexists(target) and not os.path.isfile(target):
            with open(target, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)  # a pipe or a device: renaming a file over it would destroy it
            return
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(scratch, target)
    except BaseException as error:
        try:
            os.unlink(scratch)
        except OSError:
            pass  # it was never made
        if not isinstance(error, OSError):
            raise
        raise ReceiptError(f"{what} {path} cannot be written ({error.strerror}); name another file") from None
