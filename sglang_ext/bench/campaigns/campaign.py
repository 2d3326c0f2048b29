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

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sglang_ext.bench.campaigns.journal import RECEIPT, Journal, finished_blocks, unfinished
from sglang_ext.bench.campaigns.launch import Refused, launch
from sglang_ext.bench.campaigns.record import begin, check_same, record, status_of
from sglang_ext.bench.machine.moved import changed, unlike
from sglang_ext.bench.report.text import progress_line
from sglang_ext.bench.suites.arms import Arm
from sglang_ext.bench.suites.suite import Suite
from sglang_ext.bench.traffic.client import Fault
from sglang_ext.bench.truth.sameness import differences

Record = dict[str, Any]
Tell = Callable[[str], None]
INVALID = "INVALID"
FAILURES = 2  # of one arm, since the campaign was begun or resumed: then it ends


class Ended(Exception):
    """The campaign comes to no verdict; ``fault`` says why, ``status`` is the exit status."""

    def __init__(self, fault: Fault, status: int) -> None:
        super().__init__(str(fault))
        self.fault, self.status = fault, status


class Interrupted(KeyboardInterrupt):
    """The campaign was interrupted; ``finished``: how many of its blocks are finished, and kept."""

    def __init__(self, finished: int) -> None:
        super().__init__()
        self.finished = finished


def run(
    suite: Suite,
    folder: str,
    stop: Callable[[Record], str | None],
    judge: Callable[[Record], Record],
    tell: Tell,
    expected: Mapping[str, Record] | None = None,
) -> Record:
    """Begin the campaign of ``suite`` in ``folder``, or go on with the one there. Returns its record, which the folder keeps.

    ``expected``: what each arm ran on in another campaign that this one repeats (`rerun`); whoever goes on with it need not say
    so again. Raises JournalError, and Interrupted where an interrupt comes after the folder was read.
    """
    journal = Journal.open(folder)
    tell(f"campaign folder {journal.path}")
    try:
        made = _Campaign(suite, journal, tell, expected or {})
        try:
            return made.run(stop, judge)
        except KeyboardInterrupt:
            kept = [one for one in made.launches if journal.holds(one)]
            raise Interrupted(len(finished_blocks(made.head["plan"], kept))) from None
    finally:
        journal.close()


class _Campaign:
    """One campaign while it runs."""

    def __init__(self, suite: Suite, journal: Journal, tell: Tell, expected: Mapping[str, Record]) -> None:
        self.suite, self.journal, self.tell = suite, journal, tell
        self.arms: dict[str, Arm] = {arm.name: arm for arm in suite.arms}
        if journal.head:
            check_same(journal.head, suite, expected, journal.path)
            self.launches = journal.launches()
            self._give_up_unfinished()
        else:
            journal.begin(begin(suite, expected))
            self.launches = []
        self.head = journal.head
        self.expected: Mapping[str, Record] = self.head.get("repeats") or {}
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
            campaign = self.record()
            campaign.update(state=INVALID, exit=ended.status, reason=str(ended.fault))
        self.journal.write(RECEIPT, campaign)
        return campaign

    def _all_blocks(self, stop: Callable[[Record], str | None]) -> str | None:
        """Every block that is still to come; or why those left are not needed. Asked before a block, so after a crash too."""
        done = finished_blocks(self.head["plan"], self.launches)
        going_on = False
        for block in range(len(self.head["plan"]["blocks"])):
            if block in done:
                continue
            if self.head["plan"]["rule"] == "sequential" and (why := stop(self.record())):
                self.tell(f"no further block is needed: {why}")
                return why
            if not going_on:
                self.journal.forget_verdict()  # whatever it came to before, it comes to something else now
                going_on = True
            self._block(block)
        return None

    def record(self) -> Record:
        return record(self.head, self.suite, self.launches)

    def _give_up_unfinished(self) -> None:
        head = self.journal.head
        blocks = finished_blocks(head["plan"], self.launches)
        self.tell(f"going on: {len(blocks)} of {len(head['plan']['blocks'])} blocks are finished")
        for one in list(unfinished(head["plan"], self.launches)):
            text = "block_unfinished: the campaign was interrupted before the other launches of its block"
            own = f"; before that {one['reason']}" if one["reason"] else ""
            one.update(state="abandoned", reason=f"{text}{own}")
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
                    raise Ended(Fault(code, f"arm {name}: {text}"), status_of(code, made))
                self.failures[name] = self.failures.get(name, 0) + 1
                if self.failures[name] >= FAILURES:
                    fault = Fault("launch_failed_twice", f"arm {name}, the last time: {made['reason']}")
                    raise Ended(fault, status_of(fault.code, made))

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
            launch(made, arm, self.suite, log, self.tell, lambda: self._hold_against_the_others(arm, made))
        except Refused as refused:
            made.update(state="refused", reason=str(refused.fault))
        finally:
            # An interrupt too: `launch` has left the state "abandoned" then.
            self.launches.append(made)
            self.journal.keep(made)
        return made

    def _hold_against_the_others(self, arm: Arm, made: Record) -> None:
        """Raise Refused where the launch ran on something else than the others did, beyond what is under test."""
        for one in self._moved(arm, made["machine"]):
            if one not in made["machine"]["marks"]:
                made["machine"]["marks"].append(one)
        for prints, under_test in self._comparisons(arm, made["fingerprint"]):
            faults = differences(prints, under_test)
            if faults:
                more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
                raise Refused(Fault(faults[0].code, f"{faults[0].text}{more}"))

    def _moved(self, arm: Arm, machine: Record) -> list[Record]:
        """The marks of a machine that is not as it was. Servers that run side by side have GPUs of their own: those must be what
        the arm had before, and the like of the other arms'.
        """
        finished = [one for one in self.launches if one["state"] == "finished"]
        if not finished:
            return []
        if arm.address is None:
            return changed(finished[0]["machine"], machine)
        own = next((one for one in finished if one["arm"] == arm.name), None)
        before = changed(own["machine"], machine) if own is not None else []
        return [*before, *unlike(finished[0]["machine"], machine)]

    def _comparisons(self, arm: Arm, now: Record) -> Iterator[tuple[Mapping[str, Record], tuple[str, ...]]]:
        """Which fingerprints are held against each other, and what is under test between them.

        Every arm is held against the baseline and no other: that is whose rate it is compared with, and what upstream changes
        along with a draft belongs to it there alone. Those that were launched before it wait for its first launch.
        """
        campaign = self.suite.campaign
        assert campaign is not None
        first = self._first(arm.name)
        if first is not None:
            yield {f"{arm.name} before": first, f"{arm.name} now": now}, ()
        elif arm.name in self.expected:
            yield {f"{arm.name} in the receipt": self.expected[arm.name], f"{arm.name} now": now}, ()
        baseline = next(one for one in self.suite.arms if one.baseline)
        base = now if arm is baseline else self._first(baseline.name)
        if base is None or (arm is baseline and first is not None):
            return
        for other in self.suite.arms if arm is baseline else (arm,):
            found = now if other is arm else self._first(other.name)
            if found is not None and other is not baseline:
                yield {baseline.name: base, other.name: found}, () if other.control else tuple(campaign.under_test)

    def _first(self, name: str) -> Record | None:
        return next(
            (one["fingerprint"] for one in self.launches if one["arm"] == name and one["state"] == "finished"), None
        )
