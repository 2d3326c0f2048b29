"""What a reason code is made of, and what comes of it."""

from __future__ import annotations

from sglang_ext.quick import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Literal

    Makes = Literal["verdict", "excluded", "inconclusive", "unreconciled"]

FAIL, UNKNOWN, NOTE = "fail", "unknown", "note"
# What a campaign makes of a code that is no verdict on a server: the pair of its launch is excluded, or the campaign's state.
EXCLUDED: Literal["excluded"] = "excluded"
INCONCLUSIVE: Literal["inconclusive"] = "inconclusive"
UNRECONCILED: Literal["unreconciled"] = "unreconciled"


class Reason(NamedTuple):
    """One code. ``exit`` is the status of what is refused or stopped for it, where it can end anything: `exit_of` knows.

    ``makes``: what comes of it; "verdict" is what its severity says.
    """

    severity: str
    meaning: str
    fix: str
    exit: int = 1
    makes: Makes = "verdict"


def exit_of(reason: Reason) -> int | None:
    """The exit status of what ends for it; None where nothing does."""
    if reason.severity == NOTE or reason.makes == EXCLUDED:
        return None
    return 3 if reason.severity == UNKNOWN else reason.exit


def consequence(reason: Reason) -> str:
    """What comes of it, in words."""
    status = exit_of(reason)
    if reason.severity == NOTE:
        return "changes no verdict and stops nothing"
    if reason.makes == EXCLUDED:
        return "ends nothing: it excludes the pair of its launch"
    if reason.makes == INCONCLUSIVE:
        return f"makes a campaign INCONCLUSIVE, with exit status {status}"
    if reason.makes == UNRECONCILED:
        return f"excludes the pair of its launch; where too many are, the campaign is UNRECONCILED, with exit status {status}"
    return f"what is refused or stopped for it exits with status {status}"
