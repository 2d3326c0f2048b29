"""Every reason code, once: how grave it is, what it means, what to do. docs/reasons.md is generated from this table.

Codes are stable: users script against them. `severity` is what it does to a verdict; refusals of a launch are "fail".
"""

from __future__ import annotations

from sglang_ext.quick import NamedTuple

FAIL, UNKNOWN, NOTE = "fail", "unknown", "note"


class Reason(NamedTuple):
    """One code. ``exit`` is the status of a launch that is refused for it, where it can refuse one."""

    severity: str
    meaning: str
    fix: str
    exit: int = 1


TABLE: dict[str, Reason] = {
    # What a variable can be found to be.
    "missing": Reason(
        FAIL,
        "The contract wants a value and the worker has none: something between the launcher and the worker dropped it.",
        "Start the server with `python -m sglang_ext.launch`; look for `env -i`, sudo, ssh or a wrapper on the way.",
    ),
    "unwanted": Reason(
        FAIL,
        "The contract wants the variable absent and the worker has it.",
        "Unset it in the launching shell, or start with the launcher, which removes it.",
    ),
    "different": Reason(
        FAIL,
        "The worker holds another value than the contract wants, and nothing shows who set it.",
        "Compare with the launching shell and the image's ENV; start with the launcher to have it enforced.",
    ),
    "overwritten": Reason(
        FAIL,
        "The server was started with the wanted value, or stock SGLang always assigns this one: it was overwritten on the "
        "way. Stock SGLang sets CUDA_DEVICE_MAX_CONNECTIONS to 8 in every launch.",
        "Start with the launcher: it re-asserts the contract after SGLang's own assignments.",
    ),
    "changed_in_process": Reason(
        FAIL,
        "The worker started with the wanted value and holds another one now: code in the worker changed it. NCCL may have "
        "read either.",
        "Find the plugin or model file that assigns it; restart the server.",
    ),
    "too_late": Reason(
        FAIL,
        "The worker came without the wanted value, and somebody in it has read the old one already: setting it now would "
        "show the right value and change nothing.",
        "Deliver it with the process's environment; look for a wrapper that drops it.",
    ),
    "maybe_too_late": Reason(
        UNKNOWN,
        "The value is right now, but the process was started with another one and nobody attests that it was repaired "
        "before the first communicator read it.",
        "Restart the server with the launcher, which repairs first and attests it.",
    ),
    "quoted": Reason(
        FAIL,
        "The worker holds the wanted value with quotes around it: an env-file reader passed them on, and NCCL does not take "
        "them off.",
        "Write the value without quotes in the env-file (docker --env-file, systemd's EnvironmentFile keep or drop them by "
        "rules of their own).",
        2,
    ),
    "not_in_effect": Reason(
        FAIL,
        "The value is right in the worker now, and NCCL's own log says it read another one, or none, when its communicator "
        "started.",
        "Restart the server with the launcher: NCCL reads each value once.",
    ),
    "same_meaning": Reason(
        NOTE,
        "The worker holds another text than the contract, which the NCCL release it has mapped reads as the same value.",
        "Nothing has to be done. Write it as the contract does to be rid of the note.",
    ),
    "not_seen": Reason(
        UNKNOWN,
        "No witness could read the variable now: its memory is closed to us and no worker answered.",
        "Run as the server's user or root, or with ptrace_scope 0; a server of ours answers by itself.",
    ),
    "witness_missing": Reason(
        UNKNOWN,
        "A witness demanded with --require could not be had for this variable.",
        "Start the server with the launcher for exec and attested, with --nccl-log for effective; run as its user or root for "
        "live.",
    ),
    "repaired": Reason(
        NOTE,
        "The worker came without the wanted value; the seam set it before anybody read it, and attests that.",
        "Nothing has to be done. To have it delivered too, look for the wrapper that drops it.",
    ),
    # What NCCL makes of names and values, by its own release's rules; accepted with --accept CODE where it is meant so.
    "name_misspelt": Reason(
        FAIL,
        "A name that NCCL does not read is a slip of one it does. NCCL says nothing about names it does not know.",
        "Write the name the message gives; `sglang-ext explain NAME` says what it does.",
        2,
    ),
    "name_unknown": Reason(
        NOTE,
        "A NCCL_ name that no known release reads: of a plugin, of a newer NCCL, or of nobody. It is delivered all the same.",
        "Look the name up where it was copied from.",
    ),
    "name_dead": Reason(
        FAIL,
        "The contract demands a variable that this NCCL has stopped reading, or never read. Outside the contract it is a note.",
        "Leave it out, or take the release that reads it.",
        2,
    ),
    "name_too_new": Reason(
        FAIL,
        "The contract demands a variable that came with a later NCCL than this one. Outside the contract it is a note.",
        "Leave it out, or take a later NCCL.",
        2,
    ),
    "value_misread": Reason(
        FAIL,
        "NCCL reads another value than the text says: it stops at the first character that is no digit (4M is 4 bytes), a "
        "leading 0 means octal (010 is 8), and it does not mention it.",
        "Write the number in plain digits, as the message says.",
        2,
    ),
    "value_ignored": Reason(
        FAIL,
        "NCCL passes over the text in silence, as if the variable were not set: words are compared exactly (NCCL_P2P_LEVEL=sys "
        "is none).",
        "Write the value the message gives.",
        2,
    ),
    "value_refused": Reason(
        FAIL,
        "NCCL cannot read the text and ends when the first communicator is made, after the model has been loaded.",
        "Write the list the message gives.",
        2,
    ),
    "value_unclear": Reason(
        NOTE,
        "NCCL reads the text rightly, and people may not (NCCL_P2P_LEVEL=2 means PXB).",
        "Write the value the message gives.",
    ),
    "conflict": Reason(
        FAIL,
        "Two variables contradict each other, and NCCL lets one of them win without a word.",
        "Unset the one the message names.",
        2,
    ),
    "ll128_forced": Reason(
        FAIL,
        "The protocol list switches LL128 on without NCCL's own check of the hardware. On links that do not keep 128-byte "
        "stores in order, as PCIe, data can be corrupted in silence.",
        "Leave LL128 out of the list; where the links are known to be fit for it, accept it with --accept ll128_forced.",
        2,
    ),
    "no_algorithm": Reason(
        FAIL,
        "The lists of algorithms and protocols leave nothing for some collective: the first such call fails, after the model "
        "has been loaded.",
        "Add Ring, or name the functions a list is for (allreduce:Tree).",
        2,
    ),
    "nccl_unknown": Reason(
        UNKNOWN,
        "The NCCL found is older or newer than every release whose rules are known here: what it makes of a value is a guess.",
        "Update sglang-ext, or take an NCCL it knows.",
    ),
    "conf_missing": Reason(
        NOTE,
        "NCCL_CONF_FILE names a file that is not there: NCCL goes on without it, and without ~/.nccl.conf too.",
        "Correct the path, or unset the variable.",
    ),
    "unqualified": Reason(
        NOTE,
        "The profile was measured with another range of NCCL releases than the one found: values change their meaning between "
        "releases.",
        "Measure the profile against the plain baseline with this NCCL before relying on it.",
    ),
    "plugin_present": Reason(
        NOTE,
        "A plugin is asked for that may override what the variables say.",
        "Unset its variable where the numbers shall be NCCL's own.",
    ),
    "conf_sets": Reason(
        FAIL,
        "A configuration file of NCCL's (NCCL_CONF_FILE, ~/.nccl.conf, /etc/nccl.conf) gives a variable another value than the "
        "contract wants. Outside the contract it is a note.",
        "Take the line out of the file, or set the variable in the contract: the environment wins over files.",
        2,
    ),
    "conf_overridden": Reason(
        NOTE,
        "A configuration file of NCCL's sets a variable that the environment sets too; the environment wins.",
        "Nothing has to be done.",
    ),
    "log_hidden": Reason(
        NOTE,
        "NCCL_DEBUG_SUBSYS leaves ENV out, so the log does not say what NCCL has read.",
        "Add ENV (and INIT, TUNING) to it.",
    ),
    # What a server can be found to be.
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
        "corrupt data.",
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
    # What a command line can be found to be.
    "contract_invalid": Reason(
        FAIL,
        "A profile, --set, --absent, the shell, or a run's contract.json states something no contract can hold, or was "
        "edited.",
        "Correct what the message names.",
        2,
    ),
    "no_contract": Reason(
        FAIL,
        "Neither the command line nor the server's run says what its workers must hold: there is nothing to judge.",
        "Name it with --profile, --set or --absent.",
        2,
    ),
    "several_servers": Reason(
        FAIL, "More than one server could be meant.", "Name one with --pid, --port or --run, or ask for --all.", 2
    ),
    # Why a launch is refused.
    "arguments_fight_contract": Reason(
        FAIL,
        "A server argument needs another value of a variable than the contract demands.",
        "Drop one of the two; the message names both.",
        2,
    ),
    "port_taken": Reason(FAIL, "Somebody listens on the server's port already.", "Stop it, or choose another --port."),
    "switched_off": Reason(FAIL, "SGLANG_EXT=0 is set.", "Unset it, or start plain SGLang."),
    "hook_not_armed": Reason(
        FAIL,
        "A Python started like this one does not read our .pth file or sitecustomize.",
        "Drop -S (and -E/-I in a checkout), or pip install sglang-ext into this environment.",
    ),
    "sglang_missing": Reason(FAIL, "No sglang can be imported.", "pip install sglang-ext brings a supported one."),
    "unsupported_upstream": Reason(
        FAIL, "The installed sglang is a release this sglang-ext has no patches for.", "Install a supported release."
    ),
    "upstream_file_changed": Reason(
        FAIL,
        "A file to be patched is not as released: edited by hand, or by another tool.",
        "Reinstall that sglang release; keep own edits as patches.",
    ),
    "upstream_half_patched": Reason(
        FAIL, "Some target files are patched and others are not.", "Reinstall that sglang release."
    ),
    "local_patch_unknown": Reason(
        FAIL,
        "A name in --without or $SGLANG_EXT_WITHOUT is no local patch or group: a slip would leave nothing out.",
        "Take a name that `sglang-ext patches status` lists.",
        2,
    ),
    "local_patch_misfit": Reason(
        FAIL,
        "A local patch cannot be read, does not fit the installed release, or makes a file that does not compile.",
        "Carry it over to the release, or leave it out with --without NAME.",
    ),
    "local_patch_in_place_only": Reason(
        FAIL,
        "A local patch changes a file that the import hook cannot stand in for: no Python module, or sglang/__init__.py.",
        "Put it in place with `sglang-ext patches apply`, or leave it out with --without NAME.",
    ),
    "in_place_stale": Reason(
        FAIL,
        "The installed sglang was patched in place with another patch set than there is now: sglang-ext was upgraded, or a "
        "local patch was added, changed or left out since.",
        "Run `sglang-ext patches apply` again; it goes from the one to the other.",
    ),
    "tree_interrupted": Reason(
        FAIL,
        "An apply or revert of the installed sglang ended halfway. Its journal says what is left to do.",
        "Run `sglang-ext patches apply`, or revert: both finish it first.",
    ),
    # Why `sglang-ext patches` refuses.
    "tree_busy": Reason(
        FAIL, "Another process is changing the installed sglang.", "Wait for it, then run the command again."
    ),
    "tree_unwritable": Reason(
        FAIL,
        "A file of the installed sglang, or the folder of local patches, cannot be written.",
        "Run it as the owner of the environment, or set SGLANG_EXT_LOCAL_PATCHES to a folder of your own.",
    ),
    "tree_baked": Reason(
        FAIL,
        "The installed sglang is from a wheel that was patched when it was built; that is not changed in place.",
        "Install the stock release, and patch or edit that.",
    ),
    "record_unusable": Reason(
        UNKNOWN,
        "The installed sglang has no RECORD, or several metadata folders: what its files were when installed is not known.",
        "Install it from its wheel with pip or uv.",
    ),
    "adopt_refused": Reason(
        FAIL,
        "An edit cannot become a patch: a file was added or deleted, is no text, or was changed on lines of another patch.",
        "Do as the message says; nothing was changed.",
    ),
    "wheel_missing": Reason(
        FAIL, "A locked wheel of upstream cannot be had.", "Name the file with --from, or its folder with --wheels.", 2
    ),
    "wheel_wrong": Reason(
        FAIL,
        "A wheel is not the one the lock or the installed sglang says it is.",
        "Download it again, or name the one sglang was installed from.",
        2,
    ),
    "patch_set_broken": Reason(FAIL, "Our own patches or lock cannot be read or applied.", "Reinstall sglang-ext."),
    "overlay_unwritable": Reason(
        FAIL, "The patched copies cannot be written.", "Set SGLANG_EXT_CACHE_DIR to a writable folder."
    ),
    "overlay_tampered": Reason(
        FAIL, "A patched copy on disk is not what was written.", "Remove the overlay folder the message names."
    ),
    "overlay_untrusted": Reason(
        FAIL,
        "The overlay folder belongs to somebody else, or others may write to it.",
        "Remove it, or set SGLANG_EXT_CACHE_DIR to a folder of your own.",
    ),
    "run_dir_unusable": Reason(
        FAIL, "The run directory cannot be made private and ours.", "Name another place with --run-dir.", 2
    ),
    "server_ended": Reason(FAIL, "SGLang ended before its workers could be verified.", "See its log above."),
    # Why a bench run gives no number.
    "suite_invalid": Reason(
        FAIL,
        "The suite cannot be read, or says something a suite cannot say.",
        "Correct what the message names; docs/bench.md has every key.",
        2,
    ),
    "receipt_unwritable": Reason(
        FAIL, "The receipt cannot be written where --json says.", "Name a file in a writable folder.", 2
    ),
    "not_verified": Reason(
        FAIL,
        "The verdict before the first run was not PASS, so nothing was measured. Where it was UNKNOWN, the status is 3.",
        "See the verify table: every problem in it names its own fix.",
    ),
    "no_endpoint": Reason(
        UNKNOWN,
        "The verified server could not be asked: no process of it listens where it should, or it does not answer.",
        "Wait until the server says it is ready; run the bench on its host and in its network namespace.",
        3,
    ),
    "verdict_lost": Reason(
        FAIL,
        "The server was verified before the first run and is not after the last one: a worker ended, changed or was replaced.",
        "See the server's log, restart it, and measure again.",
        4,
    ),
    "server_error": Reason(
        FAIL,
        "The server refused a run, or stopped it with an error.",
        "The message has the server's own words; see its log.",
    ),
    "connection_lost": Reason(
        FAIL,
        "The stream of a run broke before its end.",
        "See the server's log; nothing may sit between it and the client.",
    ),
    "run_timeout": Reason(
        FAIL,
        "A run did not end within the suite's timeout_s.",
        "Raise timeout_s, or see why the server is that slow.",
    ),
    "wrong_length": Reason(
        FAIL,
        "A run brought another number of tokens than the suite asks for: runs of different length compare nothing.",
        "Let the server honour ignore_eos, and keep prompt and tokens within its context length.",
    ),
    "usage_missing": Reason(
        FAIL,
        "The server did not say how many tokens came with each chunk; chunks are not tokens, so no rate can be stated.",
        'Take endpoint = "generate", or a server that answers stream_options.continuous_usage_stats.',
    ),
    # Why no wheel is built.
    "wheel_not_locked": Reason(
        FAIL,
        "A wheel whose file name the lock does not have: it may hold anything.",
        "Take upstream's wheel of a supported release, under its own name.",
    ),
    "wheel_changed": Reason(
        FAIL,
        "A wheel has another sha256 than upstream's of that name, or is laid out in a new way.",
        "Download it again, from an index that you trust.",
    ),
    "wheel_other_release": Reason(
        FAIL,
        "The release that --upstream names is another than that of the wheel in --from.",
        "Correct one of the two.",
        2,
    ),
    "wheel_unreadable": Reason(
        FAIL, "The file of --from is none, or cannot be read.", "Name a wheel that can be read.", 2
    ),
    "wheel_not_fetched": Reason(
        UNKNOWN,
        "pip brought no wheel of the release for that Python and machine.",
        "Try `pip download`; give a wheel you have with --from.",
        3,
    ),
    "output_unusable": Reason(
        FAIL,
        "The wheel to be written is there already, or its folder cannot be written to.",
        "Remove it, or name another folder with --out.",
        2,
    ),
    # Why a comparison is none.
    "side_unreadable": Reason(
        FAIL,
        "A side of diff is neither a server, a run directory, a receipt nor a verify report, or it cannot be read.",
        "Name one of the forms in `sglang-ext diff --help`.",
        2,
    ),
}


def severity(code: str) -> str:
    """``fail``, ``unknown`` or ``note``."""
    return TABLE[code].severity
