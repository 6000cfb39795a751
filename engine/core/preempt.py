"""Taking running work back: its slot alone (pause), or its KV too (swap to the host, recompute)."""

from engine.core.plan import Transfer
from engine.core.preemption_cost import recompute_cost
from engine.core.rework import Move, incur
from engine.core.sequence import Sequence, State
from engine.core.state import KernelState
from telemetry.events import PreemptMode, PreemptReason, SequencePreempted


def pause(
    state: KernelState, victim: Sequence, reason: PreemptReason, beneficiary: Sequence, now: int
) -> None:
    """Take a running sequence's slot; its KV stays where it is."""
    scheduled = _scheduled(state, victim)
    state.leave_batch(victim)
    _bill(state, victim, range(victim.computed, scheduled), beneficiary)
    victim.move(State.PAUSED)
    state.paused[victim.id] = victim
    _wait_again(state, victim, now)
    _report(state, victim, reason, PreemptMode.PAUSE, beneficiary, now)


def preempt(
    state: KernelState,
    victim: Sequence,
    reason: PreemptReason,
    beneficiary: Sequence | None,
    now: int,
) -> None:
    """Take the KV of a running or paused sequence, and its slot if it has one.

    It waits again, before fresh peers. Whoever needed the room pays for the recompute.
    """
    was_running = victim.state is State.RUNNING
    end = _scheduled(state, victim)
    if was_running:
        state.leave_batch(victim)
    mode = mode_for(state, victim.computed)
    predicted = recompute_cost(state, victim.computed) if mode is PreemptMode.RECOMPUTE else 0
    moved = _swap_out(state, victim, beneficiary or victim) if mode is PreemptMode.SWAP else 0
    lost = 0 if moved else victim.computed
    freed = state.release_blocks(victim)
    if not moved:
        victim.computed = 0
    _bill(state, victim, range(victim.computed, end), beneficiary)
    if was_running:
        victim.move(State.PREEMPTED)
        _wait_again(state, victim, now)
    else:
        del state.paused[victim.id]
        victim.move(State.PREEMPTED)
    _report(state, victim, reason, mode, beneficiary, now, lost, freed, moved, predicted)


def _scheduled(state: KernelState, victim: Sequence) -> int:
    """Positions whose KV it has, those of steps in flight included."""
    running = victim.state is State.RUNNING
    return int(state.batch.scheduled[victim.slot]) if running else victim.computed


def _bill(state: KernelState, victim: Sequence, lost: range, beneficiary: Sequence | None) -> None:
    incur(state.tree, state.cost, victim, lost, beneficiary or victim)


def computed_of(state: KernelState, sequence: Sequence) -> int:
    """Positions of a running or paused sequence whose KV is there."""
    running = sequence.state is State.RUNNING
    return int(state.batch.computed[sequence.slot]) if running else sequence.computed


def mode_for(state: KernelState, computed: int) -> PreemptMode:
    """How KV of `computed` positions is taken: whichever costs less time, where both can be.

    That is two moves, or computing it again.
    """
    wanted = state.config.policy.preemption
    blocks = state.ledger.blocks_for(computed)
    if wanted == "recompute" or not blocks or state.host.free < blocks:
        return PreemptMode.RECOMPUTE
    moving = 2 * blocks * state.config.host_block_ns
    computing = recompute_cost(state, computed)
    cheaper = moving <= computing or not computing
    return PreemptMode.SWAP if wanted == "swap" or cheaper else PreemptMode.RECOMPUTE


def _wait_again(state: KernelState, victim: Sequence, now: int) -> None:
    state.waiting.count(victim)
    state.queue(victim, now)
    state.promote_fork(victim.group, victim, now)


def _swap_out(state: KernelState, victim: Sequence, causer: Sequence) -> int:
    blocks = victim.blocks[: state.ledger.blocks_for(victim.computed)]
    victim.host_blocks = state.host.take(len(blocks))
    state.transfers.extend(
        Transfer(device_block=device, host_block=host, to_host=True)
        for device, host in zip(blocks, victim.host_blocks, strict=True)
    )
    state.moves.append(Move(causer.flow, causer.lineage, len(blocks)))
    return len(blocks)


def _report(
    state: KernelState,
    victim: Sequence,
    reason: PreemptReason,
    mode: PreemptMode,
    beneficiary: Sequence | None,
    now: int,
    lost: int = 0,
    freed: int = 0,
    moved: int = 0,
    predicted: int = 0,
) -> None:
    payer = victim.flow if beneficiary is None else beneficiary.flow
    event = SequencePreempted(
        now=now,
        sequence=victim.id,
        reason=reason,
        beneficiary=None if beneficiary is None else beneficiary.id,
        billed=payer.path,
        tokens_lost=lost,
        blocks_freed=freed,
        mode=mode,
        swapped_blocks=moved,
        predicted_cost=predicted,
    )
    if moved:
        state.leaving.append((len(state.events), event))
    state.emit(event)
