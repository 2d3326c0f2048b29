"""An environment for any supported release of SGLang, beside the full one of the newest and on its libraries.

A release's own requirements are a torch of some 11 GB each. Its Python code runs on the newest one's as well, so an environment
here is a venv with the release's wheel in it, by its hash in the lock, and a path to everything else. What its age needs
beyond that stands in `older/` and in `flags`. The hook is armed by a `.pth` file of its own, as pip would leave it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NamedTuple

from sglang_ext.delivery.seams.engine import CARRIED
from sglang_ext.patchset.lock import load_lock
from tests.rig.environment import RIG
from tests.rig.server import LAUNCHER, STOCK, Server, clean_environment

ROOT = RIG.parents[1]
LOCK = ROOT / "patches" / "upstream.toml"
WHEELS = ROOT / ".rig" / "wheels"  # by their hash, as tools/check_patches.py --fetch keeps them
# Releases before this one take equal backends for both phases for a wish they cannot grant, and fall back for both.
BOTH_PHASES = (0, 5, 18)
# Answered only once the schedulers are up; /ready, which says so itself, came with 0.5.20.
ANSWERS_WHEN_READY = "/model_info"
CONTRACT = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # which every release overwrites
}
SETS = tuple(word for name, value in CONTRACT.items() for word in ("--set", f"{name}={value}"))
PROMPTS = ("hello world the quick brown fox", "the quick", "fox fox fox hello brown world 1234")
TOKENS = 24


class Release(NamedTuple):
    """One release, ready to be started: which Python, with which PYTHONPATH, with which flags behind the rig's."""

    version: str
    python: Path
    path: str
    flags: tuple[str, ...]

    def server(self, log: Path, model: Path, *, patched: bool, **how: Any) -> ReleaseServer:
        """A server of this release: by our launcher with the contract, or stock with the hook off and the variables set."""
        if patched:
            how |= {"start": LAUNCHER, "options": SETS, "environment": {"PYTHONPATH": self.path}}
        else:
            how |= {"start": STOCK, "environment": {**CONTRACT, "SGLANG_EXT": "0", "PYTHONPATH": self.path}}
        return ReleaseServer(log, python=str(self.python), model=model, flags=self.flags, **how)

    def verify(self, server: Server, *words: str) -> dict[str, Any]:
        """The report of `verify-env` on one server, by this release's Python, in a shell without the variables."""
        command = [str(self.python), "-m", "sglang_ext", "verify-env", "--port", str(server.port), *words, "--json"]
        environment = {**clean_environment(1, {}), "PYTHONPATH": self.path}
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )
        report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"verdict": done.stderr.strip()}
        return report


class ReleaseServer(Server):
    """A server of any release: the old ones have no /ready."""

    def ready(self) -> bool:
        try:
            return bool(self.get(ANSWERS_WHEN_READY))
        except OSError:
            return False

    def tokens(self) -> list[list[int]]:
        """The greedy answers to the prompts, which patching must not change."""
        return [self.generate(prompt, TOKENS)["output_ids"] for prompt in PROMPTS]


class Trial(NamedTuple):
    """One release, stock and then patched. What was not reached is empty, and `why` says what stopped it."""

    version: str
    stock: str = ""  # the verdict on the stock server
    patched: str = ""
    equal: bool | None = None
    private: bool | None = None  # nothing of ours in what the server publishes of its arguments
    seconds: float = 0.0
    why: str = ""


def trial(release: Release, model: Path, logs: Path) -> Trial:
    """Start ``release`` stock, then patched; ask both the same; judge both. An error of either ends up in `why`."""
    began = time.monotonic()
    found = Trial(release.version)
    try:
        with release.server(logs / f"{release.version}-stock.log", model, patched=False) as server:
            server.wait_ready()
            stock = server.tokens()
            found = found._replace(stock=release.verify(server, *SETS)["verdict"])
        with release.server(logs / f"{release.version}-patched.log", model, patched=True) as server:
            server.wait_ready()
            found = found._replace(patched=release.verify(server)["verdict"])
            found = found._replace(equal=server.tokens() == stock)
            # Not before the first request: up to then the old releases do not listen for what this asks their workers.
            found = found._replace(private=CARRIED not in json.dumps(server.get("/server_info")))
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        found = found._replace(why=reason(str(error)))
    return found._replace(seconds=time.monotonic() - began)


def reason(text: str) -> str:
    """The line of an error, or of a log, that says most: the last one that names an exception, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no word of it"]
    return next((line for line in reversed(lines) if re.match(r"(\w+\.)*\w*(Error|Exception): ", line)), lines[-1])


def supported() -> tuple[str, ...]:
    """Every release of the lock, oldest first."""
    return tuple(load_lock(str(LOCK)).supported())


def prepare(version: str, folder: Path, wheels: Sequence[Path] = ()) -> Release:
    """The environment of ``version`` below ``folder``, made once. Its wheel is looked for in ``wheels`` before the index."""
    place = folder / version
    return furnish(version, place, None if (place / "complete").exists() else find_wheel(version, wheels))


def site_of(place: Path) -> Path:
    """Where the packages of an environment are."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))


def furnish(version: str, place: Path, wheel: Path | None) -> Release:
    """An environment in ``place`` with this wheel in it, where one is given; else what an earlier call has made there."""
    site = site_of(place)
    if wheel is not None:
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=False, symlinks=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        lend_bytecode(site)
        (place / "complete").touch()
    shutil.copy(ROOT / "sglang_ext.pth", site)
    # By addsitedir, not as a bare path: some of the libraries have .pth files of their own.
    (site / "libraries.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    old = tuple(int(part) for part in version.split(".")[:3]) < BOTH_PHASES
    flags = ("--decode-attention-backend", "torch_native") if old else ()
    path = os.pathsep.join(map(str, (RIG, RIG / "older", ROOT)))
    return Release(version, place / "bin" / "python", path, flags)


def lend_bytecode(site: Path) -> None:
    """Give the files there the bytecode that this environment has of the same ones, and their dates, which it goes by: a server
    that compiles thousands of modules takes half a minute more to start."""
    ours = Path(sysconfig.get_path("purelib"))
    for path in (site / "sglang").rglob("*.py"):
        twin = ours / path.relative_to(site)
        cached = Path(cache_from_source(str(twin)))
        if cached.is_file() and twin.read_bytes() == path.read_bytes():
            info = twin.stat()
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
            target = Path(cache_from_source(str(path)))
            target.parent.mkdir(exist_ok=True)
            shutil.copy(cached, target)


def wheel_name(version: str) -> str | None:
    """The wheel of the lock that fits this Python and machine; None where there is none."""
    fits = ("-none-any.whl", f"-cp{sys.version_info[0]}{sys.version_info[1]}-manylinux_2_34_{platform.machine()}.whl")
    return next((name for name in load_lock(str(LOCK)).get(version).wheels if name.endswith(fits)), None)


def find_wheel(version: str, folders: Sequence[Path] = ()) -> Path:
    """The wheel of ``version`` for this Python, of the hash in the lock: from ``folders``, or fetched once and kept."""
    name = wheel_name(version)
    if name is None:
        raise ValueError(f"the lock has no wheel of sglang {version} for this Python and machine; use another Python")
    sha256 = load_lock(str(LOCK)).get(version).wheels[name]
    kept = WHEELS / sha256 / name
    wheel = next((f / name for f in folders if (f / name).is_file()), kept)
    if not wheel.is_file():
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*download, "--only-binary=:all:", "--dest", str(kept.parent), f"sglang=={version}"], check=True)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(f"{wheel}: expected sha256 {sha256}, found {found}; delete it, and it is fetched again")
    return wheel
