"""Taking a receipt again: is what it was taken on still here? What can be known before anything is started; the rest, from the
arguments upstream resolves to the bytes of libnccl, is compared once a server runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from sglang_ext.bench import fingerprint
from sglang_ext.bench.suites.suite import Suite, changed, missing

MACHINE = ("cpu", "cores", "architecture", "gpus", "kernel")


class AgainError(Exception):
    """The suite of a receipt cannot be found; one sentence."""


def suite_of(receipt: Mapping[str, Any], path: str, named: str | None) -> str:
    """The path of the suite a receipt is of: ``named``, where it was, or beside the receipt. Raises AgainError."""
    if named is not None:
        return named
    stored = receipt["suite"]
    candidates = [
        stored.get("path"),
        os.path.join(os.path.dirname(os.path.abspath(path)), stored["file"]),
        stored["file"],
    ]
    for one in candidates:
        if one and os.path.isfile(one):
            return str(one)
    raise AgainError(
        f"receipt {path}: expected its suite {stored['file']} where it was or beside it, found none; name it with --suite"
    )


def fingerprints(receipt: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each arm ran on."""
    if receipt.get("fingerprint"):  # bench/1 has one server
        return {arm["name"]: receipt["fingerprint"] for arm in receipt["arms"]}
    return {arm["name"]: arm["fingerprint"] for arm in receipt["arms"] if arm.get("fingerprint")}


def differences(receipt: Mapping[str, Any], suite: Suite) -> list[str]:
    """What no longer is as it was when the receipt was taken: a sentence for each."""
    found = changed(receipt["suite"], suite)
    if not found and receipt["suite"]["sha256"] != suite.sha256:
        found.append(f"suite sha256: expected {receipt['suite']['sha256'][:12]}, found {suite.sha256[:12]}")
    if lost := missing(suite.arms):
        found.append(lost)
    prints = fingerprints(receipt)
    before = next(iter(prints.values()), None)
    if before is None:
        return [*found, "the receipt says of no arm what it ran on: no launch of it finished"]
    return [*found, *_here(before, own_servers=bool(suite.arms) and suite.arms[0].address is None)]


def _here(before: Mapping[str, Any], *, own_servers: bool) -> list[str]:
    now = {"driver": fingerprint.driver()["version"], **{key: fingerprint.machine()[key] for key in MACHINE}}
    then = {"driver": before["driver"]["version"], **{key: before["machine"].get(key) for key in MACHINE}}
    found = [f"{key}: expected {then[key]}, found {now[key]}" for key in now if then[key] != now[key]]
    if own_servers:  # they are started by this Python
        for name, version in before["server"]["packages"].items():
            if (here := _version(name)) != version:
                found.append(f"{name}: expected {version or 'none'}, found {here or 'none'}")
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
