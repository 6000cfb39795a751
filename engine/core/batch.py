"""The persistent batch: one row of arrays a slot, so that a decode step is array arithmetic."""

import numpy as np
import numpy.typing as npt

from engine.core.plan import BoolArray, IntArray, LongArray
from engine.core.sequence import Sequence

NO_STOP = -1

FloatArray = npt.NDArray[np.float64]


class Batch:
    """Running sequences by slot. All arrays have shape [max_running] unless said otherwise.

    `known` tokens are on the host, `pending` draws are in flight, so the next position to be
    filled is known + pending. Positions below `scheduled` are in some launched plan, those below
    `computed` are committed. `paid` is the high-water mark of computed positions: below it,
    computing is rework. `epoch` tells a slot's present sequence from one that had it when a plan
    was made.
    """

    def __init__(self, max_running: int, max_context: int) -> None:
        self.sequences: list[Sequence | None] = [None] * max_running
        self.rows: LongArray = np.arange(max_running)  # once: making it lets others have the lock
        self.ids: LongArray = np.full(max_running, -1, np.int64)
        self.epoch: LongArray = np.zeros(max_running, np.int64)
        self.known: IntArray = np.zeros(max_running, np.int32)
        self.pending: IntArray = np.zeros(max_running, np.int32)
        self.computed: IntArray = np.zeros(max_running, np.int32)
        self.scheduled: IntArray = np.zeros(max_running, np.int32)
        self.drafting: IntArray = np.zeros(max_running, np.int32)  # draft positions in flight
        self.limit: IntArray = np.zeros(max_running, np.int32)  # prompt plus output cap
        self.prompt: IntArray = np.zeros(max_running, np.int32)
        self.paid: IntArray = np.zeros(max_running, np.int32)
        self.blocks: IntArray = np.zeros(max_running, np.int32)
        self.flow: LongArray = np.zeros(max_running, np.int64)
        self.prepaid: IntArray = np.zeros(max_running, np.int32)  # output tokens charged already
        self.host_bound: BoolArray = np.zeros(max_running, np.bool_)
        self.tpot: FloatArray = np.full(max_running, np.inf)  # target, in seconds
        self.started: BoolArray = np.zeros(max_running, np.bool_)  # has its first output token
        self.min_length: IntArray = np.zeros(max_running, np.int32)
        self.stops: IntArray = np.full((max_running, 1), NO_STOP, np.int32)  # [slots, stop ids]
        self.tokens: IntArray = np.zeros((max_running, min(1024, max_context)), np.int32)
        self._free = list(range(max_running - 1, -1, -1))
        self._epochs = 0

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self.sequences) - len(self._free)

    @property
    def full(self) -> bool:
        """Whether no slot is left."""
        return not self._free

    def live(self) -> list[Sequence]:
        """The running sequences in slot order."""
        return [s for s in self.sequences if s is not None]

    def at(self, slot: int) -> Sequence:
        """The sequence in a slot that is in use."""
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence

    def join(self, sequence: Sequence, computed: int) -> int:
        """Give `sequence` a slot; its first `computed` positions are already in its blocks."""
        slot = self._free.pop()
        self._epochs += 1
        count = len(sequence.tokens)
        self._widen(slot, count, sequence.sampling.stop_token_ids)
        self.sequences[slot] = sequence
        self.ids[slot] = sequence.id
        self.epoch[slot] = self._epochs
        self.known[slot] = count
        self.pending[slot] = 0
        self.drafting[slot] = 0
        self.computed[slot] = computed
        self.scheduled[slot] = computed
        self.limit[slot] = sequence.prompt_length + sequence.max_tokens
        self.prompt[slot] = sequence.prompt_length
        self.paid[slot] = max(computed, sequence.computed_before, sequence.group.paid)
        self.blocks[slot] = len(sequence.blocks)
        self.flow[slot] = sequence.flow.index
        self.prepaid[slot] = sequence.prepaid
        self.host_bound[slot] = sequence.sampling.constraint is not None
        self.tpot[slot] = sequence.tpot_target or np.inf
        self.started[slot] = sequence.first_token is not None
        self.min_length[slot] = sequence.prompt_length + sequence.sampling.min_tokens
        self.tokens[slot, :count] = sequence.tokens
        sequence.slot = slot
        return slot

    def leave(self, sequence: Sequence) -> None:
        """Take `sequence` out; its tokens and progress are kept in the sequence."""
        slot = sequence.slot
        sequence.tokens = self.tokens[slot, : self.known[slot]].copy()
        # a choice whose first draw is in flight has all its KV and not yet its token: without the
        # sibling's logits its last position must be computed again to draw from
        sequence.computed = int(min(self.computed[slot], self.known[slot] - 1))
        sequence.computed_before = int(self.paid[slot])
        sequence.slot = -1
        self.sequences[slot] = None
        self.ids[slot] = -1
        self._epochs += 1
        self.epoch[slot] = self._epochs
        self._free.append(slot)

    def keep(self, slots: LongArray, positions: IntArray, tokens: IntArray) -> None:
        """Write one token each at `positions` of `slots`."""
        self.fit(int(np.maximum.reduce(positions)))
        # one index instead of two, for the reasons that StepPlan has
        self.tokens.reshape(-1)[slots * self.tokens.shape[1] + positions] = tokens

    def _widen(self, slot: int, count: int, stops: tuple[int, ...]) -> None:
        if count >= self.tokens.shape[1]:
            self.fit(count)
        if len(stops) > self.stops.shape[1]:
            extra = np.full(
                (len(self.sequences), len(stops) - self.stops.shape[1]), NO_STOP, np.int32
            )
            self.stops = np.hstack([self.stops, extra])
        self.stops[slot] = NO_STOP
        self.stops[slot, : len(stops)] = stops

    def fit(self, tokens: int) -> None:
        """Make room for rows of more than `tokens` tokens."""
        width = self.tokens.shape[1]
        while width <= tokens:
            width *= 2
        if width > self.tokens.shape[1]:
            grown = np.zeros((len(self.sequences), width), np.int32)
            grown[:, : self.tokens.shape[1]] = self.tokens
            self.tokens = grown
