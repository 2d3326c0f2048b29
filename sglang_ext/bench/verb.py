"""`sglang-ext bench run`: the suite, the run, the receipt, and what the terminal shows of it."""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang_ext.bench.receipt import ReceiptError, check_writable, receipt, write
from sglang_ext.bench.runner import Check, bench
from sglang_ext.bench.show import Progress, render
from sglang_ext.bench.suite import Suite, SuiteError, load_suite
from sglang_ext.verify import report

STDOUT = "-"


class InputError(Exception):
    """Exit 2: a code of `reasons` and one sentence."""


def run(path: str, where: str | None, check: Check) -> int:
    """Run the suite in ``path`` on the server that ``check`` verifies; its receipt goes to ``where``. Returns the status.

    Raises InputError, and what the first ``check`` raises.
    """
    try:
        return _run(load_suite(path), where, check)
    except SuiteError as error:
        raise InputError(f"suite_invalid: {error}") from None
    except ReceiptError as error:
        raise InputError(f"receipt_unwritable: {error}") from None


def _run(suite: Suite, where: str | None, check: Check) -> int:
    file = where if where != STDOUT else None
    if file is not None:
        check_writable(file)

    def look(main: int | None) -> dict[str, Any]:
        found = check(main)
        print(report.render(found, colour=sys.stderr.isatty()), file=sys.stderr)
        return found

    with Progress() as progress:
        outcome = bench(suite, look, progress.tell)
    if file is not None:
        write(file, receipt(outcome))
    if where == STDOUT:
        print(json.dumps(receipt(outcome), indent=1, sort_keys=True))
    else:
        print(render(outcome, file))
    return outcome.status
