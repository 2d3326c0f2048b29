"""Two sets of changes to one text, put together line by line where they keep out of each other's way."""

from __future__ import annotations

from io import BytesIO


def merge(old: bytes, one: bytes, two: bytes) -> bytes | None:
    """``old`` with the changes of both, line by line; None where they change the same lines in two ways."""
    from difflib import SequenceMatcher

    lines = list(BytesIO(old))  # split at LF only
    changes: set[tuple[int, int, tuple[bytes, ...]]] = set()
    for side in (list(BytesIO(one)), list(BytesIO(two))):
        for kind, start, end, first, after in SequenceMatcher(None, lines, side, autojunk=False).get_opcodes():
            if kind != "equal":
                changes.add((start, end, tuple(side[first:after])))
    result: list[bytes] = []
    done, inserted = 0, -1
    for start, end, new in sorted(changes):
        if start < done or start == end == inserted:
            return None
        result += [*lines[done:start], *new]
        done, inserted = end, start if start == end else inserted
    return b"".join([*result, *lines[done:]])
