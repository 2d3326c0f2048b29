"""The run this process belongs to: its directory, its contract, and how strict it is.

The launcher decides the contract. A process started without it (``sglang serve``, ``Engine(...)``) decides once, from the
NCCL_* variables it had when sglang was first imported; such a run only warns, it never stops a server it did not start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sglang_ext import bootstrap
from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.delivery.old_runs import prune
from sglang_ext.run import directory as runs
from sglang_ext.run.process import Identity, myself, stat

logger = logging.getLogger("sglang_ext")


class Context:
    """One run, as one of its processes sees it."""

    def __init__(self, directory: runs.RunDirectory, run: dict[str, Any], contract: Contract) -> None:
        self.directory, self.run, self.contract = directory, run, contract

    @property
    def id(self) -> str:
        return str(self.run["id"])

    @property
    def launched(self) -> bool:
        """Started by our launcher, which demands and refuses; otherwise we only warn."""
        return bool(self.run["mode"] == "launcher")

    @property
    def strict(self) -> bool:
        return self.launched and bool(self.run["policy"] == "strict")

    @property
    def dry_run(self) -> bool:
        return bool(self.run["dry_run"])

    def give_up(self, names: frozenset[str]) -> None:
        """Take terms out of the contract before any worker has seen it: only for a run nobody demanded anything of.

        Raises RunError where that cannot be stored: workers would find the old one, and hold it against the argument.
        """
        kept = {name: term for name, term in self.contract.terms.items() if name not in names}
        self.contract = Contract(kept, self.contract.warnings)
        self.directory.write("contract.json", self.contract.to_json())

    @contextlib.contextmanager
    def must_record(self) -> Iterator[None]:
        """What is not recorded cannot be proven: refuse under the launcher, warn elsewhere."""
        try:
            yield
        except (runs.RunError, OSError) as error:
            if self.launched:
                raise self.refuse("run_dir_unusable", str(error)) from None
            logger.warning("sglang-ext: %s", error)

    def mark(self, environment: Any) -> None:
        """Put into ``environment`` what every process of the run needs, and what keeps its exec block readable."""
        environment[runs.RUN_DIR] = self.directory.path
        environment[runs.RUN_ID] = self.id
        # setproctitle overwrites the exec environment unless this is set before its first call in a process.
        environment["SPT_NOENV"] = "1"

    def refuse(self, code: str, sentence: str) -> SystemExit:
        """The exception that ends this process with one sentence; the supervisor finds code and sentence in the run.

        SystemExit, because upstream's workers catch Exception and print a traceback around the sentence.
        """
        try:
            self.directory.write(
                f"refused/{os.getpid()}.json",
                {"code": code, "message": sentence, "pid": os.getpid(), "time": time.time()},
            )
        except runs.RunError:
            pass  # the sentence still reaches stderr; a full disk must not hide it behind another error
        return SystemExit(f"sglang-ext: {code}: {sentence}")


def open_run(path: str) -> Context:
    """The run in ``path``. Raises RunError when it cannot be believed, ContractError when its contract is damaged."""
    directory = runs.RunDirectory.open(path)
    run, contract = directory.read("run.json"), directory.read("contract.json")
    if run is None or contract is None or run.get("schema") != runs.SCHEMA:
        raise runs.RunError(f"{path} is no run directory of this sglang-ext; start the server again with the launcher")
    return Context(directory, run, Contract.from_json(contract))


def new_run(
    contract: Contract,
    *,
    mode: str,
    policy: str,
    dry_run: bool = False,
    path: str | None = None,
    accepted: Sequence[str] = (),
    patchset: str | None = None,
) -> Context:
    """Create a run directory that holds ``contract``; this process owns it."""
    if path is None:
        prune(runs.default_base())
    directory = runs.RunDirectory.create(path)
    run = runs.begin(
        directory, mode=mode, policy=policy, dry_run=dry_run, owner=myself(), accepted=accepted, patchset=patchset
    )
    directory.write("contract.json", contract.to_json())
    return Context(directory, run, contract)


def _handed_down(path: str | None) -> Context | None:
    """The run in ``path`` where its owner lives and started us; a variable left over from another run is ignored, aloud.

    Were the run ours and its directory gone, its launcher finds nobody attesting, and does not let the server pass.
    """
    if not path:
        return None
    try:
        context = open_run(path)
        owner = Identity(int(context.run["owner"]["pid"]), int(context.run["owner"]["start_time"]))
        if _started_by(owner):
            return context
        why = f"process {owner.pid}, which owns that run, did not start this one"
    except (runs.RunError, ContractError, KeyError, TypeError, ValueError) as error:
        why = str(error)
    logger.warning("sglang-ext: %s=%s is left over and ignored: %s; unset it", runs.RUN_DIR, path, why)
    return None


def _started_by(owner: Identity) -> bool:
    """Is ``owner`` this process, or above it?"""
    entry = stat(os.getpid())
    while entry is not None and entry.pid != owner.pid:
        entry = stat(entry.ppid)
    return entry is not None and entry.start_time == owner.start_time


_current: Context | None = None
_received: str | None = None


class Carried(str):
    """A run directory on its way to a worker. The process that unpickles it remembers it: upstream may make a new object of the
    arguments' fields alone there (`dataclasses.replace` in Ray actors of sglang 0.5.10-0.5.18, ray/scheduler_actor.py)."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return received, (str(self),)


def received(path: str) -> str:
    """Called by pickle in the process that a `Carried` arrives in."""
    global _received
    _received = path
    return Carried(path)


def current(carried: str | None = None) -> Context | None:
    """The run of this process, or None where there is none.

    ``carried`` is the run directory as upstream's pickled arguments carried it: the way that still works for a worker
    whose environment was lost (Ray actors, wrappers), and the one believed first.
    """
    global _current
    if _current is None:
        path = carried or _received or os.environ.get(runs.RUN_DIR)
        if path:
            _current = open_run(path)
    return _current


def current_or_own() -> Context:
    """The run of this process; one of its own where it was started without the launcher."""
    global _current
    if _current is None:
        _current = _handed_down(os.environ.get(runs.RUN_DIR))
    if _current is None:
        try:
            contract = decide(None, (), (), bootstrap.SHELL)
        except ContractError:
            contract = decide(None, (), (), {})
        _current = new_run(contract, mode="engine", policy="warn", patchset=bootstrap.STATUS.digest)
        _current.directory.hold()
    assert _current is not None
    return _current
