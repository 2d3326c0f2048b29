"""How our command lines print their help."""

from __future__ import annotations

import argparse
import os


def width() -> int:
    """Columns of the terminal, at most 110: long lines are hard to read."""
    try:
        columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(1).columns
    except (OSError, ValueError):
        columns = 80
    return max(min(columns, 110) - 2, 40)


class Help(argparse.RawDescriptionHelpFormatter):
    """Keeps our paragraphs. With a width of its own: argparse makes a formatter at every start, help or not, and would
    import shutil (4 ms) to ask for it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=width(), max_help_position=28)
