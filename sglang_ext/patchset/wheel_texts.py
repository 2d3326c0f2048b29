"""The texts of a wheel that name its version: `_version.py`, METADATA and RECORD, rewritten for a local version.

Pure, and line by line: what is not meant stays byte for byte, line ends included (RECORD's are CRLF in the wheels that
auditwheel has seen, LF in the others).
"""

from __future__ import annotations

from sglang_ext.patchset.model import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NOTE = b"# Changed by sglang-ext: this is a patched build, see its METADATA.\n"


class TextError(PatchError):
    """A text is not as its tool writes it."""


def version_file(data: bytes, release: str, local: str) -> bytes:
    """`_version.py`, as setuptools-scm writes it, for release+local."""
    stated = f"__version__ = version = '{release}'".encode()
    lines = _replaced(data.split(b"\n"), stated, f"__version__ = version = '{release}+{local}'".encode())
    start = b"__version_tuple__ = version_tuple = ("
    (at,) = _only([n for n, line in enumerate(lines) if line.startswith(start) and line.endswith(b")")], start)
    # As setuptools-scm does it: the local part is one string at the end.
    lines[at] = lines[at][:-1].removesuffix(b",") + f", '{local}')".encode()
    return NOTE + b"\n".join(lines)


def metadata(data: bytes, release: str, version: str, requirement: str, notice: str) -> bytes:
    """METADATA with the new version, one more requirement, and the notice at the top of its description."""
    head, gap, body = _parts(data)
    end = b"\r\n" if b"\r\n" in gap else b"\n"
    lines = _replaced(head.split(end), b"Version: " + release.encode(), b"Version: " + version.encode())
    if b"Name: sglang" not in lines:
        raise TextError("METADATA has no line `Name: sglang`: it belongs to something else.")
    required = [n for n, line in enumerate(lines) if line.startswith(b"Requires-Dist:")]
    lines.insert(required[0] if required else len(lines), b"Requires-Dist: " + requirement.encode())
    return end.join(lines) + gap + notice.encode().replace(b"\n", end) + (end + body if body else b"")


def record(data: bytes, contents: Mapping[str, bytes], rename: Callable[[str], str]) -> bytes:
    """RECORD with the hash and size of each of `contents`, by its old name, and every name passed to `rename`."""
    lines = data.split(b"\n")
    missing = set(contents)
    for at, line in enumerate(lines):
        text = line.decode()
        name, rest = _path(text)
        new = rename(name)
        if name in contents:
            end = "\r" if text.endswith("\r") else ""
            rest = f",{_digest(contents[name])},{len(contents[name])}{end}"
        elif new == name:
            continue
        missing.discard(name)
        lines[at] = (_quoted(new) + rest).encode()
    if missing:
        raise TextError(f"RECORD does not list {', '.join(sorted(missing))}.")
    return b"\n".join(lines)


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Headers, the empty line with the line end before it, description."""
    for gap in (b"\n\n", b"\r\n\r\n"):
        head, found, body = data.partition(gap)
        if found:
            return head, found, body
    stripped = data.rstrip(b"\r\n")
    return stripped, b"\r\n\r\n" if b"\r\n" in data else b"\n\n", b""


def _replaced(lines: list[bytes], old: bytes, new: bytes) -> list[bytes]:
    (at,) = _only([n for n, line in enumerate(lines) if line == old], old)
    return [*lines[:at], new, *lines[at + 1 :]]


def _only(found: Sequence[int], what: bytes) -> Sequence[int]:
    if len(found) != 1:
        raise TextError(f"Expected one line `{what.decode()}`, found {len(found)}: it was not made as it used to be.")
    return found


def _path(line: str) -> tuple[str, str]:
    """The first field of a line of RECORD, which is CSV: quoted where a comma or quote is in it; and the rest as it stands."""
    if not line.startswith('"'):
        name, comma, rest = line.partition(",")
        return name, comma + rest
    name, at = "", 1
    while (close := line.find('"', at)) >= 0:
        name += line[at:close]
        if line[close + 1 : close + 2] != '"':
            return name, line[close + 1 :]
        name, at = name + '"', close + 2
    raise TextError(f"RECORD has the line `{line}`, whose quotes do not close: a name with a line end is not expected.")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"') else name


def _digest(data: bytes) -> str:
    """As the wheel format has it: unpadded urlsafe base64."""
    import base64
    import hashlib

    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
