"""Where the dynamic loader would find a library: LD_PRELOAD, LD_LIBRARY_PATH, its cache, its default folders (ld.so(8)).

Read from files: nothing is loaded, so no constructor of anybody's library runs here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

CACHE = "/etc/ld.so.cache"
DEFAULTS = (
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    f"/lib/{os.uname().machine}-linux-gnu",
    f"/usr/lib/{os.uname().machine}-linux-gnu",
)


def preloaded(environ: Mapping[str, str]) -> list[str]:
    """The libraries of LD_PRELOAD: blanks and colons part them, and no escape exists."""
    return environ.get("LD_PRELOAD", "").replace(":", " ").split()


def library_path(environ: Mapping[str, str]) -> list[str]:
    """The folders of LD_LIBRARY_PATH: colons and semicolons part them; an empty one is the working directory."""
    value = environ.get("LD_LIBRARY_PATH", "")
    return [folder or "." for folder in value.replace(";", ":").split(":")] if value else []


def cached(name: str, cache: str = CACHE) -> list[str]:
    """The paths of a library in the loader's cache, whose entries are NUL-ended strings."""
    try:
        with open(cache, "rb") as file:
            data = file.read()
    except OSError:
        return []
    end = b"/" + os.fsencode(name)
    return [
        os.fsdecode(entry)
        for entry in dict.fromkeys(data.split(b"\0"))
        if entry.startswith(b"/") and entry.endswith(end)
    ]


def find(name: str, environ: Mapping[str, str]) -> str | None:
    """The file dlopen(name) would take, where neither RPATH nor RUNPATH of the caller decides; None: no such library."""
    if "/" in name:
        return name if os.path.isfile(name) else None
    for folder in library_path(environ):
        if os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    for path in (*cached(name), *(os.path.join(folder, name) for folder in DEFAULTS)):
        if os.path.isfile(path):
            return path
    return None
