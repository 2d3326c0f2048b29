"""How many random cases a test tries: a share of them in `make unit`; all of them, marked e2e, in `make test`.

`@given_cases(300, ...)` is Hypothesis's `@given(...)` with that, and `@in_cases(300)` gives a test with dice of its own the
argument `cases`. Where `asked` names an environment variable that holds a number, that many run, in both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

SHARE = 10  # `make unit` tries one of so many, and no fewer than
LEAST = 25


def in_cases(every: int, asked: str = "") -> pytest.MarkDecorator:
    if number := os.environ.get(asked):
        return pytest.mark.parametrize("cases", [int(number)])
    some = min(every, max(every // SHARE, LEAST))
    return pytest.mark.parametrize("cases", [some, pytest.param(every, marks=pytest.mark.e2e)])


def given_cases(
    every: int, *drawn: SearchStrategy[Any], asked: str = "", at_once: int = 1
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """`at_once`: how many cases are in one example."""

    def decorate(test: Callable[..., None]) -> Callable[[int], None]:
        def run(cases: int) -> None:
            settings(max_examples=max(cases // at_once, 1), deadline=None)(given(*drawn)(test))()

        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        marked: Callable[[int], None] = in_cases(every, asked)(run)
        return marked

    return decorate
