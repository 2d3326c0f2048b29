"""Local patches: where they lie, their order, which are in, what they do to the digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_ext.patchset import local
from sglang_ext.patchset.local import (
    LocalError,
    apply_local,
    check_compiles,
    digest_with,
    left_out,
    local_files,
    local_folder,
    local_names,
    not_importable,
    parsed,
)
from tests.unit.small_upstream import DATA, FILES, ONE, OTHER, OURS, Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(local.FOLDER, raising=False)
    package = str(Path(local.__file__).parents[1] / "patches")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert local_folder("/checkout/patches") == "/checkout/patches/local"
    assert local_folder(package) == f"{tmp_path}/.config/sglang-ext/patches/local"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/conf")
    assert local_folder(package) == "/conf/sglang-ext/patches/local"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert local_folder(package) is None and local_names(None) == []
    monkeypatch.setenv(local.FOLDER, "/chosen")
    assert local_folder(package) == local_folder("/checkout/patches") == "/chosen"


def test_none_is_nothing(site: Site) -> None:
    assert local_names(str(site.local)) == [] == local_files(str(site.local))
    assert digest_with("d", []) == "d"


def test_a_folder_that_others_may_write_to_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    folder.chmod(0o777)
    assert local_names(str(folder)) == []  # nothing in it: nothing to believe
    (folder / "a.patch").write_text("")
    with pytest.raises(LocalError, match="found it writable for everybody") as refused:
        local_names(str(folder))
    assert refused.value.code == "local_patch_misfit"
    folder.chmod(0o775)
    assert local_names(str(folder)) == ["a.patch"]


def test_the_order(site: Site) -> None:
    for name in ("b.patch", "a.patch", "group/x.patch"):
        site.add_local(name, OTHER, b"line_1 = 1", b"line_1 = 0")
    (site.local / "notes.txt").write_text("")
    folder = str(site.local)
    assert local_names(folder) == ["a.patch", "b.patch", "group/x.patch"]
    (site.local / "series").write_text("group/x.patch\nb.patch # first of all\n")
    assert local_names(folder) == ["group/x.patch", "b.patch", "a.patch"]
    (site.local / "series").write_text("gone.patch\n")
    with pytest.raises(LocalError, match=r"local/gone\.patch is in local/series and not there"):
        local_names(folder)


def test_a_patch_deeper_than_a_group_is_said(site: Site) -> None:
    site.add_local("group/x.patch", OTHER, b"line_1 = 1", b"line_1 = 0")
    site.add_local("group/.git/refs/y.patch", OTHER, b"line_2 = 2", b"line_2 = 0")
    assert local_names(str(site.local)) == ["group/x.patch"]
    for name in ("group/deeper/x.patch", "other/a/b/x.patch"):
        site.add_local(name, OTHER, b"line_1 = 1", b"line_1 = 0")
        with pytest.raises(LocalError, match=rf"{name} lies deeper than a group.*: move it up") as error:
            local_names(str(site.local))
        assert error.value.code == "local_patch_misfit"
        (site.local / name).unlink()


def test_an_editors_lock_is_no_patch(site: Site) -> None:
    site.add_local("group/x.patch", OTHER, b"line_1 = 1", b"line_1 = 0")
    for name in (".#a.patch", "group/.#x.patch", ".#series"):
        (site.local / name).symlink_to("user@host.1234:1700000000")
    assert local_names(str(site.local)) == ["group/x.patch"]


def test_leaving_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.patch", "group/x.patch", "group/y.patch"):
        site.add_local(name, OTHER, b"line_1 = 1", b"line_1 = 0")
    folder = str(site.local)

    def within(*without: str) -> list[str]:
        return [name for name, _ in local_files(folder, without)]

    assert within("a") == ["local/group/x.patch", "local/group/y.patch"] == within("local/a.patch")
    assert within("group") == ["local/a.patch"]
    assert within("group/x", "group") == ["local/a.patch"] == within("group", "group/y", "group")
    for slip in ("b", "grou", "", "group/"):
        with pytest.raises(LocalError, match=r"is no local patch or group .* a, group/x, group/y") as error:
            within(slip)
        assert error.value.code == "local_patch_unknown"
    monkeypatch.setenv(local.WITHOUT, " a, group/x ,")
    assert left_out() == ("a", "group/x")


def test_the_digest_has_names_order_and_bytes() -> None:
    one, two = ("local/a.patch", b"1"), ("local/b.patch", b"2")
    digests = {
        digest_with(base, files)
        for base in ("d", "e")
        for files in ([], [one], [two], [one, two], [two, one], [("local/a.patch", b"2")])
    }
    assert len(digests) == 12


def test_applying_after_ours(site: Site) -> None:
    site.add_local("a.patch", ONE, b"line_20 = 20", b"line_20 = 'a'")
    patches = parsed(local_files(str(site.local)))
    results = apply_local({ONE: OURS[ONE]}, patches, lambda name: FILES[name])
    assert results == {ONE: OURS[ONE].replace(b"line_20 = 20", b"line_20 = 'a'")}
    with pytest.raises(LocalError, match="leave it out with --without a") as error:
        apply_local(results, patches, lambda name: FILES[name])
    assert error.value.code == "local_patch_misfit"


def test_what_is_no_patch_or_makes_no_python(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = (")
    patches = parsed(local_files(str(site.local)))
    with pytest.raises(LocalError, match=r"does not compile with local patch a \(line 11"):
        check_compiles(apply_local({}, patches, lambda name: FILES[name]), patches)
    (site.local / "b.patch").write_text("no diff\n")
    with pytest.raises(LocalError, match=r"local/b\.patch"):
        parsed(local_files(str(site.local)))


def test_what_an_import_cannot_deliver(site: Site) -> None:
    site.add_local("a.patch", OTHER, b"line_9 = 9", b"line_9 = 0")
    assert not_importable(parsed(local_files(str(site.local)))) is None
    site.add_local("b.patch", DATA, b'"b": 2', b'"b": 9')
    assert "patches apply, or leave it out with --without b" in str(
        not_importable(parsed(local_files(str(site.local))))
    )
