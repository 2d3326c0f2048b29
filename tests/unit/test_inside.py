"""How values are compared by what NCCL understands, and what two copies of libnccl are told from."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_ext.hide import HIDDEN
from sglang_ext.nccl.library import LibraryFile, Loaded
from sglang_ext.verify.inside import Inside, copies, same_to

NEW, OLD = (2, 30, 7), (2, 21, 5)


@pytest.mark.parametrize(("name", "one", "other", "version", "same"), [
    ("NCCL_ALGO", "Ring", "ring", NEW, True),
    ("NCCL_PROTO", "LL,Simple", "simple,ll", NEW, True),
    ("NCCL_PROTO", "LL", "Simple", NEW, False),
    ("NCCL_P2P_LEVEL", "SYS", "4", NEW, True),
    ("NCCL_P2P_LEVEL", "SYS", "sys", NEW, False),
    ("NCCL_P2P_LEVEL", "foo", "bar", NEW, False),  # both are passed over: that is no agreement
    ("NCCL_BUFFSIZE", "4", "4M", NEW, True),  # NCCL reads 4 from both; that 4M means something else, lint says
    ("NCCL_BUFFSIZE", "8", "010", NEW, True),
    ("NCCL_BUFFSIZE", "4", "5", NEW, False),
    ("NCCL_P2P_LEVEL", "SYS", "4", None, False),  # whose rules?
    ("NCCL_P2P_LEVEL", "SYS", None, NEW, False),
    ("NCCL_P2P_LEVEL", "", None, NEW, False),
    ("NCCL_UNKNOWN", "a", "A", NEW, False),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "8", "08", NEW, False),  # not NCCL's to read
    ("NCCL_BUFFSIZE", "0", HIDDEN, NEW, False),  # what is not shown may be anything
    ("NCCL_CTA_POLICY", "0", "ZERO", OLD, False),  # a variable this release does not read
])  # fmt: skip
def test_same(name: str, one: str | None, other: str | None, version: tuple[int, ...] | None, same: bool) -> None:
    assert same_to(name, version)(one, other) is same
    assert same_to(name, version)(other, one) is same
    assert same_to(name, version)(one, one) and same_to(name, version)(None, None)
    assert not same_to(name, version)(HIDDEN, HIDDEN)


def file(path: str, version: tuple[int, ...] = NEW, build_id: str = "ab", inode: int = 1) -> LibraryFile:
    return LibraryFile(path, 1, inode, 100, 1, build_id, version, "13.0")


def inside(*files: LibraryFile) -> Inside:
    return Inside(Loaded("ok", files))


def test_one_copy_everywhere_is_nothing_to_say() -> None:
    workers = [(f"TP{rank}", 10 + rank, inside(file("/a/libnccl.so.2"))) for rank in range(8)]
    assert list(copies(workers)) == []
    # The same build in two containers: another device and inode, the same library.
    assert list(copies([("TP0", 1, inside(file("/a"))), ("TP1", 2, inside(file("/b", inode=7)))])) == []


def test_two_copies_in_one_worker_leave_its_version_unknown() -> None:
    both = inside(file("/wheel/libnccl.so.2"), file("/usr/lib/libnccl.so.2", OLD, "cd"))
    assert both.version is None
    ((code, message, pid),) = copies([("TP3", 77, both)])
    assert (code, pid) == ("nccl_two_copies", 77)
    assert message.startswith("TP3 (pid 77) has mapped /wheel/libnccl.so.2 (2.30.7) and /usr/lib/libnccl.so.2 (2.21.5)")


@pytest.mark.parametrize("other", [file("/b", OLD, "cd"), file("/b", NEW, "cd"), file("/b", NEW, "", inode=9)])
def test_ranks_with_different_copies(other: LibraryFile) -> None:
    workers = [("TP0", 1, inside(file("/a"))), ("TP1", 2, inside(other)), ("TP2", 3, inside(file("/a")))]
    ((code, message, pid),) = copies(workers)
    assert (code, pid) == ("nccl_copies_differ", None)
    assert "/a (2.30.7) in TP0, TP2, /b (" in message and message.endswith("in TP1")


def test_what_packages_say_of_the_file(tmp_path: Path) -> None:
    library = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF" + b"\0" * 100 + b"NCCL version 2.28.9+cuda12.9\0" + b"\0" * 100)
    for name in ("nvidia_nccl_cu12-2.28.9", "nvidia_nccl_cu13-2.30.7"):
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info/RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,,\n")
    mapped = file(str(library), (2, 28, 9))
    ((code, message, _),) = copies([("TP0", 1, inside(mapped)), ("TP1", 2, inside(mapped))])
    assert code == "nccl_metadata"
    assert "has mapped NCCL 2.28.9" in message
    assert "is claimed by nvidia-nccl-cu12 2.28.9 and nvidia-nccl-cu13 2.30.7; the file is what counts" in message


def test_a_rank_with_two_copies_is_no_second_fault_of_the_others() -> None:
    both = inside(file("/b", OLD, "cd"), file("/a"))
    found = [
        code
        for code, _, _ in copies([("TP0", 1, inside(file("/a"))), ("TP1", 2, both), ("TP2", 3, inside(file("/a")))])
    ]
    assert found == ["nccl_two_copies"]
