"""Suites with arms as text, in parts that a test puts together; and how a test reads one, or a shipped one."""

from __future__ import annotations

from pathlib import Path

from sglang_ext.bench.suites.suite import Arm, Suite, parse_suite

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
HEAD = '[suite]\nname = "s"\nsummary = "S"\n'
WORK = '[workload]\nprompt = "hello"\n'
CAMPAIGN = '[campaign]\nunder_test = ["arguments.tp_size"]\n'
SERVER = '[server]\narguments = ["--model-path", "m"]\n'
ONE = '[[arm]]\nname = "one"\nbaseline = true\narguments = ["--tp", "1"]\n'
TWO = '[[arm]]\nname = "two"\narguments = ["--tp=2"]\n'
GOOD = HEAD + WORK + CAMPAIGN + SERVER + ONE + TWO
RUNNING = "".join(f'[[arm]]\nname = "r{port}"\naddress = "http://127.0.0.1:{port}"\n' for port in (1, 2))
RUNNING = RUNNING.replace('name = "r1"', 'name = "r1"\nbaseline = true')


def parse(text: str, path: str = "s.toml") -> Suite:
    return parse_suite(text.encode(), path)


def filled(name: str) -> Suite:
    """A shipped suite, with its [paths] filled in where it leaves that to the user."""
    text = (BENCHMARKS / name).read_text()
    text = text.replace('model = ""', 'model = "/models/m"').replace('draft = ""', 'draft = "/models/d"')
    return parse(text, str(BENCHMARKS / name))


def arm(suite: Suite, name: str) -> Arm:
    (found,) = (one for one in suite.arms if one.name == name)
    return found
