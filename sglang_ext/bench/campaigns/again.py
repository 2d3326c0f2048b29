"""Taking a receipt again: is what it was taken on still here? What can be known before anything is started; the rest, from the
arguments upstream resolves to the bytes of libnccl, is compared once a server runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from importlib import metadata
from typing import Any

from sglang_ext.bench import fingerprint
from sglang_ext.bench.suites.suite import Suite, changed, missing
from sglang_ext.bench.truth.sameness import with_environment
from sglang_ext.contract.names import shown

MACHINE = ("cpu", "cores", "architecture", "gpus", "kernel")
WIDEST = 200  # characters of one side of a difference


class AgainError(Exception):
    """The suite of a receipt cannot be found; ``code`` of `reasons`, one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def suite_of(receipt: Mapping[str, Any], path: str, named: str | None) -> str:
    """The path of the suite a receipt is of: ``named``, where it was, or beside the receipt. Raises AgainError."""
    if named is not None:
        return named
    stored = receipt["suite"]
    file = stored.get("file")
    if not isinstance(file, str):
        text = f"receipt {path}: suite: expected the key file, found none; name the suite with --suite"
        raise AgainError("receipt_unreadable", text)
    was = stored.get("path") or _object(receipt.get("from")).get("suite")  # bench/1 has the second
    beside = os.path.join(os.path.dirname(os.path.abspath(path)), file)
    candidates = dict.fromkeys([*([was] if isinstance(was, str) else []), beside, os.path.abspath(file)])
    for one in candidates:
        if os.path.isfile(one):
            return one
    text = f"receipt {path}: expected its suite {shown(file)} at {' or '.join(candidates)}, found none; name it with --suite"
    raise AgainError("suite_invalid", text)


def fingerprints(receipt: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each arm ran on, the environment of its ranks with it."""
    made = receipt.get("fingerprint")
    if isinstance(
        made, dict
    ):  # bench/1 has one server, and keeps what its ranks hold in the report beside the fingerprint
        return {arm["name"]: _with_ranks(made, _object(receipt.get("verify")).get("before")) for arm in receipt["arms"]}
    return {arm["name"]: arm["fingerprint"] for arm in receipt["arms"] if isinstance(arm.get("fingerprint"), dict)}


def _with_ranks(made: dict[str, Any], report: Any) -> dict[str, Any]:
    try:
        return with_environment(made, report)
    except (AttributeError, KeyError, TypeError):
        return made  # no report of ours: nothing is known of the ranks, so nothing of them is compared


def differences(receipt: Mapping[str, Any], suite: Suite) -> list[str]:
    """What no longer is as it was when the receipt was taken: a sentence for each."""
    stored, now = receipt["suite"], suite.to_json()
    tables = {key: _object(stored.get(key)) for key in ("workload", "campaign")}
    found = [*changed({**stored, **tables, "arms": now.get("arms", [])}, suite), *_arms(_named(stored), _named(now))]
    if not found and stored.get("sha256") != suite.sha256:
        found.append(f"suite sha256: expected {str(stored.get('sha256'))[:12]}, found {suite.sha256[:12]}")
    if lost := missing(suite.arms):
        found.append(lost)
    prints = fingerprints(receipt)
    before = next(iter(prints.values()), None)
    if before is None:
        return [*found, "the receipt says of no arm what it ran on: no launch of it finished"]
    return [*found, *_here(before, own_servers=bool(suite.arms) and suite.arms[0].address is None)]


def _named(suite: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    arms = suite.get("arms")
    each = [arm for arm in arms if isinstance(arm, Mapping)] if isinstance(arms, list) else []
    return {str(arm.get("name")): arm for arm in each}


def _arms(then: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What differs between the arms: only the words that do, and once for all arms in which it is the same."""
    told: dict[str, list[str]] = {}
    for name in sorted(then.keys() | now.keys()):
        if name not in then or name not in now:
            told.setdefault("expected it, found none" if name in then else "expected no such arm, found it", []).append(
                name
            )
            continue
        for where, expected, found in _unlike(then[name], now[name], ""):
            told.setdefault(f"{where}: expected {_cut(expected)}, found {_cut(found)}", []).append(name)
    both = len(then.keys() & now.keys())
    lines = []
    for text, names in told.items():
        whole = text.startswith("expected")  # of the arm itself
        whose = "every arm's" if len(names) == both > 1 and not whole else f"arm {', '.join(names)}"
        lines.append(f"{whose}{': ' if whole else ' '}{text}")
    return lines


def _unlike(then: Any, now: Any, where: str) -> Iterator[tuple[str, str, str]]:
    """Where two JSON values differ, and what stands there on each side."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted(then.keys() | now.keys()):
            yield from _unlike(then.get(key), now.get(key), f"{where}.{key}" if where else str(key))
    elif isinstance(then, list) and isinstance(now, list):
        a, b = [_word(one) for one in then], [_word(one) for one in now]
        for kind, i, j, k, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if kind != "equal":
                yield where, " ".join(a[i:j]) or "nothing", " ".join(b[k:end]) or "nothing"
    elif then != now or isinstance(then, bool) != isinstance(now, bool):
        yield where, _word(then), _word(now)


def _word(value: Any) -> str:
    return shown(value) if isinstance(value, str) else "none" if value is None else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}..."


def _here(before: Mapping[str, Any], *, own_servers: bool) -> list[str]:
    machine, driver, server = (_object(before.get(key)) for key in ("machine", "driver", "server"))
    now = {"driver": fingerprint.driver()["version"], **{key: fingerprint.machine()[key] for key in MACHINE}}
    then = {"driver": driver.get("version"), **{key: machine.get(key) for key in MACHINE}}
    found = [f"{key}: expected {then[key]}, found {now[key]}" for key in now if then[key] != now[key]]
    if own_servers:  # they are started by this Python
        for name, version in _object(server.get("packages")).items():
            if (here := _version(name)) != version:
                found.append(f"{name}: expected {version or 'none'}, found {here or 'none'}")
    return found


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
