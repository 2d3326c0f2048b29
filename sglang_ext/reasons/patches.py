"""Why `sglang-ext patches` refuses."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, UNKNOWN, Reason

ROWS: dict[str, Reason] = {
    "tree_busy": Reason(
        FAIL,
        "Another process is changing the installed sglang, or a file of it was saved while the command ran.",
        "Wait for it, then run the command again; nothing in the tree was changed.",
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
        3,
    ),
    "adopt_refused": Reason(
        FAIL,
        "An edit cannot become a patch: a file was added or deleted, is no text, or was changed on lines of another patch; or "
        "the patch can have no such name, or no line in series.",
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
    "not_ended": Reason(
        FAIL,
        "Processes of a launch were killed and are still there: they wait in the kernel (state D), for a driver or a disk.",
        "See dmesg; where they stay, the driver or the host has to be restarted.",
    ),
}
