"""What the last whole look at an upstream found, and by which files: a look that finds all of them untouched is spared.

A whole look reads and hashes a megabyte, in each process of a server. A record names every file and folder it rested on with
device, inode, mode, owner, size, mtime and ctime; while all of these are the same, so are the bytes:

- ctime is set by the kernel at every write, truncation, rename, chmod and chown, and by nobody else: no call sets it, so a
  changed file with its old mtime put back still shows. Whoever can forge it (root, the raw disk, the server of a file system in
  user space) can change us as well.
- A second write within one tick of the clock would not show. So nothing is recorded that was touched in the last seconds.
- What is recorded was looked at as a whole *after* the marks had been taken: a change in between leaves an old mark behind.
- Files are opened to be marked: a network file system asks its server then, and not its cache of attributes.
- A record counts only where it and the folder of copies are this user's own, and closed to everybody else; root's copies in an
  image are hashed by every process. Who can write a record could write the copies.

And it only spares finding the copies: each is hashed again, over the very bytes that run, when it is imported
(`bootstrap.Checked`). Every doubt here ends in a whole look.
"""

from __future__ import annotations

import os
import stat as stat_bits
import time

from sglang_ext.quick import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA = "sglang-ext/seen/1"
SETTLED = 3_000_000_000  # ns; the coarsest clock of a file system we know of ticks every 2 s (FAT)
LONGEST = 1 << 20  # bytes of a record; one is 3 KiB
NONE = "-"  # the mark of what is not there
END = "end"  # the last line: a record that was cut off rests on less


def place(base: str, *asked: object) -> str:
    """Where the record of a question lies: ``asked`` is everything that decides the answer and is in no file."""
    return os.path.join(base, "seen", sha256(repr((SCHEMA, os.geteuid(), *asked)).encode()).hexdigest()[:24])


def mark(path: str, before: int | None = None) -> str | None:
    """What tells this file or folder from any other state of it; None where that cannot be said, or where it was touched
    after ``before`` (ns)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return NONE
    except OSError:
        return None
    try:
        info = os.fstat(handle)
    finally:
        os.close(handle)
    if before is not None and max(info.st_mtime_ns, info.st_ctime_ns) >= before:
        return None
    return (
        f"{info.st_dev} {info.st_ino} {info.st_mode} {info.st_uid} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"
    )


def marks(paths: Iterable[str]) -> dict[str, str] | None:
    """The mark of each path; None where one cannot be had, or was touched a moment ago."""
    before = time.time_ns() - SETTLED
    found: dict[str, str] = {}
    for path in paths:
        made = mark(path, before)
        if made is None or "\n" in path or "\t" in path:
            return None
        found[path] = made
    return found


def recall(where: str) -> list[str] | None:
    """The answer recorded in ``where``, if everything it rested on is as it was; None is no statement."""
    try:
        handle = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        info = os.fstat(handle)
        if not stat_bits.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            return None
        text = os.read(handle, LONGEST).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    finally:
        os.close(handle)
    answer, _, rested = text.partition("\n\n")
    head, *lines = answer.split("\n")
    pairs = [line.partition("\t") for line in rested.split("\n") if line]
    if head != SCHEMA or pairs[-1:] != [(END, "", "")]:
        return None
    return lines if all(mark(path) == made for made, _, path in pairs[:-1]) else None


def record(where: str, answer: Sequence[str], rested_on: dict[str, str]) -> None:
    """Write it down, whole or not at all; where that cannot be, every process goes on to look for itself."""
    lines = [SCHEMA, *answer, "", *(f"{made}\t{path}" for path, made in rested_on.items()), END, ""]
    data = "\n".join(lines).encode("utf-8", "surrogateescape")
    scratch = f"{where}.{os.urandom(6).hex()}.tmp"
    try:
        os.makedirs(os.path.dirname(where), mode=0o700, exist_ok=True)
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)
        os.rename(scratch, where)
    except OSError:
        try:
            os.unlink(scratch)
        except OSError:
            pass  # it was never made
