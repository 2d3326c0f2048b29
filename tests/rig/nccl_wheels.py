"""Real libnccl files, from pip's index: .rig/nccl/VERSION/libnccl.so.2 (cu12) and .rig/nccl/VERSION-cu13/libnccl.so.2.

    python -m tests.rig.nccl_wheels                  those that the tests use
    python -m tests.rig.nccl_wheels 2.21.5 ...       others as well

A wheel has some 150 to 300 MB; only its library is kept. What is there already is not fetched again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / ".rig" / "nccl"
VERSIONS = ("2.18.3", "2.23.4", "2.27.7", "2.32.3")  # the first and last whose rules are known, and two between
MEMBER = "nvidia/nccl/lib/libnccl.so.2"
SPARE = 2 * 1024**3  # bytes that must stay free on the disk


class FetchError(Exception):
    """A wheel could not be had; one sentence with the fix."""


def path_of(version: str, store: Path = STORE) -> Path:
    """Where the library of a version is or will be: ``2.27.7``, or ``2.32.3-cu13`` for another CUDA than 12."""
    return store / version / "libnccl.so.2"


def fetch(version: str, store: Path = STORE) -> Path:
    """The library of a version, fetched if it is not there.

    Raises:
        FetchError: pip cannot fetch it, or the disk is nearly full.
    """
    library = path_of(version, store)
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(store / ".lock", "w") as lock:  # test runs may start at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            _fetch(version, library)
    return library


def _fetch(version: str, library: Path) -> None:
    if shutil.disk_usage(library.parent).free < SPARE:
        raise FetchError(f"NCCL {version}: expected 2 GB free on the disk of {library.parent}, found less; make room")
    number, _, cuda = version.partition("-")
    with TemporaryDirectory(dir=library.parent) as folder:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir",
            "--only-binary", ":all:", "--dest", folder, f"nvidia-nccl-{cuda or 'cu12'}=={number}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise FetchError(
                f"NCCL {version}: expected one wheel from pip's index, found none: {said}; try it with pip"
            )
        part = Path(folder) / "libnccl.part"
        with ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as source, open(part, "wb") as target:
            shutil.copyfileobj(source, target, 1024 * 1024)
        os.replace(part, library)


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch and list."""
    for version in dict.fromkeys((*VERSIONS, *(sys.argv[1:] if argv is None else argv))):
        try:
            library = fetch(version)
        except FetchError as error:
            print(f"nccl_wheels: {error}", file=sys.stderr)
            return 1
        print(f"{version}\t{library.stat().st_size}\t{library.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
