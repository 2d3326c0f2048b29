"""Server flags that need another value than a contract may want.

Upstream does not ask: it assigns to os.environ while the arguments are resolved and before the workers start.
A flag whose feature needs such a value cannot be honoured together with a contract that wants another one, so
the pair is refused before a model loads. What upstream only *defaults* (NCCL_CUMEM_ENABLE where unset, ...)
is no fight, and neither is what it sets for no one's sake (`ALWAYS_SET`): there the engine seam puts the
contract's value back.

Read in sglang 0.5.23; `FIGHTS` names file, line and assignment, and a test looks them up where sglang is
installed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sglang_ext.contract.names import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sglang_ext.contract.model import Contract

READ_IN = "0.5.23"
ENGINE = "srt/entrypoints/engine.py"
ATTENTION = "srt/arg_groups/attention_hook.py"


class Rule(NamedTuple):
    """One assignment in upstream and the settings that lead to it."""

    flag: str
    # (ServerArgs attribute, at least); a boolean counts as 0 or 1, a text as 1
    needs: tuple[tuple[str, int], ...]
    variable: str
    forced: str | None  # None: upstream may set any value
    file: str
    line: int
    text: str  # the assignment, as it stands in that line
    forced_from: str | None = None  # an environment variable that replaces `forced` where it holds an integer
    devices: tuple[str, ...] = ()  # only where --device is one of these (or is not given)


class Fight(NamedTuple):
    """A contract's term that a server flag would overwrite. `want` None: absent. `forced` None: any value."""

    flag: str
    variable: str
    want: str | None
    forced: str | None
    sentence: str


def _deterministic(flag: str, attribute: str) -> tuple[Rule, ...]:
    # attention_hook.py:667-698: tp_size > 1 and no HIP. Without tensor parallelism nothing is forced.
    needs = ((attribute, 1), ("tp_size", 2))
    channels = "SGLANG_DETERMINISTIC_NCCL_NCHANNELS"  # srt/environ.py:1531, EnvInt(8)
    return (
        Rule(flag, needs, "NCCL_ALGO", "allreduce:tree", ATTENTION, 676,
             'os.environ["NCCL_ALGO"] = "allreduce:tree"'),
        Rule(flag, needs, "NCCL_MIN_NCHANNELS", "8", ATTENTION, 697,
             'os.environ["NCCL_MIN_NCHANNELS"] = nchannels', forced_from=channels),
        Rule(flag, needs, "NCCL_MAX_NCHANNELS", "8", ATTENTION, 698,
             'os.environ["NCCL_MAX_NCHANNELS"] = nchannels', forced_from=channels),
    )  # fmt: skip


_SYMM_MEM = ("enable_symm_mem", 1)
_CUDA = ("cuda",)  # also HIP's name; platform_hook.py:99-110 switches symmetric memory off elsewhere

FIGHTS: tuple[Rule, ...] = (
    *_deterministic("--enable-deterministic-inference", "enable_deterministic_inference"),
    *_deterministic("--rl-on-policy-target", "rl_on_policy_target"),  # switches it on, :586-592
    Rule("--enable-symm-mem", (_SYMM_MEM,), "NCCL_CUMEM_ENABLE", "1", ENGINE, 1905,
         'os.environ["NCCL_CUMEM_ENABLE"] = str(', devices=_CUDA),
    Rule("--enable-symm-mem", (_SYMM_MEM,), "NCCL_NVLS_ENABLE", "1", ENGINE, 1913,
         'os.environ["NCCL_NVLS_ENABLE"] = str(', devices=_CUDA),
    Rule("--enable-symm-mem", (_SYMM_MEM, ("dcp_size", 2)), "NCCL_GRAPH_MIXING_SUPPORT", "0", ENGINE, 1920,
         'os.environ["NCCL_GRAPH_MIXING_SUPPORT"] = "0"', devices=_CUDA),
    Rule("--enable-nccl-nvls", (("enable_nccl_nvls", 1),), "NCCL_NVLS_ENABLE", "1", ENGINE, 1913,
         'os.environ["NCCL_NVLS_ENABLE"] = str('),
)  # fmt: skip

# What upstream overwrites in every launch, whatever the flags (engine.py:1921 of sglang 0.5.23).
ALWAYS_SET: Mapping[str, str] = MappingProxyType({"CUDA_DEVICE_MAX_CONNECTIONS": "8"})

# The ServerArgs attributes `fights` looks at, for a caller that makes the mapping from the object.
SETTINGS: tuple[str, ...] = (*sorted({attribute for rule in FIGHTS for attribute, _ in rule.needs}), "device")

# Upstream's spellings -> (attribute, type). argparse takes unambiguous beginnings too: --tp is one of these.
OPTIONS: Mapping[str, tuple[str, type]] = MappingProxyType({
    "--enable-deterministic-inference": ("enable_deterministic_inference", bool),
    "--rl-on-policy-target": ("rl_on_policy_target", str),
    "--enable-symm-mem": ("enable_symm_mem", bool),
    "--enable-nccl-nvls": ("enable_nccl_nvls", bool),
    "--tp-size": ("tp_size", int),
    "--tensor-parallel-size": ("tp_size", int),
    "--dcp-size": ("dcp_size", int),
    "--decode-context-parallel-size": ("dcp_size", int),
    "--device": ("device", str),
})  # fmt: skip


def fights(
    contract: Contract,
    settings: Mapping[str, object],
    env: Mapping[str, str] | None = None,
) -> list[Fight]:
    """Every term of `contract` that the server arguments in `settings` would overwrite with another value.

    `settings` maps ServerArgs attribute names (see SETTINGS) to values; a missing one counts as not given.
    `env` is what upstream will start with, beside the contract: only SGLANG_DETERMINISTIC_NCCL_NCHANNELS is
    looked up there. On AMD upstream forces nothing in deterministic mode, which `settings` cannot tell;
    contracts here are about NCCL.
    """
    found = []
    for rule in FIGHTS:
        term = contract.terms.get(rule.variable)
        if term is None or not _applies(rule, settings):
            continue
        forced = _forced(rule, contract, env or {})
        if forced is not None and term.want == forced:
            continue
        also = "".join(f" with {name} {settings[name]}" for name, at_least in rule.needs if at_least > 1)
        value = "a value of its own" if forced is None else shown(forced)
        instead = "drop the variable" if forced is None else f"launch with --set {rule.variable}={forced}"
        sentence = (
            f"{rule.variable}: expected {shown(term.want)} ({term.source}), found {rule.flag}{also}, which "
            f"makes sglang set it to {value} ({rule.file}:{rule.line} in {READ_IN}); "
            f"drop {rule.flag}, or {instead}"
        )
        found.append(Fight(rule.flag, rule.variable, term.want, forced, sentence))
    return found


def flag_settings(argv: Sequence[str]) -> dict[str, object]:
    """The settings that matter to `fights`, guessed from a launch command line; later options win, as in
    argparse.

    A guess for an early refusal only: what a --config file says is not seen, and what upstream will reject
    (no value, no integer) is skipped. The engine seam asks again with the resolved ServerArgs.
    """
    settings: dict[str, object] = {}
    position = 0
    while position < len(argv):
        text, equals, value = argv[position].partition("=")
        position += 1
        if text == "--":
            break
        option = _option(text)
        if option is None:
            continue
        attribute, kind = option
        if kind is bool:
            if not equals:
                settings[attribute] = True
            continue
        if not equals:
            if position == len(argv) or argv[position].startswith("--"):
                continue
            value = argv[position]
            position += 1
        if kind is str:
            settings[attribute] = value
        elif (number := _integer(value)) is not None:
            settings[attribute] = number
    return settings


def _applies(rule: Rule, settings: Mapping[str, object]) -> bool:
    device = settings.get("device")
    if rule.devices and isinstance(device, str) and device not in rule.devices:
        return False
    return all(_level(settings.get(attribute)) >= at_least for attribute, at_least in rule.needs)


def _level(value: object) -> int:
    return int(value) if isinstance(value, int) else int(bool(value))


def _forced(rule: Rule, contract: Contract, env: Mapping[str, str]) -> str | None:
    if rule.forced_from is None:
        return rule.forced
    term = contract.terms.get(rule.forced_from)
    text = term.want if term is not None else env.get(rule.forced_from)
    number = _integer(text) if text is not None else None
    # Upstream warns about anything else and takes its default.
    return rule.forced if number is None else str(number)


def _option(text: str) -> tuple[str, type] | None:
    if text in OPTIONS:
        return OPTIONS[text]
    if not text.startswith("--") or text == "--":
        return None
    # No option of upstream is itself a beginning of one of ours, so a beginning means ours or is refused by
    # argparse.
    meant = {option for name, option in OPTIONS.items() if name.startswith(text)}
    return meant.pop() if len(meant) == 1 else None


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
