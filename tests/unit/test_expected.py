"""How many ranks a server must have: by its arguments, its record or its world, and not guessed where they do not tell."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_ext.run.directory import RunError
from sglang_ext.verify.discover import Server
from sglang_ext.verify.expected import Expected, count, from_arguments, from_record, from_world, labels, of
from tests.unit.stand_ins import SEATS

UNKNOWN = Expected()
NSA, ATTENTION = "--enable-nsa-prefill-context-parallel", "--enable-dp-attention"


def sizes(tp: int = 1, pp: int = 1, dp: int = 1, nnodes: int = 1, *, workers: int, here: int) -> Expected:
    return Expected(tp, pp, dp, nnodes, workers, here)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m sglang.launch_server --model-path m", sizes(workers=1, here=1)),
        ("python /usr/bin/sglang serve --model-path m --tp 2", sizes(tp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --tp 8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --tp=8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --tp-size 8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --tensor-parallel-size=8", sizes(tp=8, workers=8, here=8)),
        ("python -m sglang.launch_server --pp 2 --tp 2", sizes(tp=2, pp=2, workers=4, here=4)),
        ("python -m sglang.launch_server --pp-size=2", sizes(pp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --pipeline-parallel-size 2", sizes(pp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --dp 2 --tp 2", sizes(tp=2, dp=2, workers=4, here=4)),
        ("python -m sglang.launch_server --dp-size 2", sizes(dp=2, workers=2, here=2)),
        ("python -m sglang.launch_server --data-parallel-size 2", sizes(dp=2, workers=2, here=2)),
        # With DP attention the DP ranks share the TP x PP schedulers.
        ("python -m sglang.launch_server --dp 4 --tp 8 --enable-dp-attention", sizes(8, 1, 4, workers=8, here=8)),
        ("python -m sglang.launch_server --tp 8 --attn-dp-size 4", sizes(8, 1, 4, workers=8, here=8)),
        ("python -m sglang.launch_server --tp 8 --attention-data-parallel-size=4", sizes(8, 1, 4, workers=8, here=8)),
        (
            "python -m sglang.launch_server --tp 8 --attn-dp-size 4 --enable-dp-attention",
            sizes(8, 1, 4, workers=8, here=8),
        ),
        # Context parallelism is inside the TP group; DeepSeek's older flags for it switch DP attention on.
        ("python -m sglang.launch_server --tp 8 --attn-cp-size 2", sizes(8, workers=8, here=8)),
        ("python -m sglang.launch_server --tp 8 --enable-prefill-cp --cp-strategy zigzag", sizes(8, workers=8, here=8)),
        (
            "python -m sglang.launch_server --tp 8 --enable-prefill-cp --attn-dp-size 2",
            sizes(8, 1, 2, workers=8, here=8),
        ),
        (f"python -m sglang.launch_server --tp 8 --dp 2 {NSA}", sizes(8, 1, 2, workers=8, here=8)),
        # With the newer one it is the model that says whether --dp means DP attention.
        ("python -m sglang.launch_server --tp 8 --dp 2 --enable-prefill-cp", UNKNOWN),
        (
            f"python -m sglang.launch_server --tp 8 --dp 2 --enable-prefill-cp {ATTENTION}",
            sizes(8, 1, 2, workers=8, here=8),
        ),
        ("python -m sglang.launch_server --tp 16 --nnodes 2 --node-rank 1", sizes(16, nnodes=2, workers=16, here=8)),
        ("python -m sglang.launch_server --tp 1 --nnodes=2", sizes(1, nnodes=2, workers=1, here=1)),
        # A node has whole stages, or a part of one.
        ("python -m sglang.launch_server --tp 8 --pp 2 --nnodes 2", sizes(8, 2, nnodes=2, workers=16, here=8)),
        ("python -m sglang.launch_server --tp 8 --pp 2 --nnodes 4", sizes(8, 2, nnodes=4, workers=16, here=4)),
        ("python -m sglang.launch_server --tp 8 --pp 4 --nnodes 2", sizes(8, 4, nnodes=2, workers=32, here=16)),
        # argparse: the last one counts.
        ("python -m sglang.launch_server --tp 8 --tp-size 4", sizes(tp=4, workers=4, here=4)),
        ("python -m sglang.launch_server --served-model-name x=--tp", sizes(workers=1, here=1)),
        # What cannot be told is not guessed.
        ("python -m sglang.launch_server --config c.yaml --tp 8", UNKNOWN),
        ("python -m sglang.launch_server --config=c.yaml", UNKNOWN),
        ("python -m sglang.launch_server --tp 8 --use-ray", UNKNOWN),
        ("python -m sglang.launch_server --encoder-only", UNKNOWN),
        ("python -m sglang.launch_server --tp 8 --elastic-ep-join-mode scale", UNKNOWN),
        ("python -m sglang.launch_server --tp", UNKNOWN),
        ("python -m sglang.launch_server --tp eight", UNKNOWN),
        ("python -m sglang.launch_server --tp=", UNKNOWN),
        ("python -m sglang.launch_server --tp 0", UNKNOWN),
        ("python -m sglang.launch_server --tp -1", UNKNOWN),
        # argparse completes beginnings: --tensor-parallel 8 is TP 8 to upstream, --conf is --config.
        ("python -m sglang.launch_server --tensor-parallel 8", UNKNOWN),
        ("python -m sglang.launch_server --data-par=2", UNKNOWN),
        ("python -m sglang.launch_server --conf c.yaml", UNKNOWN),
        ("python engine_script.py --tp 8", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_from_arguments(line: str, expected: Expected) -> None:
    assert from_arguments(line.split()) == expected


def test_from_record() -> None:
    record: dict[str, Any] = {
        "expected": {"tp": 8, "pp": 1, "dp": 4, "nnodes": 1, "workers": 8, "here": 8},
        "port": 30000,
    }
    assert from_record(record) == Expected(8, 1, 4, 1, 8, 8)
    for damaged in ({}, {"expected": None}, {"expected": {"tp": 8}}, {"expected": {**record["expected"], "tp": "x"}}):
        with pytest.raises(RunError, match=r"server\.json has another shape"):
            from_record(damaged)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SEATS, Expected(0, 0, 0, 1, 2, 2)),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}, Expected(0, 0, 0, 2, 16, 8)),
        ({"WORLD_SIZE": "2"}, Expected(0, 0, 0, 1, 2, 2)),
        ({"WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, Expected(0, 0, 0, 2, 4, None)),
        ({"WORLD_SIZE": "x"}, Expected(0, 0, 0, 0)),
        ({}, Expected(0, 0, 0, 0)),
    ],
)
def test_from_world(environment: dict[str, str], expected: Expected) -> None:
    assert from_world(environment) == expected


def test_labels() -> None:
    assert labels(count(2, 1, 1, 1, False)) == ["TP0", "TP1"]
    assert labels(count(2, 2, 1, 1, False)) == ["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]
    # Not told: which ranks are on this node, or which DP rank goes with which TP rank.
    assert labels(count(4, 1, 1, 2, False)) == labels(count(4, 1, 2, 1, True)) == labels(UNKNOWN) == []


def test_of() -> None:
    server = Server(None, ("sglang", "serve", "--tp", "4"), ())
    assert of(server, None) == count(4, 1, 1, 1, False)
    assert of(server._replace(told=from_world(SEATS)), None).here == 2
    assert of(server, {"expected": sizes(8, workers=8, here=8)._asdict()}).here == 8
