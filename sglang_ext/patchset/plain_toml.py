"""A quick reader for the TOML we write ourselves: tables, strings, counts and lists of strings, nothing else.

The lock holds some 500 lines, and every process that imports sglang reads it. `tomllib` would cost it several times
what this reader does, and brings `re` and `datetime` along. What is in any way more than the plain form is not judged
here but left to `tomllib`: the two never differ about a text both can read (tests/unit/test_lock.py).
"""

from __future__ import annotations

BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def read(text: str) -> dict[str, object] | None:
    """What the text says, or None where it has anything but the plain form."""
    top: dict[str, object] = {}
    table = top
    headed: set[tuple[str, ...]] = set()
    for line in text.split("\n"):
        if not line.isprintable():
            return None
        if not line or line[0] == "#":
            continue
        if line[0] == "[":
            path = _path(line)
            found = _table(top, path) if path and path not in headed else None
            if found is None:
                return None
            headed.add(path)
            table = found
            continue
        written, equals, right = line.partition(" = ")
        key = _unquoted(written) if written[:1] == '"' else written if _bare(written) else None
        value = _value(right)
        if not equals or key is None or value is None or key in table:
            return None
        table[key] = value
    return top


def _path(line: str) -> tuple[str, ...]:
    """`[release."0.5.23".wheels]` -> its parts; none where it is more than that."""
    if line[-1] != "]":
        return ()
    parts: list[str] = []
    rest = line[1:-1]
    while True:
        if rest[:1] == '"':
            part, closed, rest = rest[1:].partition('"')
            if not closed or "\\" in part:
                return ()
        else:
            end = rest.find(".")
            part, rest = (rest, "") if end < 0 else (rest[:end], rest[end:])
            if not _bare(part):
                return ()
        parts.append(part)
        if not rest:
            return tuple(parts)
        if rest[0] != ".":
            return ()
        rest = rest[1:]


def _table(top: dict[str, object], path: tuple[str, ...]) -> dict[str, object] | None:
    table = top
    for part in path:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            return None
        table = inner
    return table


def _value(text: str) -> object:
    if text[:1] == "[":
        if text[-1] != "]":
            return None
        items = [_unquoted(item) for item in text[1:-1].split(", ")] if text != "[]" else []
        return None if None in items else items
    if text.isascii() and text.isdigit() and (text[0] != "0" or text == "0"):
        return int(text)
    return _unquoted(text)


def _unquoted(text: str) -> str | None:
    inner = text[1:-1]
    plain = len(text) > 1 and text[0] == text[-1] == '"' and '"' not in inner and "\\" not in inner
    return inner if plain else None


def _bare(text: str) -> bool:
    return bool(text) and BARE.issuperset(text)
