"""Where the time of one sequence went: named parts that sum exactly to its latency."""

from dataclasses import dataclass, replace
from enum import StrEnum

from telemetry.events import Cause, PreemptMode, PreemptReason
from telemetry.lineage import Lineage


class Part(StrEnum):
    """What a sequence was doing or waiting for. At every instant it is exactly one of these."""

    GATEWAY = "gateway_wait"
    """From the call's arrival at the edge (its head was read) until the kernel took it in: reading
    the body, checking, tokenising, the engine's mailbox."""

    OWN_FLOW = "queued_behind_own_flow"
    """Not admitted yet, while others of its own flow stood before it: up to the last time that one
    of them was let in before it, and while another was the first waiter of its stalled flow."""

    OTHERS = "queued_behind_share_of_others"
    """Not admitted yet, nobody of its own flow before it, and by fairness it was other flows' turn
    for what room there was."""

    KV = "waiting_for_kv"
    """Not admitted yet, and next in line, but its KV blocks were not to be had."""

    ROOM = "waiting_for_slots_or_budget"
    """Not admitted yet, and next in line, but the batch was full or the step's token budget used
    up. Also from its arrival to the first step planned after it: the one under way was full."""

    PREFILL = "prefill_computing"
    """In the step that was computing, before its first output token."""

    INTERLEAVED = "prefill_interleaved"
    """Admitted and before its first output token, but not in the step that was computing: it waited
    for its next chunk, or was paused."""

    DECODE = "decode_computing"
    """In the step that was computing, after its first output token."""

    PAUSED = "decode_paused"
    """After its first output token and with its KV in place, but not in the step that was
    computing: its slot had been taken, or there was no block to grow into."""

    PREEMPTED = "preempted_and_recomputing"
    """From losing its KV (dropped, or moved to the host) until it was back and had computed again
    what it had lost, steps of other work in between included."""

    DELIVERY = "delivery"
    """From its end in the kernel until the last byte of the call's answer was written; where the
    call has several choices, this includes waiting for the others to end."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A place that was taken back, and its bill."""

    at: int  # monotonic ns
    reason: PreemptReason
    mode: PreemptMode
    billed: tuple[str, ...]
    tokens_lost: int
    swapped_blocks: int


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The life of one sequence. Times are monotonic ns, parts ns; every part is listed.

    `received` and `answered` are those of its call, None where no gateway took part or it is not
    over; `ended` is None while it lives, and then the parts reach up to `until`. `served` are the
    prompt and output tokens that each flow was charged for while this one was not admitted yet.
    `lag_tokens` were in flight for it when it ended. Of `taken` only the last few are kept.
    """

    sequence: int
    lineage: Lineage
    flow: tuple[str, ...]
    cause: Cause | None
    received: int | None
    arrived: int
    ended: int | None
    answered: int | None
    until: int
    parts: dict[Part, int]
    steps: int  # that it was part of
    times_taken: int
    taken: tuple[Taken, ...]
    lag_tokens: int
    served: dict[tuple[str, ...], int]

    @property
    def latency(self) -> int:
        """From the call's arrival (the sequence's, without a gateway) to its last byte, or so far.

        The sum of all parts.
        """
        return self.until - (self.arrived if self.received is None else self.received)

    def delivered(self, now: int) -> "Waterfall":
        """The same with its delivery, once its call was answered at `now`.

        A caller who has left is not waited for: then the kernel's end comes last.
        """
        until = max(self.until, now)
        parts = self.parts | {Part.DELIVERY: until - self.until}
        return replace(self, answered=now, until=until, parts=parts)
