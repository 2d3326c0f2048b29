"""Reason codes: what the code says, the table knows; what the table knows, the code says; and docs/ says it all."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sglang_ext.reasons import TABLE, consequence, exit_of, severity
from sglang_ext.reasons.model import EXCLUDED, INCONCLUSIVE, NOTE, UNKNOWN, UNRECONCILED

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sglang_ext"

# Callable -> position of the reason code among its arguments.
TAKES_CODE = {
    "problem": 0, "refuse": 0, "unseen": 0, "Refused": 0, "OverlayError": 0, "TreeError": 0, "LocalError": 0, "Judgement": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> list[tuple[Path, ast.Call | ast.Constant]]:
    """Every call and every constant of the package, but for the table itself."""
    return [
        (path, node)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent != PACKAGE / "reasons"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.Constant)
    ]


@pytest.fixture(scope="module")
def given_codes(nodes: list[tuple[Path, ast.Call | ast.Constant]]) -> dict[str, str]:
    """Every literal code handed to one of TAKES_CODE, with one place where that is done."""
    found = {}
    for path, node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        position = TAKES_CODE.get(name)
        if position is not None and len(node.args) > position:
            given = node.args[position]
            for leaf in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    found[leaf.value] = f"{path.relative_to(ROOT)}:{leaf.lineno}"
    return found


@pytest.fixture(scope="module")
def mentioned_codes(nodes: list[tuple[Path, ast.Call | ast.Constant]]) -> set[str]:
    """Every string of the package that is a code, or begins with one and a colon, as `say(f"port_taken: ...")` does."""
    found = set()
    for _, node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.partition(":")[0])
    return found & TABLE.keys()


def test_the_search_finds_codes_where_they_are(given_codes: dict[str, str]) -> None:
    found = given_codes
    assert {"worker_gone", "too_late", "port_taken", "overlay_tampered", "maybe_too_late"} <= found.keys()
    assert len(found) > 20


def test_every_code_given_is_in_the_table(given_codes: dict[str, str]) -> None:
    unknown = {code: where for code, where in given_codes.items() if code not in TABLE}
    assert unknown == {}


def test_every_code_of_the_table_is_used(mentioned_codes: set[str]) -> None:
    assert sorted(TABLE.keys() - mentioned_codes) == []


@pytest.mark.parametrize("code", TABLE)
def test_an_entry_is_whole(code: str) -> None:
    reason = TABLE[code]
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", code)
    assert reason.severity in ("fail", "unknown", "note") and severity(code) == reason.severity
    for text in (reason.meaning, reason.fix):
        assert text[0].isupper() or text.startswith(("pip ", "`", "SGLANG_"))
        assert text.endswith(".") and "  " not in text and "\n" not in text
    # 0 is PASS and 130 is an interrupt: a refusal is neither. 4: verified before, but not after.
    assert reason.exit in (1, 2, 3, 4, 5)


def test_what_comes_of_a_code() -> None:
    for reason in TABLE.values():
        status, text = exit_of(reason), consequence(reason)
        assert (status is None) == (reason.severity == NOTE or reason.makes == EXCLUDED)
        assert text.endswith(f" status {status}") if status else "status" not in text
        if reason.severity == UNKNOWN:
            assert status == 3
    made = {code: reason.makes for code, reason in TABLE.items() if reason.makes != "verdict"}
    assert all(TABLE[code].severity == "fail" for code in made)  # or a launch would keep its pair (study.pairs)
    assert {code for code, makes in made.items() if makes == INCONCLUSIVE} == {
        "campaign_unfinished", "too_few_pairs", "not_decided",
    }  # fmt: skip
    assert [code for code, makes in made.items() if makes == UNRECONCILED] == ["unreconciled"]
    assert (exit_of(TABLE["not_decided"]), exit_of(TABLE["unreconciled"]), exit_of(TABLE["port_invalid"])) == (5, 3, 2)


@pytest.mark.parametrize("code", TABLE)
def test_what_is_said_to_exclude_a_pair_is_marked_so(code: str) -> None:
    said = "pair is excluded" in TABLE[code].meaning
    assert said == (TABLE[code].makes in (EXCLUDED, UNRECONCILED))


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reasons_doc", ROOT / "tools" / "reasons_doc.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_table_says() -> None:
    page = (ROOT / "docs" / "reasons.md").read_text(encoding="utf-8")
    assert page == tool().render_docs(), "run: python tools/reasons_doc.py --write"


def test_the_page_has_a_section_for_every_code() -> None:
    page = tool().render_docs()
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0] for section in sections] == list(TABLE)
    for section, reason in zip(sections, TABLE.values(), strict=True):
        first = section.split("\n")[2]
        assert first == f"*{reason.severity}*; {consequence(reason)}."
        assert reason.meaning in section and reason.fix in section
    assert page.startswith("# Reason codes\n\n") and page.endswith("\n") and not page.endswith("\n\n")


def test_the_tool_says_when_the_page_is_stale(tmp_path: Path) -> None:
    for name in ("tools", "sglang_ext", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "tools/reasons_doc.py").write_text((ROOT / "tools/reasons_doc.py").read_text())
    (tmp_path / "sglang_ext/__init__.py").write_text("")
    (tmp_path / "sglang_ext/quick.py").write_text((PACKAGE / "quick.py").read_text())
    shutil.copytree(PACKAGE / "reasons", tmp_path / "sglang_ext/reasons", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(tmp_path / "tools/reasons_doc.py"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    page = tmp_path / "docs/reasons.md"
    missing = run()
    assert missing.returncode == 1 and "run: python tools/reasons_doc.py --write" in missing.stderr
    assert run("--write").returncode == 0 and run().returncode == 0
    assert page.read_text() == tool().render_docs()
    page.write_text(page.read_text() + "by hand\n")
    assert run().returncode == 1
