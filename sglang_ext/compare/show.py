"""A comparison for people and for programs: what differs by group, what was noted, what could not be compared, one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sglang_ext.compare.difference import (
    CONTRACT,
    GROUPS,
    HIDDEN,
    MISSING,
    Comparison,
    Difference,
    NotComparable,
    Side,
)
from sglang_ext.contract.names import shown
from sglang_ext.verify.report import paint, table

SCHEMA = "sglang-ext/diff/1"
SAME, DIFFERENT, NOTHING = "SAME", "DIFFERENT", "NOT COMPARABLE"
GRADE = {SAME: "PASS", DIFFERENT: "FAIL", NOTHING: "UNKNOWN"}  # whose colour it gets
WIDEST = 44  # characters of a value in a cell
ALL_RANKS = ""


def verdict(found: Comparison) -> str:
    """DIFFERENT where a difference counts; SAME where something was compared; else nothing could be."""
    if found.differences:
        return DIFFERENT
    return SAME if found.compared else NOTHING


def cell(group: str, value: Any) -> str:
    """One value as text, whole."""
    if value is MISSING:
        return "(not required)" if group == CONTRACT else "(absent)"
    if value is None and group == CONTRACT:
        return "(must be absent)"
    if isinstance(value, str) and value not in HIDDEN:
        return shown(value)
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def plain(name: str) -> str:
    """A name for a terminal: a file may have anything in one."""
    return name if name.isprintable() else repr(name)


def pair(a: str, b: str) -> tuple[str, str]:
    """Two cells short enough for a table; long ones from a little before where they begin to differ."""
    if max(len(a), len(b)) <= WIDEST:
        return a, b
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(same - 8, 0) if same > 12 else 0

    def cut(text: str) -> str:
        text = ("..." if start else "") + text[start:]
        return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."

    return cut(a), cut(b)


def rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    """Name, both values, and the ranks where it is not all of them."""
    return [
        (f"  {plain(d.name)}", *pair(cell(d.group, d.a), cell(d.group, d.b)), ", ".join(d.ranks) or ALL_RANKS)
        for d in differences
    ]


def unknown_line(one: NotComparable) -> str:
    """`arguments: B: why`, with the names where it is not the whole group."""
    what = GROUPS[one.group]
    if one.names:
        what += f": {', '.join(map(plain, one.names[:6]))}"
        what += f" and {len(one.names) - 6} more" if len(one.names) > 6 else ""
    return f"not comparable: {what}: {one.why}"


def closing(found: Comparison) -> str:
    """The last line, never more than was compared."""
    total = found.compared
    left = f"; {len(found.not_comparable)} not comparable, see above" if found.not_comparable else ""
    noted = f", {len(found.notes)} noted" if found.notes else ""
    if found.differences:
        counts: dict[str, int] = {}
        for group in GROUPS:
            if number := len({d.name for d in found.differences if d.group == group}):
                counts[group] = number
        parts = ", ".join(f"{group} {number}" for group, number in counts.items())
        return f"{sum(counts.values())} of {total} facts differ ({parts}){noted}{left}"
    if not total:
        return f"nothing that both sides know{left}"
    return f"{sum(found.equal.values())} of {total} facts are the same{noted}{left}"


def render(a: Side, b: Side, found: Comparison, *, colour: bool = False) -> str:
    """The whole comparison as text."""
    out = [*table([("A", a.given, a.what), ("B", b.given, b.what)]), ""]
    body = {group: rows([d for d in found.differences if d.group == group]) for group in GROUPS}
    lines = [("", "A", "B", ""), *(row for group in body.values() for row in group)]
    aligned = iter(table(lines))
    head = next(aligned)
    if found.differences:
        out.append(head)
    for group, found_rows in body.items():
        if found_rows:
            out.append(GROUPS[group])
            out += [next(aligned) for _ in found_rows]
    if found.differences:
        out.append("")
    for note in found.notes:
        at = f" on {', '.join(note.ranks)}" if note.ranks else ""
        one, other = pair(cell(note.group, note.a), cell(note.group, note.b))
        out.append(f"note: {note.group} {plain(note.name)}{at}: {one} / {other}: {note.why}")
    out += [unknown_line(one) for one in found.not_comparable]
    if found.notes or found.not_comparable:
        out.append("")
    word = verdict(found)
    out.append(f"{paint(word, GRADE[word], colour)}: {closing(found)}")
    return "\n".join(out)


def to_json(a: Side, b: Side, found: Comparison, status: int) -> dict[str, Any]:
    """Schema sglang-ext/diff/1 (docs/diff.md)."""
    return {
        "schema": SCHEMA,
        "verdict": verdict(found),
        "exit": status,
        "a": {"given": a.given, "kind": a.kind, "what": a.what},
        "b": {"given": b.given, "kind": b.kind, "what": b.what},
        "differences": [_entry(d) for d in found.differences],
        "notes": [{**_entry(d), "why": d.why} for d in found.notes],
        "not_comparable": [{"group": u.group, "names": list(u.names), "why": u.why} for u in found.not_comparable],
        "equal": dict(found.equal),
    }


def _entry(d: Difference) -> dict[str, Any]:
    return {"group": d.group, "name": d.name, "ranks": list(d.ranks), "a": _stated(d.a), "b": _stated(d.b)}


def _stated(value: Any) -> dict[str, Any]:
    """null is a value, so that nothing there is told apart from it."""
    return {"is": "missing"} if value is MISSING else {"is": "value", "value": value}
