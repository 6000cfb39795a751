"""What one engine expects, learned from its own steps and ends: times, lengths, prices, loads."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.batch import Batch
from engine.core.config import KernelConfig
from engine.core.plan import Join, StepPlan
from policies.admission import DensityGate
from policies.load import OfferedLoad
from policies.output_length import LengthEstimate, OutputLengths
from policies.step_time import StepTimeModel, StepWork
from telemetry.events import Cause

RECENT = 0.02  # weight of a new step, or of a new entry, in a running mean
FADING = 0.998  # of what the pace is measured by, a step
BELIEF = 5.0  # seconds' worth of belief that prices are right
PROBE = 512  # tokens of the prompt by which the price of a prompt token is measured
MOST_GATES = 1024  # tenants whose arrivals are kept for the density gate
SLOWEST, FASTEST = 0.25, 4.0  # between which the pace is believed
LEAST_STEPS, LEAST_ENDS = 32, 16  # before which nothing is foretold
FINISHED = (Cause.STOP, Cause.STOP_STRING)


@dataclass(frozen=True, slots=True)
class Price:
    """Device seconds that requests take: `request` each, and `token` for every prompt token."""

    request: float
    token: float

    def of(self, requests: float, tokens: float) -> float:
        """Device seconds of so many requests with so many prompt tokens in all."""
        return self.request * requests + self.token * tokens


class Outlook:
    """The estimates that admission rests on. Times are seconds."""

    def __init__(self, config: KernelConfig, step_time: StepTimeModel, batch: Batch) -> None:
        self._config = config
        self._step_time = step_time
        self._batch = batch
        self._pool = config.num_blocks * config.block_size
        self.lengths = OutputLengths(config.max_flows)
        self.offered = OfferedLoad(config.max_flows)
        self.step_seconds = 0.0  # running mean
        self.mean_entry = 0.0  # tokens with which sequences enter, running mean
        self.mean_cap = 0.0  # output tokens that they may have, running mean
        self._gates: OrderedDict[str, DensityGate] = OrderedDict()
        self._entered = 0.0  # device seconds of work that entered backlogged steps, fading
        self._elapsed = 0.0  # seconds of those steps

    def observe_step(self, plan: StepPlan, seconds: float, backlogged: bool) -> None:
        """A step took `seconds`; `backlogged` if work was left waiting."""
        weight = RECENT if self.step_seconds else 1.0
        self.step_seconds += weight * (seconds - self.step_seconds)
        for join in plan.joined:
            weight = RECENT if self.mean_entry else 1.0
            self.mean_entry += weight * (len(join.tokens) - self.mean_entry)
            self.mean_cap += weight * (self._cap_of(join) - self.mean_cap)
        if backlogged:
            self._entered = FADING * self._entered + self._work_of(plan.joined)
            self._elapsed = FADING * self._elapsed + seconds

    def _work_of(self, joined: tuple[Join, ...]) -> float:
        """The price of what enters a step, as if each request had just arrived with its tokens."""
        if not joined:
            return 0.0
        tokens = sum(len(join.tokens) for join in joined)
        caps = sum(self._cap_of(join) for join in joined)
        return self.price(caps // len(joined), tokens // len(joined)).of(len(joined), tokens)

    def _cap_of(self, join: Join) -> int:
        return int(self._batch.limit[join.slot]) - join.prompt_length

    def observe_end(self, tenant: str, output_tokens: int, cause: Cause) -> None:
        """A sequence ended; what never spoke says nothing of lengths."""
        if output_tokens:
            self.lengths.observe(tenant, output_tokens, finished=cause in FINISHED)

    @property
    def ready(self) -> bool:
        """Whether enough was seen for predictions to mean something."""
        return self._step_time.steps >= LEAST_STEPS and self.lengths.ends >= LEAST_ENDS

    @property
    def pace(self) -> float:
        """Priced work that enters in a second while more waits; 1 where prices are right."""
        measured = (self._entered + BELIEF) / (self._elapsed + BELIEF)
        return min(FASTEST, max(SLOWEST, measured))

    def first_token_seconds(self, prompt: int) -> float:
        """The steps that compute a prompt beside the decodes that run now."""
        return sum([self._step_time.predict(step) for step in self.prompt_steps(prompt)])

    def prompt_steps(self, prompt: int) -> Iterator[StepWork]:
        """What those steps compute."""
        decodes, context = self._decodes()
        room = max(1, self._config.max_step_tokens - decodes)
        for start in range(0, prompt, room):
            count = min(room, prompt - start)
            yield StepWork(count, count * (start + count / 2), decodes, context)

    def token_seconds(self, prompt: int) -> float:
        """One more output token of a request that joins what runs now."""
        return self._step_time.predict(self.token_step(prompt))

    def token_step(self, prompt: int) -> StepWork:
        """What the step computes that brings it."""
        decodes, context = self._decodes()
        return StepWork(decode_sequences=decodes + 1, context_tokens=context + prompt)

    def cost(self, prompt: int, length: LengthEstimate, cap: int) -> float:
        """Device seconds of a request: its prompt, and its part of the pool (or of the slots) for

        as long as it is expected to run.
        """
        mean, second = length.moments(cap)
        part = max((mean * prompt + second / 2) / self._pool, mean / self._config.max_running)
        return self._prompt_seconds(prompt) + self.step_seconds * part

    def price(self, cap: int, prompt: int) -> Price:
        """The same as a line in the prompt's length, for anyone's requests.

        About right for prompts of about `prompt` tokens and output caps of about `cap`.
        """
        mean, second = self.lengths.overall().moments(cap)
        first = self._prompt_seconds(1)
        token = (self._prompt_seconds(PROBE + 1) - first) / PROBE
        slot = mean / self._config.max_running
        held, growth = mean / self._pool, second / 2 / self._pool
        if held * prompt + growth < slot:  # slots are what is scarce
            return Price(first + self.step_seconds * slot, token)
        return Price(first + self.step_seconds * growth, token + self.step_seconds * held)

    def usual_price(self) -> Price:
        """The price of requests like those that have entered."""
        cap = self.mean_cap or self._config.max_context
        return self.price(round(cap), max(1, round(self.mean_entry)))

    def gate(self, tenant: str) -> DensityGate:
        """The arrivals of a tenant, for its density gate."""
        gate = self._gates.get(tenant)
        if gate is None:
            gate = DensityGate(self._config.policy.admission.density_window)
            self._gates[tenant] = gate
            if len(self._gates) > MOST_GATES:
                self._gates.popitem(last=False)
        self._gates.move_to_end(tenant)
        return gate

    def _prompt_seconds(self, prompt: int) -> float:
        """What computing a prompt adds to a step of the decodes that run now."""
        decodes, context = self._decodes()
        base = StepWork(decode_sequences=decodes, context_tokens=context)
        mixed = StepWork(prompt, prompt * prompt / 2, decodes, context)
        return max(0.0, self._step_time.predict(mixed) - self._step_time.predict(base))

    def _decodes(self) -> tuple[int, int]:
        batch = self._batch
        return batch.running, int(batch.known[batch.ids >= 0].sum())
