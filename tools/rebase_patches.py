#!/usr/bin/env python3
"""Carry the patch set to a new upstream release.

    python tools/rebase_patches.py --to X.Y.Z --fetch          its wheels with pip, kept by hash under .rig/wheels
    python tools/rebase_patches.py --to X.Y.Z --wheels DIR     ... or from a folder, which may hold the old release's too
    python tools/rebase_patches.py --to X.Y.Z --wheel FILE ... ... or these files
    ... --from A.B.C      from that locked release; without it, the newest locked one before X.Y.Z, else the next after it
    ... --dry-run         say what would happen; write nothing
    ... --resolved        take the files you mended in the folder where the run before left them
    ... --json FILE       the report for scripts ("-": print it); --report FILE: where the report for reviewers goes

Each patch is tried as it is, then merged three-way (git merge-file) over its file as released, as patched and as new; the
syntax tree decides. Where all are carried, new texts and the lock entry land in one step. Else the patches stay as
they are, and the marked files lie in .rig/rebase/X.Y.Z/. docs/rebase.md is the how-to.

Exit codes: 0 all patches fit or were carried, 1 a person is needed, 2 usage or input error (no git, no wheel, ...),
130 on SIGINT.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from zipfile import ZipFile

    from sglang_ext.patchset.lock import Lock
    from sglang_ext.patchset.model import Patch
    from sglang_ext.patchset.rebase.carry import Release, Resolution
    from sglang_ext.patchset.rebase.outcome import Outcome
    from sglang_ext.patchset.rebase.report import Rebase

ROOT = Path(__file__).resolve().parent.parent
LOCK = "upstream.toml"
HEADER = "header.txt"


class InputError(Exception):
    """The tool cannot do what was asked; the message is one sentence with the fix."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry, report, return the exit code."""
    import signal

    args = _arguments(argv)
    sys.path.insert(0, str(ROOT))
    from sglang_ext.patchset.model import PatchError

    def terminated(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminated)  # scratch folders go, as they do after SIGINT
    try:
        return _rebase(args)
    except (InputError, PatchError) as error:
        print(f"rebase_patches: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "rebase_patches: interrupted; nothing is half landed, the patches are all old or all new.", file=sys.stderr
        )
        return 130
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(BaseException):
    pass


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Exit codes: 0 all patches fit or were carried, 1 a person is needed, 2 usage or input error, 130 interrupted.",
    )
    parser.add_argument("--to", metavar="X.Y.Z", required=True, help="the upstream release to carry the patches to")
    parser.add_argument("--from", metavar="A.B.C", dest="origin", help="the locked release to carry them from")
    parser.add_argument("--wheel", type=Path, nargs="+", action="extend", default=[], help="upstream wheels")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="the wheels of both releases in this folder")
    parser.add_argument("--fetch", action="store_true", help="the wheels with pip, kept under .rig/wheels")
    parser.add_argument("--patches", type=Path, default=ROOT / "patches", help="the patch set (default: patches/)")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("--resolved", action="store_true", help="take the files mended in .rig/rebase/X.Y.Z")
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="write the report as JSON; - prints it")
    parser.add_argument("--report", type=Path, metavar="FILE", help="the report (default: .rig/rebase/X.Y.Z/report.md)")
    args = parser.parse_args(argv)
    if not (args.wheel or args.wheels or args.fetch):
        parser.error(
            "one of --wheel, --wheels and --fetch is needed: the patches are carried over upstream's own files"
        )
    return args


def _rebase(args: argparse.Namespace) -> int:
    from contextlib import ExitStack

    from sglang_ext.patchset.local import joined, local_files, local_folder
    from sglang_ext.patchset.lock import load_lock, version_key
    from sglang_ext.patchset.rebase.carry import carry
    from sglang_ext.patchset.rebase.land import fingerprint
    from sglang_ext.patchset.rebase.outcome import Missing
    from sglang_ext.patchset.rebase.report import Rebase
    from sglang_ext.patchset.series import load_patch_set, patch_names
    from sglang_ext.patchset.series_lint import lint_series

    if not version_key(args.to)[0]:
        raise InputError(f"`{args.to}` is no release; give one such as 0.5.24.")
    if not args.patches.is_dir():
        raise InputError(f"{args.patches} is no folder; give the patch set's with --patches.")
    root = args.patches.resolve()
    read = fingerprint(str(root))
    faults = lint_series(root)
    if faults:
        raise InputError(f"the patch set is not good before anything is carried: {faults[0]}")
    lock = load_lock(root / LOCK)
    origin = _origin(lock, args)
    taken = lock.get(origin)
    own = local_folder(str(root))
    patches = joined(load_patch_set(root, taken.patches or patch_names(root, origin)), local_files(own)).patches
    work = root.parent / ".rig" / "rebase" / args.to
    resolved = _resolved(work, patches) if args.resolved else {}
    for place in (args.report, Path(args.json) if args.json and args.json != "-" else None):
        if place:  # found out now, not after the landing
            _write(place.with_name(f"{place.name}.tmp"), b"")
            place.with_name(f"{place.name}.tmp").unlink()
    with ExitStack() as stack:
        paths = list(_new_wheels(args, lock))
        new = _open(stack, paths[0], args.to)
        old_path = _old_wheel(args, lock, origin)
        old = _open(stack, old_path, origin) if old_path else None
        try:
            outcomes = carry(patches, old, new, origin, _python(paths), resolved)
        except Missing as missing:
            raise InputError(f"{missing}: give its wheel too, with --wheel, --wheels or --fetch.") from None
        run = Rebase(origin, args.to, tuple(path.name for path in paths), tuple(outcomes), dry_run=args.dry_run)
        if not args.dry_run:
            run = _land(root, lock, run, paths, read, work, own) if run.carried else _leave(run, work, new, resolved)
        _report(args, run, old, new, work)
    return 0 if run.carried else 1


# --- what it works on


def _origin(lock: Lock, args: argparse.Namespace) -> str:
    """The locked release to carry from: the newest before the new one, else the oldest after it."""
    from sglang_ext.patchset.lock import version_key

    if lock.release(args.to) and not args.dry_run:
        raise InputError(
            f"sglang {args.to} is in the lock already; to carry to it again take it out of {LOCK} first, or add --dry-run."
        )
    if args.origin:
        if args.origin == args.to:
            raise InputError(f"--from and --to are both {args.to}: there is nothing to carry.")
        return lock.get(args.origin).version
    others = [version for version in lock.supported() if version != args.to]
    if not others:
        raise InputError("the lock has no other release to carry from; make one with tools/check_patches.py --write.")
    before = [version for version in others if version_key(version) < version_key(args.to)]
    return before[-1] if before else others[0]


def _new_wheels(args: argparse.Namespace, lock: Lock) -> Iterator[Path]:
    """Every wheel at hand of the new release, in the order of their names, each once."""
    from tools import check_patches

    found: list[Path] = [path for path in args.wheel if _release(path) == args.to]
    if args.wheels:
        if not args.wheels.is_dir():
            raise InputError(f"{args.wheels} is no folder; give the one with the wheels.")
        found += [path for path in args.wheels.glob("sglang-*.whl") if _release(path) == args.to]
    if args.fetch and not found:
        known = lock.release(args.to)
        try:
            found += check_patches._fetch(args.to, known.wheels if known else {})
        except check_patches.InputError as error:
            raise InputError(str(error)) from None
    if not found:
        raise InputError(f"there is no wheel of sglang {args.to} (sglang-{args.to}-...whl); add --fetch.")
    yield from sorted({path.name: path for path in found}.values(), key=lambda path: path.name)


def _old_wheel(args: argparse.Namespace, lock: Lock, version: str) -> Path | None:
    """One wheel of the old release, by its hash in the lock; None where none is at hand."""
    from sglang_ext.patchset.overlay import sha256_file
    from tools import check_patches

    known = lock.get(version).wheels
    given: list[Path] = [path for path in args.wheel if _release(path) == version]
    if args.wheels:
        given += [args.wheels / name for name in known if (args.wheels / name).is_file()]
    for path in given:
        if not path.is_file():
            raise InputError(f"{path} cannot be read; give a wheel that is there.")
        if sha256_file(str(path)) != known.get(path.name):
            raise InputError(f"{path} is not the wheel of that name in the lock (its sha256 differs): fetch it again.")
        return path
    kept: list[Path] = [found for name, sha in known.items() if (found := check_patches._kept(name, sha))]
    if not kept and args.fetch:
        name = min(known)
        try:
            kept = list(check_patches._fetch(version, {name: known[name]}))
        except check_patches.InputError as error:
            raise InputError(str(error)) from None
        if kept and sha256_file(str(kept[0])) != known[name]:
            raise InputError(f"the index has another {name} than the lock: use --wheels with the one of the lock.")
    return kept[0] if kept else None


def _release(path: Path) -> str:
    parts = path.name.split("-")
    return parts[1] if len(parts) == 5 and parts[0] == "sglang" and path.suffix == ".whl" else ""


def _python(paths: Sequence[Path]) -> tuple[int, int]:
    """The oldest Python these wheels are for; one for any Python is held to the oldest we run on."""
    from sglang_ext.patchset.wheel_check import OLDEST

    tags = [path.name.split("-")[2].removeprefix("cp3") for path in paths]
    return min((3, int(tag)) if tag.isdigit() else OLDEST for tag in tags)


def _open(stack: object, path: Path, version: str) -> Release:
    from contextlib import ExitStack
    from zipfile import BadZipFile, ZipFile

    from sglang_ext.patchset.rebase.carry import Release

    assert isinstance(stack, ExitStack)
    try:
        wheel: ZipFile = stack.enter_context(ZipFile(path))
    except (OSError, BadZipFile) as error:
        raise InputError(f"{path} cannot be read as a wheel ({error}); download it again.") from None
    names = wheel.namelist()
    present = set(names)

    def read(name: str) -> bytes | None:
        try:
            return wheel.read(name) if name in present else None
        except (OSError, BadZipFile) as error:
            raise InputError(f"{path} is damaged at {name} ({error}); download it again.") from None

    return Release(version, names, read)


def _resolved(work: Path, patches: Sequence[Patch]) -> Mapping[str, Resolution]:
    """The files a person mended, by patch; each with the header block beside it."""
    from sglang_ext.patchset.rebase.carry import Resolution

    found: dict[str, Resolution] = {}
    for patch in patches:
        place = _place(work, patch)
        if place.is_file():
            header = place.with_name(HEADER)
            text = header.read_text(encoding="utf-8") if header.is_file() else ""
            found[patch.origin] = Resolution(place.read_bytes(), text.rstrip("\n") + "\n\n" if text.strip() else "")
    if not found:
        raise InputError(f"{work} holds no file that a run has left there: run once without --resolved.")
    return found


def _place(work: Path, patch: Patch) -> Path:
    """Where the marked file of a patch lies: a folder per patch, since two may change one file."""
    from sglang_ext.patchset.rebase.land import local_file

    family = patch.origin.removesuffix(".patch")
    if not local_file(patch.origin) and "/" in family:
        family = family.rpartition("/")[0]  # variants of one folder are one patch
    return work / family / patch.target.rpartition("/")[2]


# --- what is written


def _land(
    root: Path, lock: Lock, run: Rebase, paths: Sequence[Path], read: str, work: Path, folder: str | None
) -> Rebase:
    """New texts and lock entry, all or none. ``folder``: where the user's own patches were read."""
    from tempfile import TemporaryDirectory

    from sglang_ext.patchset.rebase import land
    from sglang_ext.patchset.series import LOCAL

    ours = [outcome for outcome in run.outcomes if not land.local_file(outcome.patch.origin)]
    # A user's own patch has no variants: its new text takes the old one's place only where it serves both releases, and
    # only in this folder; their own elsewhere is theirs, and a file of that name here may be another patch.
    own = [o for o in run.outcomes if land.local_file(o.patch.origin) and o.how != "as_is"]
    here = folder is not None and Path(folder).resolve() == root / LOCAL
    both = {o.patch.origin: _rendered(o) for o in own if o.serves_both and here and _lies(root / o.patch.origin)}
    made = land.plan(str(root), lock, run.to_release, ours)
    # Where git looks away, unless that is on another file system: only within one can two folders change places.
    work.mkdir(parents=True, exist_ok=True)
    beside = work if work.stat().st_dev == root.stat().st_dev else root.parent
    with TemporaryDirectory(dir=beside, prefix=".scratch-") as beside_it:
        scratch = str(Path(beside_it) / root.name)
        land.build(str(root), scratch, made, run.to_release, [str(path) for path in paths], both)
        left = [
            _write(_place(work, o.patch).with_name("carried.patch"), _rendered(o))
            for o in own
            if o.patch.origin not in both
        ]
        if land.fingerprint(str(root)) != read:
            raise InputError(f"{root} was changed by someone else meanwhile; it is as they left it: run again.")
        land.swap(str(root), scratch)
    changed: dict[str, bytes | None] = {**made.files, **both}
    written = [str(root / name) + (" (removed)" if data is None else "") for name, data in sorted(changed.items())]
    return run._replace(written=(*written, str(root / LOCK)), left=tuple(left))


def _lies(path: Path) -> bool:
    """Is there a file, and no link on the way to it? What a link leads to is written in no step with the rest."""
    return path.is_file() and path.resolve() == path


def _rendered(outcome: Outcome) -> bytes:
    from sglang_ext.patchset.model import render

    assert outcome.carried is not None
    return render(outcome.carried).encode()


def _leave(run: Rebase, work: Path, new: Release, resolved: Mapping[str, Resolution]) -> Rebase:
    """For each patch that needs a person: the marked file, or the new one where merging had nothing to say, and its header.

    What a person may have begun is kept: the file of this run then gets another name beside it.
    """
    from sglang_ext.patchset.rebase.outcome import CARRIED

    left: list[str] = []
    for outcome in run.outcomes:
        if outcome.state in (*CARRIED, "upstreamed"):
            continue
        place = _place(work, outcome.patch)
        if outcome.patch.origin in resolved:
            left.append(str(place))
            continue
        text = outcome.marked if outcome.marked is not None else new.read(outcome.patch.target)
        if text is None:
            continue
        if place.exists() and place.read_bytes() != text:
            left.append(_write(place.with_name(f"{place.name}.new"), text))
            continue
        left.append(_write(place, text))
        header = place.with_name(HEADER)
        left.append(str(header) if header.exists() else _write(header, outcome.patch.header.encode()))
    return run._replace(left=tuple(left))


def _report(args: argparse.Namespace, run: Rebase, old: Release | None, new: Release, work: Path) -> None:
    import json

    from sglang_ext.patchset.rebase.report import as_json, lines, page

    if args.report or not args.dry_run:
        place = _write(args.report or work / "report.md", page(run, old, new).encode())
        print(f"report: {place}", file=sys.stderr)
    if args.json:
        text = json.dumps(as_json(run), indent=2) + "\n"
        if args.json == "-":
            print(text, end="")
            return
        _write(Path(args.json), text.encode())
    print("\n".join(lines(run)))
    if run.carried and not args.dry_run:
        print(
            "next: the dependency in pyproject.toml, then tools/check_patches.py --fetch --table --write, then a real server"
            " of the release (docs/rebase.md)"
        )


def _write(path: Path, data: bytes) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".tmp")
        scratch.write_bytes(data)
        scratch.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); give another place.") from None
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
