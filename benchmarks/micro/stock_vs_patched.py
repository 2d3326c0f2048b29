"""Stock and patched SGLang side by side on the CPU rig: seconds until ready, and decode rate.

    python -m benchmarks.micro.stock_vs_patched [--rounds N] [--pairs N] [--tokens N]

A block starts both servers fresh, one after the other; then asks them in turn, pair by pair, the order within a pair alternating.
While one is asked the other sleeps (--sleep-on-idle). So whatever drifts on the machine meets both alike. What does not: the
server that was started last decodes some 3 % faster here, whichever it is. So a round is two blocks, one in each order of
starting, and the unit is the round: the mean of its paired log ratios. The interval is Student's over rounds. The decode rate is
(tokens - 1) / (end - first token) by the server's own stream.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from scipy import stats

from tests.rig.server import LAUNCHER, STOCK, Server
from tools.tiny_models import make

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}
ARMS = ("stock", "patched")


def decode_rate(server: Server, tokens: int) -> float:
    """Tokens per second after the first one, of one streamed request."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = json.dumps({"text": "the quick brown fox", "sampling_params": sampling, "stream": True}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/generate", data=body, headers={"Content-Type": "application/json"}
    )
    first, counted_first, last, counted = 0.0, 0, 0.0, 0
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                last, counted = time.perf_counter(), json.loads(line[6:])["meta_info"]["completion_tokens"]
                if not first:
                    first, counted_first = last, counted
    return (counted - counted_first) / (last - first)


def server_of(arm: str, folder: Path, model: Path) -> Server:
    log = folder / f"{arm}.log"
    if arm == "stock":
        environment = {**CONTRACT, "SGLANG_EXT": "0"}
        return Server(log, start=STOCK, model=model, environment=environment, flags=["--sleep-on-idle"])
    options = [word for name, value in CONTRACT.items() for word in ("--set", f"{name}={value}")]
    return Server(log, start=LAUNCHER, options=options, model=model, flags=["--sleep-on-idle"])


def block(number: int, pairs: int, tokens: int, model: Path) -> tuple[dict[str, float], dict[str, list[float]]]:
    """One launch of each: seconds until ready, and decode rates, by arm."""
    ready: dict[str, float] = {}
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    servers: dict[str, Server] = {}
    with tempfile.TemporaryDirectory(prefix="sglang-ext-bench-") as name:
        try:
            for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
                servers[arm] = server_of(arm, Path(name), model)
                began = time.perf_counter()
                servers[arm].begin().wait_ready()
                ready[arm] = time.perf_counter() - began
            for pair in range(pairs + 2):
                for arm in ARMS if (pair + number) % 2 == 0 else ARMS[::-1]:
                    rate = decode_rate(servers[arm], tokens)
                    if pair >= 2:  # the first two fill caches
                        rates[arm].append(rate)
        finally:
            for server in servers.values():
                server.stop()
    return ready, rates


def interval(logs: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the ratios whose logarithms these are, with Student's 95 % interval."""
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def of_rounds(blocks: list[float]) -> list[float]:
    """One log ratio for each round of two blocks, in which either server was started first once."""
    return [statistics.mean(blocks[at : at + 2]) for at in range(0, len(blocks), 2)]


def table(rounds: int = 6, pairs: int = 30, tokens: int = 48) -> list[str]:
    """The result as Markdown lines."""
    model = make(ROOT / ".rig" / "models", only=["deepseek"])["deepseek"]
    readies: list[dict[str, float]] = []
    logs: list[float] = []
    medians: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(2 * rounds):
        ready, rates = block(number, pairs, tokens, model)
        readies.append(ready)
        logs.append(statistics.mean(math.log(p / s) for s, p in zip(rates["stock"], rates["patched"], strict=True)))
        for arm in ARMS:
            medians[arm].append(statistics.median(rates[arm]))
        said = f"  block {number + 1} of {2 * rounds}, {ARMS[number % 2]} started first: patched/stock {math.exp(logs[-1]):.4f}"
        print(said, file=sys.stderr, flush=True)
    decode = interval(of_rounds(logs))
    start = interval(of_rounds([math.log(ready["patched"] / ready["stock"]) for ready in readies]))
    shown = {arm: statistics.median(medians[arm]) for arm in ARMS}
    seconds = {arm: statistics.median(ready[arm] for ready in readies) for arm in ARMS}
    rows = (("decode, tok/s", shown, decode), ("ready after, s", seconds, start))
    return [
        f"Tiny DeepSeek, TP=2, {rounds} rounds of two blocks, each a launch of both and {pairs} pairs of {tokens} tokens.",
        "",
        "| | stock | patched | ratio | 95 % interval |",
        "|---|---|---|---|---|",
        *(
            f"| {label} | {arms['stock']:.1f} | {arms['patched']:.1f} | {ratio:.4f} | {low:.4f}..{high:.4f} |"
            for label, arms, (ratio, low, high) in rows
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    print("\n".join(table(options.rounds, options.pairs, options.tokens)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
