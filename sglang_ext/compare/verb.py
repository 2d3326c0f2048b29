"""`sglang-ext diff`: both sides, the comparison, and what is printed or written of it."""

from __future__ import annotations

import sys
from typing import Any

from sglang_ext.compare.difference import Same, Side, compare, never
from sglang_ext.compare.show import DIFFERENT, SAME, render, to_json, verdict
from sglang_ext.compare.sides import SideError, load

STATUS = {SAME: 0, DIFFERENT: 1}
NOTHING_STATUS = 3  # nothing that both sides know, or no server


class InputError(Exception):
    """Exit 2: a code of `reasons` and one sentence."""


def run(one: str, other: str, *, quiet: bool = False) -> tuple[int, dict[str, Any]]:
    """Compare, and print the comparison unless ``quiet``. Returns the exit status and the report.

    Raises InputError, and NoServerError, RunError or ContractError of a live side.
    """
    try:
        a, b = load(one), load(other)
    except SideError as error:
        raise InputError(f"side_unreadable: {error}") from None
    found = compare(a, b, meanings(a, b))
    status = STATUS.get(verdict(found), NOTHING_STATUS)
    if not quiet:
        print(render(a, b, found, colour=sys.stdout.isatty()))
    return status, to_json(a, b, found, status)


def meanings(a: Side, b: Side) -> Same:
    """What the NCCL of each side takes a text for; nobody can say where no version is known, or no rules of one."""
    from sglang_ext.nccl.understand import taken
    from sglang_ext.nccl.version import is_known, parse_version, version_text

    versions = [parse_version(text) if (text := side.nccl_version()) else None for side in (a, b)]
    for_a, for_b = versions[0] or versions[1], versions[1] or versions[0]
    if for_a is None or for_b is None or not (is_known(for_a) and is_known(for_b)):
        return never

    def same(name: str, one: str | None, other: str | None) -> str | None:
        meant = "" if one is None else taken(name, one, for_a)
        if meant != ("" if other is None else taken(name, other, for_b)):
            return None
        who = " and ".join(dict.fromkeys(f"NCCL {version_text(version)}" for version in (for_a, for_b)))
        return f"{who} takes both for {meant}" if meant else f"{who} takes both for unset"

    return same
