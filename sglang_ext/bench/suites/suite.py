"""Suites: TOML files that say what to ask a server for and, with arms, which servers to compare. Read strictly."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from sglang_ext.bench.suites import strict
from sglang_ext.bench.suites.arms import Arm, command, missing, read_arms, read_paths, with_control
from sglang_ext.bench.suites.prompts import Prompt, check_natural, read_prompt
from sglang_ext.bench.suites.strict import REQUIRED, Keys, SuiteError, error
from sglang_ext.bench.suites.under_test import check_arms, check_entries

__all__ = [
    "Arm", "Campaign", "Suite", "SuiteError", "Workload", "changed", "command", "load_suite", "missing", "parse_suite",
]  # fmt: skip

# All that a file may hold: key -> (type, default; REQUIRED where there is none). [server] and [[arm]] are in `arms`.
SUITE: Keys = {"name": (str, REQUIRED), "summary": (str, REQUIRED)}
WORKLOAD: Keys = {
    "prompt": (str, None),
    "prompt_file": (str, None),
    "tokens": (int, 2048),
    "runs": (int, 5),
    "warmup_tokens": (int, 128),
    "warmup_runs": (int, 1),
    "temperature": (float, 0.0),
    "ignore_eos": (bool, True),
    "timeout_s": (float, 600.0),
    "endpoint": (str, "generate"),
}
WITH_ARMS: Keys = {**WORKLOAD, "prompts": (list, None), "streams": (int, 1)}
CAMPAIGN: Keys = {
    "blocks": (int, 8),
    "seed": (int, None),
    "control": (bool, True),
    "effect": (float, 0.02),
    "margin": (float, 0.01),
    "alpha": (float, 0.05),
    "under_test": (list, REQUIRED),
    "rule": (str, "fixed"),
    "ready_timeout_s": (float, 3600.0),
    "settle_s": (float, 0.0),
}
ALONE, TABLES = ("[suite]", "[workload]"), ("[suite]", "[workload]", "[paths]", "[campaign]", "[server]", "[arm]")
ENDPOINTS, CHAT = ("generate", "completions"), "chat"
RULES = ("fixed", "sequential")
# One token has no decode rate; one pair has no spread.
LEAST = {"tokens": 2, "runs": 1, "warmup_tokens": 1, "warmup_runs": 0, "streams": 1, "blocks": 2, "seed": 0}
# Beyond these it is a slip of the keyboard.
MOST = {
    "tokens": 1_000_000, "runs": 1000, "warmup_tokens": 1_000_000, "warmup_runs": 1000, "streams": 1024, "blocks": 1000,
    "seed": (1 << 53) - 1,
}  # fmt: skip
LONGEST = 7 * 24 * 3600  # seconds of any wait
SMALLEST = 0.001  # of effect, margin and alpha: nothing smaller is found with any number of launches
FIXED = {
    "temperature": 0.0,
    "ignore_eos": True,
}  # every run is greedy and of full length: runs that differ compare nothing


class Workload(NamedTuple):
    """What is asked, how often. ``prompt_file`` is how the suite named it; ``prompt`` its text all the same."""

    prompt: str  # the first one where there are several
    prompt_file: str | None
    tokens: int
    runs: int
    warmup_tokens: int
    warmup_runs: int
    temperature: float
    ignore_eos: bool
    timeout_s: float
    endpoint: str
    streams: int = 1
    prompts: tuple[Prompt, ...] = ()  # where the suite names several files

    def prompt_of(self, run: int, stream: int = 0) -> str:
        """The prompt of a run (from 0): each takes the next one, so that every launch is asked the same in the same order."""
        if not self.prompts:
            return self.prompt
        return self.prompts[(run * self.streams + stream) % len(self.prompts)].text

    def to_json(self) -> dict[str, Any]:
        """The text of a prompt file stays where it is: its sha256 tells whether it is the same."""
        work = self._asdict()
        if self.prompts or self.prompt_file is not None:
            del work["prompt"]
        work["prompts"] = [one.to_json() for one in self.all_prompts()]
        joined = "\n".join(one["sha256"] for one in work["prompts"])
        one = work["prompts"][0]
        work["prompt_sha256"] = hashlib.sha256(joined.encode()).hexdigest() if self.prompts else one["sha256"]
        work["prompt_characters"] = sum(one["characters"] for one in work["prompts"])
        return work

    def all_prompts(self) -> tuple[Prompt, ...]:
        return self.prompts or (Prompt(self.prompt_file, self.prompt),)


class Campaign(NamedTuple):
    """How arms are compared: how often, in which order, and what may be said of it."""

    blocks: int
    seed: int | None  # None: drawn when the campaign starts, and stored with it
    control: bool
    effect: float  # the change one wants to see, relative
    margin: float  # a loss below it is no regression
    alpha: float
    under_test: tuple[str, ...]
    rule: str
    ready_timeout_s: float
    settle_s: float

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "under_test": list(self.under_test)}


class Suite(NamedTuple):
    """A suite as read; ``sha256`` of the file. Without arms it is asked of one running server."""

    name: str
    summary: str
    workload: Workload
    path: str
    sha256: str
    campaign: Campaign | None = None
    arms: tuple[Arm, ...] = ()  # the control, where there is one, last

    def to_json(self) -> dict[str, Any]:
        """For a receipt."""
        file = os.path.basename(self.path)
        made: dict[str, Any] = {"name": self.name, "summary": self.summary, "file": file, "sha256": self.sha256}
        made["workload"] = self.workload.to_json()
        if self.campaign is None:
            return made
        arms = [arm.to_json() for arm in self.arms]
        return {**made, "path": os.path.abspath(self.path), "campaign": self.campaign.to_json(), "arms": arms}


def load_suite(path: str) -> Suite:
    """Read a suite. Raises SuiteError."""
    return parse_suite(strict.read(path, f"suite {path}"), path)


def parse_suite(raw: bytes, path: str) -> Suite:
    """The suite in ``raw``; the files it names are looked for beside ``path``. Raises SuiteError."""
    where = f"suite {path}"
    document = strict.toml(raw, where)
    armed = "arm" in document
    for name in ("campaign", "server", "paths"):
        if name in document and not armed:
            raise error(where, f"an [[arm]] where there is [{name}]", "none", "add the arms to compare, or remove it")
    strict.only_known((f"[{name}]" for name in document), TABLES if armed else ALONE, where)
    head = strict.table(document.get("suite", {}), "suite", SUITE, where)
    strict.plain_name(head["name"], f"{where}: [suite] name")
    strict.one_line(head["summary"], f"{where}: [suite] summary")
    given = strict.table(document.get("workload", {}), "workload", WITH_ARMS if armed else WORKLOAD, where)
    work = _workload(given, path, armed=armed)
    made = Suite(head["name"], head["summary"], work, path, hashlib.sha256(raw).hexdigest())
    return _with_arms(made, document) if armed else made


def _workload(work: dict[str, Any], path: str, *, armed: bool) -> Workload:
    place = f"suite {path}: [workload]"
    ways = ("prompt", "prompt_file", "prompts") if armed else ("prompt", "prompt_file")
    given = [way for way in ways if work[way] is not None]
    if len(given) != 1:
        either = f"{', '.join(ways[:-1])} and {ways[-1]}"
        found = ("both" if not armed else " and ".join(given)) if given else "neither" if not armed else "none"
        raise error(place, f"one of {either}", found, "give exactly one")
    _check_whole(work, place)
    _check_seconds(work, "timeout_s", place)
    if work["prompt"] is not None and not work["prompt"].strip():
        raise error(f"{place} prompt", "some text", "blanks only", "write the prompt")
    for key, only in FIXED.items():
        if work[key] != only:
            shown, other = (str(v).lower() for v in (only, work[key]))
            raise error(f"{place} {key}", f"{shown}, as every run is greedy and of full length", other, "remove it")
    endpoints = (*ENDPOINTS, CHAT) if armed else ENDPOINTS
    if work["endpoint"] not in endpoints:
        raise error(f"{place} endpoint", " or ".join(endpoints), repr(work["endpoint"]), "correct it")
    if work["prompt_file"] is not None:
        work["prompt"] = read_prompt(work["prompt_file"], path, place, "prompt_file").text
    if work.get("prompts") is not None:
        work["prompts"] = _several(work, path, place)
        work["prompt"] = work["prompts"][0].text
    return Workload(**{**work, "prompts": work.get("prompts") or ()})


def _several(work: Mapping[str, Any], path: str, place: str) -> tuple[Prompt, ...]:
    names = strict.strings(work["prompts"], f"{place} prompts")
    if not names:
        raise error(f"{place} prompts", "one file or more", "an empty array", "name them, or give prompt")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise error(f"{place} prompts", "each file once", f"{name} again", "remove one")
    asked = work["runs"] * work["streams"]
    if asked < len(names):
        found = f"{len(names)} for {asked} of them"
        raise error(f"{place} prompts", "no more files than requests of a launch", found, "raise runs, or remove some")
    return tuple(read_prompt(name, path, place, "prompts") for name in names)


def _check_whole(found: Mapping[str, Any], place: str) -> None:
    for key, least in LEAST.items():
        if found.get(key) is not None:
            strict.in_range(found[key], least, MOST[key], f"{place} {key}")


def _check_seconds(found: Mapping[str, Any], key: str, place: str, least: str = "more than 0") -> None:
    value = found[key]
    if not 0 <= value <= LONGEST or (value == 0 and least != "0 or more"):
        expected = f"seconds, {f'{LONGEST} at most' if value > LONGEST else least}"
        raise error(f"{place} {key}", expected, f"{value:g}", "correct it")


def _with_arms(made: Suite, document: Mapping[str, Any]) -> Suite:
    where = f"suite {made.path}"
    place = f"{where}: [campaign]"
    given = strict.table(document.get("campaign", {}), "campaign", CAMPAIGN, where)
    _check_whole(given, place)
    _check_seconds(given, "ready_timeout_s", place)
    _check_seconds(given, "settle_s", place, "0 or more")
    for key, below in (("effect", 1.0), ("margin", 1.0), ("alpha", 0.5)):
        if not SMALLEST <= given[key] < below:
            expected = f"{SMALLEST:g} or more and less than {below:g}"
            raise error(f"{place} {key}", expected, f"{given[key]:g}", "correct it")
    if given["rule"] not in RULES:
        raise error(f"{place} rule", " or ".join(RULES), repr(given["rule"]), "correct it")
    entries = tuple(strict.strings(given["under_test"], f"{place} under_test"))
    check_entries(entries, f"{place} under_test")
    shared = document.get("server")
    if shared is not None and not isinstance(shared, dict):
        raise error(where, "server to be a table", strict.kind(shared), "write [server] on a line of its own")
    paths = read_paths(document.get("paths", {}), made.path)
    arms = read_arms(shared, document["arm"], paths, made.path)
    if arms[0].address is None:
        check_arms(arms, entries, where)
    if any(arm.speculative or arm.address is not None for arm in arms):
        for prompt in made.workload.all_prompts():
            check_natural(prompt, f"{where}: [workload]")
    arms = with_control(arms, where) if given["control"] else arms
    return made._replace(campaign=Campaign(**{**given, "under_test": entries}), arms=arms)


def changed(stored: Mapping[str, Any], suite: Suite) -> list[str]:
    """What no longer is as in ``stored``, the JSON of a suite as a receipt keeps it: a sentence for each."""
    now, found = suite.to_json(), []
    for key in ("name", "summary", "file"):
        if stored.get(key) != now[key]:
            found.append(f"suite {key}: expected {stored.get(key)!r}, found {now[key]!r}")
    for table in ("workload", "campaign"):
        before, after = stored.get(table) or {}, now.get(table) or {}
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                found.append(f"[{table}] {key}: expected {before.get(key)!r}, found {after.get(key)!r}")
    arms = {side: {arm["name"]: arm for arm in made.get("arms", ())} for side, made in (("then", stored), ("now", now))}
    for name in sorted(arms["then"].keys() | arms["now"].keys()):
        before, after = arms["then"].get(name), arms["now"].get(name)
        if before is None or after is None:
            found.append(f"arm {name}: expected {'it' if before else 'no such arm'}, found {'it' if after else 'none'}")
            continue
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                found.append(f"arm {name} {key}: expected {before.get(key)!r}, found {after.get(key)!r}")
    return found
