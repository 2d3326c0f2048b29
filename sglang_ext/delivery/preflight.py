"""What can be known before anything is started: each check costs milliseconds and saves a model load."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

from sglang_ext import bootstrap
from sglang_ext.contract import rules
from sglang_ext.contract.model import Contract
from sglang_ext.contract.names import looks_secret
from sglang_ext.contract.profile import Profile
from sglang_ext.delivery.options import value_of
from sglang_ext.patchset import former, local, origin, overlay
from sglang_ext.patchset.installed import stated_version
from sglang_ext.patchset.model import PatchError
from sglang_ext.run.listeners import listeners
from sglang_ext.run.process import all_stats

UPSTREAM_PORT, UPSTREAM_HOST = "30000", "127.0.0.1"  # sglang 0.5.23 ServerArgs.port and .host


class Refused(Exception):
    """The launch is refused: a stable reason code, and one sentence with the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def needs_hook() -> bool:
    """Must the import hook be at work in the server? Not where the files themselves are patched, in place or by a wheel."""
    try:
        return overlay.plan(upstream_root(), overlay.patches_folder()).mode not in former.KEPT
    except (Refused, overlay.OverlayError, PatchError):
        return True


def check_hook(finders: Sequence[object], flags: Any, needed: Callable[[], bool] = needs_hook) -> None:
    """Will a Python started like this one arm the hook? This one was: it shows.

    ``finders`` is sys.meta_path, ``flags`` sys.flags; both passed in so that the rule can be tried.
    """
    if os.environ.get(bootstrap.SWITCH) == "0":
        raise Refused(
            "switched_off",
            "SGLANG_EXT=0 switches the hook off, so nothing would be delivered or proven; unset it, or start "
            "python -m sglang.launch_server for plain SGLang",
        )
    if any(hasattr(finder, bootstrap.MARK) for finder in finders) or not needed():
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


def start_up_path() -> list[str]:
    """sys.path as this Python's start left it, without the folder of the script or module that runs."""
    return list(sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:])


def working_folder() -> str | None:
    """The folder ``python -m sglang.launch_server`` looks in first: the one it is started in, unless -P or -I is handed on.

    Our own first entry may be another one: the console script's is the folder of the script.
    """
    if getattr(sys.flags, "safe_path", False):
        return None
    try:
        return os.getcwd()
    except OSError:
        return None  # somebody has removed it


def find_upstream(path: Sequence[str], cwd: str | None) -> str:
    """The folder whose sglang the server will import, where it is the installed one and nobody else's.

    ``path`` is a sys.path, ``cwd`` the folder before it. Raises Refused.
    """
    root = origin.first_root([*([cwd] if cwd else []), *path])
    if root is None:
        raise Refused(
            "sglang_missing",
            f"no sglang can be imported by {sys.executable}; run: {sys.executable} -m pip install sglang-ext",
        )
    away = origin.hidden(root, path)
    if away is not None:
        here = cwd is not None and os.path.realpath(root) == os.path.realpath(cwd)
        how, fix = (
            ("as it is started in this folder", "start it in another one")
            if here
            else ("which comes first on sys.path", f"take {root} off PYTHONPATH")
        )
        raise Refused(
            "upstream_shadowed",
            f"the server would import {os.path.join(root, 'sglang')}, {how}, and not the installed {origin.described(away)} "
            f"in {os.path.dirname(away)}; {fix}",
        )
    both = origin.rivals(root)
    if both is not None:
        claims, file = both
        names = " ".join(dict.fromkeys(claim.split()[0] for claim in claims))
        raise Refused(
            "upstream_two_owners",
            f"expected the sglang package in {root} to belong to one distribution, found {file} installed by "
            f"{' and '.join(claims)}: which files are there depends on their order; pip uninstall {names}, then install the one "
            "you want",
        )
    return root


def upstream_root() -> str:
    """The folder whose sglang a server of this process will import. Raises Refused."""
    return find_upstream(start_up_path(), working_folder())


def check_upstream(root: str | None = None) -> overlay.Prepared:
    """Is the sglang that would be imported one we can patch? Its overlay is made here, once, not by eight workers."""
    try:
        prepared = overlay.prepare(root or upstream_root())
    except overlay.OverlayError as error:
        raise Refused(error.code, str(error)) from None
    except PatchError as error:
        raise Refused(
            "patch_set_broken", f"{error} Or run: pip install --force-reinstall --no-deps sglang-ext"
        ) from None
    if other := former.differs(prepared.mode):
        raise Refused("mode_differs", other)
    return prepared


def check_local_patches() -> None:
    """Refuse to leave out what was adopted with the installed sglang-ext where a checkout stands in its place."""
    from importlib import metadata

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = [str(found.locate_file("sglang_ext")) for found in metadata.distributions(name="sglang-ext")]
    elsewhere = [place for place in installed if os.path.isdir(place) and not os.path.samefile(place, package)]
    try:
        names = local.hidden(overlay.patches_folder()) if elsewhere else []
    except PatchError as error:
        raise Refused("local_patch_misfit", str(error)) from None
    if names:
        raise Refused(
            "local_patches_hidden",
            f"expected the sglang-ext that is installed in {os.path.dirname(elsewhere[0])}, found the one in "
            f"{os.path.dirname(package)}, which leaves out the local patches {', '.join(names)}; start in another folder, or "
            f"take that one off PYTHONPATH, or name the patches it is to have: {local.FOLDER}=DIR",
        )


def was_replaced(root: str, mode: str) -> str | None:
    """Has stock come over a baked or patched tree since the last launch? What there is now is kept for the next one."""
    try:
        base = overlay.cache_base()
    except overlay.OverlayError:
        return None
    version = stated_version(root)
    told = former.replaced(base, root, mode, version)
    former.note(base, root, mode, version)
    return told


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
    """Host and port upstream will listen on, from its command line and --config. Refused where the port is none."""
    file = configured(argv)
    text = value_of(argv, ("--port",), str(file.get("port", UPSTREAM_PORT)))
    # int() takes more than upstream's server can listen on, and digits of other scripts.
    port = int(text) if text.isascii() and text.isdigit() and len(text) < 100 else 0
    if not 0 < port < 65536:
        raise Refused("port_invalid", f"--port: expected a number from 1 to 65535, found {text[:40]!r}; correct it")
    return value_of(argv, ("--host",), str(file.get("host", UPSTREAM_HOST))), port


def configured(argv: Sequence[str]) -> dict[str, Any]:
    """The arguments in the file of --config, by name: the command line's own win (sglang 0.5.23
    srt/utils/server_args_config_parser.py). Empty where the file cannot be read: upstream has its own words for that.
    """
    if "--config" not in argv:
        return {}
    try:
        yaml = import_module("yaml")  # upstream brings it
    except ImportError:
        return {}
    try:
        with open(value_of(argv, ("--config",), ""), encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return {str(name).replace("-", "_"): value for name, value in found.items()} if isinstance(found, dict) else {}


def check_port(host: str, port: int) -> None:
    """Refuse a port somebody listens on: upstream would find out after loading the model."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As upstream's server does: a port in TIME_WAIT is free, one that is listened on is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except UnicodeError:
        return  # as below: a host no resolver can be asked for
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return  # a host name upstream resolves its own way; it will say what is wrong with it
        raise Refused(
            "port_taken",
            f"port {port} on {host} is taken already{_by_whom(port)}; stop what listens there, or choose another --port",
        ) from None


def _by_whom(port: int) -> str:
    """The processes that listen there, as far as /proc lets us see: another user's are closed to us."""
    found = sorted(listeners(port, all_stats()))
    return f" by pid {', '.join(map(str, found))}" if found else ""
