"""Installed packages: which sglang is there, who else claims its files, what hides it, which pins its version breaks."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sglang_ext.doctor.distributions import Distribution, distributions, named, normal, packages_of
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.pins import parse, rejects
from sglang_ext.doctor.result import FAIL, NOTE, OK, WARN, Result, listed
from sglang_ext.doctor.upstream import lock
from sglang_ext.patchset import origin

SHARED = ("sglang", "sglang_ext")  # packages that two distributions may install over each other


def check_sglang(here: Here) -> Iterator[Result]:
    """Its version, against the lock; a local part says that its files are patched already."""
    found = named(distributions(here.child_path), "sglang")
    known = lock()
    supported = known.supported()
    install = f"run: {here.executable} -m pip install sglang=={supported[-1]}"
    if not packages_of(here.child_path, "sglang"):
        if found and found[0].editable_from:
            message = (
                f"sglang is an editable install of {found[0].editable_from} by an import finder; the launcher misses it"
            )
            yield Result(FAIL, message, "install it without -e, or with --config-settings editable_mode=compat")
        elif found:
            yield Result(
                FAIL, f"{found[0].folder} is there and no sglang package beside it", f"{install} --force-reinstall"
            )
        else:
            yield Result(FAIL, f"no sglang can be imported by {here.executable}", install)
        return
    if not found:
        yield Result(WARN, "sglang can be imported and no metadata says which release it is; its files decide", install)
        return
    public, _, local = found[0].version.partition("+")
    if public not in supported:
        message = f"sglang {found[0].version} is installed, expected one this sglang-ext patches: {known.described()}"
        yield Result(FAIL, message, install)
    else:
        baked = f", a build with local version +{local}" if local else ""
        yield Result(OK, f"sglang {found[0].version} is installed and in the lock{baked}", seen=(found[0].folder,))


def check_sglang_ext(here: Here) -> Iterator[Result]:
    """Is the sglang_ext that is imported the one that is installed?"""
    from sglang_ext import __version__

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = named(distributions(here.path), "sglang-ext")
    first = next(iter(packages_of(here.child_path, "sglang_ext")), None)
    if found and first and first != os.path.join(found[0].place, "sglang_ext") and not found[0].editable_from:
        message = f"sglang-ext {found[0].version} is installed in {found[0].place} and hidden by {first}"
        where = os.path.dirname(first)
        here_itself = "start in another folder: Python looks into this one first"
        fix = here_itself if where == os.getcwd() else f"take {where} off PYTHONPATH, or start in another folder"
        yield Result(WARN, f"{message}: its own patches and local patches count", fix)
    elif found and first is None and not found[0].editable_from:
        message = f"{found[0].folder} is there and no sglang_ext package beside it"
        yield Result(FAIL, message, "run: pip install --force-reinstall --no-deps sglang-ext")
    elif found:
        yield Result(OK, f"sglang-ext {found[0].version} is installed", seen=(found[0].folder,))
    else:
        yield Result(NOTE, f"sglang-ext {__version__} is not installed: it runs from {package}")


def check_pins(here: Here) -> Iterator[Result]:
    """Requirements of other distributions that the installed sglang does not meet."""
    found = distributions(here.path)
    sglang = named(found, "sglang")
    if not sglang:
        yield Result(NOTE, "no sglang is installed, so no requirement on it was compared")
        return
    version = sglang[0].version
    broken = False
    for one in found:
        for line in one.headers("Requires-Dist"):
            name, pins = parse(line)
            for pin in pins if normal(name) == "sglang" else ():
                if not rejects(pin, version):
                    continue
                broken = True
                message = f"{one.name} {one.version} requires sglang{pin.text}, found {version}"
                if "+" in pin.version and "+" not in version:
                    fix = f"a patched build was replaced by the stock one; run: pip install sglang=={pin.version} from your index"
                    yield Result(FAIL, message, fix)
                elif not rejects(pin, version.partition("+")[0]):
                    yield Result(
                        WARN, f"{message}, whose local part it does not accept", f"pin it as sglang=={version}"
                    )
                else:
                    yield Result(WARN, message, "install the release it wants, or take that package out; see pip check")
    if not broken:
        yield Result(OK, f"every requirement on sglang in this environment is met by {version}")


def check_owners(here: Here) -> Iterator[Result]:
    """Two distributions that install the same file: the last one installed wins, and the metadata of the other is wrong."""
    clean = True
    for place in dict.fromkeys(one.place for one in distributions(here.path)):
        for package in SHARED:
            both = origin.rivals(place, package)
            if both is None:
                continue
            clean = False
            names, file = both
            mine = " ".join(dict.fromkeys(name.split()[0] for name in names))
            fix = f"pip uninstall {mine}, then install the one you want again"
            yield Result(
                FAIL,
                f"{listed(names)} both install the {package} package: which files are there depends on the order",
                fix,
                (file,),
            )
    if clean:
        yield Result(OK, "no two distributions install the same sglang or sglang_ext package")


def check_duplicates(here: Here) -> Iterator[Result]:
    """Two metadata folders of one name in one place: a half-finished upgrade, and tools disagree on which counts."""
    seen: dict[tuple[str, str], list[Distribution]] = {}
    for one in distributions(here.path):
        seen.setdefault((one.place, one.name), []).append(one)
    double = [group for group in seen.values() if len(group) > 1]
    for group in double:
        versions = " and ".join(one.version for one in group)
        # pip leaves `~ame-1.0.dist-info` behind when it is interrupted; its name differs, so it is not found here.
        grave = FAIL if group[0].name in ("sglang", "sglang-ext", "torch") else WARN
        message = f"{group[0].name} is installed twice in {group[0].place}: {versions}"
        yield Result(
            grave, message, f"remove the stale metadata folder, then pip install --force-reinstall {group[0].name}"
        )
    if not double:
        yield Result(OK, "every distribution is there once")


def check_shadow(here: Here) -> Iterator[Result]:
    """Is the sglang a server would import the installed one? A scratch copy in the folder it is started in comes first."""
    copies = packages_of(here.child_path, "sglang")
    if not copies:
        yield Result(NOTE, "there is no sglang that could be hidden")
        return
    place = os.path.dirname(copies[0])
    away = origin.hidden(place, here.path)
    others = tuple(f"{copy} (hidden)" for copy in copies[1:])
    if away is None:
        yield Result(OK, f"sglang would be imported from {copies[0]}", seen=others)
        return
    in_cwd = here.cwd is not None and os.path.realpath(place) == os.path.realpath(here.cwd)
    how = "as a server is started here" if in_cwd else "as it comes first on sys.path"
    fix = "start in another folder" if in_cwd else f"take {place} off PYTHONPATH"
    hidden = f"{origin.described(away)} in {os.path.dirname(away)} is hidden"
    yield Result(FAIL, f"sglang would be imported from {copies[0]}, {how}; {hidden}", fix, others)


def check_editable(here: Here) -> Iterator[Result]:
    """Editable installs: their files change without a reinstall."""
    found = distributions(here.path)
    editable = [
        (one, one.editable_from) for name in ("sglang", "sglang-ext") for one in named(found, name) if one.editable_from
    ]
    for one, home in editable:
        yield Result(
            NOTE, f"{one.name} {one.version} is an editable install of {home}: its files can change at any time"
        )
    if not editable:
        yield Result(OK, "neither sglang nor sglang-ext is an editable install")
