"""The other ways in: `sglang serve` after pip install, a plain checkout on PYTHONPATH, a dry run, every upstream flag."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from sglang_ext.delivery.options import OWN, split
from tests.rig.environment import RIG
from tests.rig.server import Server, clean_environment

from .conftest import CONTRACT, NCCL, ROOT, by_witness, cli, run, sets, values


def test_sglang_serve_runs_patched_and_warns_only(models: dict[str, Path], logs: Callable[[str], Path]) -> None:
    """No launcher: the contract is the shell's NCCL_*, decided at the first import of sglang."""
    serve = (str(Path(sys.executable).with_name("sglang")), "serve")
    environment = {**CONTRACT, "NCCL_FUTURE_KNOB": "7"}
    with Server(logs("serve"), start=serve, model=models["deepseek"], environment=environment) as server:
        server.wait_ready()
        done = cli("verify-env", "--json")
        report = done.report
        assert (done.status, report["verdict"]) == (0, "PASS"), done.out
        wanted = {**NCCL, "NCCL_FUTURE_KNOB": "7"}
        assert {n: v["source"] for n, v in report["contract"]["variables"].items()} == dict.fromkeys(wanted, "shell")
        for witness in ("exec", "live", "attested"):
            assert by_witness(report, witness) == [values(wanted)] * 2, witness
        assert {w["hook"]["mode"] for w in report["workers"] if w["counts"]} == {"overlay"}
        # Nobody demanded this one, so upstream's own assignment stands, and is named when asked for.
        done = cli("verify-env", *sets(CONTRACT), "--json")
        assert {p["code"] for p in done.report["problems"] if p["severity"] == "fail"} == {"overwritten"}


def bare_python(folder: Path) -> str:
    """A Python that has everything of this one's site-packages but its .pth files: nothing of ours is armed there."""
    done = run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    assert done.status == 0, done.err
    site = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    inner = next((folder / "lib").glob("python3*/site-packages"))
    (inner / "everything.pth").write_text(f"{site}\n")
    return str(folder / "bin" / "python")


def test_a_plain_checkout_on_pythonpath(models: dict[str, Path], logs: Callable[[str], Path], tmp_path: Path) -> None:
    """Armed by sitecustomize/, which hands on to the user's own; a dry run with the same processes, without weights."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = 'ran'\n")
    path = os.pathsep.join(map(str, (ROOT / "sitecustomize", RIG, tmp_path / "theirs")))
    python = bare_python(tmp_path / "venv")
    environment = clean_environment(2, {"PYTHONPATH": path})
    chained = run(
        python, "-c", "import os, sitecustomize; print(os.environ['THEIRS'], sitecustomize.__file__)", env=environment
    )
    assert chained.out.split() == ["ran", str(tmp_path / "theirs" / "sitecustomize.py")]
    with Server(
        logs("checkout"),
        options=["--dry-run", *sets(CONTRACT)],
        model=models["deepseek"],
        environment={"PYTHONPATH": path},
        python=python,
    ) as server:
        assert server.process.wait(timeout=240) == 0, server.text()[-3000:]
        server.wait_gone(10.0)
        assert "PASS: 2 of 2 workers hold the contract (4 variables); hook overlay" in server.text()
        assert "Load weight" not in server.text()


def test_interpreter_flags_that_lose_the_hook_are_refused(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "venv")
    environment = clean_environment(1, {"PYTHONPATH": f"{ROOT / 'sitecustomize'}{os.pathsep}{ROOT}"})
    for flag, code in (("-E", "hook_not_armed"), ("-I", "hook_not_armed")):
        done = run(python, flag, "-m", "sglang_ext.launch", "--model-path", "x", env=environment)
        assert done.status == 1, (flag, done.err)
        assert code in done.err and "drop the flag" in done.err
    done = run(sys.executable, "-S", "-c", "import sys; print(sys.flags.no_site)", env=environment)
    assert done.out == "1\n"
    done = run(python, "-S", "-m", "sglang_ext.launch", "--model-path", "x", env=environment)
    assert done.status == 1
    assert "hook_not_armed" in done.err and "drop -S" in done.err


def test_every_upstream_option_passes_untouched() -> None:
    """All options of the installed parser, each with a value where it takes one, are handed on word for word."""
    code = (
        "import argparse, json, sys\n"
        "from sglang.srt.server_args import ServerArgs\n"
        "parser = argparse.ArgumentParser()\n"
        "ServerArgs.add_cli_args(parser)\n"
        "print(json.dumps([[a.option_strings, a.nargs == 0] for a in parser._actions if a.option_strings]))\n"
    )
    done = run(sys.executable, "-c", code, env=clean_environment(1, {}))
    assert done.status == 0, done.err[-2000:]
    import json

    actions = json.loads(done.out.splitlines()[-1])
    assert len(actions) > 500
    spellings = [name for names, _ in actions for name in names]
    assert not set(spellings) & set(OWN)
    argv = []
    for names, bare in actions:
        for name in names:
            argv += [name] if bare else [name, "--value-that-looks-like-an-option", f"{name}=1"]
    mixed = ["--set", "NCCL_PROTO=LL", *argv, "--dry-run"]
    assert split(mixed) == (["--set=NCCL_PROTO=LL", "--dry-run"], argv)
