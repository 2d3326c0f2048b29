"""What a server can be found to be."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, NOTE, UNKNOWN, Reason

ROWS: dict[str, Reason] = {
    "no_server": Reason(
        UNKNOWN,
        "No SGLang server was found where it was looked for.",
        "Start one, or name it by --port, --pid or --run.",
        3,
    ),
    "processes_hidden": Reason(
        UNKNOWN,
        "The way /proc is mounted hides processes of other users (hidepid): a server may run here that cannot be seen.",
        "Run as root, as the server's user, or in the group that /proc is mounted with (gid=).",
        3,
    ),
    "forked": Reason(
        NOTE,
        "The worker was forked off a multiprocessing fork server, and not spawned: it was given the environment of that "
        "one's start, whatever its parent has set since. It is judged, as ever, by what it holds now.",
        "Let SGLang spawn its workers (multiprocessing start method spawn, its own default).",
    ),
    "missing_ranks": Reason(
        FAIL,
        "Fewer scheduler processes are there than the server's sizes demand.",
        "See the server's log: a rank died, or is still starting (use --wait).",
    ),
    "extra_ranks": Reason(
        FAIL,
        "More scheduler processes are there than the server's sizes demand: one of an earlier launch may be left over.",
        "Stop the stale process, then start the server again.",
    ),
    "expected_unknown": Reason(
        UNKNOWN,
        "How many schedulers there must be cannot be told from the server's command line.",
        "Start the server with the launcher, which records it.",
    ),
    "ranks_differ": Reason(
        FAIL,
        "Ranks hold different values of an NCCL variable. NCCL does not check this; ranks that choose differently hang or "
        "corrupt data. The names of a node's own interfaces, adapters and files (NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_HOSTID "
        "and their like) may differ from node to node, but not be given on some nodes only.",
        "Start every rank and node with the same contract.",
    ),
    "nccl_two_copies": Reason(
        FAIL,
        "A worker has mapped two copies of libnccl. What is proven of one says nothing of the other.",
        "Look at LD_PRELOAD, LD_LIBRARY_PATH and SGLANG_NCCL_SO_PATH; `sglang-ext doctor` lists the copies on disk.",
    ),
    "nccl_copies_differ": Reason(
        FAIL,
        "Ranks have mapped different copies of libnccl: they read variables by different rules, and may not talk at all.",
        "Start every rank with the same LD_PRELOAD, LD_LIBRARY_PATH and Python environment.",
    ),
    "nccl_metadata": Reason(
        NOTE,
        "A package says it installed another NCCL than the file holds, or two packages claim the file: the last one "
        "installed won.",
        "Uninstall both packages and install the one that is wanted again.",
    ),
    "agreement_timeout": Reason(
        FAIL,
        "A rank did not state its environment to the others in time.",
        "See that rank's log; raise SGLANG_EXT_AGREEMENT_TIMEOUT (seconds) where loading is that uneven.",
    ),
    "hook_inactive": Reason(
        FAIL,
        "The server belongs to a run of ours, but this worker runs stock files: nothing was checked or repaired in it.",
        "See the worker's log for a line from sglang-ext; run `pip install --force-reinstall --no-deps sglang-ext`.",
    ),
    "wrong_copy": Reason(
        FAIL,
        "The worker runs another patch set than the run was started with: sglang-ext was changed in between, or two copies of it "
        "are on the worker's path.",
        "Start the server again; `sglang-ext doctor` lists the copies.",
    ),
    "stale_worker": Reason(
        FAIL,
        "A worker of this server is older than its launch: a pool or an earlier server kept it. Even where its values are right, "
        "they are not this launch's.",
        "Stop it, then start the server again.",
    ),
    "attestation_bad": Reason(
        UNKNOWN,
        "The worker's stored attestation is torn, is of another process, or contradicts itself; it is not believed.",
        "Start the server again; if it comes back, see who writes to the run directory.",
    ),
    "contract_edited": Reason(
        FAIL,
        "The run's contract.json is not the contract this worker was started with: somebody edited it.",
        "Start the server again; see who writes to the run directory.",
    ),
    "run_not_believed": Reason(
        NOTE,
        "The server carries a run directory that is gone, damaged, somebody else's, or another server's. It was judged as a "
        "server that is not ours: by what can be seen now.",
        "Start the server again with the launcher.",
    ),
    "worker_gone": Reason(
        UNKNOWN, "A worker ended while it was being read.", "See the server's log, then verify again."
    ),
}
