"""Steps that a fresh executor runs so that nothing is compiled or allocated while it serves."""

from collections.abc import Iterator

import numpy as np

from engine.core.config import KernelConfig
from engine.core.plan import Join, Sampling, StepPlan

# each kind of draw has kernels of its own
DRAWS = (
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, top_p=0.9, top_k=50, min_p=0.01),
    Sampling(temperature=1.0, presence_penalty=1.0, logprobs=1),
)


def warm_up_plans(config: KernelConfig) -> Iterator[StepPlan]:
    """The longest prompt that a step takes, then a decode beside a prompt, for each kind of draw.

    All in slots 0 and 1, and with all their blocks block 0.
    """
    longest = min(config.max_step_tokens - 1, config.max_context - 1)
    beside = min(2, config.max_running - 1, longest)
    for draw in DRAWS:
        yield _plan([(0, 0, longest)], joined=(_join(0, longest, config, draw),))
        if beside:
            joined = (_join(1, beside, config, draw),)
            yield _plan([(0, longest, 1), (1, 0, beside)], joined=joined)
        else:
            yield _plan([(0, longest, 1)])
        yield _plan([], left=(0, 1) if beside else (0,))


def _join(slot: int, tokens: int, config: KernelConfig, sampling: Sampling) -> Join:
    blocks = -(-(tokens + 1) // config.block_size)
    return Join(
        slot=slot,
        sequence=slot,
        tokens=np.zeros(tokens, np.int32),
        prompt_length=tokens,
        blocks=np.zeros(blocks, np.int32),
        sampling=sampling,
    )


def _plan(
    rows: list[tuple[int, int, int]], joined: tuple[Join, ...] = (), left: tuple[int, ...] = ()
) -> StepPlan:
    """`rows` are (slot, start, count)."""
    columns = np.array(rows, np.int32).reshape(-1, 3)
    starts, counts = (np.ascontiguousarray(column) for column in columns.T[1:])
    slots = columns[:, 0].astype(np.int64)
    return StepPlan(
        step=0,
        sequences=slots,
        slots=slots,
        starts=starts,
        counts=counts,
        drafts=np.zeros(len(rows), np.int32),
        samples=np.ones(len(rows), np.bool_),
        logits_rows=np.arange(len(rows)),
        joined=joined,
        left=left,
    )
