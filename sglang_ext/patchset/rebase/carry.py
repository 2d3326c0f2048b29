"""All patches of a release, carried to another, in their order and file by file. Pure, but for git."""

from __future__ import annotations

from typing import NamedTuple

from sglang_ext.patchset.diff import apply
from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.rebase.outcome import CARRIED, Case, Outcome, promised_by
from sglang_ext.patchset.rebase.search import Tree
from sglang_ext.patchset.rebase.states import judge, serving_both
from sglang_ext.patchset.series import LOCAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sglang_ext.patchset.model import Patch

    Read = Callable[[str], bytes | None]


class Resolution(NamedTuple):
    """A patched file as a person left it, and the header block the patch shall have ("": its own)."""

    text: bytes
    header: str = ""


class Release(NamedTuple):
    """The files of a release: all names, and how to read one (None: it has no such file)."""

    version: str
    names: Sequence[str]
    read: Read


def carry(
    patches: Sequence[Patch],
    old: Release | None,
    new: Release,
    from_version: str,
    python: tuple[int, int],
    resolved: Mapping[str, Resolution],
) -> list[Outcome]:
    """One outcome per patch. A file's later patches wait where an earlier one needs a person. May raise Missing."""
    outcomes: list[Outcome] = []
    before: dict[str, bytes | None] = {}  # target: the old file with the patches so far
    after: dict[str, bytes | None] = {}
    promised: dict[str, list[tuple[str, str]]] = {}
    stuck: dict[str, str] = {}  # target: the patch that needs a person
    tree = Tree(new.names, lambda name: new.read(name) or b"")
    for patch in patches:
        target = patch.target
        if target in stuck:
            detail = f"it lies on top of {stuck[target]}, which must be resolved first"
            outcomes.append(Outcome(patch, "conflict", "", detail))
            continue
        if target not in after:
            before[target] = old.read(target) if old else None
            after[target] = new.read(target)
        source = before[target]
        # A patch that does not even fit where it is carried from says so here, by name.
        ours = _patched(patch, source, from_version) if source is not None else None
        seams = promised.setdefault(target, [])
        text, header = resolved.get(patch.origin, (None, ""))
        case = Case(
            patch, before[target], after[target], seams, (from_version, new.version), python, tree, text, header
        )
        outcome = judge(case)
        if patch.origin.startswith(f"{LOCAL}/"):
            outcome = serving_both(case, outcome)
        outcomes.append(outcome)
        if outcome.state not in CARRIED:
            stuck[target] = patch.origin
            continue
        assert outcome.carried is not None
        seams += promised_by(outcome.carried)
        before[target] = ours
        after[target] = outcome.result
    return outcomes


def _patched(patch: Patch, source: bytes, version: str) -> bytes:
    try:
        return apply(patch, source)
    except PatchError as error:
        raise PatchError(f"In sglang {version}, which it is carried from: {error}") from None
