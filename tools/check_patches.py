#!/usr/bin/env python3
"""Check the patch set: headers, series, lock, and what it makes of upstream's own wheels.

    python tools/check_patches.py                      what this checkout and the sglang installed here can show
    python tools/check_patches.py --wheel FILE ...     and these wheels
    python tools/check_patches.py --wheels DIR         and every wheel of the lock, from a folder
    python tools/check_patches.py --fetch              ... or with pip, kept by their hash under .rig/wheels (gigabytes)
    python tools/check_patches.py --fetch --write      and write patches/upstream.toml from them
    ... --release X.Y.Z                                only that release, also one that is new to the lock
    ... --table                                        and docs/releases.md: is it what these wheels show? --write writes it

For each wheel: its sha256, the pristine sha256 of each target, the patches its release takes applied, the patched
sha256, the result compiled, its seams where the Probe lines say, and the patches taken out again.
Exit codes: 0 all good, 1 a fault, 2 a usage or input error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sglang_ext.patchset.lock import Lock
    from sglang_ext.patchset.series import PatchSet
    from sglang_ext.patchset.wheel_check import WheelCheck

    Choose = Callable[[str], PatchSet]

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".rig" / "wheels"
LOCK, PAGE = "upstream.toml", "docs/releases.md"
SCHEMA = "sglang-ext/check-patches/2"
# The wheels a release can have for the Pythons and machines we run on; a py3-none-any wheel fits each of them.
TAGS = tuple(
    (python, machine)
    for python in ("311", "312", "313")
    for machine in ("manylinux_2_34_aarch64", "manylinux_2_34_x86_64")
)


class InputError(Exception):
    """The tool cannot do what was asked; the message is one sentence with the fix."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks, print the report, return the exit code."""
    args = _arguments(argv)
    sys.path.insert(0, str(ROOT))
    try:
        if not args.patches.is_dir():
            raise InputError(f"{args.patches} is no folder; give the patch set's with --patches.")
        return _check(args)
    except InputError as error:
        print(f"check_patches: {error}", file=sys.stderr)
        return 2


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Exit codes: 0 all good, 1 a fault, 2 usage or input error.",
    )
    parser.add_argument("--patches", type=Path, default=ROOT / "patches", help="the patch set (default: patches/)")
    parser.add_argument("--wheel", type=Path, nargs="+", action="extend", default=[], help="upstream wheels")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="every wheel of the lock, from this folder")
    parser.add_argument(
        "--fetch", action="store_true", help="every wheel of the lock, with pip, kept under .rig/wheels"
    )
    parser.add_argument("--release", metavar="X.Y.Z", action="append", help="with --wheels or --fetch: only this one")
    parser.add_argument("--table", action="store_true", help=f"compare {PAGE} with what the wheels show")
    parser.add_argument("--write", action="store_true", help="write upstream.toml, and the table, if all is good")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv)
    given = args.wheel or args.wheels or args.fetch
    if args.write and not (given or args.table):
        parser.error("--write needs --wheel, --wheels or --fetch: what is written is made from wheels")
    if args.release and not (args.wheels or args.fetch):
        parser.error("--release needs --wheels or --fetch")
    return args


def _check(args: argparse.Namespace) -> int:
    from sglang_ext.patchset.lock import LockError, load_lock
    from sglang_ext.patchset.model import PatchError
    from sglang_ext.patchset.series_lint import lint_series

    lock_path = args.patches / LOCK
    lock: Lock | None = None
    faults = lint_series(args.patches)
    try:
        if lock_path.exists() or not args.write:
            lock = load_lock(lock_path)
    except LockError as error:
        faults.append(str(error))
    choose = _chooser(args.patches)
    checks: list[WheelCheck] = []
    if not faults:
        faults += _lint_headers(args.patches)
    if not faults or args.wheel:
        if lock is not None and not args.write:
            faults += _stale(choose, lock, args.patches)
            faults += _installed(choose, lock)
        checks = _wheels(_paths(args, lock), choose, None if args.write else lock)
        faults += [fault for check in checks for fault in check.faults]
    if args.write and not faults:
        try:
            lock = _new_lock(choose, lock, checks)
        except PatchError as error:
            faults.append(str(error))
        else:
            faults += _missing_patches(args.patches, lock)
    if lock is not None and not faults:
        faults += _page(args, lock, checks)
    if lock is not None and args.write and not faults:
        from sglang_ext.patchset.lock import dump_lock

        _write(lock_path, dump_lock(lock))
    _print(args, faults, checks, lock)
    return 1 if faults else 0


# --- what the checkout shows


def _chooser(root: Path) -> Choose:
    """The patch set of a release, by the series; each is read once."""
    from sglang_ext.patchset.series import load_patch_set, patch_names

    known: dict[tuple[str, ...], PatchSet] = {}

    def choose(version: str) -> PatchSet:
        names = patch_names(root, version)
        if names not in known:
            known[names] = load_patch_set(root, names)
        return known[names]

    return choose


def _lint_headers(root: Path) -> Iterator[str]:
    from sglang_ext.patchset.header import lint_header
    from sglang_ext.patchset.series import read_file, read_patch
    from sglang_ext.patchset.series_lint import listed_files

    for name in listed_files(root):
        yield from lint_header(read_patch(name, read_file(str(root), name)))


def _stale(choose: Choose, lock: Lock, root: Path) -> Iterator[str]:
    """What the lock was made for and what the patches are, without a wheel."""
    from sglang_ext.patchset.model import PatchError

    fix = "run tools/check_patches.py --fetch --table --write"
    for release in lock.releases:
        where = f"The lock {root / LOCK}, release {release.version}"
        try:
            patch_set = choose(release.version)
        except PatchError as error:
            yield f"{where}: {error}"
            continue
        if release.patches and release.patches != patch_set.names:
            yield f"{where} takes {', '.join(release.patches)}, by the series {', '.join(patch_set.names)}: {fix}."
        elif release.patchset != patch_set.digest:
            made, found = release.patchset[:12], patch_set.digest[:12]
            yield f"{where} was made with patch set {made}, found {found}: {fix}."
        if set(release.files) != set(patch_set.targets):
            odd = ", ".join(sorted(set(release.files) ^ set(patch_set.targets)))
            yield f"{where} and the patch set differ in their targets ({odd}): {fix}."
    yield from _missing_patches(root, lock)


def _missing_patches(root: Path, lock: Lock) -> Iterator[str]:
    from sglang_ext.patchset.series_lint import unused

    if all(release.patches for release in lock.releases):
        yield from unused(root, {name for release in lock.releases for name in release.patches})


def _installed(choose: Choose, lock: Lock) -> list[str]:
    """The sglang this Python would import, if it is one of the lock's, as released."""
    from importlib.machinery import PathFinder

    from sglang_ext.patchset.overlay import OverlayError, identify
    from sglang_ext.patchset.wheel_check import InstalledCheck

    spec = PathFinder.find_spec("sglang")
    if spec is None or spec.origin is None:
        return []
    root = str(Path(spec.origin).parent.parent)
    try:
        kind, release, _ = identify(root, lock)
    except OverlayError as error:
        print(f"not checked: {error}", file=sys.stderr)
        return []
    if kind != "pristine":
        print(f"not checked: the sglang {release.version} installed here is patched already", file=sys.stderr)
        return []
    print(f"checking the installed sglang {release.version} ...", file=sys.stderr)
    return InstalledCheck(root, release.version, choose, lock).faults


def _page(args: argparse.Namespace, lock: Lock, checks: Sequence[WheelCheck]) -> Iterator[str]:
    """Is docs/releases.md what the lock says, and with --table what the wheels show? With --write it is made so."""
    from sglang_ext.patchset.releases_page import render_page, stamp

    page = args.patches.parent / PAGE
    fix = "run tools/check_patches.py --fetch --table --write"
    if args.table:
        seen = {check.version for check in checks}
        unseen = [version for version in lock.supported() if version not in seen]
        if unseen:
            yield f"The table needs a wheel of each release, but has none of {', '.join(unseen)}: add --fetch."
            return
        text = render_page(lock, checks)
        if args.write:
            _write(page, text)
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            yield f"{page} is not what the wheels show: {fix}."
    elif page.exists() and not args.write and stamp(lock) not in page.read_text(encoding="utf-8"):
        yield f"{page} was made from another lock: {fix}."


# --- what the wheels show


def _wheels(paths: Sequence[Path], choose: Choose, lock: Lock | None) -> list[WheelCheck]:
    """Checked in the order of their names, each once, so that the result does not depend on the command line."""
    from sglang_ext.patchset.file_check import Memory
    from sglang_ext.patchset.wheel_check import WheelCheck, WheelError

    memory = Memory()
    checks: list[WheelCheck] = []
    for path in sorted({path.name: path for path in paths}.values(), key=lambda path: path.name):
        print(f"checking {path.name} ...", file=sys.stderr)
        try:
            checks.append(WheelCheck(path, choose, lock, memory))
        except WheelError as error:
            raise InputError(str(error)) from None
    return checks


def _paths(args: argparse.Namespace, lock: Lock | None) -> list[Path]:
    """The wheels that were asked for; with --table and none, those that --fetch kept."""
    paths: list[Path] = list(args.wheel)
    known = {release.version: release.wheels for release in lock.releases} if lock else {}
    wanted = args.release or list(known)
    if args.fetch:
        if not wanted:
            raise InputError("there is no lock that says which releases to fetch; add --release X.Y.Z.")
        for version in wanted:
            paths += _fetch(version, known.get(version, {}))
    if args.wheels:
        if not args.wheels.is_dir():
            raise InputError(f"{args.wheels} is no folder; give the one with the wheels.")
        paths += _from_folder(args.wheels, args.release, known, args.write)
    if args.table and not paths:
        paths = [path for hashes in known.values() for name, sha in hashes.items() if (path := _kept(name, sha))]
    return paths


def _from_folder(
    folder: Path, releases: Sequence[str] | None, known: dict[str, dict[str, str]], new: bool
) -> Iterator[Path]:
    """The lock's wheels, all of which must be there; to write the lock, whatever is there."""
    if new:
        for path in folder.glob("sglang-*.whl"):
            if not releases or path.name.split("-")[1] in releases:
                yield path
        return
    for version in releases or known:
        for name in known.get(version, {}):
            if not (folder / name).exists():
                raise InputError(f"{folder} has no {name}, which the lock lists; add --fetch or --release.")
            yield folder / name


def _kept(name: str, sha256: str) -> Path | None:
    """The wheel in our cache, if it is the right one."""
    from sglang_ext.patchset.overlay import sha256_file

    path = CACHE / sha256 / name
    return path if path.exists() and sha256_file(str(path)) == sha256 else None


def _fetch(version: str, known: dict[str, str]) -> Iterator[Path]:
    """The known wheels of a release, or of a new release all there are for us, from the index pip is set up for here."""
    from tempfile import TemporaryDirectory

    kept = {name: _kept(name, sha256) for name, sha256 in known.items()}
    yield from (path for path in kept.values() if path)
    missing = [name for name, path in kept.items() if not path]
    if known and not missing:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE) as folder:
        if known:
            for name in missing:
                _pip_download(version, *_tag(name), Path(folder))
        else:
            for python, machine in TAGS:
                _pip_download(version, python, machine, Path(folder))
        yield from [_keep(path) for path in sorted(Path(folder).glob("*.whl")) if not known or path.name in missing]


def _tag(name: str) -> tuple[str, str]:
    """The Python and machine to ask pip for, so that it picks this wheel."""
    python, _, machine = name.removesuffix(".whl").split("-")[-3:]
    return (python.removeprefix("cp"), machine) if machine != "any" else TAGS[-1]


def _keep(path: Path) -> Path:
    from sglang_ext.patchset.overlay import sha256_file

    place = CACHE / sha256_file(str(path)) / path.name
    place.parent.mkdir(exist_ok=True)
    return path.rename(place)


def _pip_download(version: str, python: str, machine: str, folder: Path) -> None:
    import subprocess

    print(f"downloading sglang {version} for Python {python}, {machine} ...", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--implementation", "cp", "--python-version", python, "--abi", f"cp{python}", "--platform", machine]
    command += ["--dest", str(folder), f"sglang=={version}"]
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if code:
        raise InputError(
            f"pip could not download sglang {version} for Python {python} (exit code {code}); use --wheels."
        )


# --- what is written


def _new_lock(choose: Choose, lock: Lock | None, checks: Sequence[WheelCheck]) -> Lock:
    """The lock that these (good) wheels make on top of the old one."""
    from sglang_ext.patchset.lock import Lock, LockedFile, LockError, Release, with_release
    from sglang_ext.patchset.model import PatchError

    for check in checks:
        files = {target: LockedFile(file.pristine, file.patched) for target, file in check.files.items()}
        patch_set = choose(check.version)
        new = Release(check.version, patch_set.digest, {check.file: check.sha256}, files, patch_set.names)
        lock = with_release(lock, new)
    for release in lock.releases if lock else ():
        try:
            found = choose(release.version).digest
        except PatchError as error:
            raise LockError(f"The lock also has release {release.version}. {error}") from None
        if release.patchset != found:
            raise LockError(
                f"The lock also has release {release.version}, made with another patch set: give its wheels"
                " too, or take it out of the lock."
            )
    return lock or Lock(())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text, encoding="utf-8", newline="\n")
    scratch.replace(path)
    print(f"wrote {path}", file=sys.stderr)


def _print(args: argparse.Namespace, faults: Sequence[str], checks: Sequence[WheelCheck], lock: Lock | None) -> None:
    wheels = [check.report() for check in checks]
    releases = lock.supported() if lock else ()
    if args.json:
        import json

        report = {"schema": SCHEMA, "ok": not faults, "releases": releases, "faults": faults, "wheels": wheels}
        print(json.dumps(report, indent=2))
        return
    for fault in faults:
        print(fault)
    for wheel in wheels:
        print(f"{'ok   ' if wheel['ok'] else 'FAULT'} {wheel['wheel']}")
    count = "no fault" if not faults else "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    print(f"releases locked: {len(releases)}, wheels checked: {len(wheels)}, {count}")


if __name__ == "__main__":
    sys.exit(main())
