"""A sequence: one decode stream, and the table of its states."""

from dataclasses import replace
from enum import StrEnum

from engine.core.commands import Submit
from engine.core.rework import Debt
from policies.fairness.tree import Flow
from telemetry.events import Cause, Phase

DONE = frozenset({Cause.STOP, Cause.STOP_STRING, Cause.LENGTH})
OVERDUE = frozenset({Cause.DEADLINE, Cause.PARTIAL, Cause.FIRST_TOKEN_DEADLINE})


class State(StrEnum):
    """Life of a sequence. There is no prefill or decode state: both compute tokens."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"  # waits again with its KV; only its slot is given up
    PREEMPTED = "preempted"  # waits again; its KV is dropped or on the host
    ENDED = "ended"


TRANSITIONS = frozenset(
    {
        (State.WAITING, State.RUNNING),
        (State.WAITING, State.ENDED),
        (State.RUNNING, State.PAUSED),
        (State.RUNNING, State.PREEMPTED),
        (State.PAUSED, State.RUNNING),
        (State.PAUSED, State.PREEMPTED),
        (State.PAUSED, State.ENDED),
        (State.RUNNING, State.ENDED),
        (State.PREEMPTED, State.RUNNING),
        (State.PREEMPTED, State.ENDED),
    }
)


class Group:
    """The choices of one request. The first to run computes the prompt; the others fork from it.

    `paid` is the number of prompt positions computed (and charged) so far by any of them.
    """

    __slots__ = ("forks", "leader", "paid")

    def __init__(self) -> None:
        self.leader: Sequence | None = None
        self.forks: list[Sequence] = []  # choices that wait for the leader's prompt
        self.paid = 0


class Sequence:
    """What the kernel knows of one sequence while it lives.

    While it runs, its counters live in the batch arrays at `slot`; `tokens` (int32) is brought up
    to date when it leaves the batch, and so is `computed`, the number of its positions whose KV is
    in `blocks` or `host_blocks`. `computed_before` is how far it ever got, so that recomputed
    positions are told from new ones. `prepaid` output tokens were charged at admission. It stands
    in line `since` it arrived, or since its caller was promised the place, and before all others
    while it is `pressing`; `on_trial` it was let in although it was predicted to be late. `hashes`
    covers its full blocks as far as known, `sealed` how many of `blocks` are published under
    theirs.
    """

    __slots__ = (
        "admitted",
        "arrived",
        "blocks",
        "bypassed",
        "cached_tokens",
        "claims",
        "computed",
        "computed_before",
        "deadline",
        "debts",
        "first_token",
        "first_token_deadline",
        "flow",
        "group",
        "hashes",
        "host_blocks",
        "id",
        "lineage",
        "max_tokens",
        "on_expiry",
        "on_trial",
        "prepaid",
        "pressing",
        "prompt_length",
        "recomputed",
        "salt",
        "sampling",
        "sealed",
        "since",
        "slot",
        "state",
        "tokens",
        "tpot_target",
    )

    def __init__(
        self, submit: Submit, choice: int, *, flow: Flow, group: Group, arrived: int
    ) -> None:
        self.id = submit.sequences[choice]
        self.lineage = submit.lineage
        self.flow = flow
        self.group = group
        self.tokens = submit.prompt
        self.prompt_length = len(submit.prompt)
        self.salt = submit.salt
        self.hashes = list(submit.block_hashes)
        self.sealed = 0
        self.max_tokens = submit.max_tokens
        self.sampling = submit.sampling
        if choice:
            self.sampling = replace(submit.sampling, seed=submit.sampling.seed + choice)
        self.deadline = submit.deadline
        self.first_token_deadline = submit.first_token_deadline
        self.tpot_target = submit.tpot_target
        self.on_expiry = submit.on_expiry
        self.arrived = arrived
        self.since = arrived
        self.claims = submit.claims
        self.pressing = False
        self.on_trial = False
        self.state = State.WAITING
        self.slot = -1
        self.blocks: list[int] = []
        self.cached_tokens = 0
        self.computed = 0
        self.computed_before = 0
        self.host_blocks: list[int] = []
        self.prepaid = 0
        self.recomputed = 0
        self.bypassed = 0
        self.debts: list[Debt] = []
        self.admitted: int | None = None
        self.first_token: int | None = None

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.state}, {self.prompt_length} + {self.max_tokens} tokens>"

    @property
    def output_tokens(self) -> int:
        """Output tokens so far; up to date while the sequence is out of the batch."""
        return len(self.tokens) - self.prompt_length

    @property
    def urgency(self) -> int | None:
        """The deadline that presses now, in monotonic nanoseconds."""
        if self.first_token is not None or self.first_token_deadline is None:
            return self.deadline
        if self.deadline is None:
            return self.first_token_deadline
        return min(self.first_token_deadline, self.deadline)

    @property
    def phase(self) -> Phase:
        """Where it stands, as told to people."""
        if self.state is not State.RUNNING:
            return Phase.QUEUED
        return Phase.PREFILL if self.first_token is None else Phase.DECODE

    def kept_deadlines(self, cause: Cause, now: int) -> bool | None:
        """Whether it did, if it ends at `now` for `cause`; None if that has nothing to do with it.

        What is done may be late all the same: deadlines end sequences before a step, not after.
        """
        if cause not in DONE:
            return False if cause in OVERDUE else None
        moments = ((now, self.deadline), (self.first_token, self.first_token_deadline))
        return all(due is None or (at is not None and at <= due) for at, due in moments)

    def move(self, state: State) -> None:
        """The only place where a state changes."""
        if (self.state, state) not in TRANSITIONS:
            raise ValueError(f"sequence {self.id} cannot go from {self.state} to {state}")
        self.state = state
