"""Were refused callers told the truth? Hints against the earliest return that would have worked.

The recorded commands of a run are done to a fresh kernel again, on the same simulated device, which
gives the same run. Just before a sampled refusal the replay is copied, all commands of that caller
are left out of the copy, and it goes on with those of everybody else as recorded. The earliest time
at which the caller could have come is that at which the queues have a place for it: one that is
neither taken by nor held for anybody who stood in line before it, since those who came later would
have stood behind it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.core.commands import Command, Submit
from engine.core.journal_records import Given
from engine.core.plan import StepPlan, StepResult
from loadgen.record import Fate
from loadgen.replay import Rerun
from telemetry.units import SECOND

FURTHEST = 4  # times the hint, up to which a place is looked for
LEAST = SECOND  # of a hint, as far as that limit is concerned


@dataclass(frozen=True, slots=True)
class Hint:
    """A refusal of `client`: the wait it was told, and the earliest that would have worked.

    Nanoseconds. Where no place was found, `earliest` is how far was looked.
    """

    client: int
    told: int
    earliest: int

    @property
    def error(self) -> float:
        """Of what was told, relative to what was true."""
        return abs(self.told - self.earliest) / self.earliest


class CommandList:
    """Keeps the commands that are applied to a kernel."""

    def __init__(self) -> None:
        self.given: list[Given] = []

    def command(self, now: int, command: Command) -> None:
        """One was applied."""
        self.given.append(Given(now, command))

    def plan(self, now: int) -> None:
        """Follows from the commands."""

    def result(self, now: int, plan: StepPlan, result: StepResult) -> None:
        """Follows from the plan and the device."""


def sample(fates: dict[int, Fate], most: int) -> list[int]:
    """At most `most` first refusals that named a time to come back at, evenly over the run."""
    hinted = [
        number
        for number, fate in fates.items()
        if fate.arrived is None and fate.retry_after is not None and not fate.request.attempt
    ]
    if len(hinted) <= most:
        return hinted
    return [hinted[(2 * i + 1) * len(hinted) // (2 * most)] for i in range(most)]


def check(rerun: Rerun, fates: dict[int, Fate], numbers: Iterable[int]) -> list[Hint]:
    """The hints given to the refused sequences `numbers`, in the order of their refusals.

    `rerun` holds the recorded commands and has not begun.
    """
    found = []
    for number in numbers:
        refused = rerun.advance_until(_submits(number))
        alone = rerun.fork(without=_of_task(refused.command))
        fate = fates[number]
        assert fate.retry_after is not None  # as sampled
        earliest = _earliest(alone, refused, fate.retry_after)
        found.append(Hint(fate.request.client, fate.retry_after, earliest))
    return found


def _earliest(rerun: Rerun, refused: Given, told: int) -> int:
    """Nanoseconds after the refusal at which there is a place."""
    submit, since = refused.command, refused.now
    assert isinstance(submit, Submit)  # only submissions are refused
    limit = FURTHEST * max(told, LEAST)
    while rerun.advance():
        passed = rerun.now - since
        if passed >= limit:
            return limit
        if passed > 0 and rerun.scheduler.has_place(submit, since):
            return passed
    return limit


def _submits(number: int) -> Callable[[Command], bool]:
    return lambda command: isinstance(command, Submit) and number in command.sequences


def _of_task(refused: Command) -> Callable[[Command], bool]:
    assert isinstance(refused, Submit)  # only submissions are refused
    task = refused.lineage.task
    return lambda command: isinstance(command, Submit) and command.lineage.task == task
