"""A cancellation is applied, or the end of a race, which cancels all but the winner."""

from collections.abc import Iterable

from engine.core.commands import Cancel
from engine.core.refusal import Refusal
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from telemetry.events import CancelApplied, Cause, Phase
from telemetry.lineage import Lineage, Scope


def cancel(state: KernelState, command: Cancel, now: int) -> None:
    """End what the command covers and, if asked to, refuse what arrives there later.

    Of several winners named for one race the first stands: a later one changes nothing.
    """
    found = dict.fromkeys(Phase, 0)
    overruled = _has_another_winner(state, command, now)
    if not overruled:
        for sequence in _covered(state, command):
            found[sequence.phase] += 1
            state.end(sequence, command.cause, now)
    state.emit(
        CancelApplied(
            now=now,
            scope=command.scope,
            cause=command.cause,
            queued=found[Phase.QUEUED],
            prefill=found[Phase.PREFILL],
            decode=found[Phase.DECODE],
            spare=command.spare,
            received=command.received,
        )
    )
    if command.remember and not overruled:
        state.tombstones.bury(command.scope, command.spare, now)


def check_alive(state: KernelState, lineage: Lineage, now: int) -> None:
    """Raise Refusal for new work of what was cancelled or has lost its race."""
    stone = state.tombstones.refusing(lineage, now)
    if stone is None:
        return
    if stone.spare is None:
        raise Refusal(Cause.TASK_CANCELLED, "the task was cancelled before this request arrived")
    raise Refusal(Cause.RACE_OVER, "another attempt had won before this request arrived")


def _has_another_winner(state: KernelState, command: Cancel, now: int) -> bool:
    standing = state.tombstones.standing(command.scope, now)
    winner = standing and standing.spare
    return None not in (winner, command.spare) and winner != command.spare


def _covered(state: KernelState, command: Cancel) -> list[Sequence]:
    spare = command.spare
    return [
        sequence
        for sequence in _under(state, command.scope)
        if spare is None or not spare.covers(sequence.lineage)
    ]


def _under(state: KernelState, scope: Scope) -> Iterable[Sequence]:
    candidates: Iterable[Sequence]
    if scope.task is not None:
        candidates = state.by_task.get((scope.tenant, scope.task), {}).values()
    else:
        candidates = state.sequences.values()
    return (sequence for sequence in candidates if scope.covers(sequence.lineage))
