"""From what the command line selects to a report: which contract, which server, how long to wait for it."""

from __future__ import annotations

import argparse

from sglang_ext.quick import Any


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
    """Every server on this host: their reports, and the worst verdict. One that cannot be judged hides no other."""
    from sglang_ext.verify.check import unseen, verify
    from sglang_ext.verify.faults import FAULTS, code_of
    from sglang_ext.verify.judge import worst
    from sglang_ext.verify.select import NoServerError, every, names, wait_for

    request = _request(options, contract)
    servers = []
    try:
        for server in wait_for(every, lambda found: all(map(complete, found)), options.wait):
            try:
                servers.append(verify(server, request))
            except FAULTS as error:
                servers.append(unseen(str(code_of(error)), f"{names([server])}: {error}"))
    except NoServerError as error:
        servers.append(unseen(error.code, str(error)))
    verdict = worst([report["verdict"] for report in servers])
    return {"schema": "sglang-ext/verify-all/1", "verdict": verdict, "servers": servers}
