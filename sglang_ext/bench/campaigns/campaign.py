"""A campaign: randomised blocks of launches, every arm once in each, kept launch by launch, so that it can be resumed.

    run(suite, folder, stop, judge, tell) -> CAMPAIGN, the record of docs/campaign.md

What is understood of it is handed in: ``stop(campaign)`` says after a block why no further one is needed, or None (rule
"sequential" alone); ``judge(campaign)`` gives the verdict. Rules for what goes wrong:

- a gate that refuses a launch ends the campaign: the next launch would be refused too
- a launch that fails is repeated at once; a second failure of the same arm ends the campaign
- an interrupt, or the harness's death, costs the block that was under way: the whole of it is repeated, since partners that
  were measured hours apart are no pair
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from sglang_ext import __version__
from sglang_ext.bench.campaigns.journal import RECEIPT, Journal, JournalError, finished_blocks, unfinished
from sglang_ext.bench.campaigns.launch import Refused, launch
from sglang_ext.bench.machine import marks
from sglang_ext.bench.report.text import progress_line
from sglang_ext.bench.suites import plan
from sglang_ext.bench.suites.arms import Arm
from sglang_ext.bench.suites.suite import Suite, changed
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.bench.truth.sameness import differences, unknown
from sglang_ext.reasons import TABLE

Record = dict[str, Any]
Tell = Callable[[str], None]
SCHEMA = "sglang-ext/campaign/1"
INVALID, UNDECIDED = "INVALID", "INCONCLUSIVE"
STATUSES = (1, 3, 4)  # what a reason's own exit status may be here; the others are those of a command line
FAILURES = 2  # of one arm, since the campaign was begun or resumed: then it ends


class Ended(Exception):
    """The campaign comes to no verdict; ``fault`` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def run(
    suite: Suite,
    folder: str,
    stop: Callable[[Record], str | None],
    judge: Callable[[Record], Record],
    tell: Tell,
    expected: Mapping[str, Record] | None = None,
) -> Record:
    """Begin the campaign of ``suite`` in ``folder``, or go on with the one there. Returns its record, which the folder keeps.

    ``expected``: what each arm ran on in another campaign that this one repeats (`rerun`). Raises JournalError.
    """
    journal = Journal.open(folder)
    tell(f"campaign folder {journal.path}")
    try:
        return _Campaign(suite, journal, tell, expected or {}).run(stop, judge)
    finally:
        journal.close()


def begin(suite: Suite) -> Record:
    """The plan of a new campaign."""
    campaign = suite.campaign
    assert campaign is not None
    seed = campaign.seed if campaign.seed is not None else plan.draw_seed()
    return {
        "id": secrets.token_hex(8),
        "time": {"began": time.time()},
        "suite": suite.to_json(),
        "from": {"suite": os.path.abspath(suite.path), "sglang_ext": __version__},
        "plan": {
            "seed": seed,
            "blocks": plan.order([arm.name for arm in suite.arms], campaign.blocks, seed),
            "rule": campaign.rule,
            "alpha": campaign.alpha,
            "margin": campaign.margin,
            "effect": campaign.effect,
            "stopped": None,
        },
    }


def check_same(head: Record, suite: Suite, folder: str) -> None:
    """Raise JournalError unless the folder's campaign is of this suite, as it is now."""
    stored = head["suite"]
    found = changed(stored, suite)
    if not found and stored["sha256"] != suite.sha256:
        found = [f"suite sha256: expected {stored['sha256'][:12]}, found {suite.sha256[:12]}"]
    campaign = suite.campaign
    if not found and campaign is not None and campaign.seed not in (None, head["plan"]["seed"]):
        found = [f"seed: expected {head['plan']['seed']}, found {campaign.seed}"]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise JournalError(
            "campaign_differs",
            f"{folder} holds a campaign of another suite: {found[0]}{more}; restore the suite, or name another folder with --out",
        )


def record(head: Record, suite: Suite, launches: list[Record]) -> Record:
    """The campaign so far, undecided."""
    arms: list[Record] = []
    for arm in suite.arms:
        own = [one for one in launches if one["arm"] == arm.name]
        arms.append(
            {
                "name": arm.name,
                "summary": arm.summary,
                "baseline": arm.baseline,
                "control": arm.control,
                "fingerprint": next((one["fingerprint"] for one in own if one["state"] == "finished"), None),
                "launches": own,
            }
        )
    return {
        "schema": SCHEMA,
        "id": head["id"],
        "state": UNDECIDED,
        "reason": None,
        "exit": 5,
        "time": {"began": head["time"]["began"], "ended": time.time()},
        "suite": head["suite"],
        "from": head["from"],
        "plan": dict(head["plan"]),
        "arms": arms,
        "comparisons": [],
        "excluded": [],
        "notes": [
            *outputs(launches),
            *unknown({arm["name"]: arm["fingerprint"] for arm in arms if arm["fingerprint"]}),
        ],
    }


def outputs(launches: list[Record]) -> list[str]:
    """A note where greedy arms did not say the same. With several prompts each run has its own text, in the same order."""
    said: dict[tuple[str, ...], list[str]] = {}
    for one in launches:
        if one["state"] == "finished" and None not in one["output_sha256"]:
            said.setdefault(tuple(one["output_sha256"]), []).append(one["arm"])
    if len(said) < 2:
        return []
    groups = "; ".join(", ".join(sorted(set(arms))) for arms in said.values())
    return [f"outputs_differ: expected the same greedy text of every launch, found {len(said)} ({groups})"]


class _Campaign:
    """One campaign while it runs."""

    def __init__(self, suite: Suite, journal: Journal, tell: Tell, expected: Mapping[str, Record]) -> None:
        self.suite, self.journal, self.tell, self.expected = suite, journal, tell, expected
        self.arms: dict[str, Arm] = {arm.name: arm for arm in suite.arms}
        if journal.head:
            check_same(journal.head, suite, journal.path)
            self.launches = journal.launches()
            self._give_up_unfinished()
        else:
            journal.begin(begin(suite))
            self.launches = []
        self.head = journal.head
        self.failures: dict[str, int] = {}

    def run(self, stop: Callable[[Record], str | None], judge: Callable[[Record], Record]) -> Record:
        """Every block that is still to come; then the verdict."""
        try:
            stopped = self._all_blocks(stop)
            campaign = self.record()
            campaign["plan"]["stopped"] = stopped
            campaign = judge(campaign)
        except Ended as ended:
            self.tell(f"the campaign ends: {ended.fault}")
            status = TABLE[ended.fault.code].exit if ended.fault.code in TABLE else 1
            campaign = self.record()
            campaign.update(state=INVALID, exit=status if status in STATUSES else 1, reason=str(ended.fault))
        self.journal.write(RECEIPT, campaign)
        return campaign

    def _all_blocks(self, stop: Callable[[Record], str | None]) -> str | None:
        """Every block that is still to come; or why those left are not needed. Asked before a block, so after a crash too."""
        done = finished_blocks(self.head["plan"], self.launches)
        for block in range(len(self.head["plan"]["blocks"])):
            if block in done:
                continue
            if self.head["plan"]["rule"] == "sequential" and (why := stop(self.record())):
                self.tell(f"no further block is needed: {why}")
                return why
            self._block(block)
        return None

    def record(self) -> Record:
        return record(self.head, self.suite, self.launches)

    def _give_up_unfinished(self) -> None:
        head = self.journal.head
        blocks = finished_blocks(head["plan"], self.launches)
        self.tell(f"going on: {len(blocks)} of {len(head['plan']['blocks'])} blocks are finished")
        for one in list(unfinished(head["plan"], self.launches)):
            text = "the campaign was interrupted before the other launches of its block"
            one.update(state="abandoned", reason=f"block_unfinished: {text}")
            self.journal.keep(one)
        for one in self.launches:
            if one["state"] == "refused":  # whoever goes on has mended that, or is refused again
                one["state"] = "abandoned"
                self.journal.keep(one)

    def _block(self, block: int) -> None:
        order = self.head["plan"]["blocks"][block]
        for place, name in enumerate(order):
            while True:
                self.tell(progress_line(self.record(), name))
                made = self._launch(block, place, self.arms[name])
                if made["state"] == "finished":
                    break
                self.tell(f"{name} {made['state']}: {made['reason']}")
                code, _, text = made["reason"].partition(": ")
                if made["state"] == "refused":
                    raise Ended(Fault(code, f"arm {name}: {text}"))
                self.failures[name] = self.failures.get(name, 0) + 1
                if self.failures[name] >= FAILURES:
                    raise Ended(Fault("launch_failed_twice", f"arm {name}, the last time: {made['reason']}"))

    def _launch(self, block: int, place: int, arm: Arm) -> Record:
        """One launch, kept however it ends."""
        earlier = [one["attempt"] for one in self.launches if one["block"] == block and one["arm"] == arm.name]
        made: Record = {
            "campaign": self.head["id"],
            "block": block,
            "order": place,
            "attempt": max(earlier, default=-1) + 1,
            "arm": arm.name,
        }
        again = f"-{made['attempt']}" if made["attempt"] else ""
        log = self.journal.log(f"{block:03d}-{place}-{arm.name}{again}")
        try:
            launch(made, arm, self.suite, log, self.tell)
            if made["state"] == "finished":
                self._hold_against_the_others(arm, made)
        except Refused as refused:
            made.update(state="refused", reason=str(refused.fault))
        finally:
            # An interrupt too: `launch` has left the state "abandoned" then.
            self.launches.append(made)
            self.journal.keep(made)
        return made

    def _hold_against_the_others(self, arm: Arm, made: Record) -> None:
        """Raise Refused where the launch ran on something else than the others did, beyond what is under test."""
        campaign = self.suite.campaign
        assert campaign is not None
        finished = [one for one in self.launches if one["state"] == "finished"]
        if finished:
            made["machine"]["marks"] += marks.changed(finished[0]["machine"], made["machine"])
        own, now = f"{arm.name} before", f"{arm.name} now"
        first = self._first(arm.name)
        compared: list[tuple[Mapping[str, Record], tuple[str, ...]]] = []
        if first is not None:
            compared.append(({own: first, now: made["fingerprint"]}, ()))
        elif arm.name in self.expected:
            compared.append(({f"{arm.name} in the receipt": self.expected[arm.name], now: made["fingerprint"]}, ()))
        baseline = next(one for one in self.suite.arms if one.baseline)
        known = {one.name: found for one in self.suite.arms if (found := self._first(one.name)) is not None}
        known.setdefault(arm.name, made["fingerprint"])
        if arm.control and baseline.name in known:
            compared.append(({name: known[name] for name in (baseline.name, arm.name)}, ()))
        compared.append((known, tuple(campaign.under_test)))
        for prints, under_test in compared:
            faults = differences(prints, under_test)
            if faults:
                more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
                raise Refused(Fault(faults[0].code, f"{faults[0].text}{more}"))

    def _first(self, name: str) -> Record | None:
        return next(
            (one["fingerprint"] for one in self.launches if one["arm"] == name and one["state"] == "finished"), None
        )
