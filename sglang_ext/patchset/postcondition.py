"""Did the seams end up where they belong? Text that applied says nothing about meaning; the syntax tree does.

A seam is a name bound at module level by an import from sglang_ext (`from sglang_ext... import X as Y`), used
as a decorator (`@Y`, `@Y.name`, with or without a call) or called in the first statement of a function or
class. Its `name` is the last part as written: `Y` or `name`. Any other use has kind "other" and is a fault.
"""

from __future__ import annotations

from sglang_ext.patchset.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Sequence
    from typing import Literal

    Kind = Literal["decorator", "call", "other"]

PACKAGE = "sglang_ext"
MODULE = "<module>"


class Seam(Record):
    """One use of an imported name: in which function or class, how, what it is called, and on which line."""

    __slots__ = ("qualname", "kind", "name", "line")
    qualname: str
    kind: Kind
    name: str
    line: int

    def __init__(self, qualname: str, kind: Kind, name: str, line: int) -> None:
        self._set(qualname, kind, name, line)


def seams(source: bytes) -> list[Seam]:
    """Every seam of a module in the order of its lines. Raises SyntaxError."""
    import ast

    return sorted(_Walk(ast.parse(source)).found, key=lambda seam: seam.line)


def check_seams(source: bytes, expected: Sequence[tuple[str, str]]) -> list[str]:
    """One sentence per fault: a seam of `expected` missing, twice or elsewhere, and any not expected."""
    import ast

    try:
        walk = _Walk(ast.parse(source))
    except SyntaxError as error:
        return [f"The patched file is no Python (line {error.lineno}: {error.msg}): look at the patch."]
    found = sorted(walk.found, key=lambda seam: seam.line)
    faults = [f"Line {seam.line}: `{seam.name}` is rebound in {seam.qualname}." for seam in walk.rebound]
    good = [seam for seam in found if seam.kind != "other"]
    for qualname, name in expected:
        here = [seam.line for seam in good if (seam.qualname, seam.name) == (qualname, name)]
        if len(here) == 1:
            continue
        if here:
            lines = ", ".join(map(str, here))
            faults.append(f"Seam {name} is in {qualname} {len(here)} times (lines {lines}), expected once.")
            continue
        elsewhere = [s for s in found if s.name == name and (s.qualname, name) not in expected]
        if elsewhere:
            places = ", ".join(f"{seam.qualname} (line {seam.line})" for seam in elsewhere)
            faults.append(f"Seam {name} is in the wrong place: expected in {qualname}, found in {places}.")
        else:
            faults.append(f"Seam {name} is missing: expected in {qualname}, found nowhere{walk.whereabouts(qualname)}.")
    wanted = {name for _, name in expected}
    for seam in found:
        if seam.kind == "other" and (seam.qualname, seam.name) in expected:
            faults.append(
                f"Line {seam.line}: {seam.name} is used in {seam.qualname}, but neither as a decorator nor in"
                " the first statement."
            )
        elif seam.name not in wanted:
            faults.append(f"Line {seam.line}: seam {seam.name} in {seam.qualname} is promised by no Probe line.")
    return faults


class _Walk:
    """Walks a module once, with the qualname Python would give each function and class."""

    def __init__(self, tree: ast.Module) -> None:
        import ast

        self.ast = ast
        self.found: list[Seam] = []
        self.rebound: list[Seam] = []
        self.scopes: set[str] = set()
        self.names = set(self._imported(tree.body))
        for statement in tree.body:
            self._visit(statement, MODULE, "")

    def whereabouts(self, qualname: str) -> str:
        """What to add where a function that should have a seam is gone: nothing while it is still there."""
        if qualname in self.scopes:
            return ""
        last = qualname.rpartition(".")[2]
        moved = sorted(scope for scope in self.scopes if scope.rpartition(".")[2] == last) if last != "__init__" else []
        there = f", but has {', '.join(moved)}: upstream moved it" if moved else ""
        return f", and the file has no {qualname}{there}"

    def _imported(self, body: Iterable[ast.stmt]) -> Iterable[str]:
        """Names that imports from our package bind at module level, `if` and `try` blocks included."""
        ast = self.ast
        for node in body:
            if isinstance(node, ast.ImportFrom):
                if not node.level and (node.module or "").split(".")[0] == PACKAGE:
                    yield from (alias.asname or alias.name for alias in node.names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == PACKAGE:
                        yield alias.asname or PACKAGE
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for child in ast.iter_child_nodes(node):
                    blocks = [child] if isinstance(child, ast.stmt) else ast.iter_child_nodes(child)
                    yield from self._imported(block for block in blocks if isinstance(block, ast.stmt))

    def _visit(self, node: ast.AST, owner: str, prefix: str) -> None:
        """`owner` is the function or class we are in, `prefix` what its members' qualnames start with."""
        ast = self.ast
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(node, owner, prefix)
            return
        if isinstance(node, ast.Name | ast.Attribute):
            name = self._seam_name(node)
            if name and isinstance(node.ctx, ast.Load):
                self.found.append(Seam(owner, "other", name, node.lineno))
                return
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self._binds(node.id, owner, node.lineno)
        if isinstance(node, ast.arg):
            self._binds(node.arg, owner, node.lineno)
        for child in ast.iter_child_nodes(node):
            self._visit(child, owner, prefix)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, owner: str, prefix: str) -> None:
        ast = self.ast
        qualname = prefix + node.name
        self.scopes.add(qualname)
        self._binds(node.name, owner, node.lineno)
        for decorator in node.decorator_list:
            self._seam_or_visit(decorator, qualname, "decorator", owner, prefix)
        body = list(node.body)
        inner = f"{qualname}." if isinstance(node, ast.ClassDef) else f"{qualname}.<locals>."
        for child in ast.iter_child_nodes(node):
            if child in node.decorator_list or child in body:
                continue
            self._visit(child, owner if isinstance(child, ast.expr) else qualname, prefix)
        if ast.get_docstring(node, clean=False) is not None:
            body.pop(0)
        first = body[0] if body else None
        if isinstance(first, ast.Expr | ast.Assign) and isinstance(first.value, ast.Call):
            self._seam_or_visit(first.value, qualname, "call", qualname, inner)
            body.pop(0)
        for statement in body:
            self._visit(statement, qualname, inner)

    def _seam_or_visit(self, node: ast.expr, qualname: str, kind: Kind, owner: str, prefix: str) -> None:
        ast = self.ast
        target = node.func if isinstance(node, ast.Call) else node
        name = self._seam_name(target)
        if not name:
            self._visit(node, owner, prefix)
            return
        self.found.append(Seam(qualname, kind, name, node.lineno))
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.Call) and child is not target:
                self._visit(child, owner, prefix)

    def _seam_name(self, node: ast.expr) -> str:
        """`Y` -> "Y", `Y.a.b` -> "b" where Y comes from our package, else ""."""
        root: ast.AST = node
        while isinstance(root, self.ast.Attribute):
            root = root.value
        if not isinstance(root, self.ast.Name) or root.id not in self.names:
            return ""
        return node.attr if isinstance(node, self.ast.Attribute) else root.id

    def _binds(self, name: str, owner: str, line: int) -> None:
        if name in self.names:
            self.rebound.append(Seam(owner, "other", name, line))
