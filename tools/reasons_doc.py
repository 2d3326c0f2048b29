#!/usr/bin/env python3
"""Make docs/reasons.md from the table in sglang_ext/reasons/.

    python tools/reasons_doc.py            is it as the table says?
    python tools/reasons_doc.py --write    write it

Exit codes: 0 good, 1 it is not as the table says.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reasons.md"

INTRO = """\
# Reason codes

Every verdict that is not a plain PASS, and every launch that is refused, carries one of these codes. They are stable:
scripts may rely on them. *fail* makes a verdict FAIL (`verify-env` exits with 1), *unknown* makes it UNKNOWN (3), *note* changes
nothing; of the codes that only a campaign has, some exclude a pair and some are the campaign's state. The exit status named with
a code is that of a launch, gate, bench or other verb refused or stopped for it. This page is written by
`python tools/reasons_doc.py --write` from `sglang_ext/reasons/`.
"""


def render_docs() -> str:
    """The whole page."""
    from sglang_ext.reasons import TABLE, consequence

    parts = [INTRO]
    for code, reason in TABLE.items():
        parts.append(
            f"## {code}\n\n"
            f"*{reason.severity}*; {consequence(reason)}.\n\n"
            f"**Meaning.** {reason.meaning}\n\n"
            f"**Fix.** {reason.fix}\n"
        )
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Check or write; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make docs/reasons.md from the table in sglang_ext/reasons/.")
    parser.add_argument("--write", action="store_true", help="write the page instead of checking it")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    text = render_docs()
    if options.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(
            "reasons_doc: docs/reasons.md is not as sglang_ext/reasons/ says; run: python tools/reasons_doc.py --write",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
