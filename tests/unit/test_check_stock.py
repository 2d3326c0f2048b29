"""`verify` on a stock server: every expected rank and no other, helpers that decide nothing, and rows of the report.

Titled processes under a Python that was started as one.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import pytest

from sglang_ext import asking
from sglang_ext.verify import report
from sglang_ext.verify.check import Request, verify
from sglang_ext.verify.select import by_pid
from tests.unit.checked_children import GOOD, SLEEP, STOCK, TP2, WAIT, WANTED, child, codes, verify_stock


def test_a_stock_server_passes_by_what_is_seen_now() -> None:
    found = verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer")
    assert found["verdict"] == "PASS" and found["problems"] == [] and found["run"] is None
    assert found["expected"] == {"tp": 2, "pp": 1, "dp": 1, "nnodes": 1, "workers": 2, "here": 2}
    assert [(w["role"], w["label"], w["rank"]["tp"], w["counts"]) for w in found["workers"]] == [
        ("scheduler", "TP0", 0, True),
        ("scheduler", "TP1", 1, True),
        ("detokenizer", "detokenizer", None, False),
    ]
    text = report.render(found)
    assert "what NCCL read at its start was not witnessed" in text.splitlines()[-1]
    assert text.splitlines()[-1].startswith("PASS: 2 of 2 workers hold the contract (3 variables)")


def test_equal_workers_share_a_row() -> None:
    text = report.render(verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1"))
    assert [re.split(r"  +", line)[0] for line in text.splitlines()[:4]] == ["worker", *["TP0, TP1"] * 3]
    (line,) = (line for line in text.splitlines() if "NCCL_PROTO" in line)
    assert re.fullmatch(r"TP0, TP1  \d+, \d+  NCCL_PROTO +LL +LL +LL +n/a +PASS", line)


def test_unequal_workers_have_rows_of_their_own() -> None:
    found = verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1,NCCL_PROTO=Simple")
    assert found["verdict"] == "FAIL" and codes(found) == ["overwritten"]
    lines = [line for line in report.render(found).splitlines() if " NCCL_PROTO " in line]
    assert [line.split()[0] for line in lines[:2]] == ["TP0", "TP1"]
    assert lines[0].endswith("PASS") and lines[1].endswith("FAIL overwritten")
    coloured = report.render(found, colour=True)
    assert "\033[31mFAIL overwritten\033[0m" in coloured and "\033[32mPASS\033[0m" in coloured
    assert re.sub(r"\033\[\d*m", "", coloured) == report.render(found)


def test_a_helper_is_judged_and_decides_nothing() -> None:
    found = verify_stock(*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer,NCCL_PROTO=x")
    assert found["verdict"] == "PASS"
    assert [(p["code"], p["severity"]) for p in found["problems"]] == [("overwritten", "note")]
    assert found["workers"][-1]["verdict"] == "FAIL"
    assert "(FAIL overwritten)" in report.render(found)


def verify_all_processes(*words: str) -> dict[str, Any]:
    with child(STOCK + WAIT, *TP2, *words, env=GOOD) as process:
        server, _ = by_pid(process.pid)
        return verify(server, Request(WANTED, all_processes=True))


def test_all_processes_lets_helpers_decide() -> None:
    ranks = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
    found = verify_all_processes(*ranks, "sglang::detokenizer,NCCL_PROTO=x")
    assert found["verdict"] == "FAIL" and codes(found) == ["overwritten"]
    assert verify_all_processes(*ranks, "sglang::detokenizer")["verdict"] == "PASS"


def test_all_processes_still_needs_every_rank() -> None:
    found = verify_all_processes("sglang::scheduler_TP0", "sglang::detokenizer")
    assert found["verdict"] == "FAIL" and codes(found) == ["missing_ranks"]


# A worker at a time, each some moments later: while there is none, it is no server for whoever looks.
SLOW = f"""
import subprocess, time
print("ready", flush=True)
for title in (word for word in sys.argv[2:] if word.startswith("sglang::")):
    time.sleep(0.3)
    subprocess.Popen([title, "60"], executable={SLEEP!r}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("titles", "wait", "verdict", "problems"),
    [
        (("sglang::scheduler_TP0",), 1.0, "FAIL", ["missing_ranks"]),
        (("sglang::scheduler_TP0", "sglang::scheduler_TP1"), 20.0, "PASS", []),
    ],
)
def test_a_server_that_is_waited_for_must_have_every_rank(
    titles: tuple[str, ...], wait: float, verdict: str, problems: list[str]
) -> None:
    asked = {"run": None, "port": None, "require": None, "all_processes": False, "accepted": ()}
    with child(SLOW, *TP2, *titles, env=GOOD) as process:
        found = asking.check(argparse.Namespace(**asked, pid=process.pid, wait=wait), WANTED)
    assert (found["verdict"], codes(found)) == (verdict, problems)


@pytest.mark.parametrize(
    ("words", "verdict", "code", "part"),
    [
        ((*TP2, "sglang::scheduler_TP0"), "FAIL", "missing_ranks", "found 1 of 2 schedulers (TP0)"),
        ((*TP2, "sglang::detokenizer"), "FAIL", "missing_ranks", "found 0 of 2 schedulers (none)"),
        (
            (*TP2, "sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::scheduler_TP1"),
            "FAIL",
            "extra_ranks",
            "found 3 of 2 schedulers (TP0, TP1, TP1)",
        ),
        (
            (*TP2, "sglang::scheduler_TP1", "sglang::scheduler_TP1"),
            "FAIL",
            "extra_ranks",
            "two schedulers claim the same rank (TP1, TP1)",
        ),
        (("script.py", "sglang::scheduler_TP0"), "UNKNOWN", "expected_unknown", "found 1 schedulers (TP0)"),
        (
            ("sglang.launch_server", "--config", "c.yaml", "sglang::scheduler_TP0"),
            "UNKNOWN",
            "expected_unknown",
            "not told by its command line",
        ),
    ],
)
def test_found_ranks_must_be_the_expected_ones(words: tuple[str, ...], verdict: str, code: str, part: str) -> None:
    found = verify_stock(*words)
    assert found["verdict"] == verdict and codes(found) == [code]
    assert part in found["problems"][0]["message"]
    assert found["expected"]["here"] == (2 if verdict == "FAIL" else None)
