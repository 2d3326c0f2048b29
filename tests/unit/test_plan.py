"""The plan of a campaign: orders that are the same everywhere and fair, times that follow from the suite."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest

from sglang_ext.bench.suites import plan
from sglang_ext.bench.suites.suite import Suite, parse_suite
from sglang_ext.study import sequential

SUITE = """
[suite]
name = "s"
summary = "S"
[workload]
prompt = "hello"
tokens = 100
runs = 4
warmup_tokens = 20
warmup_runs = 2
timeout_s = 50
[campaign]
blocks = 3
under_test = ["contract.NCCL_PROTO"]
ready_timeout_s = 600
settle_s = 5
[[arm]]
name = "a"
summary = "the old way"
baseline = true
set = { NCCL_PROTO = "Simple" }
[[arm]]
name = "b"
set = { NCCL_PROTO = "LL" }
"""


def suite(text: str = SUITE) -> Suite:
    return parse_suite(text.encode(), "s.toml")


def test_an_order_is_written_down_here_for_every_python_there_will_be() -> None:
    assert plan.order(["a", "b", "a-again"], 4, 7) == [
        ["b", "a", "a-again"],
        ["b", "a", "a-again"],
        ["a", "a-again", "b"],
        ["b", "a-again", "a"],
    ]


def test_every_block_holds_every_arm_once_and_more_blocks_change_none() -> None:
    names = ["plain", "eagle3-2", "eagle3-3", "plain-again"]
    long = plan.order(names, 50, 3)
    assert all(sorted(block) == sorted(names) for block in long)
    assert plan.order(names, 8, 3) == long[:8]
    assert plan.order(reversed(names), 8, 3) == long[:8]  # nor does the order of the suite
    assert plan.order(names, 8, 4) != long[:8]


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"]])
def test_every_order_comes_up_equally_often(names: list[str]) -> None:
    """Counts of 6000 blocks: each within five standard deviations of its share, which a fair draw leaves once in a million."""
    count, ways = 6000, len(list(permutations(names)))
    found = Counter(tuple(block) for block in plan.order(names, count, 20261130))
    expected, deviation = count / ways, (count * (1 / ways) * (1 - 1 / ways)) ** 0.5
    assert len(found) == ways
    assert all(abs(times - expected) < 5 * deviation for times in found.values())


def test_blocks_and_seeds_are_drawn_independently() -> None:
    """What one block or seed gives says nothing about the next: neighbours agree as often as not."""
    for pairs in (
        list(zip(plan.order("ab", 4000, 1), plan.order("ab", 4000, 2), strict=True)),
        list(zip(plan.order("ab", 4000, 1), plan.order("ab", 4001, 1)[1:], strict=True)),
    ):
        agree = sum(one == other for one, other in pairs)
        assert abs(agree - 2000) < 5 * 1000**0.5


def test_a_drawn_seed_fits_and_differs() -> None:
    seeds = {plan.draw_seed() for _ in range(20)}
    assert len(seeds) > 15 and all(0 <= seed < plan.SEEDS for seed in seeds)


def test_times_are_sums_over_the_launches() -> None:
    made = suite()
    assert plan.launches(made) == 9  # a, b and the control, three times each
    assert plan.estimate(made, ready_s=60, tok_s=40) == 9 * (60 + 5 + (2 * 20 + 4 * 100) / 40)
    assert plan.longest(made) == (9 + 3) * (600 + 5 + 6 * 50)  # each arm's one repetition of a failed launch


def test_running_servers_are_not_waited_for() -> None:
    head = SUITE[: SUITE.index("[[arm]]")]
    arms = [f'[[arm]]\nname = "{n}"\naddress = "http://127.0.0.1:{p}"\n' for n, p in (("a", 1), ("b", 2))]
    made = suite(head + "".join(arms).replace("address", "baseline = true\naddress", 1))
    assert plan.longest(made) == (9 + 3) * (5 + 6 * 50)


def test_what_a_plan_shows() -> None:
    rows = plan.describe(suite(), 7, ready_s=60, tok_s=40, detectable=[(0.01, 0.014)])
    shown = dict(rows)
    assert [text for label, text in rows if label == "arm"] == [
        "a (baseline): the old way",
        "b",
        "a-again (control): the baseline again",
    ]
    assert shown["launches"] == "9: 3 arms x 3 blocks"
    assert shown["time"] == (
        "about 11 min, with 60 s until ready and 40 tok/s; at most 3 h 01 min, every limit reached and a failed launch of each "
        "arm repeated"
    )
    assert shown["finds"] == "1.4% where launches of one arm spread by 1.0%"
    assert shown["question"] == "a change of 2%, at 5% of false verdicts"
    assert shown["seed"] == "7 (drawn now: a campaign draws its own)"
    blocks = [text.split(", ") for label, text in rows if label.startswith("block ")]
    assert blocks == plan.order(["a", "b", "a-again"], 3, 7)


@pytest.mark.parametrize(("alpha", "said"), [("0.05", "5%"), ("0.025", "2.5%"), ("0.004", "0.4%"), ("0.001", "0.1%")])
def test_a_share_of_false_verdicts_is_said_as_it_is(alpha: str, said: str) -> None:
    made = suite(SUITE.replace("blocks = 3", f"blocks = 3\nalpha = {alpha}"))
    assert dict(plan.describe(made, 7))["question"] == f"a change of 2%, at {said} of false verdicts"
    made = suite(SUITE.replace("blocks = 3", "blocks = 3\neffect = 0.0025"))
    assert dict(plan.describe(made, 7))["question"] == "a change of 0.25%, at 5% of false verdicts"


def test_a_time_that_is_not_known_is_not_made_up() -> None:
    shown = dict(plan.describe(suite(), 7))
    assert shown["time"] == (
        "at most 3 h 01 min, every limit reached and a failed launch of each arm repeated; how long it will be is not known "
        "before a launch was timed"
    )


def test_a_server_that_takes_longer_than_it_may_is_said() -> None:
    assert "given up" not in dict(plan.describe(suite(), 7, ready_s=600, tok_s=40))["time"]
    shown = dict(plan.describe(suite(), 7, ready_s=601, tok_s=40))["time"]
    assert shown.endswith(
        "; but a server that is not ready after 600 s (ready_timeout_s) is given up: raise it in the suite"
    )


def test_the_sequential_rule_looks_where_the_study_looks() -> None:
    for blocks in range(2, 20):
        text = SUITE.replace("blocks = 3", f'blocks = {blocks}\nrule = "sequential"')
        shown = dict(plan.describe(suite(text), 7))["rule"]
        looks = sequential.looks("sequential", blocks, 0.05)
        if blocks < 7:
            assert shown == f"all {blocks} blocks, judged once at the end: with fewer than 7 there is no early look"
            assert [look.blocks for look in looks] == [blocks]
        else:
            half = looks[0].blocks
            assert shown == (
                f"judged after {half} blocks, where only a large difference stops it, and at the end, after {blocks}"
            )
            assert [look.blocks for look in looks] == [half, blocks]


def test_a_correction_for_several_arms_is_said() -> None:
    third = '[[arm]]\nname = "c"\nset = { NCCL_PROTO = "LL128" }\n'
    shown = dict(plan.describe(suite(SUITE + third), 7, detectable=[(0.01, 0.02)]))
    assert shown["finds"].endswith("spread by 1.0%, corrected for 2 arms compared with the baseline")


def test_a_model_that_is_no_path_is_said() -> None:
    text = SUITE.replace("[[arm]]", '[server]\narguments = ["--model-path", "llama"]\n[[arm]]', 1)
    assert [line for label, line in plan.describe(suite(text), 7) if not label] == [
        "llama is a name on a hub, or a folder below where the campaign is started: it is not looked for here"
    ]
    assert "" not in dict(plan.describe(suite(text.replace("llama", "/models/llama")), 7))


def test_what_the_launcher_will_refuse_is_said() -> None:
    fighting = (
        '[server]\narguments = ["--tp", "2", "--enable-deterministic-inference"]\nset = { NCCL_ALGO = "Ring" }\n[[arm]]'
    )
    rows = plan.describe(suite(SUITE.replace("[[arm]]", fighting, 1)), 7)
    said = [text for label, text in rows if label == "refused"]
    assert [line.split(":")[0] for line in said] == ["arm a", "arm b"]
    assert (
        "NCCL_ALGO: expected Ring (" in said[0] and "drop --enable-deterministic-inference, or launch with" in said[0]
    )
    assert "refused" not in dict(plan.describe(suite(), 7))


def test_what_no_arm_varies_is_said() -> None:
    assert "" not in dict(plan.describe(suite(), 7))
    text = SUITE.replace('PROTO"]', 'PROTO", "contract.NCCL_*", "arguments.max_*", "draft"]')
    said = [line for label, line in plan.describe(suite(text), 7) if not label]
    assert [line.split(":")[0] for line in said] == ["no arm varies arguments.max_*", "no arm varies draft"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "1 h 00 min"), (11100, "3 h 05 min")]
)
def test_a_duration_in_words(seconds: float, text: str) -> None:
    assert plan.duration(seconds) == text
