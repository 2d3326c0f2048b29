"""The interpreter: is it one upstream has wheels for, what do its flags do to the hook, and would a child have it armed?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from sglang_ext import bootstrap
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import FAIL, NOTE, OK, UNKNOWN, WARN, Result

# Flag of sys.flags -> its switch, the variable that does the same, and what it does to us. -I sets the next three.
FLAGS = (
    ("isolated", "-I", "", "PYTHONPATH, every other PYTHON* variable and user site are ignored; an installed .pth still counts"),
    ("ignore_environment", "-E", "", "PYTHONPATH is ignored, and a sitecustomize/ folder on it; an installed .pth still counts"),
    ("no_user_site", "-s", "PYTHONNOUSERSITE", "the user site and its .pth files are not read: a --user install is lost"),
    ("safe_path", "-P", "PYTHONSAFEPATH", "no module is taken from the folder a server is started in; the hook is not affected"),
    ("dont_write_bytecode", "-B", "PYTHONDONTWRITEBYTECODE",
     "every process of a server compiles some 4,000 modules anew; the hook is not affected"),
)  # fmt: skip
OLDEST, NEWEST = (3, 11), (3, 13)  # pyproject.toml, requires-python
COUNT = f"import sys; print(sum(hasattr(f, {bootstrap.MARK!r}) for f in sys.meta_path))"
PATIENCE = 10.0  # seconds for a Python that does nothing


def check_version(here: Here) -> Iterator[Result]:
    """Against our own range, then against the locked wheels of the installed release: some are for exact Python versions."""
    from sglang_ext.doctor.distributions import distributions, named
    from sglang_ext.doctor.upstream import lock

    found = f"{here.executable} is Python {here.version[0]}.{here.version[1]}"
    fix = "make the environment with one of these"
    if not OLDEST <= here.version <= NEWEST:
        expected = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        yield Result(FAIL, f"{found}, expected {expected}, which sglang-ext supports", fix)
        return
    known = lock()
    stated = next((one.version.partition("+")[0] for one in named(distributions(here.child_path), "sglang")), "")
    release = known.release(stated) or known.releases[-1]
    tags = {name.split("-")[2] for name in release.wheels}
    exact = sorted((tag for tag in tags if tag.startswith("cp")), key=lambda tag: int(tag[3:]))
    if exact and f"cp{here.version[0]}{here.version[1]}" not in tags:
        supported = ", ".join(f"{tag[2]}.{tag[3:]}" for tag in exact)
        yield Result(FAIL, f"{found}, expected one that sglang {release.version} has wheels for: {supported}", fix)
    else:
        yield Result(OK, f"{found}, one that sglang {release.version} has wheels for")


def check_flags(here: Here) -> Iterator[Result]:
    """What each flag in force does to the hook."""
    if here.flags.no_site:
        yield Result(
            FAIL, "Python runs with -S, which skips every .pth file and sitecustomize: nothing arms the hook", "drop -S"
        )
    implied = ("ignore_environment", "no_user_site", "safe_path") if here.flags.isolated else ()
    quiet = True
    for name, switch, variable, effect in FLAGS:
        if getattr(here.flags, name, False) and name not in implied:
            quiet = False
            by_variable = variable and here.environ.get(variable) and not here.flags.ignore_environment
            yield Result(NOTE, f"{variable if by_variable else switch} is in force: {effect}")
    if quiet and not here.flags.no_site:
        yield Result(OK, "no flag or PYTHON* variable keeps .pth files or sitecustomize from being read")


def check_hook(here: Here) -> Iterator[Result]:
    """Is this process's own hook armed?"""
    if any(hasattr(finder, bootstrap.MARK) for finder in here.finders):
        yield Result(OK, "the import hook is armed in this Python")
    elif here.flags.no_site:
        yield Result(FAIL, "the import hook is not armed: Python runs with -S", "drop -S")
    elif here.flags.ignore_environment:
        message = "the import hook is not armed: no installed .pth arms it, and -E or -I ignores PYTHONPATH and sitecustomize/"
        yield Result(FAIL, message, "drop the flag, or pip install sglang-ext into this environment")
    else:
        message = (
            "the import hook is not armed: neither its .pth file nor sitecustomize/ was read at this Python's start"
        )
        fix = "pip install sglang-ext into this environment, or put its sitecustomize/ folder on PYTHONPATH"
        yield Result(FAIL, message, fix)


def check_child(here: Here) -> Iterator[Result]:
    """Start one and ask it. Workers are started with the same flags (multiprocessing.spawn hands them on)."""
    import subprocess

    from sglang_ext.doctor.upstream import needs_hook

    # Somewhere else, as a worker may be: a relative entry of PYTHONPATH is lost there.
    command = [here.executable, *here.switches, "-c", COUNT]
    try:
        done = subprocess.run(
            command, env=dict(here.environ), cwd="/", capture_output=True, text=True, timeout=PATIENCE, errors="replace"
        )
    except subprocess.TimeoutExpired:
        yield Result(UNKNOWN, f"a Python that does nothing did not end within {PATIENCE:g} s", "look at its .pth files")
        return
    except OSError as error:
        yield Result(UNKNOWN, f"{here.executable} could not be started ({error.strerror})", "see its permissions")
        return
    try_it = f"run: {' '.join(command[:-2])} -c pass"
    if done.returncode != 0 or not done.stdout.strip().isdigit():
        # Its output is not repeated: nobody knows what somebody else's start-up code prints.
        yield Result(
            FAIL, f"a Python started like this one ends with status {done.returncode} instead of running", try_it
        )
        return
    if int(done.stdout) == 0:
        message = (
            "a Python started like this one from another folder does not have the import hook armed, so no worker would"
        )
        relative = [p for p in here.environ.get("PYTHONPATH", "").split(os.pathsep) if p and not os.path.isabs(p)]
        fix = (
            "write absolute paths into PYTHONPATH"
            if relative
            else "see the checks on flags, .pth files and sitecustomize"
        )
        yield (
            Result(FAIL, message, fix)
            if needs_hook(here)
            else Result(NOTE, f"{message}; the files are patched themselves")
        )
    else:
        yield Result(
            OK, "a Python started like this one, from another folder, has the import hook armed: so will every worker"
        )
    if done.stderr:
        lines = done.stderr.count("\n")
        yield Result(
            WARN, f"every start of this Python writes to stderr before it does anything ({lines} lines)", try_it
        )
