"""The command line. Parsing is instant: what a verb needs is imported when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

USAGE, UNKNOWN_EXIT = 2, 3
EXITS = (
    "exit status:\n"
    "  0  PASS\n"
    "  1  FAIL: a requirement is not met\n"
    "  2  the command line, profile or contract is wrong, or several servers could be meant\n"
    "  3  UNKNOWN: it could not be seen, or there is no server\n"
)


def build_parser() -> argparse.ArgumentParser:
    """All verbs and their options."""
    parser = argparse.ArgumentParser(
        prog="sglang-ext",
        description="Deliver an environment contract to every SGLang worker, and prove it there.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXITS,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    launch = verbs.add_parser(
        "launch", help="start a server with a contract (the same as python -m sglang_ext.launch)", add_help=False
    )
    launch.add_argument("rest", nargs=argparse.REMAINDER)
    check = verbs.add_parser(
        "verify-env",
        help="look at every worker of a running server and judge what it holds",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Read every scheduler of a running SGLang server, ours or stock, by independent witnesses and compare with the\n"
            "contract: exec (the environment it was started with), live (its memory, now), attested (its own answer, now).\n"
            "This shell's variables are never evidence. Without --profile, --set or --absent the run's own contract counts."
        ),
        epilog=EXITS,
    )
    add_verify_options(check).add_argument("--all", action="store_true", help="every SGLang server on this host")
    check.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the report as JSON to FILE, or to stdout instead of the table",
    )
    gate = verbs.add_parser(
        "gate",
        help="run a command only if the server is verified before and after",
        usage="sglang-ext gate [options] -- COMMAND...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Verify, run COMMAND with this terminal's stdio, verify again.\n"
            "COMMAND's own status is returned if both verdicts are PASS."
        ),
        epilog=EXITS + "  4  verified before, but not after: what COMMAND measured does not count\n",
    )
    add_verify_options(gate)
    gate.add_argument("--json", metavar="FILE", help="write both reports and COMMAND's status as JSON to FILE")
    gate.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def add_verify_options(parser: argparse.ArgumentParser) -> Any:
    """Selectors, contract and demands: the same for verify-env and gate. Returns the group of selectors."""
    from sglang_ext.delivery.options import add_contract_options

    group = parser.add_argument_group("which server (default: the only one on this host)")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--run", metavar="DIR", help="the server of this run directory")
    which.add_argument("--port", type=int, metavar="P", help="the server that listens on this port")
    which.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="the server PID belongs to; else PID and its descendants, whatever they are",
    )
    add_contract_options(parser)
    group = parser.add_argument_group("how")
    group.add_argument(
        "--require", choices=("exec", "live", "attested"), help="demand that this witness speaks for every variable"
    )
    group.add_argument("--all-processes", action="store_true", help="let helpers (detokenizer, ...) decide too")
    group.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait until the expected ranks are there"
    )
    return which


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["launch"]:  # its other options are upstream's: argparse must not look at them
        from sglang_ext.launch import main as launch

        return launch(words[1:], prog="sglang-ext launch")
    parser = build_parser()
    options = parser.parse_args(words)
    if options.version:
        from sglang_ext import __version__

        print(f"sglang-ext {__version__}")
        return 0
    if options.verb == "verify-env":
        return verify_env(options)
    if options.verb == "gate":
        return run_gate(options)
    parser.print_help(sys.stderr)
    return USAGE


def complain(text: str) -> None:
    print(f"sglang-ext: {text}", file=sys.stderr)


def contract_of(options: argparse.Namespace) -> Any:
    """The contract the command line names, or None for the run's own. Raises ContractError."""
    if not (options.profile or options.sets or options.absents):
        return None
    from sglang_ext.contract.decide import decide
    from sglang_ext.contract.profile import load_profile

    # An empty shell: verify-env never takes its own environment for the contract.
    return decide(load_profile(options.profile) if options.profile else None, options.sets, options.absents, {})


def check(options: argparse.Namespace, contract: Any) -> dict[str, Any]:
    """One verification by the selectors. Raises what `verify` and the selectors raise, but no NoServerError."""
    from sglang_ext.verify import select
    from sglang_ext.verify.check import Request, run_of, unseen, verify
    from sglang_ext.verify.expected import from_arguments, from_record

    everything = options.all_processes
    directory = None

    def find() -> Any:
        nonlocal directory, everything
        if options.run:
            server, directory = select.by_run(options.run)
            return server
        if options.port is not None:
            return select.by_port(options.port)
        if options.pid is not None:
            server, is_server = select.by_pid(options.pid)
            everything = everything or not is_server
            return server
        return select.only()

    def complete(server: Any) -> bool:
        run = directory or run_of(server)
        facts = run.read("server.json") if run else None
        expected = from_record(facts) if facts else from_arguments(server.arguments)
        return expected.here is not None and sum(p.role == "scheduler" for p in server.processes) >= expected.here

    try:
        server = select.wait_for(find, complete, options.wait) if options.wait else find()
    except select.NoServerError as error:
        return unseen("no_server", str(error))
    return verify(server, Request(contract, require=options.require, all_processes=everything), directory)


def check_all(options: argparse.Namespace, contract: Any) -> dict[str, Any]:
    """Every server on this host: their reports, and the worst verdict."""
    from sglang_ext.verify.check import Request, unseen, verify
    from sglang_ext.verify.discover import find_servers
    from sglang_ext.verify.judge import worst

    request = Request(contract, require=options.require, all_processes=options.all_processes)
    servers = [verify(server, request) for server in find_servers()]
    servers = servers or [unseen("no_server", "no SGLang server is running on this host")]
    verdict = worst([report["verdict"] for report in servers])
    return {"schema": "sglang-ext/verify-all/1", "verdict": verdict, "servers": servers}


def checked(options: argparse.Namespace, act: Any) -> int:
    """Run ``act(contract)``; input errors become one sentence and exit 2."""
    from sglang_ext.contract.model import ContractError
    from sglang_ext.run.directory import RunError
    from sglang_ext.verify.check import NoContractError
    from sglang_ext.verify.select import SeveralServersError

    try:
        return int(act(contract_of(options)))
    except (ContractError, NoContractError, SeveralServersError, OSError) as error:
        complain(str(error))
        return USAGE
    except RunError as error:
        complain(f"run_dir_unusable: {error}")
        return USAGE


def verify_env(options: argparse.Namespace) -> int:
    from sglang_ext.verify.check import exit_code

    def act(contract: Any) -> int:
        report = check_all(options, contract) if options.all else check(options, contract)
        write_json(report, options.json)
        if options.json != "-":
            from sglang_ext.verify.report import render

            for one in report.get("servers", [report]):
                print(render(one, colour=sys.stdout.isatty()))
        return exit_code(report["verdict"])

    return checked(options, act)


def run_gate(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        complain("gate needs a command; write: sglang-ext gate [options] -- COMMAND...")
        return USAGE

    def act(contract: Any) -> int:
        from sglang_ext.bench.gate import LOST, gate
        from sglang_ext.verify.check import exit_code
        from sglang_ext.verify.report import render

        def look() -> dict[str, Any]:
            report = check(options, contract)
            print(render(report, colour=sys.stderr.isatty()), file=sys.stderr)
            return report

        status, report = gate(look, exit_code, command)
        write_json(report, options.json)
        if not report["command"]["ran"]:
            complain(f"not run: the verdict is {report['before']['verdict']}")
        elif status == LOST:
            complain("verified before, but not after: what the command measured does not count")
        return status

    return checked(options, act)


def write_json(report: dict[str, Any], where: str | None) -> None:
    """To stdout for "-", to a file otherwise."""
    if where is None:
        return
    import json

    text = json.dumps(report, indent=1, sort_keys=True) + "\n"
    if where == "-":
        sys.stdout.write(text)
        return
    with open(where, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
