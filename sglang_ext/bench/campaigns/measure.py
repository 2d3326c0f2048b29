"""Taking numbers from one verified server: warm up, then the suite's runs, each held against what the server itself says of it.

What comes of it is data; nothing is judged here but whether a run counts at all. A campaign and a single bench run share this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.suites.suite import Workload
from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.client import Address, Fault, ServerError
from sglang_ext.bench.traffic.figures import Run, figures, together
from sglang_ext.bench.truth import counters
from sglang_ext.bench.truth.counters import CountersError
from sglang_ext.bench.truth.reconcile import RECONCILED, UNKNOWN, UNRECONCILED, Reconciliation
from sglang_ext.bench.truth.referee import Referee

Tell = Callable[[str], None]
Counted = dict[str, float]
AGREES: Mapping[str, bool | None] = {RECONCILED: True, UNRECONCILED: False, UNKNOWN: None}


class Place(NamedTuple):
    """Where to ask, and what is known of who answers."""

    address: Address
    model: str
    speculative: bool | None  # None: not known of this server


class Taken(NamedTuple):
    """What the streams came to. ``fault``: why they do not count, or not all of them were sent."""

    warmups: tuple[Run, ...]
    runs: tuple[Run, ...]
    reconciled: tuple[Reconciliation, ...]  # one for each round of streams
    counters: Counted | None
    unknown: dict[str, str]
    fault: Fault | None

    def warmups_json(self) -> list[dict[str, Any]]:
        return [run.to_json() for run in self.warmups]

    def runs_json(self) -> list[dict[str, Any]]:
        """The runs, each with whether it was reconciled."""
        streams = max((run.stream for run in self.runs), default=0) + 1
        return [_with(run.to_json(), index // streams, self.reconciled) for index, run in enumerate(self.runs)]

    def rounds_json(self) -> list[dict[str, Any]]:
        """What streams that ran at once came to together; nothing where each ran alone."""
        streams = max((run.stream for run in self.runs), default=0) + 1
        starts = range(0, len(self.runs), streams) if streams > 1 else ()
        return [together(self.runs[start : start + streams]) for start in starts]


NOTHING = Taken((), (), (), None, {}, None)


def _with(run: dict[str, Any], round_: int, reconciled: Sequence[Reconciliation]) -> dict[str, Any]:
    if round_ >= len(reconciled):
        return run
    found = reconciled[round_]
    unknown = {name: why for name, why in run["unknown"].items() if name != "reconciled"}
    if AGREES[found.state] is None:
        unknown["reconciled"] = found.reason or "nothing to compare with"
    return {**run, "reconciled": AGREES[found.state], "unknown": unknown}


def place(address: Address, server: Mapping[str, Any], model: Mapping[str, Any]) -> Place:
    """From the server's own answers to /server_info and /model_info."""
    name = str(model.get("served_model_name") or server.get("served_model_name") or "default")
    speculative = server["speculative_algorithm"] is not None if "speculative_algorithm" in server else None
    return Place(address, name, speculative)


class Taker:
    """Sends the suite's streams to one server, and notes what the server says beside them."""

    def __init__(self, place: Place, work: Workload, tell: Tell, referee: Referee, server: Mapping[str, Any]) -> None:
        """``server``: its /server_info."""
        self.place, self.work, self.tell, self.referee = place, work, tell, referee
        self.windows = windows(server)
        self.unknown: dict[str, str] = {}

    def take(self) -> Taken:
        """Warm up and run; stops at the first stream that does not count, as nothing after it would."""
        work = self.work
        warmups, _, fault = self._several("warm-up", work.warmup_runs, work.warmup_tokens)
        if fault:
            return Taken(warmups, (), (), None, self.unknown, fault)
        before = self._count()
        runs, reconciled, fault = self._several("run", work.runs, work.tokens)
        return Taken(warmups, runs, reconciled, self._counted(before), self.unknown, fault)

    def _several(
        self, what: str, number: int, tokens: int
    ) -> tuple[tuple[Run, ...], tuple[Reconciliation, ...], Fault | None]:
        runs: list[Run] = []
        reconciled: list[Reconciliation] = []
        for index in range(number):
            self.tell(f"{what} {index + 1} of {number}: {tokens} tokens")
            self.referee.before()
            made = self._once(index, tokens)
            runs += made
            fault = next((run.fault for run in made if run.fault), None)
            if fault:
                self.tell(f"{what} {index + 1} does not count: {fault}")
                return tuple(runs), tuple(reconciled), fault
            if what == "run":
                reconciled.append(self.referee.after([run.to_json() for run in made]))
        return tuple(runs), tuple(reconciled), None

    def _once(self, index: int, tokens: int) -> list[Run]:
        """One round: the streams of one run, all at once."""
        work, place = self.work, self.place
        prompts = [work.prompt_of(index, stream) for stream in range(work.streams)]
        bodies = [client.body(work, tokens, place.model, prompt) for prompt in prompts]
        answers = client.run_streams(place.address, client.PATHS[work.endpoint], bodies, work.timeout_s)
        runs = [figures(answer, tokens, speculative=place.speculative) for answer in answers]
        window, why = self._window()
        if window is None:
            for run in runs:
                run.unknown["server_gen_tok_s"] = why
        return [run._replace(server_gen_tok_s=window) for run in runs]

    def _count(self) -> Counted | None:
        try:
            return counters.read(self.place.address)
        except CountersError as error:
            self.unknown["counters"] = str(error)
            return None

    def _counted(self, before: Counted | None) -> Counted | None:
        """What the server counted over all runs."""
        after = self._count() if before is not None else None
        if before is None or after is None:
            return None
        try:
            return counters.delta(before, after)
        except CountersError as error:
            self.unknown["counters"] = str(error)
            return None

    def _window(self) -> tuple[float | None, str]:
        """The server's last finished window, if one finished since we last looked; else why there is none to show."""
        earlier = self.windows
        try:
            self.windows = windows(client.ask(self.place.address, "/server_info"))
        except ServerError as error:
            self.windows = str(error)
        if isinstance(self.windows, str):
            return None, self.windows
        if len(self.windows) != 1:
            return (
                None,
                f"{len(self.windows)} data-parallel ranks answer, and which of them served this run is not worked out",
            )
        if self.windows == earlier:
            return None, "no window of the server ended since the last look: what it tells is older than this run"
        return self.windows[0], ""


def windows(server: Mapping[str, Any]) -> list[float] | str:
    """`last_gen_throughput` of each data-parallel rank (sglang 0.5.23: of its last 40 decode steps), or why not."""
    states = server.get("internal_states")
    found = [s.get("last_gen_throughput") for s in states if isinstance(s, dict)] if isinstance(states, list) else []
    values = [float(value) for value in found if isinstance(value, int | float)]
    return values if values and len(values) == len(found) else "/server_info has no last_gen_throughput"
