"""An installed upstream: the `sglang` folder, its metadata, and what RECORD says each file was when it was installed.

RECORD (PyPA, "Recording installed projects") has a row of path, hash and size for each file. We change rows in place
and nothing else in it, so that it is byte for byte what it was once the files are.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.model import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "sglang"


class TreeError(PatchError):
    """The tree cannot be judged or changed. ``code`` is a stable reason code; the message is one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def find_root() -> str:
    """The folder whose `sglang` this Python would import. Raises TreeError."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise TreeError("sglang_missing", "no sglang can be imported here; install one, or name its folder with --root")
    return os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))


def metadata_folders(root: str, *holding: str) -> list[str]:
    """The metadata folders of sglang in ``root`` that hold these files, by name. One without METADATA is what an uninstall
    could not remove: it says nothing of what is installed. Raises OSError."""
    names = [n for n in os.listdir(root) if n.startswith(f"{PACKAGE}-") and n.endswith(".dist-info")]
    return [n for n in names if all(os.path.isfile(os.path.join(root, n, file)) for file in holding)]


class Installed:
    """The text of a RECORD: rows by path, changed without touching any other byte."""

    def __init__(self, data: bytes) -> None:
        self.lines = data.decode().splitlines(keepends=True)
        self.at: dict[str, int] = {}
        self.fields: dict[str, tuple[str, str]] = {}  # path: hash as hex (or nothing), size
        for number, line in enumerate(self.lines):
            path, hashed, size = _fields(line)
            if path:
                self.at[path], self.fields[path] = number, (hashed, size)

    def sha256(self, path: str) -> str | None:
        """What the file was when it was installed; None where no row with a sha256 says it."""
        return self.fields.get(path, ("", ""))[0] or None

    def row(self, path: str) -> str:
        """The row of a file, as it stands."""
        return self.lines[self.at[path]] if path in self.at else ""

    def changed(self, rows: dict[str, str], ours: str) -> bytes:
        """The text with other rows for these paths. Those below the folder ``ours`` are at the end, sorted: the text does
        not tell what was there before."""
        lines = list(self.lines)
        for path, at in self.at.items():
            lines[at] = "" if path.startswith(ours) else rows.get(path, lines[at])
        lines = [line for line in lines if line]
        new = [row for path, row in sorted(rows.items()) if path.startswith(ours)]
        if new and lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        return "".join(lines + new).encode()

    def fresh_row(self, path: str, data: bytes) -> str:
        """The row of a file with these bytes, ended as the others are."""
        import base64
        import hashlib

        value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        end = "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"
        shown = '"' + path.replace('"', '""') + '"' if "," in path or '"' in path else path
        return f"{shown},sha256={value},{len(data)}{end}"


class Tree:
    """The `sglang` in ``root``; ``info`` is the name of its metadata folder. Raises TreeError where there is none."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.first: dict[str, str | None] = {}  # each file that was read: its sha256 when it was read first
        try:
            names, infos = os.listdir(self.root), metadata_folders(self.root, "METADATA")
        except OSError as error:
            raise TreeError(
                "sglang_missing", f"folder {root} cannot be read ({error.strerror}); name another --root"
            ) from None
        if PACKAGE not in names:
            raise TreeError(
                "sglang_missing", f"there is no sglang in {root}; name the folder that holds it with --root"
            )
        if len(infos) != 1:
            raise TreeError(
                "record_unusable",
                f"{root} has {len(infos)} metadata folders of sglang, expected one with a RECORD, as pip and uv write it; "
                "install sglang from its wheel",
            )
        self.info = infos[0]
        self.version = self.info[len(PACKAGE) + 1 : -len(".dist-info")]
        self.record_name = f"{self.info}/RECORD"
        try:
            self.record_data = self.need(self.record_name)
            self.record = Installed(self.record_data)
        except (OSError, ValueError) as error:
            raise TreeError(
                "record_unusable",
                f"{self.path(self.record_name)} cannot be read ({getattr(error, 'strerror', None) or error}); "
                f"run: pip install --force-reinstall --no-deps {PACKAGE}=={self.version}",
            ) from None

    @property
    def release(self) -> str:
        """The upstream release: the version without what a baked wheel of ours adds (`+ext.1`)."""
        base, _, local = self.version.partition("+")
        return base if local.startswith("ext") else self.version

    def path(self, name: str) -> str:
        return os.path.join(self.root, *name.split("/"))

    def need(self, name: str) -> bytes:
        """The bytes of a file. Raises OSError."""
        with open(self.path(name), "rb") as file:
            data = file.read()
        self.first.setdefault(name, _sha256(data))
        return data

    def read(self, name: str) -> bytes | None:
        """The bytes of a file, or None where there is none."""
        try:
            return self.need(name)
        except (FileNotFoundError, NotADirectoryError):
            self.first.setdefault(name, None)
            return None

    def sha256(self, name: str) -> str | None:
        data = self.read(name)
        return None if data is None else _sha256(data)

    def unchanged(self, name: str) -> str | None:
        """The sha256 of a file, still what it was when it was read first. Raises TreeError: somebody saved it meanwhile."""
        found = self.sha256(name)
        if found != self.first[name]:
            raise TreeError(
                "tree_busy",
                f"{self.path(name)} was changed while this ran: read as sha256 {str(self.first[name])[:12]}, found "
                f"{str(found)[:12]}; nothing in the tree was changed, run this again",
            )
        return found

    def edited(self) -> tuple[list[str], list[str], list[str]]:
        """Package files that are not what RECORD says: changed, missing, and there without a row.

        Bytecode is nobody's edit: Python writes it.
        """
        changed, missing = [], []
        for name, (hashed, size) in sorted(self.record.fields.items()):
            if not hashed or not name.startswith(f"{PACKAGE}/"):
                continue
            try:
                same = not size or os.stat(self.path(name)).st_size == int(size)
            except (FileNotFoundError, NotADirectoryError):
                missing.append(name)
                continue
            if not same or self.sha256(name) != hashed:
                changed.append(name)
        return changed, missing, sorted(self._unlisted())

    def _unlisted(self) -> Iterator[str]:
        for where, folders, files in os.walk(os.path.join(self.root, PACKAGE)):
            if "__pycache__" in folders:
                folders.remove("__pycache__")
            below = os.path.relpath(where, self.root).replace(os.sep, "/")
            for name in files:
                path = f"{below}/{name}"
                if path not in self.record.at and not name.endswith((".pyc", ".pyo")):
                    yield path


def recorded(root: str, version: str, name: str) -> str | None:
    """What RECORD says the sha256 of one file is, by a look at its row alone: the import hook has no time for more."""
    import base64

    try:
        with open(os.path.join(root, f"{PACKAGE}-{version}.dist-info", "RECORD"), "rb") as file:
            text = b"\n" + file.read()
    except OSError:
        return None
    _, _, rest = text.partition(f"\n{name},sha256=".encode())
    value = rest.partition(b",")[0]
    try:
        return base64.urlsafe_b64decode(value + b"=" * (-len(value) % 4)).hex() or None
    except ValueError:
        return None


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _fields(line: str) -> tuple[str, str, str]:
    """The fields of a row; only a path in quotes needs the csv module."""
    text = line.rstrip("\r\n")
    if '"' in text:
        import csv

        fields = next(csv.reader([text]))
    else:
        fields = text.split(",")
    if len(fields) != 3 or not fields[1].startswith("sha256="):
        return fields[0] if fields else "", "", ""
    import base64

    value = fields[1].removeprefix("sha256=")
    return fields[0], base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex(), fields[2]
