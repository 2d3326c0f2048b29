"""One stream of one server, stamped by the monotonic clock. While it runs nothing is parsed: the loop reads and stamps.

What the stamps mean is worked out afterwards, in `figures`; so a slow JSON parse never shows up as a slow token.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sglang_ext.bench.suite import Workload

PATHS = {"generate": "/generate", "completions": "/v1/completions"}
KEY = "SGLANG_EXT_API_KEY"  # where a server with --api-key finds ours; never printed, never stored
PIECE = 1 << 16
SHOWN = 200  # characters of a server's own words in a message


class Address(NamedTuple):
    """Where the verified server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Fault(NamedTuple):
    """Why a run does not count: a code of `reasons` and one sentence."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Stream(NamedTuple):
    """What came over the wire: when the request went out, and each piece with the moment it was read."""

    sent: float
    pieces: tuple[tuple[float, bytes], ...]
    fault: Fault | None  # the transport's; what the server said is judged with the figures


class ServerError(Exception):
    """A plain question to the server was not answered; one sentence."""


def headers() -> dict[str, str]:
    key = os.environ.get(KEY)
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def body(workload: Workload, tokens: int, model: str) -> dict[str, Any]:
    """Greedy, exactly ``tokens`` of them, with the number of tokens so far in every chunk."""
    if workload.endpoint == "generate":
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return {"text": workload.prompt, "stream": True, "sampling_params": sampling}
    # Without continuous_usage_stats nobody tells how many tokens the first chunk brought.
    usage = {"include_usage": True, "continuous_usage_stats": True}
    return {
        "model": model,
        "prompt": workload.prompt,
        "stream": True,
        "stream_options": usage,
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def stream(
    address: Address,
    path: str,
    request: Mapping[str, Any],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> Stream:
    """Send one request and read its answer to the end, for ``timeout`` seconds at most.

    The connection is made before the clock starts: what is timed is the server, not the handshake.
    """
    pieces: list[tuple[float, bytes]] = []
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    sent = clock()
    deadline = sent + timeout
    fault: Fault | None = None
    try:
        connection.connect()
        wire = connection.sock  # getresponse() lets go of it when the server closes after this answer
        sent = clock()
        connection.request("POST", path, json.dumps(request).encode(), headers())
        answer = connection.getresponse()
        if answer.status != 200:
            return Stream(sent, (), _refused(answer.status, answer.read(PIECE)))
        while True:
            wire.settimeout(max(deadline - clock(), 0.001))
            piece = answer.read1(PIECE)
            if not piece:
                break
            pieces.append((clock(), piece))
    except TimeoutError:
        fault = Fault("run_timeout", f"expected the whole answer within {timeout:g} s, found it unfinished")
    except (OSError, http.client.HTTPException) as error:
        what = getattr(error, "strerror", None) or type(error).__name__
        fault = Fault("connection_lost", f"the connection to {address} broke after {len(pieces)} pieces ({what})")
    finally:
        connection.close()
    return Stream(sent, tuple(pieces), fault)


def _refused(status: int, raw: bytes) -> Fault:
    hint = f"; put its key into {KEY}" if status in (401, 403) else ""
    return Fault("server_error", f"the server answered HTTP {status}: {said(raw)}{hint}")


def said(raw: bytes | str) -> str:
    """A server's own words, cut and on one line."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def ask(address: Address, path: str, timeout: float = 30.0) -> dict[str, Any]:
    """GET one JSON object. Raises ServerError."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        connection.request("GET", path, headers=headers())
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException) as error:
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ServerError(f"http://{address}{path} does not answer ({what})") from None
    finally:
        connection.close()
    try:
        found = json.loads(raw) if answer.status == 200 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        fault = _refused(answer.status, raw) if answer.status != 200 else "its answer is no JSON object"
        raise ServerError(f"http://{address}{path}: {getattr(fault, 'text', fault)}")
    return found
