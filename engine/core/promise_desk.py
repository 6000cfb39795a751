"""Promises in the kernel: booked with a refusal, claimed on return, lapsed in between."""

from collections.abc import Sequence

from engine.core.commands import Submit
from engine.core.state import KernelState
from policies.promises import Path, Promise
from telemetry.admission_events import PromiseBooked, PromiseClaimed, PromiseLapsed


def lapse(state: KernelState, now: int) -> None:
    """Give up the places that nobody came for."""
    for promise in state.promises.lapse(now):
        flow = state.tree.find(promise.flow)
        if flow is not None:
            state.note_departure(flow, promise.tokens, now)
        state.emit(PromiseLapsed(now, promise.number, promise.flow, promise.due))


def claim(state: KernelState, submit: Submit, flow: Path, now: int) -> Promise | None:
    """The place held for a caller who returned, if one is."""
    lapse(state, now)
    promise = state.promises.claim(flow, submit.claims, now, retry=submit.retry)
    if promise is not None:
        sequence = submit.sequences[0]
        state.emit(PromiseClaimed(now, promise.number, sequence, flow, promise.due))
    return promise


def standing(state: KernelState, submit: Submit, flow: Path) -> Promise | None:
    """The place of a caller who returned too early."""
    return state.promises.find(flow, submit.claims) if submit.retry else None


def book(
    state: KernelState,
    flow: Path,
    names: tuple[str, ...],
    sequences: Sequence[int],
    tokens: int,
    due: int,
    now: int,
) -> bool:
    """Hold a place for `sequences` with `tokens` prompt tokens in all; False if none can be."""
    promise = state.promises.book(flow, names, due, now, len(sequences), tokens)
    if promise is None:
        return False
    state.emit(PromiseBooked(now, promise.number, sequences[0], flow, due))
    return True
