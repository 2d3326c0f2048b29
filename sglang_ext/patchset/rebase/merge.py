"""The three-way merge of one file, by `git merge-file`: no repository and no history, only the three texts."""

from __future__ import annotations

from typing import NamedTuple

from sglang_ext.patchset.model import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class MergeError(PatchError):
    """There is no git here, or it cannot merge these files."""


class Merged(NamedTuple):
    """The merged text; where `conflicts` is not 0, with conflict markers in it."""

    text: bytes
    conflicts: int


def three_way(ours: bytes, base: bytes, theirs: bytes, labels: Sequence[str]) -> Merged:
    """What `ours` did to `base`, done to `theirs`; `labels` name the three in the markers. Raises MergeError."""
    import os
    import shutil
    import subprocess
    from tempfile import TemporaryDirectory

    git = shutil.which("git")
    if git is None:
        raise MergeError(
            "A patch does not fit as it is and must be merged, which takes `git merge-file`, but git is not installed:"
            " install git."
        )
    with TemporaryDirectory(prefix="sglang-ext-merge-") as folder:
        names = ("ours", "base", "theirs")
        for name, text in zip(names, (ours, base, theirs), strict=True):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(text)
        command = [git, "merge-file", "-p", "--diff3"]
        for label in labels:
            command += ["-L", label]
        # The user's configuration and repository are none of this merge's business.
        env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_CEILING_DIRECTORIES": folder}
        done = subprocess.run([*command, *names], cwd=folder, env=env, capture_output=True, check=False)
    # The exit code is the number of conflicts, 127 at most; beyond that, or by a signal, git could not do it.
    if not 0 <= done.returncode <= 127:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise MergeError(f"git merge-file failed ({said[0] if said else done.returncode}): look at the files by hand.")
    return Merged(done.stdout, done.returncode)


def is_marked(text: bytes) -> bool:
    """Are conflict markers left in it?"""
    return any(line.startswith((b"<<<<<<< ", b"||||||| ", b">>>>>>> ")) for line in text.split(b"\n"))
