"""Change files of an installed tree all or none, whatever ends the process, by a write-ahead journal. No git is used.

    sglang-X.dist-info/sglang-ext/new/N          what a file will be, complete and on disk
                                  journal.json   which files, from which bytes to which; written last, in one step

Once the journal is there the change is decided: whoever comes next carries it through (`recover`), file by file with an
atomic rename. Before that nothing has happened, and what lies in `new` is thrown away. A lock on the metadata folder
keeps a second process out; it goes with the process that holds it.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.tree import PACKAGE, Tree, TreeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FOLDER = "sglang-ext"
SCHEMA = "sglang-ext/journal/1"


def step(what: str) -> None:
    """Between any two things that reach the disk; a test ends the process here, at each of them in turn."""


class Lock:
    """Only one process changes a tree at a time."""

    def __init__(self, tree: Tree) -> None:
        import fcntl

        self.tree = tree
        self.handle = os.open(tree.path(tree.info), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.handle)
            raise TreeError(
                "tree_busy", f"another process is changing the sglang in {tree.root}; wait for it, then run this again"
            ) from None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def interrupted(tree: Tree) -> bool:
    """Is a decided change still to be carried through?"""
    return os.path.exists(_journal(tree))


def recover(tree: Tree) -> bool:
    """Carry a decided change through, or throw away one that was not decided. Returns whether there was a decided one.

    Under the lock. The tree's RECORD may be another one afterwards: read the tree again.
    """
    import json
    import shutil

    place = _journal(tree)
    try:
        with open(place, "rb") as file:
            journal = json.load(file)
    except FileNotFoundError:
        _sweep(tree)
        return False
    except ValueError as error:
        raise TreeError("tree_interrupted", f"{place} cannot be read ({error}); {_reinstall(tree)}") from None
    try:
        if _installed_since(tree, journal["changes"]):
            shutil.rmtree(_folder(tree))
            return True
        _carry_through(tree, journal["changes"])
        os.unlink(place)
        step("journal removed")
        _sweep(tree)
    except OSError as error:
        raise _unwritable(tree, error) from None
    return True


def commit(tree: Tree, changes: Mapping[str, bytes | None], first: Callable[[], object] = lambda: None) -> None:
    """Make these files of the tree these bytes (None: no file). Under the lock, after `recover`.

    A file that is not what ``tree`` read any more is refused: somebody's save would be lost. ``first`` is done when all
    that can fail has been, and nothing is decided; where it raises, the tree stays.
    """
    import json

    rows = []
    try:
        for name in (f"{tree.info}/{FOLDER}", *changes):
            _may_write(tree, name)
        os.makedirs(_folder(tree), exist_ok=True)
        for number, (name, data) in enumerate(changes.items()):
            staged = os.path.join(_folder(tree), "new", str(number))
            if data is not None:
                os.makedirs(os.path.dirname(staged), exist_ok=True)
                _write(staged, data, tree.path(name))
                step(f"staged {name}")
            rows.append({"path": name, "old": tree.unchanged(name), "new": _sha256(data), "stage": number})
        text = json.dumps({"schema": SCHEMA, "changes": rows}, indent=1).encode()
        _write(_journal(tree) + ".tmp", text, None)
        step("journal written")
        first()
        for name in changes:
            tree.unchanged(name)
        os.replace(_journal(tree) + ".tmp", _journal(tree))
        _sync(_folder(tree))
    except TreeError:
        _sweep(tree)
        raise
    except OSError as error:
        if not interrupted(tree):
            _sweep(tree)
        raise _unwritable(tree, error) from None
    step("journal in place")
    recover(tree)


def _installed_since(tree: Tree, rows: Sequence[dict[str, object]]) -> bool:
    """Was the release installed anew since, as we advise where nothing else helps? The journal, which no RECORD lists, is
    of a tree that is gone then: RECORD is neither of its two, and every file is as RECORD says."""
    sides = [(row["old"], row["new"]) for row in rows if row["path"] == tree.record_name]
    return bool(sides) and tree.sha256(tree.record_name) not in sides[0] and not any(tree.edited()[:2])


def _carry_through(tree: Tree, rows: Sequence[dict[str, object]]) -> None:
    touched: set[str] = set()
    for row in rows:
        name = str(row["path"])
        path, found = tree.path(name), tree.sha256(name)
        if found != row["new"]:
            if found != row["old"]:
                raise TreeError(
                    "tree_interrupted",
                    f"{path} was changed after an interrupted apply or revert; {_reinstall(tree)}, then run this again",
                )
            if row["new"] is None:
                os.unlink(path)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.replace(os.path.join(_folder(tree), "new", str(row["stage"])), path)
            step(f"changed {name}")
        touched.add(os.path.dirname(path))
        for stale in _bytecode(path):
            os.unlink(stale)
            step(f"dropped {stale}")
    for folder in touched:
        if os.path.isdir(folder):
            _sync(folder)


def _bytecode(path: str) -> Iterator[str]:
    """What Python may have compiled of this file: stale, and not always found out by date and size."""
    folder, name = os.path.split(path)
    cache = os.path.join(folder, "__pycache__")
    if name.endswith(".py") and os.path.isdir(cache):
        for one in sorted(os.listdir(cache)):
            if one.startswith(name[:-2]) and one.endswith(".pyc"):
                yield os.path.join(cache, one)


def _sweep(tree: Tree) -> None:
    """Remove what is of no change any more, and folders of ours that are empty."""
    import shutil

    shutil.rmtree(os.path.join(_folder(tree), "new"), ignore_errors=True)
    step("stage removed")
    try:
        os.unlink(_journal(tree) + ".tmp")
    except OSError:
        pass  # none is left
    for where, _, _ in os.walk(_folder(tree), topdown=False):
        try:
            os.rmdir(where)
        except OSError:
            pass  # in use


def _may_write(tree: Tree, name: str) -> None:
    folder = os.path.dirname(tree.path(name))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "Permission denied", folder)


def _unwritable(tree: Tree, error: OSError) -> TreeError:
    again = "run this again once it can" if interrupted(tree) else "nothing was changed; use a tree of your own"
    return TreeError("tree_unwritable", f"{error.filename or tree.root} cannot be written ({error.strerror}); {again}")


def _reinstall(tree: Tree) -> str:
    return f"run: pip install --force-reinstall --no-deps {PACKAGE}=={tree.version}"


def _write(path: str, data: bytes, like: str | None) -> None:
    """The bytes, on disk, with mode and owner of the file they will stand for."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    mode = 0o644
    if like is not None and os.path.exists(like):
        known = os.stat(like)
        mode = known.st_mode & 0o7777
        if os.geteuid() == 0:
            os.chown(path, known.st_uid, known.st_gid)
    os.chmod(path, mode)


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(data: bytes | None) -> str | None:
    import hashlib

    return None if data is None else hashlib.sha256(data).hexdigest()


def _folder(tree: Tree) -> str:
    return tree.path(f"{tree.info}/{FOLDER}")


def _journal(tree: Tree) -> str:
    return os.path.join(_folder(tree), "journal.json")
