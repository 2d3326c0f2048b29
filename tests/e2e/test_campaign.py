"""Campaigns on real servers: no draft against EAGLE-3 with the trained draft, and what is left when something is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sglang_ext.bench.campaigns.journal import finished_blocks
from tests.rig.environment import SERVING_FLAGS
from tests.rig.server import clean_environment, runs

from .conftest import NCCL, cli

CONSOLE = str(Path(sys.executable).with_name("sglang-ext"))
TOKENS = 480  # as many as the draft was trained on, nearly
SHARED = [
    *SERVING_FLAGS[:-2], "--tp", "2",
    # What SGLang would choose differently for a server that drafts.
    "--max-running-requests", "8", "--disable-overlap-schedule",
]  # fmt: skip
EAGLE = [
    "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2", "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "3",
]  # fmt: skip
ARM = '\n[[arm]]\nname = "eagle3"\ndraft = "{draft}"\narguments = ' + json.dumps(EAGLE) + "\n"
MADE_UP = ARM.replace("eagle3", "made-up", 1)
# Of every arm, as one has it: what an arm leaves open the shell decides. -1 is upstream's own default, which makes nothing up.
SIMULATED = 'environment = {{ SGLANG_SIMULATE_ACC_LEN = "{}" }}\n'.format
STOCK = '\n[[arm]]\nname = "stock"\npatches = false\n'


def suite(folder: Path, models: dict[str, Path], arm: str, under_test: list[str], **other: Any) -> Path:
    """A suite of the tiny Llama: the baseline, and ``arm``."""
    work = {"tokens": TOKENS, "runs": 2, "warmup_tokens": 16, "timeout_s": 120.0, **other.pop("workload", {})}
    campaign = {"blocks": 2, "control": True, "ready_timeout_s": 240.0, "under_test": under_test, **other}
    draft = f'draft = "{models["eagle3-llama"]}"\n' if "draft" in arm else ""
    text = (
        '[suite]\nname = "tiny"\nsummary = "Tiny Llama"\n'
        f'[paths]\nmodel = "{models["llama"]}"\n{draft}'
        f'[workload]\nprompt = "hello world the quick brown fox"\n{table(work)}'
        f"[campaign]\n{table(campaign)}"
        f"[server]\nset = {{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in NCCL.items())} }}\n"
        f"arguments = {json.dumps(['--model-path', '{model}', *SHARED])}\n"
        f'[[arm]]\nname = "plain"\nbaseline = true\n{arm}'
    )
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def table(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def launches(found: dict[str, Any], arm: str | None = None) -> list[dict[str, Any]]:
    every = [one for each in found["arms"] for one in each["launches"] if arm in (None, each["name"])]
    return sorted(every, key=lambda one: one["time"]["began"])


def log_of(out: Path, launch: dict[str, Any]) -> str:
    return (out / launch["server"]["log"]).read_text(errors="replace")


def test_no_draft_against_eagle3(models: dict[str, Path], tmp_path: Path) -> None:
    """Beside a stock arm, which is proven by what its workers hold, and one whose acceptance is made up, which is labelled."""
    out, kept = tmp_path / "campaign", tmp_path / "receipt.json"
    under_test = ["patches", "draft", "arguments.speculative_*", "environment.SGLANG_SIMULATE_ACC_LEN"]
    real = SIMULATED("-1")
    path = suite(tmp_path, models, ARM + real + MADE_UP + SIMULATED("2.0") + STOCK + real, under_test, control=False)
    path.write_text(path.read_text().replace("baseline = true\n", f"baseline = true\n{real}"))
    env = clean_environment(2, {"SGLANG_EXT_API_KEY": "e2e-hunter3"})
    done = run(env, path, "--out", str(out), "--json", str(kept))
    text = kept.read_text()
    found = json.loads(text)
    assert "e2e-hunter3" not in text + done.out + done.err
    # Two pairs decide little on a busy machine; what must hold is that every launch was sound, and that a verdict was reached.
    assert done.status == found["exit"] and found["state"] in ("VALID", "INCONCLUSIVE", "UNRECONCILED"), done.err
    made = launches(found)
    assert [(one["state"], one["reason"]) for one in made] == [("finished", None)] * 8
    assert [one["arm"] for one in made] == [name for block in found["plan"]["blocks"] for name in block]

    for one in made:
        before, after = one["verify"]["before"], one["verify"]["after"]
        assert before["verdict"] == after["verdict"] == "PASS", before["problems"]
        assert (before["run"] is None) == (one["arm"] == "stock")
        modes = {w["hook"]["mode"] for w in after["workers"] if w["counts"]}
        assert modes == {"none" if one["arm"] == "stock" else "overlay"}
        assert [run["tokens"] for run in one["runs"]] == [TOKENS, TOKENS] and all(run["valid"] for run in one["runs"])
        # Two clocks on a second of a busy machine may differ: then it is said. Not to be comparable they have no reason.
        agree, reconciled = one["reconciliation"], [run["reconciled"] for run in one["runs"]]
        assert (agree["method"], agree["windows"] > 0, None in reconciled) == ("log", True, False), agree
        assert agree["state"] == ("RECONCILED" if all(reconciled) else "UNRECONCILED")
        assert (agree["reason"] is None) == all(reconciled)
        assert not all(reconciled) or abs(agree["difference"]) <= agree["tolerance"]
        assert one["machine"]["gpus"] == [] and "gpus" in one["machine"]["unknown"] and one["machine"]["cpu"]["cores"]
        assert "Decode batch" in log_of(out, one) and one["simulated_acceptance"] is (one["arm"] == "made-up")
    # Greedy decoding: a draft changes the time and not the text; in float32 every launch says the same. What is made up is not
    # that draft's doing, and its text is another one.
    texts = {arm: {tuple(one["output_sha256"]) for one in launches(found, arm)} for arm in found["plan"]["blocks"][0]}
    assert len(texts["plain"]) == 1 and texts["plain"] == texts["eagle3"] == texts["stock"] != texts["made-up"]
    for told in ("outputs_differ: ", "made-up: acceptance was SIMULATED"):
        assert [note for note in found["notes"] if note.startswith(told)], found["notes"]

    def accepted(arm: str) -> list[float]:
        return [run["accept_length"] for one in launches(found, arm) for run in one["runs"]]

    assert all(2.8 <= length <= 3.0 for length in accepted("eagle3")), found  # the draft was trained on this text
    assert all(1.6 <= length <= 2.4 for length in accepted("made-up")), found
    assert set(accepted("plain")) == set(accepted("stock")) == {None}
    compared = next(one for one in found["comparisons"] if one["arm"] == "eagle3")
    out_of_it = {one["block"] for one in found["excluded"] if one["arm"] == "eagle3"}
    assert compared["blocks"] == [block for block in (0, 1) if block not in out_of_it]
    if economics := compared["economics"]:
        assert economics["dln_rate"] == pytest.approx(economics["dln_accept"] - economics["dln_step"], abs=1e-9)
    assert economics or out_of_it

    effective = launches(found, "eagle3")[0]["in_effect"]["effective"]
    assert (effective["speculative_num_steps"], effective["speculative_num_draft_tokens"]) == (2, 3)
    assert (out / "report.html").stat().st_size > 10_000
    assert cli("bench", "report", str(kept)).out.splitlines()[0] in done.out
    assert nothing_left()

    # It is there already: the same command judges it again, and starts nothing.
    again = run(env, path, "--out", str(out))
    assert again.status == done.status and "waiting until it serves" not in again.err
    # Repeating it elsewhere is refused before anything starts, where something has changed.
    path.write_text(path.read_text().replace("runs = 2", "runs = 1"))
    refused = cli("bench", "rerun", str(kept), "--out", str(tmp_path / "again"), env=env)
    assert (
        refused.status == 1
        and "[workload] runs: expected 2, found 1" in refused.out
        and not (tmp_path / "again").exists()
    )


# ---- killed


@pytest.fixture
def bystander() -> Iterator[psutil.Popen]:
    """A process like a worker in all but its parent: it must survive."""
    process = psutil.Popen(["bash", "-c", "exec -a sglang::bystander sleep 900"])
    yield process
    alive = process.poll() is None
    process.kill()
    process.wait()
    assert alive, "a process that was not ours was ended"


class Harness:
    """`bench run` in the background."""

    def __init__(self, path: Path, out: Path) -> None:
        self.out = out
        self.told = out.with_name(f"told-{time.monotonic_ns()}")
        with self.told.open("wb") as told:
            self.process = psutil.Popen(
                [CONSOLE, "bench", "run", str(path), "--out", str(out)],
                env=clean_environment(2, {}),
                stdout=told,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.told.read_text(errors="replace")

    def until(self, true: Callable[[], Any], limit: float = 240.0) -> None:
        deadline = time.monotonic() + limit
        while not true():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def until_it_says(self, pattern: str, times: int = 1) -> None:
        self.until(lambda: len(re.findall(pattern, self.text())) >= times)

    def family(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)

    def kept(self) -> set[str]:
        return {path.name for path in self.out.glob("launch-*")}


def run(env: dict[str, str], path: Path, *words: str) -> Any:
    from .conftest import run as run_command

    return run_command(CONSOLE, "bench", "run", str(path), *words, env=env, timeout=900)


def gone(processes: list[psutil.Process], limit: float = 30.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=limit)
    left = [one for one in alive if runs(one)]
    assert left == [], left


def nothing_left() -> bool:
    titles = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    return not [
        title
        for title in titles
        if title.startswith(("sglang::scheduler", "sglang::detokenizer")) or "bench.campaigns.keeper" in title
    ]


def test_killed_anywhere_it_goes_on(models: dict[str, Path], tmp_path: Path, bystander: psutil.Popen) -> None:
    out = tmp_path / "campaign"
    long = {"tokens": 1000, "runs": 1, "warmup_runs": 0}
    path = suite(tmp_path, models, ARM, ["draft", "arguments.speculative_*"], control=False, workload=long)

    # The harness, while a server imports.
    one = Harness(path, out)
    one.until(lambda: sum("--multiprocessing-fork" in " ".join(words(p)) for p in one.family()) >= 2)
    family = one.family()
    one.process.kill()
    one.process.wait()
    gone(family)
    assert one.kept() == set()

    # The client, which is the harness, in the middle of a run.
    two = Harness(path, out)
    two.until_it_says("run 1 of 1")
    family = two.family()
    assert len(family) >= 6  # keeper, launcher, guardian, upstream, two schedulers, detokenizer, ...
    two.process.kill()
    two.process.wait()
    gone(family)
    assert two.kept() == set()

    # A worker, in the middle of a run: the launch fails, is repeated, and its block comes to an end.
    three = Harness(path, out)
    three.until_it_says("run 1 of 1")
    next(p for p in three.family() if " ".join(words(p)).startswith("sglang::scheduler")).kill()
    three.until(lambda: len(three.kept()) == 3, limit=600)
    first = {name: (out / name).read_bytes() for name in three.kept()}
    made = sorted(map(json.loads, first.values()), key=lambda launch: launch["time"]["began"])
    assert [(one["block"], one["order"], one["attempt"], one["state"]) for one in made] == [
        (0, 0, 0, "failed"),
        (0, 0, 1, "finished"),
        (0, 1, 0, "finished"),
    ], three.text()
    assert made[0]["reason"].partition(":")[0] in ENDS, made[0]["reason"]

    # SIGTERM, while the next one starts: nothing is left either, it says how to go on, and the finished block is kept as it was.
    three.until_it_says("waiting until it serves", 4)
    family = three.family()
    three.process.send_signal(signal.SIGTERM)
    assert three.process.wait(timeout=120) == -signal.SIGTERM, three.text()
    gone(family)
    assert f"variables, with: sglang-ext bench run {path} --out {out}" in three.text()
    assert first == {name: (out / name).read_bytes() for name in first} and nothing_left()
    (abandoned,) = three.kept() - first.keys()
    assert json.loads((out / abandoned).read_text())["state"] == "abandoned"
    plan = json.loads((out / "campaign.json").read_text())["plan"]
    assert sorted(finished_blocks(plan, made)) == [0]

    # And it does go on, with the second block.
    four = Harness(path, out)
    four.until_it_says("going on: 1 of 2 blocks are finished")
    four.until_it_says("block 2 of 2")
    four.process.send_signal(signal.SIGINT)
    assert four.process.wait(timeout=120) == 130, four.text()
    assert nothing_left()


ENDS = ("server_ended", "connection_lost", "run_timeout", "server_error")


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_another_server_on_the_host_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    """A process titled as a worker, below a Python: it is a server for whoever looks, and holds what an arm would need."""
    path = suite(tmp_path, models, STOCK, ["patches"], control=False)
    code = "import subprocess; subprocess.run(['bash', '-c', 'exec -a sglang::scheduler_TP0 sleep 300'])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as other:
        try:
            deadline = time.monotonic() + 20
            while not any("sglang::scheduler_TP0" in words(p) for p in psutil.Process(other.pid).children()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            done = run(clean_environment(2, {}), path, "--out", str(tmp_path / "c"))
        finally:
            os.killpg(other.pid, signal.SIGKILL)
    assert done.status == 1 and "INVALID: server_left_over: " in done.out, done.out + done.err
    assert f"pid {other.pid}" in done.out and not list((tmp_path / "c" / "logs").iterdir())
