"""NCCL releases as tuples, so that rules can be compared with them: 2.30.7 is (2, 30, 7)."""

from __future__ import annotations

# The releases whose rules this room knows: read in their source, or tried on their library (above 2.30.7 the latter only).
OLDEST_KNOWN, NEWEST_KNOWN = (2, 18, 1), (2, 32, 3)


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
    """The release a user names, with or without its last part. Raises ValueError, one sentence, where its rules are not known."""
    version = parse_version(text)
    if version is None or not OLDEST_KNOWN[:2] <= version[:2] <= NEWEST_KNOWN[:2]:
        known = f"from {version_text(OLDEST_KNOWN[:2])} to {version_text(NEWEST_KNOWN[:2])}"
        raise ValueError(f"--nccl: expected a version like 2.30.7, {known}, found {text!r}; correct it")
    return version


def from_code(code: int) -> tuple[int, int, int]:
    """What ncclGetVersion returns: 23007 is 2.30.7, and up to 2.8 three digits less, 2708 is 2.7.8."""
    if code < 10000:
        return code // 1000, code // 100 % 10, code % 100
    return code // 10000, code // 100 % 100, code % 100


def version_text(version: tuple[int, ...]) -> str:
    """(2, 30, 7) as ``2.30.7``."""
    return ".".join(map(str, version))
