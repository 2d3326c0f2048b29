"""From a record of launches to its state: which pairs count, what the control decides, what is said and what is not."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from sglang_ext.reasons import TABLE
from sglang_ext.study import sequential
from sglang_ext.study.pairs import finished_blocks
from sglang_ext.study.verdict import judge
from tests.unit.cases import given_cases
from tests.unit.study_campaign import campaign, launch, rates, run

ROOT = Path(__file__).resolve().parents[2]
STEADY = rates([0.001, -0.002, 0.003, 0.0, -0.001, 0.002, -0.003, 0.0])
ALIKE = rates([0.002, -0.001, 0.001, 0.001, 0.0, 0.0, -0.002, 0.001])
FASTER = rates([0.031, 0.028, 0.033, 0.029, 0.030, 0.032, 0.027, 0.030])
NOISY = rates([0.04, -0.05, 0.06, -0.03, 0.02, -0.04, 0.05, -0.03])


def three(**changes: Any) -> dict[str, Any]:
    return {"base": STEADY, "control": ALIKE, "arm": FASTER} | changes


def of(judged: dict[str, Any], arm: str) -> dict[str, Any]:
    (found,) = [one for one in judged["comparisons"] if one["arm"] == arm]
    return found


def test_a_campaign_that_answers() -> None:
    judged = judge(campaign(three()))
    assert (judged["state"], judged["reason"], judged["exit"]) == ("VALID", None, 0)
    found = of(judged, "arm")
    logs = [math.log(a / b) for a, b in zip(FASTER, STEADY, strict=True)]
    assert found["pair_logs"] == pytest.approx(logs) and found["pairs"] == 8 and found["blocks"] == list(range(8))
    assert found["ratio"] == pytest.approx(math.exp(sum(logs) / 8)) and found["low"] < found["ratio"] < found["high"]
    assert found["verdict"] == "faster" and found["low"] > 1.02 and found["p_sign_flip"] == 2 / 256
    assert found["p_holm"] == pytest.approx(found["p_t"]) and found["confidence"] == 0.95
    assert found["equivalence"]["holds"] is False and found["equivalence"]["no_regression"] is True
    assert 0 < found["mde"] < 0.01 and found["economics"] is None and found["unknown"] == {}
    assert judged["excluded"] == [] and judged["notes"] == []


def test_the_control_is_no_part_of_the_family() -> None:
    judged = judge(campaign(three()))
    control = of(judged, "control")
    assert control["control"] and control["p_holm"] is None and "p_holm" in control["unknown"]
    assert control["verdict"] == "same"
    two = judge(campaign(three(other=FASTER)))
    assert of(two, "arm")["p_holm"] == pytest.approx(2 * of(two, "arm")["p_t"], rel=1e-9)
    assert any("p_holm" in note for note in two["notes"])


def test_the_figure_of_a_launch_is_the_mean_of_logs_over_its_runs() -> None:
    runs = [run(80.0), run(125.0), run(3.0, valid=False, reason="wrong_length: x"), run(7.0, decode_tok_s=None)]
    judged = judge(campaign({"base": [100.0, 100.0], "arm": [runs, [run(100.0)]]}))
    assert of(judged, "arm")["pair_logs"] == pytest.approx([0.0, 0.0], abs=1e-12)  # sqrt(80 * 125) = 100


def test_a_control_that_differs_makes_it_invalid() -> None:
    judged = judge(campaign(three(control=rates([0.01, 0.009, 0.011, 0.01, 0.012, 0.008, 0.01, 0.011]))))
    assert (judged["state"], judged["exit"]) == ("INVALID", 1)
    assert judged["reason"].startswith("control_failed: expected control, the baseline under another name,")
    assert of(judged, "arm")["verdict"] == "faster"  # shown, and not believed


def test_without_a_control_a_note_says_so() -> None:
    judged = judge(campaign({"base": STEADY, "arm": FASTER}))
    assert judged["state"] == "VALID" and any(note.startswith("no A/A control was run") for note in judged["notes"])


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("not_verified: expected PASS, found FAIL", 1, "not_verified"),
        ("verdict_lost: expected PASS after the last run, found FAIL", 4, "verdict_lost"),
        ("no_endpoint: it does not answer", 3, "no_endpoint"),
        ("suite_invalid: x", 1, "suite_invalid"),  # its own status is that of an input error, which this is none
        ("a word of some later release: x", 1, "launch_refused"),
        (None, 1, "launch_refused"),
    ],
)
def test_a_refused_launch_makes_it_invalid(reason: str | None, status: int, code: str) -> None:
    arms = three(arm=[*FASTER[:7], launch("arm", 7, 100.0, state="refused", reason=reason)])
    judged = judge(campaign(arms))
    assert (judged["state"], judged["exit"]) == ("INVALID", status)
    assert judged["reason"].startswith(f"{code}: block 7, arm arm: ")


def test_a_refused_launch_that_was_taken_again_is_no_more() -> None:
    made = campaign(three())
    arm = made["arms"][2]["launches"]
    arm.insert(3, launch("arm", 3, [], state="refused", reason="server_left_over: x"))
    judged = judge(made)
    assert judged["state"] == "VALID" and of(judged, "arm")["pairs"] == 8


def test_an_abandoned_launch_does_not_take_the_place_of_another() -> None:
    made = campaign(three())
    made["arms"][2]["launches"].append(launch("arm", 3, 50.0, state="abandoned", reason="block_unfinished: x"))
    assert judge(made)["comparisons"] == judge(campaign(three()))["comparisons"]


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"state": "failed", "reason": "server_error: it said no"}, "server_error", "it said no"),
        ({"state": "failed"}, "launch_failed", "it was failed"),
        (
            {"reconciliation": {"state": "UNRECONCILED", "reason": "it counts overshoot"}},
            "unreconciled",
            "it counts overshoot",
        ),
        ({"runs": []}, "launch_failed", "found none"),
        (
            {"machine": {"marks": [{"code": "server_error", "text": "held down", "run": 2}]}},
            "server_error",
            "held down",
        ),
        (
            {"machine": {"marks": [{"code": "from_a_later_release", "text": "odd", "run": None}]}},
            "from_a_later_release",
            "odd",
        ),
    ],
)
def test_what_excludes_a_pair(change: dict[str, Any], code: str, part: str) -> None:
    own = judge(campaign(three(arm=[*FASTER[:2], launch("arm", 2, 1.0) | change, *FASTER[3:]])))
    assert own["excluded"] == [{"block": 2, "arm": "arm", "code": code, "text": own["excluded"][0]["text"]}]
    assert part in own["excluded"][0]["text"] and own["excluded"][0]["text"].startswith("launch of arm: ")
    assert of(own, "arm")["blocks"] == [0, 1, 3, 4, 5, 6, 7] and of(own, "control")["pairs"] == 8
    # A block whose launch failed and was not repeated is none that a campaign has finished.
    unfinished = change.get("state") == "failed"
    assert own["state"] == ("INCONCLUSIVE" if unfinished else "VALID")
    assert not unfinished or "expected 8 finished blocks, found 2" in own["reason"]
    assert f"1 of 16 pairs are excluded by rule: 1 {code}" in own["notes"]
    # The baseline's launch is half of every pair of its block.
    shared = judge(campaign(three(base=[*STEADY[:2], launch("base", 2, 1.0) | change, *STEADY[3:]])))
    assert [(one["block"], one["arm"]) for one in shared["excluded"]] == [(2, "control"), (2, "arm")]
    assert all(one["text"].startswith("launch of base: ") for one in shared["excluded"])


@pytest.mark.parametrize("told", [{}, {"excludes": False}])
def test_a_note_of_the_machine_excludes_nothing(told: dict[str, bool]) -> None:
    note = "server_error" if told else next(code for code, reason in TABLE.items() if reason.severity == "note")
    marked = launch("arm", 2, FASTER[2], machine={"marks": [{"code": note, "text": "x", "run": None, **told}]})
    judged = judge(campaign(three(arm=[*FASTER[:2], marked, *FASTER[3:]])))
    assert judged["excluded"] == [] and of(judged, "arm")["pairs"] == 8


def test_launches_that_say_nothing_of_machine_and_reconciliation() -> None:
    made = campaign(three())
    for arm in made["arms"]:
        for one in arm["launches"]:
            one |= {"machine": None, "reconciliation": None}
    judged = judge(made)
    assert (judged["state"], judged["exit"]) == ("UNRECONCILED", 3) and of(judged, "arm")["pairs"] == 8
    assert "found 0; 0 disagree, 24 could not be looked at" in judged["reason"]


@pytest.mark.parametrize(("number", "state"), [(6, "VALID"), (7, "UNRECONCILED")])
def test_a_quarter_of_the_launches_may_be_unreconciled(number: int, state: str) -> None:
    said = {"state": "UNRECONCILED", "reason": "windows straddle"}
    bad = [launch("arm", i, rate, reconciliation=said) for i, rate in enumerate(FASTER[:number])]
    steady: list[Any] = STEADY
    alike = ALIKE
    if number == 7:  # not the pairs of one arm alone, or too few were left of it
        bad, steady = bad[:6], [launch("base", 0, STEADY[0], reconciliation=said), *STEADY[1:]]
    judged = judge(campaign({"base": steady, "control": alike, "arm": [*bad, *FASTER[6:]]}))
    assert judged["state"] == state
    if state == "UNRECONCILED":
        assert judged["exit"] == 3 and judged["reason"].endswith("most often: windows straddle")
    assert f"{number} of 24 launches are not reconciled with the server's own count" in judged["notes"]


@pytest.mark.parametrize("left", [0, 1])
def test_fewer_than_two_pairs_give_no_figure(left: int) -> None:
    hot = {"marks": [{"code": "throttled", "text": "x", "run": None}]}
    failed = [launch("arm", i, 1.0, machine=hot) for i in range(left, 8)]
    judged = judge(campaign(three(arm=[*FASTER[:left], *failed])))
    assert (judged["state"], judged["exit"]) == ("INCONCLUSIVE", 5)
    assert judged["reason"] == (
        f"too_few_pairs: arm: expected two pairs that count at least, found {left}; excluded: {8 - left} throttled"
    )
    found = of(judged, "arm")
    for figure in ("ratio", "low", "high", "p_t", "p_sign_flip", "p_holm", "equivalence", "mde"):
        assert found[figure] is None and "fewer than two pairs" in found["unknown"][figure]
    assert found["verdict"] == "inconclusive" and found["pairs"] == left


def test_an_open_question_says_what_would_decide_it() -> None:
    judged = judge(campaign(three(arm=NOISY)))
    assert (judged["state"], judged["exit"]) == ("INCONCLUSIVE", 5)
    assert judged["reason"].startswith(
        "not_decided: arm: neither a difference nor its absence within 1.0% shows; ratio "
    )
    assert "would show the wanted 2.0%" in judged["reason"]
    assert of(judged, "arm")["verdict"] == "inconclusive" and of(judged, "arm")["mde"] > 0.02


def test_one_open_arm_of_two_leaves_the_campaign_open() -> None:
    judged = judge(campaign(three(noisy=NOISY)))
    assert judged["state"] == "INCONCLUSIVE" and judged["reason"].startswith("not_decided: noisy: ")
    assert of(judged, "arm")["verdict"] == "faster"


def test_a_campaign_cut_short_concludes_nothing() -> None:
    made = campaign({name: each[:7] for name, each in three().items()}, planned=8)
    judged = judge(made)
    assert judged["reason"].startswith("campaign_unfinished: expected 8 finished blocks, found 7")
    assert judged["exit"] == 5 and {one["verdict"] for one in judged["comparisons"]} == {"inconclusive"}
    assert of(judged, "arm")["ratio"] is not None
    made["plan"]["stopped"] = "interrupted"  # whatever it says: block 7 is no look of any plan
    assert judge(made)["reason"] == judged["reason"]


def test_a_claim_smaller_than_the_margin_is_called_that() -> None:
    judged = judge(campaign({"base": rates([0.0] * 8), "arm": rates([0.003, 0.0031, 0.0029] * 2 + [0.003, 0.003])}))
    assert judged["state"] == "VALID" and "arm: faster, by less than the margin of 1.0%" in judged["notes"]


def test_where_the_tests_disagree_a_note_says_so() -> None:
    few = judge(campaign({"base": rates([0.0] * 5), "arm": rates([0.03, 0.031, 0.029, 0.03, 0.032])}))
    assert of(few, "arm")["p_sign_flip"] == 0.0625 and few["state"] == "VALID"
    assert any("with 5 pairs the exact sign-flip test cannot reach 0.05" in note for note in few["notes"])
    odd = judge(campaign({"base": rates([0.0] * 6), "arm": rates([0.02, 0.021, 0.019, 0.02, 0.022, -0.0032])}))
    assert of(odd, "arm")["p_t"] < 0.05 < of(odd, "arm")["p_sign_flip"]
    assert any("the exact sign-flip test does not agree" in note for note in odd["notes"])


def speculating(rate: float, accept: float, **facts: Any) -> list[dict[str, Any]]:
    return [run(rate, step_ms=1000 * accept / rate, accept_length=accept, **facts)] * 2


def test_a_speculative_arm_has_its_economics() -> None:
    arms: dict[str, list[Any]] = {
        "base": STEADY,
        "control": ALIKE,
        "two": [speculating(90 + 0.1 * i, 2.2) for i in range(8)],
        "three": [speculating(80 - 0.1 * i, 2.4) for i in range(8)],
        "five": [speculating(60 - 0.1 * i, 2.5) for i in range(8)],
    }
    made = campaign(arms)
    for arm, steps in zip(made["arms"][2:], (2, 3, 5), strict=True):
        arm["fingerprint"] = {"arguments": {"speculative_num_steps": steps}}
    judged = judge(made)
    assert of(judged, "control")["economics"] is None and "economics" not in of(judged, "control")["unknown"]
    for arm in ("two", "three", "five"):
        found = of(judged, arm)
        money = found["economics"]
        assert money["dln_rate"] == money["dln_accept"] - money["dln_step"]
        assert money["dln_rate"] == pytest.approx(math.log(found["ratio"]), abs=1e-12)  # of the very same pairs
        assert (money["accept"] > money["break_even_accept"]) == (found["ratio"] > 1)
    assert of(judged, "two")["economics"]["accept"] == pytest.approx(2.2)
    assert of(judged, "two")["economics"]["base_accept"] == pytest.approx(1.0)
    whole = of(judged, "two")
    schema = (
        (ROOT / "docs" / "campaign.md")
        .read_text(encoding="utf-8")
        .partition("    COMPARISON: ")[2]
        .partition("\n\n")[0]
    )
    for names in (whole, whole["equivalence"], whole["economics"]):
        assert [name for name in names if f'"{name}"' not in schema] == []
    (note,) = [note for note in judged["notes"] if "draft steps" in note]
    assert note.startswith(
        "going from 2 draft steps (two) to 3 (three) does not pay: in the 8 blocks where both count the rate is x 0.88"
    )
    assert "at 95.0%), accept length x 1.091, step time x 1.2" in note


def test_an_effect_that_no_number_of_pairs_shows_is_said_so() -> None:
    judged = judge(campaign({"base": STEADY, "wild": rates([0.5, -0.5] * 4)}, effect=0.001))
    assert judged["reason"].endswith("more than 1000000 would show the wanted 0.1%")


def drafts(two: list[Any], three: list[Any], **plan: Any) -> str:
    """The note on one more draft step."""
    made = campaign({"base": STEADY[: len(two)], "two": two, "three": three}, **plan)
    for arm, steps in zip(made["arms"][1:], (2, 3), strict=True):
        arm["fingerprint"] = {"arguments": {"speculative_num_steps": steps}}
    (note,) = [str(note) for note in judge(made)["notes"] if "draft steps" in note]
    return note


def test_one_more_draft_step_pays_only_where_its_own_pairs_show_it() -> None:
    # The machine drifts by half: each arm's own launches scatter, the pairs of one block do not.
    pace = [50.0, 95.0, 60.0, 90.0, 55.0, 85.0, 65.0, 80.0]
    two = [speculating(rate, 2.2) for rate in pace]
    gain = [1.05, 1.052, 1.048, 1.051, 1.049, 1.05, 1.053, 1.047]
    three = [speculating(rate * more, 2.4) for rate, more in zip(pace, gain, strict=True)]
    note = drafts(two, three)
    logs = [math.log(more) for more in gain]
    assert note.startswith(
        "going from 2 draft steps (two) to 3 (three) pays: in the 8 blocks where both count the rate"
    )
    assert f"the rate is x {math.exp(sum(logs) / 8):.4f} (1.04" in note
    assert "does not pay" in drafts(three, two)

    # A mean above 1 whose interval holds 1 shows nothing.
    noisy = [speculating(rate * more, 2.4) for rate, more in zip(pace, [1.3, 0.8] * 4, strict=True)]
    note = drafts(two, noisy)
    assert note.startswith("whether going from 2 draft steps (two) to 3 (three) pays is not decided: in the 8 blocks")
    assert "x 1.0198 (0." in note

    # Launches of different blocks are no pair: with one excluded, the others are left.
    mark = {"marks": [{"code": "clocks_held", "text": "held down", "excludes": True}]}
    slow = launch("three", 0, speculating(5.0, 2.4), machine=mark)
    assert "pays: in the 7 blocks where both count the rate is x 1.0500" in drafts(two, [slow, *three[1:]])

    # Nothing is claimed before the end, nor of one block.
    assert "pays is not decided: in the 8 blocks" in drafts(two, three, planned=9)
    assert drafts(two[:1], three[:1]).endswith("pays is not decided: both count in one block only")


@pytest.mark.parametrize(
    ("change", "compared"),
    [
        ({"arguments": {"speculative_num_draft_tokens": 4, "max_req_input_len": 90}}, True),
        ({"arguments": {"speculative_draft_model_path": "/models/other"}}, False),
        ({"arguments": {"speculative_algorithm": "NGRAM"}}, False),
        ({"arguments": {"max_running_requests": 8}}, False),
        ({"environment": {"TP0": {"OMP_NUM_THREADS": "8"}}}, False),
        ({"environment": {"TP0": {"OMP_NUM_THREADS": "1", "SGLANG_SIMULATE_ACC_LEN": "3"}}}, True),
    ],
)
@pytest.mark.parametrize("simulated", ["both", "none", "one"])
def test_only_arms_that_differ_by_the_step_alone_say_whether_it_pays(
    change: dict[str, Any], compared: bool, simulated: str
) -> None:
    common = {
        "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "/models/draft", "max_req_input_len": 91,
        "max_running_requests": 48, "speculative_num_draft_tokens": 3,
    }  # fmt: skip
    two, three = ([speculating(rate, accept) for rate in FASTER] for accept in (2.2, 2.4))
    made = campaign({"base": STEADY, "two": two, "three": three})
    for arm, steps, more in zip(made["arms"][1:], (2, 3), ({}, change), strict=True):
        arm["fingerprint"] = {"environment": {"TP0": {"OMP_NUM_THREADS": "1"}}, **more}
        arm["fingerprint"]["arguments"] = {**common, "speculative_num_steps": steps, **more.get("arguments", {})}
        for one in arm["launches"]:
            one["simulated_acceptance"] = simulated == "both" or (simulated == "one" and arm["name"] == "two")
    found = [note for note in judge(made)["notes"] if "draft steps" in note]
    assert len(found) == (compared and simulated != "one")
    label = ", acceptance SIMULATED" if simulated == "both" else ""
    assert all(f"going from 2 draft steps (two{label}) to 3 (three{label}) pays" in note for note in found)


def test_economics_that_do_not_show_have_a_reason() -> None:
    hidden = [[run(90.0, step_ms=None)]] * 8
    made = campaign({"base": STEADY, "arm": hidden})
    for one in made["arms"][1]["launches"]:
        one["fingerprint"] = {"arguments": {"speculative_algorithm": "EAGLE3"}}
    found = of(judge(made), "arm")
    assert found["economics"] is None and "does not show its step" in found["unknown"]["economics"]


def test_simulated_acceptance_is_labelled() -> None:
    arm = [launch("arm", i, speculating(150.0, 3.0), simulated_acceptance=True) for i in range(8)]
    judged = judge(campaign(three(arm=arm)))
    assert of(judged, "arm")["simulated_acceptance"] is True and of(judged, "control")["simulated_acceptance"] is False
    assert any(note.startswith("arm: acceptance was SIMULATED") for note in judged["notes"])
    based = [launch("base", i, rate, simulated_acceptance=True) for i, rate in enumerate(STEADY)]
    judged = judge(campaign(three(base=based)))
    assert of(judged, "arm")["simulated_acceptance"] is True
    assert any(note.startswith("base: acceptance was SIMULATED") for note in judged["notes"])


def test_looks_spend_alpha_and_no_more() -> None:
    assert sequential.looks("fixed", 8, 0.05) == ((8, 0.05),)
    assert sequential.looks("sequential", 8, 0.05) == ((4, pytest.approx(0.005)), (8, pytest.approx(0.045)))
    assert sequential.looks("sequential", 6, 0.05) == ((6, 0.05),)
    for blocks in range(1, 40):
        planned = sequential.looks("sequential", blocks, 0.05)
        assert sum(look.level for look in planned) == pytest.approx(0.05) and planned[-1].blocks == blocks


FAR = rates([0.20, 0.21, 0.19, 0.20, 0.2, 0.2, 0.2, 0.2])


def halves(arms: dict[str, list[float]], blocks: int, **plan: Any) -> dict[str, Any]:
    return campaign({name: each[:blocks] for name, each in arms.items()}, planned=8, rule="sequential", **plan)


def test_a_large_effect_stops_halfway() -> None:
    made = halves(three(arm=FAR), 4)
    why = sequential.stop(made)
    assert why == "after 4 of 8 blocks, the planned look at level 0.005: arm is faster"
    made["plan"]["stopped"] = why
    judged = judge(made)
    assert judged["state"] == "VALID" and of(judged, "arm")["confidence"] == pytest.approx(0.995)
    assert any("stopped early by the planned rule: intervals are at 99.5%" in note for note in judged["notes"])
    assert judge(halves(three(arm=FAR), 4))["state"] == "INCONCLUSIVE"  # nobody stopped it: it has to go on


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 6, 7, 8])
def test_there_is_no_look_but_the_planned_one(blocks: int) -> None:
    assert sequential.stop(halves(three(arm=FAR), blocks)) is None


def test_what_does_not_stop_halfway() -> None:
    assert sequential.stop(halves(three(arm=rates([0.02, -0.01, 0.03, 0.0])), 4)) is None
    assert sequential.stop(halves(three(arm=FAR, other=STEADY), 4)) is None  # one of two arms is open
    fixed = halves(three(arm=FAR), 4)
    fixed["plan"]["rule"] = "fixed"
    assert sequential.stop(fixed) is None
    failed = halves(three(arm=[*FAR[:3], launch("arm", 3, 1.0, state="failed", reason="server_error: x")]), 4)
    assert sequential.stop(failed) is None  # three pairs


def test_a_control_that_has_failed_halfway_stops_too() -> None:
    made = halves(three(control=rates([0.101, 0.098, 0.103, 0.1])), 4)
    why = sequential.stop(made)
    assert why is not None and "the A/A control control differs" in why
    made["plan"]["stopped"] = why
    assert judge(made)["reason"].startswith("control_failed: ")


def test_the_end_of_a_sequential_campaign_is_judged_at_what_is_left_of_alpha() -> None:
    judged = judge(halves(three(), 8))
    assert of(judged, "arm")["confidence"] == pytest.approx(0.955) and judged["state"] == "VALID"


def test_finished_blocks_are_counted_from_the_first_on() -> None:
    made = campaign(three(), planned=8)
    del made["arms"][1]["launches"][2]
    assert finished_blocks(made) == 2
    for state in ("abandoned", "failed", "refused"):
        made["arms"][1]["launches"].append(launch("control", 2, 100.0, state=state))
        assert finished_blocks(made) == 2
    made["arms"][1]["launches"].append(launch("control", 2, 100.0))
    assert finished_blocks(made) == 8
    # Every arm failed once and was interrupted: nothing of that block is there.
    failed = [launch(arm["name"], 8, 1.0, state="failed", reason="server_error: x") for arm in made["arms"]]
    made["plan"]["blocks"] += [["base", "control", "arm"]]
    for arm, one in zip(made["arms"], failed, strict=True):
        arm["launches"].append(one)
    assert finished_blocks(made) == 8


@pytest.mark.parametrize(
    ("reason", "verdict", "status"),
    [
        ("not_verified: UNKNOWN: no_server: gone", "UNKNOWN", 3),
        ("not_verified: FAIL: wrong_value: x", "FAIL", 1),
        ("verdict_lost: x", "UNKNOWN", 4),
        ("no_endpoint: x", "PASS", 3),
        ("arms_differ: x", "PASS", 1),
        ("contract_invalid: x", None, 1),
    ],
)
def test_the_status_of_a_refused_launch(reason: str, verdict: str | None, status: int) -> None:
    seen = {"before": verdict and {"verdict": verdict}, "after": None}
    refused = launch("arm", 7, [], state="refused", reason=reason, verify=seen)
    judged = judge(campaign(three(arm=[*FASTER[:7], refused])))
    assert (judged["state"], judged["exit"]) == ("INVALID", status)


def test_two_baselines_are_an_error() -> None:
    made = campaign(three())
    made["arms"][2]["baseline"] = True
    with pytest.raises(ValueError, match="expected one baseline arm, found 2"):
        judge(made)


RATES = st.lists(st.floats(40, 200), min_size=3, max_size=3)


@given_cases(60, RATES, RATES, RATES, st.sampled_from(["fixed", "sequential"]), st.randoms())
def test_of_any_campaign(base: list[float], control: list[float], arm: list[float], rule: str, chance: Any) -> None:
    """Judged again it is the same; what goes in is left alone; the order of the record's launches means nothing; it is JSON."""
    made = campaign({"base": base, "control": control, "arm": arm}, rule=rule)
    before = copy.deepcopy(made)
    judged = judge(made)
    assert made == before and judge(judged) == judged
    assert json.loads(json.dumps(judged, allow_nan=False)) == judged
    for one in made["arms"]:
        chance.shuffle(one["launches"])
    assert judge(made)["comparisons"] == judged["comparisons"]
    assert judged["exit"] == {"VALID": 0, "INVALID": 1, "UNRECONCILED": 3, "INCONCLUSIVE": 5}[judged["state"]]
