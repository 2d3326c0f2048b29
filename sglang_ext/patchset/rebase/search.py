"""Where a function or class went that a patch needs and the new release has no more at its place.

Definitions are looked for in the syntax tree, so a comment or a string that quotes one is none.
"""

from __future__ import annotations

from typing import NamedTuple

from sglang_ext.patchset.rebase.places import MODULE, lines_of, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sglang_ext.patchset.rebase.places import Place

ALIKE = 0.75  # how much of its lines a function must share to be taken for the one that was renamed


class Finding(NamedTuple):
    """`state` is conflict (all are where they were), moved or gone; `detail` says where each one is now."""

    state: str
    detail: str


class Tree(NamedTuple):
    """The files of a release, below the wheel's root."""

    names: Sequence[str]
    read: Callable[[str], bytes]


def whereabouts(wanted: Iterable[str], target: str, old: bytes | None, new: bytes | None, tree: Tree) -> Finding:
    """Where the functions and classes `wanted` of `target` are in the new release; `new` is None without the file."""
    if not target.endswith(".py"):
        return Finding("gone", f"the release has no file {target}") if new is None else Finding("conflict", "")
    known = _places(new) if new is not None else ()
    if known is None:
        return Finding("conflict", f"{target} is no Python that can be read here")
    here = {place.qualname for place in known if place.kind != "block"}
    missing = [name for name in dict.fromkeys(wanted) if name != MODULE and name not in here]
    if not missing:
        if new is None:
            return Finding("gone", f"the release has no file {target}")
        return Finding("conflict", "")
    said: list[str] = []
    lost = False
    for name in missing:
        found = _elsewhere(name, target, known, tree) or _renamed(name, old, new, known)
        lost = lost or not found
        said.append(f"{name} is {found}" if found else f"{name} is nowhere in the release")
    start = "" if new is not None else f"the release has no file {target}; "
    return Finding("gone" if lost else "moved", start + "; ".join(said))


def _elsewhere(name: str, target: str, here: Sequence[Place], tree: Tree) -> str:
    """Definitions of the same last name, by place; for a method like __init__ those of its class count."""
    parts = [part for part in name.split(".") if part != "<locals>"]
    special = len(parts) > 1 and parts[-1].startswith("__")
    tail = ".".join(parts[-2:] if special else parts[-1:])
    found = [f"{place.qualname} (line {place.first})" for place in here if _ends_in(place, tail)]
    if found:
        return f"now {', '.join(found[:5])}"
    key = tail.split(".")[0].encode()
    for path in tree.names:
        if not path.endswith(".py") or path == target:
            continue
        data = tree.read(path)
        if not any(word + key + end in data for word in (b"def ", b"class ") for end in (b"(", b":", b" (", b"[")):
            continue
        found += [
            f"{path}: {place.qualname} (line {place.first})" for place in _places(data) or () if _ends_in(place, tail)
        ]
    return f"in {', '.join(found[:5])}" + (", ..." if len(found) > 5 else "") if found else ""


def _ends_in(place: Place, tail: str) -> bool:
    plain = place.qualname.replace(".<locals>", "")
    return place.kind != "block" and (plain == tail or plain.endswith(f".{tail}"))


def _renamed(name: str, old: bytes | None, new: bytes | None, here: Sequence[Place]) -> str:
    """The one function of the file whose lines are most like those of the lost one, if they are alike enough."""
    from difflib import SequenceMatcher

    if old is None or new is None:
        return ""
    before = _places(old) or ()
    lost = next((place for place in before if place.qualname == name and place.kind != "block"), None)
    if lost is None:
        return ""
    body = _body(lines_of(old), lost)
    stayed = {place.qualname for place in before}
    best, most = None, ALIKE
    lines = lines_of(new)
    for place in here:
        if place.kind != lost.kind or place.qualname in stayed:
            continue
        matcher = SequenceMatcher(None, body, _body(lines, place), autojunk=False)
        if matcher.real_quick_ratio() >= most and matcher.ratio() >= most:
            best, most = place, matcher.ratio()
    return f"{best.qualname} (line {best.first}) by its lines, {most:.0%} of which are the same" if best else ""


def _body(lines: Sequence[bytes], place: Place) -> list[bytes]:
    return [text for line in lines[place.first - 1 : place.last] if (text := line.strip())]


def _places(source: bytes) -> Sequence[Place] | None:
    try:
        return places(source)
    except (SyntaxError, ValueError):
        return None
