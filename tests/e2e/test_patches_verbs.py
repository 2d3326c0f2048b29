"""`sglang-ext patches` on real releases, the oldest and the newest: ten scattered edits adopted, put in, left out, taken out.

As a user does it, by the command line, on a tree that is unpacked from upstream's wheel or installed by pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.tree import TreeError
from sglang_ext.patchset.wheels import fetched

ROOT = Path(__file__).resolve().parents[2]
LOCK = load_lock(ROOT / "patches" / "upstream.toml")
OURS = ("sglang/srt/entrypoints/engine.py", "sglang/srt/managers/scheduler.py", "sglang/srt/models/deepseek_v2.py")
EDITED = (
    *OURS,
    "sglang/bench_serving.py",
    "sglang/launch_server.py",
    "sglang/srt/layers/linear.py",
    "sglang/srt/managers/tokenizer_manager.py",
    "sglang/srt/models/llama.py",
    "sglang/srt/server_args.py",
    "sglang/srt/utils/__init__.py",
)
pytestmark = pytest.mark.e2e


def wheel_of(version: str) -> Path:
    """A wheel of the release, kept where tools/check_patches.py keeps them."""
    release = LOCK.get(version)
    name = next(
        name
        for name in sorted(release.wheels)
        if name.endswith(("py3-none-any.whl", "cp311-manylinux_2_34_x86_64.whl"))
    )
    before = os.environ.get("SGLANG_EXT_CACHE_DIR")
    os.environ["SGLANG_EXT_CACHE_DIR"] = str(ROOT / ".rig")
    try:
        return Path(next(iter(fetched(release, [name], print))))
    except TreeError as error:
        pytest.skip(str(error))
    finally:
        if before is None:
            del os.environ["SGLANG_EXT_CACHE_DIR"]
        else:
            os.environ["SGLANG_EXT_CACHE_DIR"] = before


class Case:
    """A tree of a release, its wheel, a folder of local patches."""

    def __init__(self, version: str, base: Path) -> None:
        self.version, self.root, self.local, self.wheel = version, base / "site", base / "local", wheel_of(version)
        self.cache = base / "cache"
        with zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(self.root)

    def patches(self, *words: str, rc: int = 0, root: Path | None = None, **variables: str) -> dict[str, Any]:
        """Run the verb; its report."""
        environment = {
            **os.environ, "SGLANG_EXT_LOCAL_PATCHES": str(self.local), "SGLANG_EXT_CACHE_DIR": str(self.cache), **variables,
        }  # fmt: skip
        command = [sys.executable, "-m", "sglang_ext", "patches", *words, "--json", "-"]
        if words[0] != "check":
            command += ["--root", str(root or self.root)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == rc, done.stderr
        return dict(json.loads(done.stdout))

    def snapshot(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def edit(self) -> dict[str, bytes]:
        """Ten files, each edited in the middle and at its end, as people leave them."""
        for number, name in enumerate(EDITED):
            path = self.root / name
            lines = path.read_bytes().split(b"\n")
            tops = [at for at, line in enumerate(lines) if line.startswith((b"def ", b"class ", b"import ", b"from "))]
            tops = [at for at in tops if b"__future__" not in lines[at] and not lines[at - 1].startswith(b"@")]
            lines[tops[len(tops) // 2] : tops[len(tops) // 2]] = [b"EDIT_%d = 1" % number, b""]
            path.write_bytes(b"\n".join([*lines[:-1], b"EDIT_END = %d" % number, b""]))
        return {name: (self.root / name).read_bytes() for name in EDITED}


@pytest.fixture(params=["0.5.9", "0.5.23"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(request.param, tmp_path)


def test_ten_edits_adopted_put_in_left_out_one_by_one_and_taken_out(case: Case) -> None:
    stock = case.snapshot()
    edited = case.edit()
    status = case.patches("status", rc=1)
    assert status["state"] == "edited" and sorted(status["edited"]) == sorted(EDITED)

    adopted = case.patches("adopt", "--from", str(case.wheel))
    assert sorted(one["file"] for one in adopted["patches"]) == sorted(EDITED)
    assert case.snapshot() == stock
    assert case.patches("revert")["done"] == "nothing" and case.snapshot() == stock
    status = case.patches("status")
    assert status["state"] == "pristine" and [one["fits"] for one in status["local"]] == [True] * 10

    whole = case.patches("apply")
    applied = case.snapshot()
    for name in EDITED:
        assert (applied[name] == edited[name]) == (name not in OURS), name
    assert case.patches("apply")["done"] == "already" and case.snapshot() == applied
    assert case.patches("status")["state"] == "patched"

    digests = {whole["digest"]}
    for one in adopted["patches"]:
        less = case.patches("apply", "--without", one["name"])
        digests.add(less["digest"])
        now = case.snapshot()
        wrong = [name for name in EDITED if (now[name] == applied[name]) != (name != one["file"])]
        assert wrong == []
        if one["file"] not in OURS:
            assert now[one["file"]] == stock[one["file"]]
        assert (b"EDIT_" in now[one["file"]]) == (b"EDIT_" in stock[one["file"]])
    assert len(digests) == 11

    assert case.patches("apply")["digest"] == whole["digest"] and case.snapshot() == applied
    assert case.patches("revert")["done"] == "reverted" and case.snapshot() == stock


def test_check_of_one_release(case: Case) -> None:
    case.local.mkdir()
    (case.local / "a.patch").write_text(
        "--- a/sglang/srt/server_args.py\n+++ b/sglang/srt/server_args.py\n@@ -1,2 +1,2 @@\n-no such line\n+x\n y\n"
    )
    folder = case.wheel.parent
    missing = [name for name in LOCK.get(case.version).wheels if not (folder / name).exists()]
    report = case.patches("check", "--release", case.version, "--wheels", str(folder), rc=2 if missing else 0)
    if missing:
        assert report["problems"][0]["code"] == "wheel_missing"
    else:
        assert report["faults"] == [] and report["wheels"][0]["ok"] and not report["wheels"][0]["local"][0]["fits"]


def test_what_is_refused(case: Case, tmp_path: Path) -> None:
    assert case.patches("status", rc=3, root=tmp_path / "none")["problems"][0]["code"] == "sglang_missing"
    assert case.patches("apply", "--without", "nix", rc=2)["problems"][0]["code"] == "local_patch_unknown"
    (case.root / EDITED[0]).write_bytes(b"")
    assert case.patches("apply", rc=1)["problems"][0]["code"] == "upstream_file_changed"
    assert case.patches("check", "--release", "0.0.1", rc=2)["problems"][0]["code"] == "unsupported_upstream"


def test_pip_installs_and_removes_what_was_patched_in_place(tmp_path: Path) -> None:
    """RECORD lists all that we leave, so pip leaves nothing of it; in a repository whose git is of no use."""
    case = Case("0.5.9", tmp_path)
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"

    def pip(*words: str) -> None:
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "-q", *words], check=True)

    pip("install", "--no-deps", "--no-index", "--no-compile", str(case.wheel))
    (root,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    case.root = root
    before = case.snapshot()
    assert case.patches("apply", root=root)["done"] == "applied"
    assert case.patches("revert", root=root)["done"] == "reverted" and case.snapshot() == before
    assert case.patches("apply", root=root)["done"] == "applied"
    pip("install", "--no-deps", "--no-index", "--no-compile", "--force-reinstall", str(case.wheel))
    now = case.snapshot()
    assert {name: data for name, data in now.items() if name.startswith("sglang/")} == {
        name: data for name, data in before.items() if name.startswith("sglang/")
    }
    assert case.patches("status", root=root)["state"] == "pristine"
    assert case.patches("apply", root=root)["done"] == "applied"
    newer = wheel_of("0.5.23")
    pip("install", "-U", "--no-deps", "--no-index", "--no-compile", "--find-links", str(newer.parent), "sglang")
    assert [path.name for path in root.iterdir() if path.name.startswith("sglang-")] == ["sglang-0.5.23.dist-info"]
    status = case.patches("status", root=root)
    assert (status["upstream"], status["state"], status["added"]) == ("0.5.23", "pristine", [])
    assert case.patches("apply", root=root)["done"] == "applied"
    pip("uninstall", "-y", "sglang")
    assert [path.name for path in root.iterdir() if path.name.startswith("sglang")] == []
