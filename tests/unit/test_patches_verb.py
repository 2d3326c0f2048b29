"""What `sglang-ext patches` returns and says, by verb."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext import patches_verb
from tests.unit.small_upstream import OTHER, Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, monkeypatch)
    monkeypatch.setattr(patches_verb, "patches_folder", lambda: str(made.patches))
    return made


def run(site: Site, verb: str, **options: Any) -> tuple[int, dict[str, Any]]:
    return patches_verb.run(verb, SimpleNamespace(root=str(site.root), json=None, **options))


def check(site: Site, *releases: str) -> tuple[int, dict[str, Any]]:
    return run(site, "check", releases=list(releases), wheels=str(site.base))


def test_a_release_that_is_not_locked_is_the_command_lines_fault(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(site)[0] == check(site, "9.9.1")[0] == 0
    status, report = check(site, "9.9.1", "9.9.9")
    assert (status, report["done"]) == (2, "refused")
    (problem,) = report["problems"]
    assert problem["code"] == "unsupported_upstream" and "--release 9.9.9 is not in the lock" in problem["message"]
    assert "patches 9.9.1; name one of these" in capsys.readouterr().err
    site.info.rename(site.root / "sglang-9.9.2.dist-info")  # and of the tree, where it is the one installed
    assert run(site, "apply", without=[])[0] == 1


def adopt(site: Site, *, dry_run: bool) -> tuple[int, str]:
    options = {"files": (), "name": None, "subject": None, "wheel": str(site.wheel), "leave_added": False}
    status, report = run(site, "adopt", dry_run=dry_run, **options)
    return status, report["done"]


def test_nothing_to_adopt_is_said_of_a_tree_patched_in_place(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(site, "apply", without=[])[0] == 0
    for dry_run in (True, False):
        assert adopt(site, dry_run=dry_run) == (0, "nothing")
        assert "nothing to adopt" in capsys.readouterr().out
    assert run(site, "apply", without=[])[1]["done"] == "already"
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    assert adopt(site, dry_run=True) == (0, "would_adopt") and adopt(site, dry_run=False) == (0, "adopted")
