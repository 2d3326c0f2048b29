"""What is inside a worker beside its environment: which libnccl it has mapped, and how that release reads a value."""

from __future__ import annotations

from sglang_ext.contract.names import is_nccl
from sglang_ext.hide import HIDDEN
from sglang_ext.nccl import library
from sglang_ext.nccl.version import version_text
from sglang_ext.quick import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sglang_ext.verify.judge import Same


class Inside:
    """The NCCL of one worker. ``version`` is None where it is not seen, or two copies could be meant."""

    __slots__ = ("loaded", "version")

    def __init__(self, loaded: library.Loaded) -> None:
        self.loaded = loaded
        versions = {found.version for found in loaded.libraries}
        self.version = versions.pop() if len(versions) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """The worker's "nccl" object in a report."""
        return {
            "state": self.loaded.state,
            "detail": self.loaded.detail,
            "libraries": [
                {
                    "path": found.path,
                    "version": version_text(found.version) if found.version else None,
                    "cuda": found.cuda or None,
                    "build_id": found.build_id or None,
                    "size": found.size,
                    "deleted": found.deleted,
                    "detail": found.detail,
                }
                for found in self.loaded.libraries
            ],
            "plugins": [{"kind": kind, "path": path} for kind, path in self.loaded.plugins],
        }


def look_inside(pid: int, maps: bytes = b"") -> Inside:
    """What worker ``pid`` has mapped; ``maps``: its memory map, where it has just been read."""
    return Inside(library.of_process(pid, maps=maps))


def same_to(name: str, version: tuple[int, ...] | None) -> Same:
    """How two values of ``name`` are compared: as that NCCL release reads them, and by their text where none is known."""

    def same(one: str | None, other: str | None) -> bool:
        if one == other:
            return one != HIDDEN  # what is behind it is not known
        if version is None or one is None or other is None or not is_nccl(name) or HIDDEN in (one, other):
            return False
        from sglang_ext.nccl.understand import understand

        # "" is the meaning of every text NCCL passes over: two of those need not be meant alike.
        meaning = understand(name, one, version).value
        return meaning != "" and meaning == understand(name, other, version).value

    return same


def copies(workers: Iterable[tuple[str, int, Inside]]) -> Iterator[tuple[str, str, int | None]]:
    """What is wrong with the copies of libnccl in these (label, pid, inside): (code, message, pid)."""
    seen: dict[tuple[Any, ...], tuple[library.LibraryFile, list[str]]] = {}
    for label, pid, inside in workers:
        found = inside.loaded.libraries
        if len(found) > 1:
            which = " and ".join(_named(one) for one in found)
            yield (
                "nccl_two_copies",
                f"{label} (pid {pid}) has mapped {which}; which of them talks depends on who asks",
                pid,
            )
        for one in found if len(found) == 1 else ():  # which of two copies talks is not known
            identity = (one.version, one.cuda, one.build_id or (one.device, one.inode, one.size))
            seen.setdefault(identity, (one, []))[1].append(label)
    if len(seen) > 1:
        sides = ", ".join(f"{_named(one)} in {', '.join(labels)}" for one, labels in seen.values())
        yield "nccl_copies_differ", f"the ranks have mapped different copies of libnccl: {sides}", None
    for one, labels in seen.values():
        yield from _claimed(one, labels[0])


def _named(one: library.LibraryFile) -> str:
    return f"{one.path} ({version_text(one.version) if one.version else 'of unknown version'})"


def _claimed(one: library.LibraryFile, label: str) -> Iterator[tuple[str, str, int | None]]:
    """What the packages around a mapped file say of it, where that is another thing than the file says."""
    folder, found, _ = one.path.partition("/" + library.WHEEL_PATH)
    if not found or one.deleted:
        return
    for entry in library.installed([folder]):
        if entry.claims and not entry.agreed and one.version is not None:
            said = " and ".join(f"{claim.distribution} {claim.version}" for claim in entry.claims)
            claimed = f"{one.path} is claimed by {said}; the file is what counts"
            yield "nccl_metadata", f"{label} has mapped NCCL {version_text(one.version)}, and {claimed}", None
