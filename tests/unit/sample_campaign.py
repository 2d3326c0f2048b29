"""Campaigns for tests of what reads them: schema sglang-ext/campaign/1, their figures MADE UP from a seed. Nobody measured them.

They have the shape of a real one: clocks that warm up, launches that differ more than runs do, a throttled launch, pauses in a
stream, several tokens in a chunk. Whoever shows one must say that it is made up; `SUMMARY` does.
"""

from __future__ import annotations

import math
import random
import statistics
from typing import Any, NamedTuple

SUMMARY = "MADE UP FOR A TEST: no figure here was measured"
BEGAN = 1_790_000_000.0
PROMPT_SHA = "5f" * 32
T975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # by the number of pairs
LOAD_S, SAMPLE_S = 420.0, 5.0


class Made(NamedTuple):
    """An arm to make up: its rate, and tokens a step."""

    name: str
    rate: float
    accept: float | None = None
    control: bool = False


NO_GPU = {"gpus": [], "cpu": {}, "marks": [], "unknown": {"gpus": "LibraryNotFound: no NVIDIA driver is installed"}}
ARMS = (
    Made("baseline", 82.2),
    Made("baseline-again", 82.2, control=True),
    Made("eagle3-2", 88.6, 2.28),
    Made("eagle3-3", 81.9, 2.69),
)


def trace(chance: random.Random, rate: float, accept: float | None, tokens: int) -> dict[str, list[float]]:
    """Token times of one stream: a jitter of 2%, a pause now and then."""
    per_step = accept or 1.0
    at, have = 0.35 + chance.random() * 0.02, 1
    times: list[float] = []
    running: list[float] = []
    while True:
        times.append(round(at, 5))
        running.append(have)
        if have >= tokens:
            return {"t": times, "tokens": running}
        brought = int(per_step) + (chance.random() < per_step % 1)
        have = min(have + max(brought, 1), tokens)
        at += per_step / rate * chance.gauss(1, 0.02) + (0.12 if chance.random() < 0.002 else 0.0)


def run(chance: random.Random, made: Made, rate: float, began: float, tokens: int) -> dict[str, Any]:
    line = trace(chance, rate, made.accept, tokens)
    t, total = line["t"], tokens
    steps = len(t) - 1
    decode = (total - 1) / (t[-1] - t[0])
    unknown = {} if made.accept else {"accept_length": "the server does not speculate"}
    return {
        "valid": True,
        "reason": None,
        "tokens": total,
        "chunks": len(t),
        "ttft_s": t[0],
        "decode_tok_s": decode,
        "e2e_tok_s": total / t[-1],
        "accept_length": total / steps if made.accept else None,
        "step_ms": 1000 * (t[-1] - t[0]) / steps,
        "prompt_tokens": 412,
        "cached_tokens": 0,
        "server_gen_tok_s": decode * 0.999,
        "unknown": unknown,
        "reconciled": None,
        "began": began,
        "stream": 0,
        "reasoning_tokens": None,
        "trace": line,
    }


def machine(chance: random.Random, began: float, ended: float, gpus: int, hot: bool) -> dict[str, Any]:
    """Clocks that fall and heat that rises over a launch; a throttled one falls more."""
    at = [began + SAMPLE_S * i for i in range(int((ended - began) / SAMPLE_S) + 1)]
    found = []
    for index in range(gpus):
        warm = [(1 - math.exp(-(t - began) / 60)) for t in at]
        samples = {
            "t": at,
            "sm_mhz": [
                round(2610 - 120 * w - (400 * w if hot and index == 3 else 0) + chance.gauss(0, 8)) for w in warm
            ],
            "mem_mhz": [13365 for _ in at],
            "temp_c": [round(41 + index + 33 * w + (9 * w if hot else 0)) for w in warm],
            "mem_temp_c": [None for _ in at],
            "power_w": [round(120 + 210 * w + chance.gauss(0, 5), 1) for w in warm],
            "pcie_gen": [5 for _ in at],
            "pcie_width": [16 for _ in at],
        }
        name = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
        found.append(
            {
                "index": index,
                "uuid": f"GPU-made-up-{index}",
                "name": name,
                "static": {"power_limit_w": 600.0, "pcie_max_gen": 5},
                "samples": samples,
                "deltas": {
                    "sw_thermal_ns": 41_300_000_000 if hot and index == 3 else 0,
                    "energy_mj": 1,
                    "pcie_replays": 0,
                },
                "ecc": {},
                "unknown": {"mem_temp_c": "NotSupported: this GPU or driver does not offer it"},
            }
        )
    text = "GPU 3: software thermal slowdown for 41.3 s"
    return {
        "span": {"began": began, "ended": ended},
        "gpus": found,
        "cpu": {"governor": "performance", "load": [round(3 + chance.random(), 2), 3.1, 3.0], "numa": {"nodes": 2}},
        "observer": {"every_s": SAMPLE_S},
        "unknown": {},
        "marks": [{"code": "throttled", "text": text, "run": 2, "excludes": True}] if hot else [],
    }


def fingerprint(made: Made) -> dict[str, Any]:
    arguments: dict[str, Any] = {"model_path": "/models/kimi-k2.5", "tp_size": 8, "port": 30000 + len(made.name)}
    if made.accept:
        arguments |= {"speculative_algorithm": "EAGLE3", "speculative_num_steps": int(made.name[-1])}
    variables = {
        "NCCL_PROTO": {"want": "LL", "source": "profile"},
        "NCCL_ALGO": {"want": "Ring", "source": "profile"},
        "NCCL_CUMEM_ENABLE": {"want": None, "source": "--absent"},
    }
    return {
        "machine": {"cpu": "made up", "cores": 64, "memory_bytes": 1 << 39, "gpus": ["NVIDIA RTX PRO 6000"] * 8},
        "driver": {"version": "580.65.06", "reason": None},
        "server": {"python": "3.12", "packages": {"sglang": "0.5.23", "torch": "2.14.1"}, "reason": None},
        "nccl": [
            {"worker": f"TP{i}", "file": "libnccl.so.2", "sha256": "ab" * 32, "version": "2.28.3"} for i in range(2)
        ],
        "contract": {"digest": "cd" * 32, "variables": variables},
        "patches": {"patchset": "ef" * 32, "mode": "overlay", "imported": {"srt/x.py": "01" * 32}, "reason": None},
        "model": {"model_path": "/models/kimi-k2.5"},
        "arguments": arguments,
        "arguments_left_out": 0,
    }


def comparison(
    base: Made, made: Made, pairs: list[tuple[int, float]], launches: dict[str, list[Any]]
) -> dict[str, Any]:
    """A paired t on logs, as the verdict of a real one rests on; its p values are only rough."""
    logs = [log for _, log in pairs]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = T975.get(len(logs), 2.0) * error
    p = math.erfc(abs(mean) / error / math.sqrt(2))
    verdict = "faster" if mean > reach else "slower" if mean < -reach else "inconclusive"
    economics = None
    if made.accept:

        def middle(name: str, figure: str) -> float:
            return statistics.fmean(r[figure] for launch in launches[name] for r in launch["runs"])

        step, plain = middle(made.name, "step_ms"), middle(base.name, "step_ms")
        accept = math.exp(mean) * step / plain
        economics = {
            "dln_rate": mean,
            "dln_accept": math.log(accept),
            "dln_step": math.log(step / plain),
            "accept": accept,
            "step_ms": step,
            "base_step_ms": plain,
            "break_even_accept": step / plain,
        }
    return {
        "arm": made.name,
        "baseline": base.name,
        "control": made.control,
        "metric": "decode_tok_s",
        "pairs": len(logs),
        "blocks": [block for block, _ in pairs],
        "pair_logs": logs,
        "ratio": math.exp(mean),
        "low": math.exp(mean - reach),
        "high": math.exp(mean + reach),
        "p_t": p,
        "p_sign_flip": max(p, 2 / 2 ** len(logs)),
        "p_holm": None if made.control else min(1.0, 2 * p),
        "verdict": verdict,
        "equivalence": {"margin": 0.01, "p": 0.5, "holds": False},
        "mde": 2.5 * error,
        "economics": economics,
    }


def campaign(
    seed: int = 7,
    *,
    arms: tuple[Made, ...] = ARMS,
    blocks: int = 8,
    runs: int = 5,
    tokens: int = 256,
    gpus: int = 8,
    state: str = "VALID",
    reason: str | None = None,
    simulated: bool = False,
    throttled: tuple[int, str] | None = (4, "eagle3-3"),
) -> dict[str, Any]:
    """A whole campaign; ``throttled``: the block and arm of a launch that a hot GPU slowed down."""
    chance = random.Random(seed)
    order = [chance.sample([arm.name for arm in arms], len(arms)) for _ in range(blocks)]
    of = {arm.name: arm for arm in arms}
    launches: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in arms}
    at = BEGAN
    for block, names in enumerate(order):
        drift = 1 - 0.03 * (1 - math.exp(-block / 3))  # the box warms up: all arms alike
        for place, name in enumerate(names):
            made, hot = of[name], (block, name) == throttled
            level = made.rate * drift * chance.gauss(1, 0.004) * (0.93 if hot else 1)
            began, ready = at, at + LOAD_S + chance.random() * 20
            at = ready + 5
            found = []
            for _ in range(runs):
                found.append(run(chance, made, level * chance.gauss(1, 0.002), at, tokens))
                at += found[-1]["trace"]["t"][-1] + 1
            difference = chance.gauss(0, 0.0008)
            launches[name].append(
                {
                    "block": block,
                    "order": place,
                    "attempt": 0,
                    "arm": name,
                    "state": "finished",
                    "reason": None,
                    "time": {"began": began, "ready": ready, "ended": at},
                    "verify": {"before": {"verdict": "PASS"}, "after": {"verdict": "PASS"}},
                    "server": {"pid": 4242, "port": 30000, "log": "logs/x.log"},
                    "in_effect": {},
                    "fingerprint": fingerprint(made),
                    "warmups": [],
                    "runs": found,
                    "counters": {"spec_verify_calls_total": 1.0},
                    "reconciliation": {
                        "state": "RECONCILED",
                        "client_tok_s": level,
                        "server_tok_s": level / (1 + difference),
                        "difference": difference,
                        "tolerance": 0.005,
                        "windows": 5,
                        "span_tokens": [41, tokens],
                        "method": "log",
                        "reason": None,
                    },
                    "machine": machine(chance, ready, at, gpus, hot) if gpus else NO_GPU,
                    "output_sha256": ["77" * 32] * runs,
                    "simulated_acceptance": simulated and made.accept is not None,
                }
            )
            at += 4
    base = arms[0]
    out = {throttled} if throttled and throttled[1] in of else set()
    figures = {
        (name, launch["block"]): statistics.fmean(math.log(r["decode_tok_s"]) for r in launch["runs"])
        for name, each in launches.items()
        for launch in each
    }
    pairs = {
        made.name: [
            (b, figures[made.name, b] - figures[base.name, b]) for b in range(blocks) if (b, made.name) not in out
        ]
        for made in arms[1:]
    }
    text = "launch of eagle3-3: GPU 3: software thermal slowdown for 41.3 s"
    shared = ["--model-path", "/models/kimi-k2.5", "--tp", "8"]
    return {
        "schema": "sglang-ext/campaign/1",
        "id": "made-up",
        "state": state,
        "reason": reason,
        "exit": {"VALID": 0, "INCONCLUSIVE": 5, "UNRECONCILED": 3}.get(state, 1),
        "time": {"began": BEGAN, "ended": at},
        "suite": {
            "name": "kimi-eagle3",
            "summary": SUMMARY,
            "file": "kimi-eagle3.toml",
            "sha256": "12" * 32,
            "workload": {"tokens": tokens, "runs": runs, "endpoint": "generate", "prompt_sha256": PROMPT_SHA},
            "campaign": {"blocks": blocks, "under_test": ["arguments.speculative_*", "draft"]},
            "arms": [
                {
                    "name": made.name,
                    "arguments": shared + (["--speculative-num-steps", made.name[-1]] if made.accept else []),
                    "contract": {"variables": {"NCCL_PROTO": "LL"}},
                    "environment": {},
                    "patches": True,
                }
                for made in arms
            ],
        },
        "plan": {
            "seed": seed,
            "blocks": order,
            "rule": "fixed",
            "alpha": 0.05,
            "margin": 0.01,
            "effect": 0.02,
            "stopped": None,
        },
        "arms": [
            {
                "name": made.name,
                "summary": "the baseline again" if made.control else "",
                "baseline": made is base,
                "control": made.control,
                "fingerprint": fingerprint(made),
                "launches": launches[made.name],
            }
            for made in arms
        ],
        "comparisons": [comparison(base, made, pairs[made.name], launches) for made in arms[1:]],
        "excluded": [{"block": b, "arm": name, "code": "throttled", "text": text} for b, name in out],
        "notes": ["prompts repeat; the cache is emptied before each run"],
    }
