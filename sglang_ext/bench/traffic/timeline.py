"""When the client had how many tokens: the trace of a run, asked by token. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Moment(NamedTuple):
    """When a token was there. ``early``: how much earlier it may have been ready, as its chunk brought others too."""

    at: float
    early: float


class Timeline:
    """One stream: seconds since it was sent, and the running total of tokens, for each chunk that brought any."""

    def __init__(self, trace: Mapping[str, Any]) -> None:
        """Raises ValueError where the trace is none."""
        times, totals = trace.get("t"), trace.get("tokens")
        if not isinstance(times, Sequence) or not isinstance(totals, Sequence) or len(times) != len(totals):
            raise ValueError("the run has no trace of its tokens")
        if not totals or any(type(total) is not int for total in totals):
            raise ValueError("the server does not say how many tokens came with each chunk")
        self.times: Sequence[float] = times
        self.totals: Sequence[int] = totals

    @property
    def tokens(self) -> int:
        return self.totals[-1]

    @property
    def first(self) -> int:
        """The tokens of the first chunk."""
        return self.totals[0]

    @property
    def span(self) -> float:
        """Seconds from the first chunk to the last."""
        return self.times[-1] - self.times[0]

    def at(self, token: int) -> Moment:
        """When token number ``token``, counted from 1, was there.

        A chunk that ends with it was sent when it was ready. Of a chunk that brought more, the server tells nothing of what
        happened in between: then the moment lies on the straight line between this chunk and the one before.
        """
        here = bisect.bisect_left(self.totals, token)
        if here == len(self.totals):
            raise ValueError(f"expected {token} tokens or more, found {self.tokens}")
        if self.totals[here] == token:
            return Moment(self.times[here], 0.0)
        before, since = (self.totals[here - 1], self.times[here - 1]) if here else (0, 0.0)
        gap = self.times[here] - since
        share = (token - before) / (self.totals[here] - before)
        return Moment(since + share * gap, gap)

    def seconds(self, begin: int, end: int) -> float:
        """From token ``begin`` to token ``end``."""
        return self.at(end).at - self.at(begin).at
