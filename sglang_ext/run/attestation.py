"""What a worker says of itself: the record it stores, and the socket where it answers again.

Two sides share this file: the seams write and serve, the verifier reads and asks. A stored record is history. An answer
is *now*, and the kernel tells who gave it (SO_PEERCRED), so no other process can speak for a worker.
"""

from __future__ import annotations

import json
import os
import struct
import time

from sglang_ext.quick import TYPE_CHECKING, Any, NamedTuple
from sglang_ext.run.directory import RunDirectory

if TYPE_CHECKING:
    from _socket import socket

SCHEMA = "sglang-ext/attestation/1"
LARGEST_ANSWER = 1 << 20  # bytes
IN_ITS_PLACE = "listens in its place"  # why an answer is none: somebody else gave it


def record_name(pid: int) -> str:
    return f"workers/{pid}.json"


def socket_name(pid: int) -> str:
    return f"workers/{pid}.sock"


def short_path(directory: RunDirectory, name: str) -> tuple[int, str]:
    """A path to ``name`` that always fits sun_path's 108 bytes: through an open descriptor of its folder.

    Returns the descriptor (the caller closes it) and the path.
    """
    folder, base = os.path.split(directory.file(name))
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return handle, f"/proc/self/fd/{handle}/{base}"


def digest(record: dict[str, Any]) -> str:
    """The sha256 of a record: the worker names it in every answer, so that an edited file does not speak for it."""
    from sglang_ext.quick import sha256

    return sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def peer_pid(connection: socket) -> int:
    """The process at the other end of a unix socket, as the kernel knows it, in our pid namespace."""
    from _socket import SO_PEERCRED, SOL_SOCKET

    size = struct.calcsize("3i")
    pid: int
    pid, _uid, _gid = struct.unpack("3i", connection.getsockopt(SOL_SOCKET, SO_PEERCRED, size))
    return pid


def is_record(value: dict[str, Any] | None, pid: int, start_time: int) -> bool:
    """Is this a record of exactly this process, in a shape we can read? A stale or forged one is not."""
    if (
        value is None
        or value.get("schema") != SCHEMA
        or (value.get("pid"), value.get("start_time")) != (pid, start_time)
    ):
        return False
    entered = value.get("entered")
    return (
        isinstance(entered, dict)
        and isinstance(entered.get("values"), dict)
        and isinstance(entered.get("repaired"), list)
        and isinstance(value.get("rank"), dict)
        and isinstance(value.get("hook"), dict)
    )


class Call(NamedTuple):
    """A question a worker has been sent. ``connection`` None: it could not be put to it, and ``why`` says why."""

    connection: socket | None
    deadline: float  # time.monotonic()
    timeout: float  # seconds
    why: str


def dial(directory: RunDirectory, pid: int, timeout: float = 1.0, *, inner: int | None = None) -> Call:
    """Have worker ``pid`` read its environment again, now; ``inner``: its pid for itself, where that is another.

    The answer is for `hear`: many workers are asked at once and answer while the first is heard. ``timeout``: seconds they have.
    """
    from _socket import AF_UNIX, SOCK_STREAM, socket  # the module socket around it takes 4 ms to import

    deadline = time.monotonic() + timeout
    try:
        handle, path = short_path(directory, socket_name(inner or pid))
    except OSError as error:
        return Call(None, deadline, timeout, f"its run directory cannot be opened ({error.strerror})")
    connection = socket(AF_UNIX, SOCK_STREAM)
    why = ""
    try:
        connection.settimeout(timeout)
        connection.connect(path)
        if (peer := peer_pid(connection)) != pid:
            why = f"process {peer} {IN_ITS_PLACE}"
    except TimeoutError:
        why = f"it did not answer within {timeout:g} s"
    except OSError as error:
        why = f"its socket does not answer ({error.strerror})"
    finally:
        os.close(handle)
    if why:
        connection.close()
    return Call(None if why else connection, deadline, timeout, why)


def hear(call: Call) -> tuple[dict[str, Any] | None, str]:
    """``(answer, "")``, or ``(None, why)`` when nobody answered in time or somebody else did. Ends the call."""
    connection = call.connection
    if connection is None:
        return None, call.why
    chunks = bytearray()
    try:
        while True:
            connection.settimeout(max(call.deadline - time.monotonic(), 0.001))
            chunk = connection.recv(65536)
            if not chunk:
                break
            chunks += chunk
            if len(chunks) > LARGEST_ANSWER:
                return None, "its answer has no end"
    except TimeoutError:
        return None, f"it did not answer within {call.timeout:g} s"
    except OSError as error:
        return None, f"its socket does not answer ({error.strerror})"
    finally:
        connection.close()
    try:
        answer = json.loads(bytes(chunks))
    except (ValueError, RecursionError):
        return None, "its answer was cut off"
    if not isinstance(answer, dict) or not isinstance(answer.get("values"), dict):
        return None, "its answer has another shape than ours"
    return answer, ""


def ask(
    directory: RunDirectory, pid: int, timeout: float = 1.0, *, inner: int | None = None
) -> tuple[dict[str, Any] | None, str]:
    """`dial` and `hear` in one: of a single worker."""
    return hear(dial(directory, pid, timeout, inner=inner))
