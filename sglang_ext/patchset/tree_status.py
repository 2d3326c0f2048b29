"""What an installed upstream is right now: pristine, patched, half or edited, how, and whether the local patches fit."""

from __future__ import annotations

import os

from sglang_ext.patchset.inplace import Stock, known_release
from sglang_ext.patchset.journal import interrupted
from sglang_ext.patchset.local import (
    apply_local,
    digest_with,
    left_out,
    local_files,
    local_folder,
    parsed,
    short,
    still_there,
)
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import load_patch_set
from sglang_ext.patchset.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sglang_ext.patchset.lock import Release
    from sglang_ext.patchset.series import PatchSet

    Report = dict[str, object]
    Files = list[tuple[str, bytes]]

SCHEMA = "sglang-ext/patches/1"
STATES = {"pristine": "not_applied", "patched": "applied"}  # what a target is -> the word of the report; else neither


def look(root: str, patches: str, *, armed: bool = True) -> Report:
    """The report on the tree in ``root``. ``armed``: would the import hook be at work? Raises PatchError where nothing
    can be said."""
    tree = Tree(root)
    lock = load_lock(os.path.join(patches, "upstream.toml"))
    problems: list[dict[str, str]] = []
    folder = local_folder(patches)
    report: Report = {
        "schema": SCHEMA, "upstream": tree.version, "root": tree.root, "supported": False, "state": "unsupported",
        "mode": "none", "digest": None, "targets": [], "edited": [], "missing": [], "added": [], "local": [],
        "local_folder": folder, "without": list(left_out()), "problems": problems,
    }  # fmt: skip
    try:
        release = known_release(tree, lock)
    except PatchError as error:
        problems.append(_problem(error))
        return report
    ours = load_patch_set(patches, release.patches)
    stock = Stock(tree, release, ours)
    targets = _targets(stock)
    report["supported"], report["targets"] = True, targets
    changed, report["missing"], report["added"] = tree.edited()
    # One that is as released where RECORD has it patched was taken out by somebody, which apply and revert both mend.
    by_us = {
        str(one["file"])
        for one in targets
        if one["found"] == "patched" or (one["found"] == "pristine" and one["file"] in stock.files)
    }
    report["edited"] = edited = [name for name in changed if name not in by_us]
    found = [str(one["found"]) for one in targets]
    if interrupted(tree):
        state = "interrupted"
        problems.append({
            "code": "tree_interrupted",
            "message": f"an apply or revert of {tree.root} ended halfway; run it again: sglang-ext patches apply, or revert",
        })  # fmt: skip
    elif edited or report["missing"]:
        state = "edited"
        names = [*edited, *tree.edited()[1]]
        problems.append({
            "code": "upstream_file_changed",
            "message": f"{tree.root} is not sglang {tree.version} as installed ({', '.join(names[:5])}"
            f"{', ...' if len(names) > 5 else ''}); keep the edits as local patches: sglang-ext patches adopt",
        })  # fmt: skip
    elif set(found) == {"patched"}:
        state = "patched"
    elif set(found) == {"pristine"} and not stock.applied:
        state = "pristine"
    else:
        state = "half"
        problems.append({
            "code": "upstream_half_patched",
            "message": f"the files of sglang {tree.version} in {tree.root} are patched in part only; "
            "run: sglang-ext patches apply, or revert",
        })  # fmt: skip
    report["state"] = state
    within = _local(report, problems, stock, ours, release, folder)
    report["mode"] = _mode(stock, state, armed=armed, local=within)
    if stock.applied and state == "patched" and report["digest"] not in (None, stock.applied.digest):
        problems.append({
            "code": "in_place_stale",
            "message": f"{tree.root} was patched in place with patch set {stock.applied.digest[:12]}, it is "
            f"{str(report['digest'])[:12]} now; run: sglang-ext patches apply",
        })  # fmt: skip
    return report


def _mode(stock: Stock, state: str, *, armed: bool, local: bool) -> str:
    """How the patch set gets in: the word that a plan has for it (plan.py). ``local``: are local patches in?"""
    if stock.applied:
        return "in_place"
    patched = stock.baked or state == "patched"  # by a wheel or by hand: nobody left a record
    if patched and not local:
        return "baked"
    return "overlay" if armed and (patched or state == "pristine") else "none"


def _targets(stock: Stock) -> list[dict[str, object]]:
    """What each file is that we patch, and each that was patched in place."""
    found: list[dict[str, object]] = []
    for name in sorted({*stock.release.files, *stock.files}):
        sha = stock.tree.sha256(name)
        patched = {stock.files[name].patched} if name in stock.files else set()
        if name in stock.release.files:
            patched.add(stock.release.files[name].patched)
        what = (
            "missing" if sha is None
            else "pristine" if sha == stock.sha256(name)
            else "patched" if sha in patched
            else "edited"
        )  # fmt: skip
        found.append({"file": name, "state": STATES.get(what, "neither"), "found": what, "sha256": sha})
    return found


def _local(
    report: Report, problems: list[dict[str, str]], stock: Stock, ours: PatchSet, release: Release, folder: str | None
) -> bool:
    """The local patches, whether each is in and fits after those before it; and the digest of what would be in. Returns
    whether there are any that are in."""
    without = list(left_out())
    try:
        if stock.applied:
            without += still_there(folder, stock.applied.without)
        everything = local_files(folder)
        files = local_files(folder, dict.fromkeys(without))
        patches = {patch.origin: patch for patch in parsed(everything)}
    except PatchError as error:
        problems.append(_problem(error))
        return False
    report["digest"] = digest_with(ours.digest, files)
    report["without"] = list(dict.fromkeys(without))
    within = {name for name, _ in files}
    rows: list[dict[str, object]] = []
    try:
        results = ours.apply_all(stock.read)
        unknown = ""
    except PatchError as error:
        results, unknown = {}, str(error)
    for name, _ in everything:
        row = {"name": short(name), "file": patches[name].target, "in": name in within, "fits": None, "detail": unknown}
        if name in within and not unknown:
            try:
                results = apply_local(results, [patches[name]], stock.read)
                row["fits"] = True
            except PatchError as error:
                row["fits"], row["detail"] = False, str(error)
                problems.append(_problem(error))
        rows.append(row)
    report["local"] = rows
    return bool(within)


def _problem(error: PatchError) -> dict[str, str]:
    return {"code": getattr(error, "code", "patch_set_broken"), "message": str(error)}
