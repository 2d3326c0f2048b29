"""Why a launch is refused."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, NOTE, Reason

ROWS: dict[str, Reason] = {
    "arguments_fight_contract": Reason(
        FAIL,
        "A server argument needs another value of a variable than the contract demands.",
        "Drop one of the two; the message names both.",
        2,
    ),
    "port_invalid": Reason(
        FAIL, "The server's --port is no TCP port.", "Give a number from 1 to 65535, in ASCII digits.", 2
    ),
    "port_taken": Reason(FAIL, "Somebody listens on the server's port already.", "Stop it, or choose another --port."),
    "switched_off": Reason(FAIL, "SGLANG_EXT=0 is set.", "Unset it, or start plain SGLang."),
    "hook_not_armed": Reason(
        FAIL,
        "A Python started like this one does not read our .pth file or sitecustomize.",
        "Drop -S (and -E/-I in a checkout), or pip install sglang-ext into this environment. Files that are patched themselves "
        "(`sglang-ext patches apply`, a baked wheel) need no hook.",
    ),
    "sglang_missing": Reason(FAIL, "No sglang can be imported.", "pip install sglang-ext brings a supported one."),
    "unsupported_upstream": Reason(
        FAIL, "The installed sglang is a release this sglang-ext has no patches for.", "Install a supported release."
    ),
    "upstream_shadowed": Reason(
        FAIL,
        "The server would import a copy of sglang that is not the installed one: from its working folder, or from PYTHONPATH.",
        "Start in another folder, or take that one off PYTHONPATH.",
    ),
    "local_patches_hidden": Reason(
        FAIL,
        "Another copy of sglang-ext than the installed one runs, as a checkout does in its own folder, and it does not have the "
        "local patches that were adopted with the installed one: the server would run without them.",
        "Start in another folder, or name the folder of local patches in $SGLANG_EXT_LOCAL_PATCHES.",
    ),
    "upstream_two_owners": Reason(
        FAIL,
        "Two distributions have installed the sglang package over each other, or one of them twice.",
        "Uninstall all of them, then install the one that is wanted.",
    ),
    "upstream_replaced": Reason(
        NOTE,
        "At the last launch sglang was baked or patched in place; now it is stock, which the hook patches on import: an "
        "install came over it.",
        "Install the baked wheel, or run `sglang-ext patches apply`, again. Said once; SGLANG_EXT_MODE makes it a refusal.",
    ),
    "mode_differs": Reason(
        FAIL,
        "SGLANG_EXT_MODE demands that the patch set get in one way (overlay, baked, in_place), and it gets in another way.",
        "Install or patch sglang that way again, or unset the variable.",
    ),
    "upstream_file_changed": Reason(
        FAIL,
        "A file to be patched is not as released: edited by hand, or by another tool.",
        "Keep own edits as patches (`sglang-ext patches adopt`), or reinstall that sglang release.",
    ),
    "upstream_half_patched": Reason(
        FAIL,
        "Some target files are patched and others are not.",
        "Patched in place: `sglang-ext patches apply` or `revert` makes it whole. Else reinstall that sglang release.",
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
}
