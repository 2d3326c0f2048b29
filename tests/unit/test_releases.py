"""The releases we support: the lock, the dependency, the page and the patches say the same."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from sglang_ext.patchset.header import expected_seams, lint_header
from sglang_ext.patchset.lock import Lock, load_lock
from sglang_ext.patchset.releases_page import stamp
from sglang_ext.patchset.series import load_patch_set, patch_names
from sglang_ext.patchset.series_lint import lint_series, listed_files, unused

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"
# Every final and post release from the first to the last, as the index has them (pip index versions sglang).
RELEASES = [
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
]
PRE_RELEASES = ["0.5.10rc0"]  # between them: pip leaves one that is installed alone, unless it is excluded
SEAMS = {
    "sglang/srt/entrypoints/engine.py": {("_set_envs_and_config", "keeps_contract")},
    "sglang/srt/managers/scheduler.py": {
        ("run_scheduler_process", "worker_entry"),
        ("Scheduler.__init__", "scheduler_built"),
    },
    "sglang/srt/models/deepseek_v2.py": {("DeepseekV2ForCausalLM.__init__", "states_shape")},
}


def lock() -> Lock:
    return load_lock(PATCHES / "upstream.toml")


def test_the_lock_holds_every_release() -> None:
    assert list(lock().supported()) == RELEASES


def test_each_release_is_locked_whole() -> None:
    for release in lock().releases:
        assert set(release.files) == set(SEAMS), release.version
        assert all(name.startswith(f"sglang-{release.version}-") for name in release.wheels)
        tags = {name.removesuffix(".whl").split("-", 2)[2] for name in release.wheels}
        binary = {
            f"cp3{minor}-cp3{minor}-manylinux_2_34_{machine}"
            for minor in (11, 12, 13)
            for machine in ("x86_64", "aarch64")
        }
        assert tags in ({"py3-none-any"}, binary), release.version
        assert (
            len(
                {entry.pristine for entry in release.files.values()}
                | {entry.patched for entry in release.files.values()}
            )
            == 6
        )


def test_the_lock_is_of_these_patches() -> None:
    assert lint_series(PATCHES) == []
    for release in lock().releases:
        patch_set = load_patch_set(PATCHES, release.patches)
        assert patch_set.names == patch_names(PATCHES, release.version), release.version
        assert patch_set.digest == release.patchset, release.version
        found = {target: {s for p in patch_set.of(target) for s in expected_seams(p)} for target in patch_set.targets}
        assert found == SEAMS, release.version
    assert list(unused(PATCHES, {name for release in lock().releases for name in release.patches})) == []


def test_every_variant_is_well_labelled() -> None:
    patches = load_patch_set(PATCHES, listed_files(PATCHES)).patches
    assert [fault for patch in patches for fault in lint_header(patch)] == []


def test_the_dependency_is_the_range_of_the_lock() -> None:
    """pip takes the newest of it, leaves an installed one alone, and never brings one that would be refused."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [found for found in map(Requirement, project["dependencies"]) if found.name == "sglang"]
    excluded = {f"!={version}" for version in PRE_RELEASES}
    assert set(map(str, wanted.specifier)) == {f">={RELEASES[0]}", f"<={RELEASES[-1]}", *excluded}
    assert all(wanted.specifier.contains(version) for version in RELEASES)
    assert wanted.specifier.contains(f"{RELEASES[-1]}+ext.1")  # a baked wheel
    for other in ("0.5.8.post1", "0.5.24", *PRE_RELEASES):
        assert not wanted.specifier.contains(other, prereleases=True), other


def test_the_page_has_every_release_and_file() -> None:
    text = (ROOT / "docs" / "releases.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| 0.")]
    assert [row[0] for row in reversed(rows)] == RELEASES
    for row, release in zip(reversed(rows), lock().releases, strict=True):
        assert int(row[1]) == len(release.wheels)
        variants = [name.split("/")[1].removesuffix(".patch") for name in release.patches]
        assert [cell.split(" (")[0] for cell in row[2:5]] == variants, release.version
        assert row[5:] == ["3 of 3", "4 of 4"], release.version
    assert stamp(lock()) in text


def test_the_check_needs_no_wheel() -> None:
    tool = ROOT / "tools" / "check_patches.py"
    done = subprocess.run([sys.executable, str(tool)], capture_output=True, text=True, check=False)
    assert (done.returncode, f"releases locked: {len(RELEASES)}" in done.stdout) == (0, True), done
