"""What two sides come to: equal, different, noted, not comparable; and what is printed of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from sglang_ext import hide
from sglang_ext.compare.difference import (
    ARGUMENTS,
    CONTRACT,
    ENVIRONMENT,
    GROUPS,
    HIDDEN,
    HOST,
    MISSING,
    NCCL,
    SIZES,
    VERSIONS,
    Difference,
    Known,
    NotComparable,
    Side,
    compare,
)
from sglang_ext.compare.show import closing, pair, render, to_json, verdict


def side(**groups: Any) -> Side:
    """A side of hand-made groups; a `Known` alone is a group without ranks."""
    made: dict[str, Mapping[str, Known]] = {group: {"": Known(why="not looked at")} for group in GROUPS}
    made |= {name: {"": known} if isinstance(known, Known) else known for name, known in groups.items()}
    return Side("given", "server", "what", made)


def ranks(*environments: dict[str, str]) -> dict[str, Known]:
    return {f"TP{i}": Known(environment) for i, environment in enumerate(environments)}


def test_nothing_known_is_not_comparable() -> None:
    found = compare(side(), side())
    assert verdict(found) == "NOT COMPARABLE" and found.compared == 0
    assert [u.why for u in found.not_comparable] == ["A and B: not looked at"] * len(GROUPS)
    assert [u.group for u in found.not_comparable] == list(GROUPS)


def test_equal_things_are_counted() -> None:
    one = side(arguments=Known({"tp_size": 2, "nested": {"a": 1, "b": [1]}, "none": None}))
    found = compare(one, one)
    assert verdict(found) == "SAME" and found.equal[ARGUMENTS] == 4 and found.differences == ()


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, 2), (None, 0), (None, MISSING), (True, 1), (False, 0), ("1", 1), ([1, 2], [2, 1]), ({"x": 1}, None), ("", None)],
)  # fmt: skip
def test_what_differs(a: Any, b: Any) -> None:
    one, other = (side(arguments=Known({} if value is MISSING else {"it": value}, {})) for value in (a, b))
    (found,) = compare(one, other).differences
    assert found == Difference(ARGUMENTS, "it", (), a, b) and verdict(compare(one, other)) == "DIFFERENT"


def test_big_arguments_differ_by_their_parts() -> None:
    a = side(arguments=Known({"graph": {"decode": {"bs": [1, 2], "max": 2}, "off": False}}))
    b = side(arguments=Known({"graph": {"decode": {"bs": [1, 4], "max": 2}, "more": 1}}))
    assert [(d.name, d.a, d.b) for d in compare(a, b).differences] == [
        ("graph.decode.bs", [1, 2], [1, 4]),
        ("graph.more", MISSING, 1),
        ("graph.off", False, MISSING),
    ]


def test_ranks_that_all_differ_alike_are_one_line() -> None:
    a, b = side(environment=ranks({"NCCL_X": "1"}, {"NCCL_X": "1"})), side(environment=ranks({}, {}))
    assert compare(a, b).differences == (Difference(ENVIRONMENT, "NCCL_X", (), "1", MISSING),)


def test_one_rank_that_differs_is_named() -> None:
    a = side(environment=ranks({"NCCL_X": "1"}, {"NCCL_X": "1"}, {"NCCL_X": "1"}))
    b = side(environment=ranks({"NCCL_X": "1"}, {"NCCL_X": "2"}, {"NCCL_X": "2"}))
    found = compare(a, b)
    assert found.differences == (Difference(ENVIRONMENT, "NCCL_X", ("TP1", "TP2"), "1", "2"),)
    assert found.equal[ENVIRONMENT] == 0 and found.compared == 1
    assert "TP1, TP2" in render(a, b, found)


def test_other_sizes_are_compared_where_all_ranks_of_a_side_agree() -> None:
    a, b = side(environment=ranks({"NCCL_X": "1"})), side(environment=ranks({"NCCL_X": "1"}, {"NCCL_X": "1"}))
    assert verdict(compare(a, b)) == "SAME" and not compare(a, b).notes
    c = side(environment=ranks({"NCCL_X": "1"}, {"NCCL_X": "2"}))
    found = compare(a, c)
    assert found.differences == () and NotComparable(
        ENVIRONMENT, ("NCCL_X",), "TP1: no such rank on the other side"
    ) in (found.not_comparable)


def test_what_one_side_cannot_know_is_neither_equal_nor_different() -> None:
    a = side(environment={"TP0": Known({"NCCL_A": "1"}, {"NCCL_B": "denied"}), "TP1": Known(why="gone")})
    b = side(environment=ranks({"NCCL_A": "1", "NCCL_B": "1"}, {"NCCL_A": "1", "NCCL_B": "1"}))
    found = compare(a, b)
    assert found.differences == () and found.equal[ENVIRONMENT] == 1
    assert [u for u in found.not_comparable if u.group == ENVIRONMENT] == [
        NotComparable(ENVIRONMENT, ("NCCL_A",), "A: TP1: gone"),
        NotComparable(ENVIRONMENT, ("NCCL_B",), "A: TP0: denied; TP1: gone"),
    ]


def test_a_whole_group_gives_one_reason() -> None:
    a, b = side(versions=Known({"sglang": "0.5.23"})), side(versions=Known(why="a verify report does not hold it"))
    (found,) = [u for u in compare(a, b).not_comparable if u.group == VERSIONS]
    assert found == NotComparable(VERSIONS, (), "B: a verify report does not hold it")


def test_what_differs_at_every_launch_is_noted() -> None:
    a = side(arguments=Known({"port": 1, "random_seed": 1, "tp_size": 2}), host=Known({"name": "a", "cpu": "c"}))
    b = side(arguments=Known({"port": 2, "random_seed": 2, "tp_size": 2}), host=Known({"name": "b", "cpu": "c"}))
    found = compare(a, b)
    assert verdict(found) == "SAME" and [d.name for d in found.notes] == ["port", "random_seed", "name"]
    assert all(d.why for d in found.notes) and {d.group for d in found.notes} == {ARGUMENTS, HOST}
    text = render(a, b, found)
    assert "note: arguments random_seed: 1 / 2: drawn at each launch" in text and text.endswith(closing(found))
    assert "2 of 5 facts are the same, 3 noted" in text


def test_what_is_hidden_proves_nothing() -> None:
    cut = "x" * 300 + "... (5000 characters)"
    a = side(arguments=Known({"key": "<redacted>", "cut": cut, "other": cut, "plain": "(3 characters)"}))
    b = side(arguments=Known({"key": None, "cut": cut, "other": cut + "y", "plain": "(3 characters)"}))
    found = compare(a, b)
    assert [d.name for d in found.differences] == ["other"] and found.equal[ARGUMENTS] == 1
    assert {u.names for u in found.not_comparable if u.group == ARGUMENTS} == {("key",), ("cut",)}


@pytest.mark.parametrize("hidden", sorted({*HIDDEN, hide.HIDDEN}))
@pytest.mark.parametrize("inside", [lambda text: text, lambda text: ["a", text], lambda text: [{"b": text}]])
def test_two_hidden_values_are_not_the_same(hidden: str, inside: Any) -> None:
    """Whatever they are: both read alike, and may be two different ones."""
    for group in (ENVIRONMENT, ARGUMENTS):
        a, b = (side(**{group: Known({"MOONCAKE_TE_META_DATA_SERVER": inside(hidden)})}) for _ in range(2))
        found = compare(a, b)
        assert verdict(found) == "NOT COMPARABLE" and not found.equal[group]
        assert ("MOONCAKE_TE_META_DATA_SERVER",) in {one.names for one in found.not_comparable}
        other = side(**{group: Known({"MOONCAKE_TE_META_DATA_SERVER": "plain"})})
        assert not compare(a, other).differences


def test_a_cut_text_in_a_list_is_only_as_comparable_as_it_is_there() -> None:
    cut = "x" * 300 + "... (5000 characters)"
    a, b = (side(arguments=Known({"list": ["a", cut]})) for _ in range(2))
    assert verdict(compare(a, b)) == "NOT COMPARABLE"
    other = side(arguments=Known({"list": ["b", cut]}))
    assert [d.name for d in compare(a, other).differences] == ["list"]


def test_what_nccl_takes_for_the_same_is_noted() -> None:
    def same(name: str, one: str | None, other: str | None) -> str | None:
        return "both are SYS" if {one, other} == {"4", "SYS"} else None

    terms = side(contract=Known({"NCCL_P2P_LEVEL": "SYS"}), environment=ranks({"NCCL_P2P_LEVEL": "SYS", "CUDA_X": "4"}))
    other = side(contract=Known({"NCCL_P2P_LEVEL": "4"}), environment=ranks({"NCCL_P2P_LEVEL": "4", "CUDA_X": "SYS"}))
    found = compare(terms, other, same)
    assert [(d.group, d.name, d.why) for d in found.notes] == [
        (CONTRACT, "NCCL_P2P_LEVEL", "both are SYS"),
        (ENVIRONMENT, "NCCL_P2P_LEVEL", "both are SYS"),
    ]
    assert [d.name for d in found.differences] == ["CUDA_X"]  # not NCCL's: nobody is asked
    # Not required and required to be absent are two contracts, whatever NCCL makes of it.
    silent = compare(side(contract=Known({"NCCL_X": None})), side(contract=Known({})), lambda *_: "same")
    assert len(silent.differences) == 1 and silent.notes == ()


def test_the_version_of_a_side() -> None:
    assert side(nccl=ranks({"version": "2.30.7"}, {"version": "2.30.7"})).nccl_version() == "2.30.7"
    assert side(nccl=ranks({"version": "2.30.7"}, {"version": "2.28.9"})).nccl_version() is None
    assert side(nccl=Known(why="denied")).nccl_version() is None and side().nccl_version() is None


def test_the_table() -> None:
    a = side(
        contract=Known({"NCCL_A": None, "NCCL_B": "a b"}), sizes=Known({"tp": 2}), nccl=ranks({"sha256": "a" * 64})
    )
    b = side(contract=Known({"NCCL_A": "1"}), sizes=Known({"tp": 4}), nccl=ranks({"sha256": "a" * 60 + "bbbb"}))
    found = compare(a, b)
    text = render(a, b, found)
    rows = [line.split("  ") for line in text.splitlines()]
    assert [line for line in text.splitlines() if line in GROUPS.values()] == [
        GROUPS[g] for g in (CONTRACT, NCCL, SIZES)
    ]
    cells = {row[1]: [cell.strip() for cell in row[2:] if cell.strip()] for row in rows if len(row) > 3 and not row[0]}
    assert cells["NCCL_A"] == ["(must be absent)", "1"] and cells["NCCL_B"] == ["'a b'", "(not required)"]
    assert cells["sha256"] == ["...aaaaaaaaaaaa", "...aaaaaaaabbbb"] and cells["tp"] == ["2", "4"]
    assert text.splitlines()[-1].startswith("DIFFERENT: 4 of 4 facts differ (contract 2, nccl 1, sizes 1); 7 not")


@pytest.mark.parametrize(
    ("a", "b"),
    [("x" * 100 + "1", "x" * 100 + "2"), ("x" * 100, "x" * 99), ("1" + "x" * 100, "2" + "x" * 100), ("", "y" * 99)],
)
def test_long_values_show_where_they_differ(a: str, b: str) -> None:
    one, other = pair(a, b)
    assert one != other and max(len(one), len(other)) <= 44


def test_json_tells_nothing_there_from_null() -> None:
    a, b = side(arguments=Known({"x": None})), side(arguments=Known({}))
    found = json.loads(json.dumps(to_json(a, b, compare(a, b), 1)))
    assert (found["schema"], found["verdict"], found["exit"]) == ("sglang-ext/diff/1", "DIFFERENT", 1)
    (entry,) = found["differences"]
    assert entry == {
        "group": "arguments", "name": "x", "ranks": [], "a": {"is": "value", "value": None}, "b": {"is": "missing"},
    }  # fmt: skip
    assert set(found["equal"]) == set(GROUPS) and found["notes"] == [] and len(found["not_comparable"]) == 9
