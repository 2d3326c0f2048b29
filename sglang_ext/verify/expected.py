"""How many schedulers a server must have on this host, by upstream's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.run.directory import RunError


class Expected(NamedTuple):
    """Sizes and the number of schedulers: ``workers`` in all, ``here`` on this node (None: cannot be told)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    nnodes: int = 1
    workers: int | None = None
    here: int | None = None


SIZES = {  # sglang 0.5.23 server_args.py; argparse's last one counts
    "tp": ("--tp", "--tp-size", "--tensor-parallel-size"),
    "pp": ("--pp", "--pp-size", "--pipeline-parallel-size"),
    "dp": ("--dp", "--dp-size", "--data-parallel-size"),
    "nnodes": ("--nnodes",),
}
EXACT = {*(spelling for spellings in SIZES.values() for spelling in spellings), "--enable-dp-attention", "--config"}
SERVERS = ("sglang.launch_server", "serve")  # python -m sglang.launch_server; sglang serve


def count(tp: int, pp: int, dp: int, nnodes: int, dp_attention: bool) -> Expected:
    """With DP attention the DP ranks share the TP x PP schedulers; otherwise each replica has its own."""
    workers = tp * pp * (1 if dp_attention else dp)
    return Expected(tp, pp, dp, nnodes, workers, max(workers // nnodes, 1))


def from_arguments(arguments: Sequence[str]) -> Expected:
    """From a stock server's command line. Unknown where it is no such line, or a --config file may say more."""
    starts = [i for i, word in enumerate(arguments) if word in SERVERS]
    if not starts or any(word.partition("=")[0] == "--config" for word in arguments):
        return Expected()
    sizes = dict.fromkeys(SIZES, 1)
    words = arguments[starts[0] + 1 :]
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in EXACT and len(name) > 2 and any(full.startswith(name) for full in EXACT):
            return Expected()  # upstream's argparse takes unambiguous beginnings: which one this is, it knows
        for size, spellings in SIZES.items():
            if name in spellings:
                text = value if equals else (words[index + 1] if index + 1 < len(words) else "")
                if not text.isdigit() or int(text) < 1:
                    return Expected()
                sizes[size] = int(text)
    return count(**sizes, dp_attention="--enable-dp-attention" in words)


def from_record(record: Mapping[str, Any]) -> Expected:
    """From what the engine seam wrote once upstream had resolved its arguments. Raises RunError when it is damaged."""
    try:
        return Expected(**{field: int(record["expected"][field]) for field in Expected._fields})
    except (KeyError, TypeError, ValueError):
        raise RunError("server.json has another shape than ours; it is not believed") from None
