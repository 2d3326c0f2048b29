"""Do the server's own figures and the client's agree on the same tokens? Pure: traces and windows in, a verdict out.

By the log, exactly. After a flush a rank counts its decode steps from zero, so window k ends with step 40k: the stream then
has 1 + 40k tokens, as the first one came from the prefill. The first window is dropped: it holds idle, HTTP and prefill. Of
the others that the stream covers, the log gives n / rate seconds each, and windows follow each other without a gap, so

    server  sum(n) / sum(n / rate)      client  sum(n) / (t[last token of the last window] - t[last token of the first])

are rates of the very same steps, by two clocks (sglang 0.5.23 srt/managers/scheduler_components/metrics_reporter.py:942-946,
batch_result_processor.py:983, 1102). With speculation a window of 40 verify steps has 40 * "accept len" tokens, and for one
stream two decimals of that are enough to know the whole number (0.005 * 40 = 0.2).

By counters, where the log does not do: the tokenizer process adds up, for every request, the time to its first token and to its
end (tokenizer_manager.py:2732-2753, 3219-3270), so their difference is the time from first token to last. A second clock too,
but behind the detokenizer: it sees what the client sees except HTTP. Its sum of inter-token latencies is not taken: it looks at
the clock once to end a gap and again to begin the next one, and what lies between (70 us a token on the rig, 0.2%) is in none.

Rates are printed with two decimals. What that may hide, and what a chunk of several tokens hides, is added to the tolerance;
where it is more than the tolerance itself, nothing can be said: UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sglang_ext.bench.traffic.timeline import Timeline
from sglang_ext.bench.truth import suspects
from sglang_ext.bench.truth.server_log import HALF, Window, since_flush
from sglang_ext.bench.truth.suspects import Piece

RECONCILED, UNRECONCILED, UNKNOWN = "RECONCILED", "UNRECONCILED", "UNKNOWN"
TOLERANCE = 0.005
INTERVAL = 40  # upstream's default of --decode-log-interval
LOG, COUNTERS = "log", "counters"
WORST = (UNRECONCILED, UNKNOWN, RECONCILED)
NOTHING = "neither a log nor counters of this server are at hand"


class Reconciliation(NamedTuple):
    """One run, or several streams at once. ``difference``: client / server - 1; ``tolerance``: what it may be."""

    state: str
    method: str
    reason: str | None
    client_tok_s: float | None = None
    server_tok_s: float | None = None
    difference: float | None = None
    tolerance: float | None = None
    windows: int = 0
    span_tokens: tuple[int, int] | None = (
        None  # of the stream that was ahead: from the arrival of one to that of the other
    )

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "span_tokens": list(self.span_tokens) if self.span_tokens else None}


class _CannotError(Exception):
    """Why nothing can be said; becomes UNKNOWN."""


class _DisagreeError(Exception):
    """Why the figures are not of the same thing; becomes UNRECONCILED without a figure."""


def reconcile(
    runs: Sequence[Mapping[str, Any]],
    windows: Sequence[Window] | None,
    counters: Mapping[str, float] | None = None,
    interval: int = INTERVAL,
) -> Reconciliation:
    """``runs``: all streams that ran at once, as RUN of a receipt. ``windows``: those of the log from before the flush to after
    the run; ``counters``: what was counted meanwhile. None: not to be had."""
    told: list[str] = []
    for method, evidence in ((LOG, windows), (COUNTERS, counters)):
        if evidence is None:
            continue
        try:
            lines = [Timeline(run.get("trace") or {}) for run in runs]
            if windows is not None and method == LOG:
                return _by_log(runs, lines, windows, interval)
            return _by_counters(lines, counters or {})
        except (_CannotError, ValueError) as error:
            told.append(str(error))
        except _DisagreeError as error:
            return Reconciliation(UNRECONCILED, method, str(error))
    return Reconciliation(UNKNOWN, LOG if counters is None else COUNTERS, "; ".join(dict.fromkeys(told)) or NOTHING)


def together(parts: Sequence[Reconciliation]) -> Reconciliation:
    """Of a launch: as bad as its worst run; the rates over all runs that have any."""
    if not parts:
        return Reconciliation(UNKNOWN, LOG, "no run was reconciled")
    state = next(state for state in WORST if any(part.state == state for part in parts))
    bad = [f"run {number}: {part.reason}" for number, part in enumerate(parts, 1) if part.state == state != RECONCILED]
    more = f"; and {len(bad) - 1} more of {len(parts)} runs" if len(bad) > 1 else ""
    reason = bad[0] + more if bad else None
    method = next(part.method for part in parts if part.state == state)
    known = [p for p in parts if p.client_tok_s and p.server_tok_s and p.span_tokens and p.method == method]
    if not known:
        return Reconciliation(state, method, reason)
    tokens = [part.span_tokens[1] - part.span_tokens[0] for part in known if part.span_tokens]
    client, server = (
        sum(tokens) / sum(n / rate for n, rate in zip(tokens, rates, strict=True))
        for rates in ([p.client_tok_s or 0.0 for p in known], [p.server_tok_s or 0.0 for p in known])
    )
    return Reconciliation(
        state,
        method,
        reason,
        client,
        server,
        client / server - 1,
        max(part.tolerance or 0.0 for part in known),
        sum(part.windows for part in known),
        known[0].span_tokens,
    )


# --- by the log


def _by_log(
    runs: Sequence[Mapping[str, Any]], lines: Sequence[Timeline], windows: Sequence[Window], interval: int
) -> Reconciliation:
    lead = _ahead(runs, lines, interval)
    found = _of_one_rank(windows)
    streams = len(lines)
    if who := suspects.others(found, streams):
        raise _DisagreeError(who)
    pieces = _pieces(found, streams, interval, lead)
    begin, end = pieces[0].begin, pieces[-1].end
    tokens = sum(piece.tokens for piece in pieces)
    seconds = sum(piece.seconds for piece in pieces)
    span = lead.seconds(begin, end)
    if span <= 0:
        raise _CannotError("all tokens of the windows came at one moment")
    rounding = 1 - seconds / sum(piece.tokens / max(piece.tok_s - HALF, 1e-9) for piece in pieces)
    blur = (lead.at(begin).early + lead.at(end).early) / span
    return _judge(LOG, tokens / span, tokens / seconds, rounding, blur, len(pieces), (begin, end), pieces, lead)


def _ahead(runs: Sequence[Mapping[str, Any]], lines: Sequence[Timeline], interval: int) -> Timeline:
    """The stream that began to decode first: it takes part in every step, so its tokens count the steps."""
    if not lines:
        raise _CannotError("there is no run")
    if len(lines) == 1:
        return lines[0]
    shortest = min(line.tokens for line in lines)
    token = min(interval, shortest)
    reached = [float(run.get("began") or 0.0) + line.at(token).at for run, line in zip(runs, lines, strict=True)]
    return lines[reached.index(min(reached))]


def _of_one_rank(windows: Sequence[Window]) -> list[Window]:
    """The windows of the run. Ranks of one DP group do the same steps, and one of them is enough."""
    if not windows:
        raise _CannotError("the log has no decode line of the run; it needs --log-level info, and enough tokens")
    groups = since_flush(windows)
    if not groups:
        raise _CannotError("the cache was not emptied before the run (/flush_cache), so its windows are not aligned")
    parallel = {found[0].data_parallel for found in groups.values()}
    if len(parallel) > 1:
        raise _CannotError(
            f"{len(parallel)} data-parallel ranks decoded, and the log does not say which served the run"
        )
    return groups[min(groups)]


def _pieces(found: Sequence[Window], streams: int, interval: int, lead: Timeline) -> list[Piece]:
    """The windows that count, each with the tokens of the leading stream at its begin and end."""
    speculative = any(window.accept_length is not None for window in found)
    if speculative and streams > 1:
        raise _CannotError("with speculation and several streams the log does not say how many tokens a window has")
    pieces: list[Piece] = []
    at = 1 + _tokens(found[0], interval, speculative)
    for before, window in pairwise(found):
        step = _tokens(window, interval, speculative)
        begin, at = at, at + step
        if at > lead.tokens:
            break  # it ends with steps whose tokens were not delivered
        if window.running == before.running == streams and window.tok_s > HALF:
            pieces.append(Piece(begin, at, step * streams, window.tok_s))
        elif pieces:
            break  # the others have ended
    if not pieces:
        raise _CannotError(
            f"no window but the first one ended within the run: {2 * interval + 1} tokens are the least, "
            f"found {lead.tokens}, and {len(found)} windows of {interval} steps"
        )
    return pieces


def _tokens(window: Window, interval: int, speculative: bool) -> int:
    """Tokens of one stream in a window of ``interval`` steps."""
    if not speculative:
        return interval
    if window.accept_length is None:
        raise _CannotError("some windows have an accept length and others have none")
    told = window.accept_length * interval
    if HALF * interval >= 0.5 or abs(told - round(told)) > HALF * interval + 1e-6:
        raise _CannotError(
            f"an accept length of {window.accept_length:.2f} is that of no whole number of tokens in {interval} steps"
        )
    return round(told)


# --- by counters


def _by_counters(lines: Sequence[Timeline], counted: Mapping[str, float]) -> Reconciliation:
    need = ("first_token_s", "end_to_end_s", "inter_token_n", "generation_tokens")
    if missing := [name for name in need if not counted.get(name)]:
        raise _CannotError(f"the server did not count {', '.join(missing)} in this run")
    own = sum(line.tokens for line in lines)
    if counted["generation_tokens"] < own:
        raise _CannotError(f"expected {own} generated tokens, found {counted['generation_tokens']:.0f} counted by now")
    if who := suspects.others_counted(lines, counted):
        raise _DisagreeError(who)
    tokens = sum(line.tokens - line.first for line in lines)
    span = sum(line.span for line in lines)
    if span <= 0 or tokens <= 0 or counted["end_to_end_s"] <= counted["first_token_s"]:
        raise _CannotError("all tokens came in one chunk")
    server = counted["inter_token_n"] / (counted["end_to_end_s"] - counted["first_token_s"])
    at = (lines[0].first, lines[0].tokens)
    return _judge(COUNTERS, tokens / span, server, 0.0, 0.0, 0, at, (), lines[0], counted)


# --- the verdict


def _judge(
    method: str,
    client: float,
    server: float,
    rounding: float,
    blur: float,
    windows: int,
    span: tuple[int, int],
    pieces: Sequence[Piece],
    lead: Timeline,
    counted: Mapping[str, float] | None = None,
) -> Reconciliation:
    """Rounding and blur, both relative, are what the figures leave open."""
    difference, tolerance = client / server - 1, TOLERANCE + rounding + blur
    reason: str | None = None
    state = RECONCILED
    if rounding + blur > TOLERANCE:
        state = UNKNOWN
        if blur > rounding:
            reason = f"chunks bring several tokens, which leaves {blur:.2%} open; stream every token, or ask for more"
        else:
            reason = f"rates are printed with two decimals, which leaves {rounding:.2%} open at {server:.2f} tok/s"
    elif abs(difference) > tolerance:
        state = UNRECONCILED
        likeliest = suspects.likeliest(pieces, lead, difference, tolerance, counted)
        reason = (
            f"expected {server:.2f} tok/s, as the server's {method} has it, found {client:.2f} ({difference:+.2%}, of "
            f"{tolerance:.2%} allowed); {likeliest}"
        )
    return Reconciliation(state, method, reason, client, server, difference, tolerance, windows, span)
