"""``python -m sglang_ext VERB``: the same as the console script."""

from sglang_ext.cli import entry

entry()
