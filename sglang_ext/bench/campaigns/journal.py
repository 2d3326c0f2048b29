"""The folder of a campaign: what was planned, and each launch as it ended. Written whole or not at all: so it can be resumed.

    DIR/campaign.json            the plan, fixed at the start
    DIR/launch-BBB-O-ARM.json    one launch: block, place in the block, arm; `.N` before `.json` for its Nth repetition
    DIR/logs/...                 what the servers wrote
    DIR/receipt.json             everything, once the campaign has ended; DIR/report.html the same as a page
    DIR/lock                     held while a campaign runs

The folder is ours, 0700: server logs may hold what a command line holds. The plan and each launch carry the sha256 of what is in
them, so that a slip of an editor or a bad disk is found; whoever forges one can compute the other too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import stat as stat_bits
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

SCHEMA = "sglang-ext/campaign/1"
HEAD, LOCK, LOGS, RECEIPT, PAGE = "campaign.json", "lock", "logs", "receipt.json", "report.html"
SEAL = "sha256"  # the key of a file's digest, over all its other keys
SCRATCH = re.compile(r"\.(campaign|launch-.+|receipt)\.json\.[0-9]+\.tmp")  # of a write that did not end
BIGGEST = 256 << 20  # bytes; a launch with its traces is some MiB


class JournalError(Exception):
    """A folder that cannot be used, or a file in it that is not what was written; ``code`` of `reasons`, one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def unusable(text: str) -> JournalError:
    return JournalError("campaign_folder", text)


class Journal:
    """One campaign's folder, held by this process."""

    def __init__(self, path: str, lock: int) -> None:
        self.path, self._lock = path, lock
        self.given = path  # as it was named: what is told of it stays short
        self.head: dict[str, Any] = {}

    @classmethod
    def open(cls, path: str) -> Journal:
        """The folder ``path``: made, or one that a campaign made. Raises JournalError where it is anything else."""
        given, path = os.path.normpath(path), os.path.abspath(path)
        try:
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)  # an odd umask must not open it
        except FileExistsError:
            pass
        except OSError as error:
            raise unusable(
                f"campaign folder {path} cannot be made ({error.strerror}); name another with --out"
            ) from None
        check_own(path)
        cls(path, -1)._head()  # before anything is written into a folder that may be somebody else's
        journal = cls(path, _lock(os.path.join(path, LOCK), path))
        journal.given = given
        for name in sorted(os.listdir(path)):
            if SCRATCH.fullmatch(name):
                os.unlink(os.path.join(path, name))  # a write that never ended: nothing was in it
        os.makedirs(os.path.join(path, LOGS), mode=0o700, exist_ok=True)
        try:
            journal.head = journal._head()
        except BaseException:
            journal.close()
            raise
        return journal

    def _head(self) -> dict[str, Any]:
        """The plan in the folder, {} where it is empty. Raises JournalError where anything else is in it."""
        found = read_json(os.path.join(self.path, HEAD))
        if found is None:
            others = sorted(n for n in os.listdir(self.path) if n not in (LOCK, LOGS) and not SCRATCH.fullmatch(n))
            if others:
                raise unusable(
                    f"campaign folder {self.path}: expected {HEAD} or an empty folder, found {others[0]}; name another"
                )
            return {}
        if found.get("schema") != SCHEMA:
            raise unusable(
                f"{self.path}/{HEAD}: expected schema {SCHEMA}, found {found.get('schema')!r}; name another folder"
            )
        return _unsealed(found, f"{self.path}/{HEAD}")

    def close(self) -> None:
        os.close(self._lock)

    def begin(self, head: Mapping[str, Any]) -> None:
        """Write the plan of a new campaign."""
        self.head = {"schema": SCHEMA, **head}
        self.write(HEAD, sealed(self.head))

    def log(self, stem: str) -> str:
        """A path for a server's log, of a file that is not there yet; in the folder as it was named, since it is told."""
        number, path = 1, os.path.join(self.given, LOGS, f"{stem}.log")
        while os.path.lexists(path):
            path = os.path.join(self.given, LOGS, f"{stem}.{number}.log")
            number += 1
        return path

    def keep(self, launch: Mapping[str, Any]) -> None:
        """Write a launch, under the name of its place."""
        self.write(launch_name(launch), sealed(launch))

    def holds(self, launch: Mapping[str, Any]) -> bool:
        """Was it written? An interrupt may have come before."""
        return os.path.exists(os.path.join(self.path, launch_name(launch)))

    def forget_verdict(self) -> None:
        """Remove the receipt and the page of an end that is none any more. Raises JournalError."""
        for name in (RECEIPT, PAGE):
            try:
                os.unlink(os.path.join(self.path, name))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise unusable(
                    f"{self.path}/{name} of before cannot be removed ({error.strerror}); move it away, then run it again"
                ) from None
        _sync(self.path)

    def launches(self) -> list[dict[str, Any]]:
        """Every launch in the folder, in the order they were made. Raises JournalError for one that is not ours, or torn."""
        found = []
        arms = {name for block in self.head["plan"]["blocks"] for name in block}
        for name in sorted(os.listdir(self.path)):
            if not name.startswith("launch-"):
                continue
            path = os.path.join(self.path, name)
            launch = read_json(path)
            if launch is None:
                raise _foreign(path, " was there and is gone")
            launch = _unsealed(launch, path)
            if launch.get("campaign") != self.head["id"]:
                raise _foreign(path, f": expected a launch of this campaign ({self.head['id']}), found another's")
            if launch.get("arm") not in arms or not _has_shape(launch) or launch_name(launch) != name:
                raise _foreign(path, " is not as a campaign writes it")
            found.append(launch)
        return sorted(found, key=lambda one: (one["block"], one["attempt"], one["time"]["began"]))

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write JSON so that after a crash, of the machine too, the old file is there or the whole new one."""
        target = os.path.join(self.path, name)
        scratch = os.path.join(self.path, f".{name}.{os.getpid()}.tmp")
        try:
            handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(value, file, sort_keys=True)
                file.write("\n")
                file.flush()
                os.fsync(handle)
            os.replace(scratch, target)
            _sync(self.path)
        except BaseException as error:
            try:
                os.unlink(scratch)
            except OSError:
                pass  # it was never made, or has its own name by now
            if not isinstance(error, OSError):
                raise
            raise unusable(f"{target} cannot be written ({error.strerror}); make room, then run it again") from None


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in ``path``, None where there is none. Raises JournalError when it is torn or no file of ours."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(f"{path} cannot be read ({error.strerror})") from None
    with open(handle, "rb") as file:
        if not stat_bits.S_ISREG(os.fstat(handle).st_mode):
            raise _foreign(path, " is no regular file")
        raw = file.read(BIGGEST + 1)
    try:
        value = json.loads(raw) if len(raw) <= BIGGEST else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _foreign(path, " holds no whole JSON object")
    return value


def digest(value: Mapping[str, Any]) -> str:
    """The sha256 of a JSON object, but for the key that holds it: whatever blanks and order it was written with."""
    whole = json.loads(json.dumps({key: one for key, one in value.items() if key != SEAL}))
    return hashlib.sha256(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its digest in it."""
    return {**value, SEAL: digest(value)}


def _unsealed(found: dict[str, Any], path: str) -> dict[str, Any]:
    """What was sealed, without the digest. Raises JournalError where it is not that any more, or never was."""
    told = found.get(SEAL)
    if told is None:
        raise _foreign(
            path, f": expected {SEAL}, the digest of what is in it, found none, as in folders of earlier releases"
        )
    if told != digest(found):
        raise _foreign(path, ": expected the content it was written with, found another: it was edited or damaged")
    return {key: one for key, one in found.items() if key != SEAL}


def _foreign(path: str, text: str) -> JournalError:
    """``text`` goes on after the path. Without its plan a folder is no campaign's; without a launch it lacks a block."""
    fix = "restore it" if os.path.basename(path) == HEAD else "move it away (its block is repeated)"
    return JournalError(
        "journal_damaged", f"{path}{text}; it is not believed: {fix}, or begin again with another --out"
    )


def _has_shape(launch: Mapping[str, Any]) -> bool:
    """Has it what the campaign goes by?"""
    whole = (launch.get("block"), launch.get("order"), launch.get("attempt"))
    time = launch.get("time")
    return (
        all(type(value) is int and value >= 0 for value in whole)
        and launch.get("state") in ("finished", "refused", "failed", "abandoned")
        and isinstance(time, dict)
        and isinstance(time.get("began"), int | float)
        and isinstance(launch.get("runs"), list)
    )


def launch_name(launch: Mapping[str, Any]) -> str:
    """`launch-003-0-eagle3.json`, or `launch-003-0-eagle3.1.json` where it is repeated."""
    again = f".{launch['attempt']}" if launch["attempt"] else ""
    return f"launch-{launch['block']:03d}-{launch['order']}-{launch['arm']}{again}.json"


def check_own(path: str) -> None:
    """Raise JournalError unless ``path`` is a real directory, ours, closed to everybody else."""
    try:
        info = os.lstat(path)
    except OSError as error:
        raise unusable(f"campaign folder {path} cannot be read ({error.strerror}); name another with --out") from None
    if not stat_bits.S_ISDIR(info.st_mode):
        raise unusable(f"campaign folder {path}: expected a folder, found a link or file; name another with --out")
    if info.st_uid != os.geteuid():
        raise unusable(
            f"campaign folder {path}: expected it to be of uid {os.geteuid()}, found {info.st_uid}; name another"
        )
    if info.st_mode & 0o077:
        mode = stat_bits.S_IMODE(info.st_mode)
        inside = os.listdir(path)
        ours = not inside or HEAD in inside
        fix = f"run chmod 700 {shlex.quote(path)}, or name another with --out" if ours else "name another with --out"
        raise unusable(f"campaign folder {path}: expected mode 0700, found {mode:04o}; {fix}")


def _lock(path: str, folder: str) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise unusable(
            f"campaign folder {folder} is in use by a campaign that runs now; wait for it, or name another"
        ) from None
    return handle


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def finished_blocks(
    plan: Mapping[str, Any], launches: Iterable[Mapping[str, Any]]
) -> dict[int, dict[str, Mapping[str, Any]]]:
    """The blocks of which every arm has a finished launch: block -> arm -> launch."""
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for launch in launches:
        if launch["state"] == "finished":
            found.setdefault(launch["block"], {})[launch["arm"]] = launch
    return {block: arms for block, arms in found.items() if set(arms) == set(plan["blocks"][block])}


def how_far(path: str) -> tuple[int, int, str] | None:
    """Of the campaign in the folder ``path``: finished blocks, planned ones, the suite's file. None where none can be read.

    For a look from outside: nothing is locked or changed.
    """
    journal = Journal(os.path.abspath(path), -1)
    try:
        journal.head = journal._head()
        if not journal.head:
            return None
        plan = journal.head["plan"]
        return len(finished_blocks(plan, journal.launches())), len(plan["blocks"]), journal.head["from"]["suite"]
    except (JournalError, OSError, LookupError, TypeError):
        return None


def unfinished(plan: Mapping[str, Any], launches: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Launches, finished or failed, of blocks that did not finish: their partners are missing, and will be from another time."""
    whole = finished_blocks(plan, launches)
    return (one for one in launches if one["state"] in ("finished", "failed") and one["block"] not in whole)
