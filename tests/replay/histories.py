"""Random histories of a kernel, with callers who go on from what they were answered."""

from hypothesis import strategies as st

from engine.core.commands import Abort, Cancel, ExecutorLost, Finish
from engine.core.loop import EngineLoop
from engine.core.plan import Sampling
from engine.sim.executor import SimExecutor
from engine.sim.profile import A10G_LLAMA2_7B
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from telemetry.events import Cause
from telemetry.lineage import Scope
from tests.kernel.bursts import bursts
from tests.kernel.world import config, won
from tests.replay.recorded import RecordedWorld

STOPS = Sampling(temperature=0.0, stop_token_ids=(17, 48, 79), min_tokens=2)

ARRIVALS = st.tuples(
    st.just("arrive"),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 70),  # prompt tokens
    st.integers(1, 40),  # output tokens
    st.integers(1, 3),  # choices
    st.one_of(st.none(), st.integers(1, 2_000)),  # deadline in ms from now
    st.booleans(),  # with stop tokens
    st.sampled_from(["a1", "a2"]),  # attempt
)
ACTIONS = st.one_of(
    st.tuples(st.just("follow"), st.integers(1, 30), st.integers(0, 20), st.integers(1, 30)),
    st.tuples(st.just("steps"), st.integers(1, 12)),
    st.tuples(st.just("abort"), st.integers(1, 30)),
    st.tuples(st.just("finish"), st.integers(1, 30), st.integers(1, 5)),
    st.tuples(st.just("cancel"), st.sampled_from(["a", "b"]), st.booleans()),
    st.tuples(st.just("win"), st.sampled_from(["a", "b"]), st.sampled_from(["a1", "a2"])),
    st.just(("lost",)),
)
HISTORIES = bursts(ARRIVALS, ACTIONS)


class Talk(RecordedWorld):
    """Callers who also go on from what they were answered, so that generated blocks are found."""

    def __init__(self, kernel) -> None:
        super().__init__(kernel)
        self.use(
            SimExecutor(
                A10G_LLAMA2_7B, _draw, self.clock.advance, block_size=self.config.block_size
            )
        )
        self.prompts: dict[int, tuple[str, list[int]]] = {}

    def say(self, tenant: str, prompt: list[int], output: int, **more) -> None:
        for number in self.submit(tenant, prompt, output, **more):
            self.prompts[number] = (tenant, prompt)

    def play(self, actions) -> None:
        for action in actions:
            match action:
                case ("arrive", tenant, prompt, output, n, timeout, stops, attempt):
                    deadline = timeout and self.clock.now() + timeout * 1_000_000
                    tokens = [7 + prompt % 3] * prompt
                    more = {"sampling": STOPS} if stops else {}
                    more |= {"n": n, "deadline": deadline, "attempt": attempt}
                    self.say(tenant, tokens, output, **more)
                case ("follow", number, more, output) if self.prompts:
                    number = 1 + number % len(self.prompts)
                    tenant, prompt = self.prompts[number]
                    self.say(tenant, [*prompt, *self.tokens[number], *[5] * more], output)
                case ("steps", count):
                    for _ in range(count):
                        self.step()
                case ("abort", number):
                    self.apply(Abort((number,), Cause.DISCONNECTED))
                case ("finish", number, keep):
                    if number in self.tokens and number not in self.ended:
                        self.apply(Finish(number, min(keep, len(self.tokens[number]))))
                case ("cancel", tenant, remember):
                    self.apply(Cancel(Scope(tenant, "task"), remember=remember))
                case ("win", tenant, attempt):
                    self.apply(won(tenant, "task", attempt))
                case ("lost",):
                    self.lose()
        self.run()

    def lose(self) -> None:
        """The executor dies with what it holds, as the host would tell; a new one goes on."""
        self.apply(ExecutorLost("cable cut"))
        recorder = self.recorder
        self.use(
            SimExecutor(
                A10G_LLAMA2_7B, _draw, self.clock.advance, block_size=self.config.block_size
            )
        )
        self.recorder = recorder
        self.loop = EngineLoop(self.scheduler, self.executor, self.clock.now, recorder)


def _draw(join, index: int) -> int:
    """Choices differ, and so do prompts; everything comes again."""
    return (int(join.tokens[0]) + join.sampling.seed * 7 + index * 31) % 97


KERNELS = st.builds(
    lambda blocks, slots, flight, drafts, fairness, ordering, host, tombstones: config(
        num_blocks=blocks,
        max_running=slots,
        max_step_tokens=72,
        max_in_flight=flight,
        draft_tokens=drafts,
        block_size=8,
        host_blocks=host,
        max_tombstones=tombstones,
        policy=PolicyConfig(
            fairness=FairnessConfig(fairness, max_lag=60.0, quantum=50.0), ordering=ordering
        ),
    ),
    blocks=st.integers(18, 60),
    slots=st.integers(1, 8),
    flight=st.sampled_from([1, 2]),
    drafts=st.sampled_from([0, 3]),
    fairness=st.sampled_from(["fair", "fcfs", "vtc", "dlpm", "priority"]),
    ordering=st.sampled_from(["edf", "fcfs", "prefix", "sjf"]),
    host=st.sampled_from([0, 30]),
    tombstones=st.sampled_from([1, 4096]),
)
