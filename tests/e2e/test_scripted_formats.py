"""The scripted server's events against SGLang's own encoders, and our requests against its own models; no server is needed."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from sglang_ext.bench.suites.suite import parse_suite
from sglang_ext.bench.traffic import client
from tests.rig.server import clean_environment
from tests.scripted.formats import render
from tests.scripted.script import Script, Step

from .conftest import run

SCRIPT = Script((Step(0.1, 2, thought=True), Step(0.1, 3)), verify_steps=2)
WORK = parse_suite(b'[suite]\nname = "s"\nsummary = "S"\n[workload]\nprompt = "-"\n', "s.toml").workload
# Run inside SGLang's environment: the same answer by its own code, then what it makes of our requests.
THEIRS = """
import json, sys
from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest, ChatCompletionStreamResponse, CompletionRequest, CompletionResponseStreamChoice,
    CompletionStreamResponse, SglExt, SpecTokensDetails)
from sglang.srt.entrypoints.openai.sse_utils import build_sse_content
from sglang.srt.entrypoints.openai.usage_processor import UsageProcessor
from sglang.srt.managers.io_struct import GenerateReqInput

def usage(tokens, thoughts):
    return UsageProcessor.calculate_token_usage(prompt_tokens=6, completion_tokens=tokens, reasoning_tokens=thoughts)

same = {"chunk_id": "scripted", "created": 0, "model": "m", "index": 0}
spec = SglExt(spec_tokens_details=SpecTokensDetails(spec_accept_length=2.5, spec_verify_ct=2))
both = {"id": "scripted", "created": 0, "model": "m", "choices": []}
chat = [
    build_sse_content(**same, role="assistant", content=""),
    build_sse_content(**same, reasoning_content=" 0 1", usage=usage(2, 2).model_dump()),
    build_sse_content(**same, content=" 2 3 4", usage=usage(5, 2).model_dump()),
    build_sse_content(**same, finish_reason="length"),
    "data: " + ChatCompletionStreamResponse(**both, sglext=spec).model_dump_json(),
    "data: " + ChatCompletionStreamResponse(**both, usage=usage(5, 2)).model_dump_json(),
]

def text(text, finish, tokens):
    choice = CompletionResponseStreamChoice(index=0, text=text, finish_reason=finish)
    return CompletionStreamResponse(**{**both, "choices": [choice]}, usage=usage(tokens, 2))

completions = [
    "data: " + text(" 0 1", None, 2).model_dump_json(),
    "data: " + text(" 2 3 4", "length", 5).model_dump_json(),
    "data: " + CompletionStreamResponse(**both, sglext=spec).model_dump_json(),
    "data: " + CompletionStreamResponse(**both, usage=usage(5, 2)).model_dump_json(exclude_none=True),
]
bodies = json.loads(sys.argv[1])
asked = {
    "chat": ChatCompletionRequest(**bodies["chat"]).model_dump(),
    "completions": CompletionRequest(**bodies["completions"]).model_dump(),
    "generate": vars(GenerateReqInput(**bodies["generate"])),
}
print(json.dumps({"chat": chat, "completions": completions, "asked": asked}, default=str))
"""


def event(raw: str | bytes) -> dict[str, Any]:
    text = raw.decode() if isinstance(raw, bytes) else raw
    found: dict[str, Any] = json.loads(text.removeprefix("data: "))
    return found


def told(event: Any) -> Any:
    """An event without what is null or zero: a client sees no difference, and what SGLang spells out changes by release."""
    if isinstance(event, dict):
        return {key: kept for key, value in event.items() if (kept := told(value)) not in (None, 0, {}, [], "")}
    return [told(value) for value in event] if isinstance(event, list) else event


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    bodies = {endpoint: client.body(WORK._replace(endpoint=endpoint), 5, "m", "hi") for endpoint in client.PATHS}
    done = run(sys.executable, "-c", THEIRS, json.dumps(bodies), env=clean_environment(1, {}), timeout=300)
    assert done.status == 0, done.err[-4000:]
    found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return found


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_events_are_upstreams(theirs: dict[str, Any], endpoint: str) -> None:
    request = client.body(WORK._replace(endpoint=endpoint), 5, "m", "hi")
    *sends, done = render(SCRIPT, client.PATHS[endpoint], request)
    assert done.raw == b"data: [DONE]\n\n" and all(send.raw.endswith(b"\n\n") for send in sends)
    assert [told(event(send.raw)) for send in sends] == [told(event(raw)) for raw in theirs[endpoint]]


def test_our_requests_are_what_upstream_reads(theirs: dict[str, Any]) -> None:
    asked = theirs["asked"]
    for endpoint, tokens in (("chat", "max_completion_tokens"), ("completions", "max_tokens")):
        found = asked[endpoint]
        assert (found[tokens], found["ignore_eos"], found["temperature"], found["stream"]) == (5, True, 0, True)
        assert found["return_spec_tokens_details"] is True
        assert found["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert asked["generate"]["sampling_params"]["max_new_tokens"] == 5 and asked["generate"]["stream"] is True
