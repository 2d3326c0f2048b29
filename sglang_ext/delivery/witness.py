"""A worker as its own witness: what its C library answers, the record it stores, the socket where it answers again."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
import time
from typing import Any

from sglang_ext import bootstrap
from sglang_ext.contract.names import is_tuning
from sglang_ext.delivery.context import Context
from sglang_ext.hide import presentable
from sglang_ext.run import attestation
from sglang_ext.run.process import myself

_libc = ctypes.CDLL(None)
_libc.getenv.restype = ctypes.c_char_p
_libc.getenv.argtypes = [ctypes.c_char_p]


def getenv(name: str) -> str | None:
    """What C code in this process gets for ``name`` now. NCCL asks here; os.environ is Python's copy from its start."""
    value: bytes | None = _libc.getenv(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def c_names() -> list[str]:
    """The names in the C environment now, those that C code set behind Python's back (nccl.conf) included."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    names, index = [], 0
    while environ and (entry := environ[index]) is not None:
        names.append(os.fsdecode(entry.partition(b"=")[0]))
        index += 1
    return names


def read_now(context: Context) -> dict[str, str | None]:
    """The contract's variables (None: absent) and every tuning variable this process holds, by getenv.

    Of one that holds credentials only that it is there: left out it would be taken for absent. This is stored, compared with
    other ranks and printed, the contract's variables included: what they hold need not be what the contract wants.
    """
    names = {*context.contract.terms, *(name for name in c_names() if is_tuning(name))}
    return {name: presentable(getenv(name)) for name in sorted(names)}


class Witness:
    """The record of this worker; every change is stored at once, so that the last word survives the process."""

    def __init__(self, context: Context, rank: dict[str, int | None]) -> None:
        self.context = context
        self._lock = threading.Lock()  # what is answered and what is stored are of one moment
        me = myself()
        self.record: dict[str, Any] = {
            "schema": attestation.SCHEMA,
            "run": context.id,
            "contract": context.contract.digest,
            "pid": me.pid,
            "start_time": me.start_time,
            "role": "scheduler",
            "rank": rank,
            "hook": self._hook(),
        }

    @staticmethod
    def _hook() -> dict[str, Any]:
        status = bootstrap.STATUS
        return {
            "mode": status.mode,
            "why": status.why,
            "patchset": status.digest,
            "local": list(status.local),
            "imported": status.hashes,
        }

    def entered(self, found: dict[str, str | None], repaired: list[str]) -> None:
        """First line: what was found before anything was touched, and what was repaired then."""
        self.store("entered", {"time": time.time(), "values": found, "repaired": repaired})

    def ready(self, values: dict[str, str | None], agreement: dict[str, Any], shape: dict[str, Any] | None) -> None:
        """The scheduler is built: what is there now, who agreed, what the model communicates."""
        self.store("ready", {"time": time.time(), "values": values, "agreement": agreement, "shape": shape})

    def store(self, part: str, value: dict[str, Any]) -> None:
        """Add to the record, in memory and on disk."""
        with self._lock:
            self.record[part] = value
            self.context.directory.write(attestation.record_name(os.getpid()), self.record)

    def answer(self) -> bytes:
        """A reading taken now, on request, and which record this worker stored."""
        with self._lock:
            stored = attestation.digest(self.record)
        now = {"time": time.time(), "pid": os.getpid(), "values": read_now(self.context), "record": stored}
        return json.dumps(now).encode()

    def serve(self) -> None:
        """Answer re-read requests from a daemon thread; it sleeps in accept() and costs nothing until asked."""
        handle, path = attestation.short_path(self.context.directory, attestation.socket_name(os.getpid()))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)  # its folder is 0700: nobody can connect before the chmod
            os.chmod(path, 0o600)
            listener.listen(128)
        finally:
            os.close(handle)
        threading.Thread(target=self._loop, args=(listener,), name="sglang-ext-witness", daemon=True).start()

    def _loop(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(2.0)
                    connection.sendall(self.answer())
            except OSError:
                time.sleep(0.05)  # whoever asked went away, or no descriptor is left: the next one is answered
