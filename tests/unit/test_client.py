"""The client and its figures: exact on made-up stamps, and on a real HTTP server whose script is known.

No wall-clock time is asserted: the server's script is compared with the stamps the client itself recorded.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from sglang_ext.bench.suites.suite import parse_suite
from sglang_ext.bench.traffic import client, streams
from sglang_ext.bench.traffic.client import Address, Fault, ServerError, Stream
from sglang_ext.bench.traffic.events import events, parse
from sglang_ext.bench.traffic.figures import Run, figures, together, token_times

WORK = parse_suite(b'[suite]\nname = "s"\nsummary = "S"\n[workload]\nprompt = "hi"\ntokens = 10\n', "s.toml").workload


DONE = (9.0, "[DONE]")


def generate(tokens: int | None, *, finish: str | None = None, **meta: Any) -> str:
    """One event of /generate."""
    facts: dict[str, Any] = {
        "prompt_tokens": 6,
        "cached_tokens": 5,
        "finish_reason": {"type": finish} if finish else None,
    }
    if tokens is not None:
        facts["completion_tokens"] = tokens
    return json.dumps({"text": "", "meta_info": {**facts, **meta}})


def completion(tokens: int | None, *, choices: bool = True, finish: str | None = None) -> str:
    """One event of /v1/completions."""
    usage = None if tokens is None else {"prompt_tokens": 6, "completion_tokens": tokens}
    return json.dumps({"choices": [{"text": "x", "finish_reason": finish}] if choices else [], "usage": usage})


def chat(tokens: int | None, *, role: bool = False, **delta: str) -> str:
    """One event of /v1/chat/completions."""
    usage = None if tokens is None else {"prompt_tokens": 6, "completion_tokens": tokens}
    content = {"role": "assistant", "content": ""} if role else delta
    return json.dumps(
        {"choices": [{"delta": {"reasoning_content": None, **content}, "finish_reason": None}], "usage": usage}
    )


def made(*script: tuple[float, str], sent: float = 100.0, fault: Fault | None = None) -> Stream:
    """A stream whose events were read at these seconds after it was sent."""
    return Stream(sent, tuple((sent + at, f"data: {text}\n\n".encode()) for at, text in script), fault)


def steady(counts: Sequence[int], event: Callable[[int], str] = generate, step: float = 0.5) -> list[tuple[float, str]]:
    return [(1.0 + step * i, event(count)) for i, count in enumerate(counts)]


def close(run: Run, **want: float) -> None:
    for name, value in want.items():
        assert getattr(run, name) == pytest.approx(value, rel=1e-9), name


# ---- made-up stamps: every figure exactly


def test_one_token_a_chunk() -> None:
    script = steady(range(1, 12))
    run = figures(made(*script, (9.0, "[DONE]")), 11, speculative=False)
    assert (run.tokens, run.chunks, run.fault) == (11, 11, None)
    close(run, ttft_s=1.0, decode_tok_s=10 / 5.0, e2e_tok_s=11 / 6.0, step_ms=500.0)
    assert (run.prompt_tokens, run.cached_tokens, run.accept_length) == (6, 5, None)
    assert run.unknown.keys() == {"reconciled", "accept_length", "reasoning_tokens"}
    assert run.trace == {"t": [1.0 + 0.5 * i for i in range(11)], "tokens": list(range(1, 12))}


def test_what_the_first_chunk_brought_is_not_decoded_in_the_time_after_it() -> None:
    run = figures(made(*steady([4, 5, 6, 7]), (9.0, "[DONE]")), 7, speculative=False)
    close(run, decode_tok_s=3 / 1.5, e2e_tok_s=7 / 2.5)  # (7 - 1) / 1.5 would be twice the truth


def test_several_tokens_a_chunk_and_their_verify_steps() -> None:
    script = [*steady([1, 4, 7, 10]), (3.0, generate(12, finish="length", spec_verify_ct=4)), (3.0, "[DONE]")]
    run = figures(made(*script), 12, speculative=True)
    assert (run.tokens, run.chunks) == (12, 5)
    close(run, decode_tok_s=11 / 2.0, accept_length=11 / 4, step_ms=500.0)  # the prefill's token is no verify step's
    # Where the first chunk holds tokens of verify steps, nobody tells how many steps came after it: T_step = L / rate still.
    script[0] = (1.0, generate(3))
    run = figures(made(*script), 12, speculative=True)
    close(run, decode_tok_s=9 / 2.0, accept_length=11 / 4, step_ms=1000 * (11 / 4) / (9 / 2.0))


def test_a_speculating_server_that_does_not_tell_its_steps() -> None:
    run = figures(made(*steady([1, 3, 5]), (9.0, "[DONE]")), 5, speculative=True)
    assert (run.accept_length, run.step_ms, run.fault) == (None, None, None)
    assert "spec_verify_ct" in run.unknown["accept_length"] and "spec_verify_ct" in run.unknown["step_ms"]


def test_a_pause_counts_where_it_was() -> None:
    script = [(2.0, generate(1)), (2.5, generate(2)), (12.5, generate(3)), (12.5, "[DONE]")]
    close(figures(made(*script), 3, speculative=False), ttft_s=2.0, decode_tok_s=2 / 10.5, e2e_tok_s=3 / 12.5)


def test_chunks_that_bring_nothing_are_no_tokens() -> None:
    script = [(0.5, generate(0)), *steady([1, 1, 2, 2, 3]), (4.0, generate(3, finish="length")), (9.0, "[DONE]")]
    run = figures(made(*script), 3, speculative=False)
    assert run.chunks == 3
    close(run, ttft_s=1.0, decode_tok_s=2 / 2.0)


def test_late_usage_of_completions_is_no_token() -> None:
    script = [*steady([1, 2, 3], completion), (30.0, completion(3, choices=False)), (31.0, "[DONE]")]
    run = figures(made(*script), 3, speculative=False)
    assert (run.tokens, run.chunks, run.fault) == (3, 3, None)
    close(run, decode_tok_s=2.0, e2e_tok_s=3 / 2.0)
    assert run.cached_tokens is None and run.unknown["cached_tokens"] == "the server does not say"


def test_usage_only_at_the_end_gives_a_whole_rate_and_no_decode_rate() -> None:
    script = [(1.0, completion(None)), (2.0, completion(None)), (3.0, completion(8, choices=False)), (3.0, "[DONE]")]
    run = figures(made(*script), 8, speculative=False)
    assert (run.tokens, run.decode_tok_s, run.step_ms) == (8, None, None)
    close(run, ttft_s=1.0, e2e_tok_s=8 / 2.0)
    assert run.fault is not None and run.fault.code == "usage_missing"
    assert "what the first one brought is not known" in run.unknown["decode_tok_s"]


def test_no_usage_at_all_is_unknown_and_never_a_count_of_chunks() -> None:
    for script in ([(1.0, completion(None)), (2.0, completion(None))], [(1.0, generate(None)), (2.0, generate(None))]):
        run = figures(made(*script, (3.0, "[DONE]")), 2, speculative=False)
        assert (run.tokens, run.chunks, run.decode_tok_s, run.e2e_tok_s) == (None, 2, None, None)
        assert run.fault is not None and run.fault.code == "usage_missing"
        assert "does not say how many tokens" in run.unknown["tokens"]


def test_a_role_a_finish_reason_and_a_closing_usage_are_no_chunks() -> None:
    finish = json.dumps({"choices": [{"delta": {"reasoning_content": None}, "finish_reason": "length"}]})
    script = [
        (0.5, chat(None, role=True)), (1.0, chat(1, reasoning_content="a")), (2.0, chat(3, content="b")),
        (3.0, finish), (9.0, completion(3, choices=False)), (9.0, "[DONE]"),
    ]  # fmt: skip
    run = figures(made(*script), 3, speculative=False)
    assert (run.tokens, run.chunks, run.fault) == (3, 2, None)
    close(run, ttft_s=1.0, decode_tok_s=2 / 1.0, e2e_tok_s=3 / 2.0)
    assert run.text_sha256 == hashlib.sha256(b"ab").hexdigest()


def test_a_tail_without_chunks_is_in_the_total_and_in_no_rate() -> None:
    script = [(1.0, chat(1, content="a")), (2.0, chat(3, content="b")), (9.0, completion(5, choices=False)), DONE]
    run = figures(made(*script), 5, speculative=False)
    assert (run.tokens, run.trace["tokens"], run.fault) == (5, [1, 3], None)
    close(run, decode_tok_s=2.0, e2e_tok_s=3 / 2.0)


def test_reasoning_tokens_from_either_place() -> None:
    def told(**usage: Any) -> Run:
        event = json.dumps({"choices": [{"text": "x"}], "usage": {"completion_tokens": 2, **usage}})
        return figures(made(*steady([1], completion), (2.0, event), DONE), 2, speculative=False)

    assert told(reasoning_tokens=1).reasoning_tokens == 1
    assert told(reasoning_tokens=None, completion_tokens_details={"reasoning_tokens": 2}).reasoning_tokens == 2
    assert told(reasoning_tokens=0).reasoning_tokens == 0
    assert told().reasoning_tokens is None and told().unknown["reasoning_tokens"] == "the server does not say"


def test_text_that_repeats_and_text_that_goes_on() -> None:
    def event(text: str, ids: int, tokens: int) -> str:
        return json.dumps({"text": text, "output_ids": [7] * ids, "meta_info": {"completion_tokens": tokens}})

    whole = hashlib.sha256(b"aba").hexdigest()
    repeats = [(1.0, event("a", 1, 1)), (2.0, event("ab", 2, 2)), (3.0, event("aba", 3, 3)), DONE]
    goes_on = [(1.0, event("a", 1, 1)), (2.0, event("b", 1, 2)), (3.0, event("a", 1, 3)), DONE]
    for script in (repeats, goes_on):
        assert figures(made(*script), 3, speculative=False).text_sha256 == whole
    assert figures(made((1.0, json.dumps({"meta_info": {}})), DONE), 3, speculative=False).text_sha256 is None


def test_verify_steps_of_the_openai_endpoints() -> None:
    extra = json.dumps({"choices": [], "sglext": {"spec_tokens_details": {"spec_verify_ct": 2}}})
    script = [*steady([1, 4, 7], completion), (3.0, extra), DONE]
    run = figures(made(*script), 7, speculative=True)
    close(run, accept_length=3.0, decode_tok_s=6.0, step_ms=500.0)


def test_token_times_together_and_spread() -> None:
    trace: dict[str, list[Any]] = {"t": [1.0, 2.0, 2.5], "tokens": [2, 6, 7]}
    assert token_times(trace, spread=False) == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.5]
    assert token_times(trace, spread=True) == [1.0, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5]
    once: dict[str, list[Any]] = {
        "t": [1.0, 2.0, 2.0],
        "tokens": [1, 2, 3],
    }  # two chunks in one read: nobody tells when the first of them came
    assert token_times(once, spread=True) == [1.0, 1.5, 2.0]


def test_streams_together() -> None:
    def one(began: float, rate: float, number: int) -> Run:
        script = [(1.0 + i / rate, generate(i + 1)) for i in range(21)]
        return figures(made(*script, (99.0, "[DONE]"))._replace(began=began, number=number), 21, speculative=False)

    found = together([one(50.0, 10.0, 0), one(50.5, 5.0, 1)])
    assert found["streams"] == 2 and found["tokens"] == 42
    assert found["seconds"] == pytest.approx(5.5) and found["total_tok_s"] == pytest.approx(42 / 5.5)
    # Both decode from 51.5 on, until the first has all of its tokens at 53.
    assert found["decoding"]["seconds"] == pytest.approx(1.5) and found["decoding"]["tok_s"] == pytest.approx(15.0)
    assert found["decode_tok_s"]["min"] == pytest.approx(5.0) and found["decode_tok_s"]["mean"] == pytest.approx(7.5)
    apart = together([one(50.0, 10.0, 0), one(60.0, 5.0, 1)])
    assert apart["decoding"] is None and apart["unknown"]["decoding"].startswith("there was no time")


def test_streams_of_which_one_came_in_one_read_have_no_common_rate() -> None:
    """A proxy that buffers, a client that was not scheduled: what took no time has no rate."""

    def one(times: list[float], number: int) -> Run:
        script = [(at, generate(index + 1)) for index, at in enumerate(times)]
        return figures(made(*script, (99.0, "[DONE]"))._replace(number=number), len(times), speculative=False)

    found = together([one([1.0, 4.0, 5.0, 9.0], 0), one([0.5, 3.0, 3.0, 9.5], 1)])
    assert found["decoding"] is None and "came in one read" in found["unknown"]["decoding"]
    assert found["total_tok_s"] == pytest.approx(8 / 9.5)


def test_a_count_that_is_no_running_total_is_not_believed() -> None:
    run = figures(made(*steady([1, 3, 2]), (9.0, "[DONE]")), 2, speculative=False)
    assert run.fault is not None and run.fault.code == "usage_missing"


def test_all_in_one_chunk_has_no_rate() -> None:
    run = figures(made((1.0, generate(5)), (1.0, "[DONE]")), 5, speculative=False)
    assert (
        run.decode_tok_s is None
        and run.unknown["decode_tok_s"] == run.unknown["step_ms"] == "all tokens came in one chunk"
    )
    close(run, e2e_tok_s=5.0)


EARLY = (3.0, generate(3, finish="stop"))
ERROR = (3.0, json.dumps({"error": {"message": "out of\nmemory"}}))


@pytest.mark.parametrize(
    ("script", "code", "part"),
    [
        ([*steady([1, 2]), EARLY, DONE], "wrong_length", "expected 10 tokens, found 3 (finish reason: stop)"),
        ([*steady(range(1, 12)), DONE], "wrong_length", "expected 10 tokens, found 11"),
        ([*steady([1, 2]), ERROR, DONE], "server_error", "out of memory"),
        ([(1.0, json.dumps({"error": "flat"}))], "server_error", "flat"),
        ([(1.0, json.dumps({"object": "error", "message": "older form"}))], "server_error", "older form"),
        ([(1.0, json.dumps({"meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}))], "server_error", "gone"),
        ([*steady([1]), (3.0, "no json")], "server_error", "no JSON object: no json"),
        ([*steady(range(1, 11))], "connection_lost", "without [DONE]"),
        ([], "connection_lost", "without [DONE] after 0 chunks"),
    ],
)  # fmt: skip
def test_what_makes_a_run_not_count(script: list[tuple[float, str]], code: str, part: str) -> None:
    run = figures(made(*script), 10, speculative=False)
    assert run.fault is not None and run.fault.code == code and part in run.fault.text, run.fault
    stored = run.to_json()
    assert stored["valid"] is False and stored["reason"].startswith(f"{code}: ") and stored["reconciled"] is None


def test_events_are_stamped_when_their_last_line_was_complete() -> None:
    pieces = [
        (1.0, b"data: a"), (2.0, b"b\n"), (3.0, b"\n: keep alive\n\ndata: c\r\n\r\ndata: d\n"), (4.0, b"data:e\n\ndata: cut"),
    ]  # fmt: skip
    assert list(events(pieces)) == [(2.0, "ab"), (3.0, "c"), (4.0, "d\ne")]


def test_a_line_cut_anywhere_gives_the_same_figures() -> None:
    whole = made(*steady([1, 2, 3, 4]), (9.0, "[DONE]"))
    halves = tuple((at, part) for at, raw in whole.pieces for part in (raw[:7], raw[7:]) if part)
    assert figures(whole._replace(pieces=halves), 4, speculative=False) == figures(whole, 4, speculative=False)


# ---- a real server with a script


class Script:
    """A server that follows a script: (pause in seconds before it, bytes) for each piece; notes when it sent each."""

    def __init__(self, steps: Sequence[tuple[float, bytes]], *, status: int = 200, cut: bool = False) -> None:
        self.steps, self.status, self.cut = steps, status, cut
        self.sent: list[float] = []
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._head("application/json", len(steps[0][1]))
                self.wfile.write(steps[0][1])

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                script.requests.append((self.path, body, dict(self.headers)))
                if script.status != 200:
                    self._head("application/json", len(steps[0][1]))
                    self.wfile.write(steps[0][1])
                    return
                self._head("text/event-stream", None)
                for pause, piece in script.steps:
                    time.sleep(pause)
                    script.sent.append(time.monotonic())
                    self._write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if not script.cut:
                    self._write(b"0\r\n\r\n")
                self.close_connection = True

            def _write(self, raw: bytes) -> None:
                try:
                    self.wfile.write(raw)
                except OSError:
                    pass  # the client has given up

            def _head(self, kind: str, length: int | None) -> None:
                self.send_response(script.status)
                self.send_header("Content-Type", kind)
                self.send_header(
                    *(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length)))
                )
                self.end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = Address("127.0.0.1", self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Script:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def stream(self, timeout: float = 20.0, work: Any = WORK) -> Stream:
        return client.stream(
            self.address, client.PATHS[work.endpoint], client.body(work, work.tokens, "m", "hi"), timeout
        )


def sse(*texts: str) -> list[tuple[float, bytes]]:
    return [(0.02, f"data: {text}\n\n".encode()) for text in texts]


def test_a_scripted_stream_has_the_figures_of_its_own_stamps() -> None:
    counts = [2, 3, 6, 7, 10]
    steps = sse(*(generate(count) for count in counts), "[DONE]")
    steps[3] = (0.3, steps[3][1])  # a pause in the middle
    with Script(steps) as script:
        answer = script.stream()
    run = figures(answer, 10, speculative=False)
    assert run.fault is None and [c.tokens for c in parse(answer).chunks] == counts
    stamps = [at for at, _ in answer.pieces]
    # Read after they were sent, in order, each for itself: what was sent apart was stamped apart.
    assert all(read >= sent for read, sent in zip(stamps, script.sent, strict=True))
    assert answer.sent <= script.sent[0] and stamps == sorted(stamps)
    assert stamps[3] - stamps[2] >= 0.2 and len(set(stamps)) == len(stamps)
    assert run.ttft_s == pytest.approx(stamps[0] - answer.sent, rel=0.01)
    assert run.decode_tok_s == pytest.approx((10 - 2) / (stamps[4] - stamps[0]), rel=0.01)
    assert run.e2e_tok_s == pytest.approx(10 / (stamps[4] - answer.sent), rel=0.01)
    assert run.decode_tok_s is not None and run.step_ms == pytest.approx(1000 / run.decode_tok_s, rel=0.01)


def test_the_clock_is_read_at_each_piece_and_nowhere_else() -> None:
    ticks: Iterator[float] = iter(range(1000))
    with Script(sse(generate(1), generate(2), "[DONE]")) as script:
        path, request = client.PATHS["generate"], client.body(WORK, 2, "m", "hi")
        answer = client.stream(script.address, path, request, 1e6, clock=lambda: float(next(ticks)))
    # Sent; the head, which brings nothing; then each piece.
    assert answer.sent == 0.0 and [at for at, _ in answer.pieces] == [2.0, 3.0, 4.0]
    close(figures(answer, 2, speculative=False), ttft_s=2.0, decode_tok_s=1.0, e2e_tok_s=2 / 3.0)


def test_chat_asks_with_a_message() -> None:
    with Script(sse(chat(1, content="a"), chat(2, content="b"), "[DONE]")) as script:
        run = figures(script.stream(work=WORK._replace(endpoint="chat", tokens=2)), 2, speculative=False)
    ((path, request, _),) = script.requests
    assert path == "/v1/chat/completions" and request["messages"] == [{"role": "user", "content": "hi"}]
    assert (request["max_completion_tokens"], run.fault) == (2, None)


def test_completions_asks_for_usage_in_every_chunk() -> None:
    work = WORK._replace(endpoint="completions", tokens=2)
    texts = (completion(1), completion(2, finish="length"), completion(2, choices=False), "[DONE]")
    with Script(sse(*texts)) as script:
        run = figures(script.stream(work=work), 2, speculative=False)
    ((path, request, _),) = script.requests
    assert path == "/v1/completions" and request["model"] == "m" and request["max_tokens"] == 2
    assert request["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (run.tokens, run.fault) == (2, None) and run.decode_tok_s is not None


def test_generate_is_greedy_and_of_full_length() -> None:
    with Script(sse("[DONE]")) as script:
        script.stream()
    ((path, request, headers),) = script.requests
    assert path == "/generate" and request["text"] == "hi" and request["stream"] is True
    assert request["sampling_params"] == {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True}
    assert "Authorization" not in headers


def test_a_key_goes_along_and_into_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(client.KEY, "sekrit")
    with Script([(0, b'{"error": "no"}')], status=401) as script:
        answer = script.stream()
        with pytest.raises(ServerError) as caught:
            client.ask(script.address, "/server_info")
    assert script.requests[0][2]["Authorization"] == "Bearer sekrit"
    assert answer.fault is not None and answer.fault.code == "server_error" and "HTTP 401" in answer.fault.text
    assert client.KEY in answer.fault.text and "sekrit" not in f"{answer.fault} {caught.value}"


@pytest.mark.parametrize("status", [400, 503])
def test_an_http_error_is_the_servers(status: int) -> None:
    with Script([(0, b'{"message": "context\n too long"}' + b"x" * 1000)], status=status) as script:
        run = figures(script.stream(), 10, speculative=False)
    assert run.fault is not None and run.fault.code == "server_error"
    assert f"HTTP {status}" in run.fault.text and len(run.fault.text) < 300 and "\n" not in run.fault.text


def test_an_error_in_the_middle_of_a_stream() -> None:
    with Script(sse(generate(1), generate(2), json.dumps({"error": {"message": "boom"}}), "[DONE]")) as script:
        run = figures(script.stream(), 10, speculative=False)
    assert str(run.fault) == "server_error: the server stopped with an error: boom"


def test_a_broken_connection() -> None:
    with Script(sse(generate(1), generate(2)), cut=True) as script:
        run = figures(script.stream(), 10, speculative=False)
    assert run.fault is not None and run.fault.code == "connection_lost" and run.tokens == 2


def test_nobody_listens() -> None:
    with Script([(0, b"")]) as script:
        pass
    run = figures(script.stream(), 10, speculative=False)
    assert run.fault is not None and run.fault.code == "connection_lost" and "refused" in run.fault.text
    with pytest.raises(ServerError, match="does not answer"):
        client.ask(script.address, "/server_info")


@contextmanager
def answering(raw: bytes, *, close: bool) -> Iterator[Address]:
    """A server that reads a request's head, says ``raw``, and closes the connection or does not."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(raw)
                if not close:
                    connection.recv(1 << 16)  # until the client closes it

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        thread.join(20)
        assert not thread.is_alive()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_server_that_keeps_the_connection_open_is_not_waited_for() -> None:
    event = f"data: {generate(2)}\n\ndata: [DONE]\n\n".encode()
    with answering(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event), close=False) as address:
        answer = client.stream(address, "/generate", {}, 3600.0)
    assert answer.fault is None and parse(answer).total == 2


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "after 0 pieces (no answer)"),
        (b"SSH-2.0-x\r\n\r\n", "(no HTTP answer)"),
        (CHUNKED + b"5\r\nda", "after 1 pieces (it was closed before its end)"),
    ],
)
def test_what_is_no_whole_answer(raw: bytes, part: str) -> None:
    with answering(raw, close=True) as address:
        fault = client.stream(address, "/generate", {}, 20.0).fault
    assert fault is not None and fault.code == "connection_lost" and part in fault.text


def test_a_prompt_longer_than_the_kernels_buffer() -> None:
    with Script(sse(generate(2), "[DONE]")) as script:
        answer = client.stream(script.address, "/generate", {"text": "x" * 30_000_000}, 60.0)
    assert answer.fault is None and len(script.requests[0][1]["text"]) == 30_000_000


def test_a_run_that_does_not_end_is_given_up() -> None:
    with Script([*sse(generate(1)), (2.0, b"data: late\n\n")]) as script:
        run = figures(script.stream(timeout=0.3), 10, speculative=False)
    assert str(run.fault) == "run_timeout: expected the whole answer within 0.3 s, found it unfinished"


def test_a_stream_that_cannot_be_made_stops_the_others() -> None:
    with Script([(0, b"")]) as script:
        pass
    streams = client.run_streams(script.address, "/generate", [{}, {}], 5.0)
    assert [s.fault.code for s in streams if s.fault] == ["connection_lost"] * 2 and [s.number for s in streams] == [
        0,
        1,
    ]


def test_an_address_as_a_url_has_it() -> None:
    assert (str(Address("127.0.0.1", 1)), str(Address("::1", 1))) == ("127.0.0.1:1", "[::1]:1")


def test_a_text_and_a_post() -> None:
    with Script([(0, b"a 1\nb 2\n")]) as script:
        assert client.get_text(script.address, "/metrics") == "a 1\nb 2\n"
    with Script([(0, b"flushed")]) as script:
        assert client.post(script.address, "/flush_cache") == b"flushed"
    with Script([(0, b"no")], status=400) as script, pytest.raises(ServerError, match="HTTP 400: no"):
        client.post(script.address, "/flush_cache")


def test_a_question_is_answered_by_a_json_object_or_not_at_all() -> None:
    with Script([(0, b'{"a": 1}')]) as script:
        assert client.ask(script.address, "/server_info") == {"a": 1}
    with Script([(0, b"[1]")]) as script, pytest.raises(ServerError, match="no JSON object"):
        client.ask(script.address, "/server_info")


def test_a_lone_stream_is_given_up_at_its_time_and_not_a_wait_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [100.0], [0.0]

    class Silent:
        def setblocking(self, on: bool) -> None:
            assert on

        def setsockopt(self, _level: int, _name: int, limit: bytes) -> None:
            seconds, micros = struct.unpack("ll", limit)
            waits[0] = seconds + micros / 1e6

        def recv(self, _most: int) -> bytes:
            now[0] += waits[0]  # as SO_RCVTIMEO does
            raise BlockingIOError

    monkeypatch.setattr("sglang_ext.bench.traffic.streams.time.monotonic", lambda: now[0])
    one = streams._Stream(b"")
    one.sock = cast(Any, Silent())
    running = {3: one}
    streams._alone(running, 101.3, lambda: now[0])
    assert running == {3: one}, "it has not ended"
    assert now[0] == pytest.approx(101.3, abs=1e-5)
