"""Who decides: flag over profile over shell; every contradiction is one sentence that names both."""

from __future__ import annotations

from sglang_ext.contract.model import Contract, ContractError, Term
from sglang_ext.contract.names import is_name, is_nccl, looks_secret, name_fault, shown, value_fault
from sglang_ext.hide import holds_credentials, presentable
from sglang_ext.quick import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sglang_ext.contract.profile import Profile


def decide(
    profile: Profile | None,
    sets: Sequence[str],
    absents: Sequence[str],
    shell: Mapping[str, str],
) -> Contract:
    """The contract of one launch. Pure: `shell` is the launcher's environment, passed in.

    `sets` are NAME=VALUE (`--set`), `absents` are NAMEs (`--absent`). The shell contributes its NCCL_*
    variables, with or without a profile; what a flag or the profile names is theirs. Raises ContractError,
    one sentence, for anything that cannot be required. Where the shell's NCCL_ variable cannot be held (not a
    variable name, looks like a secret, holds credentials) it is left out and a warning says so: nobody asked us
    for it, and the workers inherit it anyway.
    """
    flags = _flags(sets, absents)
    wishes = profile.wants() if profile else {}
    inherited, warnings = _from_shell(shell, known=flags.keys() | wishes.keys())
    # Highest precedence first.
    layers = [("flag", flags), (profile.source if profile else "", wishes), ("shell", inherited)]

    terms = {}
    for name in sorted({name for _, layer in layers for name in layer}):
        said = [(source, layer[name]) for source, layer in layers if name in layer]
        source, want = said[0]
        terms[name] = Term(name, want, source)
        for loser, value in said[1:]:
            if value != want:
                reason = profile.absent.get(name) if profile and source == profile.source else None
                tail = f" ({reason})" if reason else ""
                warnings.append(f"{name}: {source} {shown(want)} wins over {loser} {shown(value)}{tail}")
    return Contract(terms, tuple(warnings))


def _flags(sets: Sequence[str], absents: Sequence[str]) -> dict[str, str | None]:
    wants: dict[str, str | None] = {}
    for text in sets:
        name, value = _split(text)
        if wants.setdefault(name, value) != value:
            raise ContractError(
                f"--set {name}: expected one value, found {shown(wants[name])} and {shown(value)}; keep one"
            )
    for name in absents:
        if fault := _name_fault(name, name):
            raise ContractError(f"--absent: {fault}")
        if wants.setdefault(name, None) is not None:
            raise ContractError(
                f"--absent {name}: expected a variable that is not set as well, "
                f"found --set {name}={shown(wants[name])}; keep one of the two"
            )
    return wants


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        # Nothing tells name from value here, so a text that may hold a secret is not repeated.
        hidden = looks_secret(text) or holds_credentials(text)
        found = "a text that is not shown" if hidden else repr(text)
        raise ContractError(
            f"--set: expected NAME=VALUE, found {found} without an equals sign; write --set NCCL_PROTO=LL, "
            "or --absent NAME to require absence"
        )
    if fault := _name_fault(name, text):
        raise ContractError(f"--set: {fault}")
    if fault := value_fault(value):
        raise ContractError(f"--set {name}: {fault}")
    if value == "":
        # Most likely --set NAME=$UNSET. NCCL treats an empty value as unset, or as "nothing allowed".
        raise ContractError(f"--set {name}: expected a value, found an empty one; give it, or use --absent {name}")
    return name, value


def _name_fault(name: str, text: str) -> str | None:
    """`name_fault`, which shows what is no name: not where the whole text is a URL with a password in it."""
    if holds_credentials(text) and not is_name(name):
        return (
            'expected a variable name (letters, digits, "_"), found a text that is not shown; write it like NCCL_PROTO'
        )
    return name_fault(name)


def _from_shell(shell: Mapping[str, str], known: Collection[str]) -> tuple[dict[str, str | None], list[str]]:
    """The shell's NCCL_* variables, and its value of each name in `known` (to report contradictions)."""
    taken: dict[str, str | None] = {}
    warnings: list[str] = []
    for name in sorted(shell):
        if name not in known and not is_nccl(name):
            continue
        if name in known:
            taken[name] = shell[name]
        elif looks_secret(name):
            warnings.append(f"{name}: left out of the contract, because the name looks like a secret")
        elif holds_credentials(shell[name]):
            who = name if is_name(name) else "a variable of the shell"
            warnings.append(f"{who}: left out of the contract, because its value holds credentials")
        elif not is_name(name):
            warnings.append(
                f"{presentable(name)!r}: left out of the contract, because no shell can set it; is it misspelt?"
            )
        elif fault := value_fault(shell[name]):
            raise ContractError(f"shell variable {name}: {fault}, or unset it in the launching shell")
        else:
            taken[name] = shell[name]
    return taken, warnings
