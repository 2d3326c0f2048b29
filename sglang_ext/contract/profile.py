"""Profiles: TOML files a contract is made from, read strictly: nothing is skipped, nothing is guessed."""

from __future__ import annotations

import os
from types import MappingProxyType

from sglang_ext.contract.model import ContractError
from sglang_ext.contract.names import name_fault, value_fault
from sglang_ext.quick import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles")

# All that a file may hold. A key that is not here is an error: misspelt, it would be a requirement lost.
TABLES = ("profile", "env", "absent")
PROFILE_KEYS: Mapping[str, type] = {"name": str, "summary": str, "measured_on": dict, "risks": list}
MEASURED_KEYS: Mapping[str, type] = {
    "gpu": str, "count": int, "link": str, "nccl": str, "concurrency": int, "model": str,
}  # fmt: skip
KIND = {
    str: "a string",
    int: "an integer",
    bool: "a boolean",
    float: "a float",
    dict: "a table",
    list: "an array",
}


class ProfileError(ContractError):
    """A profile that cannot be found or read; one sentence: the file, what was expected, found, the fix."""


class MeasuredOn(NamedTuple):
    """Where the profile's numbers come from; None where the profile does not say.

    `gpu_count` is the file's `count`, `concurrency` counts simultaneous requests, `nccl` is a version range
    such as ">=2.26,<2.31".
    """

    gpu: str | None = None
    gpu_count: int | None = None
    link: str | None = None
    nccl: str | None = None
    concurrency: int | None = None
    model: str | None = None

    def covers_nccl(self, version: str) -> bool | None:
        """Whether NCCL `version` ("2.30.7") is in the measured range; None where no range is stated."""
        if self.nccl is None:
            return None
        return all(_holds(_numbers(version), clause) for clause in self.nccl.split(","))


class Profile(NamedTuple):
    """A profile as read: `env` NAME -> value, `absent` NAME -> the reason, `sha256` of the file (hex)."""

    name: str
    summary: str
    measured_on: MeasuredOn
    risks: tuple[str, ...]
    env: Mapping[str, str]
    absent: Mapping[str, str]
    path: str
    sha256: str

    @property
    def source(self) -> str:
        """How a term of the contract names this profile."""
        return f"profile:{self.name}"

    def unqualified(self, nccl: str | None) -> str | None:
        """A sentence where the profile was not measured with NCCL ``nccl``; None where it was, or one of the two is unknown."""
        if nccl is None or self.measured_on.covers_nccl(nccl) is not False:
            return None
        return (
            f"profile {self.name} was measured with NCCL {self.measured_on.nccl}, found {nccl}: its values may mean something "
            "else to it; measure before you rely on them"
        )

    def wants(self) -> dict[str, str | None]:
        """What the profile requires: NAME -> value, None for absent."""
        return {**self.env, **dict.fromkeys(self.absent)}


def shipped_profiles() -> tuple[str, ...]:
    """The names of the profiles that come with the package."""
    return tuple(sorted(entry[: -len(".toml")] for entry in os.listdir(SHIPPED) if entry.endswith(".toml")))


def load_profile(name_or_path: str) -> Profile:
    """Read a shipped profile by name, or a file by path (anything with a "/" or ending in .toml).

    Raises ProfileError for a profile that is not there and for whatever `parse_profile` refuses.
    """
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = name_or_path
    elif name_or_path in shipped_profiles():
        path = os.path.join(SHIPPED, name_or_path + ".toml")
    else:
        raise _error(
            f"profile {name_or_path!r}",
            f"one of {', '.join(shipped_profiles())}",
            "no profile of that name",
            f"correct it, or give a file by its path, ./{name_or_path or 'NAME'}.toml",
        )
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        found = getattr(error, "strerror", None) or str(error)
        raise _error(f"profile {path}", "a readable file", found, "correct the path or its permissions") from None
    return parse_profile(raw, path)


def parse_profile(raw: bytes, path: str) -> Profile:
    """The profile in `raw`; `path` is only named in errors and kept. Raises ProfileError."""
    from sglang_ext.quick import sha256

    where = f"profile {path}"
    document = _parse_toml(raw, where)
    _only_known((f"[{table}]" for table in document), [f"[{table}]" for table in TABLES], where)
    tables: dict[str, Any] = {name: document.get(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise _error(where, f"{name} to be a table", _kind(table), f"write [{name}] on a line of its own")

    head = tables["profile"]
    _check_types(head, PROFILE_KEYS, f"{where}: [profile]")
    for key in ("name", "summary"):
        if key not in head:
            raise _error(f"{where}: [profile]", f"the key {key}", "none", f'add {key} = "..."')
    if not all(ch.isascii() and (ch.isalnum() or ch in "._-") for ch in head["name"]):
        name = repr(head["name"])
        raise _error(f"{where}: [profile] name", "letters, digits and . _ - only", name, "rename it")

    measured_on = _measured_on(head.get("measured_on", {}), f"{where}: [profile] measured_on")
    risks = _risks(head.get("risks", []), f"{where}: [profile] risks")
    env, absent = tables["env"], tables["absent"]
    for name, value in env.items():
        _check_value(name, value, f"{where}: [env]")
    for name, reason in absent.items():
        _check_absent(name, reason, f"{where}: [absent]", also_set=name in env)
    if not env and not absent:
        raise _error(where, "at least one variable", "none", "add it under [env] or [absent]")
    return Profile(
        name=head["name"],
        summary=head["summary"],
        measured_on=measured_on,
        risks=risks,
        env=MappingProxyType(dict(sorted(env.items()))),
        absent=MappingProxyType(dict(sorted(absent.items()))),
        path=path,
        sha256=sha256(raw).hexdigest(),
    )


def _error(what: str, expected: str, found: str, fix: str) -> ProfileError:
    return ProfileError(f"{what}: expected {expected}, found {found}; {fix}")


def _kind(value: object) -> str:
    if value == "":
        return "an empty string"
    # By type and not isinstance, as a bool is an int to Python. tomllib gives dates and times as well.
    return KIND.get(type(value), f"a {type(value).__name__}")


def _parse_toml(raw: bytes, where: str) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _error(where, "UTF-8", f"another byte in line {line}", "save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:  # says "(at line 3, column 5)" itself
        raise _error(where, "TOML", f"an error: {error}", "correct that line") from None


def _only_known(keys: Iterable[str], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in keys:
        if key not in known:
            raise _error(where, " or ".join(known), key, "correct or remove it")


def _check_types(table: Mapping[str, object], keys: Mapping[str, type], where: str) -> None:
    _only_known(table, keys, where)
    for key, value in table.items():
        if type(value) is not keys[key] or value == "":
            fix = "write it as a string, in quotes" if keys[key] is str else f"write {KIND[keys[key]]}"
            fix = "fill it in or remove the key" if value == "" else fix
            raise _error(f"{where} {key}", KIND[keys[key]], _kind(value), fix)


def _check_value(name: str, value: object, where: str) -> None:
    if fault := name_fault(name):
        raise ProfileError(f"{where}: {fault}")
    if not isinstance(value, str):
        fix = "write it as a string, in quotes, an environment holds nothing else"
        raise _error(f"{where} {name}", "a string", _kind(value), fix)
    if fault := value_fault(value):
        raise ProfileError(f"{where} {name}: {fault}")
    if value == "":
        fix = "give one, or require absence under [absent]"
        raise _error(f"{where} {name}", "a value", _kind(value), fix)
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        # As `docker --env-file` reads NAME="LL": the quotes become part of the value.
        fix = f"write {name} = {value[1:-1]!r}"
        raise _error(f"{where} {name}", "a value without quotes of its own", value, fix)


def _check_absent(name: str, reason: object, where: str, also_set: bool) -> None:
    if fault := name_fault(name):
        raise ProfileError(f"{where}: {fault}")
    if also_set:
        raise _error(f"{where} {name}", "a variable that is not set", "it under [env] too", "keep one of them")
    if not isinstance(reason, str) or not reason.strip():
        raise _error(f"{where} {name}", "the reason as a string", _kind(reason), f'write {name} = "why"')


def _risks(items: list[Any], where: str) -> tuple[str, ...]:
    risks = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, str) or not item.strip():
            raise _error(f"{where}, number {number}", "a sentence as a string", _kind(item), "write or remove it")
        risks.append(item)
    return tuple(risks)


def _measured_on(table: dict[str, Any], where: str) -> MeasuredOn:
    _check_types(table, MEASURED_KEYS, where)
    for key, value in table.items():
        if isinstance(value, int) and value < 1:
            raise _error(f"{where} {key}", "1 or more", str(value), "correct it")
        if key == "nccl" and not all(_clause(clause) for clause in str(value).split(",")):
            raise _error(f"{where} nccl", "a range like >=2.26,<2.31", repr(value), "write it like that")
    renamed = {"gpu_count" if key == "count" else key: value for key, value in table.items()}
    return MeasuredOn(**renamed)


def _clause(text: str) -> tuple[str, tuple[int, ...]] | None:
    text = text.strip()
    for operator in (">=", "<=", "==", ">", "<"):
        if text.startswith(operator):
            version = text.removeprefix(operator).strip()
            numeric = all(part.isascii() and part.isdigit() for part in version.split("."))
            return (operator, _numbers(version)) if numeric else None
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """2.30.7, 2.30.7-1 and 2.30.7+cuda13 as (2, 30, 7); trailing zeros go, so that 2.30 equals 2.30.0."""
    core = version.replace("+", "-").partition("-")[0]
    numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in core.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _holds(version: tuple[int, ...], text: str) -> bool:
    operator, bound = _clause(text) or ("==", ())
    if operator == "==":
        return version == bound
    if operator in (">=", "<=") and version == bound:
        return True
    return version > bound if operator[0] == ">" else version < bound
