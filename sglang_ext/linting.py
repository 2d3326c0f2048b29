"""`sglang-ext lint`: what NCCL will make of a contract, in milliseconds, before a model is loaded in twenty minutes."""

from __future__ import annotations

import os
import sys

from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.contract.names import looks_secret
from sglang_ext.contract.profile import Profile
from sglang_ext.nccl.ahead import Ahead, look_ahead
from sglang_ext.nccl.version import NEWEST_KNOWN, asked_for, version_text
from sglang_ext.quick import Any
from sglang_ext.reasons import TABLE

SCHEMA = "sglang-ext/lint/1"


def lint_here(contract: Contract, accepted: list[str], nccl: str | None, profile: Profile | None) -> dict[str, Any]:
    """The report on ``contract`` and this shell, by the rules of release ``nccl`` or of the library installed here.

    Raises ContractError for a text that is no version.
    """
    try:
        version = asked_for(nccl) if nccl is not None else None
    except ValueError as error:
        raise ContractError(str(error)) from None
    wanted = {name: term.want for name, term in contract.terms.items()}
    shell = {name: value for name, value in os.environ.items() if not looks_secret(name)}
    found = report(look_ahead(shell, wanted, sys.path, version=version), contract, accepted)
    doubt = profile.unqualified(found["nccl"]["version"]) if profile else None
    if doubt:
        entry = {"code": "unqualified", "severity": "note", "accepted": False, "variable": None, "message": doubt}
        found["findings"].insert(0, {**entry, "fix": TABLE["unqualified"].fix})
    return found


def report(ahead: Ahead, contract: Contract, accepted: list[str]) -> dict[str, Any]:
    """The report as data: docs/lint.md describes it."""
    findings = [
        {
            "code": one.code,
            "severity": "note" if one.code in accepted else one.severity,
            "accepted": one.code in accepted,
            "variable": one.variable,
            "message": one.message,
            "fix": TABLE[one.code].fix,
        }
        for one in ahead.findings
        if one.variable is None or not looks_secret(one.variable)
    ]
    grades = {one["severity"] for one in findings}
    return {
        "schema": SCHEMA,
        "verdict": "FAIL" if "fail" in grades else "UNKNOWN" if "unknown" in grades else "PASS",
        "nccl": {
            "version": version_text(ahead.version) if ahead.version else None,
            "path": ahead.path,
            "rules": version_text(ahead.version or NEWEST_KNOWN),
        },
        "conf": [file.path for file in ahead.conf.files],
        "contract": contract.to_json(),
        "findings": findings,
    }


def render(found: dict[str, Any], *, colour: bool = False) -> str:
    """The report for people: a line a finding, and the verdict."""
    from sglang_ext.verify.report import paint

    nccl = found["nccl"]
    whose = (
        f"NCCL {nccl['version']}"
        if nccl["version"]
        else f"NCCL {nccl['rules']}, the newest known: none is installed here"
    )
    out = []
    for one in found["findings"]:
        accepted = " (accepted)" if one["accepted"] else ""
        out.append(f"{paint(one['severity'] + ' ' + one['code'], one['severity'], colour)}: {one['message']}{accepted}")
    if out:
        out.append("")
    number, files = len(found["contract"]["variables"]), found["conf"]
    read = f", with {' and '.join(files)}" if files else ""
    out.append(f"{paint(found['verdict'], found['verdict'], colour)}: {number} variables by the rules of {whose}{read}")
    return "\n".join(out)
