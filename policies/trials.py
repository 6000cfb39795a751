"""Whether a forecast that keeps work out is to be put to the test.

A forecast that keeps work out also keeps out what would refute it: after a machine was slow for a
while, nothing that has a deadline would ever run again. So it is believed only for so long as steps
like those that it rests on are run. After that one is let in on trial, like the call by which a
circuit breaker finds out whether it may close (Nygard, Release It!, 2007). While trials keep their
deadlines, the next one need not wait; while they do not, each waits twice as long as the last.
"""

from collections.abc import Iterable

from policies.estimates import MOST_TIMES
from policies.step_time import StepWork
from telemetry.units import SECOND

BELIEF = 10  # seconds for which a forecast is believed after a step like its own has run
MOST_DOUBLED = 5  # times in a row that this is doubled for trials that were late
NEVER = -(1 << 62)  # ns
SIZES = 64  # of each amount in a step, by powers of 2


class Trials:
    """When steps of what size were last learned from, and what became of trials. Nanoseconds.

    Steps are told apart by size, since a model learns little of long prompts from short ones.
    """

    def __init__(self) -> None:
        self._lessons = [[NEVER] * SIZES for _ in _amounts(StepWork())]
        self._held_off = NEVER  # until when there is no trial
        self._late = 0  # trials in a row
        self._kept = False

    def observe(self, work: StepWork, now: int) -> None:
        """The time that a step took was learned from at `now`."""
        for lessons, amount in zip(self._lessons, _amounts(work), strict=True):
            lessons[amount.bit_length()] = now

    def judge(self, now: int, kept: bool | None) -> None:
        """A trial ended and `kept` its deadlines or did not; None if nothing is known of that."""
        if kept is None:
            return
        self._kept = kept
        if kept:
            self._late, self._held_off = 0, NEVER
        else:
            self._held_off = now + BELIEF * SECOND * 2**self._late
            self._late = min(self._late + 1, MOST_DOUBLED)

    def doubt(self, steps: Iterable[StepWork], now: int) -> float:
        """By what factor a forecast that rests on such steps may be too long; 0 if it is believed.

        It may be more, the longer nothing like it has run.
        """
        if now < self._held_off:
            return 0.0
        age = (now - self._learned(steps)) / (BELIEF * SECOND)
        if age < 1:
            return MOST_TIMES if self._kept else 0.0
        return MOST_TIMES * min(MOST_TIMES, age)

    def _learned(self, steps: Iterable[StepWork]) -> int:
        """Since when nothing was learned of something that the steps hold."""
        largest = [max(amounts) for amounts in zip(*map(_amounts, steps), strict=True)]
        return min(
            max(lessons[amount.bit_length() :])
            for lessons, amount in zip(self._lessons, largest, strict=True)
            if amount
        )


def _amounts(work: StepWork) -> tuple[int, ...]:
    return (
        work.prefill_tokens,
        int(work.prefill_context),
        work.decode_sequences,
        work.context_tokens,
    )
