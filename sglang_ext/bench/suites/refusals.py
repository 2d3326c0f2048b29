"""What our launcher will refuse of an arm, told before hours are spent: its own checks, on what the suite says of the arm."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from sglang_ext.bench.suites.arms import decided
from sglang_ext.contract import rules
from sglang_ext.contract.names import looks_secret
from sglang_ext.nccl.ahead import look_ahead
from sglang_ext.nccl.finding import FAIL

if TYPE_CHECKING:
    from sglang_ext.bench.suites.arms import Arm


class Refusal(NamedTuple):
    """``code`` is the launcher's own."""

    arm: str
    code: str
    sentence: str


def refusals(arms: Sequence[Arm]) -> list[Refusal]:
    """Of each arm that our launcher starts: arguments that would overwrite the contract, and values that NCCL would not take.

    Stock arms and servers that run already are not its business, a control is its baseline again.
    """
    ours = [arm for arm in arms if arm.address is None and arm.patches and not arm.control]
    release = _release() if ours else None
    return [refusal for arm in ours for refusal in (*_fights(arm, release), *_values(arm))]


def _fights(arm: Arm, release: str | None) -> list[Refusal]:
    contract = decided(arm.contract["profile"], arm.contract["set"], arm.contract["absent"])
    environment = {**os.environ, **arm.environment}
    found = rules.fights(contract, rules.flag_settings(arm.arguments), environment, release=release)
    return [Refusal(arm.name, "arguments_fight_contract", fight.sentence) for fight in found]


def _values(arm: Arm) -> list[Refusal]:
    environment = {**os.environ, **arm.environment}
    shell = {name: value for name, value in environment.items() if not looks_secret(name)}
    found = look_ahead(shell, arm.variables, sys.path).findings
    return [Refusal(arm.name, one.code, one.message) for one in found if one.severity == FAIL]


def _release() -> str | None:
    """The sglang that stands here; where there is none, the rules of the newest one known are taken."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None
