"""How requests ended: whole, shortened, cut off at their deadline, or without an answer."""

from collections.abc import Sequence

from loadgen.goodput import COMPLETE, on_time
from loadgen.record import Fate
from telemetry.events import Cause

KINDS = ("whole", "shortened", "partial", "cut", "refused", "displaced", "dropped", "unfinished")


def endings(fates: Sequence[Fate]) -> dict[str, int]:
    """Requests by kind, and the output tokens that their callers had in time.

    `partial` are answers as far as they came by their deadline, for tenants that take them so, and
    `cut` those that ended there with an error; `refused` at arrival; `displaced` and `dropped`
    while they waited, the latter because their deadline passed or could no longer be met. In time
    is what came before the deadline, of answers that ended by themselves only where that was so.
    """
    counts = dict.fromkeys(KINDS, 0)
    for fate in fates:
        counts[_kind(fate)] += 1
    in_time = sum(f.output_tokens for f in fates if _kind(f) in ("partial", "cut") or on_time(f))
    return {"offered": len(fates), **counts, "tokens_in_time": in_time}


def _kind(fate: Fate) -> str:
    if fate.cause is None:
        return "unfinished"
    if fate.arrived is None:
        return "refused"
    if fate.cause in COMPLETE:
        return "shortened" if fate.shortened else "whole"
    if fate.cause in (Cause.DISPLACED, Cause.PARTIAL):
        return str(fate.cause)
    return "cut" if fate.output_tokens else "dropped"
