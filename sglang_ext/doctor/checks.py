"""Every check, once, in the order they are told; and how one is run: whatever breaks in it, the others go on."""

from __future__ import annotations

from typing import NamedTuple

from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import FAIL, NOTE, UNKNOWN, Result

PATCHED = "nothing to mend, as the files of sglang are patched themselves"
LONGEST = 200  # characters of an exception's message


class Check(NamedTuple):
    """``where``: module of this room and function, imported only when it is run: half an installation can be examined too.
    ``decides``: whether its UNKNOWN matters, which makes the exit status 3. ``hook``: whether it fails for want of the import
    hook alone, which a tree that is patched itself does without.
    """

    name: str
    where: str
    decides: bool = True
    hook: bool = False


CHECKS = (
    Check("interpreter.version", "interpreter.check_version"),
    Check("interpreter.flags", "interpreter.check_flags", hook=True),
    Check("interpreter.hook", "interpreter.check_hook", hook=True),
    Check("interpreter.child", "interpreter.check_child"),
    Check("startup.sitecustomize", "startup.check_sitecustomize", hook=True),
    Check("startup.usercustomize", "startup.check_usercustomize"),
    Check("startup.pth", "startup.check_pth"),
    Check("startup.start", "startup.check_start"),
    Check("packages.sglang", "packages.check_sglang"),
    Check("packages.sglang_ext", "packages.check_sglang_ext"),
    Check("packages.shadow", "packages.check_shadow"),
    Check("packages.editable", "packages.check_editable"),
    Check("packages.pins", "packages.check_pins"),
    Check("packages.owners", "packages.check_owners"),
    Check("packages.duplicates", "packages.check_duplicates"),
    Check("upstream.files", "upstream.check_files"),
    Check("upstream.mode", "upstream.check_mode"),
    Check("upstream.local", "upstream.check_local"),
    Check("upstream.overlay", "upstream.check_overlay"),
    Check("upstream.runs", "upstream.check_run_place"),
    Check("nccl.library", "nccl_setup.check_library"),
    Check("nccl.loader", "nccl_setup.check_loader"),
    Check("nccl.config", "nccl_setup.check_config"),
    Check("nccl.variables", "nccl_setup.check_variables"),
    Check("nccl.plugins", "nccl_setup.check_plugins"),
    Check("sight.memory", "sight_check.check_memory"),
    Check("sight.proc", "sight_check.check_proc"),
    Check("sight.switch", "sight_check.check_switch"),
    Check("sight.plugins", "sight_check.check_plugins"),
    Check("sight.sudo", "sight_check.check_sudo", decides=False),
    Check("leftovers.runs", "leftovers.check_runs", decides=False),
    Check("leftovers.orphans", "leftovers.check_orphans", decides=False),
    Check("leftovers.overlays", "leftovers.check_overlays", decides=False),
)


def run(check: Check, here: Here) -> list[Result]:
    """What one check says; UNKNOWN, with the exception's sentence, where it breaks."""
    from importlib import import_module

    module, _, function = check.where.partition(".")
    found: list[Result] = []
    try:
        found.extend(getattr(import_module(f"sglang_ext.doctor.{module}"), function)(here))
    except Exception as error:  # a broken environment is what we are here for: no traceback, and no end of the list
        text = " ".join(str(error).split())[:LONGEST] or "no message"
        message = f"this check could not be made: {type(error).__name__}: {text}"
        found.append(
            Result(UNKNOWN, message, "mend what it names; report it where that is no fault of this environment")
        )
    if check.hook and any(one.state == FAIL for one in found):
        from sglang_ext.doctor.upstream import needs_hook

        if not needs_hook(here):
            found = [
                one if one.state != FAIL else one._replace(state=NOTE, message=f"{one.message}; {PATCHED}")
                for one in found
            ]
    return found or [Result(UNKNOWN, "this check said nothing", "report it")]


def examine(here: Here) -> list[tuple[Check, Result]]:
    """All of them."""
    return [(check, result) for check in CHECKS for result in run(check, here)]
