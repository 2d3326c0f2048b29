"""What can be taken from NCCL's log (`log.parse` does): one record for each kind of line, and all of them together."""

from __future__ import annotations

from sglang_ext.quick import NamedTuple

TYPE_CHECKING = False  # mypy treats this name as true
if TYPE_CHECKING:
    from typing import TypeVar

    _R = TypeVar(
        "_R", bound="Setting | Init | Choice | Invalid | Warn | Library | Network | Channels | Plugin | Enabled"
    )

# How a value was printed.
NUMBER = "number"  # as NCCL read it: strtoll took "4M" for 4, and the line says 4
TEXT = "text"  # as it was given, before anything was made of it
LEVEL = "canonical level"  # the name that was understood: NCCL_P2P_LEVEL=2 is printed as PXB
FILE = "file"  # the library a plugin's name came to (up to 2.27)
CONFIG = "config"  # the value that displaced one of the caller's ncclConfig_t


class Setting(NamedTuple):
    """A variable that NCCL says it took from its environment (a conf file and an env plugin look the same)."""

    pid: int
    name: str
    value: str
    how: str
    host: str = ""


class Init(NamedTuple):
    """One end of a communicator's start. ``stage`` is START or COMPLETE; ``comm_id`` is None for one made by a split."""

    pid: int
    comm: str
    rank: int
    nranks: int
    cuda_dev: int
    bus_id: str
    comm_id: str | None
    stage: str
    host: str = ""


class Choice(NamedTuple):
    """What a collective was launched with; printed by rank 0 of its communicator only.

    ``channels`` is (first, last), None up to 2.23. For what is neither algorithm nor protocol, ``algorithm`` is the kind
    ("Symmetric", "Copy Engine") and ``protocol`` the kernel or copy.
    """

    pid: int
    function: str
    bytes: int
    algorithm: str
    protocol: str
    channels: tuple[int, int] | None
    host: str = ""


class Invalid(NamedTuple):
    """A value NCCL says it did not use as given; ``default`` is what it used instead, where it says so."""

    pid: int
    name: str
    value: str
    default: str | None
    text: str
    host: str = ""


class Warn(NamedTuple):
    """A WARN, ATTN (2.32) or DIAG (2.31) line. ``place`` is its file and line."""

    pid: int
    level: str
    text: str
    place: str = ""
    host: str = ""


class Library(NamedTuple):
    """The banner. ``pid`` is None where it stands without a prefix (NCCL_DEBUG=VERSION and WARN)."""

    pid: int | None
    version: tuple[int, ...]
    cuda: str
    host: str = ""


class Network(NamedTuple):
    """``Using network``: what NCCL_NET, or the choice among what was found, came to."""

    pid: int
    name: str
    host: str = ""


class Channels(NamedTuple):
    """How many channels a communicator got."""

    pid: int
    collective: int
    collnet: int
    nvls: int
    p2p: int
    p2p_per_peer: int
    host: str = ""


class Plugin(NamedTuple):
    """A line about an external network, tuner, profiler, env, GIN or RMA plugin, as it stands."""

    pid: int
    text: str
    host: str = ""


class Enabled(NamedTuple):
    """One row of the matrix that rank 0 prints (2.24 on): 0 off, 1 on, 2 left to NCCL (LL128: where hardware allows)."""

    pid: int
    function: str
    protocols: tuple[tuple[str, int], ...]
    algorithms: tuple[tuple[str, int], ...]
    host: str = ""


class Testimony(NamedTuple):
    """All that was found in one log text. `of` narrows it to a process."""

    settings: tuple[Setting, ...] = ()
    inits: tuple[Init, ...] = ()
    choices: tuple[Choice, ...] = ()
    invalid: tuple[Invalid, ...] = ()
    warnings: tuple[Warn, ...] = ()
    libraries: tuple[Library, ...] = ()
    networks: tuple[Network, ...] = ()
    channels: tuple[Channels, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    matrix: tuple[Enabled, ...] = ()
    links: tuple[tuple[int, str, int], ...] = ()  # (pid, transport such as P2P/CUMEM, how many connections)
    processes: tuple[tuple[str, int], ...] = ()  # (host, pid) of every process that wrote a line
    lines: int = 0  # NCCL's own lines that were read
    mixed: int = 0  # lines of two processes in one, or too damaged to be told apart: left out
    torn: bool = False  # the text does not end at a line's end

    def of(self, pid: int, host: str | None = None) -> Testimony:
        """What one process said. Without a host every process of that number: see `processes` for how many those are."""

        def mine(records: tuple[_R, ...]) -> tuple[_R, ...]:
            return tuple(r for r in records if r.pid == pid and host in (None, r.host))

        return self._replace(
            settings=mine(self.settings), inits=mine(self.inits), choices=mine(self.choices), invalid=mine(self.invalid),
            warnings=mine(self.warnings), libraries=mine(self.libraries), networks=mine(self.networks),
            channels=mine(self.channels), plugins=mine(self.plugins), matrix=mine(self.matrix),
            links=tuple(link for link in self.links if link[0] == pid),
            processes=tuple(p for p in self.processes if p[1] == pid and host in (None, p[0])),
        )  # fmt: skip

    def values(self) -> dict[str, tuple[str, ...]]:
        """Name -> the values printed for it, each once, in order: several where communicators read it anew."""
        found: dict[str, dict[str, None]] = {}
        for setting in self.settings:
            found.setdefault(setting.name, {})[setting.value] = None
        return {name: tuple(values) for name, values in found.items()}

    def ranks(self, stage: str = "COMPLETE") -> dict[int, tuple[tuple[int, int], ...]]:
        """Pid -> (rank, number of ranks) of every communicator that got to that stage."""
        found: dict[int, dict[tuple[int, int], None]] = {}
        for init in self.inits:
            if init.stage == stage:
                found.setdefault(init.pid, {})[init.rank, init.nranks] = None
        return {pid: tuple(ranks) for pid, ranks in found.items()}
