"""Our options are taken out of the launch command line; everything else reaches upstream as it was."""

from __future__ import annotations

import pytest

from sglang_ext.delivery.options import OWN, launcher_parser, split, value_of


@pytest.mark.parametrize(
    ("argv", "ours", "theirs"),
    [
        ([], [], []),
        (["--tp", "8", "--model-path", "m"], [], ["--tp", "8", "--model-path", "m"]),
        (["--profile", "p", "--tp", "8"], ["--profile=p"], ["--tp", "8"]),
        (["--tp", "8", "--profile=p"], ["--profile=p"], ["--tp", "8"]),
        (
            ["--set", "A=1", "--tp", "2", "--set=B=2", "--dry-run", "--absent", "C"],
            ["--set=A=1", "--set=B=2", "--dry-run", "--absent=C"],
            ["--tp", "2"],
        ),
        (["--verify", "warn", "--run-dir", "/r"], ["--verify=warn", "--run-dir=/r"], []),
        # Only exact names are ours: an abbreviation is upstream's own.
        (["--prof", "p", "--dry", "--ver=x"], [], ["--prof", "p", "--dry", "--ver=x"]),
        (["--json-model-override-args", '{"a": 1}', "-h"], [], ["--json-model-override-args", '{"a": 1}', "-h"]),
    ],
)
def test_split(argv: list[str], ours: list[str], theirs: list[str]) -> None:
    assert split(argv) == (ours, theirs)


@pytest.mark.parametrize("name", [name for name, takes in OWN.items() if takes])
def test_a_missing_value_is_said(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs a value"):
        split(["--tp", "2", name])
    # Swallowing the next option would start something nobody asked for.
    with pytest.raises(ValueError, match=f"{name} needs a value, found --tp"):
        split([name, "--tp", "2"])


def test_the_parser_knows_every_name_split_takes_out() -> None:
    line = (
        "--profile p --set A=1 --set B=2 --absent C --verify off --run-dir /r --dry-run --accept conflict --nccl-log init "
        "--without a --without b --tp 2"
    )
    given, _ = split(line.split())
    options = launcher_parser("launch").parse_args(given)
    assert vars(options) == {
        "profile": "p",
        "sets": ["A=1", "B=2"],
        "absents": ["C"],
        "verify": "off",
        "run_dir": "/r",
        "accepted": ["conflict"],
        "nccl_log": "init",
        "without": ["a", "b"],
        "dry_run": True,
    }
    assert {s for a in launcher_parser("launch")._actions for s in a.option_strings} == {*OWN, "-h", "--help"}


def test_strict_is_the_default() -> None:
    options = launcher_parser("launch").parse_args([])
    assert (options.verify, options.dry_run, options.sets, options.run_dir) == ("strict", False, [], None)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "30000"),
        (["--port", "1"], "1"),
        (["--port=2"], "2"),
        (["--port", "1", "--tp", "2", "--port=3"], "3"),
        (["--port=3", "--port", "4"], "4"),
        (["--port"], "30000"),
        (["--ports", "1", "--port-x=2"], "30000"),
        (["--port="], ""),
        (["-p", "9"], "9"),
    ],
)
def test_value_of(argv: list[str], expected: str) -> None:
    assert value_of(argv, ("--port", "-p"), "30000") == expected
