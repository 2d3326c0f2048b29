"""What a contract is: names with the value each must have, or must not have at all."""

from __future__ import annotations

from types import MappingProxyType

from sglang_ext.contract.names import name_fault, shown, value_fault
from sglang_ext.quick import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, MutableMapping


class ContractError(Exception):
    """A contract that cannot be made or read. The message is one sentence: what, expected, found, fix."""


class Term(NamedTuple):
    """One requirement. `want` None: must be absent. `source`: "flag", "profile:NAME" or "shell"."""

    name: str
    want: str | None
    source: str


class Difference(NamedTuple):
    """A variable that is not as required; None means absent on either side."""

    name: str
    want: str | None
    found: str | None

    def __str__(self) -> str:
        return f"{self.name}: expected {shown(self.want)}, found {shown(self.found)}"


class Change(NamedTuple):
    """A variable that `apply_to` changed; None means absent on either side."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name} {shown(self.old)} -> {shown(self.new)}"


class Contract:
    """An immutable set of terms, in order of their names. False when it requires nothing.

    Two contracts are equal when they have the same terms; `warnings` (what was decided against whom) is for
    people and is neither compared nor stored.
    """

    __slots__ = ("_digest", "terms", "warnings")

    _digest: str
    terms: Mapping[str, Term]
    warnings: tuple[str, ...]

    def __init__(self, terms: Mapping[str, Term] | None = None, warnings: tuple[str, ...] = ()) -> None:
        ordered = {name: (terms or {})[name] for name in sorted(terms or {})}
        for name, term in ordered.items():
            if term.name != name:
                raise ContractError(f"contract: expected the term of {name} under its own name, found {term.name!r}")
        object.__setattr__(self, "terms", MappingProxyType(ordered))
        object.__setattr__(self, "warnings", tuple(warnings))
        object.__setattr__(self, "_digest", _digest({name: term.want for name, term in ordered.items()}))

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of name -> want: the same requirement, whoever states it."""
        return self._digest

    def to_json(self) -> dict[str, object]:
        """The "contract" object of verify-env --json, and what the run directory stores."""
        variables = {term.name: {"want": term.want, "source": term.source} for term in self.terms.values()}
        return {"digest": self.digest, "variables": variables}

    @classmethod
    def from_json(cls, obj: object) -> Contract:
        """The contract that `to_json` wrote. Keys it does not know are ignored (the format may grow).

        Raises ContractError where the shape is wrong, a name or value could not have come from `decide`, or
        the digest does not fit: a file that someone edited is not the contract that was decided.
        """
        body = _object(obj, "contract")
        variables = _object(body.get("variables"), "contract variables")
        terms = {name: _term(name, entry) for name, entry in variables.items()}
        contract = cls(terms)
        if body.get("digest") != contract.digest:
            raise ContractError(
                f"contract: expected the digest of its variables, {contract.digest}, found "
                f"{body.get('digest')!r}; it was edited or damaged, start the server again to write it anew"
            )
        return contract

    def without(self, names: Collection[str]) -> Contract:
        """This contract but for the terms of ``names``."""
        return Contract({n: t for n, t in self.terms.items() if n not in names}, self.warnings)

    def differences(self, env: Mapping[str, str]) -> list[Difference]:
        """Every term that `env` does not meet, in order of names. An empty value is a value, not absence."""
        return [
            Difference(term.name, term.want, env.get(term.name))
            for term in self.terms.values()
            if env.get(term.name) != term.want
        ]

    def apply_to(self, env: MutableMapping[str, str]) -> list[Change]:
        """Make `env` meet the contract (os.environ: the C environment too) and say what was changed."""
        changes = [Change(name, found, want) for name, want, found in self.differences(env)]
        for name, _, want in changes:
            if want is None:
                del env[name]
            else:
                env[name] = want
        return changes

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __len__(self) -> int:
        return len(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        terms = ", ".join(f"{t.name}={shown(t.want)} [{t.source}]" for t in self.terms.values())
        return f"<Contract {self.digest[:12]} {terms or 'empty'}>"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a contract is decided once: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a contract is decided once: {name} cannot be deleted")

    def __reduce__(self) -> tuple[type[Contract], tuple[dict[str, Term], tuple[str, ...]]]:
        # Pickled for spawned workers; a mappingproxy alone would refuse.
        return Contract, (dict(self.terms), self.warnings)


def _digest(wants: Mapping[str, str | None]) -> str:
    import json

    from sglang_ext.quick import sha256

    # ASCII escapes: a value with bytes that are no UTF-8 (surrogates in os.environ) has a digest too.
    text = json.dumps(wants, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode("ascii")).hexdigest()


def _object(obj: object, what: str) -> dict[str, object]:
    if not isinstance(obj, dict) or not all(isinstance(key, str) for key in obj):
        raise ContractError(
            f"{what}: expected a JSON object, found {type(obj).__name__}; give what Contract.to_json() wrote"
        )
    return obj


def _term(name: str, entry: object) -> Term:
    if fault := name_fault(name):
        raise ContractError(f"contract variable: {fault}")
    what = f"contract variable {name}"
    body = _object(entry, what)
    want, source = body.get("want"), body.get("source")
    if "want" not in body:
        raise ContractError(f'{what}: expected "want" (a string, or null for absent), found none; add it')
    if not (want is None or isinstance(want, str)):
        raise ContractError(f'{what}: expected "want" to be a string or null, found {type(want).__name__}; quote it')
    if want is not None and (fault := value_fault(want)):
        raise ContractError(f"{what}: {fault}")
    if not (isinstance(source, str) and _is_source(source)):
        raise ContractError(
            f'{what}: expected "source" to be flag, shell or profile:NAME, found {source!r}; correct it'
        )
    return Term(name, want, source)


def _is_source(source: str) -> bool:
    return source in ("flag", "shell") or (source.startswith("profile:") and source != "profile:")
