"""The locked wheels of upstream: from a file or folder, from our cache, or through pip with the user's own index settings.

Kept in the cache by sha256 and believed by sha256 only.
"""

from __future__ import annotations

import os
import sys

from sglang_ext.patchset.overlay import cache_base, sha256_file
from sglang_ext.patchset.tree import TreeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sglang_ext.patchset.lock import Release
    from sglang_ext.patchset.tree import Tree


def wheel_name(tree: Tree, release: Release) -> str:
    """Which wheel of the release a tree was installed from, by the tags in its metadata. Raises TreeError."""
    tags: set[str] = set()
    for line in (tree.read(f"{tree.info}/WHEEL") or b"").decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key == "Tag":
            tags.add(value.strip())
    for name in release.wheels:
        if _tags(name) & tags:
            return name
    raise TreeError(
        "wheel_wrong",
        f"the sglang {tree.version} in {tree.root} says it is from a wheel for {', '.join(sorted(tags)) or 'nothing'}, which the "
        f"lock does not have; install it from one it has ({', '.join(sorted(release.wheels))})",
    )


def _tags(name: str) -> set[str]:
    """Every tag a file name stands for: `py2.py3-none-any` is two."""
    python, abi, machine = name.removesuffix(".whl").split("-")[-3:]
    return {f"{p}-{a}-{m}" for p in python.split(".") for a in abi.split(".") for m in machine.split(".")}


def checked(path: str, wheels: Mapping[str, str]) -> str:
    """The path, if the file is one of these wheels. Raises TreeError."""
    try:
        found = sha256_file(path)
    except OSError as error:
        raise TreeError(
            "wheel_missing", f"{path} cannot be read ({error.strerror}); name another wheel with --from"
        ) from None
    if found not in wheels.values():
        raise TreeError(
            "wheel_wrong",
            f"{path} has sha256 {found[:12]}, expected one of the lock's wheels of this release "
            f"({', '.join(f'{name} {known[:12]}' for name, known in sorted(wheels.items()))}); download it again",
        )
    return path


def in_folder(folder: str, release: Release) -> Iterator[str]:
    """The paths of a release's wheels in a folder, all of which must be there and be what the lock says."""
    for name, known in release.wheels.items():
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            raise TreeError(
                "wheel_missing", f"{folder} has no {name}, which the lock lists; put it there, or leave out --wheels"
            )
        yield checked(path, {name: known})


def fetched(release: Release, names: Iterable[str], say: Callable[[str], object]) -> Iterator[str]:
    """The paths of these wheels of a release, downloaded where our cache has them not. Raises TreeError."""
    for name in names:
        known = release.wheels[name]
        path = os.path.join(cache_base(), "wheels", known, name)
        if not (os.path.exists(path) and sha256_file(path) == known):
            say(f"downloading {name}")
            _download(release.version, name, known, path)
        yield path


def _download(version: str, name: str, known: str, path: str) -> None:
    import subprocess
    from tempfile import TemporaryDirectory

    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with TemporaryDirectory(dir=os.path.dirname(path)) as scratch:
        python, abi, machine = name.removesuffix(".whl").split("-")[-3:]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", scratch]
        if abi != "none":
            command += ["--implementation", "cp", "--python-version", python.removeprefix("cp"), "--abi", abi]
            command += ["--platform", machine]
        try:
            done = subprocess.run([*command, f"sglang=={version}"], capture_output=True, text=True, check=False)
        except OSError as error:
            raise TreeError(
                "wheel_missing", f"pip cannot be run ({error.strerror}); name the wheel with --from"
            ) from None
        got = os.path.join(scratch, name)
        if done.returncode or not os.path.exists(got):
            said = (
                done.stderr.strip().splitlines() or [f"it came with {', '.join(os.listdir(scratch)) or 'nothing'}"]
            )[-1]
            raise TreeError(
                "wheel_missing",
                f"pip could not download {name} ({said}); name the file with --from, or its folder with --wheels",
            )
        os.replace(checked(got, {name: known}), path)
