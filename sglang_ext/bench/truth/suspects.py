"""Where client and server disagree: whose traffic it was, or what is likeliest. Pure.

A sentence here is a suspicion, and says so by what it rests on; nothing is excused by it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sglang_ext.bench.traffic.timeline import Timeline
from sglang_ext.bench.truth.server_log import Window

FACTOR = 0.02  # how near to a whole number a ratio must be to look like one
MOST = 64  # streams; above it every ratio is near to one
SURPLUS = 64  # decode tokens per stream that nobody gets: drafts beyond the last one, and an overlap step after the end


class Piece(NamedTuple):
    """One window: the leading stream's tokens at its begin and end, the tokens of all streams in it, and its rate."""

    begin: int
    end: int
    tokens: int
    tok_s: float

    @property
    def seconds(self) -> float:
        return self.tokens / self.tok_s


def others(found: Sequence[Window], streams: int) -> str | None:
    """Who else was served, by what the decode lines say; None where nobody shows."""
    most = max(window.running for window in found)
    if most > streams:
        return f"another client's traffic: expected {streams} running at most, found {most} in a decode line"
    if streams == 1 and any(window.prefills for window in found[1:]):
        return "another client's traffic: a prompt was prefilled while the stream was decoding"
    if most < streams and len(found) > 1:  # in the first window they may not have begun
        return f"other stream count: expected {streams} running, found {most} at most in the decode lines"
    if streams == 1 and any(window.queued for window in found):
        return "another client's traffic: requests were queued while the run was decoding"
    return None


def others_counted(lines: Sequence[Timeline], counted: Mapping[str, float]) -> str | None:
    """Who else was served, by the counters; None where nobody shows."""
    own = sum(line.tokens for line in lines)
    made = round(counted["generation_tokens"])
    if made > own:
        return f"another client's traffic: expected {own} generated tokens, found {made}"
    decoded, begun = counted.get("decode_tokens"), len(lines)
    if decoded is not None and not own - begun <= decoded <= own + SURPLUS * begun:
        return f"another client's traffic: expected {own - begun} decoded tokens, found {round(decoded)}"
    return None


def likeliest(
    pieces: Sequence[Piece],
    lead: Timeline,
    difference: float,
    tolerance: float,
    counted: Mapping[str, float] | None,
) -> str:
    """The likeliest reason, as the end of a sentence."""
    if counted is not None:
        return _by_counters(lead, counted) or "the way through HTTP is not even: see the trace"
    return (
        _factor(difference)
        or _window(pieces, lead, tolerance)
        or _edge(pieces, lead, difference, tolerance)
        or _clock(pieces, lead, difference)
        or _spread(pieces, lead)
    )


def _factor(difference: float) -> str | None:
    """A rate of several streams beside that of one."""
    ratio = 1 + difference
    if ratio <= 0:
        return None
    whole = round(max(ratio, 1 / ratio))
    if not 2 <= whole <= MOST or abs(max(ratio, 1 / ratio) / whole - 1) > FACTOR:
        return None
    return f"likeliest another stream count: one is {whole} times the other"


def _window(pieces: Sequence[Piece], lead: Timeline, tolerance: float) -> str | None:
    """One window without which the rest agrees."""
    if len(pieces) < 3:
        return None
    gaps = [abs(piece.seconds - lead.seconds(piece.begin, piece.end)) for piece in pieces]
    odd = gaps.index(max(gaps))
    rest = [piece for index, piece in enumerate(pieces) if index != odd]
    seconds = sum(piece.seconds for piece in rest)
    span = sum(lead.seconds(piece.begin, piece.end) for piece in rest)
    if span <= 0 or abs(seconds / span - 1) > tolerance:  # no time: all of it came in one read
        return None
    worst = pieces[odd]
    return (
        f"likeliest a boundary window: tokens {worst.begin + 1} to {worst.end} took {worst.seconds:.3f} s by the log and "
        f"{lead.seconds(worst.begin, worst.end):.3f} s by the client, and without them both agree"
    )


def _edge(pieces: Sequence[Piece], lead: Timeline, difference: float, tolerance: float) -> str | None:
    """A first or last token that came late or early enough to explain it: the shorter the span, the easier."""
    begin, end = pieces[0].begin, pieces[-1].end
    span = lead.seconds(begin, end)
    steps = [b - a for a, b in pairwise(lead.times)]
    longest = max(steps) - statistics.median(steps)
    if abs(difference) * span > longest + tolerance * span:
        return None
    return (
        f"likeliest a token that came late: of a span of {span:.2f} s single chunks are up to {1000 * longest:.0f} ms late; "
        "ask for more tokens, or leave the machine alone"
    )


def _differences(pieces: Sequence[Piece], lead: Timeline) -> list[float]:
    """server seconds / client seconds - 1, of each window."""
    spans = [(piece, lead.seconds(piece.begin, piece.end)) for piece in pieces]
    return [piece.seconds / span - 1 for piece, span in spans if span > 0]


def _clock(pieces: Sequence[Piece], lead: Timeline, difference: float) -> str | None:
    """The same difference in every window."""
    each = _differences(pieces, lead)
    if len(each) < 3 or statistics.stdev(each) > abs(difference) / 4:
        return None
    return (
        "likeliest the clocks: every window differs by the same share; was the machine suspended, or is it another one?"
    )


def _spread(pieces: Sequence[Piece], lead: Timeline) -> str:
    each = _differences(pieces, lead) or [0.0]
    return f"no one cause stands out: windows differ by {min(each):+.1%} to {max(each):+.1%}"


def _by_counters(lead: Timeline, counted: Mapping[str, float]) -> str | None:
    """The timer that starts with the first token must start with the same one."""
    inner = round(counted["inter_token_n"])
    if inner == lead.tokens - lead.first:
        return None
    return (
        f"likeliest the first-token timer: the server times {inner} tokens after its first chunk, the client "
        f"{lead.tokens - lead.first} after a first chunk of {lead.first}"
    )
