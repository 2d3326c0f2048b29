"""What NCCL makes of names and values, by its own release's rules; accepted with --accept CODE where it is meant so."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, NOTE, UNKNOWN, Reason

ROWS: dict[str, Reason] = {
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
}
