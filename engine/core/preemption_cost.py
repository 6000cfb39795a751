"""What a preemption will cost the device, in nanoseconds: KV computed again, or moved twice."""

from collections.abc import Iterable
from dataclasses import replace

from engine.core.draft import PrefillRow
from engine.core.plan import StepPlan
from engine.core.state import KernelState
from engine.core.step_work import stall, work_of
from policies.step_time import StepWork


def note_company(state: KernelState, rows: Iterable[PrefillRow]) -> None:
    """A step with these prompt slices was planned."""
    back = other = 0
    for row in rows:
        if row.start < row.sequence.computed_before:
            back += 1
        elif row.count > 1:
            other += row.count
    if back:
        state.company.observe(back, other)


def recompute_cost(state: KernelState, positions: int) -> int:
    """By how much computing so many positions again lengthens the steps that do it.

    They run beside the decodes of now, of which the sequence would have been one more, and as often
    as in the past in one step with other prompts. Before any step was seen the cost is 0.
    """
    company = state.company
    alone = _lengthened(state, positions, 0)
    beside = _lengthened(state, positions, max(1, round(company.tokens)))
    return max(0, round(company.alone * alone + (1 - company.alone) * beside))


def _lengthened(state: KernelState, positions: int, other: int) -> float:
    """Nanoseconds that the positions add to steps with `other` prompt tokens."""
    decodes, context = _decodes(state)
    room = max(1, state.config.max_step_tokens - decodes - other)
    around, seconds = other * other / 2, 0.0
    for start in range(0, positions, room):
        count = min(room, positions - start)
        work = StepWork(other + count, around + count * (start + count / 2), decodes, context)
        without = StepWork(other, around, decodes + 1, context + positions)
        seconds += state.step_time.predict(work) - state.step_time.predict(without)
    return seconds * 1e9


def price_moves(state: KernelState, plan: StepPlan | None) -> None:
    """Enter into this plan's preemptions by how much moving their KV out and back lengthens steps.

    What the step computes beside a move, and so how long it waits, depends on the newcomers that
    the room lets in, and is known only once it is planned (`plan` is None if nothing could be). Of
    its wait each victim has a share by blocks. The way back costs as much as it did lately: that
    depends on who else comes back in the same step.
    """
    if not state.leaving:
        return
    out = len(state.transfers)
    computing = 0.0 if plan is None else state.step_time.predict(work_of(plan)) * 1e9
    each = stall(state, out, computing) / out + state.move_stalls.per_block
    for place, event in state.leaving:
        state.events[place] = replace(event, predicted_cost=round(event.swapped_blocks * each))
    state.leaving.clear()


def _decodes(state: KernelState) -> tuple[int, int]:
    batch = state.batch
    return batch.running, int(batch.known[batch.ids >= 0].sum())
