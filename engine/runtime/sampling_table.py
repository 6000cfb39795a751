"""Sampling parameters of the persistent batch: one entry a slot, as arrays."""

import numpy as np

from engine.core.plan import IntArray, LogitsConstraint, LongArray, Sampling

SEED_MASK = (1 << 64) - 1


class SamplingTable:
    """`Sampling` by slot. A flag array says which rows need each stage, so that most cost nothing.

    `plain` rows take the most likely token and report nothing else: a batch of them is one argmax.
    """

    def __init__(self, slots: int) -> None:
        self.temperature = np.zeros(slots, np.float32)
        self.top_p = np.ones(slots, np.float32)
        self.top_k = np.zeros(slots, np.int32)
        self.min_p = np.zeros(slots, np.float32)
        self.repetition = np.ones(slots, np.float32)
        self.presence = np.zeros(slots, np.float32)
        self.frequency = np.zeros(slots, np.float32)
        self.seed = np.zeros(slots, np.uint64)
        self.logprobs = np.full(slots, -1, np.int32)  # -1 reports nothing
        self.min_tokens = np.zeros(slots, np.int32)
        self.penalised = np.zeros(slots, np.bool_)
        self.biased = np.zeros(slots, np.bool_)
        self.filtered = np.zeros(slots, np.bool_)
        self.constrained = np.zeros(slots, np.bool_)
        self.plain = np.zeros(slots, np.bool_)
        self.stop_ids: list[LongArray] = [np.empty(0, np.int64)] * slots
        self.bias_ids: list[LongArray] = [np.empty(0, np.int64)] * slots
        self.bias_values: list[np.ndarray] = [np.empty(0, np.float32)] * slots
        self.constraints: list[LogitsConstraint | None] = [None] * slots

    def set(self, slot: int, sampling: Sampling) -> None:
        self.temperature[slot] = sampling.temperature
        self.top_p[slot] = sampling.top_p
        self.top_k[slot] = sampling.top_k
        self.min_p[slot] = sampling.min_p
        self.repetition[slot] = sampling.repetition_penalty
        self.presence[slot] = sampling.presence_penalty
        self.frequency[slot] = sampling.frequency_penalty
        self.seed[slot] = sampling.seed & SEED_MASK
        self.logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        # without stop tokens there is nothing to hold back
        self.min_tokens[slot] = sampling.min_tokens if sampling.stop_token_ids else 0
        self.penalised[slot] = (
            sampling.repetition_penalty != 1
            or sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
        )
        self.biased[slot] = bool(sampling.logit_bias)
        self.filtered[slot] = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self.constrained[slot] = sampling.constraint is not None
        self.plain[slot] = sampling.temperature == 0 and not (
            self.penalised[slot]
            or self.biased[slot]
            or self.constrained[slot]
            or self.min_tokens[slot]
            or sampling.logprobs is not None
        )
        self.stop_ids[slot] = np.array(sampling.stop_token_ids, np.int64)
        self.bias_ids[slot] = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self.bias_values[slot] = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self.constraints[slot] = sampling.constraint

    def forget(self, slot: int) -> None:
        """Release the constraint of the slot's last sequence; numbers may stay until the next."""
        self.constraints[slot] = None

    def reals(self, slots: LongArray) -> np.ndarray:
        """Temperature, top_p, min_p, repetition, presence and frequency of `slots`: [6, S]."""
        columns = (self.temperature, self.top_p, self.min_p)
        penalties = (self.repetition, self.presence, self.frequency)
        return np.stack([column[slots] for column in (*columns, *penalties)])

    def barred(self, slots: LongArray, outputs: IntArray) -> tuple[LongArray, LongArray]:
        """Stop tokens that may not be drawn yet, as (index into `slots`, token id) pairs.

        `outputs` is the number of tokens that each slot has drawn so far.
        """
        early = np.flatnonzero(self.min_tokens[slots] > outputs)
        return _pairs(early, [self.stop_ids[slots[index]] for index in early])

    def bias(self, slots: LongArray) -> tuple[LongArray, LongArray, np.ndarray]:
        """Biases as (index into `slots`, token id, value) triples."""
        rows = np.flatnonzero(self.biased[slots])
        index, ids = _pairs(rows, [self.bias_ids[slots[row]] for row in rows])
        values = [self.bias_values[slots[row]] for row in rows]
        return index, ids, np.concatenate(values) if values else np.empty(0, np.float32)


def _pairs(rows: LongArray, lists: list[LongArray]) -> tuple[LongArray, LongArray]:
    if not lists:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.repeat(rows, [len(ids) for ids in lists]), np.concatenate(lists)
