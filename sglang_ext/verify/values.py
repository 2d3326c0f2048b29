"""What the NCCL of a worker makes of the values it holds, its configuration files included: arrival is not effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sglang_ext.contract.names import looks_secret
from sglang_ext.nccl.conf import ConfFiles, load, read_file
from sglang_ext.nccl.finding import FAIL, NOTE, UNKNOWN, Finding
from sglang_ext.nccl.lint import lint
from sglang_ext.quick import NamedTuple
from sglang_ext.run.process import effective_uid

# Findings that reach beyond the variable they name: grave although the contract does not name it.
FAR_REACHING = frozenset(("conflict", "no_algorithm", "conf_sets", "ll128_forced"))


class Read(NamedTuple):
    """What one worker's NCCL reads: its files, and what there is to say of the whole."""

    conf: ConfFiles
    findings: tuple[Finding, ...]

    def file_that_sets(self, name: str, value: str | None) -> str | None:
        """``PATH line N`` of the definition that gave ``name`` this value, or None."""
        for file in self.conf.files:
            for entry in file.entries:
                if entry.name == name:
                    return f"{file.path} line {entry.line}" if entry.value == value else None
        return None


NOTHING_READ = Read(ConfFiles(), ())


def read_values(
    pid: int,
    environment: Mapping[str, str],
    version: tuple[int, ...] | None,
    wanted: Mapping[str, str | None],
    *,
    root: str = "",
) -> Read:
    """What the NCCL ``version`` in worker ``pid`` reads from ``environment`` and from the files below its ``root``."""
    home = home_of(pid, root)
    environment = {name: value for name, value in of_interest(environment).items() if not looks_secret(name)}
    if "HOME" not in environment and home is not None:
        environment = {**environment, "HOME": home}  # a worker that answers for itself names tuning variables only
    conf = load(environment, version, home, read=lambda path: read_file(root + path))
    found = lint(environment, version, conf=conf, wanted=wanted)
    return Read(conf, tuple(one for one in found if one.variable is None or not looks_secret(one.variable)))


def of_interest(environment: Mapping[str, str]) -> dict[str, str]:
    """What NCCL's rules look at: its own variables, slips of their names, and where the files are."""
    return {name: value for name, value in environment.items() if name[:1] in ("N", "n") or name == "HOME"}


def home_of(pid: int, root: str = "") -> str | None:
    """The home directory of the user that ``pid`` acts as, by the password file it sees; None where that has no line of it."""
    uid = effective_uid(pid)
    try:
        if root:
            return _home_in(read_file(f"{root}/etc/passwd").decode("utf-8", "replace"), uid)
        import pwd

        return pwd.getpwuid(uid).pw_dir if uid is not None else None
    except (KeyError, OSError):
        return None


def _home_in(passwd: str, uid: int | None) -> str | None:
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[2] == str(uid):
            return fields[5]
    return None


def weigh(finding: Finding, wanted: Collection[str], accepted: Collection[str], *, known: bool = True) -> Finding:
    """The finding as it counts for a verdict: what the contract does not name, or somebody accepted, is a note.

    ``known`` False: no libnccl is mapped, and the rules are a guess, which what depends on the release cannot stand on.
    """
    if finding.code in accepted:
        return finding._replace(severity=NOTE, message=f"{finding.message} (accepted)")
    if finding.severity == UNKNOWN and not known:
        return finding._replace(severity=NOTE)
    outside = finding.variable not in wanted and finding.code not in FAR_REACHING
    return finding._replace(severity=NOTE) if outside and finding.severity == FAIL else finding
