"""The engine seam: upstream's `_set_envs_and_config`, after which the workers are spawned with this process's environment.

Upstream assigns CUDA_DEVICE_MAX_CONNECTIONS there always, and others by flag; deterministic inference assigns NCCL_ALGO even
before, while the arguments are resolved (contract/rules.py has the places of each release).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from sglang_ext import bootstrap
from sglang_ext.contract import rules
from sglang_ext.contract.names import is_nccl, is_tuning, shown
from sglang_ext.delivery.context import Carried, Context, current_or_own
from sglang_ext.hide import holds_credentials, presentable
from sglang_ext.run.directory import RUN_DIR, RUN_ID, RunError
from sglang_ext.run.process import myself

logger = logging.getLogger("sglang_ext")

# The key in ServerArgs.__dict__ that carries the run directory to workers by pickle. With Ray and several DP replicas it is lost
# in sglang 0.5.11-0.5.18: there the driver itself sends a new object made of the fields alone (ray/engine.py, dp_server_args).
CARRIED = "_sglang_ext_run"


def keeps_contract(set_envs_and_config: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_set_envs_and_config`: refuse arguments that fight the contract, re-assert it, say who changed what."""

    if bootstrap.switched_off():
        return set_envs_and_config

    @functools.wraps(set_envs_and_config)
    def wrapper(server_args: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            context = current_or_own()
            settle_fights(context, server_args)
        except RunError as error:
            # Never under our launcher, which made the directory, and whose contract stays as it is; a server nobody demanded
            # anything of must still start, on a full disk too. Its workers are told of no run: they would keep its contract.
            logger.warning("sglang-ext: workers are neither checked nor repaired: %s", error)
            for left_over in (RUN_DIR, RUN_ID):
                os.environ.pop(left_over, None)
            return set_envs_and_config(server_args, *args, **kwargs)
        while_resolving = context.contract.differences(os.environ)
        result = set_envs_and_config(server_args, *args, **kwargs)
        by_upstream = [d for d in context.contract.differences(os.environ) if d not in while_resolving]
        changes = []
        for by, found in (("argument resolution", while_resolving), ("_set_envs_and_config", by_upstream)):
            for name, want, value in found:
                restore(name, want)
                changes.append({"name": name, "want": want, "found": presentable(value), "by": by})
                told = (name, shown(want), shown(value), by, shown(want))
                logger.info("sglang-ext: %s %s -> %s (by sglang's %s); restored to %s", *told)
        context.mark(os.environ)
        # Under the launcher a worker without our package must fail; elsewhere it must be able to read its arguments.
        path = context.directory.path
        server_args.__dict__[CARRIED] = Carried(path) if context.launched else path
        record = {
            **layout(server_args),
            "changes": changes,
            "main": myself()._asdict(),
            "spawned_with": nccl_variables(),
        }
        with context.must_record():
            context.directory.write("server.json", record)
        return result

    return wrapper


def nccl_variables() -> dict[str, str]:
    """What every worker should inherit beside the contract: all NCCL_* this process holds, those upstream set included."""
    held = {name: value for name, value in os.environ.items() if is_nccl(name) and is_tuning(name)}
    return {name: value for name, value in held.items() if not holds_credentials(value)}  # this is stored


def restore(name: str, want: str | None) -> None:
    """Give this process ``name`` as the contract wants it."""
    if want is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = want


def resolved(server_args: Any) -> Any:
    """The arguments as upstream resolved them; the record itself only holds what was typed (sglang 0.5.19+)."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:
        return server_args
    return resolving_view(server_args)


def settle_fights(context: Context, server_args: Any) -> None:
    """Stop before the model loads when an argument needs another value than the contract demands.

    Without our launcher nobody demanded anything: the argument wins, as it would have, and one warning says so.
    """
    view = resolved(server_args)
    settings = {name: getattr(view, name) for name in rules.SETTINGS if hasattr(view, name)}
    fights = rules.fights(context.contract, settings, os.environ, release=bootstrap.STATUS.release)
    if fights and context.launched:
        raise context.refuse("arguments_fight_contract", "; ".join(fight.sentence for fight in fights))
    for fight in fights:
        logger.warning("sglang-ext: %s; started without the launcher, so the argument wins", fight.sentence)
    if fights:
        context.give_up(frozenset(fight.variable for fight in fights))


def layout(server_args: Any) -> dict[str, Any]:
    """The sizes upstream resolved and, from them, how many schedulers each node must have.

    With DP attention the DP ranks share the TP x PP world (sglang 0.5.23 engine.py `_launch_scheduler_processes`,
    data_parallel_controller.py); otherwise each DP replica has a world of its own.
    """
    view = resolved(server_args)
    sizes = {
        short: int(getattr(view, name, 1) or 1)
        for short, name in (("tp", "tp_size"), ("pp", "pp_size"), ("dp", "dp_size"), ("nnodes", "nnodes"))
    }
    replicas = 1 if getattr(view, "enable_dp_attention", False) else sizes["dp"]
    total = sizes["tp"] * sizes["pp"] * replicas
    return {
        "expected": {**sizes, "workers": total, "here": max(total // sizes["nnodes"], 1)},
        "node_rank": int(getattr(view, "node_rank", 0) or 0),
        "host": str(getattr(view, "host", "")),
        "port": int(getattr(view, "port", 0) or 0),
    }
