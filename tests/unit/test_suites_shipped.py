"""The suites in benchmarks/: each is read, asks what its page says, and names what is to be filled in."""

from __future__ import annotations

import json

import pytest

from sglang_ext.bench.suites import arms
from sglang_ext.bench.suites import suite as suites
from sglang_ext.bench.suites.prompts import distinct_pairs
from sglang_ext.bench.suites.suite import SuiteError, command, load_suite
from tests.unit.suite_texts import BENCHMARKS, ROOT, filled

SHIPPED = sorted(path.name for path in BENCHMARKS.glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_suite_is_read(name: str) -> None:
    suite = filled(name)
    assert suite.name == name.removesuffix(".toml")
    if suite.campaign is None:
        return
    starts = [one for one in suite.arms if not one.control]
    argv = {one.name: command(one, 30000)[0] for one in starts}
    assert len({tuple(words) for words in argv.values()}) == len(starts) >= 2
    assert not any("{" in word for words in argv.values() for word in words)
    assert json.loads(json.dumps(suite.to_json())) == suite.to_json()


def test_the_shipped_suites_are_those_of_the_page() -> None:
    """docs/suites.md tells of each; the two that ask a running server are not campaigns."""
    page = (ROOT / "docs" / "suites.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and ".toml`" in line]
    assert sorted(row.split("`")[1] for row in rows) == SHIPPED
    for row in rows:
        suite = filled(row.split("`")[1])
        size = row.rpartition("|")[0].rpartition("|")[2].strip().replace(" arms", "").replace(" blocks", "")
        assert size == (f"{len(suite.arms)} x {suite.campaign.blocks}" if suite.campaign else "none"), row


def test_the_page_has_every_key() -> None:
    page = (ROOT / "docs" / "suites.md").read_text()
    rows = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    keys = [*suites.SUITE, *suites.WITH_ARMS, *suites.CAMPAIGN, *arms.SHARED, *arms.ARM]
    assert [key for key in keys if f"`{key}`" not in rows] == []


def test_the_kimi_suite_is_the_question_it_asks() -> None:
    suite = filled("kimi-k2.5-eagle3.toml")
    campaign, work = suite.campaign, suite.workload
    assert campaign is not None
    assert (campaign.blocks, work.runs, work.tokens, len(work.prompts)) == (8, 5, 2048, 5)
    plain, two, three, again = suite.arms
    assert (plain.baseline, again.control, plain.draft, two.draft) == (True, True, None, "/models/d")
    assert [one.speculative for one in suite.arms] == [False, True, True, False]
    for one, steps in ((two, 2), (three, 3)):
        assert one.options["speculative_num_steps"] == (str(steps),)
        # sglang 0.5.23 would correct it with a warning only.
        assert one.options["speculative_num_draft_tokens"] == (str(steps + 1),)
        assert {k: v for k, v in one.options.items() if not k.startswith("speculative_")} == plain.options
    assert plain.options["tp_size"] == ("8",) and plain.variables["NCCL_PROTO"] == "LL"


@pytest.mark.parametrize("name", [name for name in SHIPPED if 'model = ""' in (BENCHMARKS / name).read_text()])
def test_a_shipped_suite_names_what_is_to_be_filled_in(name: str) -> None:
    with pytest.raises(SuiteError) as caught:
        load_suite(str(BENCHMARKS / name))
    assert str(caught.value) == (
        f"suite {BENCHMARKS / name}: [paths] model: expected where that is on this machine, found an empty string; fill it in"
    )


def test_the_shipped_prompts_are_of_different_kinds_and_natural() -> None:
    texts = {path.name: path.read_text() for path in (BENCHMARKS / "prompts").glob("*.txt")}
    assert len(texts) == 5
    for name, text in texts.items():
        assert 200 < len(text.split()) < 800 and distinct_pairs(text) > 0.9, name
    assert set(texts) == {str(one.file).rpartition("/")[2] for one in filled("kimi-k2.5-eagle3.toml").workload.prompts}


def test_no_secret_is_stored() -> None:
    suite = filled("kimi-k2.5-eagle3.toml")
    stored = json.dumps(suite.to_json())
    assert "Harrow" not in stored  # a prompt's text
    assert suite.workload.prompts[0].sha256 in stored and "pcie-blackwell" in stored
