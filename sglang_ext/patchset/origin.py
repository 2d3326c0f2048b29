"""Where the sglang that would be imported comes from: which copy is first, which installed one it hides, who else claims it.

Python takes the first folder `sglang` with an `__init__.py` on its path, and `python -m sglang.launch_server` puts the folder it
is started in before everything else: a scratch copy there, or on PYTHONPATH, wins over what pip installed, without a word.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = "sglang"


def first_root(path: Sequence[str]) -> str | None:
    """The folder on ``path`` whose `sglang` would be imported. One without `__init__.py` hides nothing (PathFinder)."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(PACKAGE, path)
    if spec is None or spec.origin is None:
        return None
    return os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))


def metadata_folders(place: str) -> list[str]:
    """The metadata folders of sglang itself in one folder of the path."""
    try:
        names = os.listdir(place or ".")
    except OSError:
        return []
    return [
        os.path.join(place, name)
        for name in sorted(names)
        if name.startswith(f"{PACKAGE}-") and name.endswith(".dist-info")
    ]


def described(info: str) -> str:
    """`.../sglang-0.5.23.dist-info` -> `sglang 0.5.23`."""
    name, _, version = os.path.basename(info).removesuffix(".dist-info").rpartition("-")
    return f"{name} {version}"


def hidden(root: str, path: Sequence[str]) -> str | None:
    """The metadata folder of the installed sglang that the copy in ``root`` hides; None where that copy is the installed one.

    ``path`` is without the folder a server is started in: a copy there is never the installed one.
    """
    real = os.path.realpath(root)
    found = [info for place in path for info in metadata_folders(place)]
    for info in found:
        home = editable_home(info)
        if os.path.realpath(os.path.dirname(info)) == real or (home and _below(real, os.path.realpath(home))):
            return None
    return found[0] if found else None


def editable_home(info: str) -> str | None:
    """Where an editable install points to (PEP 610, direct_url.json), or None."""
    import json

    try:
        with open(os.path.join(info, "direct_url.json"), "rb") as file:
            origin = json.load(file)
        return str(origin["url"]).removeprefix("file://") if origin["dir_info"]["editable"] is True else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def rivals(place: str, package: str = PACKAGE) -> tuple[list[str], str] | None:
    """Two distributions in one folder of the path that have installed the same file of the package, and that file.

    Of two, the last one installed has won. A plug-in that only adds files to the package is no rival of it.
    """
    try:
        names = sorted(name for name in os.listdir(place) if name.endswith(".dist-info"))
    except OSError:
        return None
    start = f"{package}/".encode()
    claimed: dict[bytes, str] = {}
    for name in names:
        try:
            with open(os.path.join(place, name, "RECORD"), "rb") as file:
                record = b"\n" + file.read()
        except OSError:
            continue
        if b"\n" + start not in record:
            continue
        for line in record.split(b"\n"):
            path = line.partition(b",")[0]
            if path.startswith(start) and claimed.setdefault(path, name) != name:
                return [described(claimed[path]), described(name)], os.fsdecode(path)
    return None
