"""The campaign folder: whole files or none, ours alone, and never believed where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.bench.campaigns import journal
from sglang_ext.bench.campaigns.journal import Journal, JournalError, finished_blocks, unfinished

ROOT = Path(__file__).resolve().parents[2]
PLAN = {"blocks": [["a", "b"], ["b", "a"]]}
HEAD = {"id": "c1", "plan": PLAN}


def launch(block: int, arm: str, state: str = "finished", attempt: int = 0, campaign: str = "c1") -> dict[str, Any]:
    order = PLAN["blocks"][block].index(arm)
    return {
        "campaign": campaign, "block": block, "order": order, "attempt": attempt, "arm": arm, "state": state,
        "time": {"began": 10.0 * block + order + attempt, "ended": 0.0}, "runs": [],
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign with one launch."""
    path = tmp_path / "campaign"
    own = Journal.open(str(path))
    own.begin(HEAD)
    own.keep(launch(0, "a"))
    own.close()
    return path


def opened(path: Path) -> Journal:
    return Journal.open(str(path))


def refusal(path: Path) -> JournalError:
    with pytest.raises(JournalError) as caught:
        read(path)
    return caught.value


def read(path: Path) -> None:
    own = opened(path)
    try:
        own.launches()
    finally:
        own.close()


def test_what_is_kept_is_found_again(folder: Path) -> None:
    own = opened(folder)
    assert own.head == {"schema": journal.SCHEMA, **HEAD} and own.launches() == [launch(0, "a")]
    own.keep(launch(0, "b", attempt=2))
    assert sorted(os.listdir(folder)) == [
        "campaign.json",
        "launch-000-0-a.json",
        "launch-000-1-b.2.json",
        "lock",
        "logs",
    ]
    for path in (folder, folder / "logs", folder / "campaign.json", folder / "launch-000-0-a.json"):
        assert path.stat().st_mode & 0o077 == 0
    own.close()


def test_it_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        opened(tmp_path / "c").close()
    finally:
        os.umask(before)
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700


def test_only_a_folder_of_ours_is_used(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir(mode=0o700)
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert "found thesis.tex; name another" in str(refusal(tmp_path / "full"))
    assert os.listdir(tmp_path / "full") == ["thesis.tex"]  # and nothing is written into it
    (tmp_path / "open").mkdir(mode=0o755)
    assert f"mode 0700, found 0755; run chmod 700 {tmp_path}/open, or name another" in str(refusal(tmp_path / "open"))
    (tmp_path / "open").chmod(0o700)
    opened(tmp_path / "open").close()
    (tmp_path / "public").mkdir(mode=0o755)
    (tmp_path / "public" / "thesis.tex").write_text("x")
    assert str(refusal(tmp_path / "public")).endswith("found 0755; name another with --out")
    (tmp_path / "file").write_text("x")
    assert "found a link or file" in str(refusal(tmp_path / "file"))
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert "found a link or file" in str(refusal(tmp_path / "link"))
    assert "cannot be made (No such file or directory)" in str(refusal(tmp_path / "no" / "where"))
    (tmp_path / "empty").mkdir(mode=0o700)  # a campaign that was killed before it had written anything
    own = opened(tmp_path / "empty")
    assert own.head == {}
    own.close()


def test_another_tool_s_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o700)
    (tmp_path / "c" / "campaign.json").write_text('{"schema": "other/1"}')
    found = refusal(tmp_path / "c")
    assert os.listdir(tmp_path / "c") == ["campaign.json"]
    assert found.code == "campaign_folder" and "expected schema sglang-ext/campaign/1, found 'other/1'" in str(found)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        '{"campaign": "c1"',
        "[]",
        '{"campaign": "c2"}',
        '{"campaign": "c1"}',
        json.dumps(launch(0, "b")),  # under the name of another
        json.dumps(launch(0, "a") | {"arm": "elsewhere"}),
        json.dumps(launch(0, "a") | {"block": True}),
        json.dumps(launch(0, "a") | {"state": "splendid"}),
        json.dumps(launch(0, "a") | {"time": None}),
        json.dumps(launch(0, "a") | {"runs": {}}),
        json.dumps(launch(0, "a", campaign="c2")),
    ],
)
def test_a_launch_that_is_torn_or_foreign_is_refused_by_its_name(folder: Path, raw: str) -> None:
    if raw.endswith("}"):  # whole, with a digest of its own: what it says is looked at all the same
        raw = json.dumps(journal.sealed(json.loads(raw)))
    (folder / "launch-000-0-a.json").write_text(raw)
    found = refusal(folder)
    assert found.code == "journal_damaged" and "launch-000-0-a.json" in str(found)
    fix = "move it away (its block is repeated), or begin again with another --out"
    assert str(found).endswith(f"it is not believed: {fix}")
    (folder / "launch-000-0-a.json").unlink()  # as it says
    read(folder)


def test_an_edited_rate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    own = opened(path)
    own.begin(HEAD)
    made = launch(0, "a") | {
        "runs": [{"decode_tok_s": 82.25, "trace": {"t": [0.1, 0.2], "tokens": [1, 2]}}],
        "machine": {10: (2, None), 9: 0},
    }
    own.keep(made)
    (kept,) = own.launches()
    assert kept["runs"] == made["runs"] and "sha256" not in kept
    own.keep(kept)
    own.close()
    file = path / "launch-000-0-a.json"
    good = file.read_text()
    file.write_text(json.dumps(json.loads(good), indent=2))  # as an editor lays it out: the same content
    read(path)
    file.write_text(good.replace("82.25", "92.25"))
    found = refusal(path)
    assert found.code == "journal_damaged"
    assert str(found) == (
        f"{file}: expected the content it was written with, found another: it was edited or damaged; it is not believed: move "
        "it away (its block is repeated), or begin again with another --out"
    )
    bare = json.loads(good)
    del bare["sha256"]
    file.write_text(json.dumps(bare))
    assert f"{file}: expected sha256, the digest of what is in it, found none" in str(refusal(path))


def test_an_edited_plan_is_refused(folder: Path) -> None:
    file = folder / "campaign.json"
    good = json.loads(file.read_text())
    file.write_text(json.dumps(good | {"plan": {"blocks": [["a", "b"]]}}))
    found = refusal(folder)
    assert found.code == "journal_damaged" and f"{file}: expected the content it was written with" in str(found)
    del good["sha256"]
    file.write_text(json.dumps(good))
    assert f"{file}: expected sha256, the digest of what is in it, found none" in str(refusal(folder))


def test_a_torn_plan_is_to_be_restored_as_a_folder_without_one_is_no_campaigns(folder: Path) -> None:
    file = folder / "campaign.json"
    good = file.read_text()
    file.write_text(good[:-20])
    found = refusal(folder)
    assert found.code == "journal_damaged"
    assert str(found).endswith("it is not believed: restore it, or begin again with another --out")
    file.unlink()
    assert refusal(folder).code == "campaign_folder"
    file.write_text(good)
    read(folder)


def test_what_is_no_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "launch-000-1-b.json")
    assert "launch-000-1-b.json is no regular file" in str(refusal(folder))
    os.unlink(folder / "launch-000-1-b.json")
    (folder / "launch-000-1-b.json").symlink_to("launch-000-0-a.json")
    assert "launch-000-1-b.json cannot be read" in str(refusal(folder))


def test_two_cannot_run_in_one_folder(folder: Path) -> None:
    own = opened(folder)
    assert "is in use by a campaign that runs now" in str(refusal(folder))
    own.close()
    opened(folder).close()


def test_a_write_that_was_killed_leaves_the_old_file(folder: Path) -> None:
    (folder / f".launch-000-0-a.json.{os.getpid()}.tmp").write_text('{"half')
    (folder / ".thesis.1.tmp").write_text("x")  # nobody's of ours
    own = opened(folder)
    assert own.launches() == [launch(0, "a")] and [one.name for one in folder.glob(".*")] == [".thesis.1.tmp"]
    own.close()


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sglang_ext.bench.campaigns import journal
own = journal.Journal.open(sys.argv[2])
replaced = os.replace
def replace(a, b):
    if sys.argv[3] == "after":
        replaced(a, b)
    os.kill(os.getpid(), 9)
os.replace = replace
own.keep({**own.launches()[0], "state": "failed"})
"""


@pytest.mark.parametrize(("when", "state"), [("before", "finished"), ("after", "failed")])
def test_killed_while_it_writes(folder: Path, when: str, state: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(ROOT), str(folder), when], check=False)
    assert done.returncode == -9
    own = opened(folder)
    assert [one["state"] for one in own.launches()] == [state]
    own.close()


def test_logs_are_never_written_over(folder: Path) -> None:
    own = opened(folder)
    first = own.log("000-0-a")
    Path(first).write_text("x")
    assert first.endswith("logs/000-0-a.log") and own.log("000-0-a").endswith("logs/000-0-a.1.log")
    own.close()


def test_a_block_is_finished_when_every_arm_is() -> None:
    launches = [
        launch(0, "a"),
        launch(0, "b", "failed"),
        launch(0, "b", attempt=1),
        launch(1, "b"),
        launch(1, "a", "failed"),
    ]
    assert finished_blocks(PLAN, launches) == {0: {"a": launches[0], "b": launches[2]}}
    # What failed there had its block interrupted as well: it is no launch of a block that counts.
    assert list(unfinished(PLAN, launches)) == launches[3:]
