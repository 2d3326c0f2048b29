"""Arms and launches held against each other, by fingerprints of real starts (tests/data/reconcile) and changes to them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.bench import fingerprint
from sglang_ext.bench.truth import sameness
from sglang_ext.bench.truth.sameness import differences, facts, unknown, with_environment

DATA = Path(__file__).resolve().parents[1] / "data" / "reconcile"
SPECULATIVE = ("arguments.speculative_*", "draft")


def made(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}.fingerprint.json").read_text())
    return found


def put(found: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one thing changed; keys are separated by /."""
    other = copy.deepcopy(found)
    *way, last = path.split("/")
    at: Any = other
    for key in way:
        at = at[int(key) if isinstance(at, list) else key]
    at[last] = value
    return other


def codes(a: dict[str, Any], b: dict[str, Any], *under_test: str) -> list[str]:
    return [fault.code for fault in differences({"a": a, "b": b}, under_test)]


def test_two_real_starts_of_one_arm_are_the_same() -> None:
    first, again = made("baseline"), made("baseline-again")
    assert codes(first, again) == []
    told = dict(facts(first)), dict(facts(again))
    unlike = {fact for fact in told[0] if told[0][fact] != told[1].get(fact)}
    assert "arguments.random_seed" in unlike and unlike <= sameness.VOLATILE.keys()  # they do differ, in what is none


def test_a_real_drafting_arm_differs_in_what_is_under_test_and_what_follows() -> None:
    base, drafting = made("baseline"), made("drafting")
    assert codes(base, drafting, *SPECULATIVE) == []
    (fault,) = differences({"base": base, "drafting": drafting}, ("contract.NCCL_PROTO",))
    assert fault.code == "arms_differ"
    assert fault.text.startswith("base / drafting: expected them to differ in nothing but contract.NCCL_PROTO, found ")
    assert "; and " in fault.text and fault.text.endswith(" more")
    # Without the cause, its consequence is a difference: the same arm with another number of requests.
    other = put(base, "arguments/max_running_requests", 48)
    assert codes(base, other, *SPECULATIVE) == ["arms_differ"]


def test_a_real_stock_server_differs_in_the_patches() -> None:
    base, stock = made("baseline"), made("stock")
    assert codes(base, stock, "patches") == []
    assert any("patched files" in sentence for sentence in unknown({"stock": stock}))
    # What it was started without is a difference of its own.
    assert codes(base, put(stock, "arguments/enable_metrics", False), "patches") == ["arms_differ"]


def test_what_a_server_not_of_ours_does_not_attest_is_not_known() -> None:
    base = made("baseline")
    stock = {**base, "patches": fingerprint.patches((), None)}
    assert codes(base, stock, "patches") == []
    assert any("patched files" in sentence for sentence in unknown({"stock": stock}))


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("arguments/page_size", 64, "arguments.page_size 1 / 64"),
        ("arguments/model_path", "/models/other", "arguments.model_path"),
        ("arguments/disable_radix_cache", 0, "arguments.disable_radix_cache False / 0"),
        ("contract/variables/NCCL_PROTO/want", "Simple", "contract.NCCL_PROTO LL / Simple"),
        ("environment/TP1/OMP_NUM_THREADS", "8", "environment.OMP_NUM_THREADS (TP1) 1 / 8"),
        ("environment/TP0/NCCL_DEBUG", "INFO", "environment.NCCL_DEBUG (TP0) (absent) / INFO"),
        ("nccl/1/sha256", "0" * 64, "nccl.sha256 (TP1)"),
        ("server/packages/torch", "2.0", "packages.torch"),
        ("patches/patchset", "0" * 64, "patches.patchset"),
        ("patches/imported/sglang/srt/entrypoints/engine.py", "x", None),
        ("model/weight_version", "other", "model.weight_version default / other"),
        ("machine/kernel", "1.0", "machine.kernel"),
    ],
)
def test_one_thing_that_differs(path: str, value: Any, shown: str | None) -> None:
    base = made("baseline")
    if shown is None:  # a key with slashes in it
        other = copy.deepcopy(base)
        file = path.removeprefix("patches/imported/")
        assert file in other["patches"]["imported"]
        other["patches"]["imported"][file] = value
        shown = f"patches.imported.{file}"
    else:
        other = put(base, path, value)
    (fault,) = differences({"a": base, "b": other}, ())
    assert fault.code == "launch_differs" and shown in fault.text and "; and" not in fault.text
    assert codes(base, other, "arguments.speculative_*") == ["arms_differ"]


@pytest.mark.parametrize(
    ("path", "value", "entry"),
    [
        ("arguments/page_size", 64, "arguments.page_size"),
        ("arguments/cuda_graph_config/decode/max_bs", 8, "arguments.cuda_graph_config"),
        ("contract/variables/NCCL_PROTO/want", "Simple", "contract.NCCL_PROTO"),
        ("environment/TP1/NCCL_PROTO", "Simple", "contract.NCCL_*"),
        ("environment/TP1/OMP_NUM_THREADS", "8", "environment.OMP_NUM_THREADS"),
        ("patches/patchset", "0" * 64, "patches"),
        ("arguments/speculative_draft_model_path", "/models/d", "draft"),
    ],
)
def test_what_is_under_test_may_differ(path: str, value: Any, entry: str) -> None:
    base = made("baseline")
    other = put(base, path, value)
    assert codes(base, other) == ["launch_differs"] and codes(base, other, entry) == []


def test_variables_that_upstream_sets_along_with_an_argument() -> None:
    base = made("baseline")
    nvls = put(base, "environment/TP0/NCCL_NVLS_ENABLE", "1")
    assert codes(base, nvls, "arguments.enable_nccl_nvls") == ["arms_differ"]  # of itself it is a difference
    assert codes(base, put(nvls, "arguments/enable_nccl_nvls", True), "arguments.enable_nccl_nvls") == []


def test_memory_that_was_free_may_differ_a_little() -> None:
    base = made("baseline")
    assert codes(base, put(base, "arguments/max_total_num_tokens", 8100)) == []
    assert codes(base, put(base, "arguments/max_total_num_tokens", 6000)) == ["launch_differs"]


def test_each_arm_is_held_against_the_first() -> None:
    base = made("baseline")
    arms = {
        "base": base,
        "same": base,
        "one": put(base, "arguments/page_size", 64),
        "two": put(base, "server/packages/torch", "2.0"),
    }
    assert [fault.text.partition(":")[0] for fault in differences(arms, ("patches",))] == ["base / one", "base / two"]


def test_what_is_not_known_is_neither_the_same_nor_different() -> None:
    base = made("baseline")
    blind = {**base, "nccl": [{**one, "sha256": None, "version": None, "reason": "gone"} for one in base["nccl"]]}
    del blind["environment"]
    assert codes(base, blind) == []
    told = unknown({"a": blind})
    assert any("environment of the ranks" in s for s in told) and any(
        "libnccl of TP0 could not be compared: gone" in s for s in told
    )


def test_a_rank_that_is_missing_is_a_difference() -> None:
    base = made("baseline")
    assert codes(base, {**base, "environment": {"TP0": base["environment"]["TP0"]}}) == ["launch_differs"]


def test_long_values_are_cut_and_passwords_hidden() -> None:
    base = made("baseline")
    (fault,) = differences({"a": base, "b": put(base, "arguments/model_path", "/m" * 200)}, ())
    assert len(fault.text) < 400
    report = {
        "contract": {"variables": {"NCCL_PROTO": {"want": "LL", "source": "flag"}}},
        "workers": [
            {
                "label": "TP0", "counts": True, "extras": {"OMP_NUM_THREADS": "1"},
                "variables": {"NCCL_PROTO": {"witnesses": {"live": {"state": "value", "value": "http://u:hunter2@h"}}}},
            },
            {"label": "detokenizer", "counts": False, "extras": {"OMP_NUM_THREADS": "4"}},
        ],
    }  # fmt: skip
    held = with_environment({}, report)["environment"]
    assert held.keys() == {"TP0"} and held["TP0"]["OMP_NUM_THREADS"] == "1" and "hunter2" not in json.dumps(held)


def test_essentials_of_a_report_do_as_well() -> None:
    """As a receipt keeps them: what the contract demands is not repeated for each worker."""
    report = {
        "contract": {"variables": {"NCCL_PROTO": {"want": "LL"}, "NCCL_ALGO": {"want": None}}},
        "workers": [{"label": "TP0", "counts": True, "extras": {"OMP_NUM_THREADS": "1"}}],
    }
    assert with_environment({"arguments": {}}, report)["environment"] == {
        "TP0": {"NCCL_PROTO": "LL", "OMP_NUM_THREADS": "1"}
    }


def test_what_a_contract_has_from_the_shell_is_no_difference_of_an_arm() -> None:
    """Only a launcher of ours writes the shell's NCCL_* down; a stock server inherits the same without saying so."""
    base, stock = made("baseline"), made("stock")
    ours = put(base, "contract/variables/NCCL_DEBUG", {"want": "WARN", "source": "shell"})
    for rank in ("TP0", "TP1"):
        ours = put(ours, f"environment/{rank}/NCCL_DEBUG", "WARN")
        stock = put(stock, f"environment/{rank}/NCCL_DEBUG", "WARN")
    assert codes(ours, stock, "patches") == codes(stock, ours, "patches") == []
    # Who holds another value differs in what it holds, and says that once for each rank.
    (fault,) = differences({"ours": ours, "stock": put(stock, "environment/TP1/NCCL_DEBUG", "INFO")}, ("patches",))
    assert "environment.NCCL_DEBUG (TP1) WARN / INFO" in fault.text and "contract" not in fault.text
    # The same name by a flag on one side, by the shell on the other: the ranks decide too.
    asked = put(stock, "contract/variables/NCCL_DEBUG", {"want": "WARN", "source": "flag"})
    assert codes(ours, asked, "patches") == []
    assert codes(base, put(base, "contract/variables/NCCL_DEBUG", {"want": "WARN", "source": "flag"})) != []


def test_a_rank_that_holds_nothing_is_known_and_one_nobody_could_read_is_not() -> None:
    base = made("baseline")
    empty = {**base, "environment": {"TP0": {}, "TP1": {}}}
    assert codes(base, empty) == codes(empty, base) == ["launch_differs"] and codes(empty, empty) == []
    half = put(base, "environment/TP1", None)
    assert codes(base, half) == codes(half, base) == []
    assert codes(half, put(base, "environment/TP0/OMP_NUM_THREADS", "8")) == ["launch_differs"]
    assert "a: the environment of TP1 could not be compared: it cannot be read" in unknown({"a": half})
    assert codes(base, {**base, "environment": {"TP0": None, "TP1": None}}) == []
    workers = [{"label": "TP0", "counts": True, "extras": {}, "unread": True}]
    assert with_environment({}, {"contract": {}, "workers": workers})["environment"] == {"TP0": None}
