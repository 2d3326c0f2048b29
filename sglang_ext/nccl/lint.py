"""A whole environment before NCCL reads it: names nobody reads, values it reads otherwise, variables that fight.

Only names that begin with NCCL_, or look like a slip of that, are looked at. Pure: the configuration files come in parsed.
"""

from __future__ import annotations

from collections.abc import Mapping

from sglang_ext.nccl.catalogue import PREFIX, Variable, get, gone, opposite, suggest, too_new
from sglang_ext.nccl.combine import combinations
from sglang_ext.nccl.conf import ENVIRONMENT, FILE_VARIABLE, FILE_VARIABLE_SINCE, ConfFiles, merged
from sglang_ext.nccl.finding import FAIL, NOTE, UNKNOWN, Finding, library, shown
from sglang_ext.nccl.understand import taken, understand
from sglang_ext.nccl.version import NEWEST_KNOWN, version_text

# Names that look like NCCL's own and are read by somebody else, or by nobody: base images set NCCL_VERSION.
ELSEWHERE = {
    "NCCL_VERSION": "container images state a package version in it",
    "NCCL_ASYNC_ERROR_HANDLING": "PyTorch reads it, as TORCH_NCCL_ASYNC_ERROR_HANDLING too",
    "NCCL_BLOCKING_WAIT": "PyTorch reads it, as TORCH_NCCL_BLOCKING_WAIT too",
    "NCCL_DESYNC_DEBUG": "PyTorch reads it, as TORCH_NCCL_DESYNC_DEBUG too",
    "NCCL_ENABLE_TIMING": "PyTorch reads it, as TORCH_NCCL_ENABLE_TIMING too",
}
ELSEWHERE_PREFIXES = {
    "NCCL_FASTRAK_": "a network plugin reads it",
    "NCCL_GPUDIRECTTCPX_": "a network plugin reads it",
    "NCCL_SHARP_": "a network plugin reads it",
    "NCCL_PLUGIN_": "a network plugin reads it",
}
BESIDE = ("CUDA_", "TORCH_NCCL_")  # read by others, and set along with NCCL's
LONGEST_NAME = 80
MOST_STRANGERS = 200  # with more of them nobody mistyped something


def lint(
    env: Mapping[str, str],
    version: tuple[int, ...] | None,
    *,
    conf: ConfFiles | None = None,
    wanted: Mapping[str, str | None] | None = None,
) -> list[Finding]:
    """Everything worth saying, the environment's names in order, then what files and combinations add.

    ``wanted`` is the contract: a value, or None for a variable that must be absent. Without a version the newest known rules
    are taken; what happens in other releases only is then a note.
    """
    wanted = wanted or {}
    seen = merged(env, conf or ConfFiles())
    findings: list[Finding] = []
    ours = [name for name in sorted(seen) if _ours(name)]
    strangers = sum(get(name) is None for name in ours)
    for name in ours:
        value, source = seen[name]
        variable = get(name)
        if variable is None:
            told = _stranger(name, version, strangers <= MOST_STRANGERS)
        else:
            told = _age(variable, version, wanted) or list(understand(name, value, version).faults)
        findings += told if source == ENVIRONMENT else [_from_file(finding, source) for finding in told]
    findings += [finding for name in sorted(wanted) if name.startswith(BESIDE) for finding in _beside(name)]
    if conf is not None:
        findings += _files(env, conf, version, wanted)
    known = {name: value for name, (value, _) in seen.items() if name.startswith(PREFIX)}
    return findings + combinations(known, version)


def _ours(name: str) -> bool:
    """Whether a look at the name is worth its time: most variables of a process are nothing of the kind."""
    if name.startswith(PREFIX):
        return True
    return len(name) <= LONGEST_NAME and name.strip().removeprefix("export ").strip()[:1] in ("N", "n")


def _stranger(name: str, version: tuple[int, ...] | None, compare: bool) -> list[Finding]:
    """A name no release knows. Comparing it with all known ones takes a millisecond."""
    meant = suggest(name, version) if compare else None
    by_prefix = (why for start, why in ELSEWHERE_PREFIXES.items() if name.startswith(start))
    who = ELSEWHERE.get(name) or next(by_prefix, None)
    if meant is not None and who is None:
        if meant == opposite(name):
            found = f"found the opposite of {meant}; write that, with the opposite value"
        else:
            found = f"found what looks like a slip of {meant}"
            variable = get(meant)
            unread = variable and _unread(variable, NEWEST_KNOWN if version is None else version)
            found += f", {unread[1]}; leave it out" if unread else f"; write {meant}"
        message = f"{shown(name)}: expected a name that NCCL reads, {found}"
        return [Finding("name_misspelt", FAIL, name, message)]
    if not name.startswith(PREFIX):
        return []
    newest = version_text(NEWEST_KNOWN)
    found = f"found one that no release up to {newest} knows" if who is None else f"found one that it does not: {who}"
    message = f"{shown(name)}: expected a name that NCCL reads, {found}; it is passed on as it is"
    return [Finding("name_unknown", NOTE, name, message)]


def _beside(name: str) -> list[Finding]:
    """A name the contract demands that others read: only where it is a slip is there anything to say."""
    from sglang_ext.nccl.neighbours import slip_of

    meant = slip_of(name)
    if meant is None:
        return []
    message = (
        f"{shown(name)}: expected a name that somebody reads, found what looks like a slip of {meant}; write {meant}"
    )
    return [Finding("name_misspelt", FAIL, name, message)]


def _age(variable: Variable, version: tuple[int, ...] | None, wanted: Mapping[str, str | None]) -> list[Finding]:
    """What is to say where the release does not read the variable; a failure only where the contract demands it."""
    rules = NEWEST_KNOWN if version is None else version
    severity = FAIL if wanted.get(variable.name) is not None else NOTE
    unread = _unread(variable, rules)
    if unread is None:
        return []
    code, why = unread
    if version is None and not variable.unused and gone(variable, rules):
        severity = NOTE  # the library may be an older one, which reads it
    message = f"{variable.name}: expected a name that {library(version)} reads, found {why}; leave it out"
    return [Finding(code, severity, variable.name, message)]


def _unread(variable: Variable, rules: tuple[int, ...]) -> tuple[str, str] | None:
    """Code and clause for a variable that the release does not read; None for one that it does."""
    if too_new(variable, rules):
        return "name_too_new", f"one that came with {variable.introduced}"
    if variable.unused:
        return "name_dead", "one that no release reads"
    if gone(variable, rules):
        return "name_dead", f"one that is not read any more since {variable.removed}"
    return None


def _from_file(finding: Finding, path: str) -> Finding:
    return finding._replace(message=f"{finding.message} ({shown(path)} sets it)")


def _files(
    env: Mapping[str, str], conf: ConfFiles, version: tuple[int, ...] | None, wanted: Mapping[str, str | None]
) -> list[Finding]:
    """What the files add, and what of them the environment holds back."""
    found: list[Finding] = []
    told: set[str] = set()
    for file in conf.files:
        for name, value, line in file.entries:
            if name in told or not (name.startswith(PREFIX) or name in wanted):
                continue  # the first definition counts
            told.add(name)
            # A stranger's value may be anything, also what nobody should see.
            says = f"found {shown(value) if get(name) or name in wanted else 'it'} in {shown(file.path)} line {line}"
            if name in env:
                if env[name] != value:
                    message = f"{shown(name)}: {says}, which the value in the environment beats"
                    found.append(Finding("conf_overridden", NOTE, name, message))
            elif name in wanted and not _same(name, value, wanted[name], version):
                want = "it absent" if wanted[name] is None else shown(str(wanted[name]))
                message = f"{shown(name)}: expected {want}, {says}; take that line out, or set the variable"
                found.append(Finding("conf_sets", FAIL, name, message))
            else:
                message = f"{shown(name)}: {says}, which NCCL adds to the environment by itself"
                found.append(Finding("conf_sets", NOTE, name, message))
    reads_it = (NEWEST_KNOWN if version is None else version) >= FILE_VARIABLE_SINCE
    named = env.get(FILE_VARIABLE) if reads_it else None  # an older one reads ~/.nccl.conf whatever that says
    if named and named not in {file.path for file in conf.files} | set(conf.unreadable) and conf.looked:
        message = (
            f"{FILE_VARIABLE}: expected a file, found none at {shown(named)}; NCCL reads neither it nor ~/.nccl.conf"
        )
        found.append(Finding("conf_missing", NOTE, FILE_VARIABLE, message))
    for path in conf.unreadable:
        message = f"{shown(path)}: expected a configuration file that can be read, found it closed or too large; run as its user"
        found.append(Finding("conf_sets", UNKNOWN, None, message))
    return found


def _same(name: str, value: str, want: str | None, version: tuple[int, ...] | None) -> bool:
    if want is None or value == want:
        return value == want
    return get(name) is not None and taken(name, value, version) == taken(name, want, version)
