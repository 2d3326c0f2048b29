"""What may not be shown whatever its name is: a URL with a password in it."""

from __future__ import annotations

HIDDEN = "(not shown: it holds credentials)"


def holds_credentials(value: str) -> bool:
    """True for a text with ``scheme://user:password@host`` or ``scheme://token@host`` in it, or that is ``user:password@host``.

    A password may hold what ends a host elsewhere: ``redis://user:a/b@host``. What stands behind a host and its port is no user
    (``http://host:8000/model@main``), nor is a text of names that happens to hold both signs (``hf:model@main``).
    """
    start = value.find("://")
    if start < 0:
        return _is_account(value)
    while start >= 0:
        rest = value[start + 3 :]
        authority = rest.partition("/")[0].partition("?")[0]
        _, colon, port = authority.rpartition(":")
        if "@" in authority or (colon and port and not port.isdigit() and "@" in rest.split(maxsplit=1)[0]):
            return True
        start = value.find("://", start + 3)
    return False


def _is_account(text: str) -> bool:
    """``user:password@host``, where the host looks like one: it has a dot, or a port, or is this machine."""
    account, at, host = text.rpartition("@")
    user, colon, password = account.partition(":")
    if not (at and colon and user and password and host) or any(ch in " \t/={}[]\",'" for ch in user + host):
        return False
    name, _, port = host.partition(":")
    return name == "localhost" or "." in name or port.isdigit()


def presentable(value: str | None) -> str | None:
    """The value where it may be shown, or a text that says why not."""
    return HIDDEN if value is not None and holds_credentials(value) else value
