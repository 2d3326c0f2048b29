"""The command line. Only the verb that is called gets its parser and its imports: a start must cost nothing."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from sglang_ext.console import Help, run
from sglang_ext.grammar import EXITS, LAUNCH_LINE, VERBS

USAGE = 2
COLLECT_AT = 50_000  # new objects; Python's own 700 makes a verdict, which leaves no cycles, 2 ms later


def overview() -> argparse.ArgumentParser:
    """What is printed without a verb, and for words that are none."""
    lines = {"launch": LAUNCH_LINE, **{name: verb.line for name, verb in VERBS.items()}}
    return argparse.ArgumentParser(
        prog="sglang-ext",
        usage="sglang-ext VERB [options]\n       sglang-ext VERB --help",
        description="Deliver an environment contract to every SGLang worker, and prove it there.",
        formatter_class=Help,
        epilog="verbs:\n" + "\n".join(f"  {name:<16}{line}" for name, line in lines.items()) + "\n\n" + EXITS,
    )


def several(first: str, names: Sequence[str]) -> argparse.ArgumentParser:
    """What is printed for a first word alone: the second words that go with it."""
    lines = "\n".join(f"  {name:<16}{VERBS[name].line}" for name in names)
    usage = f"sglang-ext {first} VERB [options]\n       sglang-ext {first} VERB --help"
    return argparse.ArgumentParser(
        prog=f"sglang-ext {first}", usage=usage, formatter_class=Help, epilog=f"verbs:\n{lines}"
    )


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one verb."""
    verb = VERBS[name]
    parser = argparse.ArgumentParser(prog=f"sglang-ext {name}", formatter_class=Help, **verb.text)
    verb.add_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["launch"]:  # its other options are upstream's: argparse must not look at them
        from sglang_ext.launch import main as launch

        return launch(words[1:], prog="sglang-ext launch")
    for length in (1, 2):
        name = " ".join(words[:length])
        if name in VERBS:
            options = parser_of(name).parse_args(words[length:])
            from sglang_ext import verbs

            if not verbs.may_write(name, getattr(options, "json", None)):
                return USAGE
            return int(getattr(verbs, VERBS[name].action)(options))
    parser = overview()
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    longer = [name for name in VERBS if words and name.startswith(f"{words[0]} ")]
    if longer and words[1:2] in (["--help"], ["-h"]):
        several(words[0], longer).print_help()
        return 0
    if longer:
        parser.error(f"{words[0]!r} needs a second word: {', '.join(longer)}")
    if words and not words[0].startswith("-"):
        parser.error(f"{words[0]!r} is no verb; expected one of launch, {', '.join(VERBS)}")
    if parser.parse_args(words).version:
        from sglang_ext import __version__

        print(f"sglang-ext {__version__}")
        return 0
    parser.print_help(sys.stderr)
    return USAGE


def entry() -> None:
    """The console script. It ends at once: to take itself apart takes Python a tenth of the time of a verdict.

    Nothing is lost by that: our streams keep nothing back, files are closed where they were opened, threads are daemons.
    """
    gc.set_threshold(COLLECT_AT)
    os._exit(run(main))
