"""Which libnccl a process has mapped, and what that file is: asked of the file itself, which is read and never executed.

Package metadata is no evidence: nvidia-nccl-cu12 and nvidia-nccl-cu13 install one and the same path, the last writer wins,
and a library can come from LD_PRELOAD, LD_LIBRARY_PATH or SGLANG_NCCL_SO_PATH. /proc/PID/maps names what is really there.

A mapped file is found again by its path below /proc/PID/root (the process may live in a container) and taken only if it is
the very file: same device and inode, or, where a file system numbers them differently (overlayfs), the same first page in
memory and on disk. One that was deleted or replaced since is read through /proc/PID/map_files (needs CAP_CHECKPOINT_RESTORE),
else its version and build id come from the process's memory (proc(5): same user and dumpable).
"""

from __future__ import annotations

import os
import stat

from sglang_ext.nccl.banner import build_id_of, identify, search
from sglang_ext.nccl.version import parse_version
from sglang_ext.quick import NamedTuple

TYPE_CHECKING = False  # mypy treats this name as true
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WHEEL_PATH = "nvidia/nccl/lib/libnccl.so.2"  # below site-packages
PLUGINS = ("net", "tuner", "profiler", "env", "gin", "rma")

_SEARCHED_IN_MEMORY = 16 * 1024 * 1024  # .text and .rodata come first, in 4 MB
_PAGE = 4096
_MAX_MAPS = 64 * 1024 * 1024
_MAX_CACHE = 256


class Mapping(NamedTuple):
    """A mapped file. ``start`` and ``end`` are the addresses of its first mapping; ``whole`` is whether that is of offset 0."""

    path: str
    device: int
    inode: int
    deleted: bool
    start: int = 0
    end: int = 0
    whole: bool = False


class LibraryFile(NamedTuple):
    """A libnccl. ``version`` is None, and ``detail`` says why, where it could not be read; then ``size`` may be 0 too."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    build_id: str
    version: tuple[int, ...] | None
    cuda: str  # "12.9": what it was built with
    deleted: bool = False
    detail: str = ""


class Loaded(NamedTuple):
    """What a process has mapped. ``state`` is "ok", "denied", "gone" or "unavailable"; only "ok" says anything."""

    state: str
    libraries: tuple[LibraryFile, ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()  # (kind, path): libnccl-net*.so and its like
    detail: str = ""


class Claim(NamedTuple):
    """A distribution whose RECORD lists the library."""

    distribution: str
    version: str


class Installed(NamedTuple):
    """The library below one entry of sys.path; `installed` gives them in the order in which a Python would find them."""

    library: LibraryFile
    claims: tuple[Claim, ...]

    @property
    def agreed(self) -> bool:
        """One distribution owns the file, and the file is the version that distribution says."""
        return len(self.claims) == 1 and parse_version(self.claims[0].version) == self.library.version


def kind_of(path: str) -> str | None:
    """``"library"``, a kind of plugin, or None: by the file's name, as nothing else tells without reading it.

    libnccl.so.2 and, as wheel tools rename it, libnccl-1a2b3c4d.so.2; libnccl-net.so, libnccl-ofi-tuner.so.
    """
    name = path.rpartition("/")[2]
    if not name.startswith("libnccl"):
        return None
    stem, dot, _ = name[len("libnccl") :].partition(".so")
    if not dot:
        return None
    words = stem.split("-")
    for word in words[1:]:
        if word in PLUGINS:
            return word
    if stem == "" or (len(words) == 2 and words[0] == "" and len(words[1]) == 8 and _is_hex(words[1])):
        return "library"
    return "library" if stem.startswith(".") and stem[1:].replace(".", "").isdigit() else None


def _is_hex(text: str) -> bool:
    return all(ch in "0123456789abcdef" for ch in text)


def mapped(maps: str | bytes, also: Sequence[str] = ()) -> list[Mapping]:
    """The files of NCCL's naming in the text of /proc/PID/maps, and those of ``also``, each once, by first address.

    ``also``: full paths that are NCCL by another name, for instance the value of SGLANG_NCCL_SO_PATH with links resolved.
    """
    text = maps.encode("utf-8", "surrogateescape") if isinstance(maps, str) else maps
    found: dict[tuple[bytes, bytes, bytes], Mapping] = {}
    for needle in (b"/libnccl", *(path.encode("utf-8", "surrogateescape") for path in also if path)):
        at = text.find(needle)
        while at >= 0:
            begin = text.rfind(b"\n", 0, at) + 1
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            _take(text[begin:end], also, found)
            at = text.find(needle, end)
    return sorted(found.values(), key=lambda mapping: mapping.start)


def _take(line: bytes, also: Sequence[str], found: dict[tuple[bytes, bytes, bytes], Mapping]) -> None:
    fields = line.split(None, 5)
    if len(fields) < 6:
        return
    key = (fields[3], fields[4], fields[5])
    path = fields[5].replace(b"\\012", b"\n").decode("utf-8", "surrogateescape")
    deleted = path.endswith(" (deleted)")
    path = path.removesuffix(" (deleted)")
    if key in found or (kind_of(path) is None and path not in also):
        return
    try:
        start, _, end = fields[0].partition(b"-")
        major, _, minor = fields[3].partition(b":")
        found[key] = Mapping(
            path, os.makedev(int(major, 16), int(minor, 16)), int(fields[4]), deleted,
            int(start, 16), int(end, 16), int(fields[2], 16) == 0,
        )  # fmt: skip
    except ValueError:
        return


# Per file, by (device, inode, size, mtime): (build id, version, cuda). For this process only.
_known: dict[tuple[int, int, int, int], tuple[str, tuple[int, ...] | None, str]] = {}


def of_process(pid: int, also: Sequence[str] = (), *, maps: bytes = b"") -> Loaded:
    """The libnccl and the NCCL plugins that a process has mapped. Nothing about the process makes it raise.

    ``maps``: what /proc/PID/maps said a moment ago, where somebody has read it.
    """
    try:
        proc = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Loaded("gone", detail=f"There is no process {pid}.")
    try:
        maps = maps or _slurp(proc, "maps")
        libraries, plugins = [], []
        for mapping in mapped(maps, also):
            kind = kind_of(mapping.path)
            if kind in PLUGINS and mapping.path not in also:
                plugins.append((str(kind), mapping.path))
            else:
                libraries.append(_identify(proc, mapping))
        return Loaded("ok", tuple(libraries), tuple(dict.fromkeys(plugins)))
    except PermissionError:
        return Loaded(
            "denied", detail=f"Reading /proc/{pid}/maps is not permitted: it takes the same user, or CAP_SYS_PTRACE."
        )
    except ProcessLookupError:
        return Loaded("gone", detail=f"Process {pid} exited while it was being read.")
    except OSError as error:
        return Loaded("unavailable", detail=f"Reading /proc/{pid}/maps failed: {error.strerror}.")
    finally:
        os.close(proc)


def of_file(path: str) -> LibraryFile:
    """The library in a file.

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _of_descriptor(fd, path, deleted=False)
    finally:
        os.close(fd)


def sha256(library: LibraryFile, pid: int | None = None) -> str | None:
    """The file's sha256, some second per 400 MB; None where it is not to be had, or is no longer that file."""
    candidates = [library.path]
    if pid is not None:
        # A container's own root first; a deleted file only where the kernel lets us at it.
        candidates = [f"/proc/{pid}/root{library.path}"] if not library.deleted else _links(pid, library)
    for path in candidates:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            now = os.fstat(fd)
            if (now.st_size, now.st_mtime_ns) == (library.size, library.mtime_ns):
                return _digest(fd)
        except OSError:
            continue
        finally:
            os.close(fd)
    return None


def _links(pid: int, library: LibraryFile) -> list[str]:
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            maps = stream.read(_MAX_MAPS)
    except OSError:
        return []
    same = [m for m in mapped(maps, (library.path,)) if m.inode == library.inode and m.deleted]
    return [f"/proc/{pid}/map_files/{m.start:x}-{m.end:x}" for m in same]


def _digest(fd: int) -> str:
    import hashlib

    digest, at = hashlib.sha256(), 0
    while chunk := os.pread(fd, 1024 * 1024, at):
        digest.update(chunk)
        at += len(chunk)
    return digest.hexdigest()


def _slurp(proc: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        chunks, left = [], _MAX_MAPS
        while left > 0 and (chunk := os.read(fd, 65536)):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(fd)


def _identify(proc: int, mapping: Mapping) -> LibraryFile:
    """The file behind a mapping: by path, by the kernel's link, or by what is in memory."""
    span = f"map_files/{mapping.start:x}-{mapping.end:x}"
    for name in (span,) if mapping.deleted else ("root" + mapping.path, span):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=proc)
        except OSError:
            continue
        try:
            now = os.fstat(fd)
            same = name == span or (now.st_dev, now.st_ino) == (mapping.device, mapping.inode)
            if stat.S_ISREG(now.st_mode) and (same or _same_page(proc, mapping, fd)):
                return _of_descriptor(fd, mapping.path, mapping.deleted)
        except OSError:
            pass  # an unreadable file is like one that is gone
        finally:
            os.close(fd)
    return _from_memory(proc, mapping)


def _same_page(proc: int, mapping: Mapping, fd: int) -> bool:
    """Whether memory and file begin alike: the first page has the program headers and, in all wheels seen, the build id."""
    page = _memory(proc, mapping, _PAGE)
    return len(page) == _PAGE and page == os.pread(fd, _PAGE, 0)


def _memory(proc: int, mapping: Mapping, size: int) -> bytes:
    if not mapping.whole:
        return b""
    fd = os.open("mem", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.pread(fd, size, mapping.start)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _from_memory(proc: int, mapping: Mapping) -> LibraryFile:
    gone = "its file was deleted or replaced since" if mapping.deleted else "its path leads to another file, or to none"
    try:
        fd = os.open("mem", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError as error:
        detail = f"{gone}, and the process's memory cannot be read ({error.strerror})"
        return LibraryFile(mapping.path, mapping.device, mapping.inode, 0, 0, "", None, "", mapping.deleted, detail)

    def read(size: int, offset: int) -> bytes:
        try:
            return os.pread(fd, size, mapping.start + offset)
        except OSError:
            return b""

    try:
        build_id = build_id_of(read) if mapping.whole else ""
        version, cuda = search(read, 0, _SEARCHED_IN_MEMORY) if mapping.whole else (None, "")
    finally:
        os.close(fd)
    detail = f"{gone}: read from the process's memory" if version else f"{gone}, and its memory has no version banner"
    return LibraryFile(
        mapping.path, mapping.device, mapping.inode, 0, 0, build_id, version, cuda, mapping.deleted, detail
    )


def _of_descriptor(fd: int, path: str, deleted: bool) -> LibraryFile:
    now = os.fstat(fd)
    key = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
    if key not in _known:
        if len(_known) >= _MAX_CACHE:
            _known.clear()
        _known[key] = identify(lambda size, offset: os.pread(fd, size, offset), now.st_size)
    build_id, version, cuda = _known[key]
    detail = "" if version else "the file has no version banner of NCCL"
    return LibraryFile(
        path, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, build_id, version, cuda, deleted, detail
    )


def clear_cache() -> None:
    """Forget every file read so far (for tests and measurements)."""
    _known.clear()


def installed(paths: Sequence[str], thorough: bool = False) -> tuple[Installed, ...]:
    """The libraries of NVIDIA's wheels below ``paths`` (a sys.path), without importing anything.

    torch loads the first of them, unless LD_PRELOAD, LD_LIBRARY_PATH or an already loaded library comes before. Who claims the
    file is asked of the RECORDs of distributions with "nccl" in their name; if ``thorough`` of all, which takes far longer.
    """
    found: list[Installed] = []
    seen: set[str] = set()
    for entry in paths:
        folder = entry or "."
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            library = of_file(os.path.join(folder, WHEEL_PATH))
        except OSError:
            continue
        found.append(Installed(library, tuple(_claims(folder, thorough))))
    return tuple(found)


def _claims(folder: str, thorough: bool) -> Iterator[Claim]:
    for name in sorted(os.listdir(folder)):
        stem = name.removesuffix(".dist-info")
        if stem == name or not (thorough or "nccl" in name.lower()):
            continue
        try:
            with open(os.path.join(folder, name, "RECORD"), "rb") as stream:
                lists_it = any(line.startswith(WHEEL_PATH.encode() + b",") for line in stream)
        except OSError:
            continue
        if lists_it:
            distribution, _, version = stem.rpartition("-")
            yield Claim(distribution.replace("_", "-"), version)
