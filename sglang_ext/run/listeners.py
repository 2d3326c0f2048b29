"""Who listens on a port: socket inodes of /proc/PID/net/tcp*, matched with open descriptors (proc(5)).

A container has a network of its own: its ports are in the tables of its own processes, and not in ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sglang_ext.run.process import in_our_namespace, namespace, read_whole


def parse_table(text: str, port: int) -> set[str]:
    """Inodes of the sockets in state LISTEN (0A) on ``port``, from one /proc/net/tcp or tcp6 text."""
    inodes = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(fields[9])
    return inodes


def listeners(port: int, pids: Iterable[int], *, anywhere: bool = False) -> set[int]:
    """Which of ``pids`` hold a listening socket on ``port`` of our network; ``anywhere``: or of their own.

    Processes that cannot be looked into are passed over.
    """
    found: set[int] = set()
    tables: dict[str, set[str]] = {}  # network -> what listens there, as descriptors show it
    for pid in pids:
        ours = in_our_namespace(pid, "net")
        if ours or anywhere:
            network = "ours" if ours else namespace(pid, "net")
            if network not in tables:
                tables[network] = _listening(port, "self" if ours else str(pid))
            if _holds(pid, tables[network]):
                found.add(pid)
    return found


def _listening(port: int, pid: str) -> set[str]:
    """The sockets that listen on ``port`` in the network of ``pid``."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            inodes |= parse_table(read_whole(f"/proc/{pid}/net/{table}").decode("utf-8", "replace"), port)
        except OSError:
            continue
    return {f"socket:[{inode}]" for inode in inodes}


def _holds(pid: int, wanted: set[str]) -> bool:
    try:
        handles = os.listdir(f"/proc/{pid}/fd") if wanted else []
    except OSError:
        return False
    for handle in handles:
        try:
            if os.readlink(f"/proc/{pid}/fd/{handle}") in wanted:
                return True
        except OSError:
            continue  # closed since it was listed
    return False
