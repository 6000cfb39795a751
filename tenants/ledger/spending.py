"""What a stretch of a journal takes from budgets, should its tenants have any."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from tenants.ledger.leftovers import Stretch
from tenants.limits import Measure, Window
from tenants.prices import Price

_HOUR = 3600  # seconds
_KEPT = 2 * _HOUR  # after a window's end, when nothing can be given back to it any more


def spending(writer: str, stretch: Stretch, price: Price) -> list[object]:
    """For the script: hash, field, amount and the hash's end in Unix seconds, again and again."""
    sums: dict[tuple[str, str, int], int] = defaultdict(int)
    for slot, usage in stretch.sums.items():
        amounts = {
            Measure.TOKENS: usage.prompt_tokens + usage.output_tokens,
            Measure.MONEY: price.nanos(
                usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
            ),
        }
        for window, (start, end) in windows_of(slot.hour).items():
            place = f"wm:spent:{writer}:{window}:{start * 1000}"
            for measure, amount in amounts.items():
                if amount:
                    sums[place, f"{slot.tenant}/{measure}", end + _KEPT] += amount
    return [
        part for (place, name, end), amount in sums.items() for part in (place, name, amount, end)
    ]


def windows_of(hour: int) -> dict[Window, tuple[int, int]]:
    """Start and end of the windows of budgets that an hour is in. In Unix seconds; `hour` counts

    from the epoch.
    """
    moment = datetime.fromtimestamp(hour * _HOUR, UTC)
    day = moment.replace(hour=0)
    month = day.replace(day=1)
    following = (month + timedelta(days=31)).replace(day=1)
    return {
        Window.HOUR: (hour * _HOUR, (hour + 1) * _HOUR),
        Window.DAY: _seconds(day, day + timedelta(days=1)),
        Window.MONTH: _seconds(month, following),
    }


def _seconds(begin: datetime, end: datetime) -> tuple[int, int]:
    return int(begin.timestamp()), int(end.timestamp())
