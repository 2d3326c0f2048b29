"""What is said of all ranks together, as data."""

from __future__ import annotations

import pytest

from sglang_ext.hide import HIDDEN
from sglang_ext.verify.expected import Expected
from sglang_ext.verify.ranks import miscounted, unlike

TWO = Expected(tp=2, workers=2, here=2)
NEW = (2, 30, 7)


@pytest.mark.parametrize(
    ("labels", "expected", "found"),
    [
        (["TP0", "TP1"], TWO, None),
        ([], TWO, ("missing_ranks", "found 0 of 2 schedulers (none); TP0, TP1 missing")),
        (["TP1"], TWO, ("missing_ranks", "found 1 of 2 schedulers (TP1); TP0 missing")),
        (["TP0", "TP1", "TP1"], TWO, ("extra_ranks", "found 3 of 2 schedulers (TP0, TP1, TP1)")),
        (["TP1", "TP1"], TWO, ("extra_ranks", "two schedulers claim the same rank (TP1, TP1)")),
        (
            ["TP0"],
            TWO._replace(here=None),
            ("expected_unknown", "found 1 schedulers (TP0), expected: not told by its command line"),
        ),
    ],
)
def test_as_many_as_are_expected(labels: list[str], expected: Expected, found: tuple[str, str] | None) -> None:
    assert miscounted(labels, expected) == found


@pytest.mark.parametrize(
    ("held", "version", "found"),
    [
        (({"NCCL_BUFFSIZE": "8"}, {"NCCL_BUFFSIZE": "8"}), NEW, []),
        (({"NCCL_BUFFSIZE": "8"}, {"NCCL_BUFFSIZE": "010"}), NEW, []),  # C reads 8 from both
        (({"NCCL_BUFFSIZE": "8"}, {"NCCL_BUFFSIZE": "010"}), None, ["NCCL_BUFFSIZE is 8 on TP0, 010 on TP1"]),
        (({"NCCL_BUFFSIZE": "8"}, {}), NEW, ["NCCL_BUFFSIZE is 8 on TP0, (absent) on TP1"]),
        (({"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}), NEW, []),  # of the contract: judged already
        (({"SGLANG_X": "1"}, {"SGLANG_X": "2"}), NEW, []),  # not NCCL's
        (({"NCCL_NET_PLUGIN": HIDDEN}, {"NCCL_NET_PLUGIN": "a"}), NEW, []),
    ],
)
def test_they_hold_the_same(
    held: tuple[dict[str, str], ...], version: tuple[int, ...] | None, found: list[str]
) -> None:
    now = {100 + number: (f"TP{number}", environment) for number, environment in enumerate(held)}
    assert [text for _, text in unlike(now, {"NCCL_PROTO"}, version)] == found


def test_two_that_claim_one_rank_are_still_two() -> None:
    now = {1: ("TP0", {"NCCL_BUFFSIZE": "8"}), 2: ("TP0", {"NCCL_BUFFSIZE": "9"})}
    assert list(unlike(now, (), NEW)) == [("NCCL_BUFFSIZE", "NCCL_BUFFSIZE is 8 on TP0, 9 on TP0")]
