"""The executor that runs plans on torch."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from engine.core.config import KernelConfig
from engine.core.plan import IntArray, LongArray, StepPlan, StepResult, TokenLogprob
from engine.runtime.batch_state import BatchState
from engine.runtime.kv_cache import KVCache
from engine.runtime.model import Model
from engine.runtime.model_config import check_fits
from engine.runtime.ragged import RaggedBatch, ragged
from engine.runtime.sampler import Draws, collect, draw, prepare


@dataclass(frozen=True, slots=True)
class Ticket:
    """A launched step. On a CPU it is computed by the time `launch` returns."""

    result: StepResult


class TorchExecutor:
    """Runs one model over a paged KV cache. Used by one thread.

    Raises ValueError when the kernel is configured for a longer context or another vocabulary than
    the model's.
    """

    def __init__(self, model: Model, config: KernelConfig) -> None:
        shape = model.config
        check_fits(shape, config)
        self._model = model
        self._config = config
        self.cache = KVCache(
            shape,
            config.num_blocks,
            config.block_size,
            model.dtype,
            model.device,
            config.host_blocks,
        )
        self._run = model.bind(self.cache)
        self._state = BatchState(
            config.max_running, config.max_context, config.block_size, config.vocab_size
        )

    def launch(self, plan: StepPlan) -> Ticket:
        """Apply `plan` and compute it. ValueError for a plan outside the configured sizes."""
        if plan.drafts.any():
            raise ValueError("this executor proposes no drafts; configure draft_tokens = 0")
        began = time.perf_counter_ns()
        with torch.inference_mode():
            self._state.apply(plan)
            stall = self._move(plan)
            self._clear_entered(plan)
            sampled, drawn = self._compute(plan)
            self.cache.copy(plan.copies)
        return Ticket(self._result(plan, sampled, drawn, began, stall))

    def wait(self, ticket: Ticket) -> StepResult:
        """The result of a launched step."""
        return ticket.result

    def warm_up(self) -> None:
        """Run the sizes that a served batch will have, so that the first request does not pay.

        Writes to block 0 only, which is zeroed again. Call it before the first plan.
        """
        sizes = {1, self._config.max_running}
        longest = min(self._config.max_step_tokens, self._config.max_context)
        with torch.inference_mode():
            for rows in sorted(sizes):
                self._warm(np.ones(rows, np.int32))
            self._warm(np.array([longest], np.int32))
            self.cache.clear(torch.zeros(1, dtype=torch.int64, device=self._model.device))

    def _warm(self, counts: IntArray) -> None:
        slots = np.arange(len(counts))
        state = self._state
        batch = ragged(slots, np.zeros_like(counts), counts, state.tokens, state.tables)
        self._forward(batch, batch.offsets + batch.counts - 1)

    def _move(self, plan: StepPlan) -> int:
        """Run the plan's transfers; returns the nanoseconds they took."""
        if not plan.transfers:
            return 0
        began = time.perf_counter_ns()
        self.cache.transfer(plan.transfers)
        return time.perf_counter_ns() - began

    def _clear_entered(self, plan: StepPlan) -> None:
        if not self._model.wants_clean_blocks:
            return
        blocks = self._state.entered(plan)
        if len(blocks):
            self.cache.clear(torch.from_numpy(blocks).to(self._model.device))

    def _compute(self, plan: StepPlan) -> tuple[LongArray, Draws]:
        """Forward pass and draws: the rows drawn for, and what was drawn."""
        sampled = np.flatnonzero(plan.samples)
        computing = np.flatnonzero(plan.counts > 0)
        if not len(computing):
            return sampled[:0], Draws(np.empty(0, np.int64))
        state = self._state
        batch = ragged(
            plan.slots[computing],
            plan.starts[computing],
            plan.counts[computing],
            state.tokens,
            state.tables,
        )
        # forked choices draw from their sibling's logits: compute those once
        sources, source_of = np.unique(plan.logits_rows[sampled], return_inverse=True)
        ends = np.zeros(len(plan.counts), np.int64)
        ends[computing] = batch.offsets + batch.counts - 1
        logits = self._forward(batch, ends[sources])
        if not len(sampled):
            return sampled, Draws(np.empty(0, np.int64))
        if len(sources) < len(sampled):
            logits = logits.index_select(0, torch.from_numpy(source_of).to(logits.device))
        slots = plan.slots[sampled]
        inputs = prepare(slots, state)
        drawn = collect(draw(logits, inputs, self._history), inputs)
        state.fill(slots, state.promise(slots), drawn.tokens.astype(np.int32))
        return sampled, drawn

    def _history(self, slots: LongArray, length: int) -> torch.Tensor:
        return torch.from_numpy(self._state.tokens[slots, :length].astype(np.int64))

    def _forward(self, batch: RaggedBatch, ends: np.ndarray) -> torch.Tensor:
        wanted = torch.from_numpy(ends).to(self._model.device)
        return self._run(batch, wanted)

    def _result(
        self, plan: StepPlan, sampled: LongArray, drawn: Draws, began: int, stall: int
    ) -> StepResult:
        failures = {int(sampled[i]): failure for i, failure in drawn.failures.items()}
        failures |= self._state.rejections(plan)
        counts = np.zeros(len(plan.slots), np.int32)
        counts[sampled] = 1
        counts[list(failures)] = 0
        logprobs: dict[int, tuple[TokenLogprob, ...]] = {
            int(sampled[i]): (logprob,)
            for i, logprob in drawn.logprobs.items()
            if counts[sampled[i]]
        }
        return StepResult(
            step=plan.step,
            token_counts=counts,
            tokens=drawn.tokens[counts[sampled] > 0].astype(np.int32),
            duration=time.perf_counter_ns() - began,
            stall=stall,
            logprobs=logprobs,
            failures=failures,
        )
