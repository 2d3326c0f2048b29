"""The patch set: order, digest, all or none, and what `lint_series` finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sglang_ext.patchset.diff import PatchError, make, render
from sglang_ext.patchset.series import SeriesError, load_patch_set, patch_names, patch_set_digest
from sglang_ext.patchset.series_lint import lint_series, unused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE, TWO = "sglang/one.py", "sglang/two.py"
BASE = "".join(f"line {number}\n" for number in range(1, 41)).encode()


def _edit(source: bytes, number: int, extra: str = "") -> bytes:
    return source.replace(f"line {number}\n".encode(), f"{extra}LINE {number}\n".encode())


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(series: str, **patches: tuple[str, bytes, bytes]) -> Path:
        (tmp_path / "series").write_bytes(series.encode())
        for name, (target, old, new) in patches.items():
            path = tmp_path / (name.replace("__", "/") + ".patch")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(render(make(target, old, new, path.name, "Subject: x\n\n")).encode())
        return tmp_path

    return write


def test_order_digest_and_application(write: Callable[..., Path]) -> None:
    mid = _edit(BASE, 5)
    root = write(
        "# ours\none/b.patch\n\none/a.patch  # on top of b\ntwo.patch\n",
        one__b=(ONE, BASE, mid),
        one__a=(ONE, mid, _edit(mid, 30)),
        two=(TWO, BASE, _edit(BASE, 7)),
    )
    assert lint_series(root) == []
    patch_set = load_patch_set(root)
    assert [patch.origin for patch in patch_set.patches] == ["one/b.patch", "one/a.patch", "two.patch"]
    assert patch_set.targets == (ONE, TWO)
    assert patch_set.digest == patch_set_digest(str(root))
    assert len(patch_set.digest) == 64
    files = {ONE: BASE, TWO: BASE}
    assert patch_set.apply_all(files.__getitem__) == {ONE: _edit(mid, 30), TWO: _edit(BASE, 7)}


def test_digest_follows_order_and_bytes_but_not_comments(write: Callable[..., Path]) -> None:
    patches = {"a": (ONE, BASE, _edit(BASE, 5)), "b": (TWO, BASE, _edit(BASE, 5))}
    first = patch_set_digest(write("a.patch\nb.patch\n", **patches))
    assert patch_set_digest(write("# why\na.patch\n\nb.patch\n", **patches)) == first
    assert patch_set_digest(write("b.patch\na.patch\n", **patches)) != first
    changed = patches | {"b": (TWO, BASE, _edit(BASE, 6))}
    assert patch_set_digest(write("a.patch\nb.patch\n", **changed)) != first


def test_all_or_none(write: Callable[..., Path]) -> None:
    root = write("a.patch\nb.patch\n", a=(ONE, BASE, _edit(BASE, 5)), b=(TWO, BASE, _edit(BASE, 5)))
    files = {ONE: BASE, TWO: b"other\n"}
    with pytest.raises(PatchError, match=r"b\.patch"):
        load_patch_set(root).apply_all(files.__getitem__)


def test_empty_series_is_a_patch_set(write: Callable[..., Path]) -> None:
    root = write("# nothing left to carry\n")
    assert lint_series(root) == []
    assert load_patch_set(root).apply_all(lambda target: b"") == {}


@pytest.mark.parametrize(
    ("series", "part"),
    [
        ("a.patch\nmissing.patch\n", "missing.patch cannot be read (No such file or directory)"),
        ("", "Patch a.patch is not listed"),
        ("a.patch\na.patch\n", "line 2 lists a.patch a second time"),
        ("a.patch\n../b.patch\n", "`../b.patch`, but must be one relative path"),
        ("a.patch\n/b.patch\n", "`/b.patch`, but must be one relative path"),
        ("a.patch -p1\n", "`a.patch -p1`, but must be one relative path"),
        ("a.patch\nb.diff\n", "must be one relative path that ends in .patch"),
    ],
)
def test_lint_faults(write: Callable[..., Path], series: str, part: str) -> None:
    root = write(series, a=(ONE, BASE, _edit(BASE, 5)))
    faults = lint_series(root)
    assert any(part in fault for fault in faults), faults
    if series:
        with pytest.raises(SeriesError):
            load_patch_set(root)


def test_lint_without_a_series(tmp_path: Path) -> None:
    (fault,) = lint_series(tmp_path)
    assert "series cannot be read" in fault


def test_lint_reports_a_damaged_patch(write: Callable[..., Path]) -> None:
    root = write("a.patch\n", a=(ONE, BASE, _edit(BASE, 5)))
    path = root / "a.patch"
    path.write_bytes(path.read_bytes().replace(b"-line 5\n", b""))
    (fault,) = lint_series(root)
    assert "a.patch" in fault
    path.write_bytes(b"\xff\n")
    assert "a.patch is not UTF-8 text" in lint_series(root)[0]


def test_overlap_is_found_across_the_shift_of_a_third(write: Callable[..., Path]) -> None:
    mid = _edit(BASE, 30)
    grown = _edit(mid, 3, "new\n" * 8)
    root = write(
        "a.patch\nb.patch\nc.patch\n",
        a=(ONE, BASE, mid),
        b=(ONE, mid, grown),
        c=(ONE, grown, _edit(grown, 32)),
    )
    (fault,) = lint_series(root)
    assert "c.patch" in fault
    assert "lies on lines of a.patch, hunk 1" in fault


def test_neighbours_and_other_targets_do_not_overlap(write: Callable[..., Path]) -> None:
    mid = _edit(BASE, 5, "new\n" * 8)
    root = write(
        "a.patch\nb.patch\nc.patch\n",
        a=(ONE, BASE, mid),
        b=(ONE, mid, _edit(mid, 12)),
        c=(TWO, BASE, _edit(BASE, 5)),
    )
    assert lint_series(root) == []


# --- variants

OLD, MID, NEW = (BASE.replace(b"line 1\n", word) for word in (b"old\n", b"mid\n", b"new\n"))


def _change(source: bytes) -> tuple[str, bytes, bytes]:
    """Says something else in each of OLD, MID and NEW: three variants of a patch."""
    return ONE, source, source.replace(b"line 2\n", b"line 2\nours\n")


@pytest.fixture
def varied(write: Callable[..., Path]) -> Path:
    write("one/\nb.patch\n", b=(TWO, BASE, _edit(BASE, 7)))
    return write(
        "one/\nb.patch\n",
        **{"one__0.5.9": _change(OLD), "one__0.5.10.post1": _change(MID), "one__0.5.23": _change(NEW)},
    )


def test_a_release_takes_the_newest_variant_that_is_not_newer(varied: Path) -> None:
    assert lint_series(varied) == []
    for version, name in (
        ("0.5.9", "0.5.9"),
        ("0.5.10", "0.5.9"),
        ("0.5.10.post1", "0.5.10.post1"),
        ("0.5.22", "0.5.10.post1"),
        ("0.5.23", "0.5.23"),
        ("0.5.23.post1", "0.5.23"),
        (None, "0.5.23"),
    ):
        assert patch_names(varied, version) == (f"one/{name}.patch", "b.patch"), version
    assert load_patch_set(varied).names == ("one/0.5.23.patch", "b.patch")
    old = load_patch_set(varied, patch_names(varied, "0.5.9"))
    assert old.digest == patch_set_digest(varied, old.names) != patch_set_digest(varied)
    assert old.apply_all({ONE: OLD, TWO: BASE}.__getitem__)[ONE] == _change(OLD)[2]


def test_a_release_older_than_every_variant_is_refused(varied: Path) -> None:
    with pytest.raises(
        SeriesError, match=r"0\.5\.8 is older than every variant in one/, the first of which is for 0\.5\.9"
    ):
        patch_names(varied, "0.5.8")


def test_unused_variants_are_named(varied: Path) -> None:
    used = [name for version in ("0.5.9", "0.5.23") for name in patch_names(varied, version)]
    (fault,) = unused(varied, used)
    assert fault.startswith("Patch one/0.5.10.post1.patch is used by no release of the lock")
    assert list(unused(varied, [*used, "one/0.5.10.post1.patch"])) == []


def test_variants_that_differ_in_line_numbers_only_are_one(varied: Path) -> None:
    text = (varied / "one" / "0.5.10.post1.patch").read_text()
    (varied / "one" / "0.5.12.patch").write_text(text.replace("@@ -1,", "@@ -9,").replace(" +1,", " +9,"))
    (fault,) = lint_series(varied)
    assert "Variants one/0.5.10.post1.patch and one/0.5.12.patch make the same changes" in fault


def test_variants_of_two_files(varied: Path, write: Callable[..., Path]) -> None:
    write("one/\nb.patch\n", **{"one__0.5.12": (TWO, BASE, _edit(BASE, 30))})
    assert any("one/0.5.12.patch change two files" in fault for fault in lint_series(varied))


def test_the_same_patch_twice(varied: Path, write: Callable[..., Path]) -> None:
    write("one/\nb.patch\nc.patch\n", c=(TWO, BASE, _edit(BASE, 7)))
    assert "Patches b.patch and c.patch make the same changes: delete one." in lint_series(varied)


def test_overlap_of_one_variant_is_found(varied: Path, write: Callable[..., Path]) -> None:
    write("one/\nc.patch\n", c=(ONE, _change(MID)[2], _change(MID)[2].replace(b"ours\n", b"theirs\n")))
    (varied / "b.patch").unlink()
    faults = lint_series(varied)
    assert faults and all("c.patch" in fault and "lies on lines of one/" in fault for fault in faults)


@pytest.mark.parametrize("name", ["first", "v0.5.9"])
def test_variants_are_named_by_releases(varied: Path, write: Callable[..., Path], name: str) -> None:
    write("one/\nb.patch\n", **{f"one__{name}": _change(OLD)})
    assert any(f"Variant one/{name}.patch must be named by the first release" in fault for fault in lint_series(varied))
    with pytest.raises(SeriesError, match="must be named by"):
        load_patch_set(varied)


def test_folders_that_are_none(write: Callable[..., Path]) -> None:
    root = write("one/\nempty/\n../up/\n", **{"one__0.5.9": _change(OLD), "one__sub__0.5.9": _change(OLD)})
    (root / "empty").mkdir()
    faults = lint_series(root)
    assert any("Folder empty/ of the series holds no patch" in fault for fault in faults)
    assert any("line 3 is `../up/`, but must be one relative path" in fault for fault in faults)
    assert any("Patch one/sub/0.5.9.patch is not listed" in fault for fault in faults)
    (root / "series").write_text("one/\ngone/\n")
    assert any("Folder gone/ of the series cannot be read" in fault for fault in lint_series(root))
