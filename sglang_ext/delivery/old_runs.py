"""Run directories of launches that have ended: kept a day for reading, then dropped by the next launch of the same user."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

from sglang_ext.run import directory as runs
from sglang_ext.run.process import Identity, is_alive, namespace

KEEP_DEAD_RUNS = 24 * 3600.0  # seconds a dead run's directory is kept for reading
# An empty file whose time says when the run ended, or was first found without its owner: a full disk can take it still.
ENDED = "ended"


def mark_ended(directory: runs.RunDirectory) -> None:
    """Note that the run has ended, now; what was noted before stays."""
    try:
        os.close(os.open(directory.file(ENDED), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        pass  # it is noted already; or the directory is gone or closed, and then a later launch leaves it alone


def is_elsewhere(run: dict[str, Any]) -> bool:
    """Was the run started in another pid namespace, a container's with the same /tmp? Its owner cannot be looked for here.

    Directories of earlier releases do not say; they are taken for ours, as they always were.
    """
    stated, ours = run.get("pid_namespace"), namespace("self", "pid")
    return bool(stated and ours and stated != ours)


def prune(base: str) -> None:
    """Drop from ``base`` the runs that have shown no life for a day; whatever looks odd is left alone.

    When a server that was killed ended, nobody has noted: it may have served for weeks without a word in its directory. So
    the first launch that finds a run without its owner only notes that, and its day begins then.
    """
    try:
        runs.check_trusted(base)
        names = os.listdir(base)
    except (runs.RunError, OSError):
        return
    for name in names:
        try:
            directory = runs.RunDirectory.open(os.path.join(base, name))
            run = directory.read("run.json")
            if run is None or is_elsewhere(run):
                continue
            if is_alive(Identity(run["owner"]["pid"], run["owner"]["start_time"])):
                continue
            created = float(run["created"])
            mark_ended(directory)
            noted = os.lstat(directory.file(ENDED)).st_mtime
            if time.time() - max(created, noted, newest(directory.path)) > KEEP_DEAD_RUNS:
                shutil.rmtree(directory.path, ignore_errors=True)
        except (runs.RunError, OSError, KeyError, TypeError, ValueError):
            continue


def newest(path: str) -> float:
    """When the youngest file below ``path`` was written: workers that outlive their owner still log and attest."""
    times = [0.0]
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                times.append(os.lstat(os.path.join(folder, name)).st_mtime)
            except OSError:
                continue  # removed meanwhile
    return max(times)
