"""`build-wheel`, with pip against a folder of wheels: one file is made, or one sentence says why and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sglang_ext import __version__, build_wheel
from sglang_ext.cli import main
from sglang_ext.patchset.lock import Lock, Release, dump_lock
from tests.unit.small_wheel import BAKED, FILE, ONE, PATCHED, VERSION, Case, case, sha256, wheel


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    made = case(tmp_path / "patches", wheel())
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / FILE).write_bytes(made.data)
    monkeypatch.setattr(build_wheel, "patches_folder", lambda: str(made.patches))
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "index"), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.chdir(tmp_path)
    return made


THERE = ("--platform", "manylinux_2_34_x86_64", "--python-version", "3.11")


@pytest.mark.e2e  # a real pip
def test_pip_fetches_it_by_the_users_settings(place: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build-wheel", *THERE, "--out", "dist", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    made = Path("dist", BAKED)
    assert made.read_bytes() == place.bake() and list(Path("dist").iterdir()) == [made]
    assert report == {
        "schema": "sglang-ext/build-wheel/1",
        "wheel": str(made),
        "sha256": sha256(place.bake()),
        "version": f"{VERSION}+ext.1",
        "from": {"wheel": FILE, "sha256": sha256(place.data)},
        "requires": f"sglang-ext=={__version__}",
        "patchset": place.release.patchset,
        "patches": ["one.patch", "two.patch"],
        "files": {target: sha256(data) for target, data in PATCHED.items()},
    }


def test_a_wheel_at_hand(place: Case, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o027)
    try:
        assert main(["build-wheel", "--from", f"index/{FILE}", "--upstream", VERSION, "--revision", "3"]) == 0
    finally:
        os.umask(before)
    made = Path(f"sglang-{VERSION}+ext.3-cp311-cp311-manylinux_2_34_x86_64.whl")
    assert made.read_bytes() == place.bake(3) and made.stat().st_mode & 0o777 == 0o640
    told = capsys.readouterr()
    assert told.out.startswith(f"./{made}  sha256 ") and ONE in told.out and told.err == ""


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status and the one sentence, its code in front."""
    status = main(["build-wheel", *words])
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if "fetching" not in line]
    assert told.out == "" and len(lines) == 1 and lines[0].startswith("sglang-ext: ")
    assert not list(Path.cwd().rglob("*.part")) and not list(Path.cwd().rglob("*+ext*"))
    return status, lines[0].removeprefix("sglang-ext: ")


def test_what_the_verb_refuses(place: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def case_of(*words: str) -> tuple[int, str]:
        status, text = refused(words, capsys)
        return status, text.partition(":")[0]

    at_hand = f"index/{FILE}"
    assert case_of("--upstream", "9.9.2") == (2, "unsupported_upstream")
    assert case_of("--from", "index/none.whl") == (2, "wheel_unreadable")
    assert case_of("--from", "index") == (2, "wheel_unreadable")
    (tmp_path / "other.whl").write_bytes(place.data)
    assert case_of("--from", "other.whl") == (1, "wheel_not_locked")
    assert case_of("--from", at_hand, "--out", at_hand) == (2, "output_unusable")
    assert case_of("--from", at_hand, "--platform", "any")[0] == 2
    assert case_of("--platform", "win_amd64") == (3, "wheel_not_fetched")
    (tmp_path / at_hand).write_bytes(place.data + b"\0")
    assert case_of("--from", at_hand) == (1, "wheel_changed")
    (place.patches / "one.patch").write_text("no patch\n")
    (tmp_path / at_hand).write_bytes(place.data)
    assert case_of("--from", at_hand) == (1, "patch_set_broken")
    (place.patches / "upstream.toml").write_text("no lock")
    assert case_of("--from", at_hand) == (1, "patch_set_broken")


def test_another_release_than_named(place: Case, capsys: pytest.CaptureFixture[str]) -> None:
    other = Release("9.9.2", place.release.patchset, {"sglang-9.9.2-py3-none-any.whl": "0" * 64}, place.release.files)
    (place.patches / "upstream.toml").write_text(dump_lock(Lock([place.release, other])))
    status, text = refused(["--upstream", "9.9.2", "--from", f"index/{FILE}"], capsys)
    assert status == 2 and text.startswith("wheel_other_release: ") and VERSION in text and "9.9.2" in text


def test_nothing_is_overwritten(place: Case, capsys: pytest.CaptureFixture[str]) -> None:
    Path(BAKED).symlink_to("nowhere")
    assert main(["build-wheel", "--from", f"index/{FILE}"]) == 2
    assert "output_unusable" in capsys.readouterr().err
    assert Path(BAKED).is_symlink() and not Path("nowhere").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(place: Case, capsys: pytest.CaptureFixture[str]) -> None:
    Path("dist").mkdir(mode=0o500)
    status, text = refused(["--from", f"index/{FILE}", "--out", "dist"], capsys)
    assert status == 2 and text.startswith("output_unusable: folder dist")


def test_a_full_disk_leaves_nothing(
    place: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(target: str, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    status, text = refused(["--from", f"index/{FILE}"], capsys)
    assert status == 2 and "No space left" in text


@pytest.mark.parametrize("text", ["0", "-1", "01", "1.0", "x", "", "²"])
def test_a_revision_is_a_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["build-wheel", f"--revision={text}"])
    assert caught.value.code == 2 and "--revision" in capsys.readouterr().err


def test_the_hook_does_not_load_the_builder() -> None:
    code = "import sys, sglang_ext.patchset.overlay; print([n for n in sys.modules if 'wheel' in n or 'baked' in n])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
