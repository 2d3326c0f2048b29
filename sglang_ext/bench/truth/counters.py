"""The server's own counters, from its /metrics (--enable-metrics): before and after a run, and what came in between.

Gauges are left alone: they hold one window, and 0 as soon as the server idles (sglang 0.5.23
srt/managers/scheduler_components/metrics_reporter.py:1515). A counter that a release does not have is not in the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sglang_ext.bench.traffic.client import Address

PATH = "/metrics"
OWN = "sglang:"  # how every metric of the server's own begins
SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)(?: -?\d+)?")
LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Sample(NamedTuple):
    """One line of the exposition format."""

    metric: str
    labels: Mapping[str, str]
    value: float


class Counter(NamedTuple):
    """What to take from /metrics under a name of ours."""

    metric: str
    labels: Mapping[str, str] = {}  # only series that carry these
    split: str | None = None  # one figure for each value of this label, as NAME.VALUE
    ranks: bool = False  # every rank that counts counts the same work


# As sglang 0.5.23 srt/observability/metrics_collector.py names them. Those of the schedulers carry tp_rank and are written by
# one rank of each DP group, or by all of them with --enable-metrics-for-all-schedulers, which must not count double.
COUNTERS: Mapping[str, Counter] = {
    "decode_tokens": Counter("sglang:realtime_tokens_total", {"mode": "decode"}, ranks=True),  # in every step, :1558
    "generation_tokens": Counter("sglang:generation_tokens_total"),  # of finished requests
    "requests": Counter("sglang:num_requests_total"),
    "verify_calls": Counter("sglang:spec_verify_calls_total"),  # since 0.5.13
    "inter_token_s": Counter("sglang:inter_token_latency_seconds_sum"),
    "inter_token_n": Counter("sglang:inter_token_latency_seconds_count"),
    "first_token_s": Counter("sglang:time_to_first_token_seconds_sum"),
    "end_to_end_s": Counter("sglang:e2e_request_latency_seconds_sum"),
    # With SGLANG_ENABLE_METRICS_DEVICE_TIMER=1: GPU seconds of decode, target_verify, eagle_draft, eagle_draft_extend, ...
    "forward_s": Counter("sglang:forward_execution_seconds_total", split="category", ranks=True),
    "graph_passes": Counter("sglang:cuda_graph_passes_total", split="mode", ranks=True),
    "idle_s": Counter("sglang:scheduler_idle_seconds_total", ranks=True),
}


class CountersError(Exception):
    """The server's counters cannot be read, or are not those of the server asked before; one sentence."""


def parse(text: str) -> Iterator[Sample]:
    """The samples of a Prometheus exposition; what is no sample is passed over."""
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line.strip())
        if found is None:  # a comment, or a blank line
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield Sample(found[1], {name: _plain(value) for name, value in LABEL.findall(found[2] or "")}, value)


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda found: ESCAPED.get(found[0], found[0]), text)


def totals(text: str) -> dict[str, float]:
    """Every counter of ours that ``text`` has, over all ranks and processes. Raises CountersError where it has none at all."""
    samples = list(parse(text))
    if not any(sample.metric.startswith(OWN) for sample in samples):
        raise CountersError(f"{PATH} has no metric of SGLang; start the server with --enable-metrics")
    found: dict[str, float] = {}
    for name, counter in COUNTERS.items():
        groups: dict[tuple[str, str], list[float]] = {}
        for sample in samples:
            if sample.metric == counter.metric and counter.labels.items() <= sample.labels.items():
                part = f".{sample.labels.get(counter.split, '')}" if counter.split else ""
                groups.setdefault((name + part, sample.labels.get("dp_rank", "")), []).append(sample.value)
        for (whole, _), values in groups.items():
            found[whole] = found.get(whole, 0.0) + (max(values) if counter.ranks else sum(values))
    return found


def read(address: Address) -> dict[str, float]:
    """What the server has counted so far. Raises CountersError."""
    from sglang_ext.bench.traffic import client

    try:
        return totals(client.get_text(address, PATH))
    except client.ServerError as error:
        raise CountersError(f"{error}; start the server with --enable-metrics") from None


def delta(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was counted in between. A series appears with its first count, so one that was not there before was 0.

    Raises CountersError where one fell: the server was started anew.
    """
    fallen = [name for name, value in before.items() if after.get(name, 0.0) < value]
    if fallen:
        raise CountersError(f"expected {fallen[0]} to grow, found it fallen: the server was started anew in between")
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
