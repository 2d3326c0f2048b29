"""One patch on its way to another release: what it meets, and what becomes of it."""

from __future__ import annotations

from typing import NamedTuple

from sglang_ext.patchset.model import Patch, PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_ext.patchset.rebase.search import Tree

    Seams = Sequence[tuple[str, str]]

CARRIED = ("clean", "offset")
STATES = (*CARRIED, "conflict", "moved", "gone", "upstreamed")


class Missing(PatchError):
    """The file of the old release is needed and not at hand."""


class Spot(NamedTuple):
    """One change of a patch: the line in each patched release, and where that is."""

    before: int  # 0 where the old release is not at hand
    after: int
    where: str


class Outcome(NamedTuple):
    """What became of one patch."""

    patch: Patch  # the old text
    state: str
    how: str  # "as_is", "merged", "seated" or "resolved" where it is carried, else ""
    detail: str
    carried: Patch | None = None  # the text for the new release; the old one where it fits as it is
    result: bytes | None = None  # the new release's file with the patch in it
    spots: tuple[Spot, ...] = ()
    marked: bytes | None = None  # for a person: the file with conflict markers, or the nearest thing to it
    serves_both: bool = False  # the new text fits the old release, too


class Case(NamedTuple):
    """One patch and what it meets. `old` and `new` are its file before this patch, with those before it applied."""

    patch: Patch
    old: bytes | None  # None: that release is not at hand
    new: bytes | None  # None: the new release has no such file
    promised: Seams  # the seams of the patches of this file before it
    releases: tuple[str, str]
    python: tuple[int, int]
    tree: Tree
    resolved: bytes | None = None  # the patched file as a person left it
    header: str = ""  # with it: another header block


def promised_by(patch: Patch) -> tuple[tuple[str, str], ...]:
    """The seams of the Probe line; none where there is no good one, as in a patch of a user's own."""
    from sglang_ext.patchset.header import HeaderError, expected_seams

    try:
        return expected_seams(patch)
    except HeaderError:
        return ()
