"""What a script looks like on the wire, as SGLang 0.5.23 sends it: /generate, /v1/completions, /v1/chat/completions.

After srt/entrypoints/http_server.py:949-976, srt/managers/tokenizer_manager.py:2530-2790 (/generate), and
srt/entrypoints/openai/serving_completions.py:225-504, serving_chat.py:920-1078 and 2405-2805, sse_utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.scripted.script import Script, Step, spoken

Event = dict[str, Any]


class Send(NamedTuple):
    """One event as bytes."""

    after: float  # seconds since the one before
    raw: bytes
    tokens: int  # in all, with this event; of one that brings none, as many as before


class Progress(NamedTuple):
    """What a server has sent by now."""

    tokens: int
    thoughts: int
    text: str
    last: bool


def render(script: Script, path: str, request: Mapping[str, Any]) -> list[Send]:
    """Every event of an answer to ``request``."""
    return list(FORMATS[path](script, request))


def _progress(script: Script) -> Iterator[tuple[Step, str, Progress]]:
    tokens, thoughts, text = 0, 0, ""
    for index, (step, new) in enumerate(spoken(script.steps)):
        tokens += step.tokens
        thoughts += step.tokens if step.thought and script.counts_thoughts else 0
        text += new
        yield step, new, Progress(tokens, thoughts, text, index == len(script.steps) - 1)


def _sse(event: Event | str) -> bytes:
    text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def _end(script: Script, events: list[Event]) -> Iterator[Send]:
    """What follows the last token: ``events``, or an error in their place; then [DONE], where it comes."""
    if script.ending == "cut":
        return
    if script.ending == "error":
        events = [{"error": {"message": "out of\nmemory", "type": "server_error", "code": 500}}]
    after = script.tail
    for event in events:
        yield Send(after, _sse(event), script.tokens)
        after = 0.0
    if script.ending != "no_done":
        yield Send(after, _sse("[DONE]"), script.tokens)


def _generate(script: Script, request: Mapping[str, Any]) -> Iterator[Send]:
    """Each event repeats text and ids so far."""
    ids: list[int] = []
    for step, _, so_far in _progress(script):
        ids += range(1000 + len(ids), 1000 + so_far.tokens)
        over = so_far.last and script.ending != "error"
        meta: Event = {
            "id": "scripted",
            "finish_reason": {"type": "length", "length": so_far.tokens} if over else None,
            "prompt_tokens": script.prompt_tokens,
            "weight_version": "default",
            "total_retractions": 0,
            "reasoning_tokens": so_far.thoughts,
            "cached_tokens": script.cached_tokens,
        }
        if script.usage == "each" or (script.usage == "late" and so_far.last):
            meta["completion_tokens"] = so_far.tokens
        if over and script.verify_steps:
            meta["spec_accept_length"] = so_far.tokens / script.verify_steps
            meta["spec_verify_ct"] = script.verify_steps
        yield Send(step.after, _sse({"text": so_far.text, "output_ids": ids, "meta_info": meta}), so_far.tokens)
    yield from _end(script, [])


def _usage(script: Script, so_far: Progress) -> Event:
    details = {"reasoning_tokens": so_far.thoughts} if so_far.thoughts else None
    return {
        "prompt_tokens": script.prompt_tokens,
        "total_tokens": script.prompt_tokens + so_far.tokens,
        "completion_tokens": so_far.tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": so_far.thoughts,
        "completion_tokens_details": details,
    }


def _closing(script: Script, request: Mapping[str, Any], envelope: Event, so_far: Progress) -> list[Event]:
    """The events without choices: verify steps and usage, each where it was asked for."""
    found: list[Event] = []
    if script.verify_steps and request.get("return_spec_tokens_details"):
        details = {
            "spec_accept_length": script.tokens / script.verify_steps,
            "spec_verify_ct": script.verify_steps,
        }
        found.append({**envelope, "choices": [], "usage": None, "sglext": {"spec_tokens_details": details}})
    if script.usage != "never" and (request.get("stream_options") or {}).get("include_usage"):
        found.append({**envelope, "choices": [], "usage": _usage(script, so_far)})
    return found


def _continuous(script: Script, request: Mapping[str, Any]) -> bool:
    return script.usage == "each" and bool((request.get("stream_options") or {}).get("continuous_usage_stats"))


def _completions(script: Script, request: Mapping[str, Any]) -> Iterator[Send]:
    """An event for each step, even one without text; the last one has the finish reason."""
    envelope = {"id": "scripted", "object": "text_completion", "created": 0, "model": request.get("model", "m")}
    for step, new, so_far in _progress(script):
        finish = "length" if so_far.last and script.ending != "error" else None
        choice = {"index": 0, "text": new, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        usage = _usage(script, so_far) if _continuous(script, request) else None
        yield Send(step.after, _sse({**envelope, "choices": [choice], "usage": usage}), so_far.tokens)
    yield from _end(script, _closing(script, request, envelope, so_far))


def _chat(script: Script, request: Mapping[str, Any]) -> Iterator[Send]:
    """The role with the first token; an event only for a step with text; the finish reason in an event of its own."""
    envelope = {"id": "scripted", "object": "chat.completion.chunk", "created": 0, "model": request.get("model", "m")}

    def event(delta: Event, finish: str | None = None, usage: Event | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        return {**envelope, "choices": [choice], **({"usage": usage} if usage else {})}

    waited, shown = 0.0, 0
    for index, (step, new, so_far) in enumerate(_progress(script)):
        waited += step.after
        if index == 0:
            yield Send(waited, _sse(event({"role": "assistant", "content": "", "reasoning_content": None})), 0)
            waited = 0.0
        if new:
            usage = _usage(script, so_far) if _continuous(script, request) else None
            delta = {"reasoning_content": new} if step.thought else {"content": new, "reasoning_content": None}
            yield Send(waited, _sse(event(delta, usage=usage)), so_far.tokens)
            waited, shown = 0.0, so_far.tokens
    closing = [event({"reasoning_content": None}, "length"), *_closing(script, request, envelope, so_far)]
    for number, send in enumerate(_end(script, closing)):
        yield send._replace(after=send.after + (0.0 if number else waited), tokens=shown)


FORMATS: Mapping[str, Callable[[Script, Mapping[str, Any]], Iterator[Send]]] = {
    "/generate": _generate,
    "/v1/completions": _completions,
    "/v1/chat/completions": _chat,
}
