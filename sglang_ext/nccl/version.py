"""NCCL releases as tuples, so that rules can be compared with them: 2.30.7 is (2, 30, 7)."""

from __future__ import annotations

# The releases whose rules this room knows: read in their source, or tried on their library (above 2.30.7 the latter only).
OLDEST_KNOWN, NEWEST_KNOWN = (2, 18, 1), (2, 32, 3)
# The last known release of each: NVIDIA/nccl's tags up to 2.30.7, NVIDIA's wheels above. An X.Y.0 has never been among them.
LAST = {
    (2, 18): 6, (2, 19): 4, (2, 20): 5, (2, 21): 5, (2, 22): 3, (2, 23): 4, (2, 24): 3, (2, 25): 1, (2, 26): 6, (2, 27): 7,
    (2, 28): 9, (2, 29): 7, (2, 30): 7, (2, 31): 2, (2, 32): 3,
}  # fmt: skip


def parse_version(text: str) -> tuple[int, ...] | None:
    """``2.30.7`` or ``2.30.7+cuda12.9`` or ``2.30.7-1`` as a tuple; None where no version is in front."""
    parts: list[int] = []
    for piece in text.strip().removeprefix("v").split("."):
        digits = len(piece) - len(piece.lstrip("0123456789"))
        if digits == 0 or digits > 6:
            return None
        parts.append(int(piece[:digits]))
        if digits < len(piece) or len(parts) == 3:  # "+cuda12.9", "-1" and a fourth part are packaging
            break
    return tuple(parts) if len(parts) >= 2 else None


def asked_for(text: str) -> tuple[int, ...]:
    """The release a user names; without its last part it is the last one known of them: 2.27 is 2.27.7.

    Raises ValueError, one sentence, where its rules are not known.
    """
    version = parse_version(text)
    if version is None or not is_known(version):
        known = f"from {version_text(OLDEST_KNOWN[:2])} to {version_text(NEWEST_KNOWN[:2])}"
        raise ValueError(f"--nccl: expected a version like 2.30.7, {known}, found {text!r}; correct it")
    return version if len(version) > 2 else (*version, LAST[version[0], version[1]])


def is_known(version: tuple[int, ...]) -> bool:
    """Whether that release is one whose rules are known, or one between such."""
    return OLDEST_KNOWN[:2] <= version[:2] <= NEWEST_KNOWN[:2]


def from_code(code: int) -> tuple[int, int, int]:
    """What ncclGetVersion returns: 23007 is 2.30.7, and up to 2.8 three digits less, 2708 is 2.7.8."""
    if code < 10000:
        return code // 1000, code // 100 % 10, code % 100
    return code // 10000, code // 100 % 100, code % 100


def version_text(version: tuple[int, ...]) -> str:
    """(2, 30, 7) as ``2.30.7``."""
    return ".".join(map(str, version))
