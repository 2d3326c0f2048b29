"""The options of each verb. What several verbs share is one function."""

from __future__ import annotations

import argparse
import math

from sglang_ext.console import given, port, seconds
from sglang_ext.quick import Any


def add_verify_env_options(parser: argparse.ArgumentParser) -> None:
    add_verify_options(parser).add_argument("--all", action="store_true", help="every SGLang server on this host")
    add_report_option(parser, instead="the table")


def add_gate_options(parser: argparse.ArgumentParser) -> None:
    add_verify_options(parser)
    parser.add_argument(
        "--json", type=given, metavar="FILE", help="write both reports and COMMAND's status as JSON to FILE"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE.toml", help="what to ask, and of which arms")
    add_result_options(parser)
    add_verify_options(parser)


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Where a bench's results go: the same for `bench run` and `bench rerun`."""
    add_report_option(parser, what="the receipt", instead="the table")
    parser.add_argument("--html", type=page, metavar="FILE", help="write the report as one HTML page to FILE")
    parser.add_argument(
        "--out",
        type=given,
        metavar="DIR",
        help="the campaign folder, for a suite with arms: made, or gone on with where it holds this campaign; default: "
        "NAME-DATE-TIME here",
    )


def add_bench_rerun_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "receipt", metavar="RECEIPT", type=given, help="a receipt of `bench run`, or its campaign folder"
    )
    parser.add_argument(
        "--suite", type=given, metavar="SUITE.toml", help="its suite; default: where it was, or beside the receipt"
    )
    add_result_options(parser)
    add_verify_options(parser)


def add_bench_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE.toml", help="a suite with arms")
    parser.add_argument(
        "--ready", type=seconds, metavar="SECONDS", help="how long a server takes to be ready, for the time"
    )
    parser.add_argument("--rate", type=rate, metavar="TOK_S", help="about how fast one stream is, for the time")
    add_report_option(parser, what="the plan", instead="the table")


def add_bench_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "receipt", metavar="RECEIPT", type=given, help="a receipt of `bench run`, or its campaign folder"
    )
    parser.add_argument("--html", type=page, metavar="FILE", help="write it as one HTML page to FILE")


def rate(text: str) -> float:
    """Tokens a second, more than none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected tokens a second, more than 0, found {text!r}")
    return value


def page(text: str) -> str:
    """A file for a page: stdout has the text already."""
    if given(text) == "-":
        raise argparse.ArgumentTypeError("expected a file, found '-'; name one (./- where that is its name)")
    return text


def add_diff_options(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(name, type=given, help=argparse.SUPPRESS)
    add_report_option(parser, what="the comparison", instead="the table")


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", type=given, help="a variable, or a reason code that was printed")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="what NCCL makes of this value")
    parser.add_argument(
        "--nccl", metavar="VERSION", type=given, help="by the rules of this NCCL; default: the one installed here"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    add_report_option(parser, instead="the table")
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
    add_report_option(group)


def add_tree_option(parser: argparse.ArgumentParser) -> None:
    """Which installed upstream, and the report as JSON: the same for every `patches` verb but check."""
    parser.add_argument(
        "--root",
        type=given,
        metavar="DIR",
        help="the folder that holds sglang/ and its metadata; default: that of the sglang this Python would import",
    )
    add_report_option(parser, more=PATCHES_JSON)


PATCHES_JSON = "; FILE may be new, empty, or a report of `patches`, and not in an installed sglang"


def add_report_option(parser: Any, *, what: str = "the report", instead: str = "the text", more: str = "") -> None:
    """--json [FILE], as every verb that reports has it. ``parser`` may be a group of one."""
    parser.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        nargs="?",
        const="-",
        help=f"write {what} as JSON to FILE, or to stdout instead of {instead}{more}",
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
    add_report_option(parser, more=PATCHES_JSON)


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
    parser.add_argument(
        "files",
        metavar="EDITED",
        nargs="*",
        help="only these edited files, before the options: behind --json a file is where the report goes; default: all of them",
    )
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
