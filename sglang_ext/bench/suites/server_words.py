"""A server's arguments as a suite gives them: read into options, compared, and refused where they are not the suite's to give.

Upstream's parser takes unambiguous beginnings of its options, so a beginning of a refused one is refused too. Names are those
of sglang 0.5.23 (srt/arg_groups/fields/*.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from sglang_ext.bench.suites.secret import secret_in
from sglang_ext.bench.suites.strict import error
from sglang_ext.contract.names import looks_secret
from sglang_ext.delivery.options import OWN

_SECRET = "a secret, and a suite is stored with its numbers", "leave it out: the server listens on this host only"
_PLAIN = "the client's business, and ours speaks plain HTTP", "leave it out"
_ONE_HOST = (
    "a server of several hosts, and a campaign starts its servers on this one",
    "start it yourself, give its address",
)
# Option -> (why a suite may not give it, what to do instead).
REFUSED: Mapping[str, tuple[str, str]] = {
    "--host": ("the campaign's to choose", "leave it out"),
    "--port": ("the campaign's to choose", "leave it out"),
    "--api-key": _SECRET,
    "--admin-api-key": _SECRET,
    "--ssl-keyfile-password": _SECRET,
    "--ssl-keyfile": _PLAIN,
    "--ssl-certfile": _PLAIN,
    "--ssl-ca-certs": _PLAIN,
    "--nnodes": _ONE_HOST,
    "--node-rank": _ONE_HOST,
    "--config": ("a file of arguments, which could say anything", "write its options into arguments"),
    "--speculative-draft-model-path": ("a key of the arm", 'write draft = "..."'),
    "--speculative-draft-model": ("a key of the arm", 'write draft = "..."'),
    "--profile": ("a key of the suite", 'write profile = "..."'),
    "--set": ("a key of the suite", 'write set = { NAME = "value" }'),
    "--absent": ("a key of the suite", 'write absent = ["NAME"]'),
    "--without": ("a key of the arm", 'write without = ["..."]'),
    "--verify": ("the campaign's to choose", "leave it out"),
    "--run-dir": ("the campaign's to choose", "leave it out"),
    "--dry-run": ("no server to measure", "leave it out"),
    "--help": ("no server to measure", "leave it out"),
    "--version": ("no server to measure", "leave it out"),
}
LAUNCHERS = tuple(name for name in OWN if name not in REFUSED)  # --accept, --nccl-log: stock SGLang has none of them
DRAFT = "--speculative-draft-model-path"
DRAFT_ARGUMENT = "speculative_draft_model_path"
PLACES = ("model_path", "tokenizer_path", DRAFT_ARGUMENT)  # arguments that may name a folder
SPECULATIVE = "speculative_"  # how upstream's arguments about drafts begin
# Spellings that upstream's parser takes for the same argument.
ALIASES: Mapping[str, str] = {
    "model": "model_path",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "attention_data_parallel_size": "attn_dp_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
    "decode_context_parallel_size": "dcp_size",
    "nccl_init_addr": "dist_init_addr",
    "speculative_draft_model": DRAFT_ARGUMENT,
}
PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")  # of a [paths] key; JSON never looks like that


def options(words: Sequence[str], place: str) -> dict[str, tuple[str, ...]]:
    """The words as options: argument -> its values, () for a flag. Raises SuiteError.

    Each option once: argparse would take the last one, and drop what was said before without a word.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, given in split(words, place):
        argument = argument_of(name)
        if argument in found:
            raise error(place, "each option once", f"{name} again", "keep one; what arms share belongs into [server]")
        found[argument] = given
    return found


def split(words: Sequence[str], place: str) -> list[tuple[str, tuple[str, ...]]]:
    """Each option as it is written, with its values. Raises SuiteError."""
    found = []
    index = 0
    while index < len(words):
        word = words[index]
        if not word.startswith("--") or word == "--":
            raise error(place, "an option (--...)", repr(word), "give each option and each of its values as a string")
        name, equals, value = word.partition("=")
        end = index + 1
        while not equals and end < len(words) and not words[end].startswith("--"):
            end += 1
        found.append((name, (value,) if equals else tuple(words[index + 1 : end])))
        index = end
    return found


def argument_of(option: str) -> str:
    """The name upstream's resolved arguments have for an option."""
    name = option.removeprefix("--").replace("-", "_")
    return ALIASES.get(name, name)


def check(words: Sequence[str], place: str) -> None:
    """Refuse what a suite may not give. Raises SuiteError."""
    for name, given in split(words, place):
        _check(name, given, place)


def _check(name: str, given: Iterable[str], place: str) -> None:
    for refused, (why, fix) in REFUSED.items():
        if refused == name or (len(name) > 3 and refused.startswith(name)):
            raise error(place, "arguments of the server alone", f"{name}, which is {why}", fix)
    # "token" alone is what a model emits (--speculative-token-map); as the last word it is one that lets somebody in.
    word = argument_of(name)
    if looks_secret(word.replace("token", "-")) or "key" in word.split("_") or word.endswith("_token"):
        raise error(place, "arguments that hold no secret", f"{name}, which looks like one", _SECRET[1])
    for value in given:
        check_value(value, f"{place} {name}")
        if word in PLACES:
            check_place(value, f"{place} {name}")


def check_value(value: str, what: str) -> None:
    """Refuse a value that seems to hold a secret, without repeating it. Raises SuiteError."""
    if found := secret_in(value):
        raise error(what, "a value without a password in it", found, "leave it out: a suite is stored with its numbers")


def check_place(value: str, what: str) -> None:
    """Refuse a path that only a shell would understand. Raises SuiteError."""
    if value.startswith(("~", "$")):
        raise error(
            what, "a path as it is, or a name on a hub", f"{value}, which no shell fills in here", "write it out"
        )


def fill_in(words: Iterable[str], paths: Mapping[str, str], place: str, used: set[str]) -> list[str]:
    """The words with each ``{key}`` of [paths] in its place; ``used`` collects the keys. Raises SuiteError."""
    return [_filled(word, paths, place, used) for word in words]


def _filled(word: str, paths: Mapping[str, str], place: str, used: set[str]) -> str:
    head, equals, tail = word.partition("=") if word.startswith("--") else ("", "", word)
    for match in PLACEHOLDER.finditer(word):
        key = match[1]
        if match[0] != tail:
            raise error(place, f"{match[0]} to be a whole value", repr(word), "put the whole path into [paths]")
        if key not in paths:
            raise error(place, f"[paths] to have {key}, as {match[0]} is used", "none", f'add {key} = "..." to [paths]')
        used.add(key)
        return f"{head}{equals}{paths[key]}"
    return word


def speculative(arguments: Mapping[str, tuple[str, ...]]) -> bool:
    """Do these arguments make the server draft?"""
    return any(name.startswith(SPECULATIVE) for name in arguments)
