"""One step's positions, laid end to end: what the forward pass and attention run over."""

from dataclasses import dataclass

import numpy as np

from engine.core.plan import IntArray, LongArray


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Rows of one step. Row r's tokens are [offsets[r], offsets[r] + counts[r]) of the flat batch.

    `starts`, `counts`, `offsets` and `tables` (block tables, [R, max_blocks]) run in parallel over
    the rows; every count is at least 1. `tokens`, `positions` and `row_of` have one entry for each
    of the T flat positions.
    """

    starts: LongArray
    counts: LongArray
    offsets: LongArray
    tables: IntArray
    tokens: LongArray
    positions: LongArray
    row_of: LongArray


def ragged(
    slots: LongArray, starts: IntArray, counts: IntArray, tokens: IntArray, tables: IntArray
) -> RaggedBatch:
    """Lay out rows that compute positions [start, start + count) of the sequences in `slots`.

    `tokens` [slots, max_context] and `tables` [slots, max_blocks] are the persistent batch's.
    """
    long_starts, long_counts = starts.astype(np.int64), counts.astype(np.int64)
    ends = np.cumsum(long_counts)
    offsets = ends - long_counts
    row_of = np.repeat(np.arange(len(counts)), long_counts)
    positions = np.arange(len(row_of)) + (long_starts - offsets)[row_of]
    return RaggedBatch(
        starts=long_starts,
        counts=long_counts,
        offsets=offsets,
        tables=tables.take(slots, axis=0),
        tokens=tokens.reshape(-1)[slots[row_of] * tokens.shape[1] + positions].astype(np.int64),
        positions=positions,
        row_of=row_of,
    )
