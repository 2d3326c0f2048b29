"""HTTP/1.1 framing: whatever the reads cut it into, the body and its stamps come out the same; nonsense is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_ext.bench.traffic import wire

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def chunked(bodies: list[bytes], *, end: bool = True) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in bodies) + (b"0\r\n\r\n" if end else b"")


def cut(raw: bytes, cuts: list[int]) -> list[tuple[float, bytes]]:
    """``raw`` in pieces, each stamped with the offset up to which it had been read."""
    places = sorted({place % (len(raw) + 1) for place in cuts} | {0, len(raw)})
    return [(float(b), raw[a:b]) for a, b in pairwise(places)]


@given(BODIES, st.lists(st.integers(0, 10_000), max_size=8), st.booleans())
def test_a_chunked_answer_cut_anywhere(bodies: list[bytes], cuts: list[int], end: bool) -> None:
    raw = HEAD + chunked(bodies, end=end)
    found = wire.answer(cut(raw, cuts))
    assert (found.status, found.whole) == (200, end)
    assert b"".join(piece for _, piece in found.pieces) == b"".join(bodies)
    # Each byte has the stamp of the read that brought it: with every read the body grows by what has come of it.
    places: list[int] = []
    at = len(HEAD)
    for body in bodies:
        at += len(b"%x\r\n" % len(body))
        places += range(at + 1, at + len(body) + 1)
        at += len(body) + 2
    stamps = [stamp for stamp, piece in found.pieces for _ in piece]
    reads = [stamp for stamp, _ in cut(raw, cuts)]
    assert stamps == [min(read for read in reads if read >= place) for place in places]


@given(st.binary(max_size=60), st.lists(st.integers(0, 10_000), max_size=5), st.integers(0, 5))
def test_a_counted_answer_cut_anywhere(body: bytes, cuts: list[int], missing: int) -> None:
    raw = b"HTTP/1.0 400 Bad\r\ncontent-length: %d\r\n\r\n%s" % (len(body) + missing, body)
    found = wire.answer(cut(raw, cuts))
    assert (found.status, b"".join(piece for _, piece in found.pieces), found.whole) == (400, body, missing == 0)


def test_an_answer_that_ends_with_its_connection() -> None:
    found = wire.answer([(1.0, b"HTTP/1.0 200 OK\r\n\r\nab"), (2.0, b"c")])
    assert found == wire.Answer(200, ((1.0, b"ab"), (2.0, b"c")), True)


def test_a_chunk_extension_is_not_part_of_the_size() -> None:
    assert wire.answer([(1.0, HEAD + b"2;x=1\r\nab\r\n0\r\n\r\n")]).pieces == ((1.0, b"ab"),)


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "no answer"),
        (b"HTTP/1.1 200 OK\r\n", "no HTTP answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 abc\r\n\r\n", "no HTTP answer"),
        (HEAD + b"zz\r\nab\r\n", "no HTTP answer"),
        (HEAD + b"-2\r\nab\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "no HTTP answer"),
    ],
)
def test_what_is_no_http_answer(raw: bytes, part: str) -> None:
    with pytest.raises(wire.WireError, match=part):
        wire.answer([(1.0, raw)] if raw else [])


def test_a_request_asks_for_the_connection_to_be_closed() -> None:
    raw = wire.request("POST", "127.0.0.1:1", "/generate", {"Content-Type": "application/json"}, b"{}")
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /generate HTTP/1.1", b"Host: 127.0.0.1:1", b"Connection: close", b"Accept-Encoding: identity",
        b"Content-Length: 2", b"Content-Type: application/json",
    ] and body == b"{}"  # fmt: skip
