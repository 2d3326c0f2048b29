"""What the verbs do: find the server, judge it, print or write the report, and turn every input error into one sentence."""

from __future__ import annotations

import argparse
import sys

from sglang_ext.quick import Any

USAGE, UNKNOWN = 2, 3


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
    from sglang_ext.verify.check import unseen, verify

    is_server = True
    directory = None

    def find() -> Any:
        nonlocal directory, is_server
        if options.run:
            server, directory = select.by_run(options.run)
            return server
        if options.port is not None:
            return select.by_port(options.port)
        if options.pid is not None:
            server, is_server = select.by_pid(options.pid)  # what is none yet may be one when it is looked at again
            return server
        return select.only()

    try:
        server = select.wait_for(find, lambda server: complete(server, directory), options.wait)
    except select.NoServerError as error:
        return unseen(error.code, str(error))
    return verify(server, _request(options, contract, is_server), directory)


def complete(server: Any, directory: Any = None) -> bool:
    """Are as many ranks there as are expected?"""
    from sglang_ext.verify import expected as sizes
    from sglang_ext.verify.carried import run_of
    from sglang_ext.verify.check import DECIDING

    run = directory or run_of(server)
    expected = sizes.of(server, run.read("server.json") if run else None)
    return expected.here is not None and sum(p.role in DECIDING for p in server.processes) >= expected.here


def _request(options: argparse.Namespace, contract: Any, is_server: bool = True) -> Any:
    from sglang_ext.verify.check import Request

    return Request(
        contract,
        require=options.require,
        all_processes=options.all_processes,
        is_server=is_server,
        accepted=options.accepted,
    )


def check_pinned(options: argparse.Namespace, contract: Any, main: int | None) -> dict[str, Any]:
    """A second look at the same server, by its main process: another one may have been started meanwhile."""
    if main is None or options.run:  # a run directory names its server by itself
        return check(options, contract)
    return check(argparse.Namespace(**{**vars(options), "port": None, "pid": main}), contract)


def check_all(options: argparse.Namespace, contract: Any) -> dict[str, Any]:
    """Every server on this host: their reports, and the worst verdict."""
    from sglang_ext.contract.model import ContractError
    from sglang_ext.run.directory import RunError
    from sglang_ext.verify.check import NoContractError, unseen, verify
    from sglang_ext.verify.judge import worst
    from sglang_ext.verify.select import NoServerError, every, names, wait_for

    request = _request(options, contract)
    codes: dict[type[Exception], str]
    codes = {NoContractError: "no_contract", ContractError: "contract_invalid", RunError: "run_dir_unusable"}
    servers = []
    try:
        for server in wait_for(every, lambda found: all(map(complete, found)), options.wait):
            try:
                servers.append(verify(server, request))
            except tuple(codes) as error:  # this one cannot be judged; the others can
                code = next(code for kind, code in codes.items() if isinstance(error, kind))
                servers.append(unseen(code, f"{names([server])}: {error}"))
    except NoServerError as error:
        servers.append(unseen(error.code, str(error)))
    verdict = worst([report["verdict"] for report in servers])
    return {"schema": "sglang-ext/verify-all/1", "verdict": verdict, "servers": servers}


def checked(options: argparse.Namespace, act: Any) -> int:
    """Run ``act(contract)``; input errors become one sentence and exit 2."""
    from sglang_ext.contract.model import ContractError
    from sglang_ext.run.directory import RunError
    from sglang_ext.verify.check import NoContractError
    from sglang_ext.verify.select import SeveralServersError

    if options.require == "attested" and options.all_processes:
        complain("--require attested --all-processes: only schedulers attest, helpers never do; drop one of the two")
        return USAGE
    try:
        return int(act(contract_of(options)))
    except ContractError as error:
        complain(f"contract_invalid: {error}")
    except NoContractError as error:
        complain(f"no_contract: {error}")
    except SeveralServersError as error:
        complain(f"several_servers: {error}")
    except RunError as error:
        complain(f"run_dir_unusable: {error}")
    except OSError as error:
        where = error.filename or "the output"
        complain(f"{where} cannot be written ({error.strerror}); name another place" if error.strerror else str(error))
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


def run_lint(options: argparse.Namespace) -> int:
    import os

    from sglang_ext.contract.decide import decide
    from sglang_ext.contract.model import ContractError
    from sglang_ext.contract.profile import load_profile
    from sglang_ext.linting import lint_here, render
    from sglang_ext.verify.check import exit_code

    try:
        # The launcher's contract, from the launcher's sources: here this shell is what is asked about.
        profile = load_profile(options.profile) if options.profile else None
        contract = decide(profile, options.sets, options.absents, os.environ)
        found = lint_here(contract, options.accepted, options.nccl, profile)
    except ContractError as error:
        complain(f"contract_invalid: {error}")
        return USAGE
    for warning in contract.warnings:
        complain(f"warning: {warning}")
    try:
        write_json(found, options.json)
    except OSError as error:
        complain(f"{options.json} cannot be written ({error.strerror}); name another place")
        return USAGE
    if options.json != "-":
        print(render(found, colour=sys.stdout.isatty()))
    return exit_code(found["verdict"])


def run_gate(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        complain("gate needs a command; write: sglang-ext gate [options] -- COMMAND...")
        return USAGE
    if options.json == "-":
        complain("gate --json: expected a file, found -; stdout belongs to COMMAND")
        return USAGE

    def act(contract: Any) -> int:
        from sglang_ext.bench.gate import gate
        from sglang_ext.verify.check import exit_code
        from sglang_ext.verify.report import render

        main: int | None = None

        def look() -> dict[str, Any]:
            nonlocal main
            report = check_pinned(options, contract, main)
            main = report["main"]
            print(render(report, colour=sys.stderr.isatty()), file=sys.stderr)
            return report

        if options.json is not None:
            open(options.json, "a", encoding="utf-8").close()  # an unwritable place is better known before than after
        status, report = gate(look, exit_code, command, complain)
        write_json(report, options.json)
        if not report["command"]["ran"]:
            complain(f"not run: the verdict is {report['before']['verdict']}")
        elif report["after"]["verdict"] != "PASS" or not report["same_server"]:
            complain("verified before, but not after: what the command measured does not count")
        if report["command"].get("told_to_end"):
            import signal

            from sglang_ext.delivery.supervisor import die_as

            return die_as([signal.SIGTERM])
        return status

    return checked(options, act)


def study() -> Any:
    """What understands numbers. Loads numpy and scipy."""
    from sglang_ext.bench.verb import Study
    from sglang_ext.study import power, sequential, verdict

    return Study(sequential.stop, verdict.judge, power.outlook)


def bench(options: argparse.Namespace, act: Any) -> int:
    """Run ``act(check, keep)``, a bench; what ends it early becomes one sentence."""
    from sglang_ext.bench import verb

    given = {
        "--run": options.run,
        "--port": options.port,
        "--pid": options.pid,
        "--profile": options.profile,
        "--set": options.sets,
        "--absent": options.absents,
        "--accept": options.accepted,
        "--require": options.require,
        "--all-processes": options.all_processes,
        "--wait": options.wait,
    }
    named = tuple(name for name, value in given.items() if value)
    keep = verb.Keep(options.out, options.json, options.html, named)
    try:
        return checked(options, lambda contract: act(lambda main: check_pinned(options, contract, main), keep))
    except verb.InputError as error:
        complain(str(error))
        return USAGE
    except verb.Interrupted as told:
        import signal

        from sglang_ext.delivery.supervisor import die_as

        complain(told.text)
        return die_as([signal.Signals(told.number)])
    except KeyboardInterrupt:
        complain("interrupted: no number, no receipt")
        return 130


def run_bench(options: argparse.Namespace) -> int:
    from sglang_ext.bench import verb

    return bench(options, lambda check, keep: verb.run(options.suite, keep, check, study))


def run_bench_rerun(options: argparse.Namespace) -> int:
    from sglang_ext.bench import verb

    return bench(options, lambda check, keep: verb.rerun(options.receipt, options.suite, keep, check, study))


def run_bench_plan(options: argparse.Namespace) -> int:
    from sglang_ext.bench import verb

    try:
        file = options.json if options.json != "-" else None
        found = verb.plan(options.suite, study, options.ready, options.rate, file)
    except verb.InputError as error:
        complain(str(error))
        return USAGE
    if options.json == "-":
        write_json(found, "-")
    else:
        print(verb.plan_text(found))
    return 0


def run_bench_report(options: argparse.Namespace) -> int:
    from sglang_ext.bench import verb

    try:
        return verb.show(options.receipt, options.html)
    except verb.InputError as error:
        complain(str(error))
        return USAGE


def run_diff(options: argparse.Namespace) -> int:
    from sglang_ext.compare import verb
    from sglang_ext.contract.model import ContractError
    from sglang_ext.run.directory import RunError
    from sglang_ext.verify.select import NoServerError, SeveralServersError

    try:
        status, report = verb.run(options.A, options.B, quiet=options.json == "-")
        write_json(report, options.json)
        return status
    except verb.InputError as error:
        complain(str(error))
    except ContractError as error:
        complain(f"contract_invalid: {error}")
    except RunError as error:
        complain(f"run_dir_unusable: {error}")
    except SeveralServersError as error:
        complain(f"several_servers: {error}")
    except NoServerError as error:
        complain(f"{error.code}: {error}")
        return UNKNOWN
    except OSError as error:
        if not error.strerror:
            raise
        complain(f"{error.filename or 'the output'} cannot be written ({error.strerror}); name another place")
    return USAGE


def run_explain(options: argparse.Namespace) -> int:
    from sglang_ext import explain

    try:
        found = explain.explain(options.name, options.value, options.nccl)
    except explain.InputError as error:
        complain(str(error))
        return USAGE
    if options.json:
        write_json(found, "-")
    else:
        print(explain.render(found))
    return explain.status(found)


def run_doctor(options: argparse.Namespace) -> int:
    from sglang_ext.doctor import verb

    try:
        return verb.run(options.json, everything=options.verbose)
    except OSError as error:
        if not error.filename:
            raise
        complain(f"{error.filename} cannot be written ({error.strerror}); name another place")
        return USAGE


def run_patches(verb: str, options: argparse.Namespace) -> int:
    from sglang_ext import patches_verb

    try:
        status, report = patches_verb.run(verb, options)
        write_json(report, options.json)
        return status
    except OSError as error:
        if not error.filename:
            raise
        complain(f"{error.filename} cannot be read or written ({error.strerror}); open it, or name another place")
        return USAGE


def run_patches_status(options: argparse.Namespace) -> int:
    return run_patches("status", options)


def run_patches_check(options: argparse.Namespace) -> int:
    return run_patches("check", options)


def run_patches_apply(options: argparse.Namespace) -> int:
    return run_patches("apply", options)


def run_patches_revert(options: argparse.Namespace) -> int:
    return run_patches("revert", options)


def run_patches_adopt(options: argparse.Namespace) -> int:
    return run_patches("adopt", options)


def run_build_wheel(options: argparse.Namespace) -> int:
    from sglang_ext import build_wheel
    from sglang_ext.patchset.model import PatchError

    if options.wheel and (options.platform or options.python_version):
        complain("--from names one wheel, --platform and --python-version have pip choose one; drop one side")
        return USAGE
    request = build_wheel.Request(
        options.upstream, options.wheel, options.platform, options.python_version, options.out, options.revision
    )
    try:
        report = build_wheel.build(request, complain)
        write_json(report, options.json)
    except PatchError as error:
        complain(build_wheel.sentence(error))
        return build_wheel.status(error)
    except OSError as error:
        if not error.filename:
            raise
        complain(f"{error.filename} cannot be written ({error.strerror}); name another place")
        return USAGE
    if options.json != "-":
        print(build_wheel.render(report))
    return 0


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
