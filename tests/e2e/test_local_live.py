"""Real servers on what the patch set's life leaves behind: hand edits as local patches, a tree patched in place, a baked wheel.

Each runs the newest release, two tensor-parallel ranks, from an environment of its own whose files are changed as a user would
change them; the libraries are this environment's (tests/rig/releases.py).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.overlay import patches_folder
from sglang_ext.patchset.series import patch_set_digest
from tests.rig import releases
from tests.rig.releases import CONTRACT, SETS, Release, ReleaseServer
from tests.rig.server import LAUNCHER, START_LIMIT, clean_environment

from .conftest import answers, by_witness, cli, values

NEWEST = releases.supported()[-1]
# One file that we patch as well, one that only the edit changes; both are imported by every worker before its first line.
OURS, OTHER = "sglang/srt/managers/scheduler.py", "sglang/srt/managers/schedule_batch.py"
NAMES = {OURS: "srt.managers.scheduler", OTHER: "srt.managers.schedule_batch"}
EDIT = """
# What one leaves behind while looking for something.
import os as _os, sys as _sys

print("edited {name} runs in", _os.getpid(), file=_sys.stderr, flush=True)
"""
# The last .pth file that is read: an environment in which no import hook can be armed.
NO_HOOK = 'import sys; sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, "_sglang_ext")]\n'


class Place:
    """The environment, a folder of local patches, and the servers started of them."""

    def __init__(self, release: Release, base: Path, logs: Callable[[str], Path], model: Path) -> None:
        self.release, self.base, self.logs, self.model = release, base, logs, model
        self.site = releases.site_of(release.python.parents[1])
        self.environment = {
            "PYTHONPATH": release.path,
            "SGLANG_EXT_LOCAL_PATCHES": str(base / "local"),
            "XDG_CACHE_HOME": str(base / "cache"),
        }

    def ext(self, *words: str, rc: int | None = 0) -> dict[str, Any]:
        """A verb's report, by the environment's Python."""
        command = [str(self.release.python), "-m", "sglang_ext", *words, "--json"]
        environment = {**clean_environment(1, {}), **self.environment}
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
        assert rc in (None, done.returncode), done.stderr or done.stdout
        return dict(json.loads(done.stdout))

    def patches(self, *words: str) -> dict[str, Any]:
        return self.ext("patches", *words, "--root", str(self.site))

    def server(self, name: str, *options: str) -> ReleaseServer:
        return ReleaseServer(
            self.logs(name),
            start=LAUNCHER,
            options=[*SETS, *options],
            python=str(self.release.python),
            model=self.model,
            flags=self.release.flags,
            environment=self.environment,
        )

    def hashes(self) -> dict[str, str]:
        """Every file of the package, without bytecode."""
        return {
            str(path.relative_to(self.site)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((self.site / "sglang").rglob("*"))
            if path.is_file() and path.suffix != ".pyc"
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, logs: Callable[[str], Path], models: dict[str, Path]) -> Place:
    """The newest release as its wheel has it, with two files edited by hand."""
    base = tmp_path_factory.mktemp("edited")
    release = releases.furnish(NEWEST, base / "env", releases.find_wheel(NEWEST))
    return Place(release, base, logs, models["deepseek"])


@pytest.fixture(scope="module")
def adopted(place: Place) -> dict[str, Any]:
    """What `patches adopt` says of it; the tree is stock afterwards."""
    stock = place.hashes()
    for file, name in NAMES.items():
        with (place.site / file).open("a") as edited:
            edited.write(EDIT.format(name=name))
    status = place.ext("patches", "status", "--root", str(place.site), rc=1)
    assert (status["state"], sorted(status["edited"])) == ("edited", sorted(NAMES))
    report = place.patches("adopt", "--from", str(releases.find_wheel(NEWEST)))
    assert place.hashes() == stock
    return report


@pytest.fixture(scope="module")
def local(place: Place, adopted: dict[str, Any]) -> Iterator[ReleaseServer]:
    with place.server("local") as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def stock_digest() -> str:
    """The digest of the patch set alone."""
    return patch_set_digest(patches_folder(), load_lock(str(releases.LOCK)).get(NEWEST).patches)


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What one server answered, for the others to be held against."""
    return {}


def workers_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [worker for worker in report["workers"] if worker["counts"]]


def passed(report: dict[str, Any], mode: str, digest: str, names: list[str]) -> list[int]:
    """It is PASS by every witness, patched this way by these; the pids of both workers."""
    assert report["verdict"] == "PASS", report
    for witness in ("exec", "live", "attested"):
        assert by_witness(report, witness) == [values(CONTRACT)] * 2, witness
    wanted = {"active": True, "mode": mode, "patchset": digest, "local": names}
    assert [worker["hook"] for worker in workers_of(report)] == [wanted] * 2
    return [int(worker["pid"]) for worker in workers_of(report)]


def ran(text: str, name: str) -> set[int]:
    """The processes in which that edit ran."""
    return {int(pid) for pid in re.findall(rf"edited {re.escape(name)} runs in (\d+)", text)}


def attested(server: ReleaseServer) -> list[dict[str, str]]:
    """What each worker says it imported: file and sha256."""
    found = re.search(r"; run (\S+)", server.text())
    assert found
    records = sorted((Path(found.group(1)) / "workers").glob("*.json"))
    return [json.loads(record.read_text())["hook"]["imported"] for record in records]


def test_hand_edits_became_local_patches(adopted: dict[str, Any]) -> None:
    assert {one["file"]: one["name"] for one in adopted["patches"]} == NAMES


def test_local_patches_are_proven_named_and_in_effect(
    place: Place, local: ReleaseServer, said: dict[str, Any], stock_digest: str
) -> None:
    status = place.patches("status")
    assert (status["state"], status["mode"]) == ("pristine", "overlay")
    names = [one["name"] for one in status["local"]]
    assert sorted(names) == sorted(NAMES.values()) and status["digest"] != stock_digest
    pids = passed(place.release.verify(local), "overlay", status["digest"], names)
    for name in names:
        assert set(pids) <= ran(local.text(), name)
    assert f"local patches: {', '.join(names)}" in local.text()
    assert f"; hook overlay, local patches {', '.join(names)}" in local.text()
    # What each worker attests is the hash of what it runs: the copy, ours and the edit in one.
    (copies,) = {json.dumps(one, sort_keys=True) for one in attested(local)}
    imported = json.loads(copies)
    assert set(NAMES) <= set(imported) and len(imported) == 4
    (folder,) = (place.base / "cache" / "sglang-ext" / "overlay").iterdir()
    for file, sha256 in imported.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256
    assert b"sglang_ext" in (folder / OURS).read_bytes() and b"sglang_ext" not in (folder / OTHER).read_bytes()
    said["answers"] = answers(local)


def test_one_left_out_is_not_in_effect(place: Place, local: ReleaseServer, stock_digest: str) -> None:
    """In a dry run: the same processes started the same way, without weights."""
    whole = place.patches("status")["digest"]
    local.stop()
    with place.server("without", "--without", NAMES[OTHER], "--dry-run") as started:
        assert started.process is not None
        status = started.process.wait(timeout=START_LIMIT)
        text = started.text()
    assert status == 0, text[-4000:]
    assert f"hook overlay, local patches {NAMES[OURS]}\n" in text
    assert len(ran(text, NAMES[OURS])) >= 2 and not ran(text, NAMES[OTHER])
    found = re.search(r"patch set (\w{12}); run", text)
    assert found and found.group(1) not in (whole[:12], stock_digest[:12])


def test_a_name_that_is_none_starts_nothing(place: Place, adopted: dict[str, Any]) -> None:
    with place.server("slip", "--without", "srt.managers.schedular") as started:
        assert started.process is not None
        assert started.process.wait(timeout=60) == 2
        assert "local_patch_unknown: 'srt.managers.schedular' is no local patch" in started.text()


def test_a_tree_patched_in_place(place: Place, local: ReleaseServer, said: dict[str, Any]) -> None:
    """The same patches in the files themselves: the same digest, no copies, and its own name.

    In a Python that cannot have an import hook, which is what this is for.
    """
    local.stop()
    (place.site / "zz_no_hook.pth").write_text(NO_HOOK)
    with place.server("no-hook") as refused:
        assert refused.process is not None
        assert refused.process.wait(timeout=60) == 1 and "hook_not_armed: " in refused.text()
    whole = place.patches("status")["digest"]
    before = place.hashes()
    applied = place.patches("apply")
    assert (applied["done"], applied["digest"]) == ("applied", whole)
    checks = {one["check"]: one for one in place.ext("doctor", rc=None)["checks"]}
    assert "patched in place" in checks["upstream.files"]["message"] and checks["upstream.files"]["state"] == "ok"
    assert checks["upstream.mode"]["message"].endswith("by mode in_place")
    assert checks["interpreter.hook"]["state"] == checks["interpreter.child"]["state"] == "note"
    assert all(name in checks["upstream.local"]["seen"] for name in NAMES.values())
    with place.server("in-place") as server:
        server.wait_ready()
        names = [one["name"] for one in place.patches("status")["local"]]
        pids = passed(place.release.verify(server), "in_place", whole, names)
        for name in NAMES.values():
            assert set(pids) <= ran(server.text(), name)
        assert re.search(rf"sglang {re.escape(NEWEST)}, in_place, patch set {whole[:12]}", server.text())
        now = place.hashes()
        assert {file: now[file] for file in attested(server)[0]} == attested(server)[0] == attested(server)[1]
        assert answers(server) == said["answers"]
    assert place.patches("revert")["done"] == "reverted" and place.hashes() == before


def test_a_baked_wheel(
    tmp_path: Path, logs: Callable[[str], Path], models: dict[str, Path], said: dict[str, Any], stock_digest: str
) -> None:
    """Installed, it is proven by that name; the hook stays out of the way and writes no copies."""
    source = releases.find_wheel(NEWEST)
    made = cli("build-wheel", "--from", str(source), "--out", str(tmp_path), "--json")
    assert made.status == 0, made.err
    wheel = Path(made.report["wheel"])
    place = Place(releases.furnish(NEWEST, tmp_path / "env", wheel), tmp_path, logs, models["deepseek"])
    with place.server("baked") as server:
        server.wait_ready()
        passed(place.release.verify(server), "baked", stock_digest, [])
        assert attested(server) == [made.report["files"]] * 2
        assert server.get("/server_info")["version"] == f"{NEWEST}+ext.1"
        assert answers(server) == said["answers"]
    assert not (tmp_path / "cache" / "sglang-ext" / "overlay").exists()
    # Stock comes over it, as by pip: it is still patched, but not as it was, and that is said.
    for info in place.site.glob("sglang-*.dist-info"):
        shutil.rmtree(info)
    with zipfile.ZipFile(source) as archive:
        archive.extractall(place.site)
    checks = {one["check"]: one for one in place.ext("doctor", rc=None)["checks"]}
    assert checks["upstream.mode"]["state"] == "warn" and f"{NEWEST}+ext.1" in checks["upstream.mode"]["message"]
    with place.server("replaced") as started:
        started.wait(lambda: f"sglang {NEWEST}, overlay, patch set {stock_digest[:12]}" in started.text())
    assert f"upstream_replaced: the sglang in {place.site} was {NEWEST}+ext.1, from a baked wheel" in started.text()
    place.environment["SGLANG_EXT_MODE"] = "baked"
    with place.server("demanded") as refused:
        assert refused.process is not None
        assert refused.process.wait(timeout=60) == 1
        assert "mode_differs: SGLANG_EXT_MODE demands" in refused.text()
