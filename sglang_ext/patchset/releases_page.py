"""docs/releases.md: every release of the lock, the variant each file takes, and what was seen when it was applied."""

from __future__ import annotations

from sglang_ext.patchset.file_check import sha256
from sglang_ext.patchset.lock import dump_lock
from sglang_ext.patchset.series import release_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sglang_ext.patchset.file_check import FileCheck
    from sglang_ext.patchset.lock import Lock, Release
    from sglang_ext.patchset.wheel_check import WheelCheck

STAMP = "Made from the lock with sha256"
INTRO = """\
# Supported releases of SGLang

Every final and post release below is patched, by the same rules: exact context, the sha256 of each file before and after,
all files or none. Anything else is refused, by name. One patch text serves every release it fits; a new variant exists only
where the text differs, and is named by the first release it is for.

Each cell names the variant and, for each of its hunks, by how many lines the place lies away from where the patch says:
upstream moved, the text did not change. *compiled*: how many of the patched files compile, and parse with the syntax of the
Python each wheel is for (3.11 where it is for any). *seams*: how many of the promised seams stand in the function they
belong to, once, by the syntax tree. *wheels*: how many files of the release are known by hash.
"""
OUTRO = """\
`python tools/check_patches.py --fetch --table` downloads every wheel of the lock and compares this page with what it finds;
`--write` writes it anew.
"""


def render_page(lock: Lock, checks: Iterable[WheelCheck]) -> str:
    """The page; `checks` holds at least one wheel of every release."""
    by_release = {check.version: check for check in checks}
    names = {
        target: patches[0].origin.split("/")[0].removesuffix(".patch")
        for check in by_release.values()
        if check.patch_set is not None
        for target in check.patch_set.targets
        if (patches := check.patch_set.of(target))
    }
    lines = [
        "| sglang | wheels | " + " | ".join(names.values()) + " | compiled | seams |",
        "|---" * (4 + len(names)) + "|",
        *(_row(release, by_release[release.version].files, names) for release in reversed(lock.releases)),
    ]
    counts = "; ".join(f"{name}: {_counted(lock, name)}" for name in names.values())
    table = "\n".join(lines)
    return f"{INTRO}\nVariants of {counts}.\n\n{table}\n\n{OUTRO}\n{stamp(lock)}\n"


def stamp(lock: Lock) -> str:
    """The line that says which lock a page was made from."""
    return f"{STAMP} `{sha256(dump_lock(lock).encode())[:12]}`."


def _row(release: Release, files: Mapping[str, FileCheck], names: Iterable[str]) -> str:
    cells = [_cell(files[target]) if target in files else "" for target in names]
    compiled = sum(file.compiled for file in files.values())
    placed, promised = (sum(counts) for counts in zip(*map(_seams, files.values()), strict=True))
    return (
        f"| {release.version} | {len(release.wheels)} | "
        + " | ".join(cells)
        + f" | {compiled} of {len(files)} | {placed} of {promised} |"
    )


def _cell(file: FileCheck) -> str:
    parts = [
        f"{release_of(patch.origin)} ({', '.join(f'{offset:+d}' if offset else '0' for offset in offsets)})"
        for patch, offsets in zip(file.patches, file.offsets, strict=True)
    ]
    return "; ".join(parts)


def _seams(file: FileCheck) -> tuple[int, int]:
    from sglang_ext.patchset.header import expected_seams

    promised = sum(len(expected_seams(patch)) for patch in file.patches)
    return promised if file.seams else 0, promised


def _counted(lock: Lock, name: str) -> str:
    used = dict.fromkeys(patch for release in lock.releases for patch in _of(release, name))
    return f"{len(used)} ({', '.join(map(release_of, used))})"


def _of(release: Release, name: str) -> Iterator[str]:
    return (patch for patch in release.patches if patch.split("/")[0].removesuffix(".patch") == name)
