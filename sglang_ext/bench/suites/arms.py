"""Arms: the servers a campaign compares, each whole; what they share is said once in [server]. Read strictly."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.suites.server_words import (
    DRAFT,
    LAUNCHERS,
    PLACES,
    check,
    check_place,
    check_value,
    fill_in,
    options,
    speculative,
)
from sglang_ext.bench.suites.strict import (
    KIND,
    NAME,
    REQUIRED,
    Keys,
    SuiteError,
    error,
    kind,
    one_line,
    plain_name,
    strings,
    values,
)
from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Contract, ContractError
from sglang_ext.contract.names import is_name, is_nccl, is_tuning, looks_secret, name_fault, value_fault
from sglang_ext.contract.profile import load_profile

HOST = "127.0.0.1"
# What a server is made of: the same keys in [server], which all arms share, and in an arm.
SERVER: Keys = {
    "arguments": (list, ()),
    "profile": (str, None),
    "set": (dict, {}),
    "absent": (list, ()),
    "environment": (dict, {}),
}
SHARED: Keys = {"command": (str, "launch"), **SERVER}
ARM: Keys = {
    "name": (str, REQUIRED),
    "summary": (str, ""),
    "baseline": (bool, False),
    **SERVER,
    "patches": (bool, True),
    "without": (list, ()),
    "draft": (str, None),
    "address": (str, None),
}
AGAIN = "-again"  # the control's name: the baseline's with this behind it
ADDRESS = re.compile(r"http://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})")
PATH_KEY = re.compile(r"[a-z][a-z0-9_]*")


class Arm(NamedTuple):
    """One server under test. ``arguments`` is whole, what all arms share first, the draft's path last."""

    name: str
    summary: str
    baseline: bool
    control: bool
    arguments: tuple[str, ...]
    contract: Mapping[str, Any]  # "profile", "set", "absent" as given; "variables": NAME -> value, None for absent
    environment: Mapping[str, str]
    patches: bool
    without: tuple[str, ...]
    draft: str | None
    address: str | None  # a running server; then nothing else is said of it

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """The arguments by the names upstream resolves them to."""
        return options(self.arguments, self.name)

    @property
    def variables(self) -> dict[str, str | None]:
        """What the contract comes to without the launching shell."""
        return dict(self.contract["variables"])

    @property
    def speculative(self) -> bool:
        """Is it asked to draft? Of a running server that is not known here."""
        return speculative(self.options)

    def to_json(self) -> dict[str, Any]:
        """Holds no secret: reading refuses whatever may be one."""
        contract = {key: list(v) if isinstance(v, tuple) else v for key, v in self.contract.items()}
        return {
            **self._asdict(),
            "arguments": list(self.arguments),
            "contract": contract,
            "environment": dict(self.environment),
            "without": list(self.without),
        }


def read_paths(found: object, suite: str) -> dict[str, str]:
    """[paths]: what differs between machines, in one place. Raises SuiteError.

    ./ and ../ are looked for beside the suite. Anything else is taken as it is: an absolute path, or a name on a hub.
    """
    place = f"suite {suite}: [paths]"
    if not isinstance(found, dict):
        raise error(place, "a table", kind(found), "write [paths] on a line of its own")
    made = {}
    for key, value in found.items():
        if not PATH_KEY.fullmatch(key):
            raise error(f"{place} {key}", "a key of small letters, digits and _", repr(key), "rename it")
        if value == "":
            raise error(f"{place} {key}", "where that is on this machine", "an empty string", "fill it in")
        if not isinstance(value, str):
            raise error(f"{place} {key}", KIND[str], kind(value), "write a path in quotes")
        check_value(value, f"{place} {key}")
        check_place(value, f"{place} {key}")
        made[key] = beside(value, suite)
    return made


def beside(path: str, suite: str) -> str:
    """``./x`` and ``../x`` as seen from the suite's folder; anything else as it is."""
    if path.startswith(("./", "../")):
        return os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(suite)), path))
    return path


def read_arms(shared: Mapping[str, Any] | None, found: object, paths: Mapping[str, str], suite: str) -> tuple[Arm, ...]:
    """The arms of ``[[arm]]``, each with what ``[server]`` says; ``shared`` is None where there is no such table.

    Raises SuiteError.
    """
    where = f"suite {suite}"
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise error(where, "arm to be an array of tables", kind(found), "write [[arm]] on a line of its own")
    common = values(shared or {}, SHARED, f"{where}: [server]")
    if common["command"] != "launch":
        raise error(f"{where}: [server] command", "launch", repr(common["command"]), "remove it")
    used: set[str] = set()
    arms: list[Arm] = []
    for number, table in enumerate(found, 1):
        given = values(table, ARM, f"{where}: {_called(table, number)}")
        name = plain_name(given["name"], f"{where}: [[arm]] number {number} name")
        one_line(given["summary"], f"{where}: arm {name} summary")
        if any(name == arm.name for arm in arms):
            raise error(f"{where}: [[arm]] number {number} name", "a name of its own", f"{name} again", "rename it")
        arms.append(_running(table, given, suite) if "address" in table else _made(common, paths, used, given, suite))
    _check_kinds(arms, shared is not None, where)
    for key in paths:
        if key not in used:
            raise error(f"{where}: [paths] {key}", f"{{{key}}} in some argument", "none", "use it or remove it")
    return tuple(arms)


def _called(table: Mapping[str, Any], number: int) -> str:
    """How a refusal names an arm."""
    name = table.get("name")
    known = isinstance(name, str) and name.isprintable() and 0 < len(name) <= NAME
    return f"arm {name}" if known else f"[[arm]] number {number}"


def with_control(arms: Sequence[Arm], where: str) -> tuple[Arm, ...]:
    """The arms and the baseline once more, under another name: whoever finds those two different has measured something else."""
    baseline = next(arm for arm in arms if arm.baseline)
    name = baseline.name + AGAIN
    if any(arm.name == name for arm in arms):
        raise error(f"{where}: arm {name}", "that name left to the control", "an arm", "rename it")
    return (*arms, baseline._replace(name=name, summary="the baseline again", baseline=False, control=True))


def _running(table: Mapping[str, Any], given: Mapping[str, Any], suite: str) -> Arm:
    place = f"suite {suite}: arm {given['name']}"
    extra = [key for key in table if key not in ("name", "summary", "baseline", "address")]
    if extra:
        raise error(place, "nothing but the address of a running server", extra[0], "remove one of the two")
    match = ADDRESS.fullmatch(given["address"])
    if match is None or not 0 < int(match[2]) < 65536:
        found = "another text"  # not repeated: a URL may hold a password
        raise error(f"{place} address", "http://HOST:PORT", found, "write it like http://127.0.0.1:30000")
    contract: dict[str, Any] = {"profile": None, "set": {}, "absent": (), "variables": {}}
    return Arm(given["name"], given["summary"], given["baseline"], False, (), contract, {}, True, (), None, match[0])


def _made(
    common: Mapping[str, Any], paths: Mapping[str, str], used: set[str], given: Mapping[str, Any], suite: str
) -> Arm:
    """An arm whose server the campaign starts."""
    place = f"suite {suite}: arm {given['name']}"
    words: list[str] = []
    for items, whose in ((common["arguments"], f"suite {suite}: [server]"), (given["arguments"], place)):
        some = fill_in(strings(items, f"{whose} arguments"), paths, whose, used)
        check(some, f"{whose} arguments")  # each for itself: a value at the head would be one more of the option before
        words += some
    draft = given["draft"]
    if draft is not None:
        check_value(draft, f"{place} draft")
        check_place(draft, f"{place} draft")
        (draft,) = (beside(path, suite) for path in fill_in([draft], paths, place, used))
        words += [DRAFT, draft]
    options(words, f"{place} arguments")
    ours = [word for word in words if word.partition("=")[0] in LAUNCHERS]
    if ours and not given["patches"]:
        raise error(place, "SGLang's own arguments, as patches = false", f"{ours[0]}, the launcher's", "remove it")
    if given["without"] and not given["patches"]:
        raise error(place, "without or patches = false", "both", "remove one: stock SGLang has no patch to leave out")
    without = tuple(strings(given["without"], f"{place} without"))
    environment = _merged(common["environment"], given["environment"], f"{place} environment")
    _check_environment(common["environment"], f"suite {suite}: [server] environment")
    _check_environment(given["environment"], f"{place} environment")
    contract = _contract(common, given, suite, place)
    for name in environment:
        if name in contract["variables"]:
            raise error(place, f"{name} once", "it in environment and in the contract", "keep the one in the contract")
    return Arm(
        given["name"], given["summary"], given["baseline"], False, tuple(words), contract, environment,
        given["patches"], without, draft, None,
    )  # fmt: skip


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any], what: str) -> dict[str, Any]:
    for name in own:
        if name in shared:
            raise error(what, "each variable once", f"{name} in [server] too", "keep one")
    return {**shared, **own}


def _check_environment(found: Mapping[str, Any], place: str) -> None:
    for name, value in found.items():
        if not is_tuning(name) or not is_name(name):
            shown = "one that looks like a secret" if looks_secret(name) else name
            fix = "give it in the launching shell, which every server inherits"
            raise error(place, "names that tune (NCCL_, SGLANG_, CUDA_, ...)", shown, fix)
        if is_nccl(name):
            raise error(place, "no NCCL_ name", name, "write it under set: it is then proven")
        if not isinstance(value, str):
            raise error(f"{place} {name}", KIND[str], kind(value), "write it in quotes")
        if fault := value_fault(value):
            raise SuiteError(f"{place} {name}: {fault}")
        check_value(value, f"{place} {name}")


def _check_set(found: Mapping[str, Any], place: str) -> None:
    for name, value in found.items():
        if fault := name_fault(name):
            raise SuiteError(f"{place}: {fault}")
        if not isinstance(value, str):
            fix = "write it in quotes, an environment holds nothing else"
            raise error(f"{place} {name}", KIND[str], kind(value), fix)
        check_value(value, f"{place} {name}")


def _contract(common: Mapping[str, Any], given: Mapping[str, Any], suite: str, place: str) -> dict[str, Any]:
    if common["profile"] is not None and given["profile"] is not None:
        raise error(f"{place} profile", "one profile", "another in [server]", "keep one")
    profile = given["profile"] if given["profile"] is not None else common["profile"]
    if profile is not None and ("/" in profile or profile.endswith(".toml")):
        profile = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(suite)), profile))
    sets = _merged(common["set"], given["set"], f"{place} set")
    _check_set(common["set"], f"suite {suite}: [server] set")
    _check_set(given["set"], f"{place} set")
    absents = [
        *strings(common["absent"], f"suite {suite}: [server] absent"),
        *strings(given["absent"], f"{place} absent"),
    ]
    try:
        found = decided(profile, sets, absents)
    except ContractError as failure:
        raise SuiteError(f"{place}: {failure}") from None
    variables = {term.name: term.want for term in found.terms.values()}
    return {"profile": profile, "set": sets, "absent": tuple(absents), "variables": variables}


def decided(profile: str | None, sets: Mapping[str, str], absents: Iterable[str]) -> Contract:
    """The contract of an arm, whatever the launching shell holds. Raises ContractError."""
    loaded = load_profile(profile) if profile is not None else None
    return decide(loaded, [f"{name}={value}" for name, value in sets.items()], list(absents), {})


def _check_kinds(arms: Sequence[Arm], server: bool, where: str) -> None:
    running = [arm for arm in arms if arm.address is not None]
    if running and len(running) < len(arms):
        other = next(arm.name for arm in arms if arm.address is None)
        raise error(
            where, "servers that run already, or servers to start", f"{running[0].name} and {other}",
            "give every arm an address, or none",
        )  # fmt: skip
    if running and server:
        raise error(where, "no [server], as every arm has an address", "one", "remove it")
    addresses = [arm.address for arm in running]
    for index, address in enumerate(addresses):
        if address in addresses[:index]:
            raise error(
                f"{where}: arm {arms[index].name} address", "a server of its own", f"{address} again", "change it"
            )
    baselines = [arm.name for arm in arms if arm.baseline]
    if len(baselines) != 1:
        found = ", ".join(baselines) or "none"
        raise error(where, "one arm with baseline = true", found, "mark the one the others are compared with")
    if len(arms) < 2:
        raise error(where, "two arms or more", f"{arms[0].name} alone", "add the arm to compare with it")


def command(
    arm: Arm, port: int, python: str = sys.executable, own: Iterable[str] = ()
) -> tuple[list[str], dict[str, str | None]]:
    """What starts the arm's server on ``port``, and what to change in the environment: NAME -> value, None to take it out.

    ``own`` are further options of our launcher (--run-dir, ...); stock SGLang, which has none, is started without them. Its
    contract is in its environment: that is all one can do for it.
    """
    assert arm.address is None, f"{arm.name} runs already"
    where = ["--host", HOST, "--port", str(port)]
    if not arm.patches:
        start = [python, "-m", "sglang.launch_server", *arm.arguments, *where]
        return start, {**arm.environment, **arm.variables, "SGLANG_EXT": "0"}
    contract = arm.contract
    words = [f"--profile={contract['profile']}"] if contract["profile"] is not None else []
    words += [f"--set={name}={value}" for name, value in contract["set"].items()]
    words += [f"--absent={name}" for name in contract["absent"]]
    words += [f"--without={name}" for name in arm.without]
    return [python, "-m", "sglang_ext.launch", *words, *own, *arm.arguments, *where], {**arm.environment}


def missing(arms: Iterable[Arm]) -> str | None:
    """A sentence where an arm's model is an absolute path that is not there: better now than after the first arm's launch."""
    for arm in arms:
        for name in PLACES:
            for value in arm.options.get(name, ()):
                if value.startswith("/") and not os.path.exists(value):
                    what = f"arm {arm.name} {name.replace('_', ' ')}"
                    return f"{what}: expected a folder or file, found none at {value}; correct it under [paths] or in the arm"
    return None
