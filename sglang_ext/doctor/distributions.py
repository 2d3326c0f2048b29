"""Installed distributions, by their metadata folders alone. Two on one path may have one name; the first one counts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from sglang_ext.patchset.origin import editable_home


class Distribution(NamedTuple):
    """One metadata folder. ``name`` is normalised: lower case, dashes (PyPA, name normalization)."""

    name: str
    version: str
    place: str  # the entry of sys.path it lies in
    folder: str  # its metadata folder

    def read(self, file: str) -> bytes:
        """A file of the metadata folder; empty where there is none."""
        try:
            with open(os.path.join(self.folder, file), "rb") as handle:
                return handle.read()
        except OSError:
            return b""

    def headers(self, name: str) -> list[str]:
        """The values of one header of METADATA, which is a mail header: a blank line ends it."""
        top = self.read("METADATA").partition(b"\n\n")[0].decode("utf-8", "replace")
        start = f"{name}: "
        return [line[len(start) :].strip() for line in top.splitlines() if line.startswith(start)]

    @property
    def editable_from(self) -> str | None:
        """Where an editable install points to (PEP 610, direct_url.json), or None."""
        return editable_home(self.folder)


def normal(name: str) -> str:
    """The name as it is compared."""
    parts = "".join(ch if ch.isalnum() else "-" for ch in name.lower()).split("-")
    return "-".join(part for part in parts if part)


def distributions(path: Iterable[str]) -> list[Distribution]:
    """Every distribution on ``path``, in its order; a folder that cannot be listed has none."""
    found = []
    places: dict[str, str] = {}
    for place in path:
        places.setdefault(os.path.realpath(place), os.path.abspath(place))  # lib64 may be a link to lib
    for place in places.values():
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        for entry in names:
            if entry.endswith(".dist-info") and "-" in entry:
                name, _, version = entry[: -len(".dist-info")].partition("-")
                found.append(Distribution(normal(name), version, place, os.path.join(place, entry)))
    return found


def named(found: Iterable[Distribution], name: str) -> list[Distribution]:
    """Those of one name."""
    return [one for one in found if one.name == name]


def packages_of(path: Iterable[str], name: str) -> list[str]:
    """The folders of the regular package ``name`` on ``path``: the first one is imported.

    A folder without __init__.py is a namespace portion and never hides a package (Lib/importlib, PathFinder).
    """
    found: dict[str, None] = {}
    for place in path:
        folder = os.path.join(os.path.abspath(place or "."), name)
        if os.path.isfile(os.path.join(folder, "__init__.py")):
            found.setdefault(folder)
    return list(found)
