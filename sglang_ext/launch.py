"""``python -m sglang_ext.launch``: decide the contract, start upstream with it, prove it, then let it serve."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.contract.names import shown
from sglang_ext.contract.profile import Profile, load_profile
from sglang_ext.delivery import preflight
from sglang_ext.delivery.context import Context, new_run
from sglang_ext.delivery.old_runs import mark_ended
from sglang_ext.delivery.options import LOG_VARIABLES, launcher_parser, split
from sglang_ext.delivery.supervisor import Supervisor, die_as
from sglang_ext.patchset.local import WITHOUT, left_out
from sglang_ext.quick import Any
from sglang_ext.reasons import TABLE
from sglang_ext.run.directory import RunError

STOPPING = 10.0  # seconds for a server that is stopped because it may not serve: it has no requests to finish
USAGE = 2


def say(text: str) -> None:
    """One line of progress, on stderr: stdout belongs to upstream."""
    print(f"sglang-ext: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None, prog: str = "python -m sglang_ext.launch") -> int:
    """The launcher; returns the exit status described in its --help."""
    try:
        ours, theirs = split(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        say(str(error))
        return USAGE
    parser = launcher_parser(prog)
    if theirs and theirs[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    options = parser.parse_args(ours)
    if not theirs:
        say("expected options for sglang.launch_server, --model-path at least, found none; see --help")
        return USAGE
    if options.without:  # every process of the launch looks there
        os.environ[WITHOUT] = ",".join([*left_out(), *options.without])
    try:
        profile = load_profile(options.profile) if options.profile else None
        contract = decide(profile, options.sets, options.absents, os.environ)
        if options.nccl_log is not None:
            contract = without_log(contract)
    except ContractError as error:
        say(f"contract_invalid: {error}")
        return TABLE["contract_invalid"].exit
    return launch(contract, options, theirs, profile)


def without_log(contract: Contract) -> Contract:
    """The contract without the variables that --nccl-log sets itself.

    Raises ContractError where a flag or the profile demands one of them.
    """
    for name in LOG_VARIABLES:
        term = contract.terms.get(name)
        if term is not None and term.source != "shell":
            raise ContractError(
                f"{name}: expected it left to --nccl-log, found {shown(term.want)} ({term.source}); drop one of the two"
            )
    return contract.without(LOG_VARIABLES)


def launch(contract: Contract, options: Any, arguments: Sequence[str], profile: Profile | None = None) -> int:
    """Preflight, start, verify, serve, stop."""
    for warning in contract.warnings:
        say(f"warning: {warning}")
    if not contract and options.dry_run and options.verify != "off":
        say(
            "no_contract: expected a contract, as --dry-run says whether the workers hold it, found an empty one; name it with "
            "--profile, --set or --absent, or add --verify off to see only whether they come up"
        )
        return TABLE["no_contract"].exit
    if not contract:
        say(
            "warning: the contract is empty (no --profile, --set or --absent, no NCCL_* in this shell): nothing will be proven"
        )
    try:
        preflight.check_hook(sys.meta_path, sys.flags)
        for note in preflight.check_values(contract, os.environ, options.accepted, sys.path, profile):
            say(note)
        host, port = preflight.address(arguments)
        preflight.check_port(host, port)
        preflight.check_local_patches()
        root = preflight.upstream_root()
        prepared = preflight.check_upstream(root)
        if replaced := preflight.was_replaced(root, prepared.mode):
            say(f"upstream_replaced: {replaced}")
        preflight.check_arguments(contract, arguments, prepared.release)
        context = new_run(
            contract,
            mode="launcher",
            policy=options.verify,
            dry_run=options.dry_run,
            path=options.run_dir,
            accepted=options.accepted,
            patchset=prepared.digest,
        )
    except preflight.Refused as refused:
        say(f"{refused.code}: {refused}")
        return TABLE[refused.code].exit
    except RunError as error:
        say(f"run_dir_unusable: {error}")
        return TABLE["run_dir_unusable"].exit
    say(f"sglang {prepared.release}, {prepared.mode}, patch set {prepared.digest[:12]}; run {context.directory.path}")
    if prepared.local:
        say(f"  local patches: {', '.join(prepared.local)}")
    for term in contract.terms.values():
        say(f"  {term.name} {shown(term.want)}  ({term.source})")
    context.directory.hold()
    supervisor = Supervisor(context, arguments, say, log=options.nccl_log)
    status = 1
    grace: float | None = STOPPING
    left: list[int] = []
    try:
        supervisor.start()
        status, serves = prove(supervisor, options)
        if serves:
            say(f"serving; this launcher stays in front of it (host {host}, port {port})")
            supervisor.wait_until_ended()
            status = ended(supervisor)
            grace = None
    except RunError as error:
        say(f"run_dir_unusable: {error}")
    finally:
        left = supervisor.stop() if grace is None else supervisor.stop(grace)
        if not left:
            mark_ended(context.directory)
    if supervisor.interrupted:
        kept = f"still there: {', '.join(map(str, left))}" if left else "nothing of this launch is left"
        say(f"ended by {signal.Signals(supervisor.signals[0]).name}; {kept}")
        return die_as(supervisor.signals)
    return status or (1 if left else 0)  # in order is only what has ended


def prove(supervisor: Supervisor, options: Any) -> tuple[int, bool]:
    """Wait for the workers and judge them. Returns the exit status if it ends here, and whether the server may serve."""
    outcome = supervisor.wait_until_attested()
    if outcome == "interrupted":
        return 130, False
    if outcome == "refused":
        refusal = supervisor.refusal() or {"code": "server_ended", "message": "a worker refused"}
        say(f"{refusal['code']}: {refusal['message']}")
        return TABLE[refusal["code"]].exit if refusal["code"] in TABLE else 1, False
    if outcome == "ended":
        return ended(supervisor, early=True), False
    if options.verify == "off" or not supervisor.context.contract:
        say("not verified (" + ("--verify off" if options.verify == "off" else "the contract is empty") + ")")
        return 0, not options.dry_run
    report = look(supervisor.context)
    from sglang_ext.verify.check import exit_code
    from sglang_ext.verify.report import render

    print(render(report, colour=sys.stderr.isatty()), file=sys.stderr, flush=True)
    status = exit_code(report["verdict"])
    if options.dry_run:
        return status, False
    if status != 0 and options.verify == "strict":
        say(f"stopping the server: the verdict is {report['verdict']} and --verify is strict")
        return status, False
    return 0, True


def look(context: Context) -> dict[str, Any]:
    """Verify this run, and keep the report in its directory."""
    from sglang_ext.verify.check import Request, unseen, verify
    from sglang_ext.verify.select import NoServerError, by_run

    try:
        server, directory = by_run(context.directory.path)
        report = verify(server, Request(context.contract), directory)
    except NoServerError as error:
        report = unseen(error.code, str(error))
    context.directory.write("verified.json", report)
    return report


def ended(supervisor: Supervisor, *, early: bool = False) -> int:
    """Say how upstream ended; its own failure is ours."""
    status = supervisor.ended()
    if status is None or (status == 0 and not early):
        return 0
    how = f"signal {-status}" if status < 0 else f"status {status}"
    when = "before its workers were ready" if early else "while serving"
    if early and status == USAGE:  # argparse's own
        say("server_ended: SGLang refused its command line (status 2); see its log above")
        return USAGE
    first = f"; {', '.join(supervisor.gone)} had ended before it" if supervisor.gone else ""
    say(f"server_ended: SGLang ended with {how} {when}{first}; see its log above")
    return 1


if __name__ == "__main__":
    from sglang_ext.console import run

    sys.exit(run(main))
