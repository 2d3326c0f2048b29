"""`sglang-ext doctor` in the real environment: all is well there, and a fault that is made shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Done, cli, run

OTHERS = ("SGLANG_", "NCCL_", "PYTHON", "LD_", "SUDO_")
# What is the machine's and not the environment's: processes of others, and what this user may look at.
MACHINE = ("leftovers.", "sight.memory", "sight.proc")


def shell(**more: str) -> dict[str, str]:
    """A shell that holds nothing doctor would speak of; the tests' private places stay."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)} | more


def states(report: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in report["checks"]:
        found.setdefault(one["check"], []).append(one["state"])
    return found


def examined(*words: str, cwd: str = "/", **more: str) -> Done:
    return run(sys.executable, *words, "-m", "sglang_ext", "doctor", "--json", env=shell(**more), cwd=cwd)


def test_all_is_well_in_a_good_environment() -> None:
    done = cli("doctor", "--json", env=shell())
    assert (done.status, done.err) == (0, ""), done.out
    report = done.report
    assert report["schema"] == "sglang-ext/doctor/1" and report["exit"] == 0
    own = {name: found for name, found in states(report).items() if not name.startswith(MACHINE)}
    assert {state for found in own.values() for state in found} == {"ok"}, own
    assert not [one for one in report["checks"] if one["state"] in ("fail", "unknown")]
    rests_on = {one["check"]: "\n".join([one["message"], *one["seen"]]) for one in report["checks"]}
    assert "sglang 0.5.23" in rests_on["packages.sglang"]
    assert "sglang/srt/managers/scheduler.py" in rests_on["upstream.files"]
    assert "sglang_ext.pth (ours)" in rests_on["startup.pth"]
    assert "nvidia-nccl-" in rests_on["nccl.library"]


def test_the_table_for_people() -> None:
    done = cli("doctor", env=shell())
    assert (done.status, done.err) == (0, "")
    assert "interpreter.child" in done.out and "nothing stands in the way of a launch" in done.out.splitlines()[-1]
    assert "\033" not in done.out
    assert "sglang_ext.pth (ours)" in cli("doctor", "--verbose", env=shell()).out


def test_faults_of_the_shell() -> None:
    done = cli("doctor", "--json", env=shell(SGLANG_EXT="0", NCCL_P2P_LEVEL="sys", LD_PRELOAD="", SUDO_USER="me"))
    found = states(done.report)
    assert (done.status, done.err) == (1, "")
    assert found["sight.switch"] == ["fail"] and "fail" in found["nccl.variables"] and found["sight.sudo"] == ["note"]


@pytest.mark.parametrize("flag", ["-I", "-E", "-s", "-P"])
def test_flags_that_keep_the_hook(flag: str) -> None:
    done = examined(flag)
    found = states(done.report)
    assert (done.status, done.err) == (0, ""), done.out
    assert found["interpreter.flags"] == ["note"] and found["interpreter.child"] == ["ok"]


def test_a_scratch_copy_in_the_folder_a_server_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("raise SystemExit('imported')")
    done = examined(cwd=str(tmp_path))
    found = states(done.report)
    assert (done.status, found["packages.shadow"], found["upstream.files"]) == (1, ["fail"], ["fail"])
    # The console script tells the same: a server is started with -m, whatever doctor is started with.
    script = run(str(Path(sys.executable).with_name("sglang-ext")), "doctor", "--json", env=shell(), cwd=str(tmp_path))
    assert (script.status, states(script.report)["packages.shadow"]) == (1, ["fail"])
    assert examined("-P", cwd=str(tmp_path)).status == 0


def test_nothing_is_written() -> None:
    cache = Path(os.environ["XDG_CACHE_HOME"])
    runs = Path(os.environ["XDG_RUNTIME_DIR"])
    before = sorted(map(str, (*cache.rglob("*"), *runs.rglob("*"))))
    assert cli("doctor", env=shell()).status == 0
    assert sorted(map(str, (*cache.rglob("*"), *runs.rglob("*")))) == before
