"""Every verb: its line in the overview, its options, what runs it, and the text of its help."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from sglang_ext import arguments
from sglang_ext.quick import Any, NamedTuple

EXITS = (  # of the overview
    "exit status, of most verbs; VERB --help has its own:\n"
    "  0  PASS, VALID, done\n"
    "  1  FAIL, INVALID: a requirement is not met, a run does not count\n"
    "  2  the command line, a profile, contract, suite or file is wrong, or several servers could be meant\n"
    "  3  UNKNOWN: it could not be seen, or there is no server; UNRECONCILED\n"
    "  4  gate, bench: verified before, but not after\n"
    "  5  bench: the numbers are sound and do not decide (INCONCLUSIVE)\n"
    "  130  interrupted (SIGINT)\n"
)
VERIFY_EXITS = (
    "exit status:\n"
    "  0  PASS\n"
    "  1  FAIL: a requirement is not met\n"
    "  2  the command line, profile or contract is wrong, or several servers could be meant\n"
    "  3  UNKNOWN: it could not be seen, or there is no server\n"
)
BENCH_EXITS = (
    "exit status:\n"
    "  0  VALID: verified before and after, every run counts, and a campaign's question has an answer\n"
    "  1  a requirement is not met, a run does not count, or the control differs from the baseline (INVALID)\n"
    "  2  the command line, suite, profile, contract or folder is wrong, or several servers could be meant\n"
    "  3  UNKNOWN: it could not be seen, there is no server; or client and server disagree about the rate (UNRECONCILED)\n"
    "  4  verified before, but not after (INVALID)\n"
    "  5  the numbers are sound and do not decide (INCONCLUSIVE)\n"
)


class Verb(NamedTuple):
    """A verb: its line in the overview, its options, and the function of `verbs` that runs it."""

    line: str
    add_options: Callable[[argparse.ArgumentParser], object]
    action: str
    text: dict[str, Any]


VERBS = {
    "verify-env": Verb(
        "look at every worker of a running server and judge what it holds",
        arguments.add_verify_env_options,
        "verify_env",
        {
            "description": (
                "Read every scheduler of a running SGLang server, ours or stock, by independent witnesses and compare with the\n"
                "contract: exec (the environment it was started with), live (its memory, now), attested (its own answer, now).\n"
                "This shell's variables are never evidence. Without --profile, --set or --absent the run's own contract counts."
            ),
            "epilog": VERIFY_EXITS,
        },
    ),
    "lint": Verb(
        "say what NCCL will make of a contract, before anything starts",
        arguments.add_lint_options,
        "run_lint",
        {
            "description": (
                "Read names and values as the installed NCCL would: misspelt names, texts it misreads (4M is 4 bytes), ignores\n"
                "(NCCL_P2P_LEVEL=sys) or ends over, lists that leave a collective without algorithm, configuration files.\n"
                "The contract is the launcher's: --set/--absent, over --profile, over the NCCL_* variables of this shell."
            ),
            "epilog": (
                "exit status:\n"
                "  0  PASS: nothing that NCCL would read otherwise\n"
                "  1  FAIL: a finding that the launcher would refuse\n"
                "  2  the command line or profile is wrong\n"
                "  3  UNKNOWN: it depends on what could not be read\n\n"
                "example:\n"
                "  sglang-ext lint --profile pcie-blackwell --set NCCL_BUFFSIZE=4M"
            ),
        },
    ),
    "gate": Verb(
        "run a command only if the server is verified before and after",
        arguments.add_gate_options,
        "run_gate",
        {
            "usage": "sglang-ext gate [options] -- COMMAND...",
            "description": (
                "Verify, run COMMAND with this terminal's stdio, verify again.\n"
                "COMMAND's own status is returned if both verdicts are PASS."
            ),
            "epilog": (
                VERIFY_EXITS + "  4  verified before, but not after: what COMMAND measured does not count\n"
                "  else COMMAND's own status, whatever it is (--json FILE tells them apart); 130 after an interrupt"
            ),
        },
    ),
    "bench run": Verb(
        "take a number, or compare servers, only where the contract is proven",
        arguments.add_bench_options,
        "run_bench",
        {
            "description": (
                "A suite without arms: verify a running server, send the suite's streams one after the other, verify again.\n"
                "No PASS, no number. Selectors and contract are those of verify-env.\n\n"
                "A suite with arms: a campaign. In randomised blocks each arm's server is started, proven, measured, proven\n"
                "again and ended; the folder --out keeps every launch as it ends, and the same command goes on with a campaign\n"
                "that was interrupted. At the end: each arm against the baseline, with an interval, and a verdict.\n\n"
                "In a checkout docs/bench.md has every figure, docs/campaign.md the campaign, docs/suites.md the suite."
            ),
            "epilog": (
                BENCH_EXITS + "  130  interrupted (SIGINT); a campaign keeps its finished blocks\n\n"
                "examples, in a checkout:\n"
                "  sglang-ext bench run benchmarks/baseline.toml --json baseline.receipt.json\n"
                "  sglang-ext bench run benchmarks/kimi-k2.5-eagle3.toml --out kimi-eagle3"
            ),
        },
    ),
    "bench plan": Verb(
        "what a campaign would do and could find; starts nothing",
        arguments.add_bench_plan_options,
        "run_bench_plan",
        {
            "description": (
                "Say of a suite with arms: which server is started when, how many launches that are, how long they take, and\n"
                "the smallest change that many pairs would find."
            ),
            "epilog": (
                "exit status:\n"
                "  0  done\n"
                "  2  the command line or the suite is wrong\n\n"
                "example, in a checkout:\n"
                "  sglang-ext bench plan benchmarks/kimi-k2.5-eagle3.toml --ready 600 --rate 80"
            ),
        },
    ),
    "bench report": Verb(
        "a receipt as text, and as one HTML page",
        arguments.add_bench_report_options,
        "run_bench_report",
        {
            "usage": "sglang-ext bench report RECEIPT [--html FILE]",
            "description": "Show a receipt of `bench run`, from itself alone: on another machine, years later.",
            "epilog": (
                "exit status: the one the receipt was taken with (in a checkout: docs/campaign.md); 2 where it cannot be\n"
                "read, or the page not be written\n"
            ),
        },
    ),
    "bench rerun": Verb(
        "repeat a receipt, or say what no longer matches",
        arguments.add_bench_rerun_options,
        "run_bench_rerun",
        {
            "description": (
                "Compare what a receipt was taken on with what is here: suite and prompts, packages, driver, machine; and,\n"
                "once a server runs, its arguments, environment, patched files and libnccl. Repeat the bench where all of it is\n"
                "the same."
            ),
            "epilog": (
                BENCH_EXITS.replace("a requirement", "something no longer matches, a requirement", 1)
                + "  130  interrupted (SIGINT)\n\n"
                "example:\n"
                "  sglang-ext bench rerun kimi-eagle3/receipt.json --out kimi-eagle3-again"
            ),
        },
    ),
    "diff": Verb(
        "everything that differs between two servers, or a server and a record",
        arguments.add_diff_options,
        "run_diff",
        {
            "usage": "sglang-ext diff A B [--json [FILE]]",
            "description": (
                "Compare two sides: contract, environment of the ranks, resolved arguments, versions, NCCL by file, driver,\n"
                "patches, sizes, host. What is equal is counted; what one side cannot know is listed as not comparable.\n\n"
                "A and B are each one of\n"
                "  pid:N, port:N   a live server, ours or not\n"
                "  run:DIR         the server of a run directory; once it has ended, what the directory holds\n"
                "  FILE            a receipt of `bench run`, or a report of `verify-env --json`"
            ),
            "epilog": (
                "exit status:\n"
                "  0  SAME, as far as both sides can tell\n"
                "  1  DIFFERENT\n"
                "  2  the command line is wrong, or a side cannot be read\n"
                "  3  NOT COMPARABLE: nothing that both sides know, or there is no server\n\n"
                "example:\n"
                "  sglang-ext diff baseline.receipt.json port:30000"
            ),
        },
    ),
    "explain": Verb(
        "what a variable does, what NCCL makes of a value, what a reason code means",
        arguments.add_explain_options,
        "run_explain",
        {
            "description": (
                "Say what is known of a variable: what it does, what it takes, whether ranks must agree, when it is read, how\n"
                "NCCL's log shows it, what SGLang does to it. With VALUE also what NCCL takes that for. Or of a reason code."
            ),
            "epilog": (
                "exit status:\n"
                "  0  it is known, and NCCL takes VALUE as it stands\n"
                "  1  no variable or code of that name is known, or there is something wrong with VALUE\n"
                "  2  the command line is wrong\n\n"
                "examples:\n"
                "  sglang-ext explain NCCL_P2P_LEVEL sys --nccl 2.30.7\n"
                "  sglang-ext explain maybe_too_late"
            ),
        },
    ),
    "doctor": Verb(
        "what is wrong with this environment, before any server starts",
        arguments.add_doctor_options,
        "run_doctor",
        {
            "description": (
                "Examine this Python, what runs at its start, the installed packages, NCCL and its variables in this shell,\n"
                "what may be looked at here, and what earlier runs have left. It reads only: nothing of torch or sglang is\n"
                "imported, nothing is changed, removed or signalled. In a checkout docs/doctor.md has every check."
            ),
            "epilog": (
                "exit status:\n"
                "  0  nothing stands in the way of a launch (ok, note, warn)\n"
                "  1  a launch would fail or prove nothing (fail)\n"
                "  2  the command line is wrong\n"
                "  3  something that matters could not be seen (unknown)\n"
            ),
        },
    ),
    "patches status": Verb(
        "what the installed upstream is: pristine, patched, half or edited",
        arguments.add_tree_option,
        "run_patches_status",
        {
            "description": (
                "Hold every file of the installed SGLang against its RECORD and the lock; say how the patch set gets into it\n"
                "(overlay, in place, baked) and which local patches fit. Nothing is changed.\n"
                "In a checkout docs/patches.md has the states."
            ),
            "epilog": (
                "exit status:\n"
                "  0  pristine, or patched as a whole, and every local patch fits\n"
                "  1  half patched, edited, interrupted, not supported, or a local patch does not fit\n"
                "  2  the command line is wrong\n"
                "  3  no sglang is installed here, or it has no RECORD\n"
            ),
        },
    ),
    "patches check": Verb(
        "hold the whole lock against upstream's wheels",
        arguments.add_patches_check_options,
        "run_patches_check",
        {
            "description": (
                "Check every wheel of the lock: its hash, each file before and after its patches, syntax, seams, and back.\n"
                "Wheels come through pip with your own index settings (1.8 GB for all releases) and are kept by their hash."
            ),
            "epilog": (
                "exit status:\n"
                "  0  the lock is what the wheels show\n"
                "  1  a fault; a local patch that does not fit a release is told, and is none\n"
                "  2  the command line is wrong, or a wheel cannot be had\n\n"
                "example:\n"
                "  sglang-ext patches check --release 0.5.23"
            ),
        },
    ),
    "patches apply": Verb(
        "patch the installed upstream in place, all or none",
        arguments.add_patches_apply_options,
        "run_patches_apply",
        {
            "description": (
                "For images that cannot use the import hook: put the patch set and the local patches into the installed SGLang.\n"
                "RECORD is kept true, the released bytes are kept beside it; may be interrupted anywhere and run again."
            ),
            "epilog": (
                "exit status:\n"
                "  0  applied, or applied already\n"
                "  1  refused, for the reason given; nothing was changed\n"
                "  2  the command line is wrong\n"
                "  3  no sglang is installed here, or it has no RECORD\n"
            ),
        },
    ),
    "patches revert": Verb(
        "make an upstream that was patched in place stock again",
        arguments.add_tree_option,
        "run_patches_revert",
        {
            "description": "Put the released bytes back, and RECORD's rows. The import hook takes over where it is armed.",
            "epilog": (
                "exit status:\n"
                "  0  reverted, or there was nothing to revert\n"
                "  1  refused, for the reason given; nothing was changed\n"
                "  2  the command line is wrong\n"
                "  3  no sglang is installed here, or it has no RECORD\n"
            ),
        },
    ),
    "patches adopt": Verb(
        "turn hand edits of the installed upstream into local patches",
        arguments.add_patches_adopt_options,
        "run_patches_adopt",
        {
            "usage": "sglang-ext patches adopt [EDITED...] [options]",
            "description": (
                "Make a local patch of each edited file, against its release's wheel, and the tree stock again. From then on\n"
                "the edits have names: they are in the patch set's digest, and --without NAME leaves one out."
            ),
            "epilog": (
                "exit status:\n"
                "  0  adopted, or there was nothing to adopt\n"
                "  1  refused, for the reason given; nothing was changed\n"
                "  2  the command line is wrong, or the wheel cannot be had, or is not the locked one\n"
                "  3  no sglang is installed here, or it has no RECORD\n\n"
                "example:\n"
                "  sglang-ext patches adopt sglang/srt/models/deepseek_v2.py --name faster-moe"
            ),
        },
    ),
    "build-wheel": Verb(
        "a wheel of SGLang with the patches already in it, for images and indexes",
        arguments.add_build_wheel_options,
        "run_build_wheel",
        {
            "description": (
                "Take upstream's wheel of a release, hold it against the locked sha256, put the patches in, and write\n"
                "sglang-X.Y.Z+ext.N-TAGS.whl, which requires this sglang-ext. pip fetches it, from your own index; --from takes\n"
                "one you have. The same bytes every time; what is not patched stays as upstream packed it."
            ),
            "epilog": (
                "exit status:\n"
                "  0  the wheel is written\n"
                "  1  it is not: the wheel is not as locked, or the patches do not fit\n"
                "  2  the command line is wrong, a file cannot be read or written, or the wheel is there already\n"
                "  3  pip brought no wheel\n\n"
                "example:\n"
                "  sglang-ext build-wheel --upstream 0.5.23 --out dist"
            ),
        },
    ),
}
for _verb in VERBS.values():  # no option by its beginning: of a verb without --all, that was --all-processes
    _verb.text["allow_abbrev"] = False
LAUNCH_LINE = "start a server with a contract (the same as python -m sglang_ext.launch)"
