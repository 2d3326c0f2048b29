"""Processes that stand for a server's: named by their titles, with the environment a fault needs, without SGLang."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.e2e.conftest import Done, run, sets

from .places import AS_NOBODY

GOOD = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
WANT = [*sets(GOOD), "--absent", "NCCL_P2P_DISABLE"]
SLEEP = str(shutil.which("sleep"))
SCRIPT = str(Path(sys.executable).with_name("sglang-ext"))
HEAD = "import ctypes, os, subprocess, sys, time; libc = ctypes.CDLL(None)\n"
WAIT = "\nprint('ready', flush=True); sys.stdin.read()\n"
# As setproctitle does without SPT_NOENV: the strings live on elsewhere, the block they came in is overwritten.
CLOBBER = """
for name, value in list(os.environb.items()):
    libc.setenv(name, value, 1)
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, size = int(fields[47]), int(fields[48]) - int(fields[47])
text = (TITLE * size)[:size]
ctypes.memmove(start, text, size)
"""
NUL, TITLE = CLOBBER.replace("TITLE", 'b"\\0"'), CLOBBER.replace("TITLE", 'b"sglang::scheduler "')
SPACES = CLOBBER.replace("TITLE", 'b" "')
# ... up to an entry that stands where it stood, as late ones do.
HALF = NUL.replace(
    "start, size = int(fields[47]), int(fields[48]) - int(fields[47])",
    "start = int(fields[47])\nsize = ctypes.string_at(start, int(fields[48]) - start).index(b'NCCL_ALGO')",
)
# Titled children under a Python that was started like a server: sys.argv says which, with changes of their environment.
SERVER = f"""
def asleep(pid):  # the title is there before the C library is: then there is no environment to be found yet
    state = open(f"/proc/{{pid}}/stat").read().rpartition(") ")[2][0]
    titled = open(f"/proc/{{pid}}/cmdline").read().startswith("sglang::")
    return titled and state == "S" and "/libc" in open(f"/proc/{{pid}}/maps").read()
for word in sys.argv[1:]:
    if word.startswith("sglang::"):
        title, *changes = word.split(",")
        environment = os.environ | dict(change.split("=") for change in changes)
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        if title.endswith("-later"):
            print("ready", flush=True)
            time.sleep(1.5)
            title = title.removesuffix("-later")
        started = subprocess.Popen([title, "600"], executable={SLEEP!r}, env=environment, **quiet)
        while not asleep(started.pid):
            time.sleep(0.001)
"""
TP2 = ("sglang.launch_server", "--tp", "2")


@contextlib.contextmanager
def process(code: str, *words: str, env: Mapping[str, str], before: tuple[str, ...] = ()) -> Iterator[int]:
    """A Python process that has done ``code`` and said so; everything below it ends with the block."""
    command = [*before, sys.executable, "-I", "-S", "-c", HEAD + code + WAIT, *words]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True, cwd="/"
    )
    try:
        assert started.stdout is not None and started.stdout.readline() == b"ready\n"
        yield started.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, 9)
        started.communicate()


def look(pid: int, *words: str, before: tuple[str, ...] = ()) -> Done:
    """verify-env --pid: `out` is its JSON, `err` the table and whatever it complained of, both of one look."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)  # whoever looks
        report = Path(folder, "report.json")
        done = run(*before, SCRIPT, "verify-env", "--pid", str(pid), "--json", str(report), *words)
        return Done(done.status, report.read_text() if report.exists() else "", done.out + done.err)


T0, T1 = "sglang::scheduler_TP0", "sglang::scheduler_TP1"


def run_directory(folder: Path, owner: int, variables: dict[str, str]) -> Path:
    """A run directory of ``owner``'s, made by the product; this process stands for its launcher."""
    code = (
        "import sys\nfrom sglang_ext.contract.decide import decide\nfrom sglang_ext.delivery.context import new_run\n"
        "new_run(decide(None, sys.argv[2:], (), {}), mode='launcher', policy='strict', path=sys.argv[1])\n"
    )
    path = folder / "run-1a2b3c4d"
    folder.chmod(0o777)
    before = AS_NOBODY if owner else ()
    done = run(*before, sys.executable, "-c", code, str(path), *(f"{n}={v}" for n, v in variables.items()))
    assert done.status == 0, done.err
    return path


# Workers that are Pythons with a scheduler's title, so that they can hold a libnccl: what STANDIN_MAPS names is mapped, the
# one STANDIN_NCCL names is loaded and started (ncclGetUniqueId needs no GPU), and what STANDIN_LATE says is set after that.
HOLDS = """
import mmap
maps = [os.open(path, os.O_RDONLY) for path in os.environ.get("STANDIN_MAPS", "").split(":") if path]
maps = [mmap.mmap(one, 0, access=mmap.ACCESS_READ) for one in maps]
if "STANDIN_NCCL" in os.environ:
    nccl = ctypes.CDLL(os.environ["STANDIN_NCCL"])
    assert nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
os.environ.update(item.split("=", 1) for item in os.environ.get("STANDIN_LATE", "").split())
"""
WORKERS = f"""
workers = []
home = {{"PYTHONHOME": sys.base_prefix}}  # a Python under another name does not find its library by itself
for word in sys.argv[1:]:
    if word.startswith("sglang::"):
        title, *changes = word.split(",")
        environment = os.environ | home | dict(change.split("=", 1) for change in changes)
        command = [title, "-P", "-S", "-c", {HEAD + HOLDS + WAIT!r}]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        workers.append(subprocess.Popen(command, executable=sys.executable, env=environment, **pipes))
assert all(worker.stdout.readline() == b"ready\\n" for worker in workers)
"""


def library(path: Path, version: str = "2.30.7") -> Path:
    """A file with nothing of libnccl but what tells its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + bytes(508) + f"NCCL version {version}+cuda13.0".encode() + bytes(4096))
    return path


def claim(site: Path, distribution: str, version: str) -> None:
    """Metadata of a distribution that claims the library of the wheels below ``site``."""
    info = site / f"{distribution}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"nvidia/nccl/lib/libnccl.so.2,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
