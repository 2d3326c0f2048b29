"""Several answers at once, read and stamped in one thread. While they run nothing is parsed, and only bytes and stamps are kept.

Each stream has a connection of its own, made before the first request is sent: what is timed is the server, not the handshake.
The kernel is asked directly (epoll) which of them have something, and where one is left it is not asked at all: its socket is
waited on. A stream at 100 tok/s wakes its reader for every token, and then every call counts: asyncio and aiohttp take more than
twice the processor time; `benchmarks/micro/client_cost.py` measures all of them.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sglang_ext.bench.traffic.wire import LAST

Clock = Callable[[], float]
END = LAST[2:]
PIECE = 1 << 14  # bytes read at once: room for this much is made for every piece, however small
LONGEST = 3600.0  # seconds of one wait; the kernel's own limit is some weeks
LONE_WAIT = 0.5  # seconds, below 1, of one wait for a stream alone, which looks at its deadline between them


class Raw(NamedTuple):
    """What one connection brought, as it came."""

    sent: float  # when its request went out, by the clock
    began: float  # the same moment as seconds since the epoch
    pieces: tuple[tuple[float, bytes], ...]
    broken: OSError | None  # why there is no more; None: the other side closed it


class _Stream:
    """One connection. Stamps and pieces are lists of their own: neither floats nor bytes wake the garbage collector."""

    __slots__ = ("broken", "pieces", "sent", "sock", "stamps", "unsent")

    def __init__(self, request: bytes) -> None:
        self.unsent = request
        self.sock: socket.socket | None = None
        self.sent = 0.0
        self.stamps: list[float] = []
        self.pieces: list[bytes] = []
        self.broken: OSError | None = None

    def connect(self, host: str, port: int, timeout: float) -> bool:
        try:
            self.sock = socket.create_connection((host, port), timeout)
            self.sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )  # a request's last segment waits for nothing
            self.sock.setblocking(False)
        except OSError as error:
            self.broken = error
        return self.broken is None

    def send(self) -> None:
        """As much of the request as the kernel takes now."""
        assert self.sock is not None
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self.broken, self.unsent = error, b""  # what the other side has to say is read all the same

    def over(self) -> bool:
        """Does what came end like an answer? A server that keeps the connection open all the same is not waited for."""
        return b"".join(self.pieces[-2:]).endswith(LAST)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def raw(self, epoch: float, first: float) -> Raw:
        pieces = tuple(zip(self.stamps, self.pieces, strict=True))
        return Raw(self.sent, epoch + self.sent - first, pieces, self.broken)


def read(host: str, port: int, requests: Sequence[bytes], timeout: float, clock: Clock) -> list[Raw]:
    """Send all ``requests`` at once and read every answer to its end, for ``timeout`` seconds at most.

    Where one connection cannot be made nothing is sent: with fewer streams than asked for it is another measurement.
    """
    streams = [_Stream(request) for request in requests]
    try:
        if not all(stream.connect(host, port, timeout) for stream in streams):
            other = OSError(f"another of the {len(requests)} connections could not be made, so nothing was sent")
            return [Raw(0.0, 0.0, (), stream.broken or other) for stream in streams]
        epoch = _run(streams, timeout, clock)
        return [stream.raw(epoch, streams[0].sent) for stream in streams]
    finally:
        for stream in streams:
            stream.close()


def _run(streams: Sequence[_Stream], timeout: float, clock: Clock) -> float:
    """Send and read; when the first request went out, as seconds since the epoch."""
    running: dict[int, _Stream] = {}
    with select.epoll() as ready:
        for stream in streams:
            assert stream.sock is not None
            running[stream.sock.fileno()] = stream
            ready.register(stream.sock.fileno(), select.EPOLLIN)
        epoch = time.time()
        for stream in streams:
            stream.sent = clock()
            stream.send()
        for number, stream in running.items():
            if stream.unsent:  # a prompt longer than the kernel's buffer
                ready.modify(number, select.EPOLLIN | select.EPOLLOUT)
        deadline = time.monotonic() + timeout
        while running and (left := deadline - time.monotonic()) > 0:
            if len(running) == 1 and not any(stream.unsent for stream in running.values()):
                _alone(running, deadline, clock)
                continue
            for number, event in ready.poll(min(left, LONGEST)):
                stream = running[number]
                if event == select.EPOLLOUT:
                    stream.send()
                    if not stream.unsent:
                        ready.modify(number, select.EPOLLIN)
                elif not _take(stream, clock):
                    ready.unregister(number)
                    del running[number]
                    stream.close()
    for stream in running.values():
        stream.broken = TimeoutError()
    return epoch


def _alone(running: dict[int, _Stream], deadline: float, clock: Clock) -> None:
    """Read the only one of ``running`` to its end, with one call of the system for a piece, or until the deadline has passed."""
    (stream,) = running.values()
    assert stream.sock is not None
    # Not settimeout: with that Python asks the kernel twice, first whether there is something to read.
    stream.sock.setblocking(True)
    wait = 0.0
    while (left := deadline - time.monotonic()) > 0:
        if left < wait or not wait:
            wait = min(left, LONE_WAIT)
            limit = struct.pack("ll", 0, max(1, int(1e6 * wait)))  # 0 would be for ever
            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        if not _take(stream, clock):
            running.clear()
            return


def _take(stream: _Stream, clock: Clock) -> bool:
    """Read once and stamp. False: there is no more."""
    try:
        assert stream.sock is not None
        data = stream.sock.recv(PIECE)
    except BlockingIOError:
        return True
    except OSError as error:
        stream.broken = error
        return False
    if not data:
        return False
    stream.stamps.append(clock())
    stream.pieces.append(data)
    return not (data.endswith(END) and stream.over())
