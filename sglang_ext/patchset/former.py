"""How the patch set got into an upstream at its last launch: whether pip has put stock over it since shows nowhere else.

A baked wheel, or a tree patched in place, that pip replaces leaves nothing behind. The import hook then patches what is there
now, so nothing breaks; but it is not what was installed for the purpose, and its owner should hear of it. Our launcher keeps a
line for each upstream in the cache; a cache that is gone, or cannot be written, knows nothing.
"""

from __future__ import annotations

import os

from sglang_ext.quick import sha256

KEPT = ("baked", "in_place")  # what somebody has done to the files, and would miss
MODE = "SGLANG_EXT_MODE"  # which mode is demanded: an image that was built with one can insist on it


def _place(base: str, root: str) -> str:
    return os.path.join(
        base, "launched", sha256(os.path.realpath(root).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    )


def former(base: str, root: str) -> tuple[str, str] | None:
    """Mode and version at the last launch of the upstream in ``root``."""
    try:
        with open(_place(base, root), encoding="utf-8") as file:
            mode, _, version = file.readline().strip().partition(" ")
    except (OSError, ValueError):
        return None
    return (mode, version) if mode and version else None


def note(base: str, root: str, mode: str, version: str) -> None:
    """Keep it, where that is possible and new."""
    mode = _of_files(mode, version)
    if former(base, root) == (mode, version):
        return
    path = _place(base, root)
    scratch = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(scratch, "x", encoding="utf-8") as file:
            file.write(f"{mode} {version}\n")
        os.replace(scratch, path)
    except OSError:
        pass  # only a warning is lost


def _of_files(mode: str, version: str) -> str:
    """Local patches lie over a baked tree as copies; the files are a baked wheel's all the same."""
    return "baked" if "+ext." in version else mode


def replaced(base: str, root: str, mode: str, version: str) -> str | None:
    """What was there at the last launch and is not any more, as a sentence; None where nothing is missed."""
    before = former(base, root)
    if before is None or before[0] not in KEPT or _of_files(mode, version) in KEPT:
        return None
    was = "from a baked wheel" if before[0] == "baked" else "patched in place"
    again = "install the baked wheel again" if before[0] == "baked" else "run: sglang-ext patches apply"
    return (
        f"the sglang in {root} was {before[1]}, {was}, at its last launch, and is stock now, patched on import: "
        f"something installed over it; {again}, or ignore this once"
    )


def differs(mode: str) -> str | None:
    """Why this mode is not the one that $SGLANG_EXT_MODE demands, as a sentence; None where it is, or none is demanded."""
    wanted = os.environ.get(MODE)
    if not wanted or wanted == mode:
        return None
    known = ("overlay", *KEPT)
    if wanted not in known:
        return f"{MODE}: expected one of {', '.join(known)}, found {wanted!r}; correct it, or unset it"
    return (
        f"{MODE} demands that sglang be patched by mode {wanted}, found {mode}: it was installed anew, or never so, or local "
        f"patches lie over it; install or patch it that way again, or unset {MODE}"
    )
