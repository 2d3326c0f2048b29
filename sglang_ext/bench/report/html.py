"""The page: one file, from the receipt alone. No script, nothing from elsewhere; whatever a receipt says is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2

from sglang_ext.bench.report import plots, sheets, words
from sglang_ext.bench.report.over_time import timeline
from sglang_ext.bench.report.read import Campaign, campaign
from sglang_ext.bench.report.svg import mark

TEMPLATE = "page.html.j2"


@cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("sglang_ext.bench.report", "")
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(moment=words.moment, duration=words.duration, label=words.label)
    made.globals["mark"] = mark
    return made.get_template(TEMPLATE)


def render(raw: Mapping[str, Any]) -> str:
    """The page of a receipt of schema sglang-ext/campaign/1. The same receipt gives the same page."""
    read = campaign(raw)
    differ, common = sheets.fingerprints(read)
    grave, told = sheets.marks(read)
    return _template().render(
        c=read,
        said=[words.say(read, one) for one in _in_order(read)],
        simulated=[arm.name for arm in read.arms if arm.simulated],
        outcome=words.outcome(read),
        arms=sheets.arms(read),
        paired=plots.paired(read),
        timeline=timeline(read),
        spread=plots.spread(read),
        traces=plots.traces(read),
        economics=plots.economics(read),
        speculation=sheets.speculation(read),
        reconciliation=sheets.reconciliation(read),
        excluded=sheets.excluded(read),
        marks=grave,
        told=told,
        gpus=sheets.gpus(read),
        host=sheets.host(read),
        contract=sheets.contract(read),
        differ=differ,
        common=common,
        suite=sheets.suite(read),
        plan=sheets.plan(read),
        commands=sheets.commands(read),
        order=sheets.order(read),
    )


def _in_order(read: Campaign) -> list[Any]:
    """What is under test first; the control last, as a footing."""
    return sorted(read.comparisons, key=lambda one: one.control)
