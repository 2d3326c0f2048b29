"""What our commands share as commands: how help is set, streams that may be closed, words of the command line, exits."""

from __future__ import annotations

import argparse
import errno
import math
import os
import stat
import sys
from collections.abc import Callable

from sglang_ext.quick import Any

STDOUT, STDERR = 1, 2
SIGINT_EXIT = 130

# argparse has its few words translated, and gettext imports locale to find that there is no catalogue: 2 ms of every start.
# Our own words are English anyway.
setattr(argparse, "_", str)  # noqa: B010  as an attribute it is argparse's own business


def width() -> int:
    """Columns of the terminal, at most 110: long lines are hard to read."""
    try:
        columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(1).columns
    except (OSError, ValueError):
        columns = 80
    return max(min(columns, 110) - 2, 40)


class Help(argparse.RawDescriptionHelpFormatter):
    """Keeps our paragraphs. With a width of its own: argparse makes a formatter at every start, help or not, and would
    import shutil (4 ms) to ask for it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=width(), max_help_position=28)


class Stream:
    """stdout or stderr where nobody may be listening: a closed one, or a pipe whose reader has gone (`| head`).

    What cannot be said then is not said; the verdict, in the exit status, stays what it is. For stdout a full disk is an error,
    and so is a broken one: EIO is nobody listening only where it comes from a terminal, one that has hung up. Of stderr nothing
    is: a server is not ended because its log's disk is full.
    """

    encoding = "utf-8"

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        try:
            while data:
                try:
                    data = data[os.write(self.handle, data) :]
                except BlockingIOError:  # another program has set O_NONBLOCK on the terminal it shares with us
                    import select

                    select.select([], [self.handle], [])
        except OSError as error:
            silent = error.errno in (errno.EPIPE, errno.EBADF) or (error.errno == errno.EIO and self._is_device())
            if not silent and self.handle != STDERR:
                raise
        return len(text)

    def _is_device(self) -> bool:
        """A terminal that has hung up no longer says that it is one; a character device it stays."""
        return stat.S_ISCHR(os.fstat(self.handle).st_mode)

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        return os.isatty(self.handle)

    def fileno(self) -> int:
        return self.handle


def open_standard_handles() -> None:
    """Have 0, 1 and 2 open, on nothing where they were closed: the next file opened would be taken for stdin or a stream."""
    for handle in (0, STDOUT, STDERR):
        try:
            os.fstat(handle)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


def run(main: Callable[[], int]) -> int:
    """Run a command's ``main`` as a process of its own; returns the exit status."""
    open_standard_handles()
    standard: Any = (Stream(STDOUT), Stream(STDERR))
    sys.stdout, sys.stderr = standard
    try:
        return main()
    except KeyboardInterrupt:
        return SIGINT_EXIT
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("sglang-ext: the output cannot be written (no space left); free some, or write it elsewhere\n")
        return 2


def given(text: str) -> str:
    """An option's value that may not be empty: an unset shell variable must not silently drop what it should have named."""
    if not text:
        raise argparse.ArgumentTypeError("expected a value, found an empty one; give it, or leave the option out")
    return text


def port(text: str) -> int:
    """A TCP port."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, found {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A finite time, not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, 0 or more, found {text!r}")
    return value


def replaceable(path: str, kind: str) -> bool:
    """May a report of this kind (`verify`, `patches`: what its schema begins with) replace what is at ``path``?

    Nothing, an empty file, a device and an earlier report may be replaced; so may a report that was torn, by a full disk.
    """
    if path.startswith(("/dev/", "/proc/")) or not os.path.isfile(path):
        return True
    import json

    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError:
        return True  # as it cannot be written either, most likely: that has words of its own
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return not raw.strip() or raw.startswith(b'{\n "')  # as all of ours begin
    return isinstance(found, dict) and str(found.get("schema")).startswith(f"sglang-ext/{kind}")
