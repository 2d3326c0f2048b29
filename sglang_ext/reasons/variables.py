"""What a variable can be found to be."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, NOTE, UNKNOWN, Reason

ROWS: dict[str, Reason] = {
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
}
