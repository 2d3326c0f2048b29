"""The live reader on C programs: however one is linked, started or replaced on disk, and whatever it makes of its environment.

The tests exist only where gcc does, the static ones only where gcc finds libc.a: without them they are not collected.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sglang_ext.verify import elf, live
from tests.unit.live_children import C_ENV, GCC, NAMES, child, compiled

C_EXPECTED = {"KEPT": "k", "MODIFIED": "new", "ADDED": "1"}


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
        argv = [compiled(tmp_path, *flags)]
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
        program = compiled(tmp_path, "-pie", "-fPIE", *flags)
        _assert_changes([_interpreter(program), program], "program" if flags else "libc.so")

    def test_deleted_and_replaced_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An upgrade under a running server: program and libc on disk are not those in memory."""
        program = compiled(tmp_path, "-pie", "-fPIE")
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
        program = compiled(tmp_path, "-no-pie", "-fno-pie", NAMES)
        with child([program], C_ENV) as (pid, _):
            os.unlink(program)
            live.clear_cache()
            reading = live.read_live(pid)
        assert reading.values == C_EXPECTED, reading.detail

    def test_a_path_with_a_newline_and_spaces(tmp_path: Path) -> None:
        folder = tmp_path / "a b\nc (deleted)"
        folder.mkdir()
        program = compiled(tmp_path, "-pie", "-fPIE", NAMES)
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
        with child([compiled(tmp_path, NAMES), mode], C_ENV) as (pid, _):
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
            _assert_changes([compiled(tmp_path, *flags)], "(.symtab) of")

        @pytest.mark.parametrize("flags", [["-static", "-s"], ["-static-pie", "-fPIE", "-s"]])
        def test_stripped_static_program_is_not_guessed_at(flags: list[str], tmp_path: Path) -> None:
            with child([compiled(tmp_path, *flags)], C_ENV) as (pid, _):
                reading = live.read_live(pid)
            assert (reading.state, reading.values) == ("unavailable", {})
            assert "stripped static program" in reading.detail
