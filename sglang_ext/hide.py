"""What may not be shown whatever its name is: a URL with a password in it."""

from __future__ import annotations

HIDDEN = "(not shown: it holds credentials)"


def holds_credentials(value: str) -> bool:
    """True for a text with ``scheme://user:password@host`` or ``scheme://token@host`` in it, or that is ``user:password@host``.

    A password may hold what ends a host in other URLs: ``redis://user:a/b@host``.
    """
    start = value.find("://")
    if start < 0:
        user, at, _ = value.partition("@")
        return bool(at) and ":" in user.strip(":") and "/" not in user and " " not in user
    while start >= 0:
        rest = value[start + 3 :].split(maxsplit=1)[:1] or [""]
        authority = rest[0].partition("/")[0].partition("?")[0]
        if "@" in authority or (":" in authority and "@" in rest[0]):
            return True
        start = value.find("://", start + 3)
    return False


def presentable(value: str | None) -> str | None:
    """The value where it may be shown, or a text that says why not."""
    return HIDDEN if value is not None and holds_credentials(value) else value
