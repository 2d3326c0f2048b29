"""From stamps to figures, pure: what one stream shows, what several show together, and what cannot be shown, with the reason.

    ttft_s         t_first - t_sent                         t_first: the first chunk that brings a token
    decode_tok_s   (N_last - n_first) / (t_last - t_first)  n_first: the tokens of that chunk; they came before the timer began
    e2e_tok_s      N_last / (t_last - t_sent)
    accept_length  L = (N - 1) / spec_verify_ct             the tokens that verify steps brought; the first one is the prefill's
    step_ms        1000 L / decode_tok_s                    T_step = L / rate; L = 1 without speculation

t_last is the last chunk of which the server says how many tokens there were by then, N_last: a closing usage chunk or `[DONE]`
may come later and is no token. N, all tokens, is more than N_last only where the last ones had no chunk of their own, as tokens
without text have none on the chat endpoint. SGLang's own spec_accept_length is N / spec_verify_ct, 1 / spec_verify_ct more.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.traffic.client import Fault, Stream
from sglang_ext.bench.traffic.events import Timeline, parse, whole

NOT_RECONCILED = "a run alone is not compared with the server's windows; a launch of a campaign is"
NONE_CAME = "no token came"
NO_COUNT = "the server does not say how many tokens it sent"
NOT_AT_ONCE = "there was no time in which all streams decoded"
ONE_READ = "what one stream brought while all of them decoded came in one read: it took no time that can be measured"
NOT_EACH = "the server does not say how many tokens each chunk brings, so what the first one brought is not known"
ONE_CHUNK = "all tokens came in one chunk"
NO_STEPS = "the answer does not say how many verify steps it took (spec_verify_ct)"
UNTOLD = "the server does not say"
UNCOUNTED = "the answer has reasoning text, and the server counts no reasoning tokens"


class Run(NamedTuple):
    """One measured stream. A figure that is None has its reason in ``unknown``; ``fault``: the run does not count."""

    tokens: int | None
    chunks: int
    ttft_s: float | None
    decode_tok_s: float | None
    e2e_tok_s: float | None
    accept_length: float | None
    step_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    server_gen_tok_s: float | None
    unknown: dict[str, str]
    fault: Fault | None
    began: float = 0.0  # when it was sent, seconds since the epoch
    stream: int = 0  # which of those that ran at once
    reasoning_tokens: int | None = None
    trace: dict[str, list[Any]] = {"t": [], "tokens": []}  # noqa: RUF012  per chunk: seconds since sent, tokens so far
    text_sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        fields = {k: v for k, v in self._asdict().items() if k != "fault"}
        reason = str(self.fault) if self.fault else None
        return {"valid": self.fault is None, "reason": reason, **fields, "reconciled": None}


def figures(stream: Stream, asked: int, *, speculative: bool | None) -> Run:
    """The figures of one stream of which ``asked`` tokens were wanted; ``speculative`` None: not known of this server."""
    line = parse(stream)
    unknown = {"reconciled": NOT_RECONCILED}

    def known(name: str, value: Any, reason: str) -> Any:
        if value is None:
            unknown[name] = reason
        return value

    chunks, total = line.chunks, line.total
    told = [(chunk.at, chunk.tokens) for chunk in chunks if chunk.tokens is not None]
    each = bool(told) and chunks[0].tokens is not None  # what the first chunk brought is known
    first, last = (chunks[0].at, chunks[-1].at) if chunks else (stream.sent, stream.sent)
    ahead, came = (told[0][1], told[-1][1]) if each else (None, total)
    last = told[-1][0] if each else last
    rate = (came - ahead) / (last - first) if ahead is not None and came is not None and last > first else None
    accept, no_accept = _accept_length(total, whole(line.facts.get("spec_verify_ct")), speculative)
    # Nobody knows of every server whether it speculates; one that names no verify steps then takes one for each token.
    length = 1.0 if accept is None and not speculative else accept
    reason = ONE_CHUNK if each else NOT_EACH
    thought = whole(line.facts.get("reasoning_tokens"))
    uncounted = not thought and line.facts.get("thought", False)
    run = Run(
        tokens=known("tokens", total, NO_COUNT),
        chunks=len(chunks),
        ttft_s=known("ttft_s", first - stream.sent if chunks else None, NONE_CAME),
        decode_tok_s=known("decode_tok_s", rate, reason),
        e2e_tok_s=known("e2e_tok_s", came / (last - stream.sent) if chunks and came else None, NO_COUNT),
        accept_length=known("accept_length", accept, no_accept),
        step_ms=known(
            "step_ms", 1000 * length / rate if length and rate else None, no_accept if not length else reason
        ),
        prompt_tokens=known("prompt_tokens", whole(line.facts.get("prompt_tokens")), UNTOLD),
        cached_tokens=known("cached_tokens", whole(line.facts.get("cached_tokens")), UNTOLD),
        server_gen_tok_s=None,
        unknown=unknown,
        fault=line.fault,
        began=stream.began,
        stream=stream.number,
        reasoning_tokens=known("reasoning_tokens", None if uncounted else thought, UNCOUNTED if uncounted else UNTOLD),
        trace={"t": [round(at - stream.sent, 7) for at, _ in told], "tokens": [tokens for _, tokens in told]},
        text_sha256=known("text_sha256", None if line.text is None else _sha256(line.text), "no text came"),
    )
    return run if run.fault else run._replace(fault=_judge(run, line, asked))


def _accept_length(total: int | None, steps: int | None, speculative: bool | None) -> tuple[float | None, str]:
    """``(tokens of each verify step, "")``, or None and why. Tokens beyond the length asked for are not in it."""
    if speculative is False:
        return None, "the server does not speculate"
    if not steps:
        return None, NO_STEPS
    return (None, NO_COUNT) if total is None else ((total - 1) / steps, "")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()  # JSON may hold half a pair


def _judge(run: Run, line: Timeline, asked: int) -> Fault | None:
    """Why an answer that came without an error does not count."""
    if not line.done:
        return Fault("connection_lost", f"the stream ended without [DONE] after {run.chunks} chunks with tokens")
    if run.tokens is not None and run.tokens != asked:
        ended = f" (finish reason: {line.facts['finish']})" if line.facts.get("finish") else ""
        return Fault("wrong_length", f"expected {asked} tokens, found {run.tokens}{ended}")
    if run.decode_tok_s is None:
        return Fault("usage_missing", f"no decode rate can be stated: {run.unknown['decode_tok_s']}")
    return None


def token_times(trace: dict[str, list[Any]], *, spread: bool) -> list[float]:
    """Seconds since sent, for each token. ``spread`` False: a chunk's tokens at the moment it was read, when a user sees them.

    True: evenly over the time since the read before, those of the first read at their own moment: closer to when they were made,
    as sglang 0.5.23 benchmark/serving.py:792-797 has it.
    """
    times: list[float] = []
    before, had = None, 0
    for at, tokens in dict(zip(trace["t"], trace["tokens"], strict=True)).items():  # of one read, the last word
        new = tokens - had
        start = at if before is None or not spread else before
        times += [start + (at - start) * number / new for number in range(1, new + 1)]
        before, had = at, tokens
    return times


def together(runs: Sequence[Run]) -> dict[str, Any]:
    """What streams that ran at once come to. ``decoding``: while all of them decode, so without prefill and thinning out."""
    unknown: dict[str, str] = {}
    ends = [run.began + run.trace["t"][-1] for run in runs if run.trace["t"]]
    whole_span = len(ends) == len(runs) and all(run.tokens for run in runs)
    tokens = sum(run.trace["tokens"][-1] for run in runs) if whole_span else None
    seconds = max(ends) - min(run.began for run in runs) if whole_span else None
    if not whole_span:
        unknown["total_tok_s"] = NO_COUNT
    common, why = _common(runs) if whole_span else (None, NO_COUNT)
    if common is None:
        unknown["decoding"] = why
    return {
        "streams": len(runs),
        "tokens": tokens,
        "seconds": seconds,
        "total_tok_s": tokens / seconds if tokens and seconds else None,
        "decoding": common,
        "ttft_s": _spread([run.ttft_s for run in runs]),
        "decode_tok_s": _spread([run.decode_tok_s for run in runs]),
        "unknown": unknown,
    }


def _common(runs: Sequence[Run]) -> tuple[dict[str, float] | None, str]:
    """Tokens that came between the last stream's first chunk and the first stream's last one, and how fast; or why not."""
    begin = max(run.began + run.trace["t"][0] for run in runs)
    end = min(run.began + run.trace["t"][-1] for run in runs)
    if end <= begin:
        return None, NOT_AT_ONCE
    rates = []
    for run in runs:
        inside = [
            (at, tokens)
            for at, tokens in zip(run.trace["t"], run.trace["tokens"], strict=True)
            if begin <= run.began + at <= end
        ]
        if len(inside) < 2:
            return None, NOT_AT_ONCE
        if inside[-1][0] <= inside[0][0]:
            return None, ONE_READ
        rates.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
    return {"seconds": end - begin, "tok_s": sum(rates)}, ""


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Least, median, mean and greatest, and their coefficient of variation; None where one of them is not known."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mean = statistics.fmean(known)
    return {
        "min": min(known),
        "median": statistics.median(known),
        "mean": mean,
        "max": max(known),
        "cv": statistics.stdev(known) / mean if len(known) > 1 and mean else 0.0,
    }
