"""Suites: TOML files that say what to ask a server for, read strictly: nothing is skipped, nothing is guessed."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# All that a file may hold: key -> (type, default; REQUIRED where there is none).
REQUIRED = object()
TABLES: Mapping[str, Mapping[str, tuple[type, Any]]] = {
    "suite": {"name": (str, REQUIRED), "summary": (str, REQUIRED)},
    "workload": {
        "prompt": (str, None),
        "prompt_file": (str, None),
        "tokens": (int, 2048),
        "runs": (int, 5),
        "warmup_tokens": (int, 128),
        "warmup_runs": (int, 1),
        "temperature": (float, 0.0),
        "ignore_eos": (bool, True),
        "timeout_s": (float, 600.0),
        "endpoint": (str, "generate"),
    },
}
ENDPOINTS = ("generate", "completions")
LEAST = {"tokens": 2, "runs": 1, "warmup_tokens": 1, "warmup_runs": 0}  # one token has no decode rate
FIXED = {
    "temperature": 0.0,
    "ignore_eos": True,
}  # every run is greedy and of full length: runs that differ compare nothing
KIND = {str: "a string", int: "an integer", bool: "a boolean", float: "a number", dict: "a table", list: "an array"}


class SuiteError(Exception):
    """A suite that cannot be found or read; one sentence: the file, what was expected, found, the fix."""


class Workload(NamedTuple):
    """What is asked, how often. ``prompt_file`` is how the suite named it; ``prompt`` its text all the same."""

    prompt: str
    prompt_file: str | None
    tokens: int
    runs: int
    warmup_tokens: int
    warmup_runs: int
    temperature: float
    ignore_eos: bool
    timeout_s: float
    endpoint: str


class Suite(NamedTuple):
    """A suite as read; ``sha256`` of the file."""

    name: str
    summary: str
    workload: Workload
    path: str
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """For a receipt. The text of a prompt file stays where it is: its sha256 tells whether it is the same."""
        work = self.workload._asdict()
        if self.workload.prompt_file is not None:
            del work["prompt"]
        work["prompt_sha256"] = hashlib.sha256(self.workload.prompt.encode()).hexdigest()
        work["prompt_characters"] = len(self.workload.prompt)
        file = os.path.basename(self.path)
        return {"name": self.name, "summary": self.summary, "file": file, "sha256": self.sha256, "workload": work}


def load_suite(path: str) -> Suite:
    """Read a suite. Raises SuiteError."""
    return parse_suite(_read(path, f"suite {path}"), path)


def parse_suite(raw: bytes, path: str) -> Suite:
    """The suite in ``raw``; a prompt file is looked for beside ``path``. Raises SuiteError."""
    where = f"suite {path}"
    document = _toml(raw, where)
    _only_known((f"[{name}]" for name in document), [f"[{name}]" for name in TABLES], where)
    found = {name: _table(document.get(name, {}), name, where) for name in TABLES}
    head, work = found["suite"], found["workload"]
    if not all(ch.isascii() and (ch.isalnum() or ch in "._-") for ch in head["name"]):
        raise _error(f"{where}: [suite] name", "letters, digits and . _ - only", repr(head["name"]), "rename it")
    place = f"{where}: [workload]"
    if (work["prompt"] is None) == (work["prompt_file"] is None):
        both = "neither" if work["prompt"] is None else "both"
        raise _error(place, "one of prompt and prompt_file", both, "give exactly one")
    for key, least in LEAST.items():
        if work[key] < least:
            raise _error(f"{place} {key}", f"{least} or more", str(work[key]), "correct it")
    if not 0 < work["timeout_s"] < float("inf"):
        raise _error(f"{place} timeout_s", "seconds, more than 0", f"{work['timeout_s']:g}", "correct it")
    for key, only in FIXED.items():
        if work[key] != only:
            shown, given = (str(v).lower() for v in (only, work[key]))
            raise _error(f"{place} {key}", f"{shown}, as every run is greedy and of full length", given, "remove it")
    if work["endpoint"] not in ENDPOINTS:
        raise _error(f"{place} endpoint", " or ".join(ENDPOINTS), repr(work["endpoint"]), "correct it")
    if work["prompt_file"] is not None:
        file = os.path.join(os.path.dirname(os.path.abspath(path)), work["prompt_file"])
        text = _text(_read(file, f"{place} prompt_file {work['prompt_file']}"), f"{place} prompt_file")
        if not text:
            raise _error(f"{place} prompt_file", "some text", "an empty file", "write the prompt into it")
        work["prompt"] = text
    return Suite(head["name"], head["summary"], Workload(**work), path, hashlib.sha256(raw).hexdigest())


def _error(what: str, expected: str, found: str, fix: str) -> SuiteError:
    return SuiteError(f"{what}: expected {expected}, found {found}; {fix}")


def _kind(value: object) -> str:
    if value == "":
        return "an empty string"
    # By type and not isinstance, as a bool is an int to Python. tomllib gives dates and times as well.
    return KIND.get(type(value), f"a {type(value).__name__}")


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        found = getattr(error, "strerror", None) or str(error)
        raise _error(what, "a readable file", found, "correct the path or its permissions") from None


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _error(where, "UTF-8", f"another byte in line {line}", "save the file as UTF-8") from None


def _toml(raw: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(raw, where))
    except tomllib.TOMLDecodeError as error:  # says "(at line 3, column 5)" itself
        raise _error(where, "TOML", f"an error: {error}", "correct that line") from None


def _only_known(keys: Iterable[str], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in keys:
        if key not in known:
            raise _error(where, " or ".join(known), key, "correct or remove it")


def _table(table: object, name: str, where: str) -> dict[str, Any]:
    """One table, every key of it: as given, or its default."""
    if not isinstance(table, dict):
        raise _error(where, f"{name} to be a table", _kind(table), f"write [{name}] on a line of its own")
    place, keys = f"{where}: [{name}]", TABLES[name]
    _only_known(table, keys, place)
    values: dict[str, Any] = {}
    for key, (kind, default) in keys.items():
        if key not in table:
            if default is REQUIRED:
                raise _error(place, f"the key {key}", "none", f'add {key} = "..."')
            values[key] = default
            continue
        value = table[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or value == "":
            fix = "fill it in or remove the key" if value == "" else f"write {KIND[kind]}"
            raise _error(f"{place} {key}", KIND[kind], _kind(value), fix)
        values[key] = value
    return values
