"""What is said of all ranks of a server together: are as many there as are expected, and do they hold the same? Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from sglang_ext.contract.names import is_nccl, is_tuning, shown
from sglang_ext.hide import HIDDEN
from sglang_ext.verify import expected as sizes
from sglang_ext.verify.inside import same_to


def miscounted(labels: Sequence[str], expected: sizes.Expected) -> tuple[str, str] | None:
    """Code and sentence where the schedulers with these labels are not those that are expected; None where they are."""
    found = ", ".join(labels) or "none"
    if expected.here is None:
        return "expected_unknown", f"found {len(labels)} schedulers ({found}), expected: not told by its command line"
    if len(labels) < expected.here:
        absent = [label for label in sizes.labels(expected) if label not in labels]
        missing = f"; {', '.join(absent)} missing" if absent else ""
        return "missing_ranks", f"found {len(labels)} of {expected.here} schedulers ({found}){missing}"
    if len(labels) > expected.here:
        return "extra_ranks", f"found {len(labels)} of {expected.here} schedulers ({found})"
    if len(set(labels)) != len(labels):
        return "extra_ranks", f"two schedulers claim the same rank ({found})"
    return None


def unlike(
    now: Mapping[int, tuple[str, Mapping[str, str]]], judged: Collection[str], version: tuple[int, ...] | None
) -> Iterator[tuple[str, str]]:
    """Each NCCL variable that ranks hold different values of, with a clause; ``now``: pid -> label and environment.

    Those in ``judged`` are left out. Values that mean the same to that release of NCCL are the same; what is not shown
    cannot be compared.
    """
    names = {n for _, env in now.values() for n in env if is_nccl(n) and is_tuning(n)} - set(judged)
    for name in sorted(names):
        values = [(label, env.get(name)) for label, env in now.values()]  # two may claim one label
        held = {value for _, value in values}
        if len(held) < 2 or HIDDEN in held:
            continue
        same = same_to(name, version)
        sides: dict[str | None, list[str]] = {}
        for label, value in values:
            sides.setdefault(next((side for side in sides if same(side, value)), value), []).append(label)
        if len(sides) > 1:
            yield name, f"{name} is " + ", ".join(f"{shown(v)} on {', '.join(labels)}" for v, labels in sides.items())
