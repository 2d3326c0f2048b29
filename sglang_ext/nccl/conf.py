"""NCCL's own configuration files: which ones a process reads, what each line defines, and what comes of it.

Source: NCCL 2.18 to 2.30.7 src/misc/param.cc initEnv and setEnvFile. A file's values go into the process's C environment
when NCCL starts: neither os.environ nor /proc/PID/environ shows them, and a variable that is there already is left alone.

The grammar is short: the first ``=`` splits a line, and nothing is trimmed. Blanks around it, quotes, ``export`` all become
part of the name or the value, so that ``NCCL_X = 5`` defines a variable whose name ends in a blank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sglang_ext.nccl.version import NEWEST_KNOWN
from sglang_ext.quick import NamedTuple

SYSTEM_FILE = "/etc/nccl.conf"
USER_FILE = ".nccl.conf"
FILE_VARIABLE = "NCCL_CONF_FILE"
ENVIRONMENT = "environment"  # the source of what no file brought

FILE_VARIABLE_SINCE = (2, 23)
COMMENTS_SINCE = (2, 26, 2)
CR_STRIPPED_SINCE = HOME_VARIABLE_SINCE = (2, 30)
LONGEST = 1023  # characters of a name, of a value, of a path
BUFFER = 4095  # from 2.30 on a line is read in pieces of this length, and each piece is a line of its own
LARGEST_FILE = 1 << 18  # bytes we look at


class Entry(NamedTuple):
    """One definition in a file; ``line`` counts from 1."""

    name: str
    value: str
    line: int


class ConfFile(NamedTuple):
    """A file that could be read, with its definitions in order, the later ones of a name included."""

    path: str
    entries: tuple[Entry, ...]


class ConfFiles(NamedTuple):
    """The files a process reads, in order of precedence. ``unreadable`` are there and closed to us, or larger than we read."""

    files: tuple[ConfFile, ...] = ()
    unreadable: tuple[str, ...] = ()
    looked: bool = False  # True: made by `load`, so that a file which is not here is not there


class Seen(NamedTuple):
    """A value NCCL finds, and where it comes from: ``environment``, or a file's path."""

    value: str
    source: str


def read_file(path: str) -> bytes:
    """The start of a file, as much as we look at; OSError as open gives it."""
    with open(path, "rb") as stream:
        return stream.read(LARGEST_FILE)


def paths(env: Mapping[str, str], version: tuple[int, ...] | None, home: str | None) -> tuple[str, ...]:
    """The files that count, first one first: NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf.

    ``home`` is the home directory of the process's user in the password database; from 2.30 on NCCL takes $HOME instead.
    A relative NCCL_CONF_FILE is relative to where the process runs.
    """
    rules = NEWEST_KNOWN if version is None else version
    named = env.get(FILE_VARIABLE, "") if rules >= FILE_VARIABLE_SINCE else ""
    if rules >= HOME_VARIABLE_SINCE:
        home = env.get("HOME")
    own = named if named else None if home is None else f"{home}/{USER_FILE}"
    return (SYSTEM_FILE,) if own is None else (own[:LONGEST], SYSTEM_FILE)


def parse(data: bytes, version: tuple[int, ...] | None) -> tuple[Entry, ...]:
    """Every definition of a file, as that release reads it. Total: every file has an answer."""
    rules = NEWEST_KNOWN if version is None else version
    entries: list[Entry] = []
    for number, whole in enumerate(data.split(b"\n"), 1):
        for raw in _pieces(whole, rules):
            line = raw.partition(b"\0")[0]  # to C a string ends there
            if rules >= CR_STRIPPED_SINCE and line.endswith(b"\r"):
                line = line[:-1]
            if rules >= COMMENTS_SINCE and line.startswith(b"#"):
                continue
            name, equals, value = line.partition(b"=")
            if equals and name:  # setenv takes no empty name
                entries.append(Entry(_text(name), _text(value), number))
    return tuple(entries)


def _pieces(line: bytes, rules: tuple[int, ...]) -> list[bytes]:
    if rules < CR_STRIPPED_SINCE or len(line) <= BUFFER:
        return [line]
    return [line[start : start + BUFFER] for start in range(0, len(line), BUFFER)]


def _text(raw: bytes) -> str:
    return raw[:LONGEST].decode("utf-8", "surrogateescape")  # as os.environ does


def load(
    env: Mapping[str, str],
    version: tuple[int, ...] | None,
    home: str | None,
    read: Callable[[str], bytes] = read_file,
) -> ConfFiles:
    """The files that count for a process with this environment. ``read`` may look through /proc/PID/root."""
    found: list[ConfFile] = []
    unreadable: list[str] = []
    for path in paths(env, version, home):
        try:
            data = read(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue  # as NCCL: what cannot be opened or holds no line says nothing
        except (OSError, ValueError):
            unreadable.append(path)
            continue
        if len(data) >= LARGEST_FILE:
            unreadable.append(path)
        found.append(ConfFile(path, parse(data, version)))
    return ConfFiles(tuple(found), tuple(unreadable), True)


def merged(env: Mapping[str, str], conf: ConfFiles) -> dict[str, Seen]:
    """Every variable of the process after NCCL has read its files. The environment wins, then the first definition."""
    seen = {name: Seen(value, ENVIRONMENT) for name, value in env.items()}
    for file in conf.files:
        for entry in file.entries:
            seen.setdefault(entry.name, Seen(entry.value, file.path))
    return seen


def effective(
    env: Mapping[str, str],
    version: tuple[int, ...] | None,
    home: str | None,
    read: Callable[[str], bytes] = read_file,
) -> dict[str, Seen]:
    """`load` and `merged` in one."""
    return merged(env, load(env, version, home, read))
