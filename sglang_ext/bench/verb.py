"""The verbs `sglang-ext bench run|plan|report|rerun`: what is read, what is started, where it is kept, what the terminal shows.

What understands numbers is handed in (`Study`): this room only takes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from sglang_ext.bench.campaigns import again
from sglang_ext.bench.campaigns.journal import PAGE, RECEIPT, SCHEMA, JournalError
from sglang_ext.bench.receipt import (
    ReceiptError,
    check_apart,
    check_writable,
    load,
    place_for,
    place_of,
    places_for,
    receipt,
    same_file,
    write,
    write_text,
)
from sglang_ext.bench.runner import Check, bench
from sglang_ext.bench.show import Progress, render
from sglang_ext.bench.suites.suite import Suite, SuiteError, load_suite, missing
from sglang_ext.delivery.ending import listen
from sglang_ext.reasons import TABLE
from sglang_ext.verify import report

STDOUT = "-"
EVERY = 30.0  # seconds between signs of life of a campaign: a big model loads for many minutes
Record = dict[str, Any]


class InputError(Exception):
    """Exit 2: a code of `reasons` and one sentence."""


class Interrupted(KeyboardInterrupt):
    """A campaign was told to end, by the signal ``number``; ``text`` says what is kept and how to go on."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.number, self.text = number, text


class Study(NamedTuple):
    """What understands a campaign."""

    stop: Callable[[Record], str | None]
    judge: Callable[[Record], Record]
    # pairs, level they are judged at, arms compared -> (spread of launches, the smallest change found then) for several spreads
    outlook: Callable[[int, float, int], list[tuple[float, float]]]


class Keep(NamedTuple):
    """Where results go: the campaign folder, the receipt (- is stdout), the page. None: not asked for."""

    out: str | None = None
    receipt: str | None = None
    page: str | None = None
    named: tuple[str, ...] = ()  # the options that are about a running server, its contract or how it is verified


@contextlib.contextmanager
def _input() -> Iterator[None]:
    """Input errors become InputError."""
    try:
        yield
    except SuiteError as error:
        raise InputError(f"suite_invalid: {error}") from None
    except JournalError as error:
        raise InputError(f"{error.code}: {error}") from None


def run(path: str, keep: Keep, check: Check, study: Callable[[], Study]) -> int:
    """Run the suite in ``path``: a campaign where it has arms, else on the server that ``check`` verifies. Returns the status.

    Raises InputError, what the first ``check`` raises, and Interrupted.
    """
    with _input():
        suite = load_suite(path)
        _check_outputs(suite, keep)
        return _campaign(suite, keep, study()) if suite.arms else _single(suite, keep, check)


def rerun(path: str, named: str | None, keep: Keep, check: Check, study: Callable[[], Study]) -> int:
    """Repeat what the receipt in ``path`` is of, or say what no longer matches. Raises as `run` does."""
    with _input():
        try:
            taken, file = load(path), place_of(path)
            suite = load_suite(again.suite_of(taken, file, named))
        except ReceiptError as error:
            raise InputError(f"receipt_unreadable: {error}") from None
        except again.AgainError as error:
            raise InputError(f"{error.code}: {error}") from None
        if bool(suite.arms) != (taken["schema"] == SCHEMA):
            kinds = ("a suite without arms", "a suite with arms")
            wanted, there = kinds[not suite.arms], kinds[bool(suite.arms)]
            fix = "name it with --suite" if named is None else "name the one it was taken with, or leave --suite out"
            raise InputError(
                f"suite_invalid: suite {suite.path}: expected {wanted}, as the receipt's, found {there}; {fix}"
            )
        _check_outputs(suite, keep, file)
        if keep.out is not None and os.path.realpath(keep.out) == os.path.dirname(os.path.realpath(file)):
            raise InputError(
                f"campaign_folder: --out {keep.out}: expected another folder than the receipt's own, found that; name a new one"
            )
        found = again.differences(taken, suite)
        if found and keep.receipt == STDOUT:
            print(json.dumps({"schema": "sglang-ext/rerun/1", "receipt": path, "differences": found}, indent=1))
            return 1
        if found:
            print(f"rerun_differs: {path} cannot be repeated here:", *(f"  {one}" for one in found), sep="\n")
            print(f"    fix: {TABLE['rerun_differs'].fix}")
            return 1
        prints = again.fingerprints(taken)
        if suite.arms:
            return _campaign(suite, keep, study(), prints)
        return _single(suite, keep, check, next(iter(prints.values())))


def plan(
    path: str, study: Callable[[], Study], ready_s: float | None, tok_s: float | None, file: str | None = None
) -> Record:
    """What the campaign of a suite would be: rows for people, and the order as data; kept in ``file`` too, where one is named.

    Starts nothing. Raises InputError.
    """
    from sglang_ext.bench.suites import plan as design

    with _input():
        suite = load_suite(path)
    if file is not None:
        with _output():
            check_writable(file, "plan")
            check_apart({"--json": file}, _inputs(suite))
    campaign = suite.campaign
    if campaign is None:
        raise InputError(
            f"suite_invalid: suite {path}: expected arms to plan for, found none; bench run asks a running server"
        )
    seed = campaign.seed if campaign.seed is not None else design.draw_seed()
    compared = sum(not (arm.baseline or arm.control) for arm in suite.arms)
    level = campaign.alpha * design.at_the_end(campaign.rule, campaign.blocks)
    detectable = study().outlook(campaign.blocks, level, compared)
    rows = design.describe(suite, seed, ready_s=ready_s, tok_s=tok_s, detectable=detectable)
    found = {
        "schema": "sglang-ext/plan/1",
        "suite": suite.to_json(),
        "seed": seed,
        "blocks": design.order([arm.name for arm in suite.arms], campaign.blocks, seed),
        "launches": design.launches(suite),
        "longest_s": design.longest(suite),
        "detectable": [{"spread": spread, "effect": effect} for spread, effect in detectable],
        "missing": missing(suite.arms),
        "rows": [list(row) for row in rows],
    }
    if file is not None:
        with _output():
            write(file, found, "plan")
    return found


def plan_text(found: Record) -> str:
    width = max(len(label) for label, _ in found["rows"])
    lines = [f"{label.ljust(width)}  {text}" for label, text in found["rows"]]
    return "\n".join([*lines, *([f"not here: {found['missing']}"] if found["missing"] else [])])


def show(path: str, page: str | None) -> int:
    """A receipt as text, and as a page. Returns the status it was taken with. Raises InputError."""
    from sglang_ext.bench.report import text

    try:
        found = load(path)
    except ReceiptError as error:
        raise InputError(f"receipt_unreadable: {error}") from None
    if page is not None:
        with _output():
            check_writable(page, "page")
            check_apart({"--html": page}, {"the receipt it is made of": place_of(path)})
        _page(found, page)
    print(text.render(found, colour=sys.stdout.isatty()))
    if page is not None:
        print(f"page: {page}")
    return int(found["exit"])


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """What cannot be written becomes InputError."""
    try:
        yield
    except ReceiptError as error:
        raise InputError(f"receipt_unwritable: {error}") from None


def _inputs(suite: Suite) -> dict[str, str]:
    """The files a suite is read from."""
    beside = os.path.dirname(os.path.abspath(suite.path))
    prompts = {one.file for one in suite.workload.all_prompts() if one.file is not None}
    return {"the suite": suite.path, **{f"the prompt {name}": os.path.join(beside, name) for name in sorted(prompts)}}


def _check_outputs(suite: Suite, keep: Keep, taken: str | None = None) -> None:
    """Raise InputError where a result would replace what it is made of; ``taken``: the receipt that is repeated."""
    inputs = {**_inputs(suite), **({} if taken is None else {"the receipt that is repeated": taken})}
    file = keep.receipt if keep.receipt != STDOUT else None
    outputs = {what: path for what, path in (("--html", keep.page), ("--json", file)) if path is not None}
    with _output():
        check_apart(outputs, inputs, keep.out)
        if file is None:
            return
        if keep.out is not None and same_file(file, os.path.join(keep.out, PAGE)):
            inputs["the page of the campaign"] = file
        for place in places_for(file):  # where it goes if what is there counts and this does not
            check_apart({"--json": place}, {**inputs, **({"--html": keep.page} if keep.page else {})}, keep.out)


def _single(suite: Suite, keep: Keep, check: Check, expected: Record | None = None) -> int:
    if keep.out is not None:
        raise InputError(
            f"suite_invalid: --out {keep.out}: expected a suite with arms, found none in {suite.path}; leave it out, or add them"
        )
    file = keep.receipt if keep.receipt != STDOUT else None
    _check_writable(file, keep.page)

    def look(main: int | None) -> dict[str, Any]:
        found = check(main)
        print(report.render(found, colour=sys.stderr.isatty()), file=sys.stderr)
        return found

    with Progress() as progress:
        outcome = bench(suite, look, progress.tell, expected)
    made = receipt(outcome)
    kept = _keep(made, file)
    if keep.page is not None:
        _page(made, keep.page)
    if keep.receipt == STDOUT:
        print(json.dumps(made, indent=1, sort_keys=True))
    else:
        print(render(outcome, kept))
        if file is not None and kept != file:
            print(f"{file} holds a VALID receipt of before, and was left as it is")
    return outcome.status


def _keep(made: Record, file: str | None) -> str | None:
    """Write a receipt where it was asked for, or beside a VALID one that it may not replace; returns where."""
    if file is None:
        return None
    kept = place_for(file, made["state"])
    with _output():
        write(kept, made)
    return kept


def _campaign(suite: Suite, keep: Keep, study: Study, expected: dict[str, Record] | None = None) -> int:
    from sglang_ext.bench.campaigns import campaign
    from sglang_ext.bench.report import text
    from sglang_ext.bench.suites.refusals import refusals

    if keep.named:
        raise InputError(
            f"suite_invalid: {', '.join(keep.named)}: expected none, as the arms of {suite.path} say which servers, and each is "
            "verified by its own contract; leave them out, or write the contract into the suite"
        )
    if lost := missing(suite.arms):
        raise InputError(f"suite_invalid: suite {suite.path}: {lost}")
    if refused := refusals(suite.arms):
        sentences = "; ".join(f"arm {one.arm}: {one.sentence}" for one in refused)
        raise InputError(f"{refused[0].code}: suite {suite.path}: {sentences}")
    file = keep.receipt if keep.receipt != STDOUT else None
    _check_writable(file, keep.page)
    given = keep.out or f"{suite.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = os.path.abspath(given)
    with _told() as told, Progress(EVERY) as progress:
        try:
            made = campaign.run(suite, given, study.stop, study.judge, progress.tell, expected)
        except KeyboardInterrupt as error:
            number = told[0] if told else signal.SIGINT
            far = (
                _so_far(suite, error.finished)
                if isinstance(error, campaign.Interrupted)
                else "what is finished is kept"
            )
            how = "go on, in a shell with the same variables, with"
            raise Interrupted(number, f"interrupted; {far}; {how}: {_resume(suite, keep, folder)}") from None
    kept = _keep(made, file)
    page = os.path.join(folder, PAGE)
    for place in filter(None, (page, keep.page)):
        _page(made, place)
    if keep.receipt == STDOUT:
        print(json.dumps(made, indent=1, sort_keys=True))
        return int(made["exit"])
    print(text.render(made, colour=sys.stdout.isatty()))
    print(f"receipt: {kept or os.path.join(folder, RECEIPT)}")
    if file is not None and kept != file:
        print(f"{file} holds a VALID receipt of before, and was left as it is")
    print(f"page: {keep.page or page}")
    return int(made["exit"])


def _so_far(suite: Suite, finished: int) -> str:
    """What is kept of an interrupted campaign."""
    assert suite.campaign is not None
    be = "is" if finished == 1 else "are"
    return (
        f"{finished} of {suite.campaign.blocks} blocks {be} finished{' and kept' if finished else ': nothing is kept'}"
    )


def _resume(suite: Suite, keep: Keep, folder: str) -> str:
    """The command that goes on with a campaign, a rerun too: its folder knows what it repeats. From wherever it is typed."""
    words = ["sglang-ext", "bench", "run", os.path.abspath(suite.path), "--out", folder]
    if keep.page is not None:
        words += ["--html", os.path.abspath(keep.page)]
    if keep.receipt is not None:
        words += ["--json", keep.receipt if keep.receipt == STDOUT else os.path.abspath(keep.receipt)]
    return shlex.join(words)


@contextlib.contextmanager
def _told() -> Iterator[list[int]]:
    """Have every signal that asks to end raise where the campaign is, so that its server is ended; the list collects them.

    What is ignored stays ignored: a campaign of a night runs under nohup.
    """
    told: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        raise KeyboardInterrupt

    before = listen(note)
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_writable(file: str | None, page: str | None) -> None:
    with _output():
        if file is not None:
            check_writable(file)
        if page is not None:
            check_writable(page, "page")


def _page(made: Record, path: str) -> None:
    """Write the HTML page of a receipt. Raises InputError."""
    from sglang_ext.bench.report import html

    with _output():
        write_text(path, html.render(made), "page")
