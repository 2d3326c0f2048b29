"""Is what an arm asks for in effect? Pure: the arm, the server's own answer, its log, its ranks' variables.

SGLang resolves arguments: it adjusts, replaces and falls back, with a warning in the log at most. So each argument that says
what is being measured is compared with what became of it, and what only shows while the server works (graphs, speculation, the
way of the all-reduce) is read off the decode lines and the log. A mismatch is a Fault; what cannot be seen is in ``unknown``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sglang_ext.bench.fingerprint import harmless, is_secret
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.bench.truth import all_reduce
from sglang_ext.bench.truth.requested import requested, same
from sglang_ext.bench.truth.server_log import Window, windows

if TYPE_CHECKING:
    from sglang_ext.bench.suites.arms import Arm

SPECULATION, STEPS, ADAPTIVE = "speculation_not_in_effect", "steps_not_in_effect", "speculation_adapts"
ATTENTION, PARALLEL, GRAPHS = "attention_not_in_effect", "parallel_not_in_effect", "graphs_not_in_effect"
ARGUMENT, ALL_REDUCE, VARIABLE = "argument_not_in_effect", "wrong_all_reduce", "variable_without_effect"

# Arguments that must be what was asked for, and the code where they are not. Others that changed are listed, not refused.
ARGUMENTS: Mapping[str, str] = {
    "speculative_algorithm": SPECULATION,
    "speculative_draft_model_path": SPECULATION,
    "speculative_draft_model_revision": SPECULATION,
    "speculative_num_steps": STEPS,
    "speculative_eagle_topk": STEPS,
    "speculative_num_draft_tokens": STEPS,
    "speculative_adaptive": ADAPTIVE,
    "attention_backend": ATTENTION,
    "prefill_attention_backend": ATTENTION,
    "decode_attention_backend": ATTENTION,
    "speculative_attention_mode": ATTENTION,
    "speculative_draft_attention_backend": ATTENTION,
    "tp_size": PARALLEL,
    "pp_size": PARALLEL,
    "dp_size": PARALLEL,
    "ep_size": PARALLEL,
    "enable_dp_attention": PARALLEL,
    "disable_cuda_graph": GRAPHS,
    "disable_custom_all_reduce": ALL_REDUCE,
    "enable_torch_symm_mem": ALL_REDUCE,
    "enable_mscclpp": ALL_REDUCE,
    "enable_symm_mem": ALL_REDUCE,
    "enable_nccl_nvls": ALL_REDUCE,
    "enable_flashinfer_allreduce_fusion": ALL_REDUCE,
    "flashinfer_allreduce_fusion_backend": ALL_REDUCE,
    "model_path": ARGUMENT,
    "revision": ARGUMENT,
    "dtype": ARGUMENT,
    "quantization": ARGUMENT,
    "kv_cache_dtype": ARGUMENT,
    "moe_runner_backend": ARGUMENT,
    "speculative_moe_runner_backend": ARGUMENT,
    "disable_overlap_schedule": ARGUMENT,
    "enable_deterministic_inference": ARGUMENT,
}
# What is shown of every server, asked for or not.
SHOWN = (
    "version", "device", "dtype", "tp_size", "dp_size", "pp_size", "attention_backend", "prefill_attention_backend",
    "decode_attention_backend", "disable_cuda_graph", "disable_overlap_schedule", "disable_custom_all_reduce", "stream_interval",
    "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "speculative_adaptive",
)  # fmt: skip
SIMULATE, METHOD, TOKENS = "SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD", "SGLANG_SIMULATE_ACC_TOKEN_MODE"
# Names that look like the server's and are read by nobody. sglang 0.5.23 test/test_utils.py:1572 itself exports the first one.
DEAD_NAMES: Mapping[str, str] = {name.removeprefix("SGLANG_"): name for name in (SIMULATE, METHOD, TOKENS)}
CHAIN = "with a top-k of 1 upstream takes steps + 1, whatever is asked for"


def check(
    arm: Arm, server_info: Mapping[str, Any], log: str | None, variables: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[Fault]]:
    """What is in effect of ``arm`` on the server that answers ``server_info``, and where that is another thing than asked for.

    ``log``: what it has written so far, None where nobody captured it. ``variables``: those its ranks hold, as a verify report
    has them; None where nobody looked, and then what the arm sets is taken for it.
    """
    asked = requested(arm.arguments) if arm.address is None else _launched(server_info)
    held = {**_set_by(arm), **(variables or {})}
    unknown: dict[str, str] = {}
    changed, faults = _arguments(asked, server_info, unknown)
    faults += _ranks(server_info, unknown)
    found = windows(log) if log is not None else []
    faults += _adaptive(asked, server_info) + _decoding(found, server_info, unknown, log is not None)
    wanted = all_reduce.wanted(server_info, held)
    way = all_reduce.path(log, server_info, wanted)
    if way.path is None:
        unknown["all_reduce"] = way.evidence
    faults += _way(way, wanted)
    simulated = _simulated(held, server_info)
    faults += _dead(held)
    if variables is None:
        unknown["variables"] = "nobody looked into the ranks; the arm's own are taken for theirs"
    told = {
        "requested": {name: harmless(value) for name, value in sorted(asked.items()) if not _secret(name, value)},
        "effective": {name: harmless(server_info[name]) for name in SHOWN if name in server_info},
        "changed": changed,
        "all_reduce": way.to_json(),
        "graphs": _graphs(found),
        "simulated_acceptance": simulated,
        "unknown": unknown,
    }
    return told, faults


def _launched(server_info: Mapping[str, Any]) -> dict[str, str | bool]:
    """What a server that somebody else has started was asked for, where its release says so: of what is compared or shown.

    No suite has read that command: it may hold a key under any name, and a beginning of one will do for upstream's parser.
    """
    command = server_info.get("launch_command")
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # a quote that does not end
        words = []
    return {name: value for name, value in requested(words).items() if name in ARGUMENTS or name in SHOWN}


def _set_by(arm: Arm) -> dict[str, str]:
    return {**arm.environment, **{name: value for name, value in arm.variables.items() if value is not None}}


def _arguments(
    asked: Mapping[str, str | bool], server_info: Mapping[str, Any], unknown: dict[str, str]
) -> tuple[dict[str, Any], list[Fault]]:
    """Every argument asked for beside what became of it: all that changed, and faults for those that must not."""
    changed: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, value in sorted(asked.items()):
        if _secret(name, value):
            continue
        if name not in server_info:
            unknown[name] = "/server_info has no argument of that name in this release"
            continue
        resolved = server_info[name]
        if same(name, value, resolved):
            continue
        changed[name] = {"requested": harmless(value), "effective": harmless(resolved)}
        if name in ARGUMENTS:
            chain = name == "speculative_num_draft_tokens" and server_info.get("speculative_eagle_topk") == 1
            why = CHAIN if chain else "upstream resolved it to that; see the warnings at the top of its log"
            option = f"--{name.replace('_', '-')}"
            faults.append(
                Fault(ARGUMENTS[name], f"{option}: expected {_text(value)}, found {_text(resolved)} in effect ({why})")
            )
    return changed, faults


def _secret(name: str, value: str | bool) -> bool:
    """A number of tokens is none, and on a command line a number is a text."""
    number = isinstance(value, str) and value.replace(".", "", 1).isdigit()
    return is_secret(name, 0 if number else value)


def _text(value: object) -> str:
    """A value for a sentence, which goes into the receipt and onto the page as well."""
    value = harmless(value)
    if value is None:
        return "nothing"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _ranks(server_info: Mapping[str, Any], unknown: dict[str, str]) -> list[Fault]:
    """The schedulers' own view, one per DP rank, of what is being measured: it must be that of the front."""
    states = server_info.get("internal_states")
    if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
        unknown["internal_states"] = "/server_info does not say what each data-parallel rank has"
        return []
    faults = []
    for index, state in enumerate(states):
        for name, code in ARGUMENTS.items():
            if name in state and name in server_info and state[name] != server_info[name]:
                text = f"DP{index}: {name}: expected {_text(server_info[name])} as in /server_info, found {_text(state[name])}"
                faults.append(Fault(code, text))
    return faults


def _adaptive(asked: Mapping[str, str | bool], server_info: Mapping[str, Any]) -> list[Fault]:
    """Steps that change while they are measured are no arm."""
    if server_info.get("speculative_adaptive") is not True or asked.get("speculative_adaptive"):
        return []
    return [Fault(ADAPTIVE, "speculative_adaptive: expected off, found on: upstream changes the steps while it serves")]


def _decoding(
    found: Iterable[Window], server_info: Mapping[str, Any], unknown: dict[str, str], logged: bool
) -> list[Fault]:
    """What decode lines show of speculation and graphs."""
    lines = list(found)
    if not lines:
        why = "no decode line in its log yet" if logged else "no log of the server is at hand"
        unknown["graphs"] = unknown["speculation"] = why
        return []
    faults = []
    algorithm = server_info.get("speculative_algorithm")
    if algorithm is not None and any(line.accept_length is None for line in lines):
        faults.append(
            Fault(
                SPECULATION,
                f"{_text(algorithm)}: expected an accept length in every decode line, found lines without one",
            )
        )
    graphs = server_info.get("device") == "cuda" and server_info.get("disable_cuda_graph") is False
    plain = [line for line in lines if line.graph is False]
    if graphs and plain:
        text = (
            f"expected every decode step from a CUDA graph, found {len(plain)} of {len(lines)} decode lines without one"
        )
        faults.append(Fault(GRAPHS, text))
    return faults


def _graphs(found: Iterable[Window]) -> dict[str, int]:
    told = [line.graph for line in found if line.graph is not None]
    return {"decode_lines": len(told), "captured": sum(told)}


def _way(way: all_reduce.Path, wanted: Mapping[str, str]) -> list[Fault]:
    """Ways that were asked for by name and are not the one taken."""
    faults = []
    for name, asker in wanted.items():
        if way.path in (name, None, all_reduce.NONE):
            continue
        why = way.off.get(name, "no line of its log says that it is on")
        faults.append(Fault(ALL_REDUCE, f"{asker}: expected the all-reduce {name}, found {way.path} ({why})"))
    return faults


def _simulated(held: Mapping[str, str], server_info: Mapping[str, Any]) -> dict[str, Any] | None:
    """The acceptance that is made up instead of found, or None. sglang 0.5.23 srt/environ.py:527-529, spec_utils.py:276."""
    states = server_info.get("internal_states")
    own = [state.get("env_vars") for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    seen = {
        **held,
        **{k: v for one in own if isinstance(one, dict) for k, v in one.items() if k.startswith(SIMULATE[:19])},
    }
    try:
        length = float(seen.get(SIMULATE) or 0.0)
    except ValueError:
        return None
    if length <= 0 or server_info.get("speculative_algorithm") is None:
        return None
    tokens = str(seen.get(TOKENS) or "fixed")
    note = "every accepted token is the same one: experts are routed as by no text" if tokens == "fixed" else None
    method = str(seen.get(METHOD) or "match-expected")
    return {"length": length, "method": harmless(method), "tokens": harmless(tokens), "note": note}


def _dead(held: Mapping[str, str]) -> list[Fault]:
    return [
        Fault(VARIABLE, f"{name}: expected the name upstream reads, {DEAD_NAMES[name]}, found one that nobody reads")
        for name in sorted(held)
        if name in DEAD_NAMES
    ]
