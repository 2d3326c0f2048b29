"""`sglang-ext explain`: everything that is known of one variable, of a value of it, or of a reason code. Schema
sglang-ext/explain/1 (docs/diff.md).

What NCCL does comes from `nccl.catalogue` and `nccl.understand`, what SGLang does from `contract.rules` and `DEFAULTS` here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from sglang_ext.contract import rules
from sglang_ext.contract.names import RESERVED_NAMES, is_nccl, is_tuning, looks_secret, shown
from sglang_ext.hide import presentable

SCHEMA = "sglang-ext/explain/1"
LABEL = 13  # columns of the names on the left


class Default(NamedTuple):
    """What sglang 0.5.23 sets where nobody has: a value of the user's stays."""

    value: str
    when: str
    file: str
    line: int
    text: str  # as it stands in that line


_HOOKS = "srt/arg_groups/"
_FABRIC = "with several nodes on a multi-node NVLink fabric"
DEFAULTS: dict[str, tuple[Default, ...]] = {
    "NCCL_CUMEM_ENABLE": (
        Default("1", _FABRIC, rules.ENGINE, 1885, 'os.environ.setdefault("NCCL_CUMEM_ENABLE", "1")'),
        Default("1", "with --moe-a2a-backend deepep_v2", _HOOKS + "moe_hook.py", 403,
                'os.environ.setdefault("NCCL_CUMEM_ENABLE", "1")'),
        Default("0", "otherwise (1 with a sharded KV cache on one node)", rules.ENGINE, 1905,
                'os.environ["NCCL_CUMEM_ENABLE"] = str('),
    ),
    "NCCL_MNNVL_ENABLE": (
        Default("1", _FABRIC, rules.ENGINE, 1886, 'os.environ.setdefault("NCCL_MNNVL_ENABLE", "1")'),
    ),
    "NCCL_NVLS_ENABLE": (
        Default("0", "in every launch", rules.ENGINE, 1913, 'os.environ["NCCL_NVLS_ENABLE"] = str('),
    ),
    "NCCL_GRAPH_MIXING_SUPPORT": (
        Default("0", "with --dcp-size above 1", rules.ENGINE, 1920, 'os.environ["NCCL_GRAPH_MIXING_SUPPORT"] = "0"'),
    ),
    "NCCL_GRAPH_REGISTER": (
        Default("0", "with more than one rank and CUDA graphs", _HOOKS + "parallel_hook.py", 425,
                'if os.environ.setdefault("NCCL_GRAPH_REGISTER", "0") != "0":'),
    ),
}  # fmt: skip

# Prefixes outside NCCL_* of which at least is known when they are read (delivery/repair.py has the evidence).
READ_WHEN = {
    "TORCH_NCCL_": (
        "torch's process group reads it when it is made; until then the worker's first line can still repair it"
    ),
    "CUDA_": (
        "the CUDA driver reads it when it is initialised, which importing sglang does before a worker's first line: what is "
        "not delivered with the process's environment comes too late (too_late)"
    ),
}


# What is said of a value that NCCL takes as it stands: it is read rightly, or a plugin may say otherwise later.
AS_IT_STANDS = frozenset({"value_unclear", "plugin_present"})
AGREE = {True: "must agree", False: "may differ", None: "nobody knows whether they must agree"}
DOCUMENTED = {True: "in NCCL's user guide", False: "not in NCCL's user guide"}


class InputError(Exception):
    """The command line is wrong; one sentence."""


def explain(name: str, value: str | None, nccl: str | None) -> dict[str, Any]:
    """What is known of ``name``: a variable, or a reason code. ``nccl``: the version asked for. Raises InputError."""
    from sglang_ext.reasons import TABLE, exit_of

    if value is None and "=" in name:
        name, _, value = name.partition("=")  # as it stands in a shell
    version, text, why = which_nccl(nccl)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "name": presentable(name),
        "kind": "unknown",
        "suggestion": None,
        "nccl": {"version": text, "why": why},
        "variable": None,
        "sglang": [],
        "profiles": [],
        "value": None,
        "code": None,
    }
    if name in TABLE:
        reason = TABLE[name]
        code = {"severity": reason.severity, "meaning": reason.meaning, "fix": reason.fix, "exit": exit_of(reason)}
        return {**found, "kind": "code", "code": code}
    variable = nccl_variable(name, version) or other_variable(name)
    found["suggestion"] = None if variable and variable["certain"] else suggestion(name, TABLE, version)
    if variable is None or found["suggestion"] is not None:
        return found
    del variable["certain"]
    found |= {"kind": "variable", "variable": variable, "sglang": by_sglang(name), "profiles": by_profiles(name)}
    if value is not None:
        found["value"] = meaning(name, value, version)
    return found


def which_nccl(asked: str | None) -> tuple[tuple[int, ...], str, str]:
    """The version whose rules count, as a tuple and as text, and why that one."""
    from sglang_ext.nccl.version import NEWEST_KNOWN, asked_for, parse_version, version_text

    if asked is not None:
        try:
            given = asked_for(asked)
        except ValueError as error:
            raise InputError(str(error)) from None
        whole = given == parse_version(asked)
        return given, version_text(given), "as asked" if whole else f"as asked: the last {version_text(given[:2])}"
    version = installed()
    if version is not None:
        return version, version_text(version), "installed here"
    return NEWEST_KNOWN, version_text(NEWEST_KNOWN), "the newest known; none is installed here"


def installed() -> tuple[int, ...] | None:
    """The version of the library that torch would load beside this Python, asked of the file: metadata can be another's."""
    from sglang_ext.nccl import library

    return next((found.library.version for found in library.installed(sys.path)), None)


def nccl_variable(name: str, version: tuple[int, ...]) -> dict[str, Any] | None:
    """The catalogue's entry, and whether this version reads it."""
    from sglang_ext.nccl.catalogue import alive, get

    variable = get(name)
    if variable is None:
        return None
    found = variable._asdict()
    del found["name"]
    return {
        **found,
        "values": list(variable.values),
        "defaults": list(variable.defaults),
        "alive": alive(variable, version),
        "by_plugin": variable.by_plugin,
        "certain": True,
    }


def other_variable(name: str) -> dict[str, Any] | None:
    """What can be said of a variable that is not NCCL's; None where that is nothing. ``certain``: not by its prefix alone."""
    prefix = next((p for p in READ_WHEN if name.startswith(p)), None)
    certain = name in RESERVED_NAMES or bool(by_sglang(name))
    if is_nccl(name) or (prefix is None and not certain):
        return None
    return {
        "effect": "",
        "read_when": READ_WHEN[prefix] if prefix else "",
        "no_contract": RESERVED_NAMES.get(name, ""),
        "alive": None,
        "certain": certain,
    }


def by_sglang(name: str) -> list[str]:
    """What upstream does to it, one sentence each."""
    said = []
    if name in rules.ALWAYS_SET:
        said.append(
            f"SGLang sets it to {rules.ALWAYS_SET[name]} in every launch, whatever it was; started by the launcher, a value of "
            "the contract is put back before the workers start"
        )
    for rule in rules.FIGHTS:
        needs = "".join(f" with {attribute} >= {least}" for attribute, least in rule.needs if least > 1)
        where = f"{rule.file}:{rule.line} in {rules.READ_IN}"
        if rule.variable == name:
            forced = "a value of its own" if rule.forced is None else rule.forced
            also = f" (or to what {rule.forced_from} says)" if rule.forced_from else ""
            said.append(
                f"{rule.flag}{needs} makes SGLang set it to {forced}{also} ({where}); a contract that wants another value is "
                "refused together with that flag (arguments_fight_contract)"
            )
        elif rule.forced_from == name:
            said.append(f"{rule.flag}{needs} makes SGLang set {rule.variable} to it ({where})")
    for default in DEFAULTS.get(name, ()):
        said.append(
            f"where it is not set, SGLang sets it to {default.value} {default.when} ({default.file}:{default.line} in "
            f"{rules.READ_IN}); a value of yours stays"
        )
    return said


def by_profiles(name: str) -> list[dict[str, Any]]:
    """The shipped profiles that name it; ``want`` null: it must be absent."""
    from sglang_ext.contract.profile import load_profile, shipped_profiles

    found = []
    for profile in map(load_profile, shipped_profiles()):
        wants = profile.wants()
        if name in wants:
            found.append({"profile": profile.name, "want": wants[name], "reason": profile.absent.get(name)})
    return found


def meaning(name: str, value: str, version: tuple[int, ...]) -> dict[str, Any]:
    """What NCCL takes a value for, where nothing else is set. Of a variable that is not NCCL's, only the text is known."""
    if not is_nccl(name):
        return {"text": None if looks_secret(name) else presentable(value), "means": None, "faults": []}
    from sglang_ext.nccl.combine import combinations
    from sglang_ext.nccl.understand import taken, understand

    found = [*understand(name, value, version).faults, *combinations({name: value}, version)]
    faults = [{"code": f.code, "severity": f.severity, "message": f.message} for f in found]
    return {"text": presentable(value), "means": presentable(taken(name, value, version)), "faults": faults}


def suggestion(name: str, codes: Iterable[str], version: tuple[int, ...]) -> str | None:
    """What was most likely meant: a reason code, or a variable."""
    from sglang_ext.nccl.catalogue import distance, suggest
    from sglang_ext.nccl.neighbours import slip_of

    forced_from = (rule.forced_from for rule in rules.FIGHTS if rule.forced_from is not None)
    for other in (*codes, *rules.ALWAYS_SET, *forced_from):
        if other in (name.lower(), name.upper()) or (len(name) > 5 and distance(name, other, 2) <= 2):
            return other
    return suggest(name, version) or slip_of(name)


def status(found: dict[str, Any]) -> int:
    """0: known, and nothing wrong with the value; 1: unknown, or NCCL does not take the value as it stands."""
    if found["kind"] == "unknown":
        return 1
    value = found["value"]
    if value is None:
        return 0
    unread = found["variable"]["alive"] is False and value["text"] != ""
    return int(unread or any(fault["code"] not in AS_IT_STANDS for fault in value["faults"]))


def render(found: dict[str, Any]) -> str:
    """For people."""
    name = found["name"]
    if found["kind"] == "unknown":
        return _unknown(name, found["suggestion"])
    if found["kind"] == "code":
        from sglang_ext.reasons import TABLE, consequence

        code = found["code"]
        lines = [("meaning", code["meaning"]), ("fix", code["fix"]), ("comes of it", consequence(TABLE[name]))]
        return "\n".join([f"{name}  (reason code, {code['severity']})", *_lines(lines)])
    variable = found["variable"]
    head = f"{name}  ({variable['kind']}, {variable['subsystem']})" if "kind" in variable else name
    out = [head, *_lines([*_facts(variable, found["nccl"]), *_ours(found)])]
    if found["value"] is not None:
        out += ["", *_value(found)]
    return "\n".join(out)


def _unknown(name: str, suggested: str | None) -> str:
    name = shown(name)
    if suggested is not None:
        return f"{name}: no such variable or reason code is known, but {suggested} is: sglang-ext explain {suggested}"
    if is_nccl(name):
        return f"{name}: no NCCL from 2.18 to 2.32 reads a variable of that name, and NCCL never says so"
    more = "; it is a tuning variable to us, shown in reports and compared by diff" if is_tuning(name) else ""
    return f"{name}: nothing is known of it: no variable of NCCL, none we know SGLang to set, no reason code{more}"


def _facts(variable: dict[str, Any], nccl: dict[str, Any]) -> list[tuple[str, str]]:
    """What NCCL's side of it is. What the catalogue leaves empty is left out."""
    rows = [("", variable["effect"])]
    version, why = nccl["version"], nccl["why"]
    if "kind" in variable:
        agree = AGREE[variable["must_match"]]
        if variable["must_match"] is not None:
            agree += " (read in the code)" if variable["evidence"] == "code" else " (inferred from where it is used)"
        agree += f": {variable['reason']}" if variable["reason"] else ""
        cached = variable["cached"] and "cach" not in variable["read_when"]
        if variable["by_plugin"]:
            rows.append(("but", "libnccl never reads it: an example plugin of NCCL's tree does"))
        elif not variable["alive"]:
            unread = "defined, and read nowhere" if variable["unused"] else "not read by it"
            rows.append(("but", f"no effect on NCCL {version} ({why}): {unread}"))
        rows += [
            ("accepts", ", ".join(variable["values"])),
            ("otherwise", variable["invalid_value"]),
            ("default", "; ".join(variable["defaults"]) or variable["default"]),
            ("read", variable["read_when"] + ("; once, then kept for the process" if cached else "")),
            ("ranks", agree),
            ("since", variable["introduced"] or "before 2.3.5"),
            ("until", f"gone in {variable['removed']}" if variable["removed"] else ""),
            ("deprecated", f"since {variable['deprecated']}" if variable["deprecated"] else ""),
            ("documented", DOCUMENTED[variable["documented"]]),
            ("in the log", variable["log_line"] or ("no line says that it is set" if variable["alive"] else "")),
            ("note", variable["note"]),
            ("source", variable["source"]),
        ]
    else:
        rows += [("read", variable["read_when"]), ("contract", _refused(variable["no_contract"]))]
    return rows


def _refused(why: str) -> str:
    return f"no contract can hold it: {why}" if why else ""


def _ours(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("sglang", sentence) for sentence in found["sglang"]]
    for one in found["profiles"]:
        why = f": {one['reason']}" if one["reason"] else ""
        want = "must be absent" if one["want"] is None else f"wants {shown(one['want'])}"
        rows.append(("profile", f"{one['profile']} {want}{why}"))
    return rows


def _value(found: dict[str, Any]) -> list[str]:
    value, nccl = found["value"], found["nccl"]
    if value["means"] is None:
        return ["What its reader makes of a value is not known here."]
    library = f"NCCL {nccl['version']} ({nccl['why']})"
    meant = shown(value["means"]) if value["means"] else "nothing: as if it were not set"
    rows = [(fault["severity"], f"{fault['code']}: {fault['message']}") for fault in value["faults"]]
    return [f"{shown(value['text'])} is to {library}: {meant}", *_lines(rows)]


def _lines(rows: list[tuple[str, str]]) -> list[str]:
    """Names on the left, texts wrapped beside them; empty texts are left out."""
    from sglang_ext.console import width

    room = max(width() - LABEL - 2, 30)
    out, last = [], None
    for label, text in rows:
        if not text:
            continue
        lines = [""]
        for word in text.split(" "):
            if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
                lines.append("")
            lines[-1] += (" " if lines[-1] else "") + word
        for index, line in enumerate(lines):
            named = label if index == 0 and label != last else ""
            out.append(f"  {named:<{LABEL}}{line}" if label else f"  {line}")
        last = label
    return out
