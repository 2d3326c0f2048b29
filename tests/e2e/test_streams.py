"""The bench's client on a real server that speculates: three endpoints tell the same of the same answer, alone and at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_ext.bench.suites.suite import parse_suite
from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.client import PATHS, Address
from sglang_ext.bench.traffic.figures import Run, figures, together
from tests.rig.server import STOCK, Server

TOKENS, PROMPT = 64, "hello world the quick brown fox"
WORK = parse_suite(b'[suite]\nname = "s"\nsummary = "S"\n[workload]\nprompt = "-"\n', "s.toml").workload


@pytest.fixture(scope="module")
def address(models: dict[str, Path], logs: Callable[[str], Path]) -> Iterator[Address]:
    """Stock SGLang with tiny Llama and its trained draft. The model has no chat template, so a built-in one is named."""
    with Server(
        logs("streams"), start=STOCK, model=models["llama"], draft=models["eagle3-llama"], steps=2, tp=1,
        environment={"SGLANG_EXT": "0"}, flags=["--chat-template", "chatml"],
    ) as running:  # fmt: skip
        running.wait_ready()
        yield Address("127.0.0.1", running.port)


def run(address: Address, endpoint: str, streams: int = 1) -> list[Run]:
    body = client.body(WORK._replace(endpoint=endpoint), TOKENS, "default", PROMPT)
    found = client.run_streams(address, PATHS[endpoint], [body] * streams, 120.0)
    return [figures(stream, TOKENS, speculative=True) for stream in found]


@pytest.mark.parametrize("endpoint", PATHS)
def test_every_figure_of_every_endpoint(address: Address, endpoint: str) -> None:
    (one,) = run(address, endpoint)
    assert one.fault is None, one.fault
    assert one.tokens == TOKENS and one.trace["tokens"][-1] <= TOKENS and one.reasoning_tokens == 0
    assert one.accept_length is not None and 1 <= one.accept_length <= 3
    assert one.unknown.keys() <= {"reconciled", "cached_tokens"}, one.unknown
    assert one.e2e_tok_s is not None and one.decode_tok_s is not None and one.e2e_tok_s < one.decode_tok_s
    assert one.step_ms == pytest.approx(1000 * one.accept_length / one.decode_tok_s)


def test_the_same_prompt_on_both_completion_endpoints_is_the_same_text(address: Address) -> None:
    native, other = run(address, "generate")[0], run(address, "completions")[0]
    assert native.text_sha256 == other.text_sha256
    assert native.accept_length == other.accept_length == pytest.approx(3.0, abs=0.1)  # the draft is all but perfect


@pytest.mark.parametrize("endpoint", PATHS)
def test_several_at_once(address: Address, endpoint: str) -> None:
    runs = run(address, endpoint, streams=4)
    assert [one.fault for one in runs] == [None] * 4 and len({one.text_sha256 for one in runs}) == 1
    found = together(runs)
    assert (found["streams"], found["unknown"]["total_tok_s"] if found["unknown"] else None) == (4, None)
    assert found["total_tok_s"] > max(one.e2e_tok_s or 0.0 for one in runs)


def test_what_the_server_says_of_a_request_it_refuses(address: Address) -> None:
    body = client.body(WORK, 10_000_000, "default", PROMPT)
    (stream,) = client.run_streams(address, PATHS["generate"], [body], 60.0)
    found = figures(stream, 10_000_000, speculative=True)
    assert found.fault is not None and found.fault.code == "server_error", found.fault


def test_plain_questions(address: Address) -> None:
    assert client.ask(address, "/model_info")["model_path"]
    assert b"flushed" in client.post(address, "/flush_cache")
    with pytest.raises(client.ServerError, match="HTTP 404"):
        client.get_text(address, "/nowhere")
