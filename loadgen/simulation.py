"""The production scheduler in virtual time, fed by an open-loop list of arrivals.

Requests reach the kernel as they do in production: at the first step boundary after they arrive,
with that boundary as `now`. Latencies are counted from the real arrival, which lies up to one step
earlier. While nothing can be computed the clock jumps to the next arrival or to the next instant
at which the scheduler itself wants to be woken.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from engine.core.commands import Submit
from engine.core.config import KernelConfig
from engine.core.loop import EngineLoop
from engine.core.loop import Recorder as Journal
from engine.core.plan import Sampling
from engine.core.scheduler import Scheduler
from engine.sim.executor import SimExecutor
from engine.sim.profile import CostProfile
from engine.sim.tokens import TrueLengths
from loadgen.meter import ReworkMeter
from loadgen.prefixes import prompt_hashes
from loadgen.record import Recorder
from loadgen.scenario import LengthKnowledge, Returns
from loadgen.workload import Request, Workload
from telemetry.clock import VirtualClock
from telemetry.events import Event, SequenceRefused
from telemetry.lineage import Lineage
from telemetry.units import SECOND

STOPS = Sampling(temperature=0.0, stop_token_ids=(TrueLengths.STOP,))
RUNS_ON = Sampling(temperature=0.0)


class StuckError(Exception):
    """Work is left that neither an arrival nor the passing of time would ever move."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a run treats its requests; see `loadgen.scenario.Scenario`."""

    lengths: LengthKnowledge = "declared"
    cap: int = 1024
    until: int | None = None  # nanoseconds; None runs until all work is done
    returns: Returns = field(default_factory=Returns)
    seed: int = 0


class Simulation:
    """One run. `recorder` is filled as it goes; `watch` sees every batch of events besides, and

    `journal` all that is done to the kernel. `lengths` are the true ones, by sequence.
    """

    def __init__(
        self,
        workload: Workload,
        kernel: KernelConfig,
        profile: CostProfile,
        rules: Rules,
        watch: Callable[[list[Event]], None] | None = None,
        journal: Journal | None = None,
    ) -> None:
        meter = ReworkMeter(profile)
        self.recorder = Recorder(workload.flows, meter)
        self.clock = VirtualClock()
        self.scheduler = Scheduler(kernel)
        self.lengths: dict[int, int] = {}
        source = TrueLengths(self.lengths, kernel.max_running)
        executor = SimExecutor(meter, source, self.clock.advance, block_size=kernel.block_size)
        self._loop = EngineLoop(self.scheduler, executor, self.clock.now, journal)
        self.workload = workload
        self._rules = rules
        self._watch = watch
        self._order = count()  # of arrivals at one instant
        self._arrivals = [(one.arrival, next(self._order), one) for one in workload.requests]
        heapify(self._arrivals)
        self._next_sequence = 1
        self._random = np.random.default_rng([rules.seed, 7])
        longest = max(request.prompt for request in workload.requests)
        self._prompt = np.full(longest, TrueLengths.WORD, np.int32)

    def run(self) -> Recorder:
        """Run to the end. Raises StuckError."""
        for _ in self.steps():
            pass
        return self.recorder

    def steps(self) -> Iterator[None]:
        """Run to the end, one step of the model (or one jump over idle time) at a time."""
        until = self._rules.until
        while until is None or self.clock.now() < until:
            worked = self._loop.iterate(self._due())
            self._collect()
            if not worked and not self._skip(until):
                return
            yield

    def _skip(self, until: int | None) -> bool:
        """Let time pass to the next instant at which anything can happen; False if none comes."""
        now = self.clock.now()
        if not self._arrivals and not self.scheduler.live():
            return False
        wakeup = self.scheduler.next_wakeup(now)
        instants = [self._arrivals[0][0]] if self._arrivals else []
        if wakeup is not None:
            instants.append(wakeup)
        if not instants:
            raise StuckError(f"nothing will ever move {self.scheduler!r}")
        instant = max(min(instants), now + 1)
        self.clock.advance_to(instant if until is None else min(instant, until))
        return True

    def _due(self) -> list[Submit]:
        """The requests that have arrived by now."""
        now = self.clock.now()
        due = []
        while self._arrivals and self._arrivals[0][0] <= now:
            due.append(self._submit(heappop(self._arrivals)[2]))
        return due

    def _submit(self, request: Request) -> Submit:
        number = self._next_sequence
        self._next_sequence += 1
        self.lengths[number] = request.output
        self.recorder.expect(number, request)
        flow = self.workload.flows[request.client]
        declared = self._rules.lengths == "declared"
        return Submit(
            lineage=Lineage(
                flow[0].name, f"task-{request.origin}", "run", "attempt", f"request-{number}"
            ),
            sequences=(number,),
            flow=flow,
            prompt=self._prompt[: request.prompt],
            salt=number.to_bytes(8, "little"),  # what is not said to be shared is not
            block_hashes=prompt_hashes(request, number, self.scheduler.config.block_size),
            max_tokens=request.output if declared else self._rules.cap,
            sampling=RUNS_ON if declared else STOPS,
            deadline=request.deadline,
            first_token_deadline=request.first_token_deadline,
            claims=(f"task-{request.origin}",),
            retry=request.attempt > 0,
        )

    def _collect(self) -> None:
        self.scheduler.take_outputs()
        events = self.scheduler.take_events()
        self.recorder.fold(events)
        if self._watch is not None:
            self._watch(events)
        if self._rules.returns.most:
            self._return(event for event in events if isinstance(event, SequenceRefused))

    def _return(self, refusals: Iterable[SequenceRefused]) -> None:
        returns = self._rules.returns
        for event in refusals:
            request = self.recorder.fates[event.sequence].request
            if event.retry_after is None or request.attempt >= returns.most:
                continue
            jitter = int(self._random.random() * returns.jitter * SECOND)
            again = request.again(event.now + event.retry_after + jitter)
            heappush(self._arrivals, (again.arrival, next(self._order), again))
