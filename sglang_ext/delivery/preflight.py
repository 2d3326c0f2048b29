"""What can be known before anything is started: each check costs milliseconds and saves a model load."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import PathFinder
from typing import Any

from sglang_ext import bootstrap
from sglang_ext.contract import rules
from sglang_ext.contract.model import Contract
from sglang_ext.contract.names import looks_secret
from sglang_ext.contract.profile import Profile
from sglang_ext.delivery.options import value_of
from sglang_ext.patchset import overlay
from sglang_ext.patchset.model import PatchError

UPSTREAM_PORT, UPSTREAM_HOST = "30000", "127.0.0.1"  # sglang 0.5.23 ServerArgs.port and .host


class Refused(Exception):
    """The launch is refused: a stable reason code, and one sentence with the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_hook(finders: Sequence[object], flags: Any) -> None:
    """Will a Python started like this one arm the hook? This one was: it shows.

    ``finders`` is sys.meta_path, ``flags`` sys.flags; both passed in so that the rule can be tried.
    """
    if os.environ.get(bootstrap.SWITCH) == "0":
        raise Refused(
            "switched_off",
            "SGLANG_EXT=0 switches the hook off, so nothing would be delivered or proven; unset it, or start "
            "python -m sglang.launch_server for plain SGLang",
        )
    if any(hasattr(finder, bootstrap.MARK) for finder in finders):
        return
    if flags.no_site:
        why, fix = "Python runs with -S, which skips site-packages' .pth files and sitecustomize", "drop -S"
    elif flags.ignore_environment:
        why = "Python runs with -E or -I, which ignores PYTHONPATH and with it sitecustomize/"
        fix = "drop the flag, or pip install sglang-ext into this environment"
    elif hider := hides_ours(sys.modules.get("sitecustomize"), os.environ.get("PYTHONPATH", "")):
        why = (
            f"{hider} was read at this Python's start in place of our sitecustomize/, which is on PYTHONPATH behind it"
        )
        fix = "put ours first on PYTHONPATH (it runs the next one itself), or pip install sglang-ext into this environment"
    else:
        why = "neither its .pth file nor sitecustomize/ was read at this Python's start"
        fix = "pip install sglang-ext into this environment, or put its sitecustomize/ folder on PYTHONPATH"
    raise Refused("hook_not_armed", f"the import hook is not armed: {why}; {fix}")


def hides_ours(module: object, path: str) -> str | None:
    """The sitecustomize in force, where it is another than ours and ours is on PYTHONPATH (``path``) too; None otherwise."""
    ours = [
        entry
        for entry in path.split(os.pathsep)
        if os.path.isfile(os.path.join(entry, "..", "sglang_ext", "bootstrap.py"))
    ]
    file = getattr(module, "__file__", None)
    if not ours or not isinstance(file, str):
        return None
    return None if any(os.path.dirname(os.path.abspath(file)) == os.path.abspath(entry) for entry in ours) else file


def check_upstream() -> overlay.Prepared:
    """Is the sglang that would be imported one we can patch? Its overlay is made here, once, not by eight workers."""
    spec = PathFinder.find_spec("sglang")
    if spec is None or spec.origin is None:
        raise Refused(
            "sglang_missing",
            f"no sglang can be imported by {sys.executable}; run: {sys.executable} -m pip install sglang-ext",
        )
    try:
        return overlay.prepare(os.path.dirname(os.path.dirname(spec.origin)))
    except overlay.OverlayError as error:
        raise Refused(error.code, str(error)) from None
    except PatchError as error:
        raise Refused(
            "patch_set_broken", f"{error} Or run: pip install --force-reinstall --no-deps sglang-ext"
        ) from None


def check_arguments(contract: Contract, argv: Sequence[str], release: str | None = None) -> None:
    """Refuse flags that need another value than the contract in that upstream release, as far as the command line shows it."""
    fights = rules.fights(contract, rules.flag_settings(argv), os.environ, release=release)
    if fights:
        raise Refused("arguments_fight_contract", "; ".join(fight.sentence for fight in fights))


def check_values(
    contract: Contract,
    environment: Mapping[str, str],
    accepted: Collection[str],
    paths: Sequence[str],
    profile: Profile | None = None,
) -> list[str]:
    """What the NCCL found on ``paths`` (a sys.path) will make of the values upstream is started with: the notes, in words.

    Refuses what it would ignore, misread or end over: the alternative is to find out after a model has been loaded.
    """
    from sglang_ext.nccl.ahead import look_ahead

    shell = {name: value for name, value in environment.items() if not looks_secret(name)}
    wanted = {name: term.want for name, term in contract.terms.items()}
    ahead = look_ahead(shell, wanted, paths)
    findings = ahead.findings
    grave = [finding for finding in findings if finding.severity == "fail" and finding.code not in accepted]
    if grave:
        raise Refused(grave[0].code, "; ".join(finding.message for finding in grave))
    return [
        f"{finding.code}: {finding.message}" + (" (accepted)" if finding.code in accepted else "")
        for finding in findings
    ]


def address(argv: Sequence[str]) -> tuple[str, int]:
    """Host and port upstream will listen on, from its command line."""
    port = value_of(argv, ("--port",), UPSTREAM_PORT)
    return value_of(argv, ("--host",), UPSTREAM_HOST), int(port) if port.isdigit() else 0


def check_port(host: str, port: int) -> None:
    """Refuse a port somebody listens on: upstream would find out after loading the model."""
    if not port:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As upstream's server does: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # a host name upstream resolves its own way; it will say what is wrong with it
            raise Refused(
                "port_taken",
                f"port {port} on {host} is taken already; stop what listens there, or choose another --port",
            ) from None
