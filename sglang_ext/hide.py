"""What may not be shown whatever its name is: a URL with a password in it."""

from __future__ import annotations

HIDDEN = "(not shown: it holds credentials)"


def holds_credentials(value: str) -> bool:
    """True for a text with ``scheme://user:password@host`` or ``scheme://token@host`` in it."""
    start = value.find("://")
    while start >= 0:
        authority = value[start + 3 :].partition("/")[0].partition("?")[0]
        if "@" in authority:
            return True
        start = value.find("://", start + 3)
    return False


def presentable(value: str | None) -> str | None:
    """The value where it may be shown, or a text that says why not."""
    return HIDDEN if value is not None and holds_credentials(value) else value
