"""What a step computes, as the step-time model counts it, and what fits beside its decodes."""

import numpy as np

from engine.core.draft import DraftPlan
from engine.core.plan import StepPlan, StepResult
from engine.core.state import KernelState
from policies.chunking import prefill_budget
from policies.estimates import bounded
from policies.step_time import StepWork


def work_of(plan: StepPlan) -> StepWork:
    """The work of a plan. A row of one position counts as decoding, drafts as prefill does."""
    decode = plan.counts == 1
    prefill = plan.counts > 1
    counts, starts = plan.counts[prefill], plan.starts[prefill]
    decoding = int(np.count_nonzero(decode))
    return StepWork(
        prefill_tokens=int(counts.sum()),
        prefill_context=float((counts * (starts + counts / 2)).sum()),
        decode_sequences=decoding,
        context_tokens=int(plan.starts.dot(decode)) + decoding,
    )


def believed(state: KernelState, plan: StepPlan, result: StepResult, seconds: float) -> float:
    """As much of the `seconds` that a step took as estimates may rest on.

    What is usual is what was foretold for such a step and what its moves held it up by, or what
    steps take in the mean if that is more: a kind that is hardly known yet must not be cut short.
    """
    mean = state.outlook.step_seconds
    if not mean or seconds <= bounded(seconds, mean):
        return seconds
    usual = state.step_time.predict(work_of(plan)) + result.stall / 1e9
    return bounded(seconds, max(mean, usual))


def learn(state: KernelState, plan: StepPlan, result: StepResult, now: int) -> None:
    """Teach the step-time model a step; of those that only decode, which are many, every fourth.

    A step that moves KV teaches how long moves hold a step up instead.
    """
    if plan.transfers:
        _note_moves(state, plan, result)
        return
    seconds = result.duration / 1e9
    if seconds > 0 and (plan.step % 4 == 0 or np.maximum.reduce(plan.counts) > 1):
        work = work_of(plan)
        state.step_time.observe(work, seconds)
        state.trials.observe(work, now)


def _note_moves(state: KernelState, plan: StepPlan, result: StepResult) -> None:
    """A step moved KV, before its computation or beside it: what coming back held it up by."""
    out = sum([transfer.to_host for transfer in plan.transfers])
    back = len(plan.transfers) - out
    computing = state.step_time.predict(work_of(plan)) * 1e9
    if state.config.host_overlap and result.stall:
        moving = state.config.host_block_ns * max(out, back)
        state.move_stalls.observe_rest(result.duration - moving)
    if back:
        state.move_stalls.observe(back, result.stall - stall(state, out, computing))


def stall(state: KernelState, blocks: int, computing: float) -> float:
    """By how much moves of so many blocks hold up a step that takes so long without any.

    With overlap they run beside the computation, but not beside the rest of the step.
    """
    moving = blocks * state.config.host_block_ns
    if not state.config.host_overlap:
        return moving
    return max(0.0, moving + state.move_stalls.rest - computing)


def keep_tpot(state: KernelState, draft: DraftPlan) -> None:
    """Cut the step's budget so that its decodes keep the tightest of their TPOT targets.

    Which prompts get it is not known yet: they are taken to stand where that one of the running
    ones does which has come furthest, since its next tokens have the most to attend to.
    """
    slots = draft.decode_slots
    if not len(slots) or not state.step_time.steps:
        return
    target = float(np.minimum.reduce(state.batch.tpot[slots]))
    if target == np.inf:
        return
    batch = state.batch
    context = int(batch.scheduled[slots].sum()) + len(slots)
    unfinished = (batch.ids >= 0) & (batch.known + batch.pending - batch.scheduled > 1)
    start = int(np.maximum.reduce(batch.scheduled, where=unfinished, initial=0))

    def predict(tokens: int) -> float:
        around = tokens * (start + tokens / 2)
        return state.step_time.predict(StepWork(tokens, around, len(slots), context))

    draft.budget = prefill_budget(predict, target, draft.budget, draft.least)
    draft.least = min(draft.least, draft.budget)
