"""The same script through SGLang's own benchmark: which of its figures mean what ours mean, and how the others differ.

    python -m sglang.bench_serving     (sglang 0.5.23 benchmark/serving.py)

against the scripted server, whose stamps say when each token went out. Where its formula is another one, that relation is what is
asserted: its figures are right by their own definitions, which docs/bench.md compares with ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sglang_ext.bench.suites.suite import parse_suite
from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.figures import figures
from tests.rig.server import clean_environment
from tests.scripted.child import INFO, Child
from tests.scripted.script import Script, steady

from .conftest import run

TOKENS, AHEAD, EACH, TAIL = 364, 4, 3, 2.0
# Four tokens after two seconds, three a chunk after that; then two seconds of nothing before the answer is closed.
SCRIPT = Script(steady(TOKENS, 90, ahead=AHEAD, together=EACH), tail=TAIL, verify_steps=121)
LIFETIME = 1.7  # the accept length /server_info tells: of all requests since the last flush, whoever sent them
ASKED = {"sglang-oai": TOKENS + 36}  # more than come: it does not notice
EXTRA = {"sglang-oai-chat": '{"stream_options": {"include_usage": true, "continuous_usage_stats": true}}'}
BACKENDS = {"sglang": "/generate", "sglang-oai": "/v1/completions", "sglang-oai-chat": "/v1/chat/completions"}
NEAR, LOOSE = 0.005, 0.05  # of spans of seconds; of what has a process's own start-up in it


class Theirs(NamedTuple):
    """What bench_serving made of one request, and the server's stamps of it."""

    found: Mapping[str, Any]
    came: float
    sent: list[tuple[float, int]]  # the events that brought tokens
    closed: float  # [DONE]

    @property
    def first(self) -> float:
        return self.sent[0][0]

    @property
    def last(self) -> float:
        return self.sent[-1][0]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    info = {**INFO, "internal_states": [{"avg_spec_accept_length": LIFETIME}]}
    with Child({"several": SCRIPT}, info=info) as running:
        yield running


@pytest.fixture(scope="module")
def theirs(child: Child, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Theirs]:
    """Run bench_serving on one backend, once for all tests."""
    folder, made = tmp_path_factory.mktemp("bench_serving"), dict[str, Theirs]()
    dataset = folder / "prompts.jsonl"
    turns = [{"content": "several please"}, {"content": "not looked at, as the length is given"}]
    dataset.write_text(json.dumps({"conversations": turns}) + "\n")

    def take(backend: str) -> Theirs:
        if backend not in made:
            out = folder / f"{backend}.jsonl"
            words = {
                "--backend": backend, "--host": child.address.host, "--port": str(child.address.port),
                "--model": str(models["llama"]), "--tokenizer": str(models["llama"]), "--dataset-name": "custom",
                "--dataset-path": str(dataset), "--num-prompts": "1", "--sharegpt-output-len": str(ASKED.get(backend, TOKENS)),
                "--warmup-requests": "0", "--output-file": str(out), "--extra-request-body": EXTRA.get(backend, ""),
            }  # fmt: skip
            argv = [word for pair in words.items() for word in pair]
            before = len(child.answers())
            done = run(
                sys.executable, "-m", "sglang.bench_serving", *argv, "--disable-tqdm", "--output-details",
                env=clean_environment(1, {}), timeout=300,
            )  # fmt: skip
            assert done.status == 0, done.out[-2000:] + done.err[-4000:]
            found = json.loads(out.read_text())
            assert found["completed"] == 1 and found["errors"] == [""], found["errors"]
            (answer,) = child.answers()[before:]
            sent: list[tuple[float, int]] = []
            for stamp, tokens in answer["sent"]:
                if tokens > (sent[-1][1] if sent else 0):
                    sent.append((stamp, tokens))
            made[backend] = Theirs(found, answer["came"], sent, answer["sent"][-1][0])
        return made[backend]

    return take


def near(value: float, tolerance: float = NEAR) -> Any:
    return pytest.approx(value, rel=tolerance)


def ours(child: Child, path: str) -> Any:
    """The same script through our client."""
    endpoint = next(name for name, known in client.PATHS.items() if known == path)
    work = parse_suite(b'[suite]\nname = "s"\nsummary = "S"\n[workload]\nprompt = "-"\n', "s.toml").workload
    request = client.body(work._replace(endpoint=endpoint), TOKENS, "m", "several please")
    (stream,) = client.run_streams(child.address, path, [request], 60.0)
    return figures(stream, TOKENS, speculative=True)


def test_on_generate_its_mean_itl_is_the_inverse_of_our_rate(child: Child, theirs: Callable[[str], Theirs]) -> None:
    """It spreads a chunk's gap over its tokens (lines 788-797), and the first chunk's tokens have no gap: as we count."""
    seen = theirs("sglang")
    assert seen.found["total_output_tokens"] == TOKENS and len(seen.found["itls"][0]) == TOKENS - AHEAD
    rate = (TOKENS - AHEAD) / (seen.last - seen.first)
    assert 1000 / seen.found["mean_itl_ms"] == near(rate)
    assert ours(child, "/generate").decode_tok_s == near(1000 / seen.found["mean_itl_ms"])


def test_its_tpot_ends_when_the_answer_is_closed_and_starts_with_one_token(theirs: Callable[[str], Theirs]) -> None:
    """(latency - ttft) / (N - 1), line 1172: latency is up to [DONE], and the first chunk is taken for one token."""
    seen = theirs("sglang")
    assert seen.found["mean_tpot_ms"] == near(1000 * (seen.closed - seen.first) / (TOKENS - 1))
    rate = (TOKENS - AHEAD) / (seen.last - seen.first)
    assert 1000 / seen.found["mean_tpot_ms"] < 0.75 * rate  # here mostly the two seconds before [DONE]


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_throughput_has_everything_in_it(theirs: Callable[[str], Theirs], backend: str) -> None:
    """N / duration, line 1274: connecting, TTFT, [DONE] and the questions to the server after it."""
    seen = theirs(backend)
    assert seen.found["output_throughput"] == near(seen.found["total_output_tokens"] / seen.found["duration"])
    assert seen.closed - seen.came < seen.found["duration"] < (seen.closed - seen.came) * (1 + LOOSE) + 0.5
    # Ours would end with the last token.
    assert seen.found["output_throughput"] < 0.8 * seen.found["total_output_tokens"] / (seen.last - seen.came)


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_ttft_begins_before_there_is_a_connection(theirs: Callable[[str], Theirs], backend: str) -> None:
    seen = theirs(backend)
    least = 1000 * (seen.first - seen.came)
    assert least <= seen.found["mean_ttft_ms"] < least * (1 + LOOSE)


def test_its_accept_length_is_not_of_this_run(child: Child, theirs: Callable[[str], Theirs]) -> None:
    assert theirs("sglang").found["accept_length"] == LIFETIME
    assert ours(child, "/generate").accept_length == (TOKENS - 1) / 121 == 3.0


def test_without_usage_it_counts_what_it_asked_for(child: Child, theirs: Callable[[str], Theirs]) -> None:
    """On /v1/completions it asks for no usage (lines 270-310): N is the length asked for, whatever comes. Ours does not count."""
    seen = theirs("sglang-oai")
    assert seen.found["total_output_tokens"] == TOKENS + 36 and seen.sent[-1][1] == TOKENS
    assert ours(child, "/v1/completions").tokens == TOKENS


def test_on_chat_its_itl_is_by_chunk_retokenised(child: Child, theirs: Callable[[str], Theirs]) -> None:
    """Where /server_info tells an accept length, each gap is split by its tokenizer's count of the text (lines 1152-1161)."""
    seen = theirs("sglang-oai-chat")
    assert seen.found["total_output_tokens"] == TOKENS
    chunks = len(seen.sent) - 1
    assert sum(seen.found["itls"][0]) == near(seen.last - seen.first) and len(seen.found["itls"][0]) == chunks
    counted = round(1000 * (seen.last - seen.first) / seen.found["mean_itl_ms"])
    assert counted > chunks and counted != TOKENS - AHEAD  # by this tokenizer our words are more tokens than were sent
    assert ours(child, "/v1/chat/completions").decode_tok_s == near((TOKENS - AHEAD) / (seen.last - seen.first))
