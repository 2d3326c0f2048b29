"""What runs at a Python's start besides us: sitecustomize, usercustomize, import lines of .pth files, .start files.

One module of each name is run, the first on sys.path. Debian and Ubuntu put a sitecustomize into the standard library's
folder, which comes before every site-packages: that is why ours is never installed there, and a .pth arms the hook.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import FAIL, NOTE, OK, WARN, Result

PTH, START = "sglang_ext.pth", "sglang_ext.start"
START_SINCE = (3, 15)  # PEP 829: NAME.start files; one disables the import lines of the NAME.pth beside it
IMPORT_LINES_UNTIL = (3, 17)  # PEP 829: silently ignored from 3.18 on
# Part of the path -> whose sitecustomize lies there.
OWNERS = (
    ("/ddtrace/bootstrap/", "ddtrace's"),
    ("/opentelemetry/instrumentation/auto_instrumentation/", "OpenTelemetry's"),
    ("/newrelic/bootstrap/", "New Relic's"),
)
OURS = "ours"


def find_module(path: tuple[str, ...], name: str) -> list[str]:
    """Every file an ``import name`` could take, in order; the first one is taken."""
    found = []
    for place in dict.fromkeys(path):
        for tail in (os.path.join(name, "__init__.py"), f"{name}.py"):
            file = os.path.join(place, tail)
            if os.path.isfile(file):
                found.append(file)
                break
    return found


def owner(file: str, stdlib: str) -> str:
    """Whose it is: ours, a known tool's, the distribution's, or somebody else's."""
    try:
        with open(file, encoding="utf-8", errors="replace") as handle:
            text = handle.read(65536)
    except OSError:
        text = ""
    if "sglang_ext.bootstrap" in text:
        return OURS
    known = next((who for part, who in OWNERS if part in file), None)
    if known is None and os.path.dirname(file) == stdlib:
        return "the distribution's (Debian, Ubuntu)"
    return known or "somebody else's"


def import_lines(file: str) -> list[str]:
    """The lines of a .pth that Python runs (CPython Lib/site.py addpackage)."""
    try:
        with open(file, encoding="utf-8-sig", errors="replace") as handle:
            return [line.strip() for line in handle if line.startswith(("import ", "import\t"))]
    except OSError:
        return []


def pth_files(folder: str, ending: str = ".pth") -> list[str]:
    """Those of one site folder in the order they are read: by name, without hidden ones."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(ending) and not name.startswith(".")]


def ours_by_pth(here: Here) -> list[str]:
    """Our .pth files that are read, those with the line that arms the hook."""
    files = [file for folder in here.folders for file in pth_files(folder) if os.path.basename(file) == PTH]
    return [file for file in files if any("_sglang_ext" in line for line in import_lines(file))]


def check_sitecustomize(here: Here) -> Iterator[Result]:
    """Which one is live, whose it is, and whether ours is needed at all."""
    files = find_module(here.path, "sitecustomize") if not here.flags.no_site else []
    seen = tuple(
        f"{file} ({owner(file, here.stdlib)}{', hidden' if number else ''})" for number, file in enumerate(files)
    )
    live = owner(files[0], here.stdlib) if files else None
    if ours_by_pth(here):
        what = f"sitecustomize is {live}; " if live else "there is no sitecustomize; "
        yield Result(OK, f"{what}ours is not needed, as an installed .pth arms the hook", seen=seen)
    elif live == OURS:
        yield Result(OK, "our sitecustomize arms the hook, and hands on to the next one", seen=seen)
    elif any(owner(file, here.stdlib) == OURS for file in files):
        message = f"our sitecustomize is needed and hidden by {files[0]}, which is {live} and comes first on sys.path"
        yield Result(
            FAIL, message, "put our sitecustomize/ folder first on PYTHONPATH: it hands on to the one it hides", seen
        )
    else:
        what = f"sitecustomize is {live}" if live else "there is no sitecustomize"
        fix = "pip install sglang-ext into this environment, or put its sitecustomize/ folder first on PYTHONPATH"
        yield Result(FAIL, f"{what}, and no installed .pth of ours is read: nothing arms the hook", fix, seen)


def check_usercustomize(here: Here) -> Iterator[Result]:
    """It runs after sitecustomize, and only where the user site is enabled."""
    files = find_module(here.path, "usercustomize")
    if not files:
        yield Result(OK, "there is no usercustomize")
    elif here.flags.no_site or here.flags.no_user_site:
        yield Result(NOTE, f"{files[0]} is not run: the user site is disabled")
    else:
        message = f"usercustomize is {owner(files[0], here.stdlib)} and runs at every start, after the hook is armed"
        yield Result(NOTE, message, seen=tuple(files))


def check_pth(here: Here) -> Iterator[Result]:
    """Every .pth that runs code, in order, and ours among them: there, once, with its package."""
    files = [file for folder in here.folders for file in pth_files(folder)]
    running = [file for file in files if import_lines(file)]
    seen = tuple(f"{file}{' (ours)' if os.path.basename(file) == PTH else ''}" for file in running)
    present = [file for file in files if os.path.basename(file) == PTH]
    ours = ours_by_pth(here)
    dead = [file for file in present if file not in ours]
    for file in dead:
        fix = "run: pip install --force-reinstall --no-deps sglang-ext"
        yield Result(FAIL, f"{file} has no line that arms the hook, expected the one it was installed with", fix)
    if ours and not find_module(here.path, "sglang_ext"):
        message = f"{ours[0]} was left behind: the package it would import is gone"
        yield Result(FAIL, message, "remove that file, or run: pip install sglang-ext", seen)
    elif ours and here.version > IMPORT_LINES_UNTIL:
        message = f"{ours[0]} is read, but Python {here.version[0]}.{here.version[1]} no longer runs import lines of .pth files"
        yield Result(FAIL, message, "take a supported Python", seen)
    elif len(ours) > 1:
        message = f"our .pth file is read in {len(ours)} site folders: the hook is armed once, by the first one"
        yield Result(
            WARN, message, f"pip uninstall sglang-ext from one of {', '.join(map(os.path.dirname, ours))}", seen
        )
    elif ours:
        number = f"number {running.index(ours[0]) + 1} of the {len(running)}"
        message = f"ours is read, {number} .pth files that run code at every start"
        yield Result(OK, message, seen=seen)
    elif not dead:
        yield Result(NOTE, f"no .pth of ours is read, of {len(running)} that run code at every start", seen=seen)


def check_start(here: Here) -> Iterator[Result]:
    """`.start` files (PEP 829): from Python 3.15 on, one disables the import lines of the .pth of its name."""
    files = tuple(file for folder in here.folders for file in pth_files(folder, ".start"))
    if not files:
        yield Result(OK, "there are no .start files")
    elif here.version < START_SINCE:
        yield Result(
            NOTE,
            f"{len(files)} .start files are there; Python {here.version[0]}.{here.version[1]} ignores them",
            seen=files,
        )
    elif any(os.path.basename(file) == START for file in files):
        fix = f"remove {START}: this sglang-ext ships none"
        yield Result(FAIL, f"{START} is there, so the import line of the {PTH} beside it is ignored", fix, files)
    else:
        yield Result(NOTE, f"{len(files)} .start files run code at every start", seen=files)
