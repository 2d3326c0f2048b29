"""How many schedulers a server must have on this host, by upstream's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglang_ext.quick import TYPE_CHECKING, Any, NamedTuple
from sglang_ext.run.directory import RunError

if TYPE_CHECKING:
    from sglang_ext.verify.discover import Server


class Expected(NamedTuple):
    """Sizes and the number of schedulers: ``workers`` in all, ``here`` on this node (None: cannot be told).

    ``dp`` counts replicas, or the groups of DP attention. A size of 0 says nothing: a job that is no SGLang server has
    ranks, and no such sizes.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    nnodes: int = 1
    workers: int | None = None
    here: int | None = None


SIZES = {  # sglang 0.5.23 arg_groups/fields/parallel.py; argparse's last one counts
    "tp": ("--tp", "--tp-size", "--tensor-parallel-size"),
    "pp": ("--pp", "--pp-size", "--pipeline-parallel-size"),
    "dp": ("--dp", "--dp-size", "--data-parallel-size"),
    "attn_dp": ("--attn-dp-size", "--attention-data-parallel-size"),
    "nnodes": ("--nnodes",),
}
# The DP ranks share the TP x PP schedulers. The context-parallel ones are DeepSeek's alone and switch DP attention on
# (sglang 0.5.6-0.5.2x server_args.py, `enable_nsa_prefill_context_parallel`; later spelt dsa).
SHARED = frozenset(
    ("--enable-dp-attention", "--enable-nsa-prefill-context-parallel", "--enable-dsa-prefill-context-parallel")
)
# With these --dp-size is DP attention for some models (DeepSeek's, arg_groups/model_overrides/deepseek_v2.py:191-210 and
# deepseek_v4_hook.py:205) and replicas for others: which it is, the model's configuration says and the line does not.
SHARED_BY_MODEL = frozenset(("--enable-prefill-cp", "--enable-prefill-context-parallel"))
# A file with more arguments; schedulers that are actors of a Ray cluster; no scheduler at all; ranks that join another
# server's, of which each node starts a whole TP group (engine.py `_launch_scheduler_processes`, elastic EP).
UNTOLD = frozenset(("--config", "--use-ray", "--encoder-only", "--elastic-ep-join-mode"))
EXACT = SHARED | SHARED_BY_MODEL | UNTOLD | {spelling for spellings in SIZES.values() for spelling in spellings}
SERVERS = ("sglang.launch_server", "serve")  # python -m sglang.launch_server; sglang serve


def count(tp: int, pp: int, dp: int, nnodes: int, dp_attention: bool) -> Expected:
    """With DP attention the DP ranks share the TP x PP schedulers; otherwise each replica has its own.

    A node has whole pipeline stages, or a part of one where there are more nodes than stages (sglang 0.5.23 engine.py
    `_calculate_rank_ranges`, data_parallel_controller.py `launch_tensor_parallel_group`).
    """
    replicas = 1 if dp_attention else dp
    stages, nodes_a_stage = max(pp // nnodes, 1), max(nnodes // pp, 1)
    return Expected(tp, pp, dp, nnodes, tp * pp * replicas, max(stages * (tp // nodes_a_stage) * replicas, 1))


def from_arguments(arguments: Sequence[str]) -> Expected:
    """From a stock server's command line. Unknown where it is no such line, or something else may say more."""
    starts = [i for i, word in enumerate(arguments) if word in SERVERS]
    words = arguments[starts[0] + 1 :] if starts else ()
    flags = {word.partition("=")[0] for word in words}
    if not starts or flags & UNTOLD:
        return Expected()
    sizes = dict.fromkeys(SIZES, 1)
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in EXACT and len(name) > 2 and any(full.startswith(name) for full in EXACT):
            return Expected()  # upstream's argparse takes unambiguous beginnings: which one this is, it knows
        for size, spellings in SIZES.items():
            if name in spellings:
                text = value if equals else (words[index + 1] if index + 1 < len(words) else "")
                if not text.isdigit() or int(text) < 1:
                    return Expected()
                sizes[size] = int(text)
    groups = sizes.pop("attn_dp")
    if groups > 1:  # its own spelling of DP attention: upstream refuses replicas beside it
        return count(**{**sizes, "dp": groups}, dp_attention=True)
    if sizes["dp"] > 1 and flags & SHARED_BY_MODEL and not flags & SHARED:
        return Expected()
    return count(**sizes, dp_attention=bool(flags & SHARED))


def from_record(record: Mapping[str, Any]) -> Expected:
    """From what the engine seam wrote once upstream had resolved its arguments. Raises RunError when it is damaged."""
    try:
        return Expected(**{field: int(record["expected"][field]) for field in Expected._fields})
    except (KeyError, TypeError, ValueError):
        raise RunError("server.json has another shape than ours; it is not believed") from None


def from_world(environment: Mapping[str, str]) -> Expected:
    """From what torchrun tells each rank of a job (torch 2.x distributed/elastic/agent/server/local_elastic_agent.py)."""
    world, local = environment.get("WORLD_SIZE", ""), environment.get("LOCAL_WORLD_SIZE", "")
    nodes = environment.get("GROUP_WORLD_SIZE", "1")
    if not (world.isdigit() and nodes.isdigit()):
        return Expected(0, 0, 0, 0)
    here = int(local) if local.isdigit() else int(world) if nodes == "1" else None
    return Expected(0, 0, 0, int(nodes), int(world), here)


def of(server: Server, record: Mapping[str, Any] | None) -> Expected:
    """What is to be expected of a server: by its run's record, by its own ranks, or by its command line."""
    if record:
        return from_record(record)
    return server.told if server.told is not None else from_arguments(server.arguments)


def labels(expected: Expected) -> list[str]:
    """What the ranks must be called, where that can be told: all on one node, without data parallelism."""
    if expected.nnodes != 1 or expected.here is None:
        return []
    if expected.tp == 0:
        return [f"rank {rank}" for rank in range(expected.here)]
    if expected.dp != 1:
        return []
    stages = [f"PP{pp} " for pp in range(expected.pp)] if expected.pp > 1 else [""]
    return [f"{stage}TP{tp}" for stage in stages for tp in range(expected.tp)]
