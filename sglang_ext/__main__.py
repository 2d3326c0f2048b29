"""``python -m sglang_ext VERB``: the same as the console script."""

import sys

from sglang_ext.cli import entry

sys.exit(entry())
