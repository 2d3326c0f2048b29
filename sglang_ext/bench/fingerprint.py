"""What a number was taken on: the machine, the software the *workers* run (not this shell's), and how it is configured.

Everything is read from the worker's side: its mapped files, the environment those belong to, its attestation, the server's
own answer. What cannot be read is null, with the reason beside it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from email.parser import BytesHeaderParser
from typing import Any

from sglang_ext.bench.suites.secret import secret_in
from sglang_ext.contract.names import looks_secret
from sglang_ext.nccl import library
from sglang_ext.nccl.version import version_text
from sglang_ext.run import attestation
from sglang_ext.run.directory import RunDirectory, RunError

PACKAGES = ("sglang", "sglang-ext", "sglang-kernel", "torch", "triton", "flashinfer-python", "transformers")
FAMILIES = ("nvidia-nccl-",)  # one distribution for each CUDA: nvidia-nccl-cu13
LIBRARIES = re.compile(r"(.*/(?:site|dist)-packages)/")
NO_LIBRARY = {"file": None, "sha256": None, "version": None}
DRIVER_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
DRIVER = "/proc/driver/nvidia"
LONGEST = 300  # characters of one argument
# Not how the server is configured: what happens in it now, and the command line, which may hold a key under any name.
NOT_ARGUMENTS = ("internal_states", "startup_time", "launch_command", "scheduler_info")
SECRET_VALUE = "(left out: it looks like it holds a secret)"


def machine() -> dict[str, Any]:
    """This host, for people and for grouping: nothing that identifies it."""
    cores = len(os.sched_getaffinity(0))
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": os.uname().release,
        "architecture": os.uname().machine,
        "gpus": [_field(path, "Model") for path in sorted(glob.glob(f"{DRIVER}/gpus/*/information"))],
    }


def driver(path: str = f"{DRIVER}/version") -> dict[str, Any]:
    """The GPU driver's version, where there is one."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = DRIVER_VERSION.search(file.readline())
    except OSError:
        return {"version": None, "reason": f"{path} is not there: no NVIDIA driver is loaded"}
    if found is None:
        return {"version": None, "reason": f"{path} names no version we can read"}
    return {"version": found[1], "reason": None}


def _field(path: str, name: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, colon, value = line.partition(":")
                if colon and key.strip() == name:
                    return value.strip()
    except OSError:
        pass  # another kernel or architecture: it does not say
    return None


def mapped_files(pid: int, proc: str = "/proc") -> dict[str, tuple[int, bool]]:
    """The files ``pid`` has mapped: path -> (inode, deleted since). Raises OSError."""
    found: dict[str, tuple[int, bool]] = {}
    with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            parts = line.rstrip("\n").split(None, 5)
            if len(parts) == 6 and parts[5].startswith("/"):
                path = parts[5].removesuffix(" (deleted)")
                found[path] = (int(parts[4]), path != parts[5])
    return found


def environment(mapped: Iterable[str], root: str = "") -> dict[str, Any]:
    """Versions of the Python environment that mapped files belong to: the one torch came from first. ``root``: its `/`."""
    places: dict[str, None] = {}
    for path in sorted(mapped, key=lambda p: "-packages/torch/" not in p):
        if found := LIBRARIES.match(path):
            places.setdefault(found[1])
    if not places:
        why = "the worker has no file of a site-packages mapped that we can see"
        return {"python": None, "packages": {}, "reason": why}
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for place in places:
        for name, version in _distributions(root + place):
            if versions.get(name) is None and (name in PACKAGES or name.startswith(FAMILIES)):
                versions[name] = version
    configuration = os.path.join(root + next(iter(places)), "..", "..", "..", "pyvenv.cfg")
    python = _setting(configuration, ("version", "version_info")) or _python_of(next(iter(places)))
    missing = [name for name, version in versions.items() if version is None]
    reason = f"not installed there: {', '.join(missing)}" if missing else None
    return {"python": python, "packages": dict(sorted(versions.items())), "reason": reason}


def _python_of(place: str) -> str | None:
    """3.12 from `lib/python3.12/site-packages`."""
    found = re.search(r"/python(\d+\.\d+)/[^/]*$", place)
    return found[1] if found else None


def _distributions(place: str) -> Iterable[tuple[str, str]]:
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return
    for entry in names:
        wanted = re.sub(r"[-_.]+", "-", entry.partition("-")[0]).lower()
        if entry.endswith(".dist-info") and (wanted in PACKAGES or wanted.startswith(FAMILIES)):
            try:
                with open(os.path.join(place, entry, "METADATA"), "rb") as file:
                    version = BytesHeaderParser().parse(file).get("Version")
            except OSError:
                continue  # half removed: it is not installed
            if version:
                yield wanted, str(version)


def _setting(path: str, names: tuple[str, ...]) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                key, equals, value = line.partition("=")
                if equals and key.strip() in names:
                    return value.strip()
    except (OSError, UnicodeDecodeError):
        pass  # no virtual environment
    return None


def nccl(pid: int, known: dict[Any, str | None]) -> list[dict[str, Any]]:
    """Every libnccl worker ``pid`` has mapped, by its bytes. ``known`` spares reading the same file again for each rank."""
    loaded = library.of_process(pid)
    if loaded.state != "ok":
        return [{**NO_LIBRARY, "reason": loaded.detail}]
    found = []
    for one in loaded.libraries:
        key = (one.device, one.inode, one.size, one.mtime_ns)
        if key not in known:
            known[key] = library.sha256(one, pid)
        version = version_text(one.version) if one.version else None
        reason = one.detail or (None if known[key] else "the file on disk is no longer the one the worker has mapped")
        found.append(
            {"file": os.path.basename(one.path), "sha256": known[key], "version": version, "reason": reason or None}
        )
    return found or [{**NO_LIBRARY, "reason": "no libnccl is mapped"}]


def patches(workers: Iterable[tuple[str, int, int]], directory: RunDirectory | None) -> dict[str, Any]:
    """The patch set and the files each worker attests to have imported; null where nobody attests."""
    if directory is None:
        return {"patchset": None, "mode": None, "imported": None, "reason": "a server not of ours attests nothing"}
    said = []
    for label, pid, started in workers:
        try:
            record = directory.read(attestation.record_name(pid))
        except RunError:
            record = None
        if record is None or not attestation.is_record(record, pid, started):
            why = f"{label} (pid {pid}) has no attestation that can be believed"
            return {"patchset": None, "mode": None, "imported": None, "reason": why}
        hook = record["hook"]
        said.append({"patchset": hook.get("patchset"), "mode": hook.get("mode"), "imported": hook.get("imported")})
    if not said or any(one != said[0] for one in said):
        return {"patchset": None, "mode": None, "imported": None, "reason": "the workers attest different files"}
    return {**said[0], "reason": None}


def arguments(server_info: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The arguments as upstream resolved them, without anything that may be a secret; and how many were left out."""
    left_out = 0
    kept: dict[str, Any] = {}
    for name, value in sorted(server_info.items()):
        if name in NOT_ARGUMENTS or name.startswith("_"):
            continue
        if is_secret(name, value):
            left_out += 1
        else:
            kept[name] = harmless(value)
    return kept, left_out


def is_secret(name: str, value: object) -> bool:
    """May this argument be a secret? By its name; but a *number* of tokens (max_total_tokens) is none."""
    upper = name.upper()
    if type(value) in (int, float) or value is None:
        upper = upper.replace("TOKENS", "-")
    return looks_secret(upper)


def harmless(value: Any) -> Any:
    """Nested values without secret names; texts that seem to carry a secret replaced; long ones cut, with a digest of the whole
    beside them: two that differ further on are still two.
    """
    if isinstance(value, Mapping):
        return {str(k): harmless(v) for k, v in value.items() if not is_secret(str(k), v)}
    if isinstance(value, list | tuple):
        return [harmless(v) for v in value]
    if isinstance(value, str):
        # JSON in a string ({"access_key": ...}), a URL with a password in it, a token that is known by its form.
        if looks_secret(value) or ("://" in value and "@" in value) or secret_in(value):
            return SECRET_VALUE
        return value if len(value) <= LONGEST else _cut(value)
    return value


def _cut(value: str) -> str:
    digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{value[:LONGEST]}... ({len(value)} characters, sha256 {digest[:16]})"


def collect(report: Mapping[str, Any], server_info: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of a verified server, from its verify report and its own answers."""
    workers = [(w["label"], w["pid"], w["start_time"]) for w in report["workers"] if w["counts"]]
    software: dict[str, Any] = {"python": None, "packages": {}, "reason": "no worker's mapped files could be read"}
    libraries: list[dict[str, Any]] = []
    known: dict[Any, str | None] = {}
    for label, pid, _ in workers:
        root = f"/proc/{pid}/root" if os.access(f"/proc/{pid}/root/", os.X_OK) else ""
        try:
            mapped = mapped_files(pid)
        except OSError as error:
            why = f"its mapped files cannot be read ({error.strerror})"
            libraries.append({"worker": label, **NO_LIBRARY, "reason": why})
            continue
        if not software["packages"]:
            software = environment(mapped, root)
        libraries += [{"worker": label, **one} for one in nccl(pid, known)]
    try:
        directory = RunDirectory.open(report["run"]["dir"]) if report["run"] else None
    except RunError:
        directory = None
    given, left_out = arguments(server_info)
    return {
        "machine": machine(),
        "driver": driver(),
        "server": software,
        "nccl": libraries,
        "contract": report["contract"],
        "patches": patches(workers, directory),
        "model": {k: harmless(model[k]) for k in ("model_path", "weight_version", "architectures") if k in model},
        "arguments": given,
        "arguments_left_out": left_out,
    }
