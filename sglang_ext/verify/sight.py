"""Why a process cannot be looked into, from what /proc tells about it to anybody; and what to do about it.

The kernel's own order (Linux kernel/ptrace.c `__ptrace_may_access`, fs/proc/base.c `task_dump_owner`, security/commoncap.c,
security/yama/yama_lsm.c): the mount may hide it; then the user, the capability, the namespace; then whether it may be
dumped; then the security modules. `environ` and `maps` take read access, memory takes attach access, and Yama minds only
the second.
"""

from __future__ import annotations

import os

from sglang_ext.quick import NamedTuple
from sglang_ext.run.process import status

SYS_PTRACE = 1 << 19  # linux/capability.h
INITIAL_USERS = ["0", "0", "4294967295"]  # uid_map of the user namespace that is in no other
VISIBLE = ("", "0", "off")
GRANT = "give this container CAP_SYS_PTRACE (--cap-add SYS_PTRACE), or run this on the host as root"
ANSWERS = "start the server with the launcher, whose workers answer by themselves"


class Hindrance(NamedTuple):
    """What stands between us and a process: a code for programs, what is so, and what to do."""

    code: str
    sentence: str
    remedy: str


class Viewer(NamedTuple):
    """Who looks."""

    uid: int  # the one files are opened with
    gids: frozenset[int]
    capabilities: int
    users: list[str]  # the words of uid_map: tells user namespaces apart
    label: str  # of AppArmor or SELinux
    scope: int  # Yama's ptrace_scope; 0 where there is no Yama
    hidepid: str  # as mounted
    proc_gid: int  # the group hidepid does not apply to

    @property
    def may_all(self) -> bool:
        return bool(self.capabilities & SYS_PTRACE)


class Target(NamedTuple):
    """What /proc tells anybody about a process."""

    uids: tuple[int, ...]  # real, effective, saved
    capabilities: int  # permitted
    users: list[str]
    label: str
    owner: int | None  # of its files in /proc: root's, not its user's, once it may not be dumped


def hidepid_of(mounts: str) -> tuple[str, int]:
    """``hidepid`` and ``gid`` of what is mounted on /proc last, by the text of /proc/self/mounts."""
    hidden, group = "", 0
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 3 and words[1:3] == ["/proc", "proc"]:
            options = dict(option.partition("=")[::2] for option in words[3].split(","))
            hidden = options.get("hidepid", "")
            group = int(options["gid"]) if options.get("gid", "").isdigit() else 0
    return hidden, group


def explain(pid: int, viewer: Viewer, target: Target | None, exists: bool, *, attach: bool = True) -> Hindrance:
    """The first thing that keeps ``viewer`` out. Pure; ``target`` None: /proc shows no such process."""
    if target is None:
        gone = Hindrance("gone", f"there is no process {pid}", "look again")
        return hides(viewer, f"process {pid}") if exists else gone
    inside = viewer.users == target.users
    reach = viewer.may_all and (inside or viewer.users == INITIAL_USERS)
    if viewer.may_all and not reach:
        return Hindrance(
            "user_namespace",
            f"process {pid} is in another user namespace than we are, where our capabilities count for nothing",
            "run this on the host as root, or inside its container",
        )
    if not reach and any(uid != viewer.uid for uid in target.uids):
        who = " and ".join(f"uid {uid}" for uid in sorted({*target.uids}))
        return Hindrance(
            "other_user",
            f"process {pid} belongs to {who}, we are uid {viewer.uid} without CAP_SYS_PTRACE",
            GRANT if viewer.uid == 0 else "run this as the server's user or as root",
        )
    if not reach and target.owner is not None and target.owner != target.uids[1]:
        return Hindrance(
            "not_dumpable",
            f"process {pid} may not be dumped (it changed its user or capabilities, or asked for that), so only "
            "CAP_SYS_PTRACE opens it",
            f"run this as root; or {ANSWERS}",
        )
    if not reach and not inside:
        return Hindrance(
            "user_namespace",
            f"process {pid} is in another user namespace than we are",
            "run this on the host as root, or inside its container",
        )
    if not reach and target.capabilities & ~viewer.capabilities:
        what = " and we are root without CAP_SYS_PTRACE" if viewer.uid == 0 else ""
        return Hindrance(
            "more_capabilities",
            f"process {pid} has capabilities we lack{what}",
            GRANT,
        )
    return by_module(pid, viewer, target, attach and not (reach and viewer.scope < 3))


def by_module(pid: int, viewer: Viewer, target: Target, attach: bool) -> Hindrance:
    """What is left when user, capabilities and namespaces are right: the security modules."""
    if attach and viewer.scope == 1:
        return Hindrance(
            "ptrace_scope",
            f"kernel.yama.ptrace_scope is 1: memory opens to ancestors only, and we are none of process {pid}'s",
            f"run this as root, or: sysctl kernel.yama.ptrace_scope=0; or {ANSWERS}",
        )
    if attach and viewer.scope == 2:
        return Hindrance(
            "ptrace_scope",
            "kernel.yama.ptrace_scope is 2: memory opens only to CAP_SYS_PTRACE",
            f"run this as root; or {ANSWERS}",
        )
    if attach and viewer.scope >= 3:
        return Hindrance(
            "ptrace_scope",
            "kernel.yama.ptrace_scope is 3: memory opens to nobody, root included, until the next boot",
            ANSWERS,
        )
    if viewer.label.partition(" ")[0] not in ("", "unconfined", "kernel") and viewer.label != target.label:
        return Hindrance(
            "security_module",
            f"we are confined as {viewer.label}, process {pid} is {target.label or 'not'}: that profile may not look into it",
            "run this on the host, or inside the server's container",
        )
    return Hindrance(
        "unknown",
        f"nothing /proc says of process {pid} tells why it is closed to us",
        f"run this as root on the host (a seccomp filter or a security module may stand between); or {ANSWERS}",
    )


def hides(viewer: Viewer, what: str = "processes of other users") -> Hindrance:
    """What to say of processes that a mount option of /proc keeps from us."""
    verb = "is" if what.startswith("process ") else "are"
    option = f"hidepid={viewer.hidepid}" if viewer.hidepid not in VISIBLE else "another pid namespace's /proc"
    return Hindrance(
        "hidden",
        f"{what} {verb} hidden ({option})",
        "run this as root, as the server's user, or in the group /proc names",
    )


def hidden() -> Hindrance | None:
    """Does /proc hide processes of others from us? Then a search that finds nothing means little."""
    viewer = ourselves()
    if viewer.hidepid in VISIBLE or viewer.may_all or (viewer.proc_gid and viewer.proc_gid in viewer.gids):
        return None
    return hides(viewer)


def why_not(pid: int, *, attach: bool = True) -> Hindrance:
    """Why ``pid`` cannot be looked into; to be asked once it was refused. ``attach``: it was its memory."""
    try:
        os.kill(pid, 0)  # sends nothing: it tells a hidden process from none
        exists = True
    except OSError as error:
        exists = isinstance(error, PermissionError)
    return explain(pid, ourselves(), _target(pid), exists, attach=attach)


def ourselves() -> Viewer:
    """We, as the kernel judges us."""
    lines = status("self")
    hidepid, group = hidepid_of(_text("/proc/self/mounts"))
    scope = _text("/proc/sys/kernel/yama/ptrace_scope").strip()
    return Viewer(
        uid=_numbers(lines, "Uid")[-1],
        gids=frozenset((*_numbers(lines, "Groups"), *_numbers(lines, "Gid"))),
        capabilities=int(lines["CapEff"], 16),
        users=_users("self"),
        label=_label("self"),
        scope=int(scope) if scope.isdigit() else 0,
        hidepid=hidepid,
        proc_gid=group,
    )


def _target(pid: int) -> Target | None:
    lines = status(pid)
    if "Uid" not in lines:
        return None
    try:
        owner = os.stat(f"/proc/{pid}/environ").st_uid
    except OSError:
        owner = None
    return Target(
        uids=_numbers(lines, "Uid")[:3],
        capabilities=int(lines["CapPrm"], 16),
        users=_users(pid),
        label=_label(pid),
        owner=owner,
    )


def _numbers(lines: dict[str, str], name: str) -> tuple[int, ...]:
    return tuple(int(word) for word in lines.get(name, "").split())


def _users(pid: int | str) -> list[str]:
    """How its user namespace maps users: the namespace's own name is closed to whoever may not look into the process."""
    return _text(f"/proc/{pid}/uid_map").split()


def _label(pid: int | str) -> str:
    found = _text(f"/proc/{pid}/attr/apparmor/current") or _text(f"/proc/{pid}/attr/current")
    return found.strip("\0\n ")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
