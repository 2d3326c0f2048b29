"""The command line. Only the verb that is called gets its parser and its imports: a start must cost nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from sglang_ext.console import Help, given, port, run, seconds
from sglang_ext.quick import Any, NamedTuple

USAGE = 2
EXITS = (
    "exit status:\n"
    "  0  PASS\n"
    "  1  FAIL: a requirement is not met\n"
    "  2  the command line, profile or contract is wrong, or several servers could be meant\n"
    "  3  UNKNOWN: it could not be seen, or there is no server\n"
)


class Verb(NamedTuple):
    """A verb: its line in the overview, its options, and the function of `verbs` that runs it."""

    line: str
    add_options: Callable[[argparse.ArgumentParser], object]
    action: str
    text: dict[str, Any]


def add_verify_env_options(parser: argparse.ArgumentParser) -> None:
    add_verify_options(parser).add_argument("--all", action="store_true", help="every SGLang server on this host")
    parser.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the report as JSON to FILE, or to stdout instead of the table",
    )


def add_gate_options(parser: argparse.ArgumentParser) -> None:
    add_verify_options(parser)
    parser.add_argument(
        "--json", type=given, metavar="FILE", help="write both reports and COMMAND's status as JSON to FILE"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE.toml", help="what to ask: prompt, tokens, runs")
    parser.add_argument(
        "--json", type=given, metavar="FILE", help="keep the receipt in FILE; - prints it instead of the table"
    )
    add_verify_options(parser)


def add_diff_options(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(name, type=given, help=argparse.SUPPRESS)
    parser.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the comparison as JSON to FILE, or to stdout instead of the table",
    )


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", type=given, help="a variable, or a reason code that was printed")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="what NCCL makes of this value")
    parser.add_argument(
        "--nccl", metavar="VERSION", type=given, help="by the rules of this NCCL; default: the one installed here"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the report as JSON to FILE, or to stdout instead of the table",
    )
    parser.add_argument("--verbose", action="store_true", help="show what each check rests on, also where all is well")


def add_verify_options(parser: argparse.ArgumentParser) -> Any:
    """Selectors, contract and demands: the same for verify-env, gate and bench. Returns the group of selectors."""
    from sglang_ext.delivery.options import add_accept_option, add_contract_options

    group = parser.add_argument_group("which server (default: the only one on this host)")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--run", type=given, metavar="DIR", help="the server of this run directory")
    which.add_argument("--port", type=port, metavar="P", help="the server that listens on this port")
    which.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="the server PID belongs to; else PID and its descendants, whatever they are",
    )
    add_contract_options(parser)
    group = parser.add_argument_group("how")
    add_accept_option(group)
    group.add_argument(
        "--require",
        choices=("exec", "live", "attested", "effective"),
        help="demand that this witness speaks for every variable",
    )
    group.add_argument("--all-processes", action="store_true", help="let helpers (detokenizer, ...) decide too")
    group.add_argument(
        "--wait", type=seconds, default=0.0, metavar="SECONDS", help="wait until the expected ranks are there"
    )
    return which


def add_lint_options(parser: argparse.ArgumentParser) -> None:
    from sglang_ext.delivery.options import add_accept_option, add_contract_options

    add_contract_options(parser)
    group = parser.add_argument_group("how")
    add_accept_option(group)
    group.add_argument(
        "--nccl",
        type=given,
        metavar="VERSION",
        help="judge by this release's rules; default: the library installed here",
    )
    group.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the report as JSON to FILE, or to stdout instead of the text",
    )


VERBS = {
    "verify-env": Verb(
        "look at every worker of a running server and judge what it holds",
        add_verify_env_options,
        "verify_env",
        {
            "description": (
                "Read every scheduler of a running SGLang server, ours or stock, by independent witnesses and compare with the\n"
                "contract: exec (the environment it was started with), live (its memory, now), attested (its own answer, now).\n"
                "This shell's variables are never evidence. Without --profile, --set or --absent the run's own contract counts."
            ),
            "epilog": EXITS,
        },
    ),
    "lint": Verb(
        "say what NCCL will make of a contract, before anything starts",
        add_lint_options,
        "run_lint",
        {
            "description": (
                "Read names and values as the installed NCCL would: misspelt names, texts it misreads (4M is 4 bytes), ignores\n"
                "(NCCL_P2P_LEVEL=sys) or ends over, lists that leave a collective without algorithm, configuration files.\n"
                "The contract is the launcher's: --set/--absent, over --profile, over the NCCL_* variables of this shell."
            ),
            "epilog": (
                "exit status:\n"
                "  0  PASS: nothing that NCCL would read otherwise\n"
                "  1  FAIL: a finding that the launcher would refuse\n"
                "  2  the command line or profile is wrong\n"
                "  3  UNKNOWN: it depends on what could not be read\n\n"
                "example:\n"
                "  sglang-ext lint --profile pcie-blackwell --set NCCL_BUFFSIZE=4M"
            ),
        },
    ),
    "gate": Verb(
        "run a command only if the server is verified before and after",
        add_gate_options,
        "run_gate",
        {
            "usage": "sglang-ext gate [options] -- COMMAND...",
            "description": (
                "Verify, run COMMAND with this terminal's stdio, verify again.\n"
                "COMMAND's own status is returned if both verdicts are PASS."
            ),
            "epilog": EXITS + "  4  verified before, but not after: what COMMAND measured does not count\n",
        },
    ),
    "bench run": Verb(
        "take a number, only where the contract is proven",
        add_bench_options,
        "run_bench",
        {
            "description": (
                "Verify, send the suite's streams one after the other, verify again, and say what the client saw: time to the\n"
                "first token, decode rate, whole rate. No PASS, no number. docs/bench.md has the suite's format and each formula."
            ),
            "epilog": (
                "exit status:\n"
                "  0  VALID: verified before and after, and every run counts\n"
                "  1  FAIL: a requirement is not met and nothing was measured, or a run does not count (INVALID)\n"
                "  2  the command line, suite, profile or contract is wrong, or several servers could be meant\n"
                "  3  UNKNOWN: it could not be seen, there is no server, or it cannot be asked\n"
                "  4  verified before, but not after (INVALID)\n"
                "  130  interrupted (SIGINT)\n\n"
                "example:\n"
                "  sglang-ext bench run benchmarks/baseline.toml --json baseline.receipt.json"
            ),
        },
    ),
    "diff": Verb(
        "everything that differs between two servers, or a server and a record",
        add_diff_options,
        "run_diff",
        {
            "usage": "sglang-ext diff A B [--json [FILE]]",
            "description": (
                "Compare two sides: contract, environment of the ranks, resolved arguments, versions, NCCL by file, driver,\n"
                "patches, sizes, host. What is equal is counted; what one side cannot know is listed as not comparable.\n\n"
                "A and B are each one of\n"
                "  pid:N, port:N   a live server, ours or not\n"
                "  run:DIR         the server of a run directory; once it has ended, what the directory holds\n"
                "  FILE            a receipt of `bench run`, or a report of `verify-env --json`"
            ),
            "epilog": (
                "exit status:\n"
                "  0  SAME, as far as both sides can tell\n"
                "  1  DIFFERENT\n"
                "  2  the command line is wrong, or a side cannot be read\n"
                "  3  NOT COMPARABLE: nothing that both sides know, or there is no server\n\n"
                "example:\n"
                "  sglang-ext diff baseline.receipt.json port:30000"
            ),
        },
    ),
    "explain": Verb(
        "what a variable does, what NCCL makes of a value, what a reason code means",
        add_explain_options,
        "run_explain",
        {
            "description": (
                "Say what is known of a variable: what it does, what it takes, whether ranks must agree, when it is read, how\n"
                "NCCL's log shows it, what SGLang does to it. With VALUE also what NCCL takes that for. Or of a reason code."
            ),
            "epilog": (
                "exit status:\n"
                "  0  it is known, and NCCL takes VALUE as it stands\n"
                "  1  no variable or code of that name is known, or there is something wrong with VALUE\n"
                "  2  the command line is wrong\n\n"
                "examples:\n"
                "  sglang-ext explain NCCL_P2P_LEVEL sys --nccl 2.30.7\n"
                "  sglang-ext explain maybe_too_late"
            ),
        },
    ),
    "doctor": Verb(
        "what is wrong with this environment, before any server starts",
        add_doctor_options,
        "run_doctor",
        {
            "description": (
                "Examine this Python, what runs at its start, the installed packages, NCCL and its variables in this shell,\n"
                "what may be looked at here, and what earlier runs have left. It reads only: nothing of torch or sglang is\n"
                "imported, nothing is changed, removed or signalled. docs/doctor.md has every check."
            ),
            "epilog": (
                "exit status:\n"
                "  0  nothing stands in the way of a launch (ok, note, warn)\n"
                "  1  a launch would fail or prove nothing (fail)\n"
                "  2  the command line is wrong\n"
                "  3  something that matters could not be seen (unknown)\n"
            ),
        },
    ),
}
LAUNCH_LINE = "start a server with a contract (the same as python -m sglang_ext.launch)"


def overview() -> argparse.ArgumentParser:
    """What is printed without a verb, and for words that are none."""
    lines = {"launch": LAUNCH_LINE, **{name: verb.line for name, verb in VERBS.items()}}
    return argparse.ArgumentParser(
        prog="sglang-ext",
        usage="sglang-ext VERB [options]\n       sglang-ext VERB --help",
        description="Deliver an environment contract to every SGLang worker, and prove it there.",
        formatter_class=Help,
        epilog="verbs:\n" + "\n".join(f"  {name:<12}{line}" for name, line in lines.items()) + "\n\n" + EXITS,
    )


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one verb."""
    verb = VERBS[name]
    parser = argparse.ArgumentParser(prog=f"sglang-ext {name}", formatter_class=Help, **verb.text)
    verb.add_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["launch"]:  # its other options are upstream's: argparse must not look at them
        from sglang_ext.launch import main as launch

        return launch(words[1:], prog="sglang-ext launch")
    for length in (1, 2):
        name = " ".join(words[:length])
        if name in VERBS:
            options = parser_of(name).parse_args(words[length:])
            from sglang_ext import verbs

            return int(getattr(verbs, VERBS[name].action)(options))
    parser = overview()
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    if words and not words[0].startswith("-"):
        parser.error(f"{words[0]!r} is no verb; expected one of launch, {', '.join(VERBS)}")
    if parser.parse_args(words).version:
        from sglang_ext import __version__

        print(f"sglang-ext {__version__}")
        return 0
    parser.print_help(sys.stderr)
    return USAGE


def entry() -> int:
    """The console script."""
    return run(main)
