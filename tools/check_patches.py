#!/usr/bin/env python3
"""Check the patch set: headers, series, lock, and what it makes of upstream's own wheels.

    python tools/check_patches.py                        what can be known without a wheel
    python tools/check_patches.py --wheel FILE ...       and against these wheels
    python tools/check_patches.py --download             and against every wheel of the lock, from pip's index
    python tools/check_patches.py --download --write     and write patches/upstream.toml from them

For each wheel: its sha256, the pristine sha256 of each target, the patches applied, the patched sha256, the
result compiled, its seams where the Probe lines say, and the patches taken out again.
Exit codes: 0 all good, 1 a fault, 2 a usage or input error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sglang_ext.patchset.lock import Lock
    from sglang_ext.patchset.series import PatchSet
    from sglang_ext.patchset.wheel_check import WheelCheck

ROOT = Path(__file__).resolve().parent.parent
LOCK = "upstream.toml"
SCHEMA = "sglang-ext/check-patches/1"
# The wheels a release is expected to have; once it is in the lock, the lock says.
TAGS = tuple(
    f"cp{python}-cp{python}-manylinux_2_34_{machine}"
    for python in ("311", "312", "313")
    for machine in ("aarch64", "x86_64")
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
        if not args.download:
            return _check(args.wheel, args)
        if args.wheel_dir:
            args.wheel_dir.mkdir(parents=True, exist_ok=True)
            return _check([*args.wheel, *_download(args, args.wheel_dir)], args)
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            return _check([*args.wheel, *_download(args, Path(folder))], args)
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
    parser.add_argument("--download", action="store_true", help="fetch every wheel with pip, as pip is set up here")
    parser.add_argument("--upstream", metavar="X.Y.Z", help="with --download: which release (default: the lock's)")
    parser.add_argument("--wheel-dir", type=Path, metavar="DIR", help="with --download: keep and reuse wheels here")
    parser.add_argument("--write", action="store_true", help="write upstream.toml from the wheels, if all is good")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv)
    if args.write and not (args.wheel or args.download):
        parser.error("--write needs --wheel or --download: the lock is made from wheels")
    if (args.upstream or args.wheel_dir) and not args.download:
        parser.error("--upstream and --wheel-dir need --download")
    return args


def _check(wheels: Sequence[Path], args: argparse.Namespace) -> int:
    from sglang_ext.patchset.lock import LockError, load_lock
    from sglang_ext.patchset.model import PatchError
    from sglang_ext.patchset.series import lint_series, load_patch_set
    from sglang_ext.patchset.wheel_check import WheelCheck, WheelError

    lock_path = args.patches / LOCK
    lock: Lock | None = None
    patch_set: PatchSet | None = None
    faults = lint_series(args.patches)
    try:
        if lock_path.exists() or not args.write:
            lock = load_lock(lock_path)
    except LockError as error:
        faults.append(str(error))
    try:
        patch_set = load_patch_set(args.patches)
    except PatchError as error:
        faults += [] if str(error) in faults else [str(error)]
    reports: list[dict[str, object]] = []
    if patch_set is not None:
        faults += _lint(patch_set)
        if lock is not None and not args.write:
            faults += _stale(patch_set, lock, lock_path)
        read: list[WheelCheck] = []
        for path in _unique(wheels):
            print(f"checking {path.name} ...", file=sys.stderr)
            try:
                read.append(WheelCheck(path, patch_set, None if args.write else lock))
            except WheelError as error:
                raise InputError(str(error)) from None
        reports = [check.report() for check in read]
        faults += [fault for check in read for fault in check.faults]
        if args.write:
            try:
                new = _new_lock(patch_set, lock, read) if not faults else None
            except LockError as error:
                faults.append(str(error))
            else:
                if new is not None:
                    _write(lock_path, new)
    _print(args, faults, reports, patch_set.digest if patch_set else None)
    return 1 if faults else 0


def _lint(patch_set: PatchSet) -> Iterator[str]:
    from sglang_ext.patchset.header import lint_header

    for patch in patch_set.patches:
        yield from lint_header(patch)


def _stale(patch_set: PatchSet, lock: Lock, path: Path) -> Iterator[str]:
    """What the lock was made for and what the patches are, without a wheel."""
    fix = "run tools/check_patches.py --download --write"
    for release in lock.releases:
        where = f"The lock {path}, release {release.version}"
        if release.patchset != patch_set.digest:
            made, found = release.patchset[:12], patch_set.digest[:12]
            yield f"{where} was made with patch set {made}, found {found}: {fix}."
        if set(release.files) != set(patch_set.targets):
            odd = ", ".join(sorted(set(release.files) ^ set(patch_set.targets)))
            yield f"{where} and the patch set differ in their targets ({odd}): {fix}."


def _new_lock(patch_set: PatchSet, lock: Lock | None, checks: Sequence[WheelCheck]) -> Lock:
    """The lock that these (good) wheels make on top of the old one."""
    from sglang_ext.patchset.lock import Lock, LockedFile, LockError, Release, with_release

    for check in checks:
        files = {target: LockedFile(check.pristine[target], check.patched[target]) for target in check.patched}
        wheel = {check.name: check.sha256}
        lock = with_release(lock, Release(check.version, patch_set.digest, wheel, files))
    for release in lock.releases if lock else ():
        if release.patchset != patch_set.digest:
            raise LockError(
                f"The lock also has release {release.version}, made with another patch set: give its wheels"
                " too, or take it out of the lock."
            )
    return lock or Lock(())


def _write(path: Path, lock: Lock) -> None:
    from sglang_ext.patchset.lock import dump_lock

    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(dump_lock(lock), encoding="utf-8", newline="\n")
    scratch.replace(path)
    print(f"wrote {path}", file=sys.stderr)


def _unique(paths: Sequence[Path]) -> list[Path]:
    """In the order of their names, each once, so that the result does not depend on the command line."""
    return sorted({path.name: path for path in paths}.values(), key=lambda path: path.name)


def _download(args: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """Every wheel of the release(s), from the index this user's pip is set up for; what is there is kept."""
    from sglang_ext.patchset.lock import LockError, load_lock

    try:
        known = {release.version: sorted(release.wheels) for release in load_lock(args.patches / LOCK).releases}
    except LockError:
        known = {}
    if not args.upstream and not known:
        raise InputError("there is no lock that says which release to download; add --upstream X.Y.Z.")
    for version in [args.upstream] if args.upstream else known:
        for name in known.get(version) or [f"sglang-{version}-{tag}.whl" for tag in TAGS]:
            if not (folder / name).exists():
                _pip_download(version, name, folder)
            yield folder / name


def _pip_download(version: str, name: str, folder: Path) -> None:
    import subprocess

    print(f"downloading {name} ...", file=sys.stderr)
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    if platform != "any":
        command += ["--implementation", python[:2], "--python-version", python[2:]]
        command += ["--abi", abi, "--platform", platform]
    command += ["--dest", str(folder), f"sglang=={version}"]
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if code or not (folder / name).exists():
        raise InputError(f"pip could not download {name} (exit code {code}); give the wheel with --wheel.")


def _print(
    args: argparse.Namespace, faults: Sequence[str], wheels: Sequence[dict[str, object]], digest: str | None
) -> None:
    if args.json:
        import json

        report = {"schema": SCHEMA, "ok": not faults, "patchset": digest, "faults": faults, "wheels": wheels}
        print(json.dumps(report, indent=2))
        return
    for fault in faults:
        print(fault)
    for wheel in wheels:
        print(f"{'ok   ' if wheel['ok'] else 'FAULT'} {wheel['wheel']}")
    count = "no fault" if not faults else "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    print(f"patch set {digest[:12] if digest else 'unreadable'}: {count}, wheels checked: {len(wheels)}")


if __name__ == "__main__":
    sys.exit(main())
