"""Who listens on a port: socket inodes of /proc/net/tcp*, matched with open descriptors (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable


def parse_table(text: str, port: int) -> set[str]:
    """Inodes of the sockets in state LISTEN (0A) on ``port``, from one /proc/net/tcp or tcp6 text."""
    inodes = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(fields[9])
    return inodes


def listeners(port: int, pids: Iterable[int]) -> set[int]:
    """Which of ``pids`` hold a listening socket on ``port``. Processes that cannot be looked into are passed over."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                inodes |= parse_table(file.read(), port)
        except OSError:
            continue
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return {pid for pid in pids if wanted and _holds(pid, wanted)}


def _holds(pid: int, wanted: set[str]) -> bool:
    try:
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for handle in handles:
        try:
            if os.readlink(f"/proc/{pid}/fd/{handle}") in wanted:
                return True
        except OSError:
            continue  # closed since it was listed
    return False
