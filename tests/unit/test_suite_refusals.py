"""What the launcher would refuse of an arm is said before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_ext.bench.suites import plan, refusals
from sglang_ext.bench.suites.suite import Suite, parse_suite
from sglang_ext.bench.verb import InputError, Keep, Study, run

SUITE = """
[suite]
name = "s"
summary = "S"
[workload]
prompt = "hello"
tokens = 100
[campaign]
blocks = 2
under_test = ["contract.NCCL_PROTO"]
[server]
arguments = ["--tp", "2"]
[[arm]]
name = "a"
baseline = true
set = { NCCL_PROTO = "Simple" }
[[arm]]
name = "b"
set = { NCCL_PROTO = "LL" }
"""


def suite(*changes: tuple[str, str]) -> Suite:
    text = SUITE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_suite(text.encode(), "s.toml")


@pytest.fixture(autouse=True)
def quiet_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_PROTO", "NCCL_ALGO", "NCCL_CONF_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_refused_of_a_good_suite() -> None:
    assert refusals.refusals(suite().arms) == []


def test_a_value_that_nccl_would_not_take() -> None:
    [one] = refusals.refusals(suite(('"LL"', '"LLL"')).arms)
    assert (one.arm, one.code) == ("b", "value_refused") and "NCCL_PROTO" in one.sentence and "LLL" in one.sentence


def test_a_name_that_nobody_reads() -> None:
    found = refusals.refusals(suite(('"--tp", "2"]', '"--tp", "2"]\nset = { NCCL_PROTOO = "LL" }')).arms)
    assert [(one.arm, one.code) for one in found] == [("a", "name_misspelt"), ("b", "name_misspelt")]


def test_what_the_shell_holds_counts_as_it_will_for_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Rong")
    assert {(one.arm, "NCCL_ALGO" in one.sentence) for one in refusals.refusals(suite().arms)} == {
        ("a", True),
        ("b", True),
    }


@pytest.mark.parametrize("change", ["patches = false", 'address = "http://127.0.0.1:1"'])
def test_what_our_launcher_does_not_start_is_not_its_business(change: str) -> None:
    text = SUITE.replace('[server]\narguments = ["--tp", "2"]\n', "").replace(
        'name = "b"\nset = { NCCL_PROTO = "LL" }', f'name = "b"\n{change}'
    )
    text = text.replace(
        'set = { NCCL_PROTO = "Simple" }',
        'address = "http://127.0.0.1:2"' if "address" in change else 'set = { NCCL_PROTO = "Simple" }',
    )
    if change == "patches = false":
        text = text.replace(change, change + '\nset = { NCCL_PROTO = "LLL" }').replace(
            '"contract.NCCL_PROTO"', '"contract.NCCL_PROTO", "patches"'
        )
    assert refusals.refusals(parse_suite(text.encode(), "s.toml").arms) == []


@pytest.mark.parametrize(
    ("release", "expected"),
    [("0.5.23", "in 0.5.23"), ("0.5.9", "in 0.5.9"), (None, "in 0.5.23"), ("0.9.9", "in 0.5.23")],
)
def test_arguments_fight_by_the_release_that_stands_here(
    release: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_release", lambda: release)
    arguments = '["--tp", "2", "--enable-deterministic-inference"]\nset = { NCCL_ALGO = "Ring" }'
    made = suite(('["--tp", "2"]', arguments))
    found = refusals.refusals(made.arms)
    assert {one.code for one in found} == {"arguments_fight_contract"} and [one.arm for one in found] == ["a", "b"]
    assert expected in found[0].sentence and "NCCL_ALGO" in found[0].sentence


def test_a_plan_shows_it_by_its_code() -> None:
    made = suite(('"LL"', '"LLL"'))
    told = [text for label, text in plan.describe(made, 7) if label == "refused"]
    assert len(told) == 1 and told[0].startswith("arm b: value_refused: NCCL_PROTO")


def test_a_campaign_is_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(SUITE.replace('"LL"', '"LLL"'))

    def never(*_: object) -> None:
        raise AssertionError("nothing is judged or verified")

    study = Study(never, never, never)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^value_refused: suite .*s\.toml: arm b: NCCL_PROTO"):
        run(str(path), Keep(out=str(tmp_path / "out")), never, lambda: study)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
