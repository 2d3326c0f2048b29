"""What must hold of a patched file in the new release, whatever applied or merged; and where its changes lie.

Text that fits says nothing about meaning: the syntax tree of both releases does. Each fault is a clause of a sentence.
"""

from __future__ import annotations

from sglang_ext.patchset.diff import apply
from sglang_ext.patchset.postcondition import PACKAGE
from sglang_ext.patchset.rebase.merge import three_way
from sglang_ext.patchset.rebase.outcome import Case, Missing, Spot, promised_by
from sglang_ext.patchset.rebase.places import MODULE, changes, innermost, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from sglang_ext.patchset.model import Patch
    from sglang_ext.patchset.rebase.places import Change

    Path = tuple[str, tuple[str, ...], str]  # qualname, blocks and kind of a place


def faults_of(case: Case, patch: Patch, new: bytes, result: bytes) -> list[str]:
    """What is wrong with `result`; each a clause. The syntax tree comes first, then the lines, then their places."""
    faults = broken(case, patch, result)
    if faults:
        return faults
    found = changes(new, result)
    lines = sorted(line for hunk in patch.hunks for line in hunk.lines if line[:1] != b" ")
    made = _tagged(found)
    # A diff can be cut in more than one way: what another tool wrote is compared as we would cut it, too.
    if made != lines and (case.old is None or made != _tagged(changes(case.old, apply(case.patch, case.old)))):
        return ["only a part of the change would be made: upstream has the rest, or changed it"]
    return _misplaced(case, result, found) if _is_python(patch) else []


def _tagged(found: Sequence[Change]) -> list[bytes]:
    return sorted(
        tag + line for change in found for tag, side in ((b"-", change.old), (b"+", change.new)) for line in side
    )


def broken(case: Case, patch: Patch, result: bytes) -> list[str]:
    """What the file is by itself: does it compile, and does each seam stand in its function, once and above its use?"""
    import ast

    from sglang_ext.patchset.postcondition import check_seams

    if not _is_python(patch):
        return []
    try:
        tree = ast.parse(result, feature_version=case.python)
        compile(result, patch.target, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"the file does not compile (line {getattr(error, 'lineno', None)}: {getattr(error, 'msg', error)})"]
    promised = [*case.promised, *promised_by(patch)]
    known = places(result)
    for name in dict.fromkeys(name for name, _ in promised):
        # A second definition under the same name replaces the first, and the seam with it.
        lines = [place.first for place in known if place.qualname == name and place.kind != "block"]
        if len(lines) > 1:
            return [
                f"{name} is defined {len(lines)} times (lines {', '.join(map(str, lines))}), so one seam is not enough"
            ]
    faults = [fault[:1].lower() + fault[1:].rstrip(".") for fault in check_seams(result, promised)]
    return faults or _late(tree)


def _late(tree: ast.Module) -> list[str]:
    """A decorator runs as the module is imported: what it is must be imported above it."""
    import ast

    bound = {
        alias.asname or alias.name: node.lineno
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE
        for alias in node.names
    }
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            for name in ast.walk(decorator):
                if isinstance(name, ast.Name) and bound.get(name.id, 0) > name.lineno:
                    return [f"{name.id} would be imported at line {bound[name.id]}, below its use at {name.lineno}"]
    return []


def _misplaced(case: Case, result: bytes, found: Sequence[Change]) -> list[str]:
    """Each changed line lies where it lay; without the old release, at least in no block below a module's top level."""
    now = _paths(result, found)
    if case.old is None:
        return [f"a line of it lies below `{blocks[-1]}`" for name, blocks, _ in now if name == MODULE and blocks]
    then = _paths(ours := apply(case.patch, case.old), changes(case.old, ours))
    for before, after in zip(then, now, strict=False):
        if before[:2] != after[:2]:
            return [f"a line that belongs in {_show(before)} would lie in {_show(after)}"]
        if before[2] != after[2]:  # a wrapper for the one is wrong for the other
            return [f"{after[0]} is `{after[2]}` now, and was `{before[2]}`"]
    return [] if len(then) == len(now) else ["its changed lines would be torn apart"]


def doubt(case: Case, new: bytes, result: bytes) -> list[str]:
    """Without a Probe nothing says which of two twins is meant: then the merge must come to the same."""
    if promised_by(case.patch) or is_unique(case.patch, new):
        return []
    if case.old is None:
        raise Missing(f"Patch {case.patch.origin} fits at two places and has no Probe, which takes {case.patch.target}")
    merged = three_way(apply(case.patch, case.old), case.old, new, ("patched", *case.releases))
    return [] if merged.text == result else ["its lines are there twice, and the merge takes the other place"]


def owners(case: Case) -> list[str]:
    """The functions and classes the patch needs: those of its Probe, and those its lines lie in."""
    names = [qualname for qualname, _ in promised_by(case.patch)]
    if case.old is not None and _is_python(case.patch):
        ours = apply(case.patch, case.old)
        names += [name for name, _, _ in _paths(ours, changes(case.old, ours))]
    return list(dict.fromkeys(names))


def _paths(source: bytes, found: Sequence[Change]) -> list[Path]:
    known = places(source)
    paths: list[Path] = []
    for change in found:
        for line in range(change.line, change.line + max(1, len(change.new))):
            place = innermost(known, line)
            paths.append((place.qualname, place.blocks, place.kind))
    return paths


def _show(path: Path) -> str:
    name, blocks, _ = path
    return name + (f", below `{blocks[-1]}`" if blocks else "")


def _is_python(patch: Patch) -> bool:
    """A user's own patch may change any file of the package; of other ones only the lines can be held to anything."""
    return patch.target.endswith(".py")


def where(patch: Patch, source: bytes, change: Change) -> str:
    return _show(_paths(source, [change])[0]) if _is_python(patch) else "the file"


def spots(case: Case, new: bytes, result: bytes) -> tuple[Spot, ...]:
    after = changes(new, result)
    before = [0] * len(after)
    if case.old is not None:
        before = [change.line for change in changes(case.old, apply(case.patch, case.old))]
    named = [where(case.patch, result, change) for change in after]
    return tuple(Spot(b, a.line, w) for b, a, w in zip(before, after, named, strict=False))


def is_unique(patch: Patch, source: bytes) -> bool:
    """Does each hunk fit at one place only?"""
    return all(source.count(b"".join(hunk.old)) <= 1 for hunk in patch.hunks)
