"""Why a comparison is none."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, Reason

ROWS: dict[str, Reason] = {
    "side_unreadable": Reason(
        FAIL,
        "A side of diff is neither a server, a run directory, a receipt nor a verify report, or it cannot be read.",
        "Name one of the forms in `sglang-ext diff --help`.",
        2,
    ),
}
