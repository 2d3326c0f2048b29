"""A campaign and the page of its report as fixtures, and how a test looks at a page: its tags, its plots and their marks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2")

from sglang_ext.bench.report import html
from tests.unit.sample_campaign import campaign

PLOTS = ("paired", "timeline", "spread", "traces", "economics")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return campaign()


@pytest.fixture(scope="module")
def page(made: dict[str, Any]) -> str:
    return html.render(made)


def svg(page: str, name: str) -> ElementTree.Element:
    """A plot of the page; it must be well formed by itself."""
    found = re.search(rf'<svg class="plot" id="plot-{name}".*?</svg>', page, re.DOTALL)
    assert found, f"no plot {name}"
    return ElementTree.fromstring(found[0])


def marks(drawing: ElementTree.Element, kind: str = "mark") -> list[ElementTree.Element]:
    return [one for one in drawing.iter() if kind in one.get("class", "").split()]


def centre(mark: ElementTree.Element) -> float:
    """Where a polygon stands along x."""
    at = [float(pair.partition(",")[0]) for pair in mark.get("points", "").split()]
    return (min(at) + max(at)) / 2


def hovers(elements: list[ElementTree.Element]) -> list[str]:
    return [one.findtext("title") or "" for one in elements]


class Tags(HTMLParser):
    """Every tag and attribute name of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)
