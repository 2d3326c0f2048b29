"""Reconciling on what real servers said (tests/data/reconcile), and on the same with one thing changed in it."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sglang_ext.bench.traffic.timeline import Timeline
from sglang_ext.bench.truth import counters, reconcile
from sglang_ext.bench.truth.reconcile import COUNTERS, LOG, RECONCILED, UNKNOWN, UNRECONCILED, Reconciliation, together
from sglang_ext.bench.truth.server_log import Tail, Window, since_flush, windows
from tools import window_table

DATA = Path(__file__).resolve().parents[1] / "data" / "reconcile"
ONE, TWO, DRAFTS, STRANGER = "one", "two", "drafts", "stranger"


class Case(NamedTuple):
    """One recorded run."""

    runs: list[dict[str, Any]]
    log: str
    before: str
    after: str

    def delta(self) -> dict[str, float]:
        return counters.delta(counters.totals(self.before), counters.totals(self.after))

    def by_log(self, interval: int = 40) -> Reconciliation:
        return reconcile.reconcile(self.runs, windows(self.log), None, interval)

    def by_counters(self) -> Reconciliation:
        return reconcile.reconcile(self.runs, None, self.delta())


def case(name: str) -> Case:
    texts = [(DATA / f"{name}.{kind}").read_text() for kind in ("json", "log", "before.metrics", "after.metrics")]
    return Case(json.loads(texts[0]), *texts[1:])


def changed(found: Case, times: Callable[[int, float], float]) -> Case:
    """The same with other stamps: ``times(chunk, time)``."""
    runs = copy.deepcopy(found.runs)
    for run in runs:
        run["trace"]["t"] = [times(index, at) for index, at in enumerate(run["trace"]["t"])]
    return found._replace(runs=runs)


def rates(found: Case, rate: Callable[[int, float], str]) -> Case:
    """The same with other rates in its decode lines: ``rate(line, rate)``."""
    number = iter(range(10000))
    pattern = re.compile(r"(?<=gen throughput \(token/s\): )[\d.]+")
    return found._replace(log=pattern.sub(lambda text: rate(next(number), float(text[0])), found.log))


# --- what agreed when it was recorded


@pytest.mark.parametrize("name", [ONE, TWO, DRAFTS])
def test_recorded_runs_agree(name: str) -> None:
    for found in (case(name).by_log(), case(name).by_counters()):
        assert (found.state, found.reason) == (RECONCILED, None)
        assert found.client_tok_s is not None and found.server_tok_s is not None and found.difference is not None
        assert found.difference == pytest.approx(found.client_tok_s / found.server_tok_s - 1)
        assert abs(found.difference) <= 0.005


def test_the_span_is_that_of_whole_windows() -> None:
    found = case(ONE).by_log()
    assert (found.method, found.windows, found.span_tokens) == (LOG, 50, (41, 2041))
    run = case(ONE).runs[0]["trace"]
    seconds = run["t"][run["tokens"].index(2041)] - run["t"][run["tokens"].index(41)]
    assert found.client_tok_s == pytest.approx(2000 / seconds)
    kept = windows(case(ONE).log)[1:51]
    assert found.server_tok_s == pytest.approx(2000 / sum(40 / window.tok_s for window in kept))
    assert found.to_json()["span_tokens"] == [41, 2041]


def test_two_decimals_of_an_accept_length_are_a_whole_number_of_tokens() -> None:
    """The stream shows it: each window ends where a chunk ends."""
    found = case(DRAFTS)
    totals, at = found.runs[0]["trace"]["tokens"], 1
    for window in windows(found.log):
        assert window.accept_length is not None
        at += round(40 * window.accept_length)
        assert at in totals or at > totals[-1]
    span = found.by_log().span_tokens
    assert span is not None and set(span) <= set(totals)


def test_an_accept_length_of_no_whole_number_is_refused() -> None:
    found = case(DRAFTS)
    broken = found._replace(log=re.sub(r"accept len: [\d.]+", "accept len: 2.01", found.log))
    assert broken.by_log().state == UNKNOWN and "no whole number of tokens" in str(broken.by_log().reason)
    assert found.by_log(interval=100).state == UNKNOWN  # two decimals no longer do


# --- the same runs with one thing changed


def test_a_client_whose_clock_is_fast() -> None:
    found = changed(case(ONE), lambda _, at: at * 0.93).by_log()
    assert found.state == UNRECONCILED and found.difference == pytest.approx(1 / 0.93 - 1, abs=0.006)
    assert found.reason is not None and "likeliest the clocks" in found.reason


def test_one_window_with_a_pause_in_it() -> None:
    """As a first window would be, were it not dropped."""
    found = rates(case(ONE), lambda line, rate: f"{rate / 8 if line == 20 else rate:.2f}").by_log()
    assert found.state == UNRECONCILED and "likeliest a boundary window: tokens 802 to 841 took" in str(found.reason)


def test_a_stall_beside_windows_that_came_in_one_read_is_no_boundary() -> None:
    """Nearly all of the time in one window, and none in the others."""
    stalled = changed(case(ONE), lambda index, at: 10.0 if index < 1000 else 100.0)
    found = stalled.by_log()
    assert found.state == UNRECONCILED and "boundary" not in str(found.reason)


def test_the_first_window_is_not_used_and_would_not_do() -> None:
    slow = rates(case(ONE), lambda line, rate: "1.00" if line == 0 else f"{rate:.2f}")
    assert slow.by_log() == case(ONE).by_log()


def test_one_late_token_at_the_end() -> None:
    """In 200 tokens; in 2000 it would drown."""
    short = case(ONE)
    (run,) = short.runs
    cut = run["trace"]["tokens"].index(201)
    trace = {"t": run["trace"]["t"][: cut + 1], "tokens": run["trace"]["tokens"][: cut + 1]}
    found = changed(short._replace(runs=[{**run, "tokens": 201, "trace": trace}]), lambda n, at: at + 0.3 * (n == cut))
    made = found.by_log()
    assert (made.state, made.windows, made.span_tokens) == (UNRECONCILED, 4, (41, 201))
    assert "likeliest" in str(made.reason)


def test_one_rate_twice_the_other_is_another_number_of_streams() -> None:
    found = changed(case(ONE), lambda _, at: at * 2).by_log()
    assert found.state == UNRECONCILED and "likeliest another stream count: one is 2 times the other" in str(
        found.reason
    )


def test_several_streams_of_which_one_is_hidden() -> None:
    found = case(TWO)
    alone = found._replace(runs=found.runs[:1]).by_log()
    assert alone.state == UNRECONCILED
    assert alone.reason == "another client's traffic: expected 1 running at most, found 2 in a decode line"
    three = found._replace(runs=[*found.runs, found.runs[0]]).by_log()
    assert three.state == UNRECONCILED and str(three.reason).startswith(
        "other stream count: expected 3 running, found 2"
    )


def test_a_window_in_which_a_stream_joined_is_not_used() -> None:
    log = re.sub(r"(Decode batch, #running-req: )2", r"\g<1>1", case(TWO).log, count=1)
    found = case(TWO)._replace(log=log).by_log()  # so the second stream came in the second window
    assert (found.state, found.windows, found.span_tokens) == (RECONCILED, case(TWO).by_log().windows - 1, (81, 561))


def test_a_stranger() -> None:
    for found in (case(STRANGER).by_log(), case(STRANGER).by_counters()):
        assert found.state == UNRECONCILED and found.client_tok_s is None
        assert str(found.reason).startswith("another client's traffic: ")


def test_a_stranger_between_two_decode_lines_shows_by_its_prefill() -> None:
    log = case(STRANGER).log.replace("#running-req: 2", "#running-req: 1")
    found = case(STRANGER)._replace(log=log).by_log()
    assert found.state == UNRECONCILED and str(found.reason).endswith("prefilled while the stream was decoding")


def test_chunks_of_several_tokens_leave_something_open() -> None:
    """As --stream-interval 16 sends them. Its moments are between two chunks; within 2000 tokens that does not matter much."""
    found = case(ONE)
    (run,) = found.runs
    coarse = [
        i for i, total in enumerate(run["trace"]["tokens"]) if total % 16 == 0 or i in (0, len(run["trace"]["t"]) - 1)
    ]
    trace = {key: [values[i] for i in coarse] for key, values in run["trace"].items()}
    made = found._replace(runs=[{**run, "trace": trace}]).by_log()
    assert made.tolerance is not None and made.tolerance > 0.015  # 32 of 2000 tokens: more than is allowed
    assert made.state == UNKNOWN and "chunks bring several tokens" in str(made.reason)


def test_slow_rates_are_printed_too_coarsely() -> None:
    found = case(ONE)
    slow = rates(changed(found, lambda _, at: at * 200), lambda _, rate: f"{rate / 200:.2f}").by_log()
    assert slow.state == UNKNOWN and "printed with two decimals" in str(slow.reason)
    less = rates(changed(found, lambda _, at: at * 20), lambda _, rate: f"{rate / 20:.2f}").by_log()
    assert less.state == RECONCILED and less.tolerance is not None and less.tolerance > 0.0055


def without(found: Case, pattern: str) -> Case:
    return found._replace(log="".join(line for line in found.log.splitlines(True) if not re.search(pattern, line)))


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (case(ONE)._replace(log=""), "no decode line"),
        (without(case(ONE), "Cache flushed"), "/flush_cache"),
        (case(ONE)._replace(log="\n".join(case(ONE).log.splitlines()[:3]) + "\n"), "no window but the first"),
        (case(ONE)._replace(log=case(ONE).log + case(ONE).log.replace(" TP0]", " DP1 TP0]")), "2 data-parallel ranks"),
        (case(ONE)._replace(runs=[{"tokens": 3}]), "no trace"),
        (case(ONE)._replace(runs=[{"trace": {"t": [1.0], "tokens": [None]}}]), "does not say how many tokens"),
        (case(ONE)._replace(runs=[]), "there is no run"),
        (
            case(DRAFTS)._replace(runs=case(DRAFTS).runs * 2, log=case(DRAFTS).log.replace("req: 1", "req: 2")),
            "several streams",
        ),
    ],
)
def test_unknown_with_its_reason(found: Case, part: str) -> None:
    made = found.by_log()
    assert made.state == UNKNOWN and made.difference is None and part in str(made.reason)


def test_a_last_line_that_has_not_been_written_yet_costs_one_window() -> None:
    lines = case(ONE).log.splitlines(True)
    found = case(ONE)._replace(log="".join(lines[:-1])).by_log()
    assert (found.state, found.windows, found.span_tokens) == (RECONCILED, 49, (41, 2001))


def test_ranks_of_one_group_say_the_same_and_one_is_taken() -> None:
    """Every rank writes with --enable-metrics-for-all-schedulers of old releases; pipeline stages always do."""
    doubled = case(ONE)._replace(log=case(ONE).log + case(ONE).log.replace(" TP0]", " TP1]"))
    assert doubled.by_log() == case(ONE).by_log()


# --- any shape of a run, worked out: steps of uneven length, the log by the server's clock, the trace by the client's


def simulated(seed: int) -> tuple[Case, int, int]:
    """``(run, interval, windows that must count)``. The server makes steps beyond the last token, as an overlap schedule does."""
    chance = random.Random(seed)
    interval, streams = chance.choice([8, 40, 64]), chance.choice([1, 1, 3])
    drafts = 0 if streams > 1 else chance.choice([0, 2, 5])
    tokens = chance.randint(2, 12 * interval)
    now, total, since, made = 5.0, 1, 0.0, 0
    trace: dict[str, list[Any]] = {"t": [now + 0.02], "tokens": [1]}
    text, steps = "[2026-11-30 04:40:00 TP0] Cache flushed successfully!\n", 0
    counts: list[int] = []  # tokens of the stream at the end of each window
    while total < tokens or chance.random() < 0.5:
        now += chance.uniform(0.5, 2.0) / 50
        new = 1 + chance.randint(0, drafts)
        total, made, steps = total + new, made + new, steps + 1
        if trace["tokens"][-1] < tokens:
            trace["t"].append(now + 0.02)  # on its way to the client, always as long
            trace["tokens"].append(min(total, tokens))
        if steps % interval == 0:
            accept = f"accept len: {made / interval:.2f}, " if drafts else ""
            rate = streams * made / (now - since)
            text += line(
                f", #running-req: {streams}, {accept}cpu graph: False, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
            )
            counts.append(total)
            since, made = now, 0
    run = {"began": 0.0, "tokens": tokens, "trace": trace}
    late = {**run, "began": 0.2}  # the others follow
    return Case([run, *[late] * (streams - 1)], text, "", ""), interval, sum(count <= tokens for count in counts[1:])


@pytest.mark.parametrize("seed", range(300))
def test_whatever_the_shape(seed: int) -> None:
    found, interval, count = simulated(seed)
    made = found.by_log(interval)
    if not count:
        assert made.state == UNKNOWN
        return
    assert (made.state, made.windows) == (RECONCILED, count)
    assert made.difference is not None and made.tolerance is not None
    assert abs(made.difference) <= made.tolerance - 0.005 + 1e-9  # nothing but the rounding


# --- by counters


def test_the_log_goes_first_and_counters_stand_in() -> None:
    found = case(ONE)
    assert reconcile.reconcile(found.runs, windows(found.log), found.delta()).method == LOG
    assert reconcile.reconcile(found.runs, [], found.delta()).method == COUNTERS
    nothing = reconcile.reconcile(found.runs, None, None)
    assert (nothing.state, nothing.reason) == (UNKNOWN, reconcile.NOTHING)
    both = reconcile.reconcile(found.runs, [], {})
    assert both.state == UNKNOWN and "no decode line" in str(both.reason) and "did not count" in str(both.reason)


def test_counters_of_a_first_token_that_is_another_one() -> None:
    found = case(ONE)
    (run,) = found.runs
    held_back = {key: [values[0], *values[150:]] for key, values in run["trace"].items()}
    held_back["t"][0], held_back["tokens"][0] = run["trace"]["t"][149], 1  # 150 tokens late, and counted as one
    made = found._replace(runs=[{**run, "trace": held_back}]).by_counters()
    assert made.state == UNRECONCILED and made.difference is not None and made.difference > 0.05
    late = {key: values[149:] for key, values in run["trace"].items()}
    late["t"] = [at * 0.9 for at in late["t"]]
    made = found._replace(runs=[{**run, "trace": late}]).by_counters()
    assert made.state == UNRECONCILED and "likeliest the first-token timer" in str(made.reason)


def test_counters_that_are_not_there_yet() -> None:
    found = case(ONE)
    made = reconcile.reconcile(found.runs, None, {**found.delta(), "generation_tokens": 7.0})
    assert made.state == UNKNOWN and "found 7 counted by now" in str(made.reason)


def test_the_exposition_format() -> None:
    text = (
        '# HELP sglang:x a "help"\n# TYPE sglang:x counter\n'
        'sglang:x{a="1,2",b="say \\"hi\\" \\\\ \\n"} 3.0 1700000000\nsglang:y 1e3\nbroken{ 1\nsglang:z nothing\n'
    )
    assert list(counters.parse(text)) == [
        counters.Sample("sglang:x", {"a": "1,2", "b": 'say "hi" \\ \n'}, 3.0),
        counters.Sample("sglang:y", {}, 1000.0),
    ]


def test_ranks_that_count_the_same_are_not_added() -> None:
    line = 'sglang:realtime_tokens_total{{dp_rank="{}",mode="{}",tp_rank="{}"}} {}\n'
    text = "".join(
        line.format(*row)
        for row in [(0, "decode", 0, 5), (0, "decode", 1, 5), (1, "decode", 0, 7), (0, "prefill", 0, 9)]
    )
    assert counters.totals(text) == {"decode_tokens": 12.0}
    split = 'sglang:forward_execution_seconds_total{category="decode",tp_rank="0"} 2.5\n'
    assert counters.totals(split) == {"forward_s.decode": 2.5}


def test_recorded_counters_hold_the_run() -> None:
    delta = case(ONE).delta()
    assert delta["generation_tokens"] == 2048 and delta["decode_tokens"] >= 2047 and delta["requests"] == 1
    assert delta["inter_token_n"] == 2047 and delta["inter_token_s"] > 0
    drafts = case(DRAFTS).delta()
    assert drafts["verify_calls"] > 0 and drafts["generation_tokens"] == 1024


def test_counters_that_fell_are_those_of_another_server() -> None:
    with pytest.raises(counters.CountersError, match="started anew"):
        counters.delta({"requests": 3.0}, {"requests": 1.0})
    assert counters.delta({}, {"requests": 1.0}) == {"requests": 1.0}
    with pytest.raises(counters.CountersError, match="--enable-metrics"):
        counters.totals("python_info 1\n")


# --- a launch


def test_a_launch_is_as_bad_as_its_worst_run() -> None:
    good = Reconciliation(RECONCILED, LOG, None, 100.0, 100.2, -0.002, 0.005, 10, (41, 441))
    slow = good._replace(client_tok_s=50.0, server_tok_s=50.1)
    assert together([good, slow]).state == RECONCILED
    assert together([good, slow]).client_tok_s == pytest.approx(2 / (1 / 100 + 1 / 50))  # the same tokens, other times
    assert together([good, slow]).windows == 20
    bad = good._replace(state=UNRECONCILED, reason="why", client_tok_s=110.0, difference=0.098)
    none = Reconciliation(UNKNOWN, LOG, "no log")
    assert together([good, bad, none, bad]).state == UNRECONCILED
    assert together([good, bad, none, bad]).reason == "run 2: why; and 1 more of 4 runs"
    assert (together([good, none]).state, together([good, none]).reason) == (UNKNOWN, "run 2: no log")
    assert together([]).state == UNKNOWN


# --- lines of the log


def line(message: str, head: str = "[2026-11-30 04:40:00 TP0] ") -> str:
    return f"{head}Decode batch{message}\n"


RELEASES = [text.partition(" ") for text in (DATA / "releases.lines").read_text().splitlines()]


@pytest.mark.parametrize(("which", "text"), [(which, text) for which, _, text in RELEASES])
def test_lines_that_releases_wrote(which: str, text: str) -> None:
    (found,) = windows(text)
    assert (found.rank, found.running, found.queued, found.graph) == ("TP0", 1, 0, False)
    assert found.at.startswith("2026-11-") and f": {found.tok_s:.2f}, #queue-req" in text
    assert (found.accept_length is not None) == ("accept len" in text)
    if found.accept_length is not None:  # the printed one is that of a whole number of tokens
        assert f"{round(found.accept_length * 40) / 40:.2f}" in (
            f"{found.accept_length - 0.01:.2f}",
            f"{found.accept_length:.2f}",
        )


# As 0.5.23's source makes them (metrics_reporter.py:950-1056); no such server was at hand.
LINES = {
    "swa": line(
        ", #running-req: 3, #full token: 9, full token usage: 0.00, #swa token: 4, swa token usage: 0.01, cuda graph: True, "
        "gen throughput (token/s): 43.68, #queue-req: 2"
    ),
    "iteration": line(
        " [812], #running-req: 3, #token: 33, token usage: 0.00, cuda graph: True, gen throughput (token/s): 43.68, #queue-req: 2"
    ),
    "mfu": line(
        ", #running-req: 3, #token: 33, token usage: 0.00, cuda graph: True, gen throughput (token/s): 43.68, #queue-req: 2, "
        "est. decode TFLOPS/s (per GPU): 1.20, est. read BW (GB/s per GPU): 3.00, est. write BW (GB/s per GPU): 0.10"
    ),
}


@pytest.mark.parametrize("text", LINES.values(), ids=LINES)
def test_lines_of_several_kinds(text: str) -> None:
    assert windows(text) == [Window("2026-11-30 04:40:00", "TP0", 43.68, 3, 2, None, True, 0, 0)]


def test_heads_of_several_kinds() -> None:
    message = ", #running-req: 1, #token: 3, token usage: 0.00, accept len: 2.98, accept rate: 0.99, cpu graph: False, "
    message += "gen throughput (token/s): 9.00, #queue-req: 0"
    (found,) = windows(line(message, "[2026-11-30 04:40:00.123 DP1 PP0 TP3 EP3] "))
    assert (found.at, found.rank, found.data_parallel) == ("2026-11-30 04:40:00.123", "DP1 PP0 TP3 EP3", 1)
    assert (found.accept_length, found.graph) == (2.98, False)
    (found,) = windows(line(message, "INFO sglang | "))  # a logging configuration of one's own
    assert (found.at, found.rank, found.tok_s) == ("", "", 9.0)
    assert windows(line(message, "[2026-11-30 04:40:00 ATTN_CP0 MOE_DP2 TP0] "))[0].data_parallel is None


@pytest.mark.parametrize(
    "end", ["gen throughput (token/s): ", "gen throughput (token/s): inf, #queue-req: 0", "gen thr", ""]
)
def test_broken_lines_are_passed_over(end: str) -> None:
    assert windows(line(f", #running-req: 1, #token: 3, token usage: 0.00, cuda graph: True, {end}")) == []


def test_only_windows_since_the_last_flush_count() -> None:
    twice = windows(case(ONE).log + case(ONE).log)
    (found,) = since_flush(twice).values()
    assert len(twice) == 2 * len(found) and {window.flushes for window in found} == {2}


def test_a_tail_gives_whole_lines_from_where_it_began(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before\n")
    tail = Tail(str(file))
    with file.open("a") as log:
        log.write("one\ntw")
        log.flush()
        assert tail.text() == "one\n"
        log.write("o\n")
    assert tail.wait(lambda text: "two" in text, 5.0) == "one\ntwo\n"
    assert tail.wait(lambda text: False, 0.0) == "one\ntwo\n"


def test_moments_of_tokens() -> None:
    found = Timeline({"t": [1.0, 2.0, 4.0], "tokens": [1, 2, 6]})
    assert found.at(2) == (2.0, 0.0) and found.at(6) == (4.0, 0.0)
    assert found.at(4) == (3.0, 2.0)  # half way, and it may have been there at 2.0
    assert (found.tokens, found.first, found.span) == (6, 1, 3.0)
    with pytest.raises(ValueError, match="expected 7 tokens"):
        found.at(7)


# --- the page


def test_the_page_has_the_table_as_it_is_worked_out() -> None:
    page = window_table.PAGE.read_text(encoding="utf-8")
    assert window_table.put_in(page) == page
    with pytest.raises(ValueError, match="no such place"):
        window_table.put_in("# nothing")


@pytest.mark.parametrize("name", [ONE, TWO, DRAFTS])
def test_the_page_says_what_was_measured(name: str) -> None:
    by_log, by_counters = case(name).by_log(), case(name).by_counters()
    rates = [window.tok_s for window in windows(case(name).log)[1:]]
    page = window_table.PAGE.read_text(encoding="utf-8")
    log = f"| {min(rates):.0f} to {max(rates):.0f} | {by_log.difference:+.4%}, {by_log.windows} windows |"
    assert f"{log} {by_counters.difference:+.4%} |" in page
    if name == ONE:
        mean = sum(window.tok_s for window in windows(case(ONE).log)) / len(windows(case(ONE).log))
        assert f"lines is {mean:.1f}, its rate {by_log.client_tok_s:.1f}" in page


def test_75_to_77_and_82_are_both_true() -> None:
    """Of chats of some 256 to 512 tokens: one rate, and what a mean of the lines makes of it."""
    short, long = window_table.seen(256), window_table.seen(512)
    assert short.mean < 75 and 77 < long.mean < window_table.RATE
    assert short.median == pytest.approx(window_table.RATE) == long.median
    assert window_table.seen(2048).mean > 80  # with long answers that is no explanation
    # Windows follow each other: whatever the pauses, tokens over time is a rate of exactly these tokens.
    each = window_table.lines(256)
    assert window_table.seen(256).weighted == pytest.approx(40 * len(each) / sum(each))
    assert 256 / (256 / window_table.RATE + window_table.dead_time(256, 76.0)) == pytest.approx(76.0)
