"""The run directory: private, ours, written atomically; and what makes one fit to be believed.

    DIR/run.json          who started the run and how                 (supervisor, or the engine seam)
    DIR/contract.json     the contract, decided once
    DIR/server.json       what upstream resolved: sizes, expected workers, who changed which variable (engine seam)
    DIR/refused/PID.json  why a process of the run refused to go on
    DIR/workers/PID.json  what a worker attests;  DIR/workers/PID.sock  where it answers again

Nothing but contract variables, tuning names and sizes is ever written here.
"""

from __future__ import annotations

import json
import os
import stat as stat_bits
import time
from collections.abc import Sequence

from sglang_ext.quick import Any
from sglang_ext.run.process import namespace

RUN_DIR = "SGLANG_EXT_RUN_DIR"
RUN_ID = "SGLANG_EXT_RUN_ID"
SCHEMA = "sglang-ext/run/1"
BIGGEST = 4 << 20  # bytes; a file of ours is a few KiB: something larger is not ours


class RunError(Exception):
    """The run directory cannot be made, or cannot be trusted; the message is one sentence with the fix."""


def default_base() -> str:
    """Where run directories live unless told otherwise: per user, so that names never clash between users.

    Not in logind's /run/user/UID, which is removed as the user logs out: a server started under nohup would lose its run. Nor
    in another user's directory: after one `sudo -E` that user could start nothing more.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        ours = os.path.isabs(runtime) and os.stat(runtime).st_uid == os.geteuid() and os.access(runtime, os.W_OK)
    except OSError:
        ours = False
    if ours and os.path.isdir(runtime) and not os.path.realpath(runtime).startswith("/run/user/"):
        return os.path.join(runtime, "sglang-ext")
    return f"/tmp/sglang-ext-{os.geteuid()}"


def check_trusted(path: str, *, made_by_us: bool = False) -> None:
    """Raise RunError unless ``path`` is a real directory, ours (or we are root), closed to everybody else.

    ``made_by_us``: its name says so; only then is closing it good advice (somebody may have named /tmp).
    """
    try:
        info = os.lstat(path)
    except OSError as error:
        fix = "name one that exists" if isinstance(error, FileNotFoundError) else "run as its owner or root"
        raise RunError(f"run directory {path} cannot be read ({error.strerror}); {fix}") from None
    if not stat_bits.S_ISDIR(info.st_mode):
        raise RunError(f"run directory {path} is not a directory but a link or file; name another")
    if os.geteuid() not in (0, info.st_uid):
        raise RunError(f"run directory {path} belongs to uid {info.st_uid}, expected {os.geteuid()}; name another")
    if info.st_mode & 0o077:
        mode = stat_bits.S_IMODE(info.st_mode)
        fix = f"run: chmod 700 {path}" if made_by_us else "name one that a launch has made"
        raise RunError(f"run directory {path} has mode {mode:04o}, expected 0700; {fix}")


def make_private(path: str, *, exist_ok: bool) -> None:
    """Create ``path`` with mode 0700, or accept an existing one that is already private and ours."""
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # mkdir's mode is cut by the umask, never widened: this only undoes a strange umask
    except FileExistsError:
        if not exist_ok:
            raise RunError(f"run directory {path} exists already; name one that does not") from None
        check_trusted(path, made_by_us=True)
    except OSError as error:
        raise RunError(
            f"run directory {path} cannot be created ({error.strerror}); name a writable place with --run-dir"
        ) from None


class RunDirectory:
    """One run's directory. Reading checks trust first; writing is atomic and 0600."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | None = None) -> RunDirectory:
        """Make a new, private run directory: ``path``, or a fresh name under `default_base`."""
        if path is None:
            base = default_base()
            make_private(base, exist_ok=True)
            path = os.path.join(base, time.strftime("%Y%m%d-%H%M%S-") + os.urandom(3).hex())
        path = os.path.abspath(path)
        make_private(path, exist_ok=False)
        for name in ("workers", "refused"):
            make_private(os.path.join(path, name), exist_ok=False)
        return cls(path)

    @classmethod
    def open(cls, path: str) -> RunDirectory:
        """An existing run directory that may be believed; RunError when it may not."""
        check_trusted(path)
        return cls(os.path.abspath(path))

    def hold(self) -> None:
        """Keep it from being cleaned away, for as long as this process lives: a server outlives the ten days that files in /tmp
        may have. systemd-tmpfiles passes over a directory it cannot have a shared BSD lock of (tmpfiles.d(5)).
        """
        import fcntl

        try:
            self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # some file systems have no locks: there it is as it would have been

    def __repr__(self) -> str:
        return f"RunDirectory({self.path!r})"

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write JSON so that a reader sees the old file or the whole new one, never a part. Raises RunError."""
        target = self.file(name)
        scratch = f"{target}.{os.getpid()}.{os.urandom(3).hex()}.tmp"
        try:
            handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(value, file, indent=1, sort_keys=True)
                file.write("\n")
            os.replace(scratch, target)
        except BaseException as error:
            try:
                os.unlink(scratch)
            except OSError:
                pass  # it was never made, or its directory is gone: nothing of ours is left either way
            if not isinstance(error, OSError):
                raise
            raise RunError(
                f"{target} cannot be written ({error.strerror}); free space or name another --run-dir"
            ) from None

    def read(self, name: str) -> dict[str, Any] | None:
        """The JSON object in ``name``; None when there is no such file. RunError when torn, foreign or a link."""
        target = self.file(name)
        try:
            # Not blocking: a FIFO in its place must not hold the reader up.
            handle = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"{target} cannot be read ({error.strerror})") from None
        try:
            info = os.fstat(handle)
            if not stat_bits.S_ISREG(info.st_mode):
                raise RunError(f"{target} is no regular file; it is not believed")
            if info.st_uid not in (os.geteuid(), os.lstat(self.path).st_uid):
                raise RunError(f"{target} belongs to uid {info.st_uid}, not to the run's owner; it is not believed")
            with open(handle, "rb", closefd=False) as file:
                raw = file.read(BIGGEST + 1)
        except OSError as error:
            raise RunError(f"{target} cannot be read ({error.strerror})") from None
        finally:
            os.close(handle)
        try:
            value = json.loads(raw) if len(raw) <= BIGGEST else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise RunError(f"{target} holds no whole JSON object; it is not believed, start the server again")
        return value

    def names(self, folder: str) -> list[str]:
        """The JSON files in a folder of the run, as names `read` takes."""
        try:
            found = os.listdir(self.file(folder))
        except OSError:
            return []
        return sorted(f"{folder}/{name}" for name in found if name.endswith(".json"))


def begin(
    directory: RunDirectory,
    *,
    mode: str,
    policy: str,
    dry_run: bool,
    owner: tuple[int, int],
    accepted: Sequence[str] = (),
    patchset: str | None = None,
) -> dict[str, Any]:
    """Write run.json. ``mode``: launcher or engine; ``policy``: strict, warn or off; ``owner``: pid, start time; ``accepted``:
    the codes of findings about values that were taken for wanted; ``patchset``: the digest every process of it must run.

    The id rides in every process's environment: a worker that cannot find the directory must know whether to refuse, and it
    may not where no launcher demanded anything (`bootstrap.demanded`).
    """
    run = {
        "schema": SCHEMA,
        "id": f"{os.path.basename(directory.path)}-{os.urandom(4).hex()}{'' if mode == 'launcher' else '-own'}",
        "created": time.time(),
        "mode": mode,
        "policy": policy,
        "dry_run": dry_run,
        "owner": {"pid": owner[0], "start_time": owner[1]},
        "pid_namespace": namespace("self", "pid"),  # where that pid means something: containers may share /tmp
        "accepted": sorted(accepted),
        "patchset": patchset,
    }
    directory.write("run.json", run)
    return run
