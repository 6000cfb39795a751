"""The simulated executor refuses what no real one could run, and tells steps' shapes."""

from dataclasses import replace

import numpy as np
import pytest

from engine.core.plan import Join, Sampling, StepPlan, Transfer
from engine.sim.executor import PlanError, SimExecutor, shape_of
from engine.sim.profile import UNIT_TIME, StepShape
from engine.sim.tokens import TrueLengths, counting_tokens


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int32)


def join(slot: int, sequence: int, tokens: int, blocks: int, prompt: int | None = None) -> Join:
    known = np.full(tokens, TrueLengths.WORD, np.int32)
    length = tokens if prompt is None else prompt
    return Join(slot, sequence, known, length, ints(*range(blocks)), Sampling())


def plan(
    rows: list[tuple[int, int, int, int]], drafts: list[int] | None = None, **rest
) -> StepPlan:
    """Rows of (slot, sequence, start, count), all of which draw a token."""
    slots, sequences, starts, counts = zip(*rows, strict=True)
    return StepPlan(
        step=1,
        sequences=np.asarray(sequences, np.int64),
        slots=np.asarray(slots, np.int64),
        starts=ints(*starts),
        counts=ints(*counts),
        drafts=ints(*(drafts or [0] * len(rows))),
        samples=np.ones(len(rows), np.bool_),
        logits_rows=np.arange(len(rows)),
        **rest,
    )


def executor(lengths: dict[int, int] | None = None) -> SimExecutor:
    source = TrueLengths(lengths if lengths is not None else {7: 3, 8: 100}, 128)
    return SimExecutor(UNIT_TIME, source, lambda _duration: None, block_size=4)


JOINED = (join(0, 7, 6, 2), join(100, 8, 3, 1))
FIRST = plan([(0, 7, 0, 6), (100, 8, 0, 3)], joined=JOINED)


def test_sequences_draw_words_until_their_true_length_then_the_stop_token():
    simulated = executor()
    drawn = [simulated.launch(FIRST).tokens.tolist()]
    for position in (6, 7):
        # Position 8 of sequence 7 opens a block, as does position 4 of sequence 8.
        grown = {"grown_slots": ints(100), "grown_blocks": ints(9)} if position == 6 else {}
        step = plan([(0, 7, position, 1), (100, 8, position - 3, 1)], **grown)
        drawn.append(simulated.launch(step).tokens.tolist())
    word, stop = TrueLengths.WORD, TrueLengths.STOP
    assert drawn == [[word, word], [word, word], [stop, word]]


def test_a_resumed_sequence_goes_on_where_it_was():
    resumed = plan([(0, 7, 0, 8)], joined=(join(0, 7, 8, 2, prompt=6),))
    assert executor().launch(resumed).tokens.tolist() == [TrueLengths.STOP]


def test_accepted_drafts_count_as_tokens():
    simulated = SimExecutor(UNIT_TIME, counting_tokens(50), lambda _duration: None, block_size=16)
    simulated.launch(plan([(0, 7, 0, 6)], joined=(join(0, 7, 6, 2),)))
    result = simulated.launch(plan([(0, 7, 6, 5)], drafts=[4]))
    assert result.token_counts.tolist() == [3]  # its own and half of four drafts
    rule = counting_tokens(50)
    assert result.tokens.tolist() == [rule(join(0, 7, 6, 2), i) for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (plan([(0, 7, 7, 1)]), "sequence 7 has no token at 7"),
        (plan([(100, 8, 3, 1), (0, 7, 6, 2)]), "sequence 7 has no token at 7"),
        (plan([(0, 8, 6, 1)]), "slot 0 holds another sequence"),
        (plan([(0, 7, 6, 1)], joined=(join(0, 9, 2, 1),)), "slot 0 is joined while in use"),
        (plan([(0, 7, 6, 1)], left=(3,)), "slot 3 is left while empty"),
        (plan([(0, 7, 6, 1)], grown_slots=ints(5), grown_blocks=ints(1)), "slot 5 grows"),
        (plan([(0, 7, 6, 1)], left=(0,)), "slot 0 holds another sequence"),
    ],
)
def test_plans_that_no_executor_could_run_are_refused(step, complaint):
    simulated = executor()
    simulated.launch(FIRST)
    with pytest.raises(PlanError, match=complaint):
        simulated.launch(step)


def test_a_row_without_a_block_is_refused():
    simulated = executor()
    simulated.launch(FIRST)
    simulated.launch(plan([(100, 8, 3, 1)]))
    with pytest.raises(PlanError, match="sequence 8 has no block at 4"):
        simulated.launch(plan([(100, 8, 4, 1)]))


def test_the_shape_of_a_step():
    step = plan([(0, 7, 9, 1), (1, 8, 19, 1), (2, 9, 100, 10)])
    fork = replace(step, counts=ints(1, 0, 10))
    moves = (Transfer(0, 1, True), Transfer(2, 3, True), Transfer(4, 5, False))
    attended = sum(range(101, 111))
    assert shape_of(replace(step, transfers=moves), 4) == StepShape(10, attended, 2, 30, 8, 4)
    assert shape_of(fork, 4) == StepShape(10, attended, 1, 10)
    drafting = plan([(0, 7, 9, 5)], drafts=[4])
    assert shape_of(drafting, 4) == StepShape(0, 0, 1, 14)
