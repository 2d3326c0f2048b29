"""Reading TOML strictly: nothing is skipped, nothing is guessed. Every refusal is one sentence: the file and key, what was
expected, what was found, the fix."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

REQUIRED = object()  # the default of a key that has none
Keys = Mapping[str, tuple[type, Any]]  # key -> (type, default)
KIND = {str: "a string", int: "an integer", bool: "a boolean", float: "a number", dict: "a table", list: "an array"}
SAMPLE = {str: '"..."', int: "1", bool: "true", float: "1.0", dict: "{}", list: '["..."]'}


class SuiteError(Exception):
    """A suite that cannot be found or read; one sentence: the file, what was expected, found, the fix."""

    def __init__(self, sentence: str) -> None:
        # Of one line whatever the file holds: a key in quotes may be any text.
        super().__init__("".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in sentence))


def error(what: str, expected: str, found: str, fix: str) -> SuiteError:
    return SuiteError(f"{what}: expected {expected}, found {found}; {fix}")


def kind(value: object) -> str:
    """What a value is, in words."""
    if value == "":
        return "an empty string"
    # By type and not isinstance, as a bool is an int to Python. tomllib gives dates and times as well.
    return KIND.get(type(value), f"a {type(value).__name__}")


def read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        found = getattr(failure, "strerror", None) or str(failure)
        raise error(what, "a readable file", found, "correct the path or its permissions") from None


def text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as failure:
        line = raw.count(b"\n", 0, failure.start) + 1
        raise error(where, "UTF-8", f"another byte in line {line}", "save the file as UTF-8") from None


def toml(raw: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text(raw, where))
    except tomllib.TOMLDecodeError as failure:  # says "(at line 3, column 5)" itself
        raise error(where, "TOML", f"an error: {failure}", "correct that line") from None


def only_known(keys: Iterable[str], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in keys:
        if key not in known:
            raise error(where, " or ".join(known), key, "correct or remove it")


def table(found: object, name: str, keys: Keys, where: str) -> dict[str, Any]:
    """The table ``[name]``, every key of it: as given, or its default."""
    if not isinstance(found, dict):
        raise error(where, f"{name} to be a table", kind(found), f"write [{name}] on a line of its own")
    return values(found, keys, f"{where}: [{name}]")


def values(found: Mapping[str, Any], keys: Keys, place: str) -> dict[str, Any]:
    """Every key of one table: as given, or its default. ``place`` names the table in a refusal."""
    only_known(found, keys, place)
    made: dict[str, Any] = {}
    for key, (wanted, default) in keys.items():
        if key not in found:
            if default is REQUIRED:
                raise error(place, f"the key {key}", "none", f"add {key} = {SAMPLE[wanted]}")
            made[key] = default
            continue
        value = found[key]
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted or value == "":
            fix = "fill it in or remove the key" if value == "" else f"write {KIND[wanted]}"
            raise error(f"{place} {key}", KIND[wanted], kind(value), fix)
        made[key] = value
    return made


def strings(items: Iterable[object], what: str) -> list[str]:
    """The items of an array, each a string that is not empty."""
    made = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, str) or not item:
            raise error(f"{what}, number {number}", KIND[str], kind(item), "write or remove it")
        made.append(item)
    return made


def plain_name(name: str, what: str) -> str:
    """A name that may be part of a file's."""
    if not name or not all(ch.isascii() and (ch.isalnum() or ch in "._-") for ch in name):
        raise error(what, "letters, digits and . _ - only", repr(name), "rename it")
    return name
