"""The receipt: schema sglang-ext/bench/1. Everything needed to judge a number and to take it again, and no secret."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from sglang_ext.bench.campaigns import journal
from sglang_ext.bench.campaigns.journal import JournalError, read_json
from sglang_ext.bench.runner import VALID, Outcome

SCHEMA = "sglang-ext/bench/1"
SCHEMAS = (SCHEMA, journal.SCHEMA)
WINDOW = (
    "server_gen_tok_s is the server's own figure for its last window of decode steps (40 by default) that ended by the time the "
    "run was over: one window, which may hold idle time, prefill or the run before; it is no rate of the run"
)


class ReceiptError(Exception):
    """A receipt that cannot be written; one sentence."""


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
        "fingerprint": outcome.fingerprint,
        "arms": [{"name": outcome.suite.name, "launches": [launch]}],
        "comparisons": [],
        "verify": {"before": essentials(outcome.before), "after": outcome.after and essentials(outcome.after)},
        "notes": [WINDOW],
    }


def essentials(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a verify report comes to: who was judged how, and every problem. The full one is verify-env --json's."""
    workers = [
        {key: worker[key] for key in ("label", "role", "pid", "start_time", "counts", "verdict", "hook", "extras")}
        for worker in report["workers"]
    ]
    problems = [{k: p[k] for k in ("code", "severity", "worker", "variable", "message")} for p in report["problems"]]
    keys = ("schema", "verdict", "host", "time", "run", "main", "contract", "expected", "require")
    return {**{key: report[key] for key in keys}, "workers": workers, "problems": problems}


def load(path: str) -> dict[str, Any]:
    """A receipt of ours, VALID or not. Raises ReceiptError."""
    try:
        found = read_json(path)
    except JournalError as error:
        raise ReceiptError(str(error)) from None
    if found is None:
        raise ReceiptError(f"receipt {path}: expected a file, found none; name one that bench run has written")
    if found.get("schema") not in SCHEMAS:
        raise ReceiptError(f"receipt {path}: expected schema {' or '.join(SCHEMAS)}, found {found.get('schema')!r}")
    return found


def check_writable(path: str) -> None:
    """Raise ReceiptError now, and not after minutes of measuring, where no receipt could be written."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ReceiptError(f"receipt {path}: expected a file name, found a directory; name a file in it")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ReceiptError(
            f"receipt {path}: expected a writable folder, found none at {folder}; make it or name another"
        )


def place_for(path: str, state: str) -> str:
    """Where a receipt of ``state`` goes that was asked for at ``path``: one without a number replaces none that has one."""
    if state == VALID or not os.path.isfile(path):
        return path
    try:
        earlier = read_json(path)
    except JournalError:
        return path  # whatever it was, no receipt can be made of it
    if earlier is None or earlier.get("schema") not in SCHEMAS or earlier.get("state") != VALID:
        return path
    stem, extension = os.path.splitext(path)
    return f"{stem}.{state.lower()}{extension}"


def write(path: str, value: Mapping[str, Any]) -> None:
    """Write it so that a reader sees the old file or the whole new one. For sharing: with the mode the umask gives."""
    target = os.path.realpath(path)
    if os.path.lexists(target) and not os.path.isfile(target):
        _write_into(target, path, value)  # a pipe or a device: renaming a file over it would destroy it
        return
    scratch = f"{target}.{os.getpid()}.tmp"
    try:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, sort_keys=True)
            file.write("\n")
        os.replace(scratch, target)
    except BaseException as error:
        try:
            os.unlink(scratch)
        except OSError:
            pass  # it was never made
        if not isinstance(error, OSError):
            raise
        raise ReceiptError(f"receipt {path} cannot be written ({error.strerror}); name another file") from None


def _write_into(target: str, path: str, value: Mapping[str, Any]) -> None:
    try:
        with open(target, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise ReceiptError(f"receipt {path} cannot be written ({error.strerror}); name another file") from None
