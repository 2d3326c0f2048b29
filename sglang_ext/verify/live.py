"""Read another process's live C environment (`environ`) out of its memory, on Linux, without its help.

/proc/PID/environ is the block the process was started with: it never shows what the process set or deleted
since, and setproctitle, which every SGLang worker calls, overwrites it. The C variable `environ` is what
getenv, and so NCCL, reads. It is found as the dynamic linker would find it:

1. defined by the executable: a COPY relocation (Debian's /usr/bin/python3) moves the variable there, and
   libc's own copy then stays NULL;
2. defined by libc;
3. defined by any other mapped ELF image (a program started through ``ld.so PROGRAM``).

A static program has no dynamic symbols, so its .symtab is asked. A stripped static program is not read:
scanning memory for something that looks like an environment would be a guess.

Permissions (proc(5), ptrace(2)): maps needs PTRACE_MODE_READ, mem needs PTRACE_MODE_ATTACH. That is the same
user and a dumpable process, or CAP_SYS_PTRACE; Yama's ptrace_scope 1 admits ancestors only.

Two limits: a second libc in the process (dlmopen) makes the answer "unavailable" unless both agree, and
reading waits while the target holds its own memory-map lock, as every reader of /proc/PID/maps does.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from sglang_ext.verify import elf

TYPE_CHECKING = False  # mypy treats this name as true; importing `typing` for it would cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Final, Literal, NoReturn, TypeVar

    _T = TypeVar("_T")
    State = Literal["ok", "denied", "gone", "unavailable"]
    FileKey = tuple[int, int, int, int]  # (st_dev, st_ino, st_size in bytes, st_mtime_ns)

_NAMES: Final = (b"environ", b"__environ", b"_environ")
_MAX_ENTRIES: Final = 64 * 1024
_MAX_TEXT: Final = 8 * 1024 * 1024  # bytes of all strings together
_MAX_READ: Final = 32 * 1024 * 1024  # bytes read from the target per attempt, gaps included
_MAX_MAPS: Final = 64 * 1024 * 1024  # bytes of /proc/PID/maps; the default vm.max_map_count makes ~10 MB
_ADDRESS_END: Final = 1 << 56  # user addresses end below it (x86_64 LA57, aarch64 LVA)
_GAP: Final = 4096  # strings this many bytes apart share one read: copying a page is cheaper than a syscall
_TAIL: Final = 512  # bytes read past the start of a block's last string
_PAUSES: Final = (0.0, 0.001, 0.004)  # seconds before each attempt; a burst of changes ends meanwhile
_MAX_CACHE: Final = 1024
_PF_EXITING: Final = 0x4  # flags of /proc/PID/stat: the kernel's include/linux/sched.h
_PF_KTHREAD: Final = 0x200000

_images: dict[FileKey, elf.Image | str] = {}  # dynamic symbols per file; str: why it is none of ours
_static_symbols: dict[FileKey, tuple[elf.Symbol | None]] = {}  # the same for .symtab


class LiveEnviron:
    """One reading, immutable. A plain class: importing `dataclasses` takes longer than ten readings.

    state:  "ok"; "denied" (no permission); "gone" (no such process, or it has exited); "unavailable"
            (it exists, but this reader cannot tell: `values` is then empty, and says nothing).
    values: name -> value as getenv in the target sees them: of a name that occurs twice the first wins, an
            entry without "=" or with an empty name is left out. UTF-8 with surrogateescape.
    detail: one sentence: which symbol of which file was read, or why nothing was.
    maps:   what /proc/PID/maps said, for whoever looks at the same process next: printing it costs the kernel
            a third of the reading. Empty unless "ok"; no part of what two readings are compared by.
    """

    __slots__ = ("detail", "maps", "state", "values")
    state: State
    values: dict[str, str]
    detail: str
    maps: bytes

    def __init__(self, state: State, values: dict[str, str], detail: str, maps: bytes = b"") -> None:
        object.__setattr__(self, "state", state)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "detail", detail)
        object.__setattr__(self, "maps", maps)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"LiveEnviron is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"LiveEnviron is immutable: cannot delete {name}")

    def __reduce__(self) -> tuple[type[LiveEnviron], tuple[State, dict[str, str], str]]:
        return LiveEnviron, (self.state, self.values, self.detail)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiveEnviron):
            return NotImplemented
        return (self.state, self.values, self.detail) == (other.state, other.values, other.detail)

    __hash__ = None  # type: ignore[assignment]  # `values` is a dict

    def __repr__(self) -> str:
        # Values stay out: a repr lands in logs and tracebacks, and environments hold secrets.
        return f"LiveEnviron(state={self.state!r}, {len(self.values)} values, detail={self.detail!r})"


class _FinalError(Exception):
    """The answer is known and is not "ok"."""

    def __init__(self, state: State, detail: str) -> None:
        super().__init__(detail)
        self.state: State = state
        self.detail = detail


class _RetryError(Exception):
    """What was read does not fit together; the text becomes the detail if every attempt ends so."""


def plan_blocks(pointers: list[int], gap: int = _GAP) -> list[list[int]]:
    """Group sorted distinct addresses into runs whose neighbours are at most `gap` bytes apart."""
    blocks: list[list[int]] = []
    for pointer in pointers:
        if blocks and pointer - blocks[-1][-1] <= gap:
            blocks[-1].append(pointer)
        else:
            blocks.append([pointer])
    return blocks


def parse_entries(entries: list[bytes]) -> dict[str, str]:
    """NAME=VALUE strings in array order to a dict, by getenv's rules (see `LiveEnviron.values`)."""
    values: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if name and equals:
            values.setdefault(name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
    return values


class _Memory:
    """Bounded reads from an open /proc/PID/mem.

    Raises `_RetryError` where nothing is mapped, the process's memory is gone, or the byte budget is spent.
    """

    __slots__ = ("_fd", "_left", "tagged")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._left = _MAX_READ
        self.tagged = False  # aarch64: the top byte of a heap pointer is a tag (TBI, MTE), not address

    def read(self, size: int, address: int) -> bytes:
        """At least one byte and at most `size` from `address`; fewer where mapped memory ends."""
        self._left -= size
        if self._left < 0:
            raise _RetryError(f"reading its environment takes more than {_MAX_READ >> 20} MiB")
        if address >= _ADDRESS_END:
            raise _RetryError(f"{address:#x} is no user address")
        try:
            data = os.pread(self._fd, size, address)
        except OSError as error:
            raise _RetryError(f"address {address:#x} could not be read ({_name(error)})") from None
        if not data:
            raise _RetryError("its memory went away")  # it exited, or exec'ed after the file was opened
        return data

    def exact(self, size: int, address: int) -> bytes:
        """Exactly `size` bytes."""
        data = self.read(size, address)
        while len(data) < size:
            data += self.read(size - len(data), address + len(data))
        return data

    def pointers(self, data: bytes) -> tuple[int, ...]:
        """The whole 64-bit words of `data` as addresses."""
        words: tuple[int, ...] = struct.unpack_from(f"<{len(data) // 8}Q", data)
        return tuple(word & (_ADDRESS_END - 1) for word in words) if self.tagged else words


def _read_array(memory: _Memory, address: int) -> tuple[bytes, tuple[int, ...]]:
    """The raw bytes of the pointer array at `address`, its NULL included, and the pointers before it."""
    data = b""
    size = 2048
    while len(data) <= 8 * _MAX_ENTRIES:
        scanned = len(data) // 8
        data += memory.read(size, address + len(data))
        words = memory.pointers(data)
        if 0 in words[scanned:]:
            end = words.index(0, scanned)
            if end > _MAX_ENTRIES:
                break
            return data[: 8 * end + 8], words[:end]
        size = min(2 * size, 128 * 1024)
    raise _RetryError(f"its environ array has more than {_MAX_ENTRIES} entries, or no end")


def _read_strings(memory: _Memory, pointers: tuple[int, ...]) -> list[bytes]:
    """The strings at `pointers`, in that order, without their NUL."""
    texts: dict[int, bytes] = {}
    total = 0
    entries: dict[int, int] = {}  # address -> how many entries name it
    for pointer in pointers:
        entries[pointer] = entries.get(pointer, 0) + 1
    for block in plan_blocks(sorted(entries)):
        first, last = block[0], block[-1]
        data = memory.read(last - first + _TAIL, first)
        if len(data) <= last - first:
            raise _RetryError(f"address {first + len(data):#x} could not be read")
        size = 4096
        while data.find(b"\0", last - first) < 0:  # the last string goes on after the tail read with it
            data += memory.read(size, first + len(data))
            size = min(2 * size, 1024 * 1024)
        for pointer in block:
            end = data.index(b"\0", pointer - first)
            # Per entry: a corrupt array can name one long string, or its tails, thousands of times.
            total += (end - pointer + first) * entries[pointer]
            if total > _MAX_TEXT:
                raise _RetryError(f"its environment is larger than {_MAX_TEXT >> 20} MiB")
            texts[pointer] = data[pointer - first : end]
    return [texts[pointer] for pointer in pointers]


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, f"errno {error.errno}")


def _read_file(proc: int, name: str, limit: int) -> bytes:
    """A file below /proc/PID; the kernel hands out at most a page per read. Cut off after `limit` bytes."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        chunks: list[bytes] = []
        while limit > 0 and (chunk := os.read(fd, 65536)):
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(fd)


def _locate(proc: int, image: elf.MappedImage, executable: bool) -> tuple[bytes, FileKey] | None:
    """A path below /proc/PID that opens the very file `image` maps, and the file's identity; or None.

    A library is taken by its path in the target's root only if device and inode are those of the mapping:
    it may have been replaced since. map_files needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    """
    first = image.first
    if executable:
        candidates = [(b"exe", True)]
    else:
        span = b"map_files/%x-%x" % (first.start, first.end)
        candidates = [(b"root" + first.path.replace(b"\\012", b"\n"), False), (span, True)]
    for path, certain in candidates:
        try:
            found = os.stat(path, dir_fd=proc, follow_symlinks=certain)
        except OSError:
            continue
        same = certain or (found.st_dev, found.st_ino) == (first.device, first.inode)
        if same and stat.S_ISREG(found.st_mode):
            return path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return None


def _inspect(read: elf.ReadAt) -> elf.Image | str:
    try:
        return elf.inspect_file(read, _NAMES)
    except elf.ElfError as error:
        return str(error)


def _inspect_sections(read: elf.ReadAt) -> tuple[elf.Symbol | None]:
    """In a tuple, so that "has none" (worth remembering) differs from "could not be read"."""
    try:
        return (elf.find_section_symbol(read, elf.SHT_SYMTAB, _NAMES),)
    except elf.ElfError:
        return (None,)


def _from_file(
    proc: int,
    located: tuple[bytes, FileKey] | None,
    cache: dict[FileKey, _T],
    parse: Callable[[elf.ReadAt], _T],
) -> _T | None:
    """What `parse` says of a located file, from `cache` if it was asked before; None: it cannot be read."""
    if located is None:
        return None
    path, key = located
    if key in cache:
        return cache[key]
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=proc)
    except OSError:
        return None  # e.g. an executable without read permission
    try:
        now = os.fstat(fd)
        if (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) != key:
            return None  # replaced between stat and open
        answer = parse(lambda size, offset: os.pread(fd, size, offset) if offset < 1 << 62 else b"")
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(cache) >= _MAX_CACHE:
        cache.clear()
    cache[key] = answer
    return answer


def clear_cache() -> None:
    """Forget the symbols of every file seen so far (for benchmarks and tests)."""
    _images.clear()
    _static_symbols.clear()


def _image(proc: int, memory: _Memory, mapped: elf.MappedImage, executable: bool) -> elf.Image | str:
    """The dynamic symbols of a mapped image, by its file or else by its memory; str: why it has none."""
    known = _from_file(proc, _locate(proc, mapped, executable), _images, _inspect)
    if known is not None:
        return known
    try:
        return elf.inspect_memory(memory.read, mapped.first.start, _NAMES)
    except elf.ElfError as error:
        return str(error)
    except _RetryError as error:
        if executable:
            raise
        return str(error)  # one odd mapping must not hide the other libraries


class _Search:
    """The variables named environ in one process, tier by tier (see the module's docstring)."""

    __slots__ = ("_maps", "_memory", "_proc", "_seen", "found", "unset")

    def __init__(self, proc: int, memory: _Memory, maps: bytes) -> None:
        self._proc, self._memory, self._maps = proc, memory, maps
        self._seen: set[bytes] = set()
        self.found: list[tuple[int, int, str]] = []  # (address of the variable, its value, what it is)
        self.unset = ""  # the first variable that was NULL

    def tiers(self) -> Iterator[None]:
        """Fill `found`, one tier between any two steps.

        Raises:
            _FinalError: the executable is of a kind that is not supported.
        """
        program = os.readlink(b"exe", dir_fd=self._proc).replace(b"\n", b"\\012")  # as maps spells it
        main: list[tuple[elf.MappedImage, elf.Image]] = []
        for mapped in elf.mapped_images(self._maps, program):
            image = _image(self._proc, self._memory, mapped, executable=True)
            if isinstance(image, str):
                raise _FinalError("unavailable", f"Its executable cannot be searched for environ: {image}.")
            self._memory.tagged = image.machine == elf.EM_AARCH64
            main.append((mapped, image))
            self._add(mapped, image, image.symbol)
        self._seen.add(program)
        yield
        libcs = elf.libc_paths(self._maps)
        self._add_files(libcs)
        yield
        if not libcs:
            # Not where libc is mapped: the .symtab of a dynamic program, or of ld.so run as the program,
            # may hold a private variable of that name.
            for mapped, image in main:
                if not image.interpreted:
                    located = _locate(self._proc, mapped, executable=True)
                    answer = _from_file(self._proc, located, _static_symbols, _inspect_sections)
                    self._add(mapped, image, answer[0] if answer else None)
            yield
        self._add_files(elf.file_paths(self._maps))
        yield

    def _add_files(self, paths: list[bytes]) -> None:
        for path in paths:
            if path in self._seen:
                continue
            self._seen.add(path)
            for mapped in elf.mapped_images(self._maps, path):
                if mapped.executable:  # neither data files nor devices
                    image = _image(self._proc, self._memory, mapped, executable=False)
                    if not isinstance(image, str):
                        self._add(mapped, image, image.symbol)

    def _add(self, mapped: elf.MappedImage, image: elf.Image, symbol: elf.Symbol | None) -> None:
        bias = mapped.first.start - image.base
        if symbol is None or (image.fixed and bias) or not mapped.holds(bias + symbol.vaddr):
            return
        slot = bias + symbol.vaddr
        (value,) = self._memory.pointers(self._memory.exact(8, slot))
        what = f"{symbol.name} ({symbol.table}) of {mapped.first.path.decode('utf-8', 'surrogateescape')}"
        if value:
            self.found.append((slot, value, what))
        else:
            self.unset = self.unset or what


def _resolve(proc: int, memory: _Memory, maps: bytes) -> tuple[int, int, str]:
    """(address of environ, its value, what it is).

    Raises:
        _FinalError: there is none, none is set, or several libraries have one and disagree.
    """
    search = _Search(proc, memory, maps)
    for _ in search.tiers():
        if len({value for _, value, _ in search.found}) > 1:
            several = " and ".join(what for _, _, what in search.found)
            raise _FinalError("unavailable", f"It has {several}, which differ: which one getenv uses is unknown.")
        if search.found:
            return search.found[0]
    if search.unset:
        # Not an empty environment: that is an array that holds NULL only.
        detail = f"{search.unset} is NULL: its C library has not started yet, or it called clearenv()."
        raise _FinalError("unavailable", detail)
    raise _FinalError(
        "unavailable",
        "Neither its executable nor a library it has mapped defines environ (a stripped static program,"
        " a program without a C library, or one that has only just been started).",
    )


def _attempt(proc: int) -> LiveEnviron:
    fd = os.open("mem", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        memory = _Memory(fd)
        maps = _read_file(proc, "maps", _MAX_MAPS)
        if not maps:
            raise _FinalError(*(_without_memory(proc) or ("unavailable", "It has no user memory.")))
        slot, address, what = _resolve(proc, memory, maps)
        raw, pointers = _read_array(memory, address)
        entries = _read_strings(memory, pointers)
        # The target may move the array and free strings at any moment. If both are still in place, so were
        # the strings: no C library frees one that the array still names.
        if memory.pointers(memory.exact(8, slot))[0] != address or memory.exact(len(raw), address) != raw:
            raise _RetryError("it changed while it was being read")
        return LiveEnviron("ok", parse_entries(entries), f"Read {what}, {len(entries)} entries.", maps)
    except (ValueError, IndexError):
        raise _RetryError("its memory map could not be parsed") from None
    finally:
        os.close(fd)


def _without_memory(proc: int) -> tuple[State, str] | None:
    """Why a listed process has no memory, by its stat (proc_pid_stat(5)); None: stat gives no reason."""
    try:
        fields = _read_file(proc, "stat", 4096).rpartition(b")")[2].split()
        state, flags = fields[0], int(fields[6])
        threads = len(os.listdir(f"/proc/self/fd/{proc}/task"))
    except (OSError, IndexError, ValueError):
        return "gone", "It exited while it was being read."
    if flags & _PF_KTHREAD:
        return "unavailable", "It is a kernel thread: it has no user memory."
    if state not in b"ZXx" and not flags & _PF_EXITING:
        return None
    if threads > 1:
        return "unavailable", "Its main thread has exited, and other threads still run."
    return "gone", f"It has exited{' and waits to be reaped (a zombie)' if state == b'Z' else ''}."


def _failed(pid: int, proc: int | None, error: OSError) -> tuple[State, str]:
    """The answer to a system call that failed."""
    if proc is not None and error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ESRCH):
        # First, because an exiting process denies its memory even to its own user.
        reason = _without_memory(proc)
        if reason is not None:
            return reason
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            "denied",
            f"Reading the memory of process {pid} is not permitted ({_name(error)}): it takes the same user"
            " and a dumpable process, or CAP_SYS_PTRACE; Yama's ptrace_scope may limit it to ancestors.",
        )
    if proc is not None or error.errno not in (errno.ENOENT, errno.ESRCH):
        return "unavailable", f"Reading process {pid} failed ({_name(error)})."
    if not os.path.exists("/proc/self/maps"):
        return "unavailable", "There is no Linux /proc file system here."
    try:
        os.kill(pid, 0)  # sends nothing; tells a process hidden by the hidepid mount option from none
    except PermissionError:
        return "denied", f"Process {pid} exists, but /proc hides it (hidepid)."
    except OSError:
        return "gone", f"There is no process {pid}."
    return "unavailable", f"Process {pid} exists, but /proc does not show it."


def read_live(pid: int) -> LiveEnviron:
    """Read the environment that getenv sees in process `pid`, now.

    Takes well under 1 ms for a small process; a large one adds what the kernel needs to print its maps.
    Nothing about the target makes it raise: see `LiveEnviron.state`. A target that changes its environment
    during each of three attempts, within some 5 ms, is "unavailable"; so is one whose environment has more
    than 65536 entries or 8 MiB.
    """
    if not 0 < pid < 1 << 31:
        return LiveEnviron("gone", {}, f"{pid} is no process id.")
    proc: int | None = None
    try:
        # Everything below is opened relative to this descriptor: a reused pid cannot be mixed in.
        proc = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        reason = ""
        for pause in _PAUSES:
            if pause:
                time.sleep(pause)
            try:
                return _attempt(proc)
            except _RetryError as error:
                reason = str(error)
        return LiveEnviron(
            "unavailable", {}, f"Its environment could not be read in {len(_PAUSES)} attempts: {reason}."
        )
    except _FinalError as answer:
        return LiveEnviron(answer.state, {}, answer.detail)
    except OSError as error:
        state, detail = _failed(pid, proc, error)
        return LiveEnviron(state, {}, detail)
    finally:
        if proc is not None:
            os.close(proc)
