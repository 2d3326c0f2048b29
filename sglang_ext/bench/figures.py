"""From stamps to figures, pure: what one stream shows, and what it cannot show, with the reason.

Tokens come from the server's own count in each chunk (`meta_info.completion_tokens`, or `usage`), never from counting chunks:
speculative decoding, a stream interval or a busy server put several tokens into one.

    ttft_s        t_first - t_sent                     t_first: the first chunk that brings a token
    decode_tok_s  (N - n_first) / (t_last - t_first)   n_first: the tokens of that chunk; they came before the timer began
    e2e_tok_s     N / (t_last - t_sent)
    step_ms       (t_last - t_first) / steps           steps: N - n_first; with speculation the verify steps

t_last is the last chunk that brings a token: a closing usage chunk or `[DONE]` may come later and is no token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sglang_ext.bench.client import Fault, Stream, said

NOT_RECONCILED = "comparing with the server's windows exactly (flushed, aligned) is not in this release"


class Chunk(NamedTuple):
    """One event that may bring tokens: when its last byte was read, and how many tokens there were in all by then."""

    at: float
    tokens: int | None  # None: this event does not say


class Timeline(NamedTuple):
    """One answer, parsed."""

    chunks: tuple[Chunk, ...]  # only those that bring tokens
    total: int | None  # the server's last word on how many tokens there are
    facts: dict[str, Any]  # prompt_tokens, cached_tokens, spec_verify_ct, dp_rank, finish: where told
    done: bool  # the stream came to its own end
    fault: Fault | None


class Run(NamedTuple):
    """One measured stream. A figure that is None has its reason in ``unknown``; ``fault``: the run does not count."""

    tokens: int | None
    chunks: int
    ttft_s: float | None
    decode_tok_s: float | None
    e2e_tok_s: float | None
    accept_length: float | None
    step_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    server_gen_tok_s: float | None
    unknown: dict[str, str]
    fault: Fault | None

    def to_json(self) -> dict[str, Any]:
        fields = {k: v for k, v in self._asdict().items() if k != "fault"}
        reason = str(self.fault) if self.fault else None
        return {"valid": self.fault is None, "reason": reason, **fields, "reconciled": None}


def events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    """The data of each server-sent event, and when its last data line was complete. An unfinished last line is no event."""
    rest, data, at = b"", [], 0.0
    for stamp, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
                at = stamp
            elif not line and data:
                yield at, "\n".join(data)
                data = []
    if data:  # no blank line after the last event; its line is whole
        yield at, "\n".join(data)


def parse(stream: Stream) -> Timeline:
    """Read a whole answer, of either endpoint: the events themselves show which."""
    chunks: list[Chunk] = []
    facts: dict[str, Any] = {}
    seen, total = 0, None
    done, fault = False, stream.fault
    for at, text in events(stream.pieces):
        if text == "[DONE]":
            done = True
            break
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            fault = fault or Fault("server_error", f"an event is no JSON object: {said(text)}")
            break
        if fault is None and (words := _error(event)) is not None:
            fault = Fault("server_error", f"the server stopped with an error: {words}")
        count, brings = _count(event, facts)
        if count is not None:
            if count < seen:
                fault = fault or Fault(
                    "usage_missing", f"the token count fell from {seen} to {count}: it is no running total"
                )
            brings = brings and count > seen
            seen, total = max(seen, count), count
        if brings:
            chunks.append(Chunk(at, count))
    return Timeline(tuple(chunks), total, facts, done, fault)


def _error(event: dict[str, Any]) -> str | None:
    """What an event says went wrong, in the server's words."""
    error = event.get("error")
    meta = event.get("meta_info")
    finish = meta.get("finish_reason") if isinstance(meta, dict) else None
    if error is None and isinstance(finish, dict) and finish.get("type") == "abort":
        error = finish
    if error is None and event.get("object") == "error":  # the OpenAI protocol's flat form
        error = event
    if isinstance(error, dict):
        error = error.get("message") or "it gives no message"
    return None if error is None else said(str(error))


def _count(event: dict[str, Any], facts: dict[str, Any]) -> tuple[int | None, bool]:
    """``(tokens so far or None, may it bring tokens)``; notes what else the event tells."""
    meta, usage = event.get("meta_info"), event.get("usage")
    for source in (meta, usage):
        if isinstance(source, dict):
            facts.update(
                {k: source[k] for k in ("prompt_tokens", "cached_tokens", "spec_verify_ct", "dp_rank") if k in source}
            )
            details = source.get("prompt_tokens_details")
            if isinstance(details, dict):
                facts["cached_tokens"] = details.get("cached_tokens")
    if isinstance(meta, dict):
        finish = meta.get("finish_reason")
        facts["finish"] = finish.get("type") if isinstance(finish, dict) else facts.get("finish")
        return _whole(meta.get("completion_tokens")), True
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        facts["finish"] = (isinstance(choice, dict) and choice.get("finish_reason")) or facts.get("finish")
    # A last chunk without choices only repeats the usage: whenever it comes, its tokens were there before.
    return _whole(usage.get("completion_tokens")) if isinstance(usage, dict) else None, bool(choices)


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def figures(stream: Stream, asked: int, *, speculative: bool | None) -> Run:
    """The figures of one stream of which ``asked`` tokens were wanted; ``speculative`` None: not known of this server."""
    line = parse(stream)
    chunks, total, facts = line.chunks, line.total, line.facts
    unknown = {"reconciled": NOT_RECONCILED}
    counted = bool(chunks) and all(c.tokens is not None for c in chunks) and chunks[-1].tokens == total
    first, last = (chunks[0].at, chunks[-1].at) if chunks else (stream.sent, stream.sent)
    span = last - first

    def known(name: str, value: float | None, why: str) -> float | None:
        if value is None:
            unknown[name] = why
        return value

    none_came = "no token came"
    no_count = "the server does not say how many tokens it sent"
    not_each = "the server does not say how many tokens each chunk brings, so what the first one brought is not known"
    ahead = chunks[0].tokens if counted else None  # n_first
    rest = total - ahead if counted and total is not None and ahead is not None else None
    steps, why_steps = rest, not_each
    verified, accept = _whole(facts.get("spec_verify_ct")), None
    if speculative is False:
        unknown["accept_length"] = "the server does not speculate"
    elif verified:
        accept = total / verified if total is not None else None
        # The prefill brings the first token; in a first chunk of more there are verify steps nobody tells apart.
        steps, why_steps = (verified, "") if ahead == 1 else (None, "the first chunk holds verify steps of its own")
    else:
        unknown["accept_length"] = "the answer does not say how many verify steps it took (spec_verify_ct)"
        if speculative:
            steps, why_steps = None, unknown["accept_length"]
    if speculative is not False and verified and accept is None:
        unknown["accept_length"] = no_count
    one = "all tokens came in one chunk"
    run = Run(
        tokens=total,
        chunks=len(chunks),
        ttft_s=known("ttft_s", first - stream.sent if chunks else None, none_came),
        decode_tok_s=known(
            "decode_tok_s",
            rest / span if rest is not None and span > 0 else None,
            one if rest is not None else not_each,
        ),
        e2e_tok_s=known("e2e_tok_s", total / (last - stream.sent) if chunks and total else None, no_count),
        accept_length=accept,
        step_ms=known(
            "step_ms", 1000 * span / steps if steps and span > 0 else None, why_steps if steps is None else one
        ),
        prompt_tokens=_whole(facts.get("prompt_tokens")),
        cached_tokens=_whole(facts.get("cached_tokens")),
        server_gen_tok_s=None,
        unknown=unknown,
        fault=line.fault,
    )
    if total is None:
        unknown["tokens"] = no_count
    for name in ("prompt_tokens", "cached_tokens"):
        if getattr(run, name) is None:
            unknown[name] = "the server does not say"
    return run if run.fault else run._replace(fault=_judge(run, line, asked))


def _judge(run: Run, line: Timeline, asked: int) -> Fault | None:
    """Why an answer that came without an error does not count."""
    if not line.done:
        return Fault("connection_lost", f"the stream ended without [DONE] after {run.chunks} chunks with tokens")
    if run.tokens is not None and run.tokens != asked:
        ended = f" (finish reason: {line.facts['finish']})" if line.facts.get("finish") else ""
        return Fault("wrong_length", f"expected {asked} tokens, found {run.tokens}{ended}")
    if run.decode_tok_s is None:
        return Fault("usage_missing", f"no decode rate can be stated: {run.unknown['decode_tok_s']}")
    return None
