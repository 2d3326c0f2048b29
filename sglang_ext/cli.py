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


def add_tree_option(parser: argparse.ArgumentParser) -> None:
    """Which installed upstream, and the report as JSON: the same for every `patches` verb."""
    parser.add_argument(
        "--root",
        type=given,
        metavar="DIR",
        help="the folder that holds sglang/ and its metadata; default: that of the sglang this Python would import",
    )
    add_report_option(parser)


def add_report_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the report as JSON to FILE, or to stdout instead of the text",
    )


def add_patches_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--release",
        metavar="X.Y.Z",
        dest="releases",
        action="append",
        default=[],
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--wheels", type=given, metavar="DIR", help="take the wheels from DIR, not from the cache or index"
    )
    add_report_option(parser)


def add_patches_apply_options(parser: argparse.ArgumentParser) -> None:
    add_tree_option(parser)
    parser.add_argument(
        "--without",
        type=given,
        metavar="NAME",
        action="append",
        default=[],
        help="leave out this local patch or group; may be repeated",
    )


def add_patches_adopt_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="*", help="only these edited files; default: all of them")
    add_tree_option(parser)
    parser.add_argument(
        "--name", type=given, help="call the patch NAME; with several files, the group they are left out by as one"
    )
    parser.add_argument("--subject", type=given, help="what the edits do, for the header of each patch")
    parser.add_argument(
        "--from",
        type=given,
        metavar="WHEEL",
        dest="wheel",
        help="upstream's wheel; default: the cache, then pip's index",
    )
    parser.add_argument(
        "--leave-added", action="store_true", help="leave modules that are not upstream's where they are, and go on"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be adopted; write nothing")


def revision(text: str) -> int:
    """The N of a version +ext.N."""
    if not (text.isascii() and text.isdigit() and text == str(int(text)) and text != "0"):
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, found {text!r}")
    return int(text)


def add_build_wheel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--upstream", metavar="X.Y.Z", type=given, help="the release of SGLang; default: the newest we patch"
    )
    parser.add_argument("--from", dest="wheel", metavar="WHEEL", type=given, help="take this wheel, fetch none")
    parser.add_argument(
        "--platform", metavar="TAG", type=given, help="for another machine, such as manylinux_2_34_aarch64"
    )
    parser.add_argument("--python-version", metavar="X.Y", type=given, help="for another Python, such as 3.12")
    parser.add_argument("--revision", metavar="N", type=revision, default=1, help="the N of +ext.N; default: 1")
    parser.add_argument("--out", metavar="DIR", type=given, default=".", help="where to write it; default: here")
    parser.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        nargs="?",
        const="-",
        help="write what was built as JSON to FILE, or to stdout instead of the text",
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
            "epilog": (
                EXITS + "  4  verified before, but not after: what COMMAND measured does not count\n"
                "  else COMMAND's own status, whatever it is (--json FILE tells them apart); 130 after an interrupt"
            ),
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
    "patches status": Verb(
        "what the installed upstream is: pristine, patched, half or edited",
        add_tree_option,
        "run_patches_status",
        {
            "description": (
                "Hold every file of the installed SGLang against its RECORD and the lock; say how the patch set gets into it\n"
                "(overlay, in place, baked) and which local patches fit. Nothing is changed. docs/patches.md has the states."
            ),
            "epilog": (
                "exit status:\n"
                "  0  pristine, or patched as a whole, and every local patch fits\n"
                "  1  half patched, edited, interrupted, not supported, or a local patch does not fit\n"
                "  2  the command line is wrong\n"
                "  3  no sglang is installed here, or it has no RECORD\n"
            ),
        },
    ),
    "patches check": Verb(
        "hold the whole lock against upstream's wheels",
        add_patches_check_options,
        "run_patches_check",
        {
            "description": (
                "Check every wheel of the lock: its hash, each file before and after its patches, syntax, seams, and back.\n"
                "Wheels come through pip with your own index settings (1.8 GB for all releases) and are kept by their hash."
            ),
            "epilog": (
                "exit status:\n"
                "  0  the lock is what the wheels show\n"
                "  1  a fault; a local patch that does not fit a release is told, and is none\n"
                "  2  the command line is wrong, or a wheel cannot be had\n\n"
                "example:\n"
                "  sglang-ext patches check --release 0.5.23"
            ),
        },
    ),
    "patches apply": Verb(
        "patch the installed upstream in place, all or none",
        add_patches_apply_options,
        "run_patches_apply",
        {
            "description": (
                "For images that cannot use the import hook: put the patch set and the local patches into the installed SGLang.\n"
                "RECORD is kept true, the released bytes are kept beside it; may be interrupted anywhere and run again."
            ),
            "epilog": (
                "exit status:\n"
                "  0  applied, or applied already\n"
                "  1  refused, for the reason given; nothing was changed\n"
                "  2  the command line is wrong\n"
                "  3  no sglang is installed here, or it has no RECORD\n"
            ),
        },
    ),
    "patches revert": Verb(
        "make an upstream that was patched in place stock again",
        add_tree_option,
        "run_patches_revert",
        {
            "description": "Put the released bytes back, and RECORD's rows. The import hook takes over where it is armed.",
            "epilog": (
                "exit status:\n"
                "  0  reverted, or there was nothing to revert\n"
                "  1  refused, for the reason given; nothing was changed\n"
                "  2  the command line is wrong\n"
                "  3  no sglang is installed here, or it has no RECORD\n"
            ),
        },
    ),
    "patches adopt": Verb(
        "turn hand edits of the installed upstream into local patches",
        add_patches_adopt_options,
        "run_patches_adopt",
        {
            "usage": "sglang-ext patches adopt [options] [FILE...]",
            "description": (
                "Make a local patch of each edited file, against its release's wheel, and the tree stock again. From then on\n"
                "the edits have names: they are in the patch set's digest, and --without NAME leaves one out."
            ),
            "epilog": (
                "exit status:\n"
                "  0  adopted, or there was nothing to adopt\n"
                "  1  refused, for the reason given; nothing was changed\n"
                "  2  the command line is wrong, or the wheel cannot be had\n"
                "  3  no sglang is installed here, or it has no RECORD\n\n"
                "example:\n"
                "  sglang-ext patches adopt --name faster-moe sglang/srt/models/deepseek_v2.py"
            ),
        },
    ),
    "build-wheel": Verb(
        "a wheel of SGLang with the patches already in it, for images and indexes",
        add_build_wheel_options,
        "run_build_wheel",
        {
            "description": (
                "Take upstream's wheel of a release, hold it against the locked sha256, put the patches in, and write\n"
                "sglang-X.Y.Z+ext.N-TAGS.whl, which requires this sglang-ext. pip fetches it, from your own index; --from takes\n"
                "one you have. The same bytes every time; what is not patched stays as upstream packed it."
            ),
            "epilog": (
                "exit status:\n"
                "  0  the wheel is written\n"
                "  1  it is not: the wheel is not as locked, or the patches do not fit\n"
                "  2  the command line is wrong, a file cannot be read or written, or the wheel is there already\n"
                "  3  pip brought no wheel\n\n"
                "example:\n"
                "  sglang-ext build-wheel --upstream 0.5.23 --out dist"
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
        epilog="verbs:\n" + "\n".join(f"  {name:<16}{line}" for name, line in lines.items()) + "\n\n" + EXITS,
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
    longer = [name for name in VERBS if words and name.startswith(f"{words[0]} ")]
    if longer:
        parser.error(f"{words[0]!r} needs a second word: {', '.join(longer)}")
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
