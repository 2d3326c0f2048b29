"""A job that is no SGLang server: torchrun and the ranks it started, told by the environment it gave each of them.

torchrun hands RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and a rendezvous to every worker it starts (torch 2.x
distributed/elastic/agent/server/local_elastic_agent.py). Whatever a worker starts inherits them, so a rank is the topmost
process that has them. Nobody has to cooperate.
"""

from __future__ import annotations

from sglang_ext.quick import NamedTuple
from sglang_ext.verify.discover import Host, Server, descendants, program
from sglang_ext.verify.expected import from_world
from sglang_ext.verify.witnesses import read_exec, read_now

RANK = "RANK"
NEEDED = (RANK, "LOCAL_RANK", "WORLD_SIZE")
RENDEZVOUS = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")  # equal in all ranks of one job


class Seat(NamedTuple):
    """A place in a job: which job, and which rank of it."""

    job: tuple[str, ...]
    rank: int


def environment_of(pid: int) -> dict[str, str]:
    """What ``pid`` was started with; its live environment where a title has overwritten that."""
    block = read_exec(pid)
    return (block if block.state == "ok" else read_now(pid)).values


def seat_of(environment: dict[str, str]) -> Seat | None:
    """The seat an environment gives, or None."""
    if not all(environment.get(name, "").isdigit() for name in NEEDED):
        return None
    return Seat(tuple(environment.get(name, "") for name in RENDEZVOUS), int(environment[RANK]))


def jobs_of(host: Host, pid: int) -> list[Server]:
    """The jobs of which ``pid`` is a rank or what one started; else those whose ranks are somewhere under ``pid``."""
    seats: dict[int, Seat | None] = {}

    def seat(number: int) -> Seat | None:
        if number not in seats:
            seats[number] = seat_of(environment_of(number)) if number in host.stats else None
        return seats[number]

    top, own = pid, seat(pid)
    while seat(top) is not None:
        top = host.stats[top].ppid
    found: dict[tuple[str, ...], dict[int, int]] = {}  # job -> pid of each of its ranks -> which one
    for entry in descendants(top, host.below):
        place = seat(entry.pid)
        if place is not None and place != seat(entry.ppid) and (own is None or own.job == place.job):
            found.setdefault(place.job, {})[entry.pid] = place.rank
    return [_job(host, ranks) for _, ranks in sorted(found.items())]


def _job(host: Host, ranks: dict[int, int]) -> Server:
    """One job: its main is what started the ranks; with them comes whatever else that started."""
    first = min(ranks, key=lambda pid: ranks[pid])
    main = host.stats.get(host.stats[first].ppid)
    if main is not None and main.pid == 1 and "python" not in program(1, host.line(1)):
        main = None  # orphans: init started none of them
    family = host.family(main.pid) if main else [process for pid in ranks for process in host.family(pid)]
    processes = tuple(
        process._replace(role="rank", name=f"rank {ranks[process.stat.pid]}") if process.stat.pid in ranks else process
        for process in family
    )
    return Server(main, tuple(host.line(main.pid)) if main else (), processes, from_world(environment_of(first)))
