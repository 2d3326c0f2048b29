"""What a comparison says, in words: the same sentences on the page and on the terminal."""

from __future__ import annotations

import time
from typing import NamedTuple

from sglang_ext.bench.report.read import Arm, Campaign, Comparison

UNKNOWN = "unknown"
SIMULATED = "simulated acceptance"
MARKS = {"faster": "▲", "slower": "▼", "same": "=", "no regression": "≥", "inconclusive": "?"}
NOT_COUNTING = "does not count"


class Said(NamedTuple):
    """One comparison. ``figure`` is None where no number counts."""

    title: str
    verdict: str
    mark: str
    figure: str | None  # +8.3%
    interval: str | None  # +7.1% to +9.5%
    meaning: str
    support: str | None  # what the figure rests on
    kind: str = ""  # the verdict as one word, where it is one of ours
    economics: str | None = None  # what speculating brings and costs


def percent(ratio: float | None, digits: int = 2) -> str:
    """A ratio as the difference it is: 1.083 is +8.30%."""
    return UNKNOWN if ratio is None else f"{100 * (ratio - 1):+.{digits}f}%"


def probability(p: float | None) -> str:
    if p is None:
        return UNKNOWN
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def figure(value: float | None, digits: int = 2, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}{unit}"


def duration(seconds: float | None) -> str:
    """`38 s`, `12 min`, `2 h 41 min`."""
    if seconds is None or seconds < 0:
        return UNKNOWN
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def moment(stamp: float | None) -> str:
    """A time as it was in UTC."""
    try:
        return UNKNOWN if stamp is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(stamp))
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def level(one: Comparison) -> str:
    """`95%`: what its interval covers."""
    return f"{100 * one.confidence:.4g}%"


def count(number: int, what: str) -> str:
    """`1 pair`, `8 pairs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('ch') else 's'}"


def label(arm: Arm) -> str:
    """An arm's name, with what nobody may overlook."""
    return f"{arm.name} ({SIMULATED})" if arm.simulated else arm.name


def say(campaign: Campaign, one: Comparison) -> Said:
    """Everything a reader of the verdict needs, never more than was found."""
    arm = campaign.arm(one.arm)
    name = label(arm) if arm else one.arm
    title = f"{one.baseline} against itself (A/A control)" if one.control else f"{name} against {one.baseline}"
    if not campaign.counts:
        why = f"Nothing can be said: the campaign is {campaign.state}."
        return Said(title, NOT_COUNTING, "×", None, None, why, None)
    low, high = one.low, one.high
    interval = f"{percent(low)} to {percent(high)}" if low and high else None
    meaning = _control(campaign, one) if one.control else _meaning(campaign, one, name)
    kind = one.verdict.replace(" ", "-") if one.verdict in MARKS and not one.control else ""
    sign = MARKS.get(one.verdict, "?")
    if one.control:
        sign = "?" if low is None or high is None or _blind(campaign, one) else "✓" if low <= 1 <= high else "✗"
    return Said(title, one.verdict, sign, percent(one.ratio), interval, meaning, _support(one), kind, economics(one))


def _margin(campaign: Campaign) -> str:
    return f"{100 * campaign.margin:g}%" if campaign.margin else "the margin"


def _range(one: Comparison) -> str:
    ratio = "an unknown multiple of" if one.ratio is None else f"{one.ratio:.3f} times"
    between = f" ({level(one)} interval {one.low:.3f} to {one.high:.3f})" if one.low and one.high else ""
    return f"{ratio} its decode rate{between}"


def _meaning(campaign: Campaign, one: Comparison, name: str) -> str:
    found = _range(one)
    if one.verdict in ("faster", "slower"):
        return f"{name} is {one.verdict} than {one.baseline}: {found}."
    if one.verdict == "same":
        return f"{name} is as fast as {one.baseline} within {_margin(campaign)}: {found}."
    if one.verdict == "no regression":
        return f"{name} is not slower than {one.baseline} by more than {_margin(campaign)}: {found}."
    shows = ""
    if one.mde is not None:
        shows = (
            f". These pairs show a difference of {100 * one.mde:.1f}% four times in five; a smaller one they may miss"
        )
    return f"Cannot tell whether {name} is faster or slower than {one.baseline}: {found}{shows}."


def _blind(campaign: Campaign, one: Comparison) -> bool:
    """Is the control's interval so wide that it would have held a difference as large as the wanted one?"""
    if one.low is None or one.high is None or campaign.effect is None:
        return False
    return one.low <= 1 <= one.high and (one.high > 1 + campaign.effect or one.low < 1 - campaign.effect)


def _control(campaign: Campaign, one: Comparison) -> str:
    found = _range(one)
    if one.low is None or one.high is None:
        return f"{one.baseline} was measured against itself, and the control says nothing: it has no interval."
    if _blind(campaign, one):
        return (
            f"{one.baseline} measured against itself is {found}: no difference is found, but one as large as the "
            f"{100 * (campaign.effect or 0):g}% that is looked for might have gone unseen."
        )
    if one.low <= 1 <= one.high:
        return f"{one.baseline} measured against itself is {found}: no difference is found where there is none."
    return f"{one.baseline} measured against itself is {found}: a difference is found where there is none."


def _support(one: Comparison) -> str:
    parts = [count(len(one.pairs), "pair")]
    if one.p_t is not None:
        parts.append(f"p {probability(one.p_t)} (paired t)")
    if one.p_sign_flip is not None:
        parts.append(f"{probability(one.p_sign_flip)} (sign flips)")
    if one.p_holm is not None:
        parts.append(f"{probability(one.p_holm)} (Holm, over all arms)")
    claim = {"same": one.p_same, "no regression": one.p_no_regression}.get(one.verdict)
    if claim is not None:
        parts.append(f"{probability(claim)} ({one.verdict})")
    return ", ".join(parts)


def economics(one: Comparison) -> str | None:
    """Whether speculating pays, and what would have to change."""
    found = one.economics
    if not found:
        return None
    accept, even, step, base = (found.get(k) for k in ("accept", "break_even_accept", "step_ms", "base_step_ms"))
    if accept is None or even is None:
        return "What speculating costs is unknown: its accept length or its step time is."
    pays = {"faster": "it pays", "slower": "it does not pay"}.get(one.verdict, "whether it pays is not decided")
    steps = "" if step is None or base is None else f" (a step takes {step:.2f} ms, the baseline's {base:.2f} ms)"
    return f"Each step brings {accept:.2f} tokens and needs {even:.2f} to break even{steps}: {pays}."


def outcome(campaign: Campaign) -> str:
    """The state in one sentence, without the reason."""
    launches = campaign.launches()
    done = sum(launch.state == "finished" for launch in launches)
    said = f"{done} of {count(max(len(launches), _planned(campaign)), 'launch')} finished"
    if campaign.excluded:
        said += f", {count(len(campaign.excluded), 'pair')} excluded by rule"
    if not campaign.counts:
        said += "; no number counts"
    return said


def _planned(campaign: Campaign) -> int:
    plan = campaign.raw.get("plan")
    blocks = plan.get("blocks") if isinstance(plan, dict) else None
    return sum(len(block) for block in blocks if isinstance(block, list)) if isinstance(blocks, list) else 0
