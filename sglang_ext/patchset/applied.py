"""What `patches apply` left in a tree, as the tree says it: `sglang-X.dist-info/sglang-ext/applied.json`.

    {"schema": "sglang-ext/in-place/1", "release": "0.5.23", "digest": "<patch set and local patches>",
     "patches": [names], "without": [names left out],
     "files": {"sglang/...": {"pristine": sha256, "patched": sha256, "row": "<its row in RECORD before>"}}}

The pristine bytes lie beside it in `pristine/SHA256`, once for files that are the same. RECORD lists all of it, so `pip
uninstall` takes it along. The import hook asks for it in any case: a file that the lock does not know may be patched.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.record import Record
from sglang_ext.patchset.tree import metadata_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "sglang-ext"
SCHEMA = "sglang-ext/in-place/1"


class AppliedFile(Record):
    """One file: its two sides by sha256, and its row in RECORD as it was."""

    __slots__ = ("pristine", "patched", "row")
    pristine: str
    patched: str
    row: str

    def __init__(self, pristine: str, patched: str, row: str) -> None:
        self._set(pristine, patched, row)


class Applied:
    """A tree that was patched in place: by which patch set, and which files."""

    def __init__(
        self,
        release: str,
        digest: str,
        patches: tuple[str, ...],
        without: tuple[str, ...],
        files: Mapping[str, AppliedFile],
    ) -> None:
        self.release, self.digest, self.patches, self.without = release, digest, patches, without
        self.files = dict(files)

    def text(self) -> bytes:
        import json

        files = {
            name: {"pristine": one.pristine, "patched": one.patched, "row": one.row}
            for name, one in sorted(self.files.items())
        }
        data = {"schema": SCHEMA, "release": self.release, "digest": self.digest, "patches": list(self.patches)}
        return (json.dumps({**data, "without": list(self.without), "files": files}, indent=1) + "\n").encode()


def place(info: str) -> str:
    """Where it lies below the root, by the name of the metadata folder."""
    return f"{info}/{FOLDER}/applied.json"


def backup(info: str, pristine: str) -> str:
    """Where the released bytes of a file lie below the root."""
    return f"{info}/{FOLDER}/pristine/{pristine}"


def parse(data: bytes, where: str) -> Applied:
    """The record in these bytes. Raises PatchError."""
    import json

    try:
        found = json.loads(data)
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r}")
        files = {name: AppliedFile(one["pristine"], one["patched"], one["row"]) for name, one in found["files"].items()}
        return Applied(found["release"], found["digest"], tuple(found["patches"]), tuple(found["without"]), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PatchError(
            f"{where} is not what patches apply wrote ({error}): install sglang again with --force-reinstall."
        ) from None


def of_root(root: str) -> Applied | None:
    """What the tree in ``root`` says of itself. Raises PatchError."""
    for folder in folders(root):
        path = os.path.join(folder, "applied.json")
        try:
            with open(path, "rb") as file:
                return parse(file.read(), path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise PatchError(f"{path} cannot be read ({error.strerror}): open it for this user.") from None
    return None


def folders(root: str) -> list[str]:
    """Where journal and record of the tree in ``root`` are, while there are any."""
    try:
        return [os.path.join(root, name, FOLDER) for name in metadata_folders(root, "METADATA")]
    except OSError:
        return []


def cut_off(root: str) -> bool:
    """Has an apply or revert of the tree in ``root`` ended halfway? Its journal is there then."""
    return any(os.path.exists(os.path.join(folder, "journal.json")) for folder in folders(root))
