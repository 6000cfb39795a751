"""What became of those who were refused and came back when they were told to."""

from collections.abc import Sequence
from typing import Any

from loadgen.hints import Hint
from loadgen.record import Fate
from telemetry.units import SECOND


def returns(fates: Sequence[Fate], hints: Sequence[Hint] = ()) -> dict[str, Any]:
    """Counts of refusals and of returns, and how true the sampled `hints` were.

    A return is taken in if the kernel does not refuse it again.
    """
    refused = [f for f in fates if f.arrived is None and f.cause is not None]
    fresh = [f for f in fates if not f.request.attempt]
    promised = {(f.request.origin, f.request.attempt) for f in refused if f.promised}
    back = [f for f in fates if f.request.attempt]
    kept = [f for f in back if (f.request.origin, f.request.attempt - 1) in promised]
    others = len(back) - len(kept)
    return {
        "fresh": len(fresh),
        "fresh_admitted": _admitted(fresh),
        "fresh_ttft_seconds": [
            round((f.first_token - f.request.arrival) / SECOND, 4)
            for f in fresh
            if f.first_token is not None
        ],
        "refused": len(refused),
        "with_hint": sum(1 for f in refused if f.retry_after is not None),
        "promised": len(promised),
        "promised_returned": len(kept),
        "promised_admitted": _admitted(kept),
        "others_returned": others,
        "others_admitted": _admitted(back) - _admitted(kept),
        "hint_errors": [round(hint.error, 4) for hint in hints],
    }


def _admitted(fates: Sequence[Fate]) -> int:
    return sum(1 for fate in fates if fate.arrived is not None)
