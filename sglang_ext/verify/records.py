"""What a run and its workers wrote down: read with care, because a worker, or somebody else, wrote it."""

from __future__ import annotations

from sglang_ext import reasons
from sglang_ext.contract.names import is_tuning
from sglang_ext.quick import Any, NamedTuple
from sglang_ext.run.attestation import record_name
from sglang_ext.run.process import started_at
from sglang_ext.verify.discover import Process, Rank
from sglang_ext.verify.expected import Expected
from sglang_ext.verify.witnesses import Reading, Witnessed

MODES = ("overlay", "baked", "in_place")  # ways a patch set gets in (sglang_ext/patchset/plan.py)
CLOCKS_DIFFER = 2.0  # seconds between the clock a run is dated by and start times counted in ticks


class Fault(NamedTuple):
    """What is wrong with a worker's record: a code of `reasons.TABLE`, and the sentence after the worker's name."""

    code: str
    text: str


def fault_of(seen: Witnessed, process: Process, run: dict[str, Any] | None, contract: str | None) -> Fault | None:
    """What a scheduler's record, or its absence, has against it; None where nothing.

    ``run`` is run.json of the run the server belongs to; ``contract`` the digest of the run's own contract, None where
    another one is asked about.
    """
    if seen.record_fault:
        return Fault("attestation_bad", f": {seen.record_fault}")
    stated = (seen.record or {}).get("contract", contract)
    if contract is not None and stated != contract:
        expected, found = str(stated)[:12], contract[:12]
        what = f"expected the contract it was started with, digest {expected}, found {found} in contract.json"
        return Fault("contract_edited", f": {what}")
    if run is not None and seen.record is None:
        if _is_older(process.stat.pid, run):
            what = f"was started before run {run['id']}: it holds what an earlier launch gave it"
            return Fault("stale_worker", f" {what}")
        name = record_name(process.ns_pid or process.stat.pid)
        what = f"belongs to run {run['id']} and attests nothing: expected {name}, found none"
        return Fault("hook_inactive", f" {what}")
    hook = hook_of(seen.record)
    if run is not None and hook["mode"] == "none":
        return Fault("hook_inactive", " says it runs stock files")
    wanted = (run or {}).get("patchset")
    if wanted is not None and hook["patchset"] != wanted:
        expected, found = str(wanted)[:12], str(hook["patchset"])[:12]
        what = f"expected patch set {expected}, which the run was started with, found {found}"
        return Fault("wrong_copy", f": {what}")
    # Where the run only warns, ranks that did not agree serve all the same; on other nodes only they saw it.
    agreement = part(part(seen.record, "ready"), "agreement")
    if agreement.get("code") is not None and agreement["code"] in reasons.TABLE:
        return Fault(agreement["code"], f" when it was built: {agreement.get('message')}")
    return None


def _is_older(pid: int, run: dict[str, Any]) -> bool:
    """Was ``pid`` there before the run was?"""
    created = run.get("created")
    return isinstance(created, int | float) and 0 < started_at(pid) < created - CLOCKS_DIFFER


def rank_of(record: dict[str, Any], titled: Rank, expected: Expected) -> Rank:
    """A title leaves parts out; the record has what the worker was called with. Dimensions of one are not named."""
    said = {k: v for k, v in record.get("rank", {}).items() if k in Rank._fields and isinstance(v, int)}
    known = {k: v for k, v in titled._asdict().items() if v is not None}
    alone = {k for k in ("dp", "pp") if getattr(expected, k) == 1}
    return Rank(**{k: v for k, v in (said | known).items() if k not in alone})


def part(record: dict[str, Any] | None, key: str) -> dict[str, Any]:
    """An object inside a record; empty where there is none."""
    value = (record or {}).get(key)
    return value if isinstance(value, dict) else {}


def accepted(run: dict[str, Any] | None) -> list[str]:
    """The codes the launch accepted."""
    codes = (run or {}).get("accepted")
    return [str(code) for code in codes] if isinstance(codes, list) else []


def hook_of(record: dict[str, Any] | None) -> dict[str, Any]:
    """The "hook" object of a report."""
    hook = part(record, "hook")
    mode = hook.get("mode") if hook.get("mode") in MODES else "none"
    local = hook.get("local")
    names = [str(name) for name in local] if isinstance(local, list) else []
    return {"active": mode != "none", "patchset": hook.get("patchset"), "mode": mode, "local": names}


def found_at_entry(record: dict[str, Any] | None, name: str) -> Reading | None:
    """What the worker found of ``name`` at its first line; None where it says nothing of it."""
    values = part(record, "entered").get("values")
    if not isinstance(values, dict) or (name not in values and not is_tuning(name)):
        return None
    value = values.get(name)  # every tuning variable that was there is in it
    return Reading("absent") if value is None else Reading("value", str(value))
