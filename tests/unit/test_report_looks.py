"""The page of a report as it looks: readable in light, dark and print, and all of it drawn by a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from sglang_ext.bench.report import html
from tests.unit import headless
from tests.unit.report_page import PLOTS
from tests.unit.sample_campaign import campaign


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_dark_and_print_can_be_read() -> None:
    """WCAG AA: 4.5 for text, 3 for what is drawn."""
    css = Path(html.__file__).with_name("page.css").read_text()
    schemes = [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{3,6})", part)) for part in css.split(":root {")[1:4]]
    assert len(schemes) == 3 and all(len(scheme) >= 20 for scheme in schemes)
    for scheme in schemes:

        def contrast(a: str, b: str, scheme: dict[str, str] = scheme) -> float:
            high, low = sorted((luminance(scheme[a]), luminance(scheme[b])), reverse=True)
            return (high + 0.05) / (low + 0.05)

        for ink in ("ink", "quiet", "link", "good", "bad", "open"):
            assert contrast(ink, "paper") >= 4.5, ink
        for kind in ("good", "bad", "open"):
            assert contrast(kind, f"{kind}-tint") >= 4.5 and contrast("ink", f"{kind}-tint") >= 4.5
        for series in range(8):
            assert contrast(f"c{series}", "paper") >= 3, series


# Of every plot: its name, its size, the marks that are not drawn, texts that are cut off, and those that stand on each other.
LOOK = """
[...document.querySelectorAll('svg.plot')].map(s => {
  const view = s.viewBox.baseVal, texts = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBBox()])
  const apart = (a, b) => a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y + 3 || b.y + b.height <= a.y + 3
  return {
    name: s.id, width: s.getBoundingClientRect().width, height: s.getBoundingClientRect().height,
    undrawn: [...s.querySelectorAll('.mark')].filter(m => !(m.getBBox().width > 0 && m.getBBox().height > 0)).length,
    cut: texts.filter(([, b]) => b.x < -1 || b.x + b.width > view.width + 1 || b.y + b.height > view.height + 1).map(t => t[0]),
    crossed: texts.flatMap(([said, a], i) => texts.slice(i + 1).filter(([, b]) => !apart(a, b)).map(t => said + ' / ' + t[0])),
  }
})
"""


@pytest.mark.e2e  # a real browser
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_a_browser_draws_all_of_it(tmp_path: Path, width: int, dark: bool) -> None:
    browser = headless.found()
    if browser is None:
        pytest.skip("no chromium on PATH")
    made = campaign(simulated=True)
    made["arms"][2]["summary"] = "x" * 500
    file = tmp_path / "report.html"
    file.write_text(html.render(made), encoding="utf-8")
    with headless.Page(browser, tmp_path, width=width, dark=dark) as shown:
        shown.load(file)
        plots_there = shown.evaluate(LOOK)
        assert [one["name"] for one in plots_there] == [f"plot-{name}" for name in PLOTS]
        for one in plots_there:
            assert one["width"] > 300 and one["height"] > 100 and one["undrawn"] == 0, one
            assert one["cut"] == [] and one["crossed"] == [], one
        assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
        paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(17, 21, 26)" if dark else "rgb(255, 255, 255)")
        assert shown.problems == []
