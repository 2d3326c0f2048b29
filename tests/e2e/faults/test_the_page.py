"""docs/fault-matrix.md is what ran."""

from __future__ import annotations

import os

import pytest

from .matrix import PAGE, Matrix, committed, line


def test_the_page_is_what_ran(matrix: Matrix, request: pytest.FixtureRequest) -> None:
    rows = [item for item in request.session.items if "row" in getattr(getattr(item, "callspec", None), "params", {})]
    whole = len(matrix.seen) == len(rows) and len({item.path for item in rows}) >= 8
    if os.environ.get("SGLANG_EXT_WRITE_MATRIX"):
        assert whole, f"{len(matrix.seen)} of {len(rows)} rows came out: the page is written when all did"
        PAGE.write_text(matrix.render(), encoding="utf-8")
    stale = [line(seen) for seen in matrix.seen.values() if line(seen) not in committed()]
    assert not stale, "docs/fault-matrix.md says something else; run: SGLANG_EXT_WRITE_MATRIX=1 pytest tests/e2e/faults"
    if whole:
        assert f"\n{len(rows)} rows.\n" in PAGE.read_text(encoding="utf-8")
