"""`sglang-ext build-wheel` on upstream's own wheels, oldest and newest: installed, read back, passed over by the hook."""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from sglang_ext import __version__
from sglang_ext.patchset.overlay import prepare
from tests.rig.environment import RIG
from tests.rig.releases import find_wheel, supported

from .conftest import cli
from .test_install import python, shell, tree, venv, wheel  # noqa: F401  fixtures

OLDEST, NEWEST = supported()[0], supported()[-1]

# Run by the environment's Python: what its own metadata says of what pip has put there.
RECORD = """
import base64, hashlib, importlib.metadata
found, checked = importlib.metadata.distribution("sglang"), 0
for file in found.files:
    data = file.locate().read_bytes()
    if file.hash is not None:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert (file.hash.mode, file.hash.value, file.size) == ("sha256", digest, len(data)), file
        checked += 1
print(found.version, checked)
"""
# The hook, asked as the import system would ask it, without what SGLang itself would import.
HOOK = """
import os, sys
from importlib.machinery import PathFinder
from sglang_ext import bootstrap
bootstrap.first_import()
finder = sys.meta_path[0]
root = os.path.dirname(PathFinder.find_spec("sglang").origin)
for target in finder.names.values():
    folder = os.path.join(os.path.dirname(root), os.path.dirname(target))
    assert finder.find_spec(bootstrap.module_name(target), [folder]) is None
print(bootstrap.STATUS.mode, bootstrap.STATUS.release, bootstrap.STATUS.files, bootstrap.STATUS.why)
"""


class Built(NamedTuple):
    """A release's wheel, and what was made of it."""

    version: str
    source: Path
    wheel: Path


# The names of both releases mean the same to pip: what it does is asked with the smaller one only.
only_oldest = pytest.mark.parametrize("built", [OLDEST], indirect=True)


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("dist")
    source = find_wheel(request.param)
    done = cli("build-wheel", "--from", str(source), "--out", str(out), "--json")
    assert done.status == 0, done.err
    return Built(request.param, source, Path(done.report["wheel"]))


def raw(path: Path) -> dict[str, bytes]:
    """The compressed bytes of every entry."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            lengths = file.read(4)
            file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
            found[info.filename] = file.read(info.compress_size)
    return found


def test_the_same_wheel_twice_and_upstreams_bytes_in_it(built: Built, tmp_path: Path) -> None:
    again = cli("build-wheel", "--from", str(built.source), "--out", str(tmp_path))
    assert again.status == 0, again.err
    assert (tmp_path / built.wheel.name).read_bytes() == built.wheel.read_bytes()
    old, new = raw(built.source), raw(built.wheel)
    info = f"sglang-{built.version}.dist-info/"
    renamed = {name: name.replace(info, f"sglang-{built.version}+ext.1.dist-info/") for name in old}
    assert list(renamed.values()) == list(new)
    changed = {name for name in old if old[name] != new[renamed[name]]}
    with zipfile.ZipFile(built.source) as archive:
        archive.extractall(tmp_path / "stock", [name for name in old if "/srt/" in name and name.endswith(".py")])
    overlay = prepare(str(tmp_path / "stock"), cache=str(tmp_path / "cache"))
    assert changed == {*overlay.files, "sglang/_version.py", f"{info}METADATA", f"{info}RECORD"}
    with zipfile.ZipFile(built.wheel) as archive:
        assert archive.testzip() is None
        for target, copy in overlay.files.items():
            assert archive.read(target) == Path(copy).read_bytes()


def test_installed_over_stock_it_is_one_and_the_hook_passes_it_by(built: Built, venv: Path, wheel: Path) -> None:  # noqa: F811
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile")
    assert python(venv, *pip, str(wheel), str(built.source)).status == 0
    done = python(venv, *pip, str(built.wheel))
    assert (done.status, done.err) == (0, "")
    site = next((venv / "lib").glob("python3*/site-packages"))
    assert [p.name for p in site.glob("sglang-*")] == [f"sglang-{built.version}+ext.1.dist-info"]
    read = python(venv, "-c", RECORD)
    assert read.status == 0, read.err
    with zipfile.ZipFile(built.source) as archive:
        files = sum(not info.is_dir() for info in archive.infolist())
    version, checked = read.out.split()
    assert version == f"{built.version}+ext.1" and int(checked) >= files - 1  # RECORD itself; pip adds its own files
    # Its requirements are upstream's and ours; of these nobody misses ours.
    told = python(venv, "-m", "pip", "check").out
    assert "requires sglang-ext" not in told and f"sglang {built.version}+ext.1 requires " in told
    # Nothing for the hook to do, and no folder for copies.
    before = tree(site)
    asked = python(venv, "-c", HOOK, env=shell(SGLANG_EXT="require", XDG_CACHE_HOME=str(venv / "cache")))
    assert (asked.status, asked.err, asked.out) == (0, "", f"baked {built.version} {{}} \n")
    assert not (venv / "cache").exists() and tree(site) == before


@only_oldest
def test_what_pip_makes_of_it_afterwards(built: Built, venv: Path, wheel: Path, tmp_path: Path) -> None:  # noqa: F811
    """docs/baked.md says so. The index is a folder with upstream's wheel in it."""
    shutil.copy(built.source, tmp_path)
    pip = ("-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--find-links", str(tmp_path))
    assert python(venv, *pip, "-q", str(wheel), str(built.wheel)).status == 0
    for words in (["sglang"], ["-U", "sglang"], [f"sglang=={built.version}"], ["-U", f"sglang=={built.version}"]):
        done = python(venv, *pip, "--dry-run", *words)
        assert done.status == 0 and "Would install" not in done.out and "already satisfied" in done.out, words
    for words in (["--force-reinstall", "sglang"], [f"sglang==={built.version}"], [str(built.source)]):
        done = python(venv, *pip, "--dry-run", *words)
        assert done.status == 0 and f"Would install sglang-{built.version}\n" in done.out, words
    # And once it has: stock again, which the hook patches at import.
    assert python(venv, *pip, "-q", "--force-reinstall", "sglang").status == 0
    asked = python(venv, "-c", "from sglang_ext.patchset.overlay import prepare\nimport sys\n"
                   "print(prepare(sys.argv[1], cache=sys.argv[2]).mode)",
                   str(next((venv / "lib").glob("python3*/site-packages"))), str(tmp_path / "cache"))  # fmt: skip
    assert asked.out == "overlay\n", asked.err


@only_oldest
def test_without_sglang_ext_pip_says_what_is_missing(built: Built, venv: Path) -> None:  # noqa: F811
    assert (
        python(venv, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile", str(built.wheel)).status
        == 0
    )
    missing = python(venv, "-m", "pip", "check")
    assert missing.status == 1
    assert re.search(
        rf"^sglang {re.escape(built.version)}\+ext\.1 requires sglang-ext, which is not inst", missing.out, re.M
    )


def test_the_real_thing_imports_patched(venv: Path, wheel: Path, tmp_path: Path) -> None:  # noqa: F811
    """The newest, on the libraries of this environment: its modules come from the wheel, seams and all."""
    made = cli("build-wheel", "--from", str(find_wheel(NEWEST)), "--out", str(tmp_path), "--json").report["wheel"]
    assert python(venv, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel), made).status == 0
    site = next((venv / "lib").glob("python3*/site-packages"))
    # By addsitedir, not as a bare path: some of the libraries have .pth files of their own.
    (site / "libraries.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    code = """
import json, sglang.srt.models.deepseek_v2 as model
from sglang.version import __version__, __version_tuple__
from sglang_ext.bootstrap import STATUS
seam = model.DeepseekV2ForCausalLM.__init__
print(json.dumps([__version__, __version_tuple__, STATUS.mode, STATUS.release, model.__file__, hasattr(seam, "__wrapped__")]))
"""
    done = python(venv, "-c", code, env=shell(PYTHONPATH=str(RIG), SGLANG_EXT="require"))
    assert done.status == 0, done.err
    numbers = [int(part) if part.isdigit() else part for part in NEWEST.split(".")]
    expected = [
        f"{NEWEST}+ext.1",
        [*numbers, "ext.1"],
        "baked",
        NEWEST,
        str(site / "sglang/srt/models/deepseek_v2.py"),
        True,
    ]
    assert json.loads(done.out.splitlines()[-1]) == expected


def test_it_comes_from_the_index_that_pip_uses(tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    source = find_wheel(OLDEST)
    shutil.copy(source, index)
    env = shell(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    done = cli("build-wheel", "--upstream", OLDEST, "--out", str(tmp_path / "out"), "--json", env=env)
    assert done.status == 0, done.err
    assert done.report["from"]["wheel"] == source.name and done.report["requires"] == f"sglang-ext=={__version__}"
    assert Path(done.report["wheel"]).is_file()
    (index / source.name).unlink()
    gone = cli("build-wheel", "--upstream", OLDEST, "--out", str(tmp_path / "none"), env=env)
    assert gone.status == 3 and "wheel_not_fetched: " in gone.err and not list((tmp_path / "none").iterdir())
