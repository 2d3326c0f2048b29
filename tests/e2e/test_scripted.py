"""Every figure against a server whose script is known: real HTTP, a process of its own, its own stamps as the truth.

The clock is the machine's, the same for both processes. What is compared is a ratio and never a time; the scripts are long, so
that 0.1 % of them is more than what a busy machine adds. Where it adds more all the same, the streams it met are taken again, a
few times at most: noise passes at some time, a wrong formula never does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from sglang_ext.bench.suites.suite import parse_suite
from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.client import PATHS, Stream
from sglang_ext.bench.traffic.figures import Run, figures, together, token_times
from tests.scripted.child import Child
from tests.scripted.script import Script, Step, steady

WORK = parse_suite(b'[suite]\nname = "s"\nsummary = "S"\n[workload]\nprompt = "-"\n', "s.toml").workload
NEAR = 1e-3
TRIES = 4
THOUGHTS = tuple(step._replace(thought=index < 40) for index, step in enumerate(steady(120, 30)))
HELD = tuple(step._replace(silent=index % 5 == 3) for index, step in enumerate(steady(121, 30)))

SCRIPTS = {
    "plain": Script(steady(160, 40)),
    "slow": Script(steady(100, 50, first=4.0)),
    "jitter": Script(steady(160, 40, jitter=0.8)),
    "ahead": Script(steady(160, 40, ahead=9)),  # the first chunk brings nine
    "several": Script(steady(361, 90, together=3), verify_steps=120),
    "ragged": Script(steady(200, 50, ahead=3, together=4), verify_steps=50),
    "pauses": Script(steady(100, 50, pauses={10: 1.0, 60: 1.5})),
    "tail": Script(steady(160, 40), tail=1.5),
    "thoughts": Script(THOUGHTS),
    "unthought": Script(THOUGHTS, counts_thoughts=False),
    "held": Script(HELD),
    "held_end": Script((*steady(120, 30)[:-1], Step(0.5, 1, silent=True))),
    "late": Script(steady(160, 40), usage="late"),
    "never": Script(steady(160, 40), usage="never"),
}
MANY = {
    f"many{number}": Script(steady(80, 40, first=1.0, together=1 + number % 3, jitter=0.5, seed=number))
    for number in range(64)
}
FAULTS = {
    "no_done": (Script(steady(8, 40, first=0.2), ending="no_done"), "connection_lost", "without [DONE]"),
    "cut": (Script(steady(8, 40, first=0.2), ending="cut"), "connection_lost", "it was closed before its end"),
    "error": (Script(steady(8, 40, first=0.2), ending="error"), "server_error", "out of memory"),
    "refuse": (Script(steady(8, 40, first=0.2), ending="refuse"), "server_error", "HTTP 400: "),
}
CASES = [(name, endpoint) for name in SCRIPTS for endpoint in PATHS]


class Seen(NamedTuple):
    """One stream as the client read it, and when the server says it sent what."""

    stream: Stream
    sent: list[tuple[float, int]]  # (stamp, tokens in all by then), of events that brought some

    def run(self, script: Script, *, speculative: bool = False) -> Run:
        return figures(self.stream, script.tokens, speculative=speculative or bool(script.verify_steps))


def bodies(endpoint: str, scripts: Mapping[str, Script]) -> list[dict[str, Any]]:
    work = WORK._replace(endpoint=endpoint)
    return [client.body(work, script.tokens, "m", f"{name} please") for name, script in scripts.items()]


def truth(answer: Mapping[str, Any]) -> list[tuple[float, int]]:
    """The events that brought tokens, by the server's own stamps."""
    found: list[tuple[float, int]] = []
    for stamp, tokens in answer["sent"]:
        if tokens > (found[-1][1] if found else 0):
            found.append((stamp, tokens))
    return found


def take(
    child: Child, scripts: Mapping[str, Script], endpoints: Sequence[str] = tuple(PATHS)
) -> dict[tuple[str, str], Seen]:
    """Scripts, on several endpoints, all at once."""
    with ThreadPoolExecutor(len(PATHS)) as pool:
        jobs = {
            endpoint: pool.submit(client.run_streams, child.address, PATHS[endpoint], bodies(endpoint, scripts), 60.0)
            for endpoint in endpoints
        }
        streams = {endpoint: job.result() for endpoint, job in jobs.items()}
    sent = {(answer["script"], answer["path"]): truth(answer) for answer in child.answers()}
    return {
        (name, endpoint): Seen(stream, sent[name, PATHS[endpoint]])
        for endpoint, found in streams.items()
        for name, stream in zip(scripts, found, strict=True)
    }


def expected(seen: Seen, script: Script) -> dict[str, float]:
    """The figures by the server's stamps, from their definitions and nothing of ours."""
    (first, ahead), (last, came) = seen.sent[0], seen.sent[-1]
    rate = (came - ahead) / (last - first)
    length = (script.tokens - 1) / script.verify_steps if script.verify_steps else 1.0
    return {
        "ttft_s": first - seen.stream.sent,
        "decode_tok_s": rate,
        "e2e_tok_s": came / (last - seen.stream.sent),
        "step_ms": 1000 * length / rate,
    }


def off(seen: Seen, script: Script, near: float = NEAR) -> list[str]:
    """Each figure that is not as ``near``; what cannot be known is not looked at here."""
    run, found = seen.run(script), []
    for name, want in expected(seen, script).items():
        value = getattr(run, name)
        if value is not None and abs(value / want - 1) > near:
            found.append(f"{name}: {value:.6g}, by the server's stamps {want:.6g}")
    return found


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child({**SCRIPTS, **MANY, **{name: script for name, (script, *_) in FAULTS.items()}}) as running:
        yield running


@pytest.fixture(scope="module")
def taken(child: Child) -> dict[tuple[str, str], Seen]:
    found = take(child, SCRIPTS)
    for _ in range(TRIES):
        noisy = {name for (name, _), seen in found.items() if off(seen, SCRIPTS[name])}
        if noisy:
            found |= take(child, {name: SCRIPTS[name] for name in SCRIPTS if name in noisy})
    return found


@pytest.mark.parametrize(("name", "endpoint"), CASES)
def test_every_figure_is_that_of_the_script(taken: dict[tuple[str, str], Seen], name: str, endpoint: str) -> None:
    script, seen = SCRIPTS[name], taken[name, endpoint]
    assert off(seen, script) == []
    run = seen.run(script)
    if script.usage != "never":
        assert run.tokens == script.tokens
    if script.usage == "each":
        assert run.fault is None, run.fault
        assert all(getattr(run, figure) is not None for figure in ("ttft_s", "decode_tok_s", "e2e_tok_s", "step_ms"))
        assert run.trace["tokens"] == [tokens for _, tokens in seen.sent]
    assert run.chunks == len(seen.sent)
    assert run.text_sha256 == hashlib.sha256(script.text.encode()).hexdigest()


@pytest.mark.parametrize(("name", "endpoint"), [case for case in CASES if SCRIPTS[case[0]].usage == "each"])
def test_nothing_is_read_before_it_was_sent(taken: dict[tuple[str, str], Seen], name: str, endpoint: str) -> None:
    """Chunk by chunk: the client's stamps belong to the server's events and to no others."""
    seen = taken[name, endpoint]
    for at, (stamp, _) in zip(seen.run(SCRIPTS[name]).trace["t"], seen.sent, strict=True):
        assert seen.stream.sent + at > stamp - 1e-6


@pytest.mark.parametrize("endpoint", PATHS)
def test_accept_length_is_what_verify_steps_brought(taken: dict[tuple[str, str], Seen], endpoint: str) -> None:
    run = taken["several", endpoint].run(SCRIPTS["several"])
    assert run.accept_length == 3.0 and run.step_ms == pytest.approx(3000 / (run.decode_tok_s or 0))
    ragged = taken["ragged", endpoint].run(SCRIPTS["ragged"])
    assert ragged.accept_length == pytest.approx(199 / 50)
    plain = taken["plain", endpoint].run(SCRIPTS["plain"], speculative=True)
    assert plain.accept_length is None and "spec_verify_ct" in plain.unknown["accept_length"]


@pytest.mark.parametrize("endpoint", PATHS)
def test_reasoning_tokens_are_the_servers_count(taken: dict[tuple[str, str], Seen], endpoint: str) -> None:
    run = taken["thoughts", endpoint].run(SCRIPTS["thoughts"])
    assert (run.reasoning_tokens, run.tokens) == (40, 120) and "reasoning_tokens" not in run.unknown
    silent = taken["unthought", endpoint].run(SCRIPTS["unthought"])
    if endpoint == "chat":  # the only one whose events tell thought from answer
        assert silent.reasoning_tokens is None and "counts no reasoning" in silent.unknown["reasoning_tokens"]
    else:
        assert silent.reasoning_tokens == 0


@pytest.mark.parametrize("endpoint", PATHS)
def test_late_and_missing_usage_are_unknown_and_say_why(taken: dict[tuple[str, str], Seen], endpoint: str) -> None:
    late = taken["late", endpoint].run(SCRIPTS["late"])
    assert late.tokens == 160 and late.decode_tok_s is late.step_ms is None
    assert late.ttft_s is not None and late.e2e_tok_s is not None
    assert "the first one brought is not known" in late.unknown["decode_tok_s"]
    never = taken["never", endpoint].run(SCRIPTS["never"])
    assert (never.tokens, never.decode_tok_s, never.e2e_tok_s, never.trace["t"]) == (None, None, None, [])
    assert "does not say how many tokens it sent" in never.unknown["tokens"]
    for run in (late, never):
        assert run.fault is not None and run.fault.code == "usage_missing"


def test_tokens_without_text_have_no_chunk_of_their_own_on_chat(taken: dict[tuple[str, str], Seen]) -> None:
    script = SCRIPTS["held_end"]
    chat, other = taken["held_end", "chat"].run(script), taken["held_end", "completions"].run(script)
    assert (chat.tokens, chat.trace["tokens"][-1]) == (120, 119)
    assert (other.tokens, other.trace["tokens"][-1]) == (120, 120)
    held = taken["held", "chat"].run(SCRIPTS["held"])
    assert held.chunks < taken["held", "completions"].run(SCRIPTS["held"]).chunks == 121


@pytest.mark.parametrize("spread", [False, True])
def test_token_times_of_chunks_of_three(taken: dict[tuple[str, str], Seen], spread: bool) -> None:
    seen = taken["several", "generate"]
    run = seen.run(SCRIPTS["several"])
    times = token_times(run.trace, spread=spread)
    assert len(times) == 361 and times == sorted(times) and times[-1] == run.trace["t"][-1]
    gaps = [b - a for a, b in pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(
        1 / (run.decode_tok_s or 0)
    )  # whichever way, the mean gap is the rate
    assert gaps.count(0.0) == (0 if spread else 361 - len(set(run.trace["t"])))


@pytest.mark.parametrize("endpoint", PATHS)
@pytest.mark.parametrize("name", FAULTS)
def test_what_makes_a_stream_not_count(child: Child, name: str, endpoint: str) -> None:
    script, code, part = FAULTS[name]
    stream = client.run_streams(child.address, PATHS[endpoint], bodies(endpoint, {name: script}), 20.0)[0]
    run = figures(stream, script.tokens, speculative=False)
    assert run.fault is not None and run.fault.code == code and part in run.fault.text, run.fault


def test_a_request_is_what_a_real_server_understands(child: Child, taken: dict[tuple[str, str], Seen]) -> None:
    asked = {answer["path"]: answer["request"] for answer in child.answers() if answer["script"] == "plain"}
    assert asked["/generate"]["sampling_params"] == {"temperature": 0, "max_new_tokens": 160, "ignore_eos": True}
    assert asked["/v1/completions"]["prompt"] == "plain please" and asked["/v1/completions"]["max_tokens"] == 160
    chat = asked["/v1/chat/completions"]
    assert chat["messages"] == [{"role": "user", "content": "plain please"}] and chat["max_completion_tokens"] == 160
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert asked[path]["temperature"] == 0 and asked[path]["ignore_eos"] is True
        assert asked[path]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_64_streams_at_once_and_what_they_come_to_together(child: Child) -> None:
    for _ in range(TRIES):
        taken = take(child, MANY, ["completions"])
        runs = [seen.run(MANY[name]) for (name, _), seen in taken.items()]
        late = [text for (name, _), seen in taken.items() for text in off(seen, MANY[name], 10 * NEAR)]
        if not late:
            break
    assert late == [] and [run.fault for run in runs] == [None] * 64
    assert [run.stream for run in runs] == list(range(64))
    assert len({run.began for run in runs}) == 64  # each was stamped for itself
    found, sent = together(runs), list(taken.values())
    seconds = max(seen.sent[-1][0] for seen in sent) - min(seen.stream.sent for seen in sent)
    assert found["streams"] == 64 and found["tokens"] == 64 * 80 and found["unknown"] == {}
    assert found["total_tok_s"] == pytest.approx(found["tokens"] / seconds, rel=10 * NEAR)
    assert found["decoding"]["tok_s"] == pytest.approx(64 * 40, rel=0.05)  # while all of them decode
    rates = sorted(run.decode_tok_s or 0 for run in runs)
    assert (found["decode_tok_s"]["min"], found["decode_tok_s"]["max"]) == (rates[0], rates[-1])
    assert found["decode_tok_s"]["mean"] == pytest.approx(sum(rates) / 64)


def test_together_with_one_that_does_not_tell(taken: dict[tuple[str, str], Seen]) -> None:
    runs = [taken[name, "completions"].run(SCRIPTS[name]) for name in ("plain", "never")]
    untold = together(runs)
    assert untold["total_tok_s"] is None and untold["decoding"] is None and untold["decode_tok_s"] is None
    assert untold["unknown"].keys() == {"total_tok_s", "decoding"}
