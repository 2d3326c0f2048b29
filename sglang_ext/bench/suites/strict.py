"""Reading TOML strictly: nothing is skipped, nothing is guessed. Every refusal is one sentence: the file and key, what was
expected, what was found, the fix."""

from __future__ import annotations

import os
import stat
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from sglang_ext.hide import holds_credentials

REQUIRED = object()  # the default of a key that has none
Keys = Mapping[str, tuple[type, Any]]  # key -> (type, default)
BIGGEST = 1 << 20  # bytes of a suite
NAME = 60  # letters of a name that may be part of a file's
INVISIBLE = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # Unicode's control, format (which way text runs) and line characters, half pairs
BOM = b"\xef\xbb\xbf"
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


def read(path: str, what: str, biggest: int = BIGGEST) -> bytes:
    """What is in a regular file of at most ``biggest`` bytes: /dev/zero has no end. Raises SuiteError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
            raw = _first(handle, biggest + 1) if regular else b""
        finally:
            os.close(handle)
    except (OSError, ValueError) as failure:  # ValueError: a NUL in the path
        found = getattr(failure, "strerror", None) or str(failure)
        raise error(what, "a readable file", found, "correct the path or its permissions") from None
    if not regular:
        raise error(what, "a regular file", "a folder, device or pipe", "name a file")
    if len(raw) > biggest:
        raise error(what, f"{biggest >> 20} MiB at most", "more", "name the file that was meant")
    return raw


def _first(handle: int, size: int) -> bytes:
    with open(handle, "rb", closefd=False) as file:
        return file.read(size)


def text(raw: bytes, where: str) -> str:
    if raw.startswith(BOM):
        raise error(where, "UTF-8", "a byte order mark before it", "save the file as UTF-8 without one (BOM)")
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
    except (ValueError, RecursionError):  # Python reads no number of more than 4300 digits, and no endless nesting
        raise error(where, "TOML", "a number or nesting without end", "correct it") from None


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
            value = (
                float(value) if abs(value) < 1 << 64 else float("inf")
            )  # whatever is that large has a limit below it
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


def one_line(found: str, what: str) -> str:
    """A text for people: of one line, and read as it is stored, so without characters that steer a terminal or hide."""
    for ch in found:
        if unicodedata.category(ch) in INVISIBLE:
            raise error(what, "one line of visible characters", f"U+{ord(ch):04X} in it", "remove it")
    if holds_credentials(found):
        raise error(what, "a text without a password in it", "a URL that holds one", "leave it out")
    return found


def in_range(found: float, least: float, most: float, what: str) -> None:
    """Raises SuiteError."""
    if found < least:
        raise error(what, f"{least:g} or more", f"{found}", "correct it")
    if found > most:
        shown = f"{found}" if len(f"{found}") <= 20 else "a larger number"
        raise error(what, f"{most} at most", shown, "correct it")


def plain_name(name: str, what: str) -> str:
    """A name that may be part of a file's."""
    if len(name) > NAME:
        raise error(what, f"{NAME} letters at most", str(len(name)), "shorten it")
    if name.startswith("."):
        raise error(what, "a letter, digit, _ or - first", repr(name), "rename it")
    if not name or not all(ch.isascii() and (ch.isalnum() or ch in "._-") for ch in name):
        raise error(what, "letters, digits and . _ - only", repr(name), "rename it")
    return name
