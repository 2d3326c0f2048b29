"""Which requirement on sglang would a given version not meet? Only what a local version (`0.5.23+ext.1`) makes surprising.

PEP 440: `==X`, `>=X`, `<=X` and `~=X` look past the local part, so a baked wheel meets them; `===X`, `!=X` and `>X` do not
accept it. Compared as the lock compares releases, not with a full PEP 440: the pins in question name upstream releases.
"""

from __future__ import annotations

from typing import NamedTuple

from sglang_ext.patchset.lock import version_key

OPERATORS = ("===", "==", "~=", "!=", "<=", ">=", "<", ">")  # longest first


class Pin(NamedTuple):
    """One clause of a requirement."""

    operator: str
    version: str

    @property
    def text(self) -> str:
        return self.operator + self.version


def parse(requirement: str) -> tuple[str, list[Pin]]:
    """The name and clauses of a Requires-Dist line (PEP 508); no clause where its marker is not for this environment."""
    text, _, marker = requirement.partition(";")
    text = text.replace("(", " ").replace(")", " ").strip()
    end = next((i for i, ch in enumerate(text) if not (ch.isalnum() or ch in "-_.")), len(text))
    name, rest = text[:end], text[end:].strip()
    if rest.startswith("["):
        rest = rest.partition("]")[2]
    pins: list[Pin] = []
    if marker and not applies(marker):
        return name, pins
    for clause in rest.split(","):
        operator = next((op for op in OPERATORS if clause.strip().startswith(op)), None)
        if operator:
            pins.append(Pin(operator, clause.strip()[len(operator) :].strip()))
    return name, pins


def applies(marker: str) -> bool:
    """Is a requirement with this marker one here, without any extra? Nobody can tell which extras were asked for."""
    try:
        from packaging.markers import Marker  # upstream brings it

        return bool(Marker(marker).evaluate({"extra": ""}))
    except (ImportError, ValueError):  # packaging is not there, or the marker is none to it
        return "extra" not in marker


def rejects(pin: Pin, installed: str) -> bool:
    """Does ``installed`` not meet the clause?"""
    public, _, local = installed.partition("+")
    wanted, _, wanted_local = pin.version.partition("+")
    if pin.operator == "===":
        return installed != pin.version
    if pin.operator in ("==", "!="):
        if wanted.endswith(".*"):
            same = f"{public}.".startswith(wanted[:-1])
        else:
            same = public == wanted and (not wanted_local or local == wanted_local)
        return same == (pin.operator == "!=")
    have, want = version_key(public), version_key(wanted)
    if pin.operator == ">":
        return have <= want
    if pin.operator == "<":
        return have >= want
    return have > want if pin.operator == "<=" else have < want
