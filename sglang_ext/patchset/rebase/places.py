"""In which function, class and block each line of a module lies, by its syntax tree; and what two versions differ in."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Sequence

MODULE = "<module>"


class Place(NamedTuple):
    """One function, class or block, by its lines, decorators included.

    `qualname` is that of the function or class; `blocks` are the `if`, `try`, `with`, ... between the module and the
    place. An import that was at the top and now lies below `if TYPE_CHECKING` is in the same module, but not bound.
    """

    qualname: str
    blocks: tuple[str, ...]
    kind: str  # "def", "async def", "class" or "block"
    first: int
    last: int


class Change(NamedTuple):
    """Lines taken out and put in at one point; `line` is the first new one (or where the old ones were), from 1."""

    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    line: int


@lru_cache(maxsize=16)  # one judgement asks for the same few texts again and again
def places(source: bytes) -> tuple[Place, ...]:
    """Every function, class, block and text over several lines, outer ones first. Raises SyntaxError, ValueError."""
    import ast

    tree = ast.parse(source)
    known = tuple(_walk(tree, "", "", ()))
    texts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Constant) and (node.end_lineno or 0) > node.lineno
    ]
    return known + tuple(
        Place(owner.qualname, (*owner.blocks, "a string"), "block", node.lineno + 1, node.end_lineno or 0)
        for node in texts
        for owner in (innermost(known, node.lineno),)
    )


def innermost(known: Sequence[Place], line: int) -> Place:
    """Where a line lies; on the module's own level, the module."""
    found = Place(MODULE, (), "block", 0, 0)
    for place in known:  # an inner place follows the outer one
        if place.first <= line <= place.last:
            found = place
    return found


def lines_of(source: bytes) -> list[bytes]:
    """Split at LF only, as a patch does."""
    lines = [line + b"\n" for line in source.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


@lru_cache(maxsize=16)
def changes(before: bytes, after: bytes) -> tuple[Change, ...]:
    """What turns `before` into `after`, top to bottom."""
    from difflib import SequenceMatcher

    old, new = lines_of(before), lines_of(after)
    return tuple(
        Change(tuple(old[i:j]), tuple(new[k:m]), k + 1)
        for kind, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if kind != "equal"
    )


def _walk(node: ast.AST, owner: str, prefix: str, blocks: tuple[str, ...]) -> Iterator[Place]:
    """`owner` is the function or class we are in, `prefix` what its members' names start with."""
    import ast

    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        is_class = isinstance(node, ast.ClassDef)
        owner = prefix + node.name
        prefix = f"{owner}." if is_class else f"{owner}.<locals>."
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        kind = "class" if is_class else "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        yield Place(owner, blocks, kind, first, node.end_lineno or node.lineno)
        for statement in node.body:
            yield from _walk(statement, owner, prefix, blocks)
        return
    top = isinstance(node, ast.Module)
    for field, value in ast.iter_fields(node):
        inside = [child for child in value if isinstance(child, ast.AST)] if isinstance(value, list) else []
        if inside and isinstance(inside[0], ast.stmt):
            deeper = blocks if top else (*blocks, _label(node, field))
            if not top:
                last = inside[-1]
                yield Place(
                    owner or MODULE,
                    deeper,
                    "block",
                    getattr(inside[0], "lineno", 0),
                    getattr(last, "end_lineno", 0) or 0,
                )
            for child in inside:
                yield from _walk(child, owner, prefix, deeper)
        elif inside and isinstance(inside[0], ast.ExceptHandler | ast.match_case):
            for child in inside:
                yield from _walk(child, owner, prefix, blocks)


def _label(node: ast.AST, field: str) -> str:
    """`if TYPE_CHECKING`, `try`, `else of if x`."""
    import ast

    kind = {"AsyncFor": "for", "AsyncWith": "with", "ExceptHandler": "except"}.get(type(node).__name__)
    text = kind or type(node).__name__.lower()
    if isinstance(node, ast.If | ast.While):
        text += f" {ast.unparse(node.test)}"
    return text if field == "body" else f"{field} of {text}"
