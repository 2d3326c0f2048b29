"""Before anything starts: which NCCL a server started from here would load, and what that one will make of its environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from sglang_ext.nccl import library
from sglang_ext.nccl.conf import ConfFiles, load, read_file
from sglang_ext.nccl.finding import UNKNOWN, Finding
from sglang_ext.nccl.lint import lint
from sglang_ext.nccl.version import NEWEST_KNOWN, OLDEST_KNOWN, is_known, version_text
from sglang_ext.quick import NamedTuple


class Ahead(NamedTuple):
    """``version`` is None where no library is found on the path, and the rules are those of the newest one known."""

    version: tuple[int, ...] | None
    path: str | None
    conf: ConfFiles
    findings: tuple[Finding, ...]


def look_ahead(
    environment: Mapping[str, str],
    wanted: Mapping[str, str | None],
    paths: Sequence[str],
    *,
    version: tuple[int, ...] | None = None,
    read: Callable[[str], bytes] = read_file,
) -> Ahead:
    """What the NCCL on ``paths`` (a sys.path), or release ``version``, makes of ``environment`` with ``wanted`` applied to it."""
    path = None
    if version is None:
        found = library.installed(paths)
        version, path = (found[0].library.version, found[0].library.path) if found else (None, None)
    started_with = {name: value for name, value in environment.items() if name not in wanted}
    started_with |= {name: value for name, value in wanted.items() if value is not None}
    conf = load(started_with, version, home(), read)
    findings = lint(started_with, version, conf=conf, wanted=wanted)
    if version is not None and not is_known(version):
        known = f"{version_text(OLDEST_KNOWN[:2])} to {version_text(NEWEST_KNOWN[:2])}"
        message = f"NCCL {version_text(version)}: its rules are not known, those of {known} are; the rest is a guess"
        findings.append(Finding("nccl_unknown", UNKNOWN, None, message))
    return Ahead(version, path, conf, tuple(findings))


def home() -> str | None:
    """This user's home by the password file; a container may run as a user nobody has written down."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None
