"""The launcher's own options, taken out of a command line whose other words belong to upstream and are not touched."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sglang_ext.console import Help, given
from sglang_ext.quick import Any

# name -> does it take a value; upstream's parser (sglang 0.5.23, 546 options) uses none of these names
OWN = {
    "--profile": True,
    "--set": True,
    "--absent": True,
    "--verify": True,
    "--run-dir": True,
    "--dry-run": False,
    "--accept": True,
    "--nccl-log": True,
    "--without": True,
}
# What --nccl-log has NCCL print. TUNING says what each collective was launched with: a line for every call outside CUDA
# graphs, without end.
LOG_SUBSYSTEMS = {"init": "INIT,ENV", "tuning": "INIT,ENV,TUNING"}

LOG_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def log_folder(run_dir: str) -> str:
    """How NCCL_DEBUG_FILE begins where the log lies in that run: a percent sign of the path would be taken for a field."""
    return run_dir.replace("%", "%%") + "/"


ACCEPTABLE = (
    "conf_sets", "conflict", "ll128_forced", "name_dead", "name_misspelt", "name_too_new", "no_algorithm", "quoted",
    "value_ignored", "value_misread", "value_refused",
)  # fmt: skip


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """``(ours, upstream's)``, both in the order given. Only exact names are ours: upstream's abbreviations stay upstream's.

    Raises ValueError when one of ours lacks its value.
    """
    ours: list[str] = []
    theirs: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        name, equals, _ = word.partition("=")
        if name not in OWN:
            theirs.append(word)
        elif OWN[name] and not equals:
            if index + 1 == len(argv) or argv[index + 1].startswith("--"):
                found = f"{argv[index + 1]}" if index + 1 < len(argv) else "the end of the command line"
                raise ValueError(f"{name} needs a value, found {found}; see --help")
            ours += [f"{name}={argv[index + 1]}"]
            index += 1
        else:
            ours.append(word)
        index += 1
    return ours, theirs


def value_of(argv: Sequence[str], names: Sequence[str], default: str) -> str:
    """What upstream's argparse would take for an option given by one of ``names``: the last one counts."""
    found = default
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                found = value
            elif index + 1 < len(argv):
                found = argv[index + 1]
    return found


class Once(argparse.Action):
    """An option that may be given again only with the same value: of two profiles one would be dropped without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, name: Any = None
    ) -> None:
        before = getattr(options, self.dest, None)
        if before not in (None, value):
            parser.error(f"{name}: expected one, found {before} and {value}; keep one")
        setattr(options, self.dest, value)


def add_contract_options(parser: argparse.ArgumentParser) -> None:
    """The options that name a contract, the same everywhere."""
    group = parser.add_argument_group("the contract")
    group.add_argument(
        "--profile",
        type=given,
        action=Once,
        metavar="NAME|FILE",
        help="a shipped profile by name, or a TOML file by path",
    )
    group.add_argument(
        "--set",
        metavar="NAME=VALUE",
        dest="sets",
        action="append",
        default=[],
        help="require a value (wins over profile and shell)",
    )
    group.add_argument(
        "--absent",
        metavar="NAME",
        dest="absents",
        action="append",
        default=[],
        help="require that a variable is not there",
    )


def add_accept_option(group: Any) -> None:
    """The option that takes a finding about values for what is wanted."""
    group.add_argument(
        "--accept",
        metavar="CODE",
        dest="accepted",
        action="append",
        default=[],
        type=acceptable,
        help="take this finding about names and values (ll128_forced, ...) for wanted: it becomes a note",
    )


def acceptable(code: str) -> str:
    """A code that --accept takes: one that `nccl.lint` finds and that would refuse."""
    if code not in ACCEPTABLE:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(ACCEPTABLE)}, found {code!r}")
    return code


def launcher_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of the launcher's own options."""
    parser = argparse.ArgumentParser(
        prog=prog,
        allow_abbrev=False,
        formatter_class=Help,
        usage=f"{prog} [options] SGLANG_OPTION...",
        description=(
            "Start an SGLang server whose workers hold a contract of environment variables, prove it, then serve.\n\n"
            "Every other option goes to sglang.launch_server unchanged (see: python -m sglang.launch_server --help).\n"
            "The contract is made of --set/--absent, over --profile, over the NCCL_* variables of this shell."
        ),
        epilog=(
            "exit status:\n"
            "  0    the server ended in order; with --dry-run: PASS (with --verify off as well: its workers came up)\n"
            "  1    FAIL: a requirement is not met, or the server failed\n"
            "  2    the command line, profile or contract is wrong; nothing was started, or nothing was loaded\n"
            "  3    UNKNOWN: the workers could not be seen\n"
            "  130  interrupted (SIGINT); on SIGTERM the launcher dies of SIGTERM\n\n"
            "example:\n"
            f"  {prog} --profile pcie-blackwell --model-path /models/Kimi-K2.5 --tp 8"
        ),
    )
    add_contract_options(parser)
    add_accept_option(parser)
    group = parser.add_argument_group("the launch")
    group.add_argument(
        "--verify",
        choices=("strict", "warn", "off"),
        default="strict",
        help="strict (default): stop the server unless the verdict is PASS; warn: say it and serve; off: do not look",
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="start the same processes the same way without loading weights, verify, stop",
    )
    group.add_argument(
        "--nccl-log",
        choices=tuple(LOG_SUBSYSTEMS),
        help="have NCCL write a log per process into the run directory, so that verify-env has its own word (the witness "
        "effective): init for what it read, tuning also for what it chose, at every call",
    )
    group.add_argument(
        "--without",
        type=given,
        metavar="NAME",
        action="append",
        default=[],
        help="leave out this local patch or group (see: sglang-ext patches status); may be repeated",
    )
    group.add_argument(
        "--run-dir",
        type=given,
        metavar="DIR",
        help="where the run is recorded (created, 0700); default: a fresh one per launch",
    )
    return parser
