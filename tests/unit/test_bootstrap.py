"""The import hook in real interpreters: silent where nothing is wanted, exact where something is, loud where it cannot.

Each case has a site folder of its own: our .pth line, our package, and a small sglang with two targets.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

from sglang_ext.contract.model import Contract
from sglang_ext.delivery.context import new_run
from sglang_ext.patchset.diff import make, render
from sglang_ext.patchset.lock import Lock, LockedFile, Release, dump_lock
from sglang_ext.patchset.series import patch_set_digest

ROOT = Path(__file__).resolve().parents[2]
# Without what is installed beside the tests: an installed .pth of ours would arm the hook by itself.
BARE: str = getattr(sys, "_base_executable", sys.executable)
ONE, TWO = "sglang/srt/one.py", "sglang/srt/deep/two.py"
PRISTINE = {
    ONE: textwrap.dedent(
        '''\
        """One."""

        WHO = "stock"


        def fails():
            raise ValueError("here")


        if __name__ == "__main__":
            print("main", WHO)
        '''
    ),
    TWO: 'WHO = "stock"\n',
}
PATCHED = {
    ONE: PRISTINE[ONE].replace('WHO = "stock"\n', 'WHO = "patched"\nMORE = 1  # moves all lines below\n'),
    TWO: 'WHO = "patched"\n',
}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Site:
    """A site folder with everything in it; ``run`` starts a Python that reads its .pth as site-packages'."""

    def __init__(self, base: Path) -> None:
        self.path, self.cache, self.work = base / "site", base / "cache", base / "work"
        self.work.mkdir()
        package = self.path / "sglang_ext"
        shutil.copytree(
            ROOT / "sglang_ext",
            package,
            ignore=lambda folder, names: [
                name
                for name in names
                if name == "__pycache__"
                or (
                    Path(folder) == ROOT / "sglang_ext"
                    and name not in ("__init__.py", "bootstrap.py", "patchset", "quick.py")
                )
            ],
        )
        shutil.copy(ROOT / "sglang_ext.pth", self.path)
        for name, text in {"sglang/__init__.py": "", "sglang/other.py": "WHO = 'other'\n", **PRISTINE}.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (self.path / "sglang-9.9.1.dist-info").mkdir()
        self.patches = package / "patches"
        self.patches.mkdir()
        for target in PRISTINE:
            name = Path(target).stem + ".patch"
            patch = make(target, PRISTINE[target].encode(), PATCHED[target].encode(), name, "Subject: x\n\n")
            (self.patches / name).write_text(render(patch))
        (self.patches / "series").write_text("one.patch\ntwo.patch\n")
        files = {t: LockedFile(sha256(PRISTINE[t]), sha256(PATCHED[t])) for t in PRISTINE}
        lock = Lock([Release("9.9.1", patch_set_digest(self.patches), {"w.whl": "0" * 64}, files)])
        (self.patches / "upstream.toml").write_text(dump_lock(lock))

    def environment(self, **more: str) -> dict[str, str]:
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("SGLANG_", "NCCL_", "PYTHON"))}
        return clean | {"SGLANG_EXT_CACHE_DIR": str(self.cache)} | more

    def run(self, code: str, *, flags: str = "-IS", **more: str) -> subprocess.CompletedProcess[str]:
        arm = f"import site; site.addsitedir({str(self.path)!r})\n"
        return self.python([flags, "-c", arm + textwrap.dedent(code)], **more)

    def python(self, words: list[str], executable: str = BARE, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [executable, *words],
            env=self.environment(**more),
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


def quiet(done: subprocess.CompletedProcess[str]) -> str:
    """The stdout of a run that ended well and wrote nothing on stderr."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one stderr line of a run that ended well."""
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("sglang-ext: running stock, unpatched: ")
    return done.stderr


IMPORT = "import sglang.srt.one, sglang.srt.deep.two as two; print(sglang.srt.one.WHO, two.WHO)"


# --- where it has no business -----------------------------------------------------------------------------


def test_other_imports_see_nothing_and_load_nothing(tmp_path: Path) -> None:
    code = """
        import sys
        before = set(sys.modules)
        import decimal, xml.dom, http
        try:
            import no_such_module_at_all
        except ModuleNotFoundError as error:
            assert str(error) == "No module named 'no_such_module_at_all'"
        print([name for name in sys.modules if name.startswith("sglang")])
        print(sum(hasattr(finder, "_sglang_ext") for finder in sys.meta_path))
        """
    assert quiet(Site(tmp_path).run(code)) == "[]\n1\n"


def test_arming_itself_imports_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    code = """
        import sys, site
        before = set(sys.modules)
        exec(open(PTH).read().splitlines()[1])
        print(sorted(set(sys.modules) - before))
        """.replace("PTH", repr(str(site.path / "sglang_ext.pth")))
    assert quiet(site.python(["-IS", "-c", textwrap.dedent(code)])) == "[]\n"


def test_sglang_absent_is_plainly_absent(tmp_path: Path) -> None:
    site = Site(tmp_path)
    shutil.rmtree(site.path / "sglang")
    code = """
        try:
            import sglang
        except ModuleNotFoundError as error:
            print(error, error.name)
        """
    assert quiet(site.run(code)) == "No module named 'sglang' sglang\n"
    assert not site.cache.exists()


def test_what_is_no_target_stays_stock_and_builds_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert quiet(site.run("import sglang.other as m; print(m.WHO, m.__file__)")) == (
        f"other {site.path / 'sglang/other.py'}\n"
    )
    assert not site.cache.exists()


# --- where it patches -------------------------------------------------------------------------------------


def test_targets_are_the_copies_and_say_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    code = """
        import inspect, json, sys, traceback
        import sglang.srt.one as one
        from sglang.srt.deep import two
        from sglang_ext.bootstrap import STATUS
        try:
            one.fails()
        except ValueError:
            text = traceback.format_exc()
        print(json.dumps({
            "who": [one.WHO, two.WHO], "file": one.__file__, "origin": one.__spec__.origin, "cached": one.__cached__,
            "code": one.fails.__code__.co_filename, "source": inspect.getsource(one.fails), "whole": inspect.getsource(one),
            "traceback": text, "name": one.__name__, "package": one.__package__, "parent": sys.modules["sglang"].__file__,
            "mode": STATUS.mode, "why": STATUS.why, "release": STATUS.release, "files": STATUS.files,
            "hashes": STATUS.hashes,
        }))
        """
    seen = json.loads(quiet(site.run(code)))
    (folder,) = (site.cache / "overlay").iterdir()
    copy = str(folder / ONE)
    assert seen["who"] == ["patched", "patched"]
    assert seen["file"] == seen["origin"] == seen["code"] == copy
    assert seen["cached"].startswith(str(folder))
    assert seen["source"] == 'def fails():\n    raise ValueError("here")\n' and seen["whole"] == PATCHED[ONE]
    assert f'File "{copy}", line 8, in fails\n    raise ValueError("here")' in seen["traceback"]
    assert (seen["name"], seen["package"]) == ("sglang.srt.one", "sglang.srt")
    assert seen["parent"] == str(site.path / "sglang/__init__.py")
    assert (seen["mode"], seen["why"], seen["release"]) == ("overlay", "", "9.9.1")
    assert seen["files"] == {target: str(folder / target) for target in PATCHED}
    assert seen["hashes"] == {target: sha256(text) for target, text in PATCHED.items()}


def test_no_patched_bytecode_lands_in_stock(tmp_path: Path) -> None:
    site = Site(tmp_path)
    quiet(site.run(IMPORT))
    assert [path for path in (site.path / "sglang/srt").rglob("*.pyc") if path.stem.startswith(("one", "two"))] == []
    assert {t: (site.path / t).read_text() for t in PRISTINE} == PRISTINE
    # Stock bytecode that is there is neither used for the copy nor touched.
    stock = "import sglang.srt.one as one; print(one.WHO, one.__cached__)"
    who, cached = quiet(site.run(stock, SGLANG_EXT="0")).split()
    before = Path(cached).read_bytes()
    assert who == "stock" and quiet(site.run(IMPORT)) == "patched patched\n"
    assert Path(cached).read_bytes() == before


def test_python_m_runs_the_copy(tmp_path: Path) -> None:
    site = Site(tmp_path)
    code = "import runpy; runpy.run_module('sglang.srt.one', run_name='__main__', alter_sys=True)"
    assert quiet(site.run(code)) == "main patched\n"


def test_reload_and_pickle_by_name_stay_with_the_copy(tmp_path: Path) -> None:
    code = """
        import importlib, pickle
        import sglang.srt.one as one
        fails = pickle.loads(pickle.dumps(one.fails))
        assert fails is one.fails
        print(importlib.reload(one).WHO, one.__file__ == one.__spec__.origin)
        """
    assert quiet(Site(tmp_path).run(code)) == "patched True\n"


def test_two_threads_that_import_at_once_both_get_the_copy(tmp_path: Path) -> None:
    code = """
        import importlib, threading
        import sglang.srt.deep
        seen, start = {}, threading.Barrier(2)
        def load(name):
            start.wait()
            seen[name] = importlib.import_module(name).WHO
        threads = [threading.Thread(target=load, args=(n,)) for n in ("sglang.srt.one", "sglang.srt.deep.two")]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(sorted(seen.values()))
        """
    assert quiet(Site(tmp_path).run(code)) == "['patched', 'patched']\n"


def test_armed_twice_is_armed_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    code = f"""
        import site, sys
        site.addsitedir({str(site.path)!r})
        exec(open({str(site.path / "sglang_ext.pth")!r}).read())
        from sglang_ext.bootstrap import arm, first_import
        arm()
        print([f._sglang_ext for f in sys.meta_path if hasattr(f, "_sglang_ext")])
        import sglang.srt.one as one
        arm(); first_import()
        exec(open({str(site.path / "sglang_ext.pth")!r}).read())
        print([f._sglang_ext for f in sys.meta_path if hasattr(f, "_sglang_ext")], one.WHO)
        """
    assert quiet(site.run(code)) == "['first']\n['targets'] patched\n"


def test_baked_files_are_used_as_they_are(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for target, text in PATCHED.items():
        (site.path / target).write_text(text)
    code = IMPORT + "; from sglang_ext.bootstrap import STATUS; print(STATUS.mode, sglang.srt.one.__file__)"
    assert quiet(site.run(code)) == f"patched patched\nbaked {site.path / ONE}\n"
    assert not site.cache.exists()


def test_the_shell_is_kept_as_it_was_when_sglang_came(tmp_path: Path) -> None:
    code = """
        import os
        os.environ["NCCL_DEBUG"] = "INFO"
        import sglang
        os.environ["NCCL_PROTO"] = "Simple"
        from sglang_ext.bootstrap import SHELL
        print(SHELL)
        """
    done = Site(tmp_path).run(code, NCCL_ALGO="Ring", CUDA_VISIBLE_DEVICES="0")
    assert json.loads(quiet(done).replace("'", '"')) == {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}


# --- where it may not or cannot ---------------------------------------------------------------------------


def test_switched_off_is_stock_and_silent(tmp_path: Path) -> None:
    site = Site(tmp_path)
    code = IMPORT + "; from sglang_ext.bootstrap import STATUS; print(STATUS.mode, STATUS.why)"
    assert quiet(site.run(code, SGLANG_EXT="0")) == "stock stock\nnone SGLANG_EXT=0 switches it off\n"
    assert not site.cache.exists()


def test_switched_off_passes_over_no_other_finder(tmp_path: Path) -> None:
    site = Site(tmp_path)
    os.rename(site.path / "sglang", site.path / "hidden")
    # Only the finder right behind ours knows where sglang is, as an editable install's does.
    code = f"""
        import sys
        from importlib.util import spec_from_file_location
        class Editable:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "sglang":
                    where = {str(site.path / "hidden")!r}
                    return spec_from_file_location(name, where + "/__init__.py", submodule_search_locations=[where])
        (ours,) = (i for i, finder in enumerate(sys.meta_path) if hasattr(finder, "_sglang_ext"))
        sys.meta_path.insert(ours + 1, Editable)
        import sglang.srt.one
        print(sglang.srt.one.WHO)
        """
    assert quiet(site.run(code, SGLANG_EXT="0")) == "stock\n"


def spoil(site: Site) -> str:
    """Edit a target by hand; what the sentence must say."""
    with open(site.path / TWO, "a", encoding="utf-8") as file:
        file.write("# edited\n")
    return f"{site.path / TWO} is not sglang 9.9.1 as released"


def lose_lock(site: Site) -> str:
    (site.patches / "upstream.toml").unlink()
    return "upstream.toml cannot be read"


def tear_patch(site: Site) -> str:
    (site.patches / "one.patch").write_text("--- a/sglang/srt/one.py\n")
    return "one.patch"


def unknown_release(site: Site) -> str:
    os.rename(site.path / "sglang-9.9.1.dist-info", site.path / "sglang-9.9.7.dist-info")
    (site.path / ONE).write_text(PRISTINE[ONE] + "\n")
    return "sglang 9.9.7 in"


def no_cache(site: Site) -> str:
    site.cache.write_text("a file")
    return "set SGLANG_EXT_CACHE_DIR to a writable folder"


FAULTS = [spoil, lose_lock, tear_patch, unknown_release, no_cache]


@pytest.mark.parametrize("fault", FAULTS)
def test_by_default_one_line_then_stock(tmp_path: Path, fault) -> None:  # type: ignore[no-untyped-def]
    site = Site(tmp_path)
    part = fault(site)
    done = site.run(IMPORT)
    line = one_line(done)
    assert part in line and line.endswith("(SGLANG_EXT=0 silences this)\n")
    assert done.stdout == "stock stock\n"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("demand", [{"SGLANG_EXT": "require"}, {"SGLANG_EXT_RUN_ID": "run-1"}], ids=str)
def test_where_it_is_demanded_it_is_an_import_error(tmp_path: Path, fault, demand) -> None:  # type: ignore[no-untyped-def]
    site = Site(tmp_path)
    part = fault(site)
    code = """
        for _ in range(2):  # a second try is not stock either
            try:
                import sglang.srt.one
                print("imported")
            except ImportError as error:
                print(type(error).__name__, error)
        """
    done = site.run(code, **demand)
    lines = quiet(done).splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]
    assert lines[0].startswith("ImportError sglang-ext: ") and part in lines[0]


def test_the_kill_switch_is_stronger_than_a_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    spoil(site)
    assert quiet(site.run(IMPORT, SGLANG_EXT="0", SGLANG_EXT_RUN_ID="run-1")) == "stock stock\n"


def test_a_server_of_nobody_s_launcher_refuses_nothing(tmp_path: Path) -> None:
    """Its run is made by the engine, which the id in every worker's environment says."""
    context = new_run(Contract({}), mode="engine", policy="warn", path=str(tmp_path / "run-1"))
    site = Site(tmp_path)
    spoil(site)
    done = site.run(IMPORT, SGLANG_EXT_RUN_ID=context.id)
    assert done.returncode == 0 and "running stock, unpatched" in done.stderr
    launched = new_run(Contract({}), mode="launcher", policy="warn", path=str(tmp_path / "run-2"))
    assert "ImportError: sglang-ext: " in site.run(IMPORT, SGLANG_EXT_RUN_ID=launched.id).stderr


@pytest.mark.parametrize("require", [False, True])
def test_a_target_imported_before_the_hook_is_said(tmp_path: Path, require: bool) -> None:
    site = Site(tmp_path)
    code = f"""
        import sys
        sys.path.insert(0, {str(site.path)!r})
        import sglang.srt.one
        del sys.modules["sglang"]  # as a reimport: the hook comes between
        from sglang_ext.bootstrap import STATUS, arm
        arm()
        try:
            import sglang
        except ImportError as error:
            print(error)
        """
    done = site.python(["-IS", "-c", textwrap.dedent(code)], **({"SGLANG_EXT": "require"} if require else {}))
    sentence = "sglang.srt.one was imported before the hook was armed"
    if require:
        assert sentence in quiet(done)
    else:
        assert sentence in one_line(done)


def test_a_pth_left_behind_says_so_once_and_stock_works(tmp_path: Path) -> None:
    site = Site(tmp_path)
    shutil.rmtree(site.path / "sglang_ext")
    done = site.run(IMPORT)
    assert "its package is gone and its sglang_ext.pth was left behind; remove that file" in one_line(done)
    assert done.stdout == "stock stock\n"
    assert quiet(site.run("import decimal; print('ok')")) == "ok\n"


# --- processes below --------------------------------------------------------------------------------------

SPAWN = """
import multiprocessing, sys

def child(queue):
    import sglang.srt.one as one
    queue.put((one.WHO, sys.modules["sglang_ext.bootstrap"].STATUS.mode))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get())
    process.join()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_of_multiprocessing_are_armed_too(tmp_path: Path, method: str) -> None:
    site = Site(tmp_path)
    # A real environment: its site-packages are read by every Python started in it, spawned ones too.
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for path in site.path.iterdir():
        os.rename(path, packages / path.name)
    script = tmp_path / "script.py"
    script.write_text(SPAWN)
    done = site.python(["-I", str(script), method], str(tmp_path / "env/bin/python"))
    assert quiet(done) == "patched overlay\n"


def test_python_m_of_a_target_in_an_environment(tmp_path: Path) -> None:
    site = Site(tmp_path)
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for path in site.path.iterdir():
        os.rename(path, packages / path.name)
    python = str(tmp_path / "env/bin/python")
    assert quiet(site.python(["-I", "-m", "sglang.srt.one"], python)) == "main patched\n"


# --- sitecustomize ----------------------------------------------------------------------------------------


def on_pythonpath(site: Site, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Started as from a checkout: sitecustomize/ on PYTHONPATH, no .pth."""
    shutil.copytree(ROOT / "sitecustomize", site.path / "sitecustomize", dirs_exist_ok=True)
    path = os.pathsep.join([str(site.path / "sitecustomize"), str(site.path), *words])
    code = IMPORT + "; import sitecustomize; print(getattr(sitecustomize, 'MINE', None))"
    return site.python(["-s", "-c", code], PYTHONPATH=path, **more)


def test_sitecustomize_arms_the_hook(tmp_path: Path) -> None:
    assert quiet(on_pythonpath(Site(tmp_path))) == "patched patched\nNone\n"


def test_sitecustomize_runs_the_one_it_hides(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/sitecustomize.py").write_text("MINE = 'ran'\n")
    assert quiet(on_pythonpath(Site(tmp_path), str(tmp_path / "mine"))) == "patched patched\nran\n"


def test_two_checkouts_do_not_hand_on_to_each_other_without_end(tmp_path: Path) -> None:
    site, other, link, mine = Site(tmp_path), tmp_path / "other", tmp_path / "link", tmp_path / "mine"
    shutil.copytree(ROOT / "sitecustomize", other)
    link.symlink_to(site.path / "sitecustomize")
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("MINE = 'ran'\n")
    assert quiet(on_pythonpath(site, str(other), str(link), str(mine))) == "patched patched\nran\n"


def test_sitecustomize_without_the_package_is_silent_unless_in_a_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    shutil.rmtree(site.path / "sglang_ext")
    assert quiet(on_pythonpath(site)) == "stock stock\nNone\n"
    done = on_pythonpath(site, SGLANG_EXT_RUN_ID="run-1")
    assert done.stdout == "stock stock\nNone\n"
    assert done.stderr.startswith("sglang-ext: the hook cannot be armed: ") and done.stderr.count("\n") == 1
