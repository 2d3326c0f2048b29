"""Why a process is closed to us: the order of reasons as a table, and real users, namespaces and mounts."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_ext.run.process import command_line
from sglang_ext.verify import select
from sglang_ext.verify.discover import role_of
from sglang_ext.verify.sight import INITIAL_USERS, Target, Viewer, explain, hidden, hidepid_of, hides, why_not

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
CAPABLE = 1 << 19
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")

US = Viewer(
    uid=1000, gids=frozenset({1000}), capabilities=0, users=INITIAL_USERS, label="", scope=0, hidepid="", proc_gid=0
)
THEM = Target(uids=(1000, 1000, 1000), capabilities=0, users=INITIAL_USERS, label="", owner=1000)
INNER = ["0", "100000", "65536"]


@pytest.mark.parametrize(
    ("viewer", "target", "code", "words"),
    [
        ({}, {"uids": (0, 0, 0), "owner": 0}, "other_user", ("belongs to uid 0", "we are uid 1000", "as root")),
        ({}, {"uids": (1000, 0, 0), "owner": 0}, "other_user", ("uid 0 and uid 1000",)),
        ({"uid": 0}, {}, "other_user", ("uid 1000", "we are uid 0 without CAP_SYS_PTRACE", "--cap-add SYS_PTRACE")),
        ({}, {"owner": 0}, "not_dumpable", ("may not be dumped", "launcher")),
        ({}, {"users": INNER}, "user_namespace", ("another user namespace", "inside its container")),
        ({"capabilities": CAPABLE, "users": INNER}, {}, "user_namespace", ("count for nothing", "on the host as root")),
        ({}, {"capabilities": 2}, "more_capabilities", ("capabilities we lack", "--cap-add SYS_PTRACE")),
        ({"uid": 0}, {"uids": (0, 0, 0), "owner": 0, "capabilities": 2}, "more_capabilities", ("we are root without",)),
        ({"scope": 1}, {}, "ptrace_scope", ("ptrace_scope is 1", "ancestors only", "answer by themselves")),
        ({"scope": 2}, {}, "ptrace_scope", ("ptrace_scope is 2", "CAP_SYS_PTRACE")),
        ({"scope": 3}, {}, "ptrace_scope", ("ptrace_scope is 3", "root included")),
        # Root may do what a scope of 1 or 2 asks for; a scope of 3 stops it too.
        ({"scope": 1, "capabilities": CAPABLE}, {}, "unknown", ()),
        ({"scope": 3, "capabilities": CAPABLE}, {"uids": (0, 0, 0), "owner": 0}, "ptrace_scope", ("root included",)),
        ({"label": "docker-default (enforce)"}, {"label": "unconfined"}, "security_module", ("docker-default",)),
        ({"label": "docker-default (enforce)"}, {"label": "docker-default (enforce)"}, "unknown", ("seccomp",)),
        ({"label": "unconfined"}, {"label": "docker-default (enforce)"}, "unknown", ()),
        # The kernel asks for the user first, and for security modules last.
        ({"scope": 1, "label": "x"}, {"uids": (0, 0, 0), "owner": 0, "capabilities": 2}, "other_user", ()),
        ({}, {"owner": None}, "unknown", ("tells why",)),
    ],
)
def test_explain(viewer: dict[str, object], target: dict[str, object], code: str, words: tuple[str, ...]) -> None:
    found = explain(4711, US._replace(**viewer), THEM._replace(**target), True)  # type: ignore[arg-type]
    assert found.code == code
    for word in words:
        assert word in f"{found.sentence}; {found.remedy}"


def test_explain_without_attach_minds_no_ptrace_scope() -> None:
    assert explain(4711, US._replace(scope=2), THEM, True, attach=False).code == "unknown"


def test_explain_what_proc_does_not_show() -> None:
    assert explain(4711, US, None, False).code == "gone"
    found = explain(4711, US._replace(hidepid="invisible"), None, True)
    assert found.code == "hidden" and found.sentence == "process 4711 is hidden (hidepid=invisible)"
    assert "another pid namespace's /proc" in explain(4711, US, None, True).sentence
    assert hides(US._replace(hidepid="2")).sentence == "processes of other users are hidden (hidepid=2)"


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ("proc /proc proc rw,relatime 0 0\n", ("", 0)),
        ("proc /proc proc rw,relatime,hidepid=2 0 0\n", ("2", 0)),
        ("proc /proc proc rw,gid=26,hidepid=invisible 0 0\n", ("invisible", 26)),
        # The last mount is the one that is seen; a bind mount below it, or elsewhere, is not.
        ("proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n", ("", 0)),
        ("proc /proc proc rw 0 0\nproc /other/proc proc rw,hidepid=2 0 0\n", ("", 0)),
        ("proc /proc proc rw,hidepid=2 0 0\ntmpfs /proc/acpi tmpfs ro 0 0\n", ("2", 0)),
        ("torn", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_hidepid_of(mounts: str, found: tuple[str, int]) -> None:
    assert hidepid_of(mounts) == found


# --- for real ------------------------------------------------------------------------------------------------


def as_nobody(say: Callable[[], str]) -> str:
    """What ``say`` says when another user says it."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        text = "died"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            text = say()
        except BaseException as error:
            text = repr(error)
        finally:
            os.write(sender, text.encode())
            os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with open(receiver, encoding="utf-8") as file:
        return file.read()


def unreadable(pid: int) -> bool:
    """Its memory, that is: newer kernels let CAP_PERFMON read environ (mm_access)."""
    try:
        open(f"/proc/{pid}/mem", "rb").close()
    except OSError:
        return True
    return False


def code_of(pid: int) -> str:
    """The code of what hinders us, after the kernel has really refused."""
    return why_not(pid).code if unreadable(pid) else "readable"


def test_nobody_is_there() -> None:
    assert why_not(2**22 + 1).code == "gone"


@needs_root
def test_another_user() -> None:
    assert as_nobody(lambda: code_of(os.getppid())) == "other_user"


@needs_root
def test_the_same_user_reads() -> None:
    process = subprocess.Popen(["sleep", "60"], user=NOBODY, group=NOBODY, extra_groups=[])
    try:
        assert as_nobody(lambda: code_of(process.pid)) == "readable"
    finally:
        process.kill()
        process.wait()


@needs_root
def test_a_process_that_may_not_be_dumped() -> None:
    child = os.fork()
    if child == 0:  # a user that was changed without a new program stays closed, even to that user
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        ctypes.CDLL(None).pause()
    try:
        while os.stat(f"/proc/{child}").st_uid != NOBODY:
            pass
        assert as_nobody(lambda: code_of(child)) == "not_dumpable"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def refusal(search: Callable[[], object]) -> str:
    try:
        search()
    except select.NoServerError as error:
        return f"{error.code}: {error}"
    return "found"


@needs_root
def test_a_search_by_port_says_why_a_server_is_closed_to_us() -> None:
    code = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen(['sglang::scheduler_TP0', '60'], executable={shutil.which('sleep')!r})\n"
        "print(p.pid, flush=True)\nsys.stdin.read()\np.kill()\n"
    )
    main = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert main.stdout is not None
        worker = int(main.stdout.readline())
        while role_of("".join(command_line(worker)[:1])) != "scheduler":
            pass
        said = as_nobody(lambda: refusal(lambda: select.by_port(1)))
        assert said.startswith("no_server: no SGLang server we can look into listens on port 1; servers found: ")
        assert f"pid {main.pid} (1 processes)" in said
        assert f"we are uid {NOBODY} without CAP_SYS_PTRACE: run this as the server's user or as root" in said
    finally:
        main.communicate()


def asking(pid: int) -> tuple[str, ...]:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from sglang_ext.verify.sight import why_not\n"
        f"try:\n    open('/proc/{pid}/mem', 'rb').close()\n    print('readable')\n"
        f"except OSError:\n    print(why_not({pid}).code)\n"
    )
    return sys.executable, "-I", "-S", "-c", code


def answered(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} is not permitted here: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_root_without_the_capability() -> None:
    """As in a container: root, and still less than the process it looks at."""
    assert answered("setpriv", "--bounding-set=-sys_ptrace", *asking(os.getpid())) == "more_capabilities"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_root_of_another_user_namespace() -> None:
    assert answered("unshare", "--user", "--map-root-user", *asking(os.getpid())) == "user_namespace"


HIDING = f"""
import os, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from sglang_ext.verify import select
from sglang_ext.verify.job import jobs_of
from sglang_ext.verify.sight import hidden, why_not
worker = subprocess.Popen(["sglang::scheduler_TP0", "60"], executable={shutil.which("sleep")!r})
while not open(f"/proc/{{worker.pid}}/cmdline").read().startswith("sglang::"):
    pass
print(hidden(), len(select.only().processes))
sys.stdout.flush()
if os.fork() == 0:
    os.setgid({NOBODY})
    os.setuid({NOBODY})
    for search in (select.only, lambda: select.by_port(1), lambda: select.by_pid(worker.pid)):
        try:
            search()
        except select.NoServerError as error:
            print(error.code, error, sep=": ")
    print(why_not(worker.pid))
    sys.stdout.flush()
    os._exit(0)
os.wait()
worker.kill()
"""


@needs_root
@pytest.mark.parametrize(("option", "shown"), [("1", "noaccess"), ("2", "invisible")])
def test_a_proc_that_hides_processes(option: str, shown: str) -> None:
    """Root sees its server all the same; another user is told that nothing found means nothing."""
    mount = f'mount -t proc -o hidepid={option} proc /proc && exec "$@"'
    text = answered(
        "unshare", "--pid", "--fork", "--mount", "sh", "-c", mount, "-", sys.executable, "-I", "-S", "-c", HIDING
    )
    lines = text.splitlines()
    assert lines[0] == "None 1"
    assert len(lines) == 5
    for line in lines[1:4]:
        assert line.startswith("processes_hidden: processes of other users are hidden (hidepid=")
        assert f"hidepid={shown}" in line or f"hidepid={option}" in line
        assert "as root" in line
    assert "no SGLang server is running" in lines[1] and "port 1" in lines[2] and "there is no process" in lines[3]
    assert "code='hidden'" in lines[4]


def test_nothing_is_hidden_from_whoever_runs_these_tests() -> None:
    with open("/proc/self/mounts", encoding="utf-8") as file:
        hiding, _ = hidepid_of(file.read())
    if os.geteuid() == 0 or not hiding:
        assert hidden() is None
