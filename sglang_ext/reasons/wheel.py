"""Why no wheel is built."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, UNKNOWN, Reason

ROWS: dict[str, Reason] = {
    "wheel_not_locked": Reason(
        FAIL,
        "A wheel whose file name the lock does not have: it may hold anything.",
        "Take upstream's wheel of a supported release, under its own name.",
    ),
    "wheel_changed": Reason(
        FAIL,
        "A wheel has another sha256 than upstream's of that name, or is laid out in a new way.",
        "Download it again, from an index that you trust.",
    ),
    "wheel_other_release": Reason(
        FAIL,
        "The release that --upstream names is another than that of the wheel in --from.",
        "Correct one of the two.",
        2,
    ),
    "wheel_unreadable": Reason(
        FAIL, "The file of --from is none, or cannot be read.", "Name a wheel that can be read.", 2
    ),
    "wheel_not_fetched": Reason(
        UNKNOWN,
        "pip brought no wheel of the release for that Python and machine.",
        "Try `pip download`; give a wheel you have with --from.",
        3,
    ),
    "output_unusable": Reason(
        FAIL,
        "The wheel to be written is there already, or its folder cannot be written to.",
        "Remove it, or name another folder with --out.",
        2,
    ),
}
