"""`sglang-ext patches status|check|apply|revert|adopt`: what the verbs print and return. docs/patches.md has the schemas."""

from __future__ import annotations

import os
import sys

from sglang_ext import bootstrap
from sglang_ext.console import replaceable
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.overlay import OverlayError, patches_folder
from sglang_ext.patchset.tree import PACKAGE, find_root, metadata_folders
from sglang_ext.quick import Any

DONE, REFUSED, USAGE, UNSEEN = 0, 1, 2, 3
# What a refusal is: of the command line, or of nothing to look at; any other one is of the tree.
EXITS = {
    "local_patch_unknown": USAGE,
    "record_unusable": UNSEEN,
    "sglang_missing": UNSEEN,
    "wheel_missing": USAGE,
    "wheel_wrong": USAGE,
}


def say(text: str) -> None:
    """Progress, on stderr: stdout has the result."""
    print(f"sglang-ext: {text}", file=sys.stderr, flush=True)


def run(verb: str, options: Any) -> tuple[int, dict[str, Any]]:
    """Do it: the exit status, and the report for --json. A refusal is a report as well, but for that of --json itself."""
    why = _unfit(options)
    if why is not None:
        say(f"receipt_unwritable: {why}; name another with --json, behind every other word")
        options.json = None  # whoever has called writes nothing there
        return USAGE, _refusal(verb, "receipt_unwritable", why)
    try:
        status, report = DEEDS[verb](options)
    except (PatchError, OverlayError) as error:
        code = getattr(error, "code", "patch_set_broken")
        say(f"{code}: {error}")
        named = (
            verb == "check" and code == "unsupported_upstream"
        )  # a release on the command line, not the one installed
        return USAGE if named else EXITS.get(code, REFUSED), _refusal(verb, code, str(error))
    if options.json != "-":
        print(LINES[verb](report))
    return status, report


def _refusal(verb: str, code: str, message: str) -> dict[str, Any]:
    return {
        "schema": f"sglang-ext/patches-{verb}/1" if verb != "status" else "sglang-ext/patches/1",
        "done": "refused",
        "problems": [{"code": code, "message": message}],
    }


def _root(options: Any) -> str:
    return os.path.abspath(options.root) if options.root else find_root()


def _unfit(options: Any) -> str | None:
    """Why the report may not be written where --json says, or None. A FILE to adopt, given behind --json, is taken for that."""
    file: str | None = options.json
    if file is None or file == "-":
        return None
    place = os.path.realpath(file)
    if any(os.path.commonpath([place, folder]) == folder for folder in _folders(options)):
        return f"{file} lies in an installed sglang, where no report goes"
    new, regular = not os.path.exists(file), os.path.isfile(file)
    if regular and not replaceable(file, "patches"):
        return f"{file} holds something else than a report of `patches`, and would be replaced"
    folder = os.path.dirname(place)
    if os.path.isdir(file) or not os.access(folder if new else file, os.W_OK):
        return f"{file} cannot be written"
    return None


def _folders(options: Any) -> list[str]:
    """What is looked at: the package and its metadata, none where there is no tree; the verb says that."""
    try:
        root = _root(options) if hasattr(options, "root") else find_root()
        found = [PACKAGE, *metadata_folders(root)]
    except (PatchError, OSError):
        return []
    return [os.path.realpath(os.path.join(root, name)) for name in found]


def _status(options: Any) -> tuple[int, dict[str, Any]]:
    from sglang_ext.patchset.tree_status import look

    armed = os.environ.get(bootstrap.SWITCH) != "0" and any(hasattr(f, bootstrap.MARK) for f in sys.meta_path)
    report = look(_root(options), patches_folder(), armed=armed)
    return REFUSED if report["problems"] else DONE, report


def _status_lines(report: dict[str, Any]) -> str:
    out = [f"sglang {report['upstream']} in {report['root']}: {report['state']}, mode {report['mode']}"]
    if report["digest"]:
        out[0] += f", patch set {report['digest'][:12]}"
    out += [f"  {one['found']:<10}{one['file']}" for one in report["targets"]]
    for key in ("edited", "missing", "added"):
        known = {one["file"] for one in report["targets"] if one["found"] == key}
        out += [f"  {key:<10}{name}" for name in report[key] if name not in known]
    if report["local"]:
        out.append(f"local patches in {report['local_folder']}:")
    for one in report["local"]:
        word = "left out" if not one["in"] else {True: "fits", False: "misfit", None: "unknown"}[one["fits"]]
        out.append(f"  {word:<10}{one['name']}  {one['file']}")
    out += [f"{one['code']}: {one['message']}" for one in report["problems"]]
    return "\n".join(out)


def _apply(options: Any) -> tuple[int, dict[str, Any]]:
    from sglang_ext.patchset.inplace import put_in

    return DONE, _outcome("apply", put_in(_root(options), patches_folder(), options.without))


def _revert(options: Any) -> tuple[int, dict[str, Any]]:
    from sglang_ext.patchset.inplace import take_out

    return DONE, _outcome("revert", take_out(_root(options), patches_folder()))


def _outcome(verb: str, outcome: Any) -> dict[str, Any]:
    return {
        "schema": f"sglang-ext/patches-{verb}/1",
        "done": outcome.deed,
        "upstream": outcome.tree.version,
        "root": outcome.tree.root,
        "digest": outcome.digest,
        "files": list(outcome.files),
        "recovered": outcome.recovered,
        "problems": [],
    }


def _outcome_lines(report: dict[str, Any]) -> str:
    where = f"sglang {report['upstream']} in {report['root']}"
    line = {
        "applied": f"applied: {where} is patched in place, patch set {(report['digest'] or '')[:12]}",
        "already": f"already applied: {where} has patch set {(report['digest'] or '')[:12]}",
        "reverted": f"reverted: {where} is as released",
        "nothing": f"nothing to revert: {where} is not patched in place",
    }[report["done"]]
    out = ["an interrupted change was carried through first"] if report["recovered"] else []
    return "\n".join([*out, line, *(f"  {name}" for name in report["files"])])


def _adopt(options: Any) -> tuple[int, dict[str, Any]]:
    from sglang_ext.patchset.adopt import Asked, adopt
    from sglang_ext.patchset.local import short

    asked = Asked(
        options.files,
        options.name,
        options.subject,
        options.wheel,
        leave_added=options.leave_added,
        dry_run=options.dry_run,
    )
    found = adopt(_root(options), patches_folder(), asked, say)
    done = "nothing" if not (found.patches or found.stock) else "would_adopt" if options.dry_run else "adopted"
    return DONE, {
        "schema": "sglang-ext/patches-adopt/1",
        "done": done,
        "upstream": found.tree.version,
        "root": found.tree.root,
        "local_folder": found.folder,
        "patches": [
            {"name": short(name), "file": patch.target, "hunks": len(patch.hunks)}
            for name, patch in found.patches.items()
        ],
        "stock": list(found.stock),
        "left": list(found.left),
        "was_in_place": found.was_in_place,
        "problems": [],
    }


def _adopt_lines(report: dict[str, Any]) -> str:
    where = f"sglang {report['upstream']} in {report['root']}"
    if report["done"] == "nothing":
        out = [f"nothing to adopt: {where} has no edits"]
    elif report["done"] == "would_adopt":
        out = [f"would adopt {_count(report['patches'], 'edit')} of {where} into {report['local_folder']}:"]
    else:
        out = [f"adopted {_count(report['patches'], 'edit')} of {where} into {report['local_folder']}:"]
    out += [f"  {one['name']}  {one['file']}" for one in report["patches"]]
    if report["stock"]:
        verb = "would be" if report["done"] == "would_adopt" else "back"
        out.append(f"{_count(report['stock'], 'file')} {verb} as released")
    if report["left"]:
        out.append("left as they are:")
        out += [f"  {name}" for name in report["left"]]
    if report["was_in_place"] and report["done"] == "adopted":
        out.append(
            "the tree was patched in place and is stock now; put all of it in again with: sglang-ext patches apply"
        )
    return "\n".join(out)


def _count(things: list[Any], what: str) -> str:
    return f"{len(things)} {what}" + ("" if len(things) == 1 else "s")


def _check(options: Any) -> tuple[int, dict[str, Any]]:
    from sglang_ext.patchset.lock_check import check_lock

    report = check_lock(patches_folder(), options.releases, options.wheels, say)
    return REFUSED if report["faults"] else DONE, report


def _check_lines(report: dict[str, Any]) -> str:
    out = list(report["faults"])
    for one in report["wheels"]:
        out.append(f"{'ok   ' if one['ok'] else 'FAULT'} {one['wheel']}")
        out += [f"      misfit {local['name']}: {local['detail']}" for local in one["local"] if not local["fits"]]
    count = len(report["faults"])
    out.append(
        f"releases checked: {len(report['releases'])}, wheels: {len(report['wheels'])}, "
        + ("no fault" if not count else "1 fault" if count == 1 else f"{count} faults")
    )
    return "\n".join(out)


DEEDS = {"status": _status, "check": _check, "apply": _apply, "revert": _revert, "adopt": _adopt}
LINES = {
    "status": _status_lines,
    "check": _check_lines,
    "apply": _outcome_lines,
    "revert": _outcome_lines,
    "adopt": _adopt_lines,
}
