"""The whole lock against upstream's wheels, with what is installed here alone: `sglang-ext patches check`.

tools/check_patches.py asks more, of a checkout (headers, the page of releases), and writes the lock.
"""

from __future__ import annotations

import os
from zipfile import ZipFile

from sglang_ext.patchset.file_check import Memory
from sglang_ext.patchset.local import apply_local, local_files, local_folder, parsed, short
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import load_patch_set, patch_names
from sglang_ext.patchset.series_lint import lint_series
from sglang_ext.patchset.tree import TreeError
from sglang_ext.patchset.wheel_check import WheelCheck
from sglang_ext.patchset.wheels import fetched, in_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sglang_ext.patchset.model import Patch
    from sglang_ext.patchset.series import PatchSet

SCHEMA = "sglang-ext/patches-check/1"


def check_lock(
    patches: str, releases: Sequence[str], folder: str | None, say: Callable[[str], object]
) -> dict[str, object]:
    """The report. Wheels come from ``folder``, else from the cache or the index. Raises PatchError.

    A local patch that does not fit a release is told, and is no fault of the lock.
    """
    lock = load_lock(os.path.join(patches, "upstream.toml"))
    unknown = [version for version in releases if lock.release(version) is None]
    if unknown:
        raise TreeError(
            "unsupported_upstream",
            f"--release {unknown[0]} is not in the lock of this sglang-ext, which patches {lock.described()}; name one of "
            "these, or install the sglang-ext that is for it",
        )
    wanted = [lock.get(version) for version in releases] if releases else list(lock.releases)
    faults = lint_series(patches)
    local = parsed(local_files(local_folder(patches)))
    known: dict[tuple[str, ...], PatchSet] = {}

    def choose(version: str) -> PatchSet:
        names = patch_names(patches, version)
        if names not in known:
            known[names] = load_patch_set(patches, names)
        return known[names]

    memory, rows = Memory(), []
    for release in wanted if not faults else []:
        if release.patchset != choose(release.version).digest:
            made, found = release.patchset[:12], choose(release.version).digest[:12]
            faults.append(f"Release {release.version} of the lock was made with patch set {made}, found {found}.")
        paths = in_folder(folder, release) if folder else fetched(release, sorted(release.wheels), say)
        for path in paths:
            say(f"checking {os.path.basename(path)}")
            found_in = WheelCheck(path, choose, lock, memory)
            faults += found_in.faults
            rows.append({**found_in.report(), "local": _fits(path, choose(release.version), local)})
    return {
        "schema": SCHEMA,
        "done": "checked",
        "releases": [release.version for release in wanted],
        "faults": faults,
        "wheels": rows,
        "problems": [],
    }


def _fits(path: str, ours: PatchSet, local: Sequence[Patch]) -> list[dict[str, object]]:
    """Which local patches the files of a wheel take, each after those before it."""
    rows: list[dict[str, object]] = []
    if not local:
        return rows
    with ZipFile(path) as wheel:

        def read(name: str) -> bytes:
            try:
                return wheel.read(name)
            except KeyError:
                raise TreeError("local_patch_misfit", f"the wheel has no file {name}") from None

        try:
            results = ours.apply_all(read)
        except PatchError as error:
            return [{"name": short(one.origin), "fits": False, "detail": str(error)} for one in local]
        for patch in local:
            try:
                results = apply_local(results, [patch], read)
                rows.append({"name": short(patch.origin), "fits": True, "detail": ""})
            except PatchError as error:
                rows.append({"name": short(patch.origin), "fits": False, "detail": str(error)})
    return rows
