"""The token pool: every slot's tokens and block table, on the device."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import IntArray, LongArray, StepPlan
from engine.runtime.batch_state import BatchState
from engine.runtime.gpu.device import Device, Work
from engine.runtime.upload import upload


class TokenPool:
    """One int32 array: tokens [slots, max_context], tables [slots, max_blocks], and a spare cell.

    It follows `state`, the host's knowledge of the same slots, plan by plan. What is drawn is put
    in by the device itself.
    """

    def __init__(self, device: Device, state: BatchState) -> None:
        self._state = state
        self._tables_at = state.tokens.size
        self._spare = state.tokens.size + state.tables.size
        self._cells = torch.zeros(self._spare + 1, dtype=torch.int32, device=device.place)
        self._tokens = self._cells[: self._tables_at].view(state.tokens.shape)
        self._tables = self._cells[self._tables_at : -1].view(state.tables.shape)

    def change(self, plan: StepPlan, grown_places: IntArray) -> Work | None:
        """What the device must do to follow `plan`, which the state has applied; None: nothing.

        `grown_places` are the places in their tables of `plan.grown_blocks`.
        """
        state = self._state
        at, values = [], []
        for join in plan.joined:
            slot = np.array(join.slot, np.int64)
            known, blocks = len(join.tokens), len(join.blocks)
            at += [self._token(slot) + np.arange(known), self._table(slot) + np.arange(blocks)]
            values += [state.tokens[join.slot, :known], join.blocks]
        if len(plan.grown_slots):
            at.append(self._table(plan.grown_slots) + grown_places)
            values.append(plan.grown_blocks)
        if not at:
            return None
        places, contents = np.concatenate(at), np.concatenate(values)
        cells = self._cells

        def apply() -> None:
            cells.index_copy_(0, upload(places, cells.device), upload(contents, cells.device))

        return apply

    def keeper(self, slots: LongArray, places: IntArray) -> Callable[[Tensor], None]:
        """What puts drawn tokens [S] at `places` of `slots`; those beyond the context are lost."""
        room = places < self._state.max_context
        at = np.where(room, self._token(slots) + places, self._spare)
        cells = self._cells

        def keep(tokens: Tensor) -> None:
            cells.index_copy_(0, upload(at, cells.device), tokens.int())

        return keep

    def tokens_at(self, at: Tensor) -> Tensor:
        return self._cells.index_select(0, at)

    def tables_of(self, slots: Tensor) -> Tensor:
        return self._tables.index_select(0, slots)

    def history(self, slots: LongArray, length: int) -> Tensor:
        """The first `length` tokens of each of `slots`, int64."""
        return self._tokens.index_select(0, upload(slots, self._cells.device))[:, :length].long()

    def _token(self, slots: LongArray) -> LongArray:
        cells: LongArray = slots * self._state.tokens.shape[1]
        return cells

    def _table(self, slots: LongArray) -> LongArray:
        cells: LongArray = self._tables_at + slots * self._state.tables.shape[1]
        return cells
