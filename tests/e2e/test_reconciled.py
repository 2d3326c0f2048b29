"""The server's own word on real streams: its log and its counters against the client's stamps, without and with EAGLE-3.

SGLANG_EXT_RECORD=DIR keeps what was seen: tests/data/reconcile is made so (see its README). On the same servers: is what was
asked for in effect, and are two of them the same?
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sglang_ext.bench import fingerprint
from sglang_ext.bench.campaigns import looks
from sglang_ext.bench.suites.arms import Arm
from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.client import Address
from sglang_ext.bench.traffic.figures import figures
from sglang_ext.bench.truth import all_reduce, counters, in_effect
from sglang_ext.bench.truth.reconcile import COUNTERS, LOG, RECONCILED, UNKNOWN, UNRECONCILED, Reconciliation, reconcile
from sglang_ext.bench.truth.sameness import differences, facts, unknown, with_environment
from sglang_ext.bench.truth.server_log import Tail, since_flush, windows
from sglang_ext.contract.model import Contract
from tests.rig.server import STOCK, Server

from .conftest import PROMPTS, sets

CONTRACT = {"NCCL_PROTO": "LL"}
KEPT = ("Decode batch", "Prefill batch", "Cache flushed")
LONG, DRAFTED = 2048, 1024
TRIES = 3  # runs of which one must agree: other work on these cores makes single tokens late


class Seen(NamedTuple):
    """One run and what the server had to say."""

    runs: list[dict[str, Any]]
    log: str
    before: str
    after: str

    def by_log(self) -> Reconciliation:
        return reconcile(self.runs, windows(self.log))

    def by_counters(self) -> Reconciliation:
        return reconcile(self.runs, None, counters.delta(counters.totals(self.before), counters.totals(self.after)))


def body(prompt: str, tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"text": prompt, "stream": True, "sampling_params": sampling}


def see(
    server: Server, tokens: int, *, streams: int = 1, flush: bool = True, stranger_after: float | None = None
) -> Seen:
    """Stream, with the log and the counters around it; a stranger asks for something in between."""
    address = Address("127.0.0.1", server.port)
    tail = Tail(str(server.log))
    if flush:
        client.post(address, "/flush_cache")
    before = client.get_text(address, counters.PATH)
    stranger = None
    if stranger_after is not None:
        stranger = threading.Timer(
            stranger_after, client.run_streams, (address, client.PATHS["generate"], [body(PROMPTS[1], 60)], 120.0)
        )
        stranger.start()
    asked = [body(PROMPTS[0], tokens) for _ in range(streams)]
    answers = client.run_streams(address, client.PATHS["generate"], asked, 300.0)
    if stranger is not None:
        stranger.join()
    runs = [figures(answer, tokens, speculative=None).to_json() for answer in answers]
    assert [run["reason"] for run in runs] == [None] * streams
    after = client.get_text(address, counters.PATH)
    text = tail.wait(lambda text: bool(windows(text)), 5.0)
    return Seen(
        runs, "\n".join(line for line in text.splitlines() if any(word in line for word in KEPT)) + "\n", before, after
    )


def keep(name: str, seen: Seen) -> None:
    """What a unit test needs of it, without the names of this machine."""
    folder = os.environ.get("SGLANG_EXT_RECORD")
    if not folder:
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    wanted = {counter.metric for counter in counters.COUNTERS.values()}
    runs = [
        {
            "began": run["began"],
            "tokens": run["tokens"],
            "accept_length": run["accept_length"],
            "trace": {"t": [round(t, 6) for t in run["trace"]["t"]], "tokens": run["trace"]["tokens"]},
        }
        for run in seen.runs
    ]
    (place / f"{name}.json").write_text(json.dumps(runs, separators=(",", ":")) + "\n")
    (place / f"{name}.log").write_text(seen.log)
    for when, text in (("before", seen.before), ("after", seen.after)):
        lines = [line for line in text.splitlines() if line.partition("{")[0] in wanted]
        plain = "\n".join(lines).replace(str(Path(__file__).resolve().parents[2] / ".rig" / "models"), "/models")
        (place / f"{name}.{when}.metrics").write_text(plain + "\n")


def keep_server(name: str, server: Server, models: dict[str, Path]) -> None:
    """Its answer to /server_info, the words it was started with, and its own lines up to where it serves."""
    folder = os.environ.get("SGLANG_EXT_RECORD")
    if not folder:
        return
    place, parent = Path(folder), str(models["llama"].parent)
    place.mkdir(parents=True, exist_ok=True)
    if name in (BASELINE, DRAFTING):
        info = json.dumps({"words": words(server), "server_info": server.get("/server_info")}, sort_keys=True)
        (place / f"{name}.server.json").write_text(info.replace(parent, "/models") + "\n")
        own = "".join(line for line in server.text().splitlines(True) if re.match(r"\[\d{4}-", line))
        (place / f"{name}.start.log").write_text(own.replace(parent, "/models").replace(sys.prefix, "/venv"))
    made = json.dumps(PRINTS[name], indent=1, sort_keys=True).replace(parent, "/models")
    (place / f"{name}.fingerprint.json").write_text(made.replace(str(Path.home()), "/home/user") + "\n")


PRINTS: dict[str, dict[str, Any]] = {}  # of each server that was started
BASELINE, DRAFTING, AGAIN, PLAIN = "baseline", "drafting", "baseline-again", "stock"


def on(*kinds: str) -> pytest.MarkDecorator:
    """On which of the servers below a test runs. One lives at a time: an idle SGLang server polls, and these cores are few."""
    return pytest.mark.parametrize("server", kinds, indirect=True)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, models: dict[str, Path], logs: Callable[[str], Path]) -> Iterator[Server]:
    """Tiny Llama, two ranks; drafting: EAGLE-3 of two steps, and five draft tokens asked for, of which upstream makes three."""
    kind = request.param
    options: dict[str, Any] = {"options": sets(CONTRACT)}
    if kind == DRAFTING:
        flags = ["--enable-metrics", "--speculative-num-draft-tokens", "5"]
        options |= {"draft": models["eagle3-llama"], "steps": 2, "flags": flags}
    elif kind == PLAIN:
        options = {"start": STOCK, "environment": {**CONTRACT, "SGLANG_EXT": "0"}}
    with Server(logs(kind), model=models["llama"], **{"flags": ["--enable-metrics"], **options}) as running:
        running.wait_ready().generate(PROMPTS[0], 64)
        report = looks.look(running.pid, Contract() if kind != PLAIN else looks.contract_of({"set": CONTRACT}))
        assert report["verdict"] == "PASS", report["problems"]
        made = fingerprint.collect(report, running.get("/server_info"), running.get("/model_info"))
        PRINTS[kind] = with_environment(made, report)
        keep_server(kind, running, models)
        yield running


def agreeing(server: Server, name: str, tokens: int, streams: int = 1) -> Seen:
    """The first of some runs that log and counters agree with; fails with what was found where none is."""
    told = []
    for _ in range(TRIES):
        seen = see(server, tokens, streams=streams)
        found = seen.by_log(), seen.by_counters()
        print(name, *found)
        if all(one.state == RECONCILED for one in found):
            keep(name, seen)
            return seen
        told.append(found)
    raise AssertionError(f"none of {TRIES} runs agreed: {told}")


@on(BASELINE)
def test_a_long_stream_agrees_with_the_log_and_the_counters(server: Server) -> None:
    seen = agreeing(server, "one", LONG)
    by_log, by_counters = seen.by_log(), seen.by_counters()
    # 2047 decode steps: 51 windows of 40, of which the first is dropped; tokens 42 to 2041.
    assert (by_log.method, by_log.windows, by_log.span_tokens) == (LOG, 50, (41, 2041))
    assert (by_counters.method, by_counters.span_tokens) == (COUNTERS, (1, LONG))
    assert by_log.tolerance is not None and 0.005 < by_log.tolerance < 0.0055  # two decimals of a rate hide little


@on(BASELINE)
def test_the_mean_of_the_lines_is_another_figure(server: Server) -> None:
    """The first line holds the flush, HTTP and prefill: it is why a mean of lines is no rate."""
    seen = see(server, 200)
    (found,) = since_flush(windows(seen.log)).values()
    assert len(found) == 4 and found[0].tok_s < min(window.tok_s for window in found[1:])


@on(BASELINE)
def test_several_streams_agree(server: Server) -> None:
    seen = agreeing(server, "two", 600, streams=2)
    by_log = seen.by_log()
    assert by_log.windows >= 10 and by_log.client_tok_s is not None
    assert by_log.client_tok_s > 1.2 * max(run["decode_tok_s"] for run in seen.runs)  # of both together


@on(DRAFTING)
def test_speculation_agrees_and_every_window_ends_with_a_chunk(server: Server) -> None:
    seen = agreeing(server, "drafts", DRAFTED)
    by_log = seen.by_log()
    assert by_log.span_tokens is not None and by_log.windows >= 10
    # Whole numbers of tokens, found from two decimals: were one of them wrong, no chunk would end there.
    totals, at = seen.runs[0]["trace"]["tokens"], 1
    (found,) = since_flush(windows(seen.log)).values()
    for window in found:
        assert window.accept_length is not None
        at += round(40 * window.accept_length)
        assert at in totals or at > DRAFTED
    assert by_log.span_tokens[0] in totals and by_log.span_tokens[1] in totals


@on(BASELINE)
def test_a_stranger_is_noticed(server: Server) -> None:
    seen = see(server, 400, stranger_after=1.5)
    keep("stranger", seen)
    for found in (seen.by_log(), seen.by_counters()):
        assert found.state == UNRECONCILED and found.reason is not None, found
        assert found.reason.startswith("another client's traffic: ")


@on(BASELINE)
def test_without_a_flush_nothing_is_claimed(server: Server) -> None:
    seen = see(server, 200, flush=False)
    found = seen.by_log()
    assert found.state == UNKNOWN and found.reason is not None and "/flush_cache" in found.reason
    assert seen.by_counters().state in (RECONCILED, UNRECONCILED)  # counters need no flush


def words(server: Server) -> tuple[str, ...]:
    """What upstream was asked for."""
    return tuple(server.command[server.command.index("--model-path") :])


def arm(server: Server) -> Arm:
    """The same, as an arm of a suite would say it."""
    contract = {"profile": None, "set": CONTRACT, "absent": (), "variables": CONTRACT}
    return Arm("arm", "", False, False, words(server), contract, {}, True, (), None, None)


@on(BASELINE)
def test_what_a_plain_server_was_asked_for_is_in_effect(server: Server) -> None:
    found, faults = in_effect.check(arm(server), server.get("/server_info"), server.text())
    assert faults == []
    assert found["effective"]["speculative_algorithm"] is None and found["simulated_acceptance"] is None
    assert (found["all_reduce"]["path"], found["all_reduce"]["inferred"]) == ("gloo", False)
    assert found["graphs"]["decode_lines"] > 0 and found["graphs"]["captured"] == 0


@on(DRAFTING)
def test_draft_tokens_that_upstream_changed_are_refused(server: Server) -> None:
    found, faults = in_effect.check(arm(server), server.get("/server_info"), server.text())
    assert [fault.code for fault in faults] == ["steps_not_in_effect"]
    assert "expected 5, found 3" in faults[0].text and "steps + 1" in faults[0].text
    assert found["changed"]["speculative_num_draft_tokens"] == {"requested": "5", "effective": 3}
    assert found["effective"]["speculative_num_steps"] == 2


@on(DRAFTING)
def test_an_arm_that_drafts_differs_in_that(server: Server) -> None:
    base = PRINTS.get(BASELINE) or pytest.skip("runs with the tests of the baseline")
    pair = {BASELINE: base, DRAFTING: PRINTS[DRAFTING]}
    assert differences(pair, ("arguments.speculative_*",)) == []
    assert [fault.code for fault in differences(pair, ("contract.NCCL_PROTO",))] == ["arms_differ"]


@on(AGAIN)
def test_two_starts_of_one_arm_are_the_same(server: Server) -> None:
    base = PRINTS.get(BASELINE) or pytest.skip("runs with the tests of the baseline")
    assert differences({BASELINE: base, AGAIN: PRINTS[AGAIN]}, ()) == []
    told = [dict(facts(one)) for one in (base, PRINTS[AGAIN])]
    assert told[0]["arguments.random_seed"] != told[1]["arguments.random_seed"]
    assert not any("the environment of the ranks" in sentence for sentence in unknown({AGAIN: PRINTS[AGAIN]}))


@on(PLAIN)
def test_a_stock_server_differs_in_the_patches(server: Server) -> None:
    base = PRINTS.get(BASELINE) or pytest.skip("runs with the tests of the baseline")
    assert differences({BASELINE: base, PLAIN: PRINTS[PLAIN]}, ("patches",)) == []


def test_lines_about_the_all_reduce_are_upstreams() -> None:
    """Their words are in the installed sources; one is of an old release."""
    import sglang.srt.distributed as distributed

    place = Path(str(distributed.__file__)).parent
    text = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in place.rglob("*.py")))
    words = {line.words.strip() for line in all_reduce.LINES} - {"Custom allreduce is disabled"}
    named = {word.replace("CustomAllreduce", "{cls_name}").replace("CustomAllReduceV2", "{cls_name}") for word in words}
    assert [word for word in sorted(named) if word not in text] == []
