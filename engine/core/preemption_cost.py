"""What a preemption will cost the device, in nanoseconds: KV computed again, or moved twice."""

from collections.abc import Iterable

from engine.core.draft import PrefillRow
from engine.core.sequence import Sequence
from engine.core.state import KernelState
from engine.core.step_work import stall
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


def swap_cost(state: KernelState, blocks: int, beneficiary: Sequence | None = None) -> int:
    """By how much moving so many blocks out and back lengthens the steps that do it.

    Out, by what the link takes beyond the next step's computation, after other moves of that step.
    Back, by as much as coming back did lately: that depends on who comes back in the same step.
    """
    block, overlap = state.config.host_block_ns, state.config.host_overlap
    decodes, context = _decodes(state)
    entering = {s.id: s for s in (*state.entitled, beneficiary) if s is not None and s.slot < 0}
    prompt = sum(len(s.tokens) for s in entering.values() if not s.computed)
    back = [s.computed for s in entering.values() if s.computed]
    work = StepWork(prompt, prompt * prompt / 2, decodes + len(back), context + sum(back))
    computing = state.step_time.predict(work) * 1e9
    before = len(state.transfers)
    out = stall((before + blocks) * block, computing, overlap=overlap)
    out -= stall(before * block, computing, overlap=overlap)
    return round(out + blocks * state.move_stalls.per_block)


def _decodes(state: KernelState) -> tuple[int, int]:
    batch = state.batch
    return batch.running, int(batch.known[batch.ids >= 0].sum())
