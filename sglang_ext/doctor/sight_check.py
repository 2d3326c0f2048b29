"""What this user can see here, and the switches in this shell that change what we do."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sglang_ext import bootstrap
from sglang_ext.contract.names import is_tuning
from sglang_ext.doctor.distributions import distributions
from sglang_ext.doctor.here import Here
from sglang_ext.doctor.result import FAIL, NOTE, OK, UNKNOWN, WARN, Result, listed
from sglang_ext.verify.sight import GRANT, hidden, ourselves

SCOPES = {  # Documentation/admin-guide/LSM/Yama.rst
    "0": "any process of the same user",
    "1": "descendants only",
    "2": "nobody without CAP_SYS_PTRACE",
    "3": "nobody at all",
}
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
PLUGIN_GROUP = "sglang.srt.plugins"  # sglang 0.5.23 srt/plugins/__init__.py
# A stranger to us: `cat` of a shell that has ended belongs to init. It ends when our end of the pipe is closed.
STRANGER = "exec 3<&0; cat <&3 >/dev/null 2>&1 & echo $!"


def text_of(path: str) -> str | None:
    """A small file's text, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def sees_everybody() -> bool:
    """May this process look into those of other users? By the rule verify-env goes by: root alone is not enough, and has no
    CAP_SYS_PTRACE in most containers."""
    try:
        return ourselves().may_all
    except LookupError:
        return False  # there is no /proc that would say, and nothing can be looked into without


def try_a_stranger() -> tuple[str, str]:
    """Read the memory of a process of this user that is no descendant of ours: (state, detail) of `read_live`."""
    import subprocess
    import time

    from sglang_ext.verify.live import read_live

    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", STRANGER], stdin=reading, capture_output=True, text=True, timeout=10, check=True
        )
        pid = int(done.stdout)
        for _ in range(20):  # between fork and exec it has no environment yet
            found = read_live(pid)
            if found.state in ("ok", "denied"):
                break
            time.sleep(0.01)
        return found.state, found.detail
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "unavailable", f"it could not be tried ({type(error).__name__})"
    finally:
        os.close(reading)
        os.close(writing)


def surroundings() -> list[str]:
    """The reasons a look can be denied for, as they are here."""
    scope = (text_of("/proc/sys/kernel/yama/ptrace_scope") or "").strip()
    yama = (
        f"kernel.yama.ptrace_scope {scope}: {SCOPES.get(scope, 'not known')}"
        if scope
        else "no Yama: ptrace_scope is not there"
    )
    container = any(os.path.exists(mark) for mark in CONTAINER_MARKS) or "container" in os.environ
    return [
        f"uid {os.geteuid()}, {'with' if sees_everybody() else 'without'} CAP_SYS_PTRACE",
        yama,
        "in a container" if container else "no sign of a container",
    ]


def check_memory(here: Here) -> Iterator[Result]:
    """The `live` witness: tried on a real process, then explained."""
    state, detail = try_a_stranger()
    seen = tuple(surroundings())
    everybody = sees_everybody()
    fix = "run as root, with CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE), or with kernel.yama.ptrace_scope 0"
    if state == "ok" and everybody:
        yield Result(
            OK, "the memory of other processes can be read: verify-env sees every server's live values", seen=seen
        )
    elif state == "ok":
        message = f"the memory of processes of uid {os.geteuid()} can be read, that of other users' servers cannot"
        remedy = GRANT if os.geteuid() == 0 else "run verify-env as their user or root"
        yield Result(NOTE, message, f"for those: {remedy}", seen)
    elif state == "denied":
        message = (
            "the memory of other processes cannot be read: a server that is not started by our launcher will be UNKNOWN"
        )
        yield Result(WARN, message, fix, seen)
    else:
        yield Result(
            UNKNOWN, f"whether other processes' memory can be read is not known: {detail.rstrip('.')}", fix, seen
        )


def check_proc(here: Here) -> Iterator[Result]:
    """/proc: there, and without hidepid."""
    if text_of("/proc/self/mounts") is None:
        yield Result(FAIL, "there is no Linux /proc here: no server can be found or looked into", "mount proc on /proc")
        return
    hindrance = hidden()
    if hindrance is None:
        yield Result(OK, "/proc shows this user every process")
    else:
        message = f"{hindrance.sentence}, so their servers do not show"
        yield Result(WARN, message, GRANT if os.geteuid() == 0 else hindrance.remedy)


def check_switch(here: Here) -> Iterator[Result]:
    """SGLANG_EXT, and what a launch leaves in the environment of its processes."""
    value = here.environ.get(bootstrap.SWITCH, "")
    if value == "0":
        yield Result(
            FAIL,
            "SGLANG_EXT=0 switches the hook off: everything runs stock, and the launcher refuses",
            "unset SGLANG_EXT",
        )
    elif value == "require":
        yield Result(OK, "SGLANG_EXT=require: an import of sglang that cannot be patched is an error")
    elif value:
        yield Result(WARN, "SGLANG_EXT is neither 0 nor require and counts as not set", "correct it, or unset it")
    else:
        yield Result(OK, "SGLANG_EXT is not set: the hook is on")
    left = [name for name in ("SGLANG_EXT_RUN_DIR", "SGLANG_EXT_RUN_ID") if name in here.environ]
    if left:
        message = f"{' and '.join(left)} of some run are set in this shell, as only a server's own processes have them"
        yield Result(WARN, message, f"run: unset {' '.join(left)}")


def check_plugins(here: Here) -> Iterator[Result]:
    """SGLANG_PLUGINS restricts upstream's own plugins; those it does not name are skipped without an error."""
    value = here.environ.get("SGLANG_PLUGINS", "")
    wanted = [name.strip() for name in value.split(",") if name.strip()]
    if not wanted:
        yield Result(OK, "SGLANG_PLUGINS is not set: upstream loads every installed plugin")
        return
    known = plugins(here)
    missing = [name for name in wanted if name not in known]
    skipped = [name for name in known if name not in wanted]
    shown = value if is_tuning("SGLANG_PLUGINS") else "set"
    if missing:
        message = f"SGLANG_PLUGINS is {shown}, and no installed plugin is called {listed(missing)}: upstream skips that silently"
        yield Result(WARN, message, f"correct the name; installed: {listed(known) if known else 'none'}")
    else:
        rest = f"{listed(skipped)} will not be loaded; " if skipped else ""
        yield Result(NOTE, f"SGLANG_PLUGINS is {shown}: {rest}our hook is no plugin and is not affected")


def plugins(here: Here) -> list[str]:
    """Names of upstream's plugins in the entry points of what is installed."""
    found = []
    for one in distributions(here.path):
        group = ""
        for line in one.read("entry_points.txt").decode("utf-8", "replace").splitlines():
            if line.startswith("["):
                group = line.strip().strip("[]")
            elif group == PLUGIN_GROUP and "=" in line:
                found.append(line.partition("=")[0].strip())
    return sorted(set(found))


def check_sudo(here: Here) -> Iterator[Result]:
    """sudo's env_reset drops what the invoking shell had set (sudoers(5))."""
    if "SUDO_USER" not in here.environ:
        yield Result(OK, "this is no sudo shell")
        return
    kept = sorted(name for name in here.environ if name.startswith("NCCL_"))
    if kept:
        yield Result(
            NOTE, f"this is a sudo shell, which drops variables unless told otherwise; {listed(kept)} came through"
        )
    else:
        message = "this is a sudo shell without any NCCL_* variable: env_reset drops those of the invoking shell"
        fix = "sudo --preserve-env=NCCL_PROTO,NCCL_ALGO,... names them; or give them with --profile or --set"
        yield Result(WARN, message, fix)
