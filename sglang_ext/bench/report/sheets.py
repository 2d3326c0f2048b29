"""The tables of the page: what was reconciled, excluded, seen of the machine; contract, fingerprint, suite; order of launches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sglang_ext.bench.report.read import FINISHED, Arm, Campaign, Launch, clean, listing, mapping, means, number, text
from sglang_ext.bench.report.words import UNKNOWN, count, duration, figure, label, percent
from sglang_ext.bench.suites.under_test import covers
from sglang_ext.bench.truth.sameness import FOLLOWS, NEAR, VOLATILE
from sglang_ext.contract.names import shown
from sglang_ext.reasons import TABLE

MOST_ROWS = 400
CELL = 300  # characters
IN_EFFECT = "in effect"
NOTHING = "-"


class Sheet(NamedTuple):
    """A table. ``numeric``: the columns with figures; ``summary``: what it comes to, above it."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    summary: str = ""
    numeric: tuple[int, ...] = ()
    left_out: int = 0


def sheet(
    head: tuple[str, ...], rows: Iterable[Sequence[str]], summary: str = "", numeric: tuple[int, ...] = ()
) -> Sheet:
    found = [tuple(cut(cell) for cell in row) for row in rows]
    return Sheet(head, found[:MOST_ROWS], summary, numeric, max(len(found) - MOST_ROWS, 0))


def cut(cell: str) -> str:
    cell = clean(cell)
    return cell if len(cell) <= CELL else f"{cell[:CELL]}... ({len(cell)} characters)"


def plain(value: Any) -> str:
    """Any JSON value in a cell."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return " ".join(shown(v) for v in value) or NOTHING
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def flat(value: Any, name: str = "", depth: int = 6) -> dict[str, Any]:
    """A nested object by dotted names; a list of objects by what names them."""
    if isinstance(value, Mapping) and value and depth:
        parts = sorted(((str(key), inner) for key, inner in value.items()), key=itemgetter(0))
    elif isinstance(value, list) and value and depth and all(isinstance(v, Mapping) for v in value):
        parts = [(str(v.get("worker") or v.get("name") or v.get("index", i)), v) for i, v in enumerate(value)]
        parts = [(key, {k: v for k, v in inner.items() if k not in ("worker", "name")}) for key, inner in parts]
    else:
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in parts:
        found.update(flat(inner, f"{name}.{key}" if name else key, depth - 1))
    return found


def arms(campaign: Campaign) -> Sheet:
    """One row an arm; figures only where they count."""
    head = ("arm", "launches that count", "decode tok/s", "launches vary by", "TTFT ms", "accept length", "step ms")
    rows = []
    for arm in campaign.arms:
        found = means(arm, campaign.blocks)
        row = [label(arm), f"{found.launches} of {max(found.planned, len(arm.launches))}"]
        if campaign.counts:
            row += [
                figure(found.rate),
                NOTHING if found.cv is None else f"{100 * found.cv:.2f}%",
                figure(found.ttft_ms, 1),
            ]
            row += [figure(found.accept) if arm.speculates else NOTHING, figure(found.step_ms)]
        rows.append(row)
    if not campaign.counts:
        return sheet(("arm", "launches measured"), rows, "Figures are left out, as none of them counts.")
    summary = "Geometric means over launches, each of them over its runs; the time to the first token is a median."
    return sheet(head, rows, summary, tuple(range(1, len(head))))


def speculation(campaign: Campaign) -> Sheet | None:
    """What a step brings, takes and would have to bring, of arms that speculate."""
    found = [one for one in campaign.comparisons if one.economics]
    if not found or not campaign.counts:
        return None
    head = ("arm", "tokens a step", "step ms", "baseline's step ms", "breaks even at", "rate")
    rows = []
    for one in found:
        e, arm = one.economics or {}, campaign.arm(one.arm)
        figures = [figure(e.get(key)) for key in ("accept", "step_ms", "base_step_ms", "break_even_accept")]
        rows.append([label(arm) if arm else one.arm, *figures, percent(one.ratio)])
    return sheet(head, rows, numeric=(1, 2, 3, 4, 5))


def order(campaign: Campaign) -> Sheet:
    """Every launch as it ran."""
    rows = [
        (
            str(launch.block + 1),
            str(launch.order + 1),
            launch.arm,
            launch.state,
            _verified(launch),
            duration(launch.ready - launch.began if launch.ready is not None and launch.began is not None else None),
            str(sum(run.counts for run in launch.runs)),
            launch.reason or launch.excluded or "",
        )
        for launch in campaign.launches()
    ]
    head = ("block", "order", "arm", "state", "verified", "ready after", "runs that count", "reason")
    return sheet(head, rows, numeric=(0, 1, 5, 6))


def _verified(launch: Launch) -> str:
    """The verdicts before and after."""
    reports = [mapping(mapping(launch.raw.get("verify")).get(when)) for when in ("before", "after")]
    return ", ".join(text(report.get("verdict")) or NOTHING for report in reports)


def reconciliation(campaign: Campaign) -> Sheet:
    """What client and server say of the same span of tokens, for each launch that was finished."""
    rows: list[tuple[str, ...]] = []
    states: dict[str, int] = {}
    known: list[float] = []
    for launch in campaign.launches():
        if launch.state != FINISHED:
            continue
        found = mapping(launch.raw.get("reconciliation"))
        state = text(found.get("state")) or "UNKNOWN"
        states[state] = states.get(state, 0) + 1
        difference = number(found.get("difference"))
        known += [abs(difference)] if difference is not None else []
        span = [number(v) for v in listing(found.get("span_tokens"))]
        rows.append(
            (
                str(launch.block + 1),
                launch.arm,
                figure(number(found.get("client_tok_s"))),
                figure(number(found.get("server_tok_s"))),
                NOTHING if difference is None else f"{100 * difference:+.3f}%",
                plain(found.get("windows")),
                " to ".join(f"{v:g}" for v in span if v is not None) or NOTHING,
                text(found.get("method")) or NOTHING,
                state,
                text(found.get("reason")) or ("" if found else "the launch has none"),
            )
        )
    said = ", ".join(f"{count(n, 'launch')} {state}" for state, n in sorted(states.items()))
    said = said or "No launch was finished"
    summary = f"{said}; the largest difference is {100 * max(known):.3f}%." if known else f"{said}."
    head = ("block", "arm", "client tok/s", "server tok/s", "difference", "windows", "tokens", "by", "state", "reason")
    return sheet(head, rows, summary, (0, 2, 3, 4, 5, 6))


def excluded(campaign: Campaign) -> Sheet:
    rows = []
    for one in campaign.excluded:
        code = text(one.get("code"))
        fix = TABLE[code].fix if code in TABLE else ""
        block = number(one.get("block"))
        rows.append(
            (NOTHING if block is None else f"{block + 1:.0f}", text(one.get("arm")), code, text(one.get("text")), fix)
        )
    return sheet(("block", "arm", "rule", "what was found", "what to do"), rows, numeric=(0,))


def marks(campaign: Campaign) -> tuple[Sheet, Sheet]:
    """What the machine did during which launch: what excludes a pair, and what is only told."""
    grave: list[tuple[str, ...]] = []
    told: list[tuple[str, ...]] = []
    for launch in campaign.launches():
        for one in map(mapping, listing(mapping(launch.raw.get("machine")).get("marks"))):
            run = number(one.get("run"))
            place = "whole launch" if run is None else f"run {run + 1:.0f}"
            rows = told if one.get("excludes") is False else grave
            rows.append((str(launch.block + 1), launch.arm, place, text(one.get("code")), text(one.get("text"))))
    head = ("block", "arm", "when", "mark", "what was seen")
    return sheet(head, grave, numeric=(0,)), sheet(head, told, numeric=(0,))


def gpus(campaign: Campaign) -> Sheet:
    """Each GPU: what it is, and the range of what it did over all launches."""
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for launch in campaign.launches():
        for index, raw in enumerate(listing(mapping(launch.raw.get("machine")).get("gpus"))):
            gpu = mapping(raw)
            seen.setdefault(f"{plain(gpu.get('index', index))} {text(gpu.get('name'))}", []).append(gpu)
    fields = {
        "SM MHz": "sm_mhz",
        "memory MHz": "mem_mhz",
        "°C": "temp_c",
        "memory °C": "mem_temp_c",
        "W": "power_w",
        "PCIe generation": "pcie_gen",
        "PCIe width": "pcie_width",
    }
    rows = []
    for name, each in sorted(seen.items()):
        rows.append((name, *(_between(each, field) for field in fields.values()), _counted(each)))
    silent = {name: why for name, each in sorted(seen.items()) if (why := _unreadable(each))}
    alike = set(silent.values())
    said = f"all GPUs: {alike.pop()}" if len(alike) == 1 and len(silent) == len(seen) else ""
    said = said or "; ".join(f"{name}: {why}" for name, why in silent.items())
    return sheet(
        ("GPU", *fields, "counted"), rows, f"Not readable on {said}." if said else "", tuple(range(1, len(fields) + 1))
    )


def _counted(gpus: list[Mapping[str, Any]]) -> str:
    """What its counters grew by while numbers were taken: times that something held the clocks down, and errors."""
    sums: dict[str, float] = {}
    for gpu in gpus:
        for name, value in mapping(gpu.get("deltas")).items():
            if (grown := number(value)) and name != "energy_mj":
                sums[name] = sums.get(name, 0.0) + grown
    times = [
        f"{n.removesuffix('_ns').replace('_', ' ')} {v / 1e9:.1f} s"
        for n, v in sorted(sums.items())
        if n.endswith("_ns")
    ]
    counts = [f"{n.replace('_', ' ')} {v:g}" for n, v in sorted(sums.items()) if not n.endswith("_ns")]
    return "; ".join(times + counts) or NOTHING


def _unreadable(gpus: list[Mapping[str, Any]]) -> str:
    """`why (fields)`, each reason once."""
    why: dict[str, set[str]] = {}
    for gpu in gpus:
        for field, reason in mapping(gpu.get("unknown")).items():
            why.setdefault(text(reason), set()).add(str(field))
    return "; ".join(f"{reason} ({', '.join(sorted(fields))})" for reason, fields in sorted(why.items()))


def _between(gpus: list[Mapping[str, Any]], field: str) -> str:
    lists = (listing(mapping(gpu.get("samples")).get(field)) for gpu in gpus)
    values = [v for samples in lists for v in map(number, samples) if v is not None]
    if not values:
        return UNKNOWN
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def host(campaign: Campaign) -> Sheet:
    """The processor, and what of the machine could not be read: of each launch where they differ, else once."""
    values: dict[str, dict[str, list[Launch]]] = {}
    for launch in campaign.launches():
        machine = mapping(launch.raw.get("machine"))
        facts = {f"not readable: {k}": v for k, v in mapping(machine.get("unknown")).items()}
        for name, value in {**flat(mapping(machine.get("cpu"))), **facts}.items():
            if name:
                values.setdefault(name, {}).setdefault(plain(value), []).append(launch)
    rows = []
    for name, found in sorted(values.items()):
        rows.append((name, _over_launches(found)))
    return sheet(("host", "seen"), rows)


def _over_launches(found: Mapping[str, Sequence[Launch]]) -> str:
    """One value where it stayed; the range where it is a number; else each value with its launches."""
    if len(found) == 1:
        return next(iter(found))
    try:
        values = [float(value) for value in found]
        return f"{min(values):g} to {max(values):g}"
    except ValueError:
        said = [f"{value} ({count(len(at), 'launch')})" for value, at in list(found.items())[:6]]
        return "; ".join(said) + ("; ..." if len(found) > 6 else "")


def side_by_side(campaign: Campaign, facts: Sequence[Mapping[str, Any]], what: str) -> Sheet:
    """A row a name, a column an arm."""
    names = sorted({name for one in facts for name in one})
    rows = [(name, *(plain(one[name]) if name in one else NOTHING for one in facts)) for name in names]
    return sheet((what, *(arm.name for arm in campaign.arms)), rows)


def contract(campaign: Campaign) -> Sheet:
    """The variables of each arm's contract, as its workers held them; where no server was verified, as the suite asks."""
    asked = {
        text(arm.get("name")): arm for arm in map(mapping, listing(mapping(campaign.raw.get("suite")).get("arms")))
    }
    facts = []
    for arm in campaign.arms:
        held = mapping(mapping(arm.fingerprint.get("contract")).get("variables"))
        wanted = mapping(mapping(asked.get(arm.name, {}).get("contract")).get("variables"))
        terms = {name: mapping(term).get("want") for name, term in held.items()} or dict(wanted)
        facts.append({name: "(absent)" if want is None else plain(want) for name, want in terms.items()})
    return side_by_side(campaign, facts, "variable")


def fingerprints(campaign: Campaign) -> tuple[Sheet, Sheet]:
    """What differs between arms, and what all of them have in common."""
    entries = [text(e) for e in listing(mapping(mapping(campaign.raw.get("suite")).get("campaign")).get("under_test"))]
    each = [_facts(arm) for arm in campaign.arms]
    known = [one for one in each if one]
    names = sorted({name for one in known for name in one})
    differ, common = [], []
    for name in names:
        values = [plain(one[name]) if name in one else NOTHING for one in each]
        told = {value for value, one in zip(values, each, strict=True) if one}
        if len(told) == 1:
            common.append((name, told.pop()))
        else:
            differ.append((name, _why(entries, name), *values))
    silent = [arm.name for arm, one in zip(campaign.arms, each, strict=True) if not one]
    summary = f"No server of {', '.join(silent)} was verified, so nothing is known of it. " if silent else ""
    head = ("what", "why", *(arm.name for arm in campaign.arms))
    summary += "" if differ else "Nothing that is known differs between the arms."
    return sheet(head, differ, summary), sheet(("what", "in all arms"), common)


def _facts(arm: Arm) -> dict[str, Any]:
    """A fingerprint by the names a suite has for things under test."""
    found = {key: value for key, value in arm.fingerprint.items() if key != "contract"}
    facts = flat(found) if found else {}
    terms = mapping(mapping(arm.fingerprint.get("contract")).get("variables"))
    seen = [one for launch in arm.launches if (one := mapping(launch.raw.get("in_effect")))]
    effect = flat({IN_EFFECT: seen[0]}) if seen else {}
    return {**facts, **{f"contract.{name}": mapping(term).get("want") for name, term in terms.items()}, **effect}


def _why(entries: Sequence[str], name: str) -> str:
    """Why it may differ; empty where nothing says that it may. `patches` under test covers `patches.imported.FILE`."""
    parts = name.split(".")
    if parts[0] == IN_EFFECT:
        return "what came of it"
    wholes = [".".join(parts[:size]) for size in range(1, len(parts) + 1)]
    if any(covers(entries, whole) for whole in wholes):
        return "under test"
    for whole in wholes:
        if whole in VOLATILE:
            return f"at every launch: {VOLATILE[whole]}"
        if whole in NEAR:
            return NEAR[whole][1]
        if whole in FOLLOWS and covers(entries, FOLLOWS[whole][0]):
            return FOLLOWS[whole][1]
    return ""


def suite(campaign: Campaign) -> Sheet:
    """The suite, without its arms."""
    facts = {k: v for k, v in mapping(campaign.raw.get("suite")).items() if k != "arms"}
    return sheet(("suite", "value"), [(name, plain(value)) for name, value in flat(facts).items() if name])


def commands(campaign: Campaign) -> Sheet:
    """What each arm's server was started with."""
    asked = [mapping(arm) for arm in listing(mapping(campaign.raw.get("suite")).get("arms"))]
    rows = [
        (
            text(arm.get("name")),
            plain(arm.get("arguments")) if not arm.get("address") else f"runs at {plain(arm.get('address'))}",
            _patches(campaign, arm),
            plain(arm.get("environment")) if arm.get("environment") else NOTHING,
        )
        for arm in asked
    ]
    return sheet(("arm", "arguments", "patches", "environment"), rows)


def _patches(campaign: Campaign, asked: Mapping[str, Any]) -> str:
    """As the suite asks; of a server that ran already, as its workers attested."""
    if not asked.get("address"):
        return "on" if asked.get("patches") is not False else "off"
    arm = campaign.arm(text(asked.get("name")))
    seen = mapping(arm.fingerprint.get("patches")) if arm else {}
    return "on" if seen.get("patchset") is not None else UNKNOWN


def plan(campaign: Campaign) -> Sheet:
    facts = {k: v for k, v in mapping(campaign.raw.get("plan")).items() if k != "blocks"}
    return sheet(
        ("plan", "value"), [("blocks", str(campaign.blocks)), *((k, plain(v)) for k, v in sorted(facts.items()))]
    )
