"""Where faults are planted without a server: a small Python with our package and upstream's files; other users; full disks."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import sglang_ext
from tests.e2e.conftest import ROOT, Done, run
from tests.rig.server import clean_environment, free_port

NOBODY = 65534
TARGETS = ("sglang/srt/entrypoints/engine.py", "sglang/srt/managers/scheduler.py", "sglang/srt/models/deepseek_v2.py")
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
SHOW = (
    "import importlib.util, sys\n"
    "spec = importlib.util.find_spec('sglang.srt.managers.scheduler')\n"
    "boot = sys.modules.get('sglang_ext.bootstrap')\n"
    "print(boot.STATUS.mode if boot else 'none', spec.origin)\n"
)


@functools.cache
def nobody_can_run() -> bool:
    """Can another user start this Python at all?"""
    if shutil.which("setpriv") is None:
        return False
    done = subprocess.run(
        [*AS_NOBODY, sys.executable, "-c", "import sglang_ext"], cwd="/", capture_output=True, check=False
    )
    return done.returncode == 0


def needs_other_users() -> None:
    """Skip a fault that takes another user where there is none to be had."""
    if os.geteuid() != 0 or not nobody_can_run():
        pytest.skip("needs root, and a Python that another user can run")


@functools.cache
def can_mount() -> bool:
    """May we mount, in a namespace of our own?"""
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/tmp"], capture_output=True, check=False)
    return done.returncode == 0


def stock_site() -> Path:
    """The site-packages that the released sglang lies in."""
    spec = PathFinder.find_spec("sglang")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


def installed_package() -> Path:
    """Our package as it is installed, not the checkout."""
    spec = PathFinder.find_spec("sglang_ext", [p for p in sys.path if p and Path(p).resolve() != ROOT])
    assert spec is not None and spec.origin is not None and sglang_ext.__version__
    return Path(spec.origin).parent


class Place:
    """A small Python: `venv`, with a cache and a runtime folder of its own beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv = folder, folder / "venv"
        self.site = next((self.venv / "lib").glob("python3*/site-packages"))
        self.package = self.site / "sglang_ext"
        self.cache, self.runtime = folder / "cache", folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.python = str(self.venv / "bin" / "python")

    @staticmethod
    def make(venv: Path) -> None:
        """The template: released target files under otherwise empty packages, so that nothing heavy is imported."""
        done = run(sys.executable, "-m", "venv", "--without-pip", str(venv))
        assert done.status == 0, done.err
        site, stock, ours = next((venv / "lib").glob("python3*/site-packages")), stock_site(), installed_package()
        shutil.copytree(ours, site / "sglang_ext", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ours.parent / "sglang_ext.pth", site)
        for target in TARGETS:
            (site / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(stock / target, site / target)
            for parent in (site / target).relative_to(site).parents[:-1]:
                (site / parent / "__init__.py").touch()
        info = next(stock.glob("sglang-[0-9]*.dist-info"))
        shutil.copytree(info, site / info.name)

    def upstream(self, index: int) -> Path:
        return self.site / TARGETS[index]

    @property
    def overlay(self) -> Path:
        """The overlay folder, made now if it is not there."""
        if not (self.cache / "overlay").exists():
            done = self.show()
            assert done.out.startswith("overlay "), done
        (folder,) = (self.cache / "overlay").iterdir()
        return folder

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        base = {n: v for n, v in clean_environment(1, {}).items() if n not in ("PYTHONPATH", "XDG_CACHE_HOME")}
        ours = {"SGLANG_EXT_CACHE_DIR": str(self.cache), "XDG_RUNTIME_DIR": str(self.runtime)}
        return {n: v for n, v in {**base, **ours, **(extra or {})}.items() if v != "UNSET"}

    def launch(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        before: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> Done:
        """The launcher, in this Python. Every fault here is found before a model could be asked for."""
        command = [*before, self.python, *flags, "-m", "sglang_ext.launch", "--set", "NCCL_PROTO=LL"]
        command += ["--model-path", "none", "--port", str(free_port()), *words]
        return run(*command, env=self.environment(env), cwd=str(cwd or "/"))

    def show(self, env: Mapping[str, str] | None = None, before: Sequence[str] = ()) -> Done:
        """Which file an import of a patched module finds, without the launcher."""
        return run(*before, self.python, "-c", SHOW, env=self.environment(env))


def hand_to_nobody(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def small_disk(folder: Path, size: str = "16k") -> tuple[str, ...]:
    """Words before a command that then sees a tmpfs of ``size`` at ``folder``; it goes with the command."""
    folder.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o size={size},mode=0700 tmpfs "$0" && exec "$@"'
    return ("unshare", "-m", "sh", "-c", script, str(folder))


def with_etc(folder: Path, nccl_conf: str) -> tuple[str, ...]:
    """Words before a command that then sees another /etc: what a program needs of the real one, and this nccl.conf."""
    if not can_mount():
        pytest.skip("needs the right to mount")
    folder.mkdir(exist_ok=True)
    for name in ("passwd", "group", "hosts", "ld.so.cache", "nsswitch.conf"):
        if os.path.exists(f"/etc/{name}"):
            shutil.copy(f"/etc/{name}", folder)
    (folder / "nccl.conf").write_text(nccl_conf)
    return ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(folder))
