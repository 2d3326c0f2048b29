"""Where adopt puts a new local patch: its name, which no other has, and its line in the folder's `series`."""

from __future__ import annotations

import os

from sglang_ext.patchset.local import FOLDER, local_names, short
from sglang_ext.patchset.lock import is_patch_path
from sglang_ext.patchset.model import render
from sglang_ext.patchset.series import LOCAL, SUFFIX, entries, read_file
from sglang_ext.patchset.tree import PACKAGE, TreeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sglang_ext.patchset.model import Patch


def names_for(folder: str, targets: Sequence[str], group: str | None) -> dict[str, str]:
    """The file of a patch for each of these targets; a new one in each case. Raises TreeError.

    `srt.managers.scheduler.patch`, a second one `srt.managers.scheduler-2.patch`; or as the user calls it, and several
    are then a group of that name.
    """
    taken = {word for name in local_names(folder) for word in (short(name), short(name).partition("/")[0])}
    if group in taken:
        raise TreeError(
            "adopt_refused", f"there is a local patch or group {group} already in {folder}; choose another --name"
        )
    found: dict[str, str] = {}
    for target in targets:
        name = free = short(_name(target, group, several=len(targets) > 1))
        number = 2
        while free in taken:
            free, number = f"{name}-{number}", number + 1
        taken.add(free)
        found[target] = free + SUFFIX
    return found


def _name(target: str, group: str | None, *, several: bool) -> str:
    """What a patch of this file is called, if nothing else is."""
    own = target.removeprefix(f"{PACKAGE}/").removesuffix(".py").replace("/", ".")
    own = "".join("-" if char.isspace() or char in ',#"\\' else char for char in own) + SUFFIX
    file = own if group is None else f"{group}/{own}" if several else f"{group}{SUFFIX}"
    if not is_patch_path(file) or (group is not None and (group[0] == "." or {"/", ",", "#"} & set(group))):
        raise TreeError(
            "adopt_refused", f"{group or file!r} cannot name a patch; choose a word like faster-moe with --name"
        )
    return file


def series_with(folder: str, made: Sequence[str]) -> bytes:
    """`series` with these at its end, every other byte as it is. What it does not list yet comes before them, so they are
    listed as well, in that order: the new ones were made on top of them. Raises TreeError and PatchError."""
    order = [*local_names(folder), *made]
    text = read_file(folder, "series") if os.path.lexists(os.path.join(folder, "series")) else b""
    listed, _ = entries(text, f"{LOCAL}/series")
    for name in order:
        if name not in listed and entries(f"{name}\n".encode(), f"{LOCAL}/series") != ([name], []):
            raise TreeError(
                "adopt_refused",
                f"local patch {os.path.join(folder, name)} has a name that cannot be listed in series (a blank, # or other "
                "mark is in it), which has to give the order now: rename it, then run this again",
            )
    text += b"\n" if text and not text.endswith(b"\n") else b""
    text += "".join(f"{name}\n" for name in order if name not in listed).encode()
    if entries(text, f"{LOCAL}/series") != (order, []):
        raise TreeError(
            "adopt_refused",
            f"{os.path.join(folder, 'series')} with lines for {', '.join(made)} would not be read as {', '.join(order)}; "
            "correct it, then run this again",
        )
    return text


def keep(folder: str, made: Mapping[str, Patch], series: bytes) -> None:
    """Write the patches, then `series`. Raises TreeError."""
    try:
        for file, patch in made.items():
            _write(os.path.join(folder, *file.split("/")), render(patch).encode())
        if made:
            _write(os.path.join(folder, "series"), series)
    except OSError as error:
        raise TreeError(
            "tree_unwritable",
            f"{error.filename or folder} cannot be written ({error.strerror}); set {FOLDER} to another folder",
        ) from None


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)
