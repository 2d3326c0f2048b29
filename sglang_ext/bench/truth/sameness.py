"""Do arms differ in nothing but what is under test, and are the launches of one arm the same? Pure, by their fingerprints.

A suite is checked for that when it is read (`under_test`), by what it says. Here it is what the servers turned out to be:
arguments as upstream resolved them, the environment the ranks hold (`with_environment`), the bytes of libnccl, packages,
patched files, driver, machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.suites.under_test import covers
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.contract.names import is_tuning, shown
from sglang_ext.hide import presentable

Facts = Mapping[str, Any]
DIFFER, CHANGED = "arms_differ", "launch_differs"
MISSING = "(absent)"
SHOWN = 3  # differences named in a sentence
WIDEST = 60  # characters of a value in it
ENVIRONMENT, SHELL = "environment", "shell"

# Facts that differ between any two launches, and why that is no difference.
VOLATILE: Mapping[str, str] = {
    "arguments.port": "where it listens",
    "arguments.host": "where it listens",
    "arguments.nccl_port": "where the ranks meet",
    "arguments.dist_init_addr": "where the ranks meet",
    "arguments.random_seed": "drawn at each launch where it is not given; every run is greedy",
    "arguments.status": "what the server is doing now",
    "arguments.weight_cache_socket": "a path of its own for each launch",
    "arguments.forward_pass_metrics_ipc_name": "a path of its own for each launch",
    "contract.digest": "of the terms, which are compared one by one",
}
# Facts that are measured at each launch: how far they may be apart, and why.
NEAR: Mapping[str, tuple[float, str]] = {
    "arguments.max_total_num_tokens": (0.02, "from the memory that was free when the server started"),
    "arguments.max_req_input_len": (0.02, "from the memory that was free when the server started"),
}
SPECULATES = "arguments.speculative_algorithm"
DRAFTS = "arguments.speculative_draft_model_path"
# What upstream changes by itself along with a thing under test: fact -> (that thing, what it does). sglang 0.5.9-0.5.23.
FOLLOWS: Mapping[str, tuple[str, str]] = {
    "arguments.speculative_draft_model_revision": (DRAFTS, "set to main with a draft model"),
    "arguments.max_running_requests": (SPECULATES, "48 with speculation where it is not given"),
    "arguments.disable_overlap_schedule": (SPECULATES, "off with speculation where the two do not go together"),
    "arguments.enable_mixed_chunk": (SPECULATES, "off with speculation"),
    "arguments.mem_fraction_static": (SPECULATES, "lower where the draft needs memory too"),
    "arguments.max_total_num_tokens": (SPECULATES, "fewer where the draft needs memory too"),
    "arguments.max_req_input_len": (SPECULATES, "shorter by the drafts of one step"),
    "arguments.cuda_graph_config": (SPECULATES, "graphs are captured up to max_running_requests"),
    "arguments.cuda_graph_bs": (SPECULATES, "graphs are captured up to max_running_requests"),
    "arguments.cuda_graph_max_bs": (SPECULATES, "graphs are captured up to max_running_requests"),
    "arguments.cuda_graph_bs_decode": (SPECULATES, "graphs are captured up to max_running_requests"),
    "arguments.cuda_graph_max_bs_decode": (SPECULATES, "graphs are captured up to max_running_requests"),
    # Variables that upstream sets itself, where nobody else does: srt/entrypoints/engine.py:1884, arg_groups/memory_hook.py:349.
    "environment.NCCL_CUMEM_ENABLE": ("arguments.enable_symm_mem", "1 with symmetric memory"),
    "environment.SGLANG_SYMM_MEM_PREALLOC_GB_SIZE": ("arguments.enable_symm_mem", "4 with symmetric memory"),
    "environment.NCCL_NVLS_ENABLE": ("arguments.enable_nccl_nvls", "1 with NVLS"),
    "environment.SGLANG_ENABLE_TORCH_COMPILE": ("arguments.enable_torch_compile", "says the same"),
    "environment.SGLANG_ENABLE_DETERMINISTIC_INFERENCE": ("arguments.enable_deterministic_inference", "says the same"),
}


def with_environment(fingerprint: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint with the tuning variables each rank holds, out of the verify report that goes with it.

    A report keeps apart what the contract demands (``variables``) and what else is there (``extras``); its essentials, as a
    receipt has them, only the latter: then a verdict of PASS says that the contract's are as wanted. A rank whose environment
    nobody could read has null: that is not one that holds nothing.
    """
    ranks = {worker["label"]: _held(worker, report) for worker in report["workers"] if worker["counts"]}
    return {**fingerprint, ENVIRONMENT: ranks}


def _held(worker: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str] | None:
    if worker.get("unread"):
        return None
    terms = (report.get("contract") or {}).get("variables") or {}
    held = {name: term["want"] for name, term in terms.items() if term["want"] is not None}
    for name, found in (worker.get("variables") or {}).items():
        live = (found.get("witnesses") or {}).get("live") or {}
        if live.get("state") == "value":
            held[name] = presentable(live["value"]) or ""
        elif live.get("state") == "absent":
            held.pop(name, None)
    return dict(
        sorted({**worker["extras"], **{name: value for name, value in held.items() if is_tuning(name)}}.items())
    )


def differences(fingerprints: Mapping[str, Mapping[str, Any]], under_test: Sequence[str]) -> list[Fault]:
    """Each fingerprint held against the first one; a Fault for each that differs in more than is ``under_test``.

    Nothing under test: they are launches of one arm, or the baseline and its control, and must be the same.
    """
    (first, base), *others = ((name, _Side.of(one)) for name, one in fingerprints.items())
    faults = []
    for name, found in others:
        unlike = _unlike(base, found, under_test)
        if unlike:
            code = DIFFER if under_test else CHANGED
            nothing = "nothing" if not under_test else f"nothing but {', '.join(under_test)}"
            named = "; ".join(f"{fact} {_word(a)} / {_word(b)}" for fact, a, b in unlike[:SHOWN])
            more = f"; and {len(unlike) - SHOWN} more" if len(unlike) > SHOWN else ""
            faults.append(Fault(code, f"{first} / {name}: expected them to differ in {nothing}, found {named}{more}"))
    return faults


def unknown(fingerprints: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What could not be compared, and why: sentences for a receipt."""
    told: dict[str, list[str]] = {}
    for name, one in fingerprints.items():
        for what, why in _blind(one):
            told.setdefault(f"{what} could not be compared: {why}", []).append(name)
    return [f"{', '.join(names)}: {sentence}" for sentence, names in told.items()]


def _blind(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if ENVIRONMENT not in one:
        yield "the environment of the ranks", "the fingerprint does not hold it"
    for rank, held in (one.get(ENVIRONMENT) or {}).items():
        if held is None:
            yield f"the environment of {rank}", "it cannot be read"
    for part, what in (("driver", "the driver"), ("server", "packages"), ("patches", "patched files")):
        found = one.get(part) or {}
        if found.get("version") is None and not found.get("packages") and found.get("imported") is None:
            yield what, found.get("reason") or "not told"
    for library in one.get("nccl") or ():
        if library["sha256"] is None:
            yield f"libnccl of {library['worker']}", library["reason"] or "not told"
    if left_out := one.get("arguments_left_out"):
        yield f"{left_out} arguments", "they may hold secrets, so no fingerprint keeps them"


def facts(one: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A fingerprint as facts by name; what is not known is left out."""
    yield from _flat("arguments", one.get("arguments") or {})
    for name, term in ((one.get("contract") or {}).get("variables") or {}).items():
        yield f"contract.{name}", term["want"]
    for rank, held in (one.get(ENVIRONMENT) or {}).items():
        for name, value in (held or {}).items():
            yield f"{ENVIRONMENT}.{name} ({rank})", value
    for library in one.get("nccl") or ():
        for name in ("version", "sha256"):
            if library[name] is not None:
                yield f"nccl.{name} ({library['worker']})", library[name]
    software, patches = one.get("server") or {}, one.get("patches") or {}
    if software.get("python"):
        yield "python", software["python"]
    for name, version in (software.get("packages") or {}).items():
        yield f"packages.{name}", version
    for name in ("mode", "patchset"):
        if patches.get(name) is not None:
            yield f"patches.{name}", patches[name]
    yield from _flat("patches.imported", patches.get("imported") or {})
    yield from _flat(
        "model", {k: v for k, v in (one.get("model") or {}).items() if k != "model_path"}
    )  # an argument too
    yield from _flat("machine", one.get("machine") or {})
    if (version := (one.get("driver") or {}).get("version")) is not None:
        yield "driver", version


def _flat(prefix: str, found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


class _Side(NamedTuple):
    """One fingerprint, as it is compared."""

    facts: Facts
    ranks: Mapping[str, bool]  # rank -> could its environment be read? Empty: nobody looked
    inherited: frozenset[str]  # contract facts that only say what the launching shell held

    @classmethod
    def of(cls, one: Mapping[str, Any]) -> _Side:
        terms = (one.get("contract") or {}).get("variables") or {}
        inherited = frozenset(f"contract.{name}" for name, term in terms.items() if term.get("source") == SHELL)
        ranks = {rank: held is not None for rank, held in (one.get(ENVIRONMENT) or {}).items()}
        return cls(dict(facts(one)), ranks, inherited)

    def tells(self, fact: str) -> bool:
        """Does it tell anything of the group a fact belongs to? What it cannot tell is never different."""
        group = fact.partition(".")[0]
        rank = fact.partition(" (")[2].removesuffix(")")
        if group == ENVIRONMENT:
            return any(self.ranks.values()) and self.ranks.get(rank, True)
        if fact in self.facts or group == "contract":
            return True
        end = f" ({rank})" if group == "nccl" else ""  # what a rank has mapped may be unknown of it alone
        return any(name.startswith(f"{group}.") and name.endswith(end) for name in self.facts)


def _unlike(one: _Side, other: _Side, under_test: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """The facts that differ, are not bound to, and are neither under test nor brought along by something that is.

    A term that a run's contract has from the shell is none of the arm's: only a launcher of ours writes it down, every server
    inherits it, and what the ranks make of it is compared as their environment.
    """
    a, b = one.facts, other.facts
    left_out = one.inherited | other.inherited | VOLATILE.keys()
    compared = [f for f in sorted({*a, *b} - left_out) if one.tells(f) and other.tells(f)]
    return [
        (fact, a.get(fact, MISSING), b.get(fact, MISSING))
        for fact in compared
        if not _equal(a.get(fact, MISSING), b.get(fact, MISSING))
        and not (_near(fact, a.get(fact), b.get(fact)) or _tested(fact, under_test) or _follows(fact, a, b, under_test))
    ]


def _equal(a: Any, b: Any) -> bool:
    """Python calls True and 1 equal; an argument that became a number has changed."""
    return a is b if isinstance(a, bool) or isinstance(b, bool) else bool(a == b)


def _near(fact: str, a: Any, b: Any) -> bool:
    if fact not in NEAR or not all(type(value) in (int, float) and value > 0 for value in (a, b)):
        return False
    return bool(abs(a / b - 1) <= NEAR[fact][0])


def _names(fact: str) -> Iterator[str]:
    """The names a suite may have for a fact: without its rank, by its first two parts, and a variable as a contract's too."""
    plain = fact.partition(" (")[0]
    group, _, name = plain.partition(".")
    if group == "patches":
        yield group
    elif group == ENVIRONMENT:
        yield plain
        yield f"contract.{name}"
    else:
        yield f"{group}.{name.partition('.')[0]}"


def _tested(fact: str, under_test: Sequence[str]) -> bool:
    return any(covers(under_test, name) for name in _names(fact))


def _follows(fact: str, a: Facts, b: Facts, under_test: Sequence[str]) -> bool:
    """Has something under test brought it along? Then that differs, and upstream changes this with it."""
    for name in _names(fact):
        cause = FOLLOWS.get(name, ("", ""))[0]
        if cause and covers(under_test, cause) and not _equal(a.get(cause, MISSING), b.get(cause, MISSING)):
            return True
    return False


def _word(value: Any) -> str:
    text = shown(value) if isinstance(value, str) and value != MISSING else str(value)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."
