"""What becomes of one patch in the new release.

clean       it fits as it is, at the lines it states
offset      it is carried: as it is at other lines, merged among changed neighbours, seated by the syntax
            tree beside a changed line, or resolved by a person (`how`)
conflict    its place is there, but what surrounds it changed too much; a person decides
moved       the function it belongs to has another name or is in another class or file; a person decides
gone        that function, or the whole file, is nowhere; a person decides
upstreamed  upstream has the change: it can be taken out of the release as it came, and its Probe holds there

A patch that applies, or merges, is carried only where all of this holds: the file compiles; each seam stands in its
function, once; the very lines of the patch were added and taken out; and each of them lies in the function, class and
block it lay in before.
"""

from __future__ import annotations

from sglang_ext.patchset.diff import apply, apply_with_offsets, make, state
from sglang_ext.patchset.model import Patch, PatchError
from sglang_ext.patchset.rebase.merge import is_marked, three_way
from sglang_ext.patchset.rebase.outcome import Case, Missing, Outcome, Spot, promised_by
from sglang_ext.patchset.rebase.places import changes
from sglang_ext.patchset.rebase.rules import broken, doubt, faults_of, is_unique, owners, spots, where
from sglang_ext.patchset.rebase.search import whereabouts
from sglang_ext.patchset.rebase.seat import seat
from sglang_ext.patchset.series import LOCAL

CONTEXT = (3, 5, 8, 12, 20, 40)  # lines around a hunk of a new text, as few as keep its place unique


def judge(case: Case) -> Outcome:
    """The state of the patch. Raises Missing where the old file is needed, MergeError where git is."""
    patch, new = case.patch, case.new
    if new is None:
        return _lost(case, "")
    if b"\r\n" in new or new.startswith(b"\xef\xbb\xbf"):
        odd = "CRLF line endings" if b"\r\n" in new else "a byte order mark"
        return Outcome(patch, "conflict", "", f"the file has {odd} now, which no patch here can have")
    if case.resolved is not None:
        return _resolved(case, new, case.resolved)
    if state(patch, new) == "applied":
        return _there_already(case, new)
    try:
        result, offsets = apply_with_offsets(patch, new)
    except PatchError:
        why = ""
    else:
        faults = faults_of(case, patch, new, result) or doubt(case, new, result)
        if not faults:
            done = "offset" if any(offsets) else "clean"
            return Outcome(patch, done, "as_is", "", patch, result, spots(case, new, result))
        why = f"as it is it applies, but {faults[0]}"
    return _merge(case, new, why)


def serving_both(case: Case, outcome: Outcome) -> Outcome:
    """The outcome with a text that fits both releases, where little enough context makes one: a user's own patch has
    no variants, and must go on fitting the release that is installed."""
    if case.old is None or case.new is None or outcome.result is None or outcome.how == "as_is":
        return outcome
    patch = outcome.carried or case.patch
    ours = apply(case.patch, case.old)
    for context in (3, 2, 1):
        made = make(patch.target, case.new, outcome.result, patch.origin, patch.header, context)
        try:
            if apply(made, case.old) == ours:
                return outcome._replace(carried=made, serves_both=True)
        except PatchError:
            continue
    return outcome


# --- the ways a patch gets there


def _there_already(case: Case, new: bytes) -> Outcome:
    from sglang_ext.patchset.postcondition import check_seams

    seams = promised_by(case.patch)
    faults = check_seams(new, [*case.promised, *seams])
    if seams and not faults:
        detail = "upstream has the change, at its place: retire the patch from this release on"
        return Outcome(case.patch, "upstreamed", "", detail)
    why = faults[0].rstrip(".") if faults else "the patch has no Probe that could say so"
    return Outcome(case.patch, "conflict", "", f"its lines are in the file already, which proves nothing: {why}")


def _merge(case: Case, new: bytes, why: str) -> Outcome:
    patch, old = case.patch, case.old
    if old is None:
        raise Missing(f"Patch {patch.origin} must be merged, which takes {patch.target} of sglang {case.releases[0]}")
    from_release, to_release = case.releases
    labels = (f"sglang {from_release}, patched", f"sglang {from_release}", f"sglang {to_release}")
    ours = apply(patch, old)
    merged = three_way(ours, old, new, labels)
    if not merged.conflicts and merged.text == new:
        same = "merging changes nothing: upstream seems to have the change, but it cannot be taken out as it is"
        return Outcome(patch, "conflict", "", same, marked=new)
    if not merged.conflicts:
        faults = faults_of(case, patch, new, merged.text)
        if not faults:
            carried = _text(patch, new, merged.text)
            return Outcome(patch, "offset", "merged", "", carried, merged.text, spots(case, new, merged.text))
        return _seated(case, new) or _lost(case, f"it merges, but {faults[0]}", merged.text)
    seated = _seated(case, new)
    if seated:
        return seated
    count = "1 place" if merged.conflicts == 1 else f"{merged.conflicts} places"
    return _lost(case, why or f"upstream changed the same lines at {count}", merged.text)


def _seated(case: Case, new: bytes) -> Outcome | None:
    """Put there by the syntax tree; only a Probe says that this is what the patch is about."""
    patch, old = case.patch, case.old
    if old is None or not promised_by(patch):
        return None
    result = seat(old, apply(patch, old), new)
    if result is None or result == new or faults_of(case, patch, new, result):
        return None
    detail = "upstream changed the line beside it"
    return Outcome(patch, "offset", "seated", detail, _text(patch, new, result), result, spots(case, new, result))


def _resolved(case: Case, new: bytes, resolved: bytes) -> Outcome:
    from sglang_ext.patchset.header import lint_header

    patch = case.patch
    if case.header:
        patch = Patch(patch.origin, case.header, patch.target, patch.hunks)
    if is_marked(resolved):
        return Outcome(case.patch, "conflict", "", "conflict markers are left in the resolved file", marked=resolved)
    if resolved == new:
        return Outcome(case.patch, "conflict", "", "the resolved file has no change in it", marked=resolved)
    # One of ours without a good Probe line would promise nothing, and anything would do.
    faults = [] if patch.origin.startswith(f"{LOCAL}/") else lint_header(patch)
    faults += broken(case, patch, resolved)
    if faults:
        return Outcome(case.patch, "conflict", "", f"of the resolved file: {faults[0]}", marked=resolved)
    found = tuple(Spot(0, change.line, where(patch, resolved, change)) for change in changes(new, resolved))
    return Outcome(case.patch, "offset", "resolved", "", _text(patch, new, resolved), resolved, found)


def _lost(case: Case, why: str, marked: bytes | None = None) -> Outcome:
    """A person is needed: is the place still there?"""
    found = whereabouts(owners(case), case.patch.target, case.old, case.new, case.tree)
    detail = found.detail if found.state != "conflict" else why or found.detail
    if found.state != "conflict" and why:
        detail += f" ({why})"
    return Outcome(case.patch, found.state, "", detail, marked=marked)


def _text(patch: Patch, new: bytes, result: bytes) -> Patch:
    """The new text: with as little context, from three lines on, as finds its place in the file without line numbers."""
    made: Patch | None = None
    for context in CONTEXT:
        made = make(patch.target, new, result, patch.origin, patch.header, context)
        if is_unique(made, new):
            return made
    assert made is not None
    return made
