"""Decorators and imports put where the syntax tree says, where a merge cannot: upstream changed the line right beside.

A line merge sees two changes that touch and stops. But a decorator belongs on top of its function, whatever became of the
arguments, and an import among the imports of its module. Anything else a patch does is left to a person, and so is a
function with other decorators above the place, or another indentation.
"""

from __future__ import annotations

from sglang_ext.patchset.rebase.places import MODULE, changes, innermost, lines_of, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from sglang_ext.patchset.rebase.places import Change


def seat(old: bytes, ours: bytes, new: bytes) -> bytes | None:
    """What turned `old` into `ours`, done to `new`; None where it is more than decorators and imports."""
    lines = lines_of(new)
    inserts: list[tuple[int, tuple[bytes, ...]]] = []  # line number from 0 to put them before, and the lines
    try:
        for change in changes(old, ours):
            if change.old or not set(change.new).isdisjoint(lines):
                return None  # it takes lines out, or a part of it is there already
            at = (
                _above_function(ours, new, change) if change.new[0].lstrip()[:1] == b"@" else _import(ours, new, change)
            )
            if at is None:
                return None
            inserts.append((at, change.new))
    except (SyntaxError, ValueError):
        return None
    for at, text in sorted(inserts, reverse=True):
        lines[at:at] = text
    return b"".join(lines)


def _above_function(ours: bytes, new: bytes, change: Change) -> int | None:
    """The first line, from 0, of the one function of that name; its decorators must be those below ours."""
    owner = innermost(places(ours), change.line)
    if owner.kind == "block" or owner.first != change.line:
        return None
    found = [place for place in places(new) if place.qualname == owner.qualname and place.kind == owner.kind]
    if len(found) != 1 or found[0].blocks != owner.blocks:
        return None
    before, after = lines_of(ours), lines_of(new)
    at = found[0].first - 1
    below = before[change.line - 1 + len(change.new)]
    depth = len(after[at]) - len(after[at].lstrip())
    if depth != len(below) - len(below.lstrip()):
        return None
    # A decorator that is new above or gone from below ours may change what ours gets to see: a person looks.
    same = after[at] == below or not (below.lstrip().startswith(b"@") or after[at].lstrip().startswith(b"@"))
    return at if same else None


def _import(ours: bytes, new: bytes, change: Change) -> int | None:
    """Beside the nearest of the imports around it that the new release still has at its top level, once."""
    import ast

    if innermost(places(ours), change.line)[:2] != (MODULE, ()):
        return None
    here, there = ast.parse(ours).body, _imports(ast.parse(new).body)
    first, last = change.line, change.line + len(change.new) - 1
    inside = [node for node in here if first <= node.lineno <= last]
    if not inside or any(not isinstance(node, ast.Import | ast.ImportFrom) for node in inside):
        return None
    around = _imports(here)
    above = [node for node in around if node.lineno < first][::-1]
    below = [node for node in around if node.lineno > last]
    for distance in range(max(len(above), len(below))):
        for side, after in ((above, True), (below, False)):
            twins = [node for node in there if distance < len(side) and _same(node, side[distance])]
            if len(twins) == 1:
                return (twins[0].end_lineno or 0) if after else twins[0].lineno - 1
    return None


def _imports(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    import ast

    return [node for node in body if isinstance(node, ast.Import | ast.ImportFrom) and _module(node) != "__future__"]


def _same(node: ast.stmt, other: ast.stmt) -> bool:
    """The same import, or one from the same module, whatever names upstream takes from it by now."""
    import ast

    return ast.dump(node) == ast.dump(other) or (_module(node) != "" and _module(node) == _module(other))


def _module(node: ast.stmt) -> str:
    import ast

    return node.module or "" if isinstance(node, ast.ImportFrom) and not node.level else ""
