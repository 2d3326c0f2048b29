"""What the verbs do: have it done, print or write the report, and turn every input error into one sentence."""

from __future__ import annotations

import argparse
import sys

from sglang_ext import asking
from sglang_ext.quick import Any

USAGE, UNKNOWN = 2, 3
# What the schema of a verb's report begins with, after "sglang-ext/".
REPORTS = {
    "verify-env": "verify", "lint": "lint", "gate": "gate", "diff": "diff", "doctor": "doctor", "build-wheel": "build-wheel",
}  # fmt: skip


def hear_children() -> None:
    """For verbs that start others: see `ending.hear_children`."""
    from sglang_ext.delivery.ending import hear_children

    hear_children()


def complain(text: str) -> None:
    print(f"sglang-ext: {text}", file=sys.stderr)


def told(error: Exception) -> str | None:
    """The sentence for an error that is the user's to mend; None for any other."""
    from sglang_ext.verify.faults import code_of

    code = code_of(error)
    if code is not None:
        return f"{code}: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'the output'} cannot be written ({error.strerror}); name another place"
    if isinstance(error, OSError):
        return str(error)
    return None


def mended(act: Any) -> int:
    """``act()``; an error that is the user's to mend becomes one sentence and exit 2."""
    try:
        return int(act())
    except Exception as error:
        sentence = told(error)
        if sentence is None:
            raise
        complain(sentence)
        return USAGE


def checked(options: argparse.Namespace, act: Any) -> int:
    """Run ``act(contract)``; input errors become one sentence and exit 2."""
    if options.require == "attested" and options.all_processes:
        complain("--require attested --all-processes: only schedulers attest, helpers never do; drop one of the two")
        return USAGE
    return mended(lambda: act(asking.contract_of(options)))


def verify_env(options: argparse.Namespace) -> int:
    from sglang_ext.verify.check import exit_code

    def act(contract: Any) -> int:
        report = asking.check_all(options, contract) if options.all else asking.check(options, contract)
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
    hear_children()
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
        when = "before"

        def look() -> dict[str, Any]:
            nonlocal main, when
            report = asking.check_pinned(options, contract, main)
            text = render(report, colour=sys.stderr.isatty())
            # The same table again would bury what the command printed.
            short = when == "after" and report["verdict"] == "PASS"
            print(f"{when} the command:" + (f" {text.splitlines()[-1]}" if short else f"\n{text}"), file=sys.stderr)
            main, when = report["main"], "after"
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
        return checked(options, lambda contract: act(lambda main: asking.check_pinned(options, contract, main), keep))
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
    from sglang_ext.verify.select import NoServerError

    def act() -> int:
        status, report = verb.run(options.A, options.B, quiet=options.json == "-")
        write_json(report, options.json)
        return int(status)

    try:
        return mended(act)
    except verb.InputError as error:
        complain(str(error))
        return USAGE
    except NoServerError as error:
        complain(f"{error.code}: {error}")
        return UNKNOWN


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
    hear_children()
    from sglang_ext.doctor import verb

    try:
        return verb.run(options.json, everything=options.verbose)
    except OSError as error:
        if not error.filename:
            raise
        complain(f"{error.filename} cannot be written ({error.strerror}); name another place")
        return USAGE


def run_patches(verb: str, options: argparse.Namespace) -> int:
    hear_children()
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
    hear_children()
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


def may_write(verb: str, where: str | None) -> bool:
    """May the verb's report go to ``where``? Asked before anything is done: a slip must not cost the user a file.

    Only an earlier report of the same kind is replaced; `bench` and `patches` have stricter rules of their own.
    """
    kind = REPORTS.get(verb)
    if kind is None or where in (None, "-"):
        return True
    from sglang_ext.console import replaceable

    if replaceable(where, kind):
        return True
    complain(
        f"receipt_unwritable: --json: expected a place for the report, found {where}, which holds something else; name another"
    )
    return False


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
