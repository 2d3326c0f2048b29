"""Records into facts: a verify report, a fingerprint, a run directory's files. Pure, and nothing gets through that may be
a secret: names as `contract.names` allows them, arguments as the receipt filters them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_ext.compare.difference import (
    ARGUMENTS,
    CONTRACT,
    DRIVER,
    ENVIRONMENT,
    HOST,
    MODEL,
    NCCL,
    PATCHES,
    SIZES,
    VERSIONS,
    Known,
)
from sglang_ext.contract.model import Contract
from sglang_ext.contract.names import is_tuning
from sglang_ext.hide import presentable

Groups = dict[str, Mapping[str, Known]]

SIZE_NAMES = ("tp", "pp", "dp", "nnodes", "workers", "here")
FINGERPRINTED = (VERSIONS, NCCL, DRIVER, PATCHES, MODEL, ARGUMENTS, HOST)
MODEL_NAMES = ("architectures", "weight_version")  # its path is an argument
LIBRARY_NAMES = ("file", "version", "sha256")
HOST_NAMES = ("cpu", "cores", "memory_bytes", "kernel", "architecture", "gpus")
NO_CONTRACT = "a server not of ours states no contract"
ATTESTED = ("mode", "patchset", "imported")
UNTOLD = "a verify report does not hold it"
OURS = "a run of ours"
SECRETS = "(those that may hold secrets)"  # stands for the arguments that no record keeps


def harmless(variables: Mapping[str, Any]) -> dict[str, str]:
    """What may be shown of an environment: tuning variables, and of a value with credentials only that it is there."""
    held = {name: presentable(value) for name, value in variables.items() if is_tuning(name) and isinstance(value, str)}
    return {name: value for name, value in held.items() if value is not None}


def all_unknown(groups: Iterable[str], why: str) -> Groups:
    return {group: {"": Known(why=why)} for group in groups}


def of_contract(stored: object) -> Groups:
    """The terms of a contract as `Contract.to_json` wrote it; None is none. Raises ContractError where it was edited."""
    if stored is None:
        return {CONTRACT: {"": Known(why=NO_CONTRACT)}}
    terms = Contract.from_json(stored).terms.values()
    return {CONTRACT: {"": Known({term.name: term.want for term in terms})}}


def of_report(report: Mapping[str, Any]) -> Groups:
    """What a verify report tells, whole or as a receipt keeps it."""
    counting = [worker for worker in report["workers"] if worker["counts"]]
    ranks: dict[str, Known] = {}
    for worker in counting:
        label = worker["label"] if worker["label"] not in ranks else f"{worker['label']} (pid {worker['pid']})"
        ranks[label] = _environment(worker, report)
    libraries = [
        {
            "worker": worker["label"],
            "file": one["path"].rpartition("/")[2],
            "version": one["version"],
            "sha256": None,
            "reason": one["detail"] or UNTOLD,
        }
        for worker in counting
        for one in (worker.get("nccl") or {}).get("libraries", ())
    ]
    expected = report["expected"]
    sizes = {name: expected[name] for name in SIZE_NAMES if expected.get(name) is not None}
    untold = {name: "not told by its command line" for name in SIZE_NAMES if expected.get(name) is None}
    return {
        **of_contract(report["contract"]),
        ENVIRONMENT: ranks or {"": Known(why="no worker of it was seen")},
        SIZES: {"": Known({**sizes, "ranks found": sorted(ranks)}, untold)},
        NCCL: _libraries(libraries) if libraries else {"": Known(why=UNTOLD)},
        PATCHES: {"": _hooks(report, counting)},
        HOST: {"": Known({"name": report["host"]}, dict.fromkeys(HOST_NAMES, UNTOLD))},
    }


def _environment(worker: Mapping[str, Any], report: Mapping[str, Any]) -> Known:
    """The tuning variables a worker held, and which of the contract's it did not tell."""
    values = harmless(worker["extras"])
    unknown: dict[str, str] = {}
    if worker.get("unseen"):
        return Known(why=worker["unseen"])
    if "variables" in worker:
        for name, found in worker["variables"].items():
            readings = [found["witnesses"].get(w) or {} for w in ("live", "attested")]
            reading = next((r for r in readings if r.get("state") in ("value", "absent")), None)
            if reading is None:
                unknown[name] = readings[0].get("detail") or "it could not be read"
            elif reading["state"] == "value" and is_tuning(name):
                values |= harmless({name: reading["value"]})
        if unknown and len(unknown) == len(worker["variables"]):
            return Known(why=next(iter(unknown.values())))  # no witness of it could be heard
        return Known(values, {n: why for n, why in unknown.items() if is_tuning(n)})
    # As a receipt keeps it: a variable nobody complained of held what the contract wants.
    blamed = {p["variable"]: p["code"] for p in report["problems"] if p["worker"] == worker["pid"] and p["variable"]}
    for name, term in ((report["contract"] or {}).get("variables") or {}).items():
        if not is_tuning(name):
            continue
        if name in blamed and blamed[name] != "repaired":
            unknown[name] = f"the receipt only says that it was found {blamed[name]}"
        elif term["want"] is not None:
            values[name] = term["want"]
    if worker["verdict"] == "UNKNOWN" and not worker["extras"]:
        return Known(why="its environment could not be read")
    return Known(values, unknown)


def _hooks(report: Mapping[str, Any], counting: list[Mapping[str, Any]]) -> Known:
    hooks = [(worker["hook"].get("mode"), worker["hook"].get("patchset")) for worker in counting]
    ours = _is_ours(report)
    if report["run"] is None:
        return _attesting(ours, dict.fromkeys(ATTESTED, "a server not of ours attests nothing"))
    untold = {"imported": UNTOLD}
    if not hooks or len(set(hooks)) > 1:
        why = "its workers attest different files" if hooks else "no worker of it was seen"
        return _attesting(ours, {**untold, "mode": why, "patchset": why})
    return _attesting(ours, untold, mode=hooks[0][0], patchset=hooks[0][1])


def _is_ours(report: Mapping[str, Any]) -> bool | str:
    """Does it carry a run of ours? Or why that cannot be told."""
    if report["run"] is not None:
        return True
    damaged = next((p["message"] for p in report["problems"] if p["code"] == "run_not_believed"), None)
    if damaged is not None:
        return str(damaged)
    seen = any(worker["extras"] for worker in report["workers"])
    return False if seen else "its processes could not be looked into"


def _attesting(ours: bool | str, unknown: Mapping[str, str], **facts: Any) -> Known:
    if isinstance(ours, str):
        return Known(facts, {**unknown, OURS: ours})
    return Known({OURS: ours, **facts}, unknown)


def of_fingerprint(made: Mapping[str, Any], report: Mapping[str, Any]) -> Groups:
    """What `bench.fingerprint.collect` made; ``report``: the verify report it goes with."""
    machine, model, driver = made["machine"], made["model"], made["driver"]
    return {
        VERSIONS: {"": _versions(made["server"])},
        NCCL: _libraries(made["nccl"]),
        DRIVER: {"": Known({"version": driver["version"]}) if driver["version"] else _why(driver)},
        PATCHES: {"": _patches(made["patches"], report)},
        MODEL: {"": Known({n: model[n] for n in MODEL_NAMES if n in model}, why=None if model else "it was not asked")},
        ARGUMENTS: {"": of_arguments(made["arguments"], made["arguments_left_out"])},
        HOST: {"": Known({"name": report["host"], **{n: machine[n] for n in HOST_NAMES if n in machine}})},
    }


def _why(part: Mapping[str, Any]) -> Known:
    return Known(why=part["reason"] or "not told")


def _versions(software: Mapping[str, Any]) -> Known:
    """Packages that are null are not installed there, which is a fact; a Python that is null is not known."""
    if not software["packages"]:
        return _why(software)
    facts = {name: version for name, version in software["packages"].items() if version is not None}
    if software["python"] is None:
        return Known(facts, {"python": "its environment does not say"})
    return Known({**facts, "python": software["python"]})


def _patches(found: Mapping[str, Any], report: Mapping[str, Any]) -> Known:
    ours = _is_ours(report)
    if found["reason"] is not None or found["mode"] is None:
        return _attesting(ours, dict.fromkeys(ATTESTED, found["reason"] or "not told"))
    return _attesting(ours, {}, mode=found["mode"], patchset=found["patchset"], imported=found["imported"] or {})


def _libraries(found: Iterable[Mapping[str, Any]]) -> dict[str, Known]:
    """Each rank's libnccl by version and bytes; several in one rank are one text."""
    by_rank: dict[str, list[Mapping[str, Any]]] = {}
    for one in found:
        by_rank.setdefault(one["worker"], []).append(one)
    ranks = {}
    for rank, files in by_rank.items():
        whys = {name: one["reason"] or "not told" for one in files for name in LIBRARY_NAMES if not one[name]}
        told = [name for name in LIBRARY_NAMES if name not in whys]
        facts = {name: ", ".join(sorted(str(one[name]) for one in files)) for name in told}
        ranks[rank] = Known(facts, whys) if facts else Known(why=next(iter(whys.values())))
    return ranks or {"": Known(why="no worker of it was seen")}


def of_arguments(given: Mapping[str, Any], left_out: int) -> Known:
    """Arguments as the receipt keeps them. Filtered here again: a file on disk may come from anywhere."""
    from sglang_ext.bench.fingerprint import arguments

    kept, more = arguments(given)
    if not kept:
        return Known(why="it was not asked for its arguments")
    number = left_out + more
    return Known(kept, {SECRETS: f"{number} are kept nowhere"} if number else {})


def of_run(
    contract: Mapping[str, Any] | None,
    facts: Mapping[str, Any] | None,
    records: Mapping[str, Mapping[str, Any]],
) -> Groups:
    """What a run directory tells once its server has ended. ``records``: rank label -> attestation."""
    gone = "the run has ended, and its directory does not hold it"
    groups = all_unknown((VERSIONS, NCCL, DRIVER, MODEL, ARGUMENTS, HOST), gone)
    groups |= of_contract(contract)
    ranks = {label: _attested(record) for label, record in records.items()}
    groups[ENVIRONMENT] = ranks or {"": Known(why="no worker of it attested anything")}
    if facts is None:
        groups[SIZES] = {"": Known(why="the run did not come as far as starting its workers")}
    else:
        sizes = {name: facts["expected"][name] for name in SIZE_NAMES}
        groups[SIZES] = {"": Known({**sizes, "ranks found": sorted(ranks)})}
    hooks = [{name: record["hook"].get(name) for name in ATTESTED} for record in records.values()]
    if not hooks or any(hook != hooks[0] for hook in hooks):
        why = "its workers attest different files" if hooks else "no worker of it attested anything"
        groups[PATCHES] = {"": _attesting(True, dict.fromkeys(ATTESTED, why))}
    else:
        groups[PATCHES] = {"": _attesting(True, {}, **hooks[0])}
    return groups


def _attested(record: Mapping[str, Any]) -> Known:
    """The last environment a worker attested: when it was ready, or at its first line."""
    last = record.get("ready")
    told = last if isinstance(last, Mapping) and isinstance(last.get("values"), Mapping) else record["entered"]
    return Known(harmless(told["values"]))
