"""Server-sent events of a finished stream, pure: what each of them brings, by the server's own count.

Tokens come from `meta_info.completion_tokens` (/generate) or `usage.completion_tokens` (the OpenAI endpoints), never from
counting events: speculative decoding, a stream interval or a busy server put several tokens into one; a role, a finish reason or
a closing usage none (sglang 0.5.23 srt/entrypoints/http_server.py:949-976, openai/serving_chat.py:2405-2805,
openai/serving_completions.py:225-504).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sglang_ext.bench.traffic.client import Fault, Stream, said

FACTS = ("prompt_tokens", "cached_tokens", "reasoning_tokens", "spec_verify_ct", "dp_rank")
# Where a fact has a place of its own besides: (field of `usage`, its key, the fact).
DETAILS = (
    ("prompt_tokens_details", "cached_tokens", "cached_tokens"),
    ("completion_tokens_details", "reasoning_tokens", "reasoning_tokens"),
)


class Chunk(NamedTuple):
    """One event that may bring tokens: when its last byte was read, and how many tokens there were in all by then."""

    at: float
    tokens: int | None  # None: this event does not say


class Timeline(NamedTuple):
    """One answer, parsed."""

    chunks: tuple[Chunk, ...]  # only those that bring tokens
    total: int | None  # the server's last word on how many tokens there are
    facts: dict[str, Any]  # FACTS, finish: where told; thought: True where reasoning text came
    text: str | None  # all of it, reasoning included; None: no event had a text
    done: bool  # the stream came to its own end
    fault: Fault | None


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
    """Read a whole answer, of any endpoint: the events themselves show which."""
    chunks: list[Chunk] = []
    facts: dict[str, Any] = {}
    parts: list[str] = []
    seen, total = 0, None
    spoke, done, fault = False, False, stream.fault
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
        piece, repeats = _text(event, count, facts)
        if piece is not None:
            spoke = True
            if repeats:
                parts.clear()
            parts.append(piece)
        if count is not None:
            if count < seen:
                fault = fault or Fault(
                    "usage_missing", f"the token count fell from {seen} to {count}: it is no running total"
                )
            brings = brings and count > seen
            seen, total = max(seen, count), count
        elif "choices" in event:  # a role or a finish reason comes alone, with an empty text at most
            brings = brings and bool(piece)
        if brings:
            chunks.append(Chunk(at, count))
    return Timeline(tuple(chunks), total, facts, "".join(parts) if spoke else None, done, fault)


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
    meta, usage, extra = event.get("meta_info"), event.get("usage"), event.get("sglext")
    for source in (meta, usage, extra.get("spec_tokens_details") if isinstance(extra, dict) else None):
        if isinstance(source, dict):
            facts.update({name: source[name] for name in FACTS if name in source})
            for field, key, name in DETAILS:
                details = source.get(field)
                if isinstance(details, dict) and key in details:
                    facts[name] = details[key]
    if isinstance(meta, dict):
        finish = meta.get("finish_reason")
        facts["finish"] = finish.get("type") if isinstance(finish, dict) else facts.get("finish")
        return whole(meta.get("completion_tokens")), True
    for choice in _choices(event):
        facts["finish"] = choice.get("finish_reason") or facts.get("finish")
    # A last chunk without choices only repeats the usage: whenever it comes, its tokens were there before.
    return whole(usage.get("completion_tokens")) if isinstance(usage, dict) else None, bool(event.get("choices"))


def _text(event: dict[str, Any], count: int | None, facts: dict[str, Any]) -> tuple[str | None, bool]:
    """``(the text of an event or None, does it repeat all that came before)``; notes whether it is reasoning."""
    if "choices" not in event:
        text, ids = event.get("text"), event.get("output_ids")
        # /generate repeats it, and the ids beside it, unless the server runs with --incremental-streaming-output.
        part = isinstance(ids, list) and count is not None and len(ids) < count
        return (text if isinstance(text, str) else None), not part
    found: list[str] = []
    for choice in _choices(event):
        delta = choice.get("delta")
        source = delta if isinstance(delta, dict) else choice
        thought = source.get("reasoning_content")
        facts["thought"] = facts.get("thought", False) or bool(thought)
        found += [text for text in (thought, source.get("content"), source.get("text")) if isinstance(text, str)]
    return ("".join(found) if found else None), False


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    choices = event.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
