"""The user's own patches: where they lie, which of them are in, and what they add to a patch set.

They follow ours, each a unified diff of one upstream file; a header is welcome and not asked for. `series` in their
folder gives their order; what it does not list comes after, by name. A folder inside it is a group: `--without GROUP`
leaves all of it out.

An installed package is replaced at every upgrade, so nothing of the user's lies in it. The folder is, in this order:
$SGLANG_EXT_LOCAL_PATCHES; in a checkout its own patches/local; else sglang-ext/patches/local in $XDG_CONFIG_HOME or
~/.config. The import hook looks here in every process: without local patches that costs one `listdir`.
"""

from __future__ import annotations

import os

from sglang_ext.patchset.model import PatchError
from sglang_ext.patchset.series import LOCAL, SUFFIX, PatchSet, entries, is_patch_file, read_file, read_patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sglang_ext.patchset.model import Patch

FOLDER = "SGLANG_EXT_LOCAL_PATCHES"  # where they lie
WITHOUT = "SGLANG_EXT_WITHOUT"  # names to leave out, separated by commas: what --without hands to every child


class LocalError(PatchError):
    """A local patch cannot be used. ``code`` is a stable reason code; the message is one sentence with the fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def local_folder(patches: str) -> str | None:
    """The folder of local patches beside the patch set in ``patches``; None where there is no home to have one in."""
    chosen = os.environ.get(FOLDER)
    if chosen:
        return os.path.abspath(chosen)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.abspath(patches) != os.path.join(package, "patches"):
        return os.path.join(patches, LOCAL)
    return home_folder()


def home_folder() -> str | None:
    """Where an installed sglang-ext has this user's local patches."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "sglang-ext", "patches", LOCAL) if os.path.isabs(home) else None


def hidden(patches: str) -> list[str]:
    """The local patches of an installed sglang-ext that one with its patch set in ``patches``, a checkout say, leaves out."""
    home, own = home_folder(), local_folder(patches)
    if os.environ.get(FOLDER) or home is None or own == home:
        return []
    there = set(local_names(own))
    return [short(name) for name in local_names(home) if name not in there]


def left_out() -> tuple[str, ...]:
    """The names in $SGLANG_EXT_WITHOUT."""
    return tuple(name for part in os.environ.get(WITHOUT, "").split(",") if (name := part.strip()))


def local_names(folder: str | None) -> list[str]:
    """The patch files in the folder, in their order. Raises PatchError where `series` lists what is not there.

    What it does not list comes after, by name: `adopt` writes a patch before its line, and may be interrupted.
    """
    if folder is None:
        return []
    try:
        top = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if not os.environ.get(FOLDER):
            return []  # a home that is closed to this user holds none of their patches
        raise LocalError(
            "local_patch_misfit",
            f"the folder of local patches {folder} cannot be read ({error.strerror}); open it or set {FOLDER}",
        ) from None
    if top:
        check_trusted(folder)
    present = []
    for name in sorted(top):
        if is_patch_file(name):
            present.append(name)
        elif os.path.isdir(os.path.join(folder, name)):
            present += [f"{name}/{one}" for one in sorted(os.listdir(os.path.join(folder, name))) if is_patch_file(one)]
            _refuse_nested(os.path.join(folder, name))
    if "series" not in top:
        return present
    listed, faults = entries(read_file(folder, "series"), f"{LOCAL}/series")
    faults += [f"Patch {LOCAL}/{name} is in {LOCAL}/series and not there: restore it or take the line out."
               for name in listed if name not in present]  # fmt: skip
    if faults:
        raise LocalError("local_patch_misfit", f"{folder}: {faults[0]}")
    return listed + [name for name in present if name not in listed]


def nested(group: str) -> Iterator[str]:
    """Every folder inside a group, and what lies in those; a hidden one (`.git`) is of another tool."""
    for where, folders, files in os.walk(group):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(where, name) for name in folders)
        if where != group:
            yield from (os.path.join(where, name) for name in sorted(files))


def _refuse_nested(group: str) -> None:
    """A patch deeper down is in no group and would not be in: say so. Raises LocalError."""
    for path in nested(group):
        if is_patch_file(os.path.basename(path)) and os.path.isfile(path):
            raise LocalError(
                "local_patch_misfit",
                f"local patch {path} lies deeper than a group, which is one folder of patches: move it up into {group}",
            )


def check_trusted(folder: str) -> None:
    """Refuse a folder whose patches somebody else may have put there: they are code that every worker runs. Raises LocalError."""
    info = os.stat(folder)
    if info.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:
        found = f"found it to belong to uid {info.st_uid}"
    elif info.st_mode & 0o002:
        found = "found it writable for everybody"
    else:
        return
    raise LocalError(
        "local_patch_misfit",
        f"the folder of local patches {folder}: expected one that only its owner may change, us or root, {found}; "
        f"correct that, or set {FOLDER}",
    )


def short(name: str) -> str:
    """What --without calls it: `local/tuning/scheduler.patch` -> `tuning/scheduler`."""
    return name.removeprefix(f"{LOCAL}/").removesuffix(SUFFIX)


def _meant(names: Sequence[str], wanted: str) -> list[str]:
    """The patches that a name of one, or of a group, stands for."""
    return [name for name in names if short(name) == short(wanted) or name.startswith(f"{short(wanted)}/")]


def still_there(folder: str | None, without: Iterable[str]) -> list[str]:
    """Those names in ``without`` that are a local patch or group now. Raises PatchError."""
    names = local_names(folder)
    return [name for name in without if _meant(names, name)]


def local_files(folder: str | None, without: Iterable[str] = ()) -> list[tuple[str, bytes]]:
    """(`local/...`, bytes) of every patch that is in. A name in ``without`` that is none raises: it may be a slip."""
    names = kept = local_names(folder)
    for unwanted in without:
        meant = _meant(names, unwanted)
        if not meant:
            there = ", ".join(map(short, names)) or "none"
            raise LocalError(
                "local_patch_unknown",
                f"{unwanted!r} is no local patch or group in {folder}, which has {there}; correct it",
            )
        kept = [name for name in kept if name not in meant]
    return [(f"{LOCAL}/{name}", read_file(str(folder), name)) for name in kept]


def digest_with(digest: str, files: Sequence[tuple[str, bytes]]) -> str:
    """The digest of a patch set together with local patches; without any it stays the set's own."""
    if not files:
        return digest
    import hashlib

    whole = hashlib.sha256(f"{digest}\0".encode())
    for name, data in files:
        whole.update(f"{name}\0{len(data)}\0".encode())
        whole.update(data)
    return whole.hexdigest()


def parsed(files: Sequence[tuple[str, bytes]]) -> list[Patch]:
    """The patches in these files. Raises LocalError."""
    try:
        return [read_patch(name, data) for name, data in files]
    except PatchError as error:
        raise LocalError("local_patch_misfit", str(error)) from None


def joined(base: PatchSet, files: Sequence[tuple[str, bytes]]) -> PatchSet:
    """The patch set and the local patches after it."""
    return PatchSet([*base.patches, *parsed(files)], digest_with(base.digest, files))


def apply_local(done: dict[str, bytes], patches: Sequence[Patch], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Patched bytes by target after ``done``; ``read`` gives what is not in it. All or none; raises LocalError."""
    from sglang_ext.patchset.diff import apply

    results = dict(done)
    for patch in patches:
        source = results[patch.target] if patch.target in results else read(patch.target)
        try:
            results[patch.target] = apply(patch, source)
        except PatchError as error:
            raise LocalError(
                "local_patch_misfit", f"{error} (a local patch: leave it out with --without {short(patch.origin)})"
            ) from None
    return results


def check_compiles(results: Mapping[str, bytes], patches: Sequence[Patch]) -> None:
    """Refuse a result that is no Python, before anything is written. Half a second for ten large files."""
    for patch in patches:
        if patch.target.endswith(".py"):
            try:
                compile(results[patch.target], patch.target, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None)
                raise LocalError(
                    "local_patch_misfit",
                    f"file {patch.target} does not compile with local patch {short(patch.origin)} (line {line}: "
                    f"{getattr(error, 'msg', error)}); mend the patch, or leave it out with --without",
                ) from None


def not_importable(patches: Sequence[Patch]) -> str | None:
    """Why the import hook cannot deliver these, or None: it redirects imports, and waits for that of `sglang`."""
    for patch in patches:
        if not patch.target.endswith(".py") or patch.target == "sglang/__init__.py":
            return (
                f"local patch {short(patch.origin)} changes {patch.target}, which no import of ours can stand in for; "
                f"put it in place with: sglang-ext patches apply, or leave it out with --without {short(patch.origin)}"
            )
    return None
