"""Asking a server: streams, stamped by the monotonic clock, and plain questions. While a stream runs nothing is parsed.

What the stamps mean is worked out afterwards, in `events` and `figures`; so a slow JSON parse never shows up as a slow token. How
the bytes are read is `streams`' business, how HTTP frames them `wire`'s.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.suites.suite import Workload
from sglang_ext.bench.traffic import streams, wire

PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}
KEY = "SGLANG_EXT_API_KEY"  # where a server with --api-key finds ours; never printed, never stored
SHOWN = 200  # characters of a server's own words in a message


class Address(NamedTuple):
    """Where the verified server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Fault(NamedTuple):
    """Why a run does not count: a code of `reasons` and one sentence."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Stream(NamedTuple):
    """What came over the wire: when the request went out, and each piece of the answer with the moment it was read."""

    sent: float  # by the clock of the stamps
    pieces: tuple[tuple[float, bytes], ...]
    fault: Fault | None  # the transport's; what the server said is judged with the figures
    began: float = 0.0  # `sent` as seconds since the epoch
    number: int = 0  # which of those that ran at once


class ServerError(Exception):
    """A plain question to the server was not answered; one sentence."""


def headers() -> dict[str, str]:
    key = os.environ.get(KEY)
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def body(workload: Workload, tokens: int, model: str, prompt: str) -> dict[str, Any]:
    """Greedy, exactly ``tokens`` of them, with the number of tokens so far in every chunk."""
    if workload.endpoint == "generate":
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return {"text": prompt, "stream": True, "sampling_params": sampling}
    common = {
        "model": model,
        "stream": True,
        # Without continuous_usage_stats nobody tells how many tokens the first chunk brought.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        # The number of verify steps (sglang 0.5.23 entrypoints/openai/protocol.py:393, 961); older releases pass over it.
        "return_spec_tokens_details": True,
        "temperature": 0,
        "ignore_eos": True,
    }
    if workload.endpoint == "chat":
        return {**common, "messages": [{"role": "user", "content": prompt}], "max_completion_tokens": tokens}
    return {**common, "prompt": prompt, "max_tokens": tokens}


def run_streams(
    address: Address,
    path: str,
    bodies: Sequence[Mapping[str, Any]],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stream]:
    """Send a request for each of ``bodies``, all at once, and read the answers to their ends, for ``timeout`` seconds at most."""
    sent = [wire.request("POST", str(address), path, headers(), json.dumps(one).encode()) for one in bodies]
    raw = streams.read(address.host, address.port, sent, timeout, clock)
    return [_stream(address, number, one, timeout) for number, one in enumerate(raw)]


def stream(
    address: Address,
    path: str,
    request: Mapping[str, Any],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> Stream:
    """One stream alone."""
    return run_streams(address, path, [request], timeout, clock)[0]


def _stream(address: Address, number: int, raw: streams.Raw, timeout: float) -> Stream:
    """What a connection brought, as an answer. An answer of another status than 200 has no pieces: it is the fault."""
    found = Stream(raw.sent, (), None, raw.began, number)
    fault: Fault | None = None
    if isinstance(raw.broken, TimeoutError):
        fault = Fault("run_timeout", f"expected the whole answer within {timeout:g} s, found it unfinished")
    elif raw.broken is not None:
        fault = _lost(address, len(raw.pieces), why(raw.broken))
    try:
        answer = wire.answer(raw.pieces)
    except wire.WireError as error:
        return found._replace(fault=fault or _lost(address, len(raw.pieces), str(error)))
    if answer.status != 200:
        return found._replace(fault=_refused(answer.status, b"".join(piece for _, piece in answer.pieces)))
    if fault is None and not answer.whole:
        fault = _lost(address, len(answer.pieces), "it was closed before its end")
    return found._replace(pieces=answer.pieces, fault=fault)


def _lost(address: Address, pieces: int, what: str) -> Fault:
    return Fault("connection_lost", f"the connection to {address} broke after {pieces} pieces ({what})")


def why(error: Exception) -> str:
    """The system's own words for an error. asyncio puts others into ``strerror``, so the number goes first."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__


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
    raw = _question("GET", address, path, None, timeout)
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ServerError(f"http://{address}{path}: its answer is no JSON object")
    return found


def get_text(address: Address, path: str, timeout: float = 30.0) -> str:
    """GET a text, such as /metrics. Raises ServerError."""
    return _question("GET", address, path, None, timeout).decode("utf-8", "replace")


def post(address: Address, path: str, request: Mapping[str, Any] | None = None, timeout: float = 60.0) -> bytes:
    """POST, such as /flush_cache, and the answer's bytes. Raises ServerError."""
    return _question("POST", address, path, json.dumps(request or {}).encode(), timeout)


def _question(method: str, address: Address, path: str, request: bytes | None, timeout: float) -> bytes:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        connection.request(method, path, request, headers())
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"http://{address}{path} does not answer ({why(error)})") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise ServerError(f"http://{address}{path}: {_refused(answer.status, raw).text}")
    return raw
