"""What happened: one line per patch for the terminal, markdown for a reviewer, JSON for scripts."""

from __future__ import annotations

from typing import NamedTuple

from sglang_ext.patchset.model import render
from sglang_ext.patchset.rebase.outcome import CARRIED
from sglang_ext.patchset.rebase.places import MODULE, lines_of, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sglang_ext.patchset.rebase.carry import Release
    from sglang_ext.patchset.rebase.outcome import Outcome, Spot

SCHEMA = "sglang-ext/rebase/1"
DIFF_LINES = 120  # of upstream's own change to one function; beyond that a count
HOW = {
    "as_is": "as it is",
    "merged": "merged",
    "seated": "seated by the tree",
    "resolved": "resolved by a person",
    "": "",
}


class Rebase(NamedTuple):
    """A run: from which release to which, what became of each patch, and what was written."""

    from_release: str
    to_release: str
    wheels: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    written: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # for a person, outside the patches
    dry_run: bool = False

    @property
    def carried(self) -> bool:
        """Is all of it carried, so that it can land?"""
        return all(outcome.state in CARRIED for outcome in self.outcomes)


def as_json(run: Rebase) -> dict[str, object]:
    """For --json."""
    return {
        "schema": SCHEMA,
        "from": run.from_release,
        "to": run.to_release,
        "carried": run.carried,
        "dry_run": run.dry_run,
        "wheels": list(run.wheels),
        "targets": [
            {
                "file": outcome.patch.target,
                "patch": outcome.patch.origin,
                "state": outcome.state,
                "how": outcome.how,
                "detail": outcome.detail,
                "hunks": [{"from_line": s.before or None, "line": s.after, "in": s.where} for s in outcome.spots],
            }
            for outcome in run.outcomes
        ],
        "written": list(run.written),
        "left": list(run.left),
    }


def lines(run: Rebase) -> Iterator[str]:
    """For the terminal."""
    for outcome in run.outcomes:
        how = f", {HOW[outcome.how]}" if outcome.how else ""
        yield f"{outcome.state + how:26} {outcome.patch.origin}: {_said(outcome)}"
    for name in run.written:
        yield f"wrote {name}"
    for name in run.left:
        yield f"left for you: {name}"
    yield _verdict(run)


def page(run: Rebase, old: Release | None, new: Release) -> str:
    """The report a reviewer reads beside the diff."""
    parts = [f"# The patch set from sglang {run.from_release} to {run.to_release}\n\n{_verdict(run)}\n"]
    rows = [
        f"| `{o.patch.origin}` | `{o.patch.target}` | {o.state} | {HOW[o.how]} | {_cell(_said(o))} |"
        for o in run.outcomes
    ]
    parts.append("\n".join(["| patch | file | state | how | |", "|---|---|---|---|---|", *rows]) + "\n")
    for outcome in run.outcomes:
        parts += _section(outcome, run, old, new)
    parts.append("## Wheels\n\n" + "\n".join(f"- `{name}`" for name in run.wheels) + "\n")
    for title, names in (("Written", run.written), ("Left for a person, outside the patches", run.left)):
        if names:
            parts.append(f"## {title}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n")
    return "\n".join(parts)


def _verdict(run: Rebase) -> str:
    count = len(run.outcomes)
    if run.carried:
        fresh = sum(outcome.how != "as_is" for outcome in run.outcomes)
        texts = f", {fresh} with a new text" if fresh else ", each as it is"
        landed = "nothing was written (--dry-run)" if run.dry_run else f"sglang {run.to_release} is in the lock"
        return f"{count} of {count} patches carried from {run.from_release} to {run.to_release}{texts}; {landed}."
    stuck = sum(outcome.state not in CARRIED for outcome in run.outcomes)
    return (
        f"{stuck} of {count} patches need a person on the way from {run.from_release} to {run.to_release};"
        " the patches and the lock are as they were."
    )


def _spots(spots: Sequence[Spot]) -> str:
    said = [f"line {s.before} -> {s.after} ({s.where})" if s.before else f"line {s.after} ({s.where})" for s in spots]
    return ", ".join(said)


def _said(outcome: Outcome) -> str:
    return "; ".join(text for text in (outcome.detail, _spots(outcome.spots)) if text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace(MODULE, f"`{MODULE}`")


def _section(outcome: Outcome, run: Rebase, old: Release | None, new: Release) -> Iterator[str]:
    """The new text against the old one, and what upstream did to the functions the patch is in."""
    if outcome.how in ("merged", "seated", "resolved") and outcome.carried is not None:
        yield f"## New text of `{outcome.patch.origin}`\n\n{_fenced(render(outcome.carried))}"
    before = old.read(outcome.patch.target) if old else None
    after = new.read(outcome.patch.target)
    if before is None or after is None:
        return
    names = list(dict.fromkeys(s.where.split(",")[0] for s in outcome.spots if not s.where.startswith(MODULE)))
    was, now = _bodies(before), _bodies(after)
    for name in names:
        if name in was and name in now and was[name] != now[name]:
            yield f"## Upstream on `{name}`, {run.from_release} to {run.to_release}\n\n{_diff(was[name], now[name])}"


def _bodies(source: bytes) -> Mapping[str, list[bytes]]:
    try:
        known = places(source)
    except (SyntaxError, ValueError):
        return {}
    text = lines_of(source)
    return {place.qualname: text[place.first - 1 : place.last] for place in known if place.kind.endswith("def")}


def _diff(before: Sequence[bytes], after: Sequence[bytes]) -> str:
    from difflib import unified_diff

    was, now = ([line.decode("utf-8", "replace").rstrip("\n") for line in side] for side in (before, after))
    diff = list(unified_diff(was, now, lineterm="", n=2))[2:]
    if len(diff) <= DIFF_LINES:
        return _fenced("\n".join(diff) + "\n")
    changed = sum(line[:1] in ("+", "-") for line in diff)
    return f"{changed} lines changed, of {len(before)} before and {len(after)} after; too many to show.\n"


def _fenced(text: str) -> str:
    fence = "````" if "```" in text else "```"
    return f"{fence}diff\n{text}{fence}\n"
