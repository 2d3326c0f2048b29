"""An environment for any supported release of SGLang, beside the full one of the newest and on its libraries.

A release's own requirements are a torch of some 11 GB each. Its Python code runs on the newest one's as well, so an environment
here is a venv with the release's wheel in it, by its hash in the lock, and a path to everything else. What its age needs
beyond that stands in `older/` and in `flags`. The hook is armed by a `.pth` file of its own, as pip would leave it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sglang_ext.patchset.lock import load_lock
from tests.rig.environment import RIG
from tests.rig.server import Server

ROOT = RIG.parents[1]
LOCK = ROOT / "patches" / "upstream.toml"
# Releases before this one take equal backends for both phases for a wish they cannot grant, and fall back for both.
BOTH_PHASES = (0, 5, 18)
# Answered only once the schedulers are up; /ready, which says so itself, came with 0.5.20.
ANSWERS_WHEN_READY = "/model_info"


class Release(NamedTuple):
    """One release, ready to be started: which Python, with which PYTHONPATH, with which flags behind the rig's."""

    version: str
    python: Path
    path: str
    flags: tuple[str, ...]

    def server(self, log: Path, **how: object) -> ReleaseServer:
        """A server of this release; ``how`` as for `Server`."""
        environment = {**dict(how.pop("environment", {})), "PYTHONPATH": self.path}  # type: ignore[call-overload]
        return ReleaseServer(log, python=str(self.python), environment=environment, flags=self.flags, **how)  # type: ignore[arg-type]


class ReleaseServer(Server):
    """A server of any release: the old ones have no /ready."""

    def ready(self) -> bool:
        try:
            return bool(self.get(ANSWERS_WHEN_READY))
        except OSError:
            return False


def supported() -> tuple[str, ...]:
    """Every release of the lock, oldest first."""
    return tuple(load_lock(str(LOCK)).supported())


def prepare(version: str, folder: Path, wheels: Sequence[Path] = ()) -> Release:
    """The environment of ``version`` below ``folder``, made once. Its wheel is looked for in ``wheels`` before the index."""
    place = folder / version
    done = place / "done"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        wheel = find_wheel(version, [*wheels, folder.with_name("wheels")])
        venv.create(place, with_pip=False, symlinks=True)
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        shutil.copy(ROOT / "sglang_ext.pth", site)
        (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        done.touch()
    old = tuple(int(part) for part in version.split(".")[:3]) < BOTH_PHASES
    flags = ("--decode-attention-backend", "torch_native") if old else ()
    path = os.pathsep.join(map(str, (RIG, RIG / "older", ROOT)))
    return Release(version, place / "bin" / "python", path, flags)


def find_wheel(version: str, folders: Sequence[Path]) -> Path:
    """The wheel of ``version`` for this Python; fetched into the last of ``folders`` where none has it. Always of a known hash."""
    known = load_lock(str(LOCK)).get(version).wheels
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = next(n for n in known if n.endswith("-none-any.whl") or (f"-{tag}-" in n and n.endswith("_x86_64.whl")))
    wheel = next((f / name for f in folders if (f / name).is_file()), folders[-1] / name)
    if not wheel.is_file():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            + ["--only-binary=:all:", "--dest", str(wheel.parent), f"sglang=={version}"],
            check=True,
        )
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert found == known[name], f"{wheel}: expected sha256 {known[name]} (the lock), found {found}; delete it and fetch it again"
    return wheel
