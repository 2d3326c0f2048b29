"""What `sglang-ext patches` returns and says, by verb."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ext import cli, patches_verb
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


def words(site: Site, *more: str) -> int:
    return cli.main(["patches", more[0], "--root", str(site.root), *more[1:]])


def test_a_report_never_replaces_what_was_edited(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.edit(OTHER, b"line_3 = 3", b"line_3 = 0")
    edited = (site.root / OTHER).read_bytes()
    monkeypatch.chdir(site.root)
    for verb in ("status", "apply", "revert", "adopt"):
        assert words(site, verb, "--json", OTHER) == 2
        assert f"receipt_unwritable: {OTHER} lies in an installed sglang" in capsys.readouterr().err
    (site.base / "link.json").symlink_to(site.root / OTHER)
    assert words(site, "adopt", "--from", str(site.wheel), "--json", str(site.base / "link.json")) == 2
    assert words(site, "status", "--json", f"{site.info.name}/report.json") == 2
    assert (site.root / OTHER).read_bytes() == edited and not (site.info / "report.json").exists()
    assert not site.local.exists() or not list(site.local.iterdir())  # refused before anything was adopted
    assert words(site, "adopt", OTHER, "--from", str(site.wheel), "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["done"] == "would_adopt"


def test_a_report_never_replaces_another_thing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    edited, receipt = site.base / "edited.py", site.base / "receipt.json"
    edited.write_text("MINE = 1\n")
    receipt.write_text('{"schema": "sglang-ext/bench/1"}')
    empty = site.base / "empty"
    empty.mkdir()
    for root in (site.root, empty):  # where the verb itself is refused as well
        for file in (edited, receipt):
            kept = file.read_text()
            assert cli.main(["patches", "status", "--root", str(root), "--json", str(file)]) == 2
            assert file.read_text() == kept and "holds something else than a report" in capsys.readouterr().err
    for bad in (site.base, site.base / "nowhere" / "r.json"):
        assert words(site, "apply", "--json", str(bad)) == 2
        assert f"receipt_unwritable: {bad} cannot be written" in capsys.readouterr().err
    assert words(site, "revert") == 0 and "nothing to revert" in capsys.readouterr().out  # none of them was applied


def test_a_report_replaces_one_of_its_own(site: Site) -> None:
    file = site.base / "r.json"
    file.touch()  # as mktemp leaves it
    for verb, done in (("apply", "applied"), ("apply", "already"), ("revert", "reverted")):
        assert words(site, verb, "--json", str(file)) == 0
        assert json.loads(file.read_text())["done"] == done
    assert words(site, "status", "--json", "/dev/null") == 0


def test_check_replaces_nothing_either(site: Site) -> None:
    line = ["patches", "check", "--release", "9.9.1", "--wheels", str(site.base), "--json"]
    before = site.wheel.read_bytes()
    assert cli.main([*line, str(site.wheel)]) == 2
    assert site.wheel.read_bytes() == before
    assert cli.main([*line, str(site.base / "r.json")]) == 0
