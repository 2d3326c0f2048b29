"""This environment as plain values: what the checks look at, so that each can be tried on another one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple


class Here(NamedTuple):
    """One Python and the shell it was started from."""

    executable: str
    version: tuple[int, int]
    flags: Any  # sys.flags, or something with its attributes
    switches: tuple[str, ...]  # what a child must be started with to be a Python of the same kind
    finders: tuple[object, ...]  # sys.meta_path
    path: tuple[str, ...]  # sys.path as start-up left it: without the folder of the script or module that runs
    folders: tuple[str, ...]  # the site folders, in the order Python reads their .pth files
    stdlib: str
    environ: Mapping[str, str]
    cwd: str | None  # None: it has been removed

    @property
    def child_path(self) -> tuple[str, ...]:
        """Where ``python -m sglang.launch_server`` will import from: its first entry is the folder it is started in."""
        first = () if getattr(self.flags, "safe_path", False) or self.cwd is None else (self.cwd,)
        return first + self.path


def here() -> Here:
    """This process's own."""
    return Here(
        sys.executable,
        (sys.version_info[0], sys.version_info[1]),
        sys.flags,
        tuple(switches()),
        tuple(sys.meta_path),
        tuple(sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:]),  # Python 3.10 has no such flag
        site_folders(),
        os.path.dirname(os.__file__),
        dict(os.environ),
        folder(),
    )


def switches() -> list[str]:
    """The flags of this interpreter as words: the very ones multiprocessing starts its children with."""
    import subprocess

    found: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009 - typeshed has no name for it
    return found


def site_folders() -> tuple[str, ...]:
    """CPython 3.11-3.13 Lib/site.py main(): a virtual environment's own folder, the user's, then those of the prefixes."""
    if sys.flags.no_site:
        return ()
    import site

    own = site.getsitepackages([sys.prefix]) if sys.prefix != sys.base_prefix else []
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return tuple(p for p in dict.fromkeys([*own, *users, *site.getsitepackages()]) if os.path.isdir(p))


def folder() -> str | None:
    """The working directory, or None where somebody has removed it."""
    try:
        return os.getcwd()
    except OSError:
        return None
