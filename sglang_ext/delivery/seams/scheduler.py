"""The scheduler seams: the first statement of a worker, and the moment its scheduler is built.

Both wrap, so that upstream's changing signatures do not matter. `worker_entry` is first in a spawned process, before
setproctitle and before the first NCCL call. Ray actors never call it (sglang 0.5.23 ray/scheduler_actor.py), so
`scheduler_built` enters again; entering twice is harmless.
"""

from __future__ import annotations

import functools
import inspect
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from sglang_ext import bootstrap
from sglang_ext.contract.model import ContractError
from sglang_ext.contract.names import NODE_LOCAL, is_nccl, shown
from sglang_ext.delivery import agreement, repair
from sglang_ext.delivery.context import Context, current
from sglang_ext.delivery.options import LOG_VARIABLES, log_folder
from sglang_ext.delivery.seams import deepseek_v2
from sglang_ext.delivery.seams.engine import CARRIED, restore
from sglang_ext.delivery.witness import Witness, read_now
from sglang_ext.run.directory import RunError
from sglang_ext.run.process import ancestors

logger = logging.getLogger("sglang_ext")

_witness: Witness | None = None


def worker_entry(run_scheduler_process: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `run_scheduler_process`: enter first; in a dry run that is all."""
    if bootstrap.switched_off():
        return run_scheduler_process
    parameters = inspect.signature(run_scheduler_process)

    @functools.wraps(run_scheduler_process)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind_partial(*args, **kwargs).arguments
        witness = enter(given.get("server_args"), given)
        if witness is not None and witness.context.dry_run:
            return hold(witness)
        return run_scheduler_process(*args, **kwargs)

    return wrapper


def scheduler_built(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `Scheduler.__init__`: enter where nobody has (Ray), and afterwards, before "ready" is said, compare ranks."""

    if bootstrap.switched_off():
        return init

    @functools.wraps(init)
    def wrapper(self: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        witness = enter(server_args, {})
        init(self, server_args, *args, **kwargs)
        if witness is not None:
            confirm(witness)

    return wrapper


def enter(server_args: Any, given: dict[str, Any]) -> Witness | None:
    """Check, repair and attest this worker's environment, once; None where there is no run. Raises SystemExit to refuse."""
    global _witness
    if _witness is not None:
        return _witness
    try:
        # Taken out: up to 0.5.18 upstream publishes vars(server_args) of a worker in /server_info, and saves it with dumps.
        context = current(getattr(server_args, "__dict__", {}).pop(CARRIED, None))
    except (RunError, ContractError) as error:  # e.g. a Ray actor on a host that does not have the directory
        if bootstrap.demanded():
            raise SystemExit(f"sglang-ext: run_dir_unusable: {error}") from None
        logger.warning("sglang-ext: this worker is neither checked nor repaired: %s", error)
        return None
    if context is None:
        return None
    if orphaned():
        raise SystemExit("sglang-ext: the process that started this worker is gone; it ends here")
    rank = {"node": getattr(server_args, "node_rank", 0)}
    rank |= {short: given.get(f"{short}_rank") for short in ("dp", "pp", "tp")}
    witness = Witness(context, rank)
    found = read_now(context)
    repaired = repair_contract(context, found)
    context.mark(os.environ)
    with context.must_record():
        witness.entered(found, repaired)
        witness.serve()
    _witness = witness
    return witness


def orphaned() -> bool:
    """Did the parent die while this worker imported? Upstream's PDEATHSIG, armed later, would never fire then.

    A wrapper may stand between the two (`multiprocessing.set_executable` of a script that does not exec).
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None or parent.pid == os.getppid():
        return False
    return parent.pid not in ancestors(os.getpid())


def repair_contract(context: Context, found: dict[str, str | None]) -> list[str]:
    """Set what is not as the contract wants it, where that is still in time. Returns the repaired names.

    Under the launcher's strict policy a repair that would come too late refuses instead: every witness would then show
    the right value while the driver works with the wrong one.
    """
    wrong = {name: term.want for name, term in context.contract.terms.items() if found.get(name) != term.want}
    # Ranks must agree on NCCL variables nobody demanded, too: what the engine spawned us with and we lost comes back.
    wrong |= {n: value for n, value in spawned_with(context).items() if found.get(n) is None and n not in wrong}
    if not wrong:
        return []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        driver = repair.driver_is_mapped(maps.read())
    repaired = []
    for name, want in wrong.items():
        late = repair.too_late(name, communicator_exists=communicator_exists(), driver_mapped=driver)
        if late is None:
            restore(name, want)
            repaired.append(name)
        elif context.strict:
            raise context.refuse(
                "too_late",
                f"{name}: expected {shown(want)}, found {shown(found.get(name))} in this worker, and {late}; deliver it with the "
                "process's environment: what stands between the launcher and this worker dropped it",
            )
    return repaired


def spawned_with(context: Context) -> dict[str, str]:
    """The NCCL variables the engine stored for its workers; none, where the file cannot be believed: a server we did not
    start is not stopped for that."""
    record: dict[str, Any] | None = None
    with context.must_record():
        record = context.directory.read("server.json")
    return dict((record or {}).get("spawned_with", {}))


def communicator_exists() -> bool:
    """Has this process joined a process group, so that NCCL or the group may have read its variables?"""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


def confirm(witness: Witness) -> None:
    """The scheduler is built: read again, compare with the other ranks, attest. Raises SystemExit to refuse."""
    context = witness.context
    values = read_now(context)
    changed = {n: t.want for n, t in context.contract.terms.items() if values.get(n) != t.want}
    outcome = compare_ranks(context, values, witness.record["rank"]["node"])
    with context.must_record():
        witness.ready(values, outcome, deepseek_v2.SHAPE)
    if context.strict and changed:
        name, want = next(iter(changed.items()))
        raise context.refuse(
            "changed_in_process",
            f"{name}: expected {shown(want)}, found {shown(values.get(name))} once the scheduler was built; a plugin or model "
            "file of this server changes it",
        )
    if context.strict and outcome["code"] is not None:
        raise context.refuse(outcome["code"], outcome["message"])


def compare_ranks(context: Context, values: dict[str, str | None], node: int) -> dict[str, Any]:
    """What the ranks of this process group agree on, as a plain record for the attestation."""
    if not communicator_exists():
        return {"code": None, "message": "no process group: nothing to compare with", "world": 1, "rank": 0}
    import torch.distributed
    from torch.distributed.distributed_c10d import _get_default_store

    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    statement = {
        "contract": context.contract.without(NODE_LOCAL).digest,
        "node": node,
        "patchset": bootstrap.STATUS.digest,
        "nccl": {name: value for name, value in values.items() if is_nccl(name) and value is not None},
        "own": own_log(context, values),
    }
    code, message = agreement.agree(_get_default_store(), rank, world, statement, agreement.timeout())
    return {"code": code, "message": message, "world": world, "rank": rank}


def own_log(context: Context, values: dict[str, str | None]) -> list[str]:
    """The variables --nccl-log set here, which each node's launcher decides for itself: the log lies in its own run."""
    file = values.get("NCCL_DEBUG_FILE") or ""
    return list(LOG_VARIABLES) if file.startswith(log_folder(context.directory.path)) else []


def hold(witness: Witness) -> None:
    """A dry run: this worker was started the same way; it titles itself as upstream would and waits to be looked at."""
    import setproctitle

    tp = witness.record["rank"]["tp"]
    setproctitle.setproctitle(f"sglang::scheduler_TP{tp}")
    witness.ready(read_now(witness.context), {"code": None, "message": "dry run", "world": 1, "rank": 0}, None)
    while not orphaned():
        time.sleep(0.2)
