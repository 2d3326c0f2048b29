"""The live reader against the target's own getenv: real interpreters, real C programs, hostile memory.

The C cases exist only where gcc does, the static ones only where gcc finds libc.a: without them they are not
collected. Every child is killed and reaped by the context manager that started it.
"""

from __future__ import annotations

import contextlib
import copy
import glob
import json
import mmap
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sglang_ext.verify import elf, live

ROOT = Path(__file__).resolve().parents[2]
STATES = {"ok", "denied", "gone", "unavailable"}


def _interpreters() -> list[str]:
    """This Python, pyenv's CPythons and the distribution's, each once."""
    versions = glob.glob(str(Path.home() / ".pyenv" / "versions" / "3.1[0-9].*" / "bin" / "python"))
    system = [path for path in (shutil.which("python3", path="/usr/bin"),) if path]
    found: dict[str, str] = {}
    for path in [*sorted(versions), *system, sys.executable]:
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


@contextlib.contextmanager
def child(argv: Sequence[str], env: dict[str, str] | None = None) -> Iterator[tuple[int, str]]:
    """Start `argv`, wait for its first line, and give (pid, line); it ends at the latest with the block."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"{argv[0]} ended before it was ready (status {process.wait(10)})"
        yield process.pid, line
    finally:
        process.kill()
        process.communicate()


# --- Python children ------------------------------------------------------------------------------------

GETENV = r"""
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def getenv(name):
    value = libc.getenv(os.fsencode(name))
    return None if value is None else value.decode("utf-8", "surrogateescape")
def report(names=(), **more):
    names = set(os.environ) | set(names)
    print(json.dumps({**more, "getenv": {name: getenv(name) for name in names}}), flush=True)
    sys.stdin.read()
"""

CHANGES = (
    GETENV
    + r"""
os.environ["MODIFIED"] = "new"
os.environ["SHORTENED"] = "s"
del os.environ["DELETED"]
os.environ["ADDED"] = "a" * 300
os.environ["EMPTY"] = ""
os.environ["EQUALS"] = "a=b=c"
os.environb[b"BYTES"] = b"\xff\xfe\xc3\xa9"
titled = False
try:
    import setproctitle
except ImportError:
    pass
else:
    setproctitle.setproctitle("sglang::scheduler_TP0")
    with open("/proc/self/cmdline") as file:  # without its C part, setproctitle does nothing
        titled = file.read().startswith("sglang::scheduler_TP0")
os.environ["AFTER_TITLE"] = "1"
del os.environ["DELETED_LATE"]
libc.setenv(b"C_ONLY", b"from C", 1)
libc.setenv(b"INHERITED_07", b"over from C", 1)
report(["C_ONLY", "DELETED", "DELETED_LATE"], titled=titled)
"""
)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        **{f"INHERITED_{index:02}": f"value {index}" for index in range(40)},
        "MODIFIED": "old",
        "SHORTENED": "long " * 100,
        "DELETED": "1",
        "DELETED_LATE": "1",
        "PYTHONUTF8": "1",
    }


@pytest.mark.parametrize("python", _interpreters())
def test_equals_the_childs_own_getenv(python: str) -> None:
    with child([python, "-c", CHANGES], _environment()) as (pid, line):
        reading = live.read_live(pid)
        told = json.loads(line)
        expected = {name: value for name, value in told["getenv"].items() if value is not None}
        assert reading.state == "ok", reading.detail
        assert reading.values == expected
        assert reading.values["C_ONLY"] == "from C"
        assert reading.values["BYTES"] == "\udcff\udcfe\xe9"
        assert {"DELETED", "DELETED_LATE"}.isdisjoint(reading.values)
        assert live.read_live(pid) == reading, "from the cache"
        if told["titled"]:
            assert b"INHERITED_39=" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("python", _interpreters())
def test_the_memory_image_tells_the_same_as_the_file(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with child([python, "-c", CHANGES], _environment()) as (pid, _):
        expected = live.read_live(pid)
        monkeypatch.setattr(live, "_locate", lambda *_: None)
        assert live.read_live(pid) == expected


def test_this_very_process() -> None:
    os.environ["SGLANG_EXT_TEST_LIVE"] = "here"
    try:
        assert live.read_live(os.getpid()).values["SGLANG_EXT_TEST_LIVE"] == "here"
    finally:
        del os.environ["SGLANG_EXT_TEST_LIVE"]
    assert "SGLANG_EXT_TEST_LIVE" not in live.read_live(os.getpid()).values


def test_two_mebibytes_are_read_whole() -> None:
    code = GETENV + (
        "for index in range(512): os.environ[f'PART_{index}'] = chr(97 + index % 26) * 2048\n"
        "os.environ['LONG'] = 'l' * (1 << 20)\n"
        "report()\n"
    )
    with child([sys.executable, "-c", code]) as (pid, line):
        reading = live.read_live(pid)
        assert reading.state == "ok", reading.detail
        assert reading.values == json.loads(line)["getenv"]
        assert sum(map(len, reading.values.values())) > 2 << 20


def test_more_than_eight_mebibytes_are_refused() -> None:
    code = GETENV + "os.environ['LONG'] = 'l' * (9 << 20)\nprint(flush=True)\nsys.stdin.read()\n"
    with child([sys.executable, "-c", code]) as (pid, _):
        reading = live.read_live(pid)
        assert (reading.state, reading.values) == ("unavailable", {})
        assert "larger than 8 MiB" in reading.detail


@pytest.mark.parametrize("pause", [0.0, 0.003])
def test_a_process_that_never_stops_changing(pause: float) -> None:
    code = (
        "import os, time\nprint(flush=True)\n"
        "while True:\n"
        "    for index in range(50):\n"
        "        os.environ['FLIP'] = 'ab'[index % 2] * 500\n"
        "        os.environ[f'COMES_AND_GOES_{index}'] = 'x' * index\n"
        "    for index in range(50): del os.environ[f'COMES_AND_GOES_{index}']\n"
        f"    time.sleep({pause}) if {pause} else None\n"
    )
    env = {**os.environ, "FLIP": "a" * 500, "STAYS": "s" * 700, "LAST": "l"}
    with child([sys.executable, "-c", code], env) as (pid, _):
        readings = [live.read_live(pid) for _ in range(60)]
        assert {reading.state for reading in readings} <= {"ok", "unavailable"}
        for reading in readings:
            if reading.state == "ok":
                assert reading.values["FLIP"] in ("a" * 500, "b" * 500)
                assert (reading.values["STAYS"], reading.values["LAST"]) == ("s" * 700, "l")
            else:
                assert reading.values == {}
        if pause:
            assert any(reading.state == "ok" for reading in readings)


# --- processes that cannot be read ----------------------------------------------------------------------


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 1 << 80])
def test_no_process_id(pid: int) -> None:
    assert live.read_live(pid).state == "gone"


def test_exited_and_reaped() -> None:
    with child([sys.executable, "-c", "print()"]) as (pid, _):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        zombie = live.read_live(pid)
    assert (zombie.state, zombie.values) == ("gone", {})
    assert "zombie" in zombie.detail
    reaped = live.read_live(pid)
    assert (reaped.state, reaped.values) == ("gone", {})
    assert str(pid) in reaped.detail


def test_vanishing_at_any_moment() -> None:
    for delay in range(20):
        with child([sys.executable, "-c", "print(flush=True)\nimport sys\nsys.stdin.read()"]) as (pid, _):
            for turn in range(6):
                if turn == 1 + delay % 4:
                    os.kill(pid, signal.SIGKILL)
                assert live.read_live(pid).state in ("ok", "gone", "unavailable")


def test_starting_up() -> None:
    """Read from the moment of exec on: before libc is ready there is no answer, and never a wrong one."""
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-S", "-c", "pass"], env={"ONLY": "1"})
        try:
            while process.poll() is None:
                reading = live.read_live(process.pid)
                assert reading.state in STATES
                if reading.state == "ok":
                    # LC_CTYPE: CPython's own C locale coercion (PEP 538).
                    assert reading.values.items() - {("LC_CTYPE", "C.UTF-8")} <= {("ONLY", "1")}
        finally:
            process.kill()
            process.wait()


def _read_unprivileged(pid: int) -> live.LiveEnviron:
    """`read_live` in a forked child that is not root and has no part in the target."""
    readable, writable = os.pipe()
    reader = os.fork()
    if reader == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(writable, pickle.dumps(live.read_live(pid)))
            status = 0
        finally:
            os._exit(status)
    os.close(writable)
    with open(readable, "rb") as pipe:
        data = pipe.read()
    assert os.waitpid(reader, 0)[1] == 0
    answer = pickle.loads(data)
    assert isinstance(answer, live.LiveEnviron)
    return answer


def test_permission_denied() -> None:
    code = "import ctypes, sys\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nprint(flush=True)\nsys.stdin.read()"
    with child([sys.executable, "-c", code]) as (pid, _):  # 4: PR_SET_DUMPABLE
        reading = _read_unprivileged(pid)
    assert (reading.state, reading.values) == ("denied", {})
    assert "EACCES" in reading.detail or "EPERM" in reading.detail


def test_descriptors_are_closed() -> None:
    with child([sys.executable, "-c", "import sys\nprint(flush=True)\nsys.stdin.read()"]) as (pid, _):
        before = os.listdir("/proc/self/fd")
        live.clear_cache()
        for target in (pid, os.getpid(), 1, 2, 1 << 30):
            live.read_live(target)
        assert os.listdir("/proc/self/fd") == before


# --- C programs -----------------------------------------------------------------------------------------

C_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef NAMES_ENVIRON
extern char **environ;
#endif
static void show(const char *name) {
    const char *value = getenv(name);
    if (value) printf("%s=%s;", name, value);
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "changes";
    setenv("MODIFIED", "new", 1);
    setenv("ADDED", "1", 1);
    unsetenv("DELETED");
    show("KEPT"); show("MODIFIED"); show("ADDED"); show("DELETED");
#ifdef NAMES_ENVIRON
    static char *odd[] = {"A=1", "NO_EQUALS", "=nameless", "A=2", "B=", "B=2", "C=a=b", 0};
    static char *none[] = {0};
    static char *bad[] = {"A=1", (char *)16, 0};
    char **many = calloc(70001, sizeof *many), *large = malloc(1 << 20);
    int index;
    memset(large, 'x', (1 << 20) - 1);
    large[1] = '=';
    large[(1 << 20) - 1] = 0;
    if (!strcmp(mode, "odd")) environ = odd;
    if (!strcmp(mode, "empty")) environ = none;
    if (!strcmp(mode, "null")) environ = 0;
    if (!strcmp(mode, "bad_string")) environ = bad;
    if (!strcmp(mode, "bad_array")) environ = (char **)0xdead0000;
    if (!strcmp(mode, "no_address")) environ = (char **)~0ul;
    for (index = 0; index < 70000; index++) many[index] = "A=1";
    if (!strcmp(mode, "many")) environ = many;
    for (index = 0; index < 60000 && !strcmp(mode, "repeat"); index++) many[index] = large;
    if (!strcmp(mode, "repeat")) { many[60000] = 0; environ = many; }
    for (index = 0; index < 60000 && !strcmp(mode, "tails"); index++) many[index] = large + index;
    if (!strcmp(mode, "tails")) { many[60000] = 0; environ = many; }
#else
    (void)mode; (void)strlen;
#endif
    puts("");
    fflush(stdout);
    return getchar();
}
"""

GCC = shutil.which("gcc")


def _compile(folder: Path, *flags: str) -> str:
    assert GCC is not None
    source, program = folder / "program.c", folder / "program"
    source.write_text(C_SOURCE)
    subprocess.run([GCC, "-O1", *flags, "-o", program, source], check=True)
    return str(program)


C_ENV = {"KEPT": "k", "MODIFIED": "old", "DELETED": "1"}
C_EXPECTED = {"KEPT": "k", "MODIFIED": "new", "ADDED": "1"}
NAMES = "-DNAMES_ENVIRON"


def _assert_changes(argv: Sequence[str], where: str) -> live.LiveEnviron:
    live.clear_cache()
    with child(argv, C_ENV) as (pid, line):
        cold, warm = live.read_live(pid), live.read_live(pid)
    assert line.strip() == "".join(f"{name}={value};" for name, value in C_EXPECTED.items())
    assert cold.state == "ok", cold.detail
    assert cold == warm
    assert cold.values == C_EXPECTED
    assert where in cold.detail
    return cold


if GCC:
    DYNAMIC = [
        pytest.param(["-pie", "-fPIE"], "libc.so", id="pie-libc"),
        pytest.param(["-no-pie", "-fno-pie"], "libc.so", id="fixed-libc"),
        pytest.param(["-pie", "-fPIE", NAMES], "program", id="pie-copy-relocation"),
        pytest.param(["-no-pie", "-fno-pie", NAMES], "program", id="fixed-copy-relocation"),
        pytest.param(["-no-pie", "-fno-pie", NAMES, "-s"], "program", id="stripped"),
        pytest.param(["-pie", "-fPIE", NAMES, "-Wl,--hash-style=sysv"], "program", id="sysv-hash"),
        pytest.param(["-pie", "-fPIE", NAMES, "-Wl,--hash-style=gnu"], "program", id="gnu-hash"),
    ]

    @pytest.mark.parametrize(("flags", "where"), DYNAMIC)
    def test_dynamic_program(flags: list[str], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        argv = [_compile(tmp_path, *flags)]
        by_file = _assert_changes(argv, where)
        monkeypatch.setattr(live, "_locate", lambda *_: None)
        by_memory = _assert_changes(argv, where)
        assert by_memory == by_file

    def _interpreter(program: str) -> str:
        """The dynamic linker that PT_INTERP names."""
        data = Path(program).read_bytes()
        header = elf.Header(data)
        table = data[header.phoff : header.phoff + header.phnum * header.phentsize]
        (found,) = [p for p in elf.parse_program_headers(table) if p[0] == elf.PT_INTERP]
        return data[found[1] : found[1] + found[3]].rstrip(b"\0").decode()

    @pytest.mark.parametrize("flags", [[], [NAMES]], ids=["libc", "copy-relocation"])
    def test_started_through_the_dynamic_linker(flags: list[str], tmp_path: Path) -> None:
        program = _compile(tmp_path, "-pie", "-fPIE", *flags)
        _assert_changes([_interpreter(program), program], "program" if flags else "libc.so")

    def test_deleted_and_replaced_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An upgrade under a running server: program and libc on disk are not those in memory."""
        program = _compile(tmp_path, "-pie", "-fPIE")
        linker = _interpreter(program)
        with child([program], C_ENV) as (pid, _):
            maps = Path(f"/proc/{pid}/maps").read_bytes()
        (libc,) = elf.libc_paths(maps)
        own = tmp_path / "lib"
        own.mkdir()
        shutil.copy(os.fsdecode(libc), own / "libc.so.6")
        locate = live._locate
        with child([linker, "--library-path", str(own), program], C_ENV) as (pid, _):
            os.unlink(program)
            os.unlink(own / "libc.so.6")
            shutil.copy(sys.executable, own / "libc.so.6")
            live.clear_cache()
            privileged = live.read_live(pid)
            # map_files is for CAP_CHECKPOINT_RESTORE only; without it the memory image must do.
            monkeypatch.setattr(live, "_locate", lambda *args: locate(*args) if args[2] else None)
            unprivileged = live.read_live(pid)
        assert privileged.state == unprivileged.state == "ok", privileged.detail
        assert privileged.values.items() >= C_EXPECTED.items()
        assert privileged == unprivileged
        assert "(deleted)" in privileged.detail

    def test_deleted_executable_with_the_variable(tmp_path: Path) -> None:
        program = _compile(tmp_path, "-no-pie", "-fno-pie", NAMES)
        with child([program], C_ENV) as (pid, _):
            os.unlink(program)
            live.clear_cache()
            reading = live.read_live(pid)
        assert reading.values == C_EXPECTED, reading.detail

    def test_a_path_with_a_newline_and_spaces(tmp_path: Path) -> None:
        folder = tmp_path / "a b\nc (deleted)"
        folder.mkdir()
        program = _compile(tmp_path, "-pie", "-fPIE", NAMES)
        moved = str(folder / "program")
        os.rename(program, moved)
        _assert_changes([moved], "program")

    MODES = [
        ("odd", "ok", {"A": "1", "B": "", "C": "a=b"}, "7 entries"),
        ("empty", "ok", {}, "0 entries"),
        ("null", "unavailable", {}, "is NULL"),
        ("bad_string", "unavailable", {}, "0x10 could not be read (EIO)"),
        ("bad_array", "unavailable", {}, "0xdead0000 could not be read (EIO)"),
        ("no_address", "unavailable", {}, "is no user address"),
        ("many", "unavailable", {}, "more than 65536 entries"),
        ("repeat", "unavailable", {}, "larger than 8 MiB"),
        ("tails", "unavailable", {}, "larger than 8 MiB"),
    ]

    @pytest.mark.parametrize(("mode", "state", "values", "detail"), MODES, ids=[mode[0] for mode in MODES])
    def test_odd_arrays(mode: str, state: str, values: dict[str, str], detail: str, tmp_path: Path) -> None:
        with child([_compile(tmp_path, NAMES), mode], C_ENV) as (pid, _):
            reading = live.read_live(pid)
        assert (reading.state, reading.values) == (state, values)
        assert detail in reading.detail

    def test_a_file_mapped_a_second_time_as_data() -> None:
        """Here libc, by a process that reads it with mmap: that mapping holds no variables."""
        libc = elf.libc_paths(Path("/proc/self/maps").read_bytes())[0]
        with open(libc, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:4] == b"\x7fELF"
            reading = live.read_live(os.getpid())
        assert reading.state == "ok", reading.detail
        assert reading.values["PATH"] == os.environ["PATH"]

    LIBC_A = subprocess.run([GCC, "-print-file-name=libc.a"], capture_output=True, text=True, check=True)
    if os.path.isabs(LIBC_A.stdout.strip()):

        @pytest.mark.parametrize("flags", [["-static"], ["-static", NAMES], ["-static-pie", "-fPIE", NAMES]])
        def test_static_program(flags: list[str], tmp_path: Path) -> None:
            _assert_changes([_compile(tmp_path, *flags)], "(.symtab) of")

        @pytest.mark.parametrize("flags", [["-static", "-s"], ["-static-pie", "-fPIE", "-s"]])
        def test_stripped_static_program_is_not_guessed_at(flags: list[str], tmp_path: Path) -> None:
            with child([_compile(tmp_path, *flags)], C_ENV) as (pid, _):
                reading = live.read_live(pid)
            assert (reading.state, reading.values) == ("unavailable", {})
            assert "stripped static program" in reading.detail

    @pytest.mark.parametrize("style", ["sysv", "gnu"])
    def test_elf_files_other_than_this_machines(style: str, tmp_path: Path) -> None:
        """Machine, class and byte order are header fields: another value must be accepted, or named."""
        data = bytearray(Path(_compile(tmp_path, "-pie", "-fPIE", NAMES, f"-Wl,--hash-style={style}")).read_bytes())

        def inspect() -> elf.Image:
            return elf.inspect_file(lambda size, at: bytes(data[at : at + size]), (b"environ",))

        native = inspect()
        assert native.symbol is not None
        assert native.symbol.vaddr
        assert native.interpreted
        for machine in (elf.EM_X86_64, elf.EM_AARCH64):
            struct.pack_into("<H", data, 18, machine)
            other = inspect()
            assert other.symbol is not None
            assert other.symbol.vaddr == native.symbol.vaddr
            assert other.machine == machine
        struct.pack_into("<H", data, 18, 243)  # EM_RISCV
        with pytest.raises(elf.ElfError, match="neither x86_64 nor aarch64"):
            inspect()
        data[4] = 1  # ELFCLASS32
        with pytest.raises(elf.ElfError, match="not 64-bit little-endian"):
            inspect()
        # Scanning the section headers finds what the hash table finds.
        data[4] = 2
        struct.pack_into("<H", data, 18, native.machine)
        scanned = elf.find_section_symbol(
            lambda size, at: bytes(data[at : at + size]), elf.SHT_DYNSYM, (b"nothing", b"environ")
        )
        assert scanned is not None
        assert scanned.vaddr == native.symbol.vaddr

    def test_truncated_and_corrupt_elf_files_end_in_elf_error(tmp_path: Path) -> None:
        whole = Path(_compile(tmp_path, "-pie", "-fPIE", NAMES)).read_bytes()
        names = (b"environ", b"__environ")
        for length in [*range(0, 1024, 7), *range(1024, len(whole), 257)]:
            with contextlib.suppress(elf.ElfError):
                elf.inspect_file(lambda size, at: whole[:length][at : at + size], names)  # noqa: B023
        for at in range(4096):
            for value in (0x00, 0xFF):
                broken = bytearray(whole)
                broken[at] = value
                with contextlib.suppress(elf.ElfError):
                    elf.inspect_file(lambda size, at: bytes(broken[at : at + size]), names)  # noqa: B023


# --- pure parts -----------------------------------------------------------------------------------------


def test_hashes() -> None:
    """Known values: the GNU hash of printf in Oracle's and binutils' documents, DT_HASH by the gABI."""
    assert (elf.gnu_hash(b""), elf.gnu_hash(b"printf")) == (5381, 0x156B2BB8)
    assert (elf.sysv_hash(b""), elf.sysv_hash(b"printf")) == (0, 0x077905A6)


MAPS = b"""\
00400000-0041f000 r--p 00000000 fe:01 11                                 /usr/bin/python3.11
0041f000-006c1000 r-xp 0001f000 fe:01 11                                 /usr/bin/python3.11
00a84000-00c00000 rw-p 005a4000 fe:01 11                                 /usr/bin/python3.11
00c00000-00d00000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000200000 r--s 00000000 fe:01 22                         /usr/lib/libc.so.6
7f0000200000-7f0000226000 r--p 00000000 fe:01 22                         /usr/lib/libc.so.6
7f0000226000-7f000037b000 r-xp 00026000 fe:01 22                         /usr/lib/libc.so.6
7f00003d2000-7f00003d4000 rw-p 001d2000 fe:01 22                         /usr/lib/libc.so.6
7f00003d4000-7f00003e1000 rw-p 00000000 00:00 0
7f0000400000-7f0000401000 r--p 00000000 fe:01 33                         /usr/lib/libcrypto.so.3
7f0000500000-7f0000501000 r--p 00000000 fe:01 44                         /old/libc-2.31.so (deleted)
7f0000600000-7f0000601000 rw-p 00000000 00:05 55                         /memfd:x (deleted)
"""


def test_memory_map() -> None:
    assert elf.libc_paths(MAPS) == [b"/usr/lib/libc.so.6", b"/old/libc-2.31.so (deleted)"]
    assert elf.libc_paths(b"7f00-7f01 r-xp 00000000 fe:01 2 /lib/ld-musl-x86_64.so.1\n") == [
        b"/lib/ld-musl-x86_64.so.1"
    ]
    assert elf.file_paths(MAPS)[0] == b"/usr/bin/python3.11"
    assert len(elf.file_paths(MAPS)) == 5
    (program,) = elf.mapped_images(MAPS, b"/usr/bin/python3.11")
    assert (program.first.start, program.first.inode, program.executable) == (0x400000, 11, True)
    assert program.first.device == os.makedev(0xFE, 1)
    assert program.holds(0xA84280)
    assert program.holds(0xC00008)
    assert not program.holds(0x41F000)
    assert not program.holds(0xBFFFFC)
    data, libc = elf.mapped_images(MAPS, b"/usr/lib/libc.so.6")
    assert libc.holds(0x7F0000200000 + 0x1DB320)
    assert not data.holds(0x7F0000000000 + 0x1DB320)
    assert elf.mapped_images(MAPS, b"/lib/libc.so.6") == []
    assert not elf.mapped_images(b"", b"/x")
    assert not elf.libc_paths(b"")
    assert not elf.file_paths(b"")


def test_blocks() -> None:
    assert live.plan_blocks([]) == []
    assert live.plan_blocks([5]) == [[5]]
    assert live.plan_blocks([1, 11, 22, 32], gap=10) == [[1, 11], [22, 32]]


def test_entries() -> None:
    assert live.parse_entries([b"A=1", b"A=2", b"B", b"=c", b"", b"D=", b"E==", b"\xff=\xfe"]) == {
        "A": "1",
        "D": "",
        "E": "=",
        "\udcff": "\udcfe",
    }


def test_reading_is_a_value() -> None:
    reading = live.LiveEnviron("ok", {"TOKEN": "hidden"}, "Read.")
    assert reading == copy.copy(reading) == pickle.loads(pickle.dumps(reading))
    assert reading != live.LiveEnviron("ok", {}, "Read.")
    assert reading != "ok"
    assert "hidden" not in repr(reading)
    with pytest.raises(AttributeError):
        reading.state = "gone"
    with pytest.raises(AttributeError):
        del reading.values
    with pytest.raises(AttributeError):
        reading.other = 1


def test_import_stays_light() -> None:
    """The command that uses it has 60 ms in all; each of these modules alone takes 3 to 10 of them."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules)\n"
        "import sglang_ext.verify.live\n"
        "heavy = {'dataclasses', 'inspect', 're', 'typing', 'enum', 'ctypes'}\n"
        "print(*sorted(heavy & set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_time_is_bounded_for_a_target_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three attempts, and no more."""
    attempts: list[int] = []

    def torn(proc: int) -> live.LiveEnviron:
        attempts.append(proc)
        raise live._RetryError("it changed while it was being read")

    monkeypatch.setattr(live, "_attempt", torn)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    reading = live.read_live(os.getpid())
    assert (reading.state, len(attempts)) == ("unavailable", 3)
    assert "it changed while it was being read" in reading.detail
