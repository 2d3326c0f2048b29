"""A report for people: a table of every worker, variable and witness, the problems with their fixes, one closing line."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_ext.contract.names import shown
from sglang_ext.quick import Any

COLOURS = {"PASS": "32", "FAIL": "31", "UNKNOWN": "33", "fail": "31", "unknown": "33", "note": "36"}
WITNESSES = ("exec", "live", "attested")

SILENT = {"state": "unavailable", "value": None}


def paint(text: str, key: str, colour: bool) -> str:
    """``text`` in the colour of verdict or severity ``key``, on a terminal."""
    return f"\033[{COLOURS[key]}m{text}\033[0m" if colour and key in COLOURS else text


def cell(name: str, witness: dict[str, Any]) -> str:
    """What a witness says, or its state in brackets: `LL`, `-` (absent), `[clobbered]`; `n/a` where nobody attests."""
    if name in ("attested", "effective") and witness["state"] == "unavailable":
        return "n/a"
    if (name, witness["state"]) == ("effective", "not_read"):
        return "?"
    if witness["state"] == "value":
        return shown(str(witness["value"]))
    return "-" if witness["state"] == "absent" else f"[{witness['state']}]"


def witnesses(report: dict[str, Any]) -> tuple[str, ...]:
    """The witnesses worth a column: NCCL's own log only where it speaks."""
    found = (v["witnesses"].get("effective") for w in report["workers"] for v in w["variables"].values())
    return (*WITNESSES, "effective") if any(w and w["state"] in ("value", "absent") for w in found) else WITNESSES


def rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a worker and variable; workers whose rows are equal share one."""
    columns = witnesses(report)
    merged: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for worker in report["workers"]:
        for name, found in worker["variables"].items():
            want = report["contract"]["variables"][name]["want"]
            verdict = found["verdict"] + (f" {found['reason']}" if found["reason"] else "")
            if not worker["counts"]:
                verdict = f"({verdict})"
            key = (
                name,
                "-" if want is None else shown(want),
                *(cell(w, found["witnesses"].get(w, SILENT)) for w in columns),
                verdict,
            )
            merged.setdefault(key, []).append((worker["label"], str(worker["pid"])))
    return [
        (", ".join(label for label, _ in who), ", ".join(pid for _, pid in who), *key) for key, who in merged.items()
    ]


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest cell."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def extras(report: dict[str, Any]) -> str:
    """The NCCL and CUDA variables outside the contract, where all deciding workers hold the same; differences are problems."""
    deciding = [w["extras"] for w in report["workers"] if w["counts"]]
    shared = {n: v for n, v in (deciding[0] if deciding else {}).items() if all(e.get(n) == v for e in deciding)}
    return ", ".join(f"{n}={shown(v)}" for n, v in shared.items() if n.startswith(("NCCL_", "CUDA_")))


def by_code(problems: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Problems of one code together, in order of their first; eight ranks with one fault need one fix."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for problem in problems:
        grouped.setdefault(problem["code"], []).append(problem)
    return grouped


def libraries(report: dict[str, Any]) -> str:
    """The NCCL the deciding workers have mapped, where it is one: version and file."""
    mapped = {
        (entry["version"] or "of unknown version", entry["path"])
        for worker in report["workers"]
        if worker["counts"]
        for entry in worker.get("nccl", {}).get("libraries", ())
    }
    return "; ".join(f"NCCL {version} ({path})" for version, path in sorted(mapped))


def closing(report: dict[str, Any]) -> str:
    """The verdict in one line, never more than was seen."""
    deciding = [w for w in report["workers"] if w["counts"]]
    good = sum(w["verdict"] == "PASS" for w in deciding)
    expected = report["expected"]["here"]
    number = len(report["contract"]["variables"]) if report["contract"] else 0
    only_ranks = all(w["role"] in ("scheduler", "rank") for w in deciding)
    whole = expected if expected is not None and only_ranks else len(deciding)
    what = f"{good} of {whole} {'workers' if only_ranks else 'processes'} hold the contract ({number} variables)"
    hooks = sorted({w["hook"]["mode"] for w in deciding})
    if deciding and not any(w["role"] in ("scheduler", "rank") for w in deciding):
        what += "; no SGLang server: processes as they are now"
    elif report["run"] is None and deciding:
        what += "; a server not of ours: seen now, what NCCL read at its start was not witnessed"
    elif deciding:
        what += f"; hook {'/'.join(hooks)}"
        local = dict.fromkeys(name for w in deciding for name in w["hook"].get("local", ()))
        what += f", local patches {', '.join(local)}" if local else ""
    return what


def render(report: dict[str, Any], *, colour: bool = False) -> str:
    """The whole report as text."""
    out: list[str] = []
    if report["workers"]:
        body = rows(report)
        head = ("worker", "pid", "variable", "want", *witnesses(report), "verdict")
        for index, line in enumerate(table([head, *body])):
            verdict = body[index - 1][-1].strip("()").split(" ")[0] if index else ""
            out.append(
                line[: line.rfind(body[index - 1][-1])] + paint(body[index - 1][-1], verdict, colour) if index else line
            )
        out.append("")
    others = extras(report)
    if others:
        out += [f"also held, outside the contract: {others}", ""]
    if mapped := libraries(report):
        out += [f"mapped in the workers: {mapped}", ""]
    for code, problems in by_code(report["problems"]).items():
        for problem in problems:
            title = paint(f"{problem['severity']} {code}", problem["severity"], colour)
            out.append(f"{title}: {problem['message']}")
        if any(problem["severity"] != "note" for problem in problems):
            out.append(f"    fix: {problems[0]['fix']}")
    if report["problems"]:
        out.append("")
    out.append(f"{paint(report['verdict'], report['verdict'], colour)}: {closing(report)}")
    return "\n".join(out)
