"""Server flags that need another value than a contract may want.

Upstream does not ask: it assigns to os.environ while the arguments are resolved and before the workers start.
A flag whose feature needs such a value cannot be honoured together with a contract that wants another one, so
the pair is refused before a model loads. What upstream only *defaults* (NCCL_CUMEM_ENABLE where unset, ...)
is no fight, and neither is what it sets for no one's sake (`ALWAYS_SET`): there the engine seam puts the
contract's value back.

Releases differ in what they assign and where. `PLACES` says so, a row for each release; the rules are made from a
row and name its file and line, and a test looks them up where sglang or its wheels are. Who does not know the
release gets the newest one's.
"""

from __future__ import annotations

from types import MappingProxyType

from sglang_ext.contract.names import shown
from sglang_ext.quick import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sglang_ext.contract.model import Contract

READ_IN = "0.5.23"  # what `FIGHTS` and `ALWAYS_SET` are of
ENGINE = "srt/entrypoints/engine.py"
ATTENTION = "srt/arg_groups/attention_hook.py"  # 0.5.19 on
ARGS = "srt/server_args.py"  # up to 0.5.18


class Places(NamedTuple):
    """Where one release assigns what: the file of deterministic inference, else lines of engine.py. 0: it does not."""

    deterministic: str
    algo: int  # of that file
    min_nchannels: int  # of that file
    cumem: int
    nvls: int
    graph_mixing: int
    connections: int
    module_loading: int

    @property
    def max_nchannels(self) -> int:
        """The line after the minimum's, where there is one."""
        return self.min_nchannels and self.min_nchannels + 1


PLACES: Mapping[str, Places] = MappingProxyType({
    "0.5.23": Places(ATTENTION, 676, 697, 1905, 1913, 1920, 1921, 0),
    "0.5.22": Places(ATTENTION, 674, 695, 1876, 1882, 1889, 1890, 0),
    "0.5.21": Places(ATTENTION, 586, 607, 1802, 1808, 1815, 1816, 0),
    "0.5.20": Places(ATTENTION, 589, 610, 1678, 1684, 1691, 1692, 0),
    "0.5.19": Places(ATTENTION, 609, 630, 1659, 1665, 1672, 1673, 0),
    "0.5.18": Places(ARGS, 8270, 8280, 1660, 1666, 1673, 1674, 1675),
    "0.5.17": Places(ARGS, 7881, 0, 1583, 1589, 1596, 1597, 1598),
    "0.5.16": Places(ARGS, 6817, 0, 1261, 1267, 1274, 1275, 1276),
    "0.5.15.post1": Places(ARGS, 5877, 0, 1260, 1266, 1273, 1274, 1275),
    "0.5.15": Places(ARGS, 5877, 0, 1260, 1266, 1273, 1274, 1275),
    "0.5.14": Places(ARGS, 6054, 0, 1240, 1246, 0, 1249, 1250),
    "0.5.13.post1": Places(ARGS, 4297, 0, 1243, 1249, 0, 1252, 1253),
    "0.5.13": Places(ARGS, 4297, 0, 1243, 1249, 0, 1252, 1253),
    "0.5.12.post1": Places(ARGS, 4396, 0, 1223, 1229, 0, 1232, 1233),
    "0.5.12": Places(ARGS, 4396, 0, 1223, 1229, 0, 1232, 1233),
    "0.5.11": Places(ARGS, 4057, 0, 1124, 1130, 0, 1133, 1134),
    "0.5.10.post1": Places(ARGS, 3512, 0, 1090, 1096, 0, 1099, 1100),
    "0.5.10": Places(ARGS, 3512, 0, 1090, 1096, 0, 1099, 1100),
    "0.5.9": Places(ARGS, 2791, 0, 809, 815, 0, 818, 819),
})  # fmt: skip


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


_SYMM_MEM = ("enable_symm_mem", 1)


def rules_of(release: str | None) -> tuple[Rule, ...]:
    """The assignments of one release. Those of `READ_IN` where it is None or unknown: later releases resemble it most."""
    at = PLACES.get(release or READ_IN, PLACES[READ_IN])
    # From 0.5.19 upstream switches symmetric memory off on other devices than cuda (also HIP's name): platform_hook.py.
    cuda = ("cuda",) if at.deterministic == ATTENTION else ()
    rules = (
        *_deterministic("--enable-deterministic-inference", "enable_deterministic_inference", at),
        *_deterministic("--rl-on-policy-target", "rl_on_policy_target", at),  # switches it on
        Rule("--enable-symm-mem", (_SYMM_MEM,), "NCCL_CUMEM_ENABLE", "1", ENGINE, at.cumem,
             'os.environ["NCCL_CUMEM_ENABLE"] = str(', devices=cuda),
        Rule("--enable-symm-mem", (_SYMM_MEM,), "NCCL_NVLS_ENABLE", "1", ENGINE, at.nvls,
             'os.environ["NCCL_NVLS_ENABLE"] = str(', devices=cuda),
        Rule("--enable-symm-mem", (_SYMM_MEM, ("dcp_size", 2)), "NCCL_GRAPH_MIXING_SUPPORT", "0", ENGINE, at.graph_mixing,
             'os.environ["NCCL_GRAPH_MIXING_SUPPORT"] = "0"', devices=cuda),
        Rule("--enable-nccl-nvls", (("enable_nccl_nvls", 1),), "NCCL_NVLS_ENABLE", "1", ENGINE, at.nvls,
             'os.environ["NCCL_NVLS_ENABLE"] = str('),
    )  # fmt: skip
    return tuple(rule for rule in rules if rule.line)


def _deterministic(flag: str, attribute: str, at: Places) -> tuple[Rule, ...]:
    # tp_size > 1 and no HIP. Without tensor parallelism nothing is forced.
    needs = ((attribute, 1), ("tp_size", 2))
    channels = "SGLANG_DETERMINISTIC_NCCL_NCHANNELS"  # srt/environ.py, EnvInt(8)
    return (
        Rule(flag, needs, "NCCL_ALGO", "allreduce:tree", at.deterministic, at.algo,
             'os.environ["NCCL_ALGO"] = "allreduce:tree"'),
        Rule(flag, needs, "NCCL_MIN_NCHANNELS", "8", at.deterministic, at.min_nchannels,
             'os.environ["NCCL_MIN_NCHANNELS"] = nchannels', forced_from=channels),
        Rule(flag, needs, "NCCL_MAX_NCHANNELS", "8", at.deterministic, at.max_nchannels,
             'os.environ["NCCL_MAX_NCHANNELS"] = nchannels', forced_from=channels),
    )  # fmt: skip


def always_set(release: str | None) -> Mapping[str, str]:
    """What one release overwrites in every launch, whatever the flags; of `READ_IN` where it is None or unknown."""
    at = PLACES.get(release or READ_IN, PLACES[READ_IN])
    lines = {"CUDA_DEVICE_MAX_CONNECTIONS": at.connections, "CUDA_MODULE_LOADING": at.module_loading}
    return MappingProxyType({name: EVER_SET[name] for name, line in lines.items() if line})


# What one release or another overwrites in every launch: for who sees a value and does not know the release.
EVER_SET: Mapping[str, str] = MappingProxyType({"CUDA_DEVICE_MAX_CONNECTIONS": "8", "CUDA_MODULE_LOADING": "AUTO"})
ALWAYS_SET: Mapping[str, str] = always_set(READ_IN)
FIGHTS: tuple[Rule, ...] = rules_of(READ_IN)

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
    *,
    release: str | None = None,
) -> list[Fight]:
    """Every term of `contract` that the server arguments in `settings` would overwrite with another value.

    `settings` maps ServerArgs attribute names (see SETTINGS) to values; a missing one counts as not given.
    `env` is what upstream will start with, beside the contract: only SGLANG_DETERMINISTIC_NCCL_NCHANNELS is
    looked up there. `release` is the sglang that will run (see `rules_of`). On AMD upstream forces nothing in
    deterministic mode, which `settings` cannot tell; contracts here are about NCCL.
    """
    found = []
    release = release if release in PLACES else READ_IN
    for rule in rules_of(release):
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
            f"makes sglang set it to {value} ({rule.file}:{rule.line} in {release}); "
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
