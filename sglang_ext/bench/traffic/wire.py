"""HTTP/1.1 as bytes, pure: what a request is, and what the pieces of an answer hold. Nothing here runs while a stream does.

A request asks the server to close the connection after its answer, which it then must (RFC 9112, 9.6): the answer ends where the
connection ends, so that whoever reads it need not understand it to know when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Pieces = Iterable[tuple[float, bytes]]  # what each read brought, and when
LAST = b"\r\n0\r\n\r\n"  # how a chunked answer without trailers ends, from the line end of the chunk before


class WireError(Exception):
    """What came is no HTTP answer; a few words."""


class Answer(NamedTuple):
    """An answer without its framing: each piece of the body keeps the moment at which it was read."""

    status: int
    pieces: tuple[tuple[float, bytes], ...]
    whole: bool  # it came to its own end; the connection did not just stop


def request(method: str, host: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """One request, to be sent in one go."""
    lines = {
        "Host": host,
        "Connection": "close",
        "Accept-Encoding": "identity",
        "Content-Length": str(len(body)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def answer(pieces: Pieces) -> Answer:
    """Read an answer. Raises WireError; one that is cut off in its body is not ``whole``."""
    status, fields, rest = _head(list(pieces))
    if fields.get("transfer-encoding", "identity").lower() == "chunked":
        body, whole = _chunked(rest)
    elif "content-length" in fields:
        body, whole = _counted(rest, _number(fields["content-length"], 10))
    else:
        body, whole = rest, True  # it ends with the connection
    return Answer(status, tuple((at, raw) for at, raw in body if raw), whole)


def _head(pieces: list[tuple[float, bytes]]) -> tuple[int, dict[str, str], list[tuple[float, bytes]]]:
    """Status, header fields by their lower-case names, and what is left."""
    head = b""
    for index, (at, raw) in enumerate(pieces):
        head += raw
        end = head.find(b"\r\n\r\n")
        if end >= 0:
            first, *lines = head[:end].decode("latin-1").split("\r\n")
            version, _, status = first.partition(" ")
            if not version.startswith("HTTP/1."):
                break
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            return _number(status[:3], 10), fields, [(at, head[end + 4 :]), *pieces[index + 1 :]]
    raise WireError("no HTTP answer" if head else "no answer")


def _chunked(pieces: list[tuple[float, bytes]]) -> tuple[list[tuple[float, bytes]], bool]:
    """The body of a chunked answer: as much of it as each read brought. What follows the last chunk is not looked at."""
    found: list[tuple[float, bytes]] = []
    line, left = b"", 0  # the begun line of a size; what is to come of the chunk, its line end included
    for at, raw in pieces:
        data, here, parts = line + raw, 0, []
        line = b""
        while here < len(data):
            if left:
                part = data[here : here + left]
                parts.append(part[: max(left - 2, 0)])
                here, left = here + len(part), left - len(part)
                continue
            end = data.find(b"\r\n", here)
            if end < 0:
                line = data[here:]
                break
            size = _number(data[here:end].partition(b";")[0].decode("latin-1"), 16)
            here, left = end + 2, size + 2
            if size == 0:
                return [*found, (at, b"".join(parts))], True
        found.append((at, b"".join(parts)))
    return found, False


def _counted(pieces: list[tuple[float, bytes]], length: int) -> tuple[list[tuple[float, bytes]], bool]:
    found: list[tuple[float, bytes]] = []
    for at, raw in pieces:
        found.append((at, raw[:length]))
        length -= len(found[-1][1])
    return found, length == 0


def _number(text: str, base: int) -> int:
    try:
        value = int(text, base)
    except ValueError:
        value = -1
    if value < 0:
        raise WireError("no HTTP answer")
    return value
