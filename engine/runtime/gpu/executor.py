"""The executor for a device that computes while the host plans the next step.

Tokens and block tables of all slots live on the device. A plan's changes go there in the order of
the steps; what a step draws is written into the token pool on the device, where the next step finds
it before the host has seen it. `wait` waits for one step's results and for nothing else.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.core.config import KernelConfig
from engine.core.plan import IntArray, LongArray, StepPlan, StepResult
from engine.runtime.batch_state import BatchState
from engine.runtime.gpu.attention import DeviceAttention
from engine.runtime.gpu.device import Compute, Device, Mark
from engine.runtime.gpu.graphs import DecodeGraphs, most_rows
from engine.runtime.gpu.inputs import DeviceRows, Staging, StepRows, lay_out, pad, padding
from engine.runtime.gpu.pool import TokenPool
from engine.runtime.gpu.results import Landing, Ticket
from engine.runtime.gpu.warm_up import warm_up_plans
from engine.runtime.kv_cache import KVCache
from engine.runtime.model import LlamaModel
from engine.runtime.model_config import check_fits
from engine.runtime.sampler import Choose, DrawInputs, Drawn, Draws, draw, prepare
from engine.runtime.upload import upload

IN_FLIGHT = 2  # steps launched and not waited for


class GpuExecutor:
    """Runs one model over a paged KV cache on `device`. Used by one thread.

    `make_attention(cache)` and `choose` are how the device attends and draws. `graphs` False runs
    every step eagerly. `kv_dtype` is how the cache stores numbers, if not in the model's format.
    Raises ValueError for a kernel configured beyond the model.
    """

    def __init__(
        self,
        model: LlamaModel,
        config: KernelConfig,
        device: Device,
        make_attention: Callable[[KVCache], DeviceAttention[Any]],
        choose: Choose | None = None,
        *,
        graphs: bool = True,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        shape = model.config
        check_fits(shape, config)
        self._model, self._config, self._device = model, config, device
        self.cache = KVCache(
            *(shape, config.num_blocks, config.block_size, model.dtype),
            *(device.place, config.host_blocks, kv_dtype),
        )
        self._attention = make_attention(self.cache)
        self._choose = choose
        self._wants_graphs = graphs
        self._graphs: DecodeGraphs | None = None
        self._state = BatchState(
            config.max_running, config.max_context, config.block_size, config.vocab_size
        )
        rows = most_rows(config.max_running)
        positions = max(config.max_step_tokens, rows)
        self._pool = TokenPool(device, self._state)
        self._staging = Staging(device, positions, rows, positions)
        self._landing = Landing(device, config.max_running)
        self._flights: deque[Ticket] = deque()
        self._turn = 0
        self._main, self._mover = device.queue(), device.queue()
        self._forked: Mark | None = None

    def launch(self, plan: StepPlan) -> Ticket:
        """Hand `plan` to the device. ValueError for a plan outside the configured sizes."""
        if plan.drafts.any():
            raise ValueError("this executor proposes no drafts; configure draft_tokens = 0")
        if len(self._flights) >= IN_FLIGHT:
            raise ValueError(f"step {plan.step} would be one more than {IN_FLIGHT} in flight")
        self._turn += 1
        state = self._state
        change = self._pool.change(plan, state.apply(plan))
        rows = lay_out(plan, state, self._config.block_size, self._attention.tiles)
        sampled = np.flatnonzero(plan.samples)
        if not len(rows.order):
            sampled = sampled[:0]
        inputs = prepare(plan.slots[sampled], state)
        began = self._main.mark()
        moved = self._move(plan)
        if change is not None:
            self._main.run(change)
        ticket = self._run(plan, rows, sampled, inputs, (began, moved))
        self._flights.append(ticket)
        return ticket

    def wait(self, ticket: Ticket) -> StepResult:
        """The result of the oldest launched step, once the device has it."""
        if not self._flights or self._flights[0] is not ticket:
            raise ValueError(f"step {ticket.plan.step} is not the oldest in flight")
        self._flights.popleft()
        result, tokens = ticket.result()
        state = self._state
        # a slot may have a new sequence by now, whose tokens these are not
        mine = state.tenures[ticket.slots] == ticket.tenures
        state.fill(ticket.slots[mine], ticket.places[mine], tokens[mine])
        return result

    def warm_up(self) -> None:
        """Capture the graphs, and run every kind of step once, so that no request pays for it.

        Call it before the first plan. Writes to block 0 only, which is zeroed again.
        """
        place = self._device.place
        with torch.inference_mode():
            if self._wants_graphs:
                self._graphs = DecodeGraphs(self._device, self._config.max_running, self._ready)
            for plan in warm_up_plans(self._config):
                self.wait(self.launch(plan))
            # in line before the first plan: torch's own stream is not
            self._main.run(lambda: self.cache.clear(upload(np.zeros(1, np.int64), place)))

    def release_graphs(self) -> None:
        """Run every step eagerly from now on."""
        self._graphs = None

    def _ready(self, size: int) -> Compute:
        rows = padding(size)
        into, source = self._staging.write(rows, self._turn)
        into.copy_(source)
        views = self._staging.views(rows.shape)
        return lambda: self._forward(views, None)

    def _move(self, plan: StepPlan) -> Mark | None:
        """Moves run beside the steps in flight, and before this one; where it waited for them.

        None of those steps touches the blocks: what comes in is held by nobody else, and what goes
        out was committed. Only a choice that was forked owns blocks that are still being computed.
        """
        if not plan.transfers:
            return None
        if self._forked is not None:
            self._mover.after(self._forked)
        transfers = plan.transfers
        self._mover.run(lambda: self.cache.transfer(transfers))
        self._main.after(self._mover.mark())
        return self._main.mark()

    def _run(
        self,
        plan: StepPlan,
        rows: StepRows,
        sampled: LongArray,
        inputs: DrawInputs,
        since: tuple[Mark, Mark | None],
    ) -> Ticket:
        state, turn = self._state, self._turn
        slots = inputs.slots
        ends = rows.ends(len(plan.slots))[plan.logits_rows[sampled]]
        size = self._bucket(rows)
        if size is not None:
            rows = pad(rows, size)
        entered = self._entered(plan)
        into, source = self._staging.write(rows, turn)
        views = self._staging.views(rows.shape)
        places = state.promise(slots)
        keep = self._pool.keeper(slots, places)
        land, read = self._landing.expect(inputs, self._config.vocab_size, turn)

        def compute() -> None:
            into.copy_(source, non_blocking=True)
            if len(entered):
                self.cache.clear(upload(entered, into.device))
            if not len(rows.order):
                return
            hidden = self._hidden(views, ends, size)
            if len(sampled):
                drawn = self._draw(hidden, inputs)
                keep(drawn.tokens)
                land(drawn)

        self._main.run(compute)
        if plan.copies:
            copies = plan.copies
            self._main.run(lambda: self.cache.copy(copies))
        ended = self._main.mark()
        if not plan.counts.all():
            self._forked = ended
        tenures = state.tenures[slots]
        rejected = self._state.rejections(plan)
        drawn = read if len(sampled) else _nothing
        return Ticket(plan, *since, ended, sampled, slots, places, tenures, rejected, drawn)

    def _bucket(self, rows: StepRows) -> int | None:
        """The graph that holds these rows; None where they run eagerly."""
        if self._graphs is None or not rows.decodes or len(rows.slots) > rows.decodes:
            return None
        return self._graphs.size_for(rows.decodes)

    def _hidden(self, views: DeviceRows, ends: IntArray, size: int | None) -> Tensor:
        """What the head takes, for each sampled row."""
        if size is None or self._graphs is None:
            return self._forward(views, ends)
        hidden = self._graphs.run(size)
        if np.array_equal(ends, np.arange(len(ends))):
            return hidden[: len(ends)]
        return hidden.index_select(0, upload(ends, hidden.device))

    def _forward(self, rows: DeviceRows, ends: IntArray | None) -> Tensor:
        """All positions; the last hidden state of those at `ends`, or of all."""
        tokens = self._pool.tokens_at(rows.token_at)
        attention = self._attention
        step = attention.prepare(rows, self._pool.tables_of(rows.slots))
        positions, device = rows.positions.long(), tokens.device
        wanted = torch.arange(len(tokens), device=device) if ends is None else upload(ends, device)
        return self._model.compute(
            tokens, positions, wanted, lambda layer, qkv: attention.attend(layer, qkv, step)
        )

    def _draw(self, hidden: Tensor, inputs: DrawInputs) -> Drawn:
        return draw(self._model.head(hidden), inputs, self._pool.history, self._choose)

    def _entered(self, plan: StepPlan) -> LongArray:
        """Blocks to zero."""
        if not self._attention.wants_clean_blocks:
            return np.empty(0, np.int64)
        return self._state.entered(plan)


def _nothing() -> Draws:
    return Draws(np.empty(0, np.int64))
