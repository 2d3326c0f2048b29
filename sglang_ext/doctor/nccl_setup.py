"""NCCL before a server starts: which library its processes would load, what else could take its place, what steers it.

torch finds libnccl by its RPATH, which the loader asks before LD_LIBRARY_PATH (torch 2.9: `$ORIGIN/../../nvidia/nccl/lib`).
But a process has one library of a name: whichever is loaded first serves everybody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from sglang_ext.contract.names import is_tuning, looks_secret, shown
from sglang_ext.doctor.distributions import distributions
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.loading import cached, find, library_path, preloaded
from sglang_ext.doctor.result import FAIL, NOTE, OK, UNKNOWN, WARN, Result, listed
from sglang_ext.nccl import conf
from sglang_ext.nccl.library import WHEEL_PATH, installed, of_file
from sglang_ext.nccl.version import parse_version, version_text

SONAME = "libnccl.so.2"
FAMILY = "nvidia-nccl-"
OTHER_NAME = "SGLANG_NCCL_SO_PATH"  # sglang 0.5.23 pynccl_wrapper.py, find_nccl_library
# Kind -> its variable and the library NCCL looks for when that is not set (NCCL src/plugin/*.cc, up to 2.30.7).
PLUGINS = (
    ("net", "NCCL_NET_PLUGIN", "libnccl-net.so"),
    ("tuner", "NCCL_TUNER_PLUGIN", "libnccl-tuner.so"),
    ("profiler", "NCCL_PROFILER_PLUGIN", "libnccl-profiler.so"),
    ("env", "NCCL_ENV_PLUGIN", "libnccl-env.so"),
)
ENV_PLUGIN_SINCE = (2, 28, 7)
SAID_BY_CONFIG = ("conf_sets", "conf_overridden")
SEVERITY = {"fail": FAIL, "unknown": UNKNOWN, "note": NOTE}


def stated(path: str) -> str:
    """For a sentence: the version of a file, or why there is none."""
    try:
        version = of_file(path).version
    except OSError as error:
        return f"unreadable, {error.strerror}"
    return version_text(version) if version else "of no version its bytes tell"


def wheel_library(here: Here) -> str | None:
    """The library that torch's RPATH names: the one of the nvidia-nccl wheel."""
    return next((one.library.path for one in installed(here.path)), None)


def version_here(here: Here) -> tuple[int, ...] | None:
    """The version the rules are to be taken of; None where no library tells one."""
    for path in (here.environ.get(OTHER_NAME), wheel_library(here), find(SONAME, here.environ)):
        try:
            if path and (version := of_file(path).version):
                return version
        except OSError:
            continue  # SGLang and the loader go on to the next one as well
    return None


def check_library(here: Here) -> Iterator[Result]:
    """The file against the metadata: nvidia-nccl-cu12 and -cu13 install one path, and the last one installed wins."""
    found = installed(here.path)
    owners = [one for one in distributions(here.path) if one.name.startswith(FAMILY)]
    again = f"run: pip install --force-reinstall --no-deps {owners[0].name}=={owners[0].version}" if owners else ""
    if not found:
        system = find(SONAME, here.environ)
        if owners:
            message = (
                f"{owners[0].name} {owners[0].version} is installed and {WHEEL_PATH} is not there or cannot be read"
            )
            yield Result(FAIL, message, again)
        elif system:
            yield Result(
                NOTE, f"no nvidia-nccl wheel is installed; {system}, {stated(system)}, would be found by the loader"
            )
        else:
            fix = "install torch for CUDA, which brings one"
            yield Result(WARN, "no NCCL library was found: neither a wheel's nor one the loader knows", fix)
        return
    first = found[0]
    claims = [f"{claim.distribution} {claim.version}" for claim in first.claims]
    if first.library.version is None:
        message = f"{first.library.path} tells no NCCL version: {first.library.detail}"
        yield Result(UNKNOWN, message, again or "reinstall the nvidia-nccl wheel", tuple(claims))
        return
    what = f"NCCL {version_text(first.library.version)} by its bytes"
    if first.claims and all(parse_version(claim.version) != first.library.version for claim in first.claims):
        message = f"{first.library.path} is {what}, expected that of {listed(claims)}"
        yield Result(FAIL, message, again)
    elif len(claims) > 1:
        message = f"{first.library.path} is {what}, and {listed(claims)} both claim it: the last one installed won"
        fix = "pip uninstall both, then install the one torch wants again"
        yield Result(FAIL, message, fix)
    else:
        yield Result(OK, f"{first.library.path} is {what}", seen=tuple(claims))
    for other in found[1:]:
        yield Result(NOTE, f"{other.library.path} comes later on sys.path and is not the one torch loads")


def check_loader(here: Here) -> Iterator[Result]:
    """Another libnccl that may be loaded first."""
    ours = wheel_library(here)
    home = os.path.realpath(ours) if ours else ""
    quiet = True

    def other(path: str) -> bool:
        return os.path.realpath(path) != home

    for path in preloaded(here.environ):
        if os.path.basename(path).startswith("libnccl.so"):
            file = find(path, here.environ)
            quiet = quiet and file is not None and not other(file)
            if file is None:
                yield Result(
                    FAIL,
                    f"LD_PRELOAD names {path}, which is not there: every process goes without it",
                    "correct LD_PRELOAD",
                )
            elif other(file):
                message = f"LD_PRELOAD names {file}, NCCL {stated(file)}: every process has that one, not the wheel's"
                yield Result(WARN, message, "take it out of LD_PRELOAD, unless that build is meant")
    for folder in library_path(here.environ):
        file = os.path.join(folder, SONAME)
        if os.path.isfile(file) and other(file):
            quiet = False
            message = (
                f"LD_LIBRARY_PATH has {file}, NCCL {stated(file)}: whatever loads {SONAME} before torch gets that one"
            )
            yield Result(WARN, message, f"take {folder} off LD_LIBRARY_PATH, unless that build is meant")
    chosen = here.environ.get(OTHER_NAME)
    if chosen:
        quiet = quiet and os.path.isfile(chosen) and not other(chosen)
        if not os.path.isfile(chosen):
            message = (
                f"{OTHER_NAME} names {shown(chosen)}, which is not there: SGLang's own communicator switches itself off"
            )
            yield Result(WARN, message, f"unset {OTHER_NAME}, or name the library")
        elif other(chosen):
            message = f"{OTHER_NAME} names {chosen}, NCCL {stated(chosen)}: a worker then holds two NCCL libraries"
            yield Result(WARN, message, f"unset {OTHER_NAME}, unless that build is meant")
    if quiet:
        system = tuple(
            f"{path}: NCCL {stated(path)}, the system's, which torch's RPATH passes over"
            for path in cached(SONAME)
            if other(path)
        )
        yield Result(
            OK, "neither LD_PRELOAD, LD_LIBRARY_PATH nor SGLANG_NCCL_SO_PATH names another NCCL library", seen=system
        )


def home() -> str | None:
    """The home folder of this user in the password database."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None  # a uid without a name, as in some containers


def check_config(here: Here) -> Iterator[Result]:
    """NCCL's own files: they set variables inside each process, where neither this shell nor /proc shows them."""
    version = version_here(here)
    found = conf.load(here.environ, version, home())
    named = here.environ.get(conf.FILE_VARIABLE)
    read = {file.path for file in found.files}
    looked_for = conf.paths(here.environ, version, home())
    if named and named in looked_for and named not in read and named not in found.unreadable:
        message = (
            f"{conf.FILE_VARIABLE} names {shown(named)}, which is not there, and ~/{conf.USER_FILE} is not read instead"
        )
        yield Result(WARN, message, f"correct the path, or unset {conf.FILE_VARIABLE}")
    for path in found.unreadable:
        yield Result(
            UNKNOWN, f"{path} is there and cannot be read, so what it sets is not known", "run as the server's user"
        )
    counting = conf.merged(here.environ, found)
    for file in found.files:
        told = {entry.name: entry for entry in reversed(file.entries)}  # the first definition of a name counts
        seen = []
        for name, entry in sorted(told.items()):
            loses = "" if counting[name].source == file.path else f" (not in force: {counting[name].source} has it)"
            value = f"{name}={shown(entry.value)}" if is_tuning(name) else "another variable, not shown"
            seen.append(f"{value}, line {entry.line}{loses}")
        if told:
            names = listed([name for name in sorted(told) if is_tuning(name)]) or "variables outside NCCL"
            message = f"{file.path} sets {names} in every process that starts NCCL; no environment shows it"
            yield Result(NOTE, message, "give them with --profile or --set instead, where they are proven", tuple(seen))
        else:
            yield Result(OK, f"{file.path} is there and sets nothing")
    if not found.files and not found.unreadable and not named:
        yield Result(OK, f"NCCL's configuration files are not there ({', '.join(looked_for)})")


def check_variables(here: Here) -> Iterator[Result]:
    """This shell's NCCL_*, and those of NCCL's files, as the installed NCCL takes them."""
    from sglang_ext.nccl.lint import lint

    version = version_here(here)
    held = {name: value for name, value in here.environ.items() if name.startswith("NCCL_")}
    files = conf.load(here.environ, version, home())
    of = f"NCCL {version_text(version)}" if version else "the newest NCCL we know"
    found = [one for one in lint(here.environ, version, conf=files) if one.code not in SAID_BY_CONFIG]
    for finding in found:
        if finding.variable and looks_secret(finding.variable):
            yield Result(
                NOTE, f"{finding.code}: a variable whose name looks like that of a secret; nothing of it is shown"
            )
            continue
        message, fix = (finding.message, "") if finding.severity == NOTE else parted(finding.message)
        yield Result(SEVERITY[finding.severity], f"{finding.code}: {message}", fix)
    names = tuple(f"{name}={shown(value)}" for name, value in sorted(held.items()) if is_tuning(name))
    if not held and not found:
        yield Result(OK, "this shell holds no NCCL_* variable")
    elif not found:
        yield Result(OK, f"this shell's {len(held)} NCCL_* variables are taken by {of} as they are written", seen=names)


def parted(sentence: str) -> tuple[str, str]:
    """A sentence whose last clause is the fix."""
    message, _, fix = sentence.rpartition("; ")
    return (message, fix) if message else (sentence, "")


def candidates(kind: str, value: str, default: str) -> list[str]:
    """What NCCL would dlopen, in order: the text itself, then with its name put into the default's (plugin_open.cc)."""
    if not value:
        return [default]
    if value.startswith("STATIC_PLUGIN"):
        return []
    return [value, f"libnccl-{kind}-{value}.so"]


def check_plugins(here: Here) -> Iterator[Result]:
    """Plugins change what NCCL does, and one that cannot be found is passed over without an error.

    They may be named in NCCL's own files: those are read before the first plugin is looked for.
    """
    version = version_here(here)
    held = conf.effective(here.environ, version, home())
    found: list[Result] = []
    for kind, variable, default in PLUGINS:
        value, source = held.get(variable, conf.Seen("", conf.ENVIRONMENT))
        if value.lower() == "none" or (kind == "env" and version is not None and version < ENV_PLUGIN_SINCE):
            continue
        for one in value.split(",") if kind == "net" else [value]:  # a list since 2.27, for this kind only
            said = variable if source == conf.ENVIRONMENT else f"{variable} in {source}"
            found += plugin(here, kind, said, candidates(kind, one, default), one)
    yield from found or [Result(OK, "no NCCL plugin would be loaded")]


def plugin(here: Here, kind: str, said: str, names: list[str], value: str) -> Iterator[Result]:
    """One plugin that is asked for by its variable, or would be found by its default name. ``said``: the variable, and where."""
    file = next((path for name in names if (path := find(name, here.environ))), None)
    how = f"as {said} says" if value else "as it has the default name"
    variable = said.partition(" ")[0]
    if file is None:
        if value and names:
            message = (
                f"{said} names {shown(value)}, and no library is found for it ({' or '.join(names)}): "
                "NCCL goes on without"
            )
            yield Result(WARN, message, f"put its folder on LD_LIBRARY_PATH, or unset {said}")
    elif kind == "env":
        message = f"{file} is loaded as env plugin, {how}: it answers every look-up of a variable, whatever the environment holds"
        yield Result(WARN, message, f"set {variable}=none, unless it is meant")
    else:
        yield Result(NOTE, f"{file} is loaded as {kind} plugin, {how}")
