"""Seams that later work needs, each shown to carry its load."""

import pickle
import threading

import numpy as np
import pytest

from engine.core.blocks import BlockLedger, Hold, OutOfBlocksError
from engine.core.commands import ExternalService, FlowNode
from engine.core.hashing import block_hashes, salt_of
from engine.core.plan import Sampling, StepPlan
from engine.sim.asynchronous import AsynchronousExecutor
from engine.sim.executor import SimExecutor, counting_tokens
from engine.sim.profile import A10G_LLAMA2_7B
from telemetry.events import Cause, SequenceAdmitted, StepCommitted, StepPlanned
from tests.kernel.world import VOCABULARY, World, config


class OtherProcess:
    """Everything that crosses the seam is pickled both ways, as to another process."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def launch(self, plan: StepPlan) -> bytes:
        return pickle.dumps(self.inner.launch(pickle.loads(pickle.dumps(plan))))

    def wait(self, ticket: bytes):
        return pickle.loads(pickle.dumps(self.inner.wait(pickle.loads(ticket))))


def simulated(world_clock_advance=lambda _duration: None) -> SimExecutor:
    return SimExecutor(A10G_LLAMA2_7B, counting_tokens(VOCABULARY), world_clock_advance)


def outputs_of(world: World) -> dict[int, list[int]]:
    for tenant, prompt, output, n in (("a", 70, 9, 1), ("b", 20, 30, 3), ("a", 5, 40, 2)):
        world.submit(tenant, prompt, output, n=n)
    world.run()
    world.check_idle()
    return dict(world.tokens)


def test_plans_and_results_survive_pickling():
    assert outputs_of(World(executor=OtherProcess(simulated()))) == outputs_of(World())


class Gated:
    """A device whose step finishes only when the test opens the gate."""

    def __init__(self, inner) -> None:
        self.inner, self.gate, self.launched = inner, threading.Semaphore(0), 0

    def launch(self, plan):
        self.launched += 1
        return self.inner.launch(plan)

    def wait(self, ticket):
        assert self.gate.acquire(timeout=10)
        return self.inner.wait(ticket)


def test_a_second_step_is_planned_and_launched_while_the_first_computes():
    gated = Gated(simulated())
    device = AsynchronousExecutor(gated)
    world = World(config(max_in_flight=2), executor=device)
    (number,) = world.submit("a", 10, 3)
    world.step()
    assert [e.counts for e in world.of(StepPlanned)] == [(10,)]
    assert world.scheduler.in_flight == 1
    gated.gate.release(2)
    world.step()  # launches the first decode, then waits for the prefill
    planned = world.of(StepPlanned)
    assert [(e.starts, e.counts) for e in planned] == [((0,), (10,)), ((10,), (1,))]
    assert len(world.tokens[number]) == 1
    gated.gate.release(10)
    world.run()
    assert world.ended[number].cause is Cause.LENGTH
    assert len(world.of(StepPlanned)) == 3  # no step once the last token is certain
    device.close()


def test_overlapped_output_on_an_asynchronous_device_equals_serial_output():
    device = AsynchronousExecutor(simulated())
    assert outputs_of(World(config(max_in_flight=2), executor=device)) == outputs_of(World())
    device.close()


@pytest.mark.parametrize("host_blocks", [0, 8])
def test_a_choice_that_loses_its_place_before_its_first_token_computes_a_position(host_blocks):
    """Its sibling's logits are gone by then: its last position is computed again to draw from."""
    world = World(config(max_in_flight=2, host_blocks=host_blocks))
    leader, fork = world.submit("a", 20, 3, n=2)
    world.step()  # launched, not committed
    assert world.scheduler.in_flight == 1
    world.scheduler.preempt(fork, world.clock.now())
    world.run()
    world.check_idle()
    rows = [
        (start, count)
        for event in world.of(StepPlanned)
        for sequence, start, count in zip(event.sequences, event.starts, event.counts, strict=True)
        if sequence == fork
    ]
    assert rows[0] == (20, 0)
    assert all(count for _, count in rows[1:])
    assert rows[1][0] + rows[1][1] == 20
    assert len(world.tokens[fork]) == len(world.tokens[leader]) == 3


def test_a_slice_may_yield_several_tokens_and_roll_the_rest_back():
    """Of 3 drafts 1 is accepted each time: 2 tokens a step, the two rejected positions redone."""
    world = World(config(draft_tokens=3, max_step_tokens=64))
    (number,) = world.submit("a", 10, 9)
    world.run()
    assert len(world.tokens[number]) == 9
    assert world.tokens[number] == outputs_of_one(10, 9)
    decodes = [(e.starts[0], e.counts[0]) for e in world.of(StepPlanned)][1:]
    assert decodes[:3] == [(10, 4), (12, 4), (14, 4)]


def outputs_of_one(prompt: int, output: int) -> list[int]:
    world = World()
    (number,) = world.submit("a", prompt, output)
    world.run()
    return world.tokens[number]


def test_fenced_and_transferring_blocks_are_held_until_their_step_retires():
    ledger = BlockLedger(8, 16)
    fenced, moving = ledger.allocate(3), ledger.allocate(2)
    ledger.hold(fenced, 1, Hold.FENCE)
    ledger.hold(moving, 2, Hold.TRANSFER)
    assert (ledger.free, ledger.held, ledger.pending_release()) == (3, 5, 5)
    assert ledger.on_hold(Hold.TRANSFER) == moving
    with pytest.raises(OutOfBlocksError):
        ledger.allocate(4)
    ledger.retire(1)
    assert (ledger.free, ledger.held) == (6, 2)
    ledger.retire(2)
    assert (ledger.free, ledger.held) == (8, 0)
    ledger.verify([])


def test_a_planted_leak_is_found():
    ledger = BlockLedger(8, 16)
    owned = ledger.allocate(3)
    ledger.verify(owned)
    with pytest.raises(ValueError, match="other holders"):
        ledger.verify(owned[:2])


def test_releasing_twice_is_refused():
    ledger = BlockLedger(4, 16)
    blocks = ledger.allocate(1)
    ledger.release(blocks)
    with pytest.raises(ValueError, match="no holder"):
        ledger.release(blocks)


def test_the_cache_forgets_the_end_of_a_prefix_before_its_beginning():
    ledger = BlockLedger(4, 16)
    hashes = block_hashes(np.arange(64, dtype=np.int32), salt_of("a"), 16)
    blocks = ledger.allocate(4)
    for block, key in zip(blocks, hashes, strict=True):
        ledger.seal(block, key)
    ledger.release(blocks)
    assert ledger.match(hashes) == blocks
    ledger.allocate(1)
    assert ledger.match(hashes) == blocks[:3]


def cached_tokens(world: World, tenant: str, prompt: list[int], **fields) -> int:
    (number,) = world.submit(tenant, prompt, 2, **fields)
    world.run()
    return world.ended[number].cached_tokens


def test_cached_prefixes_are_found_by_their_owner_only():
    world = World()
    prompt = list(range(100, 150))
    assert cached_tokens(world, "a", prompt) == 0
    assert cached_tokens(world, "a", prompt) == 48
    assert cached_tokens(world, "b", prompt) == 0
    assert cached_tokens(world, "a", prompt[:20] + [7] * 30) == 16
    shared = salt_of("", "model-2")
    assert cached_tokens(world, "a", prompt, salt=shared) == 0
    assert cached_tokens(world, "b", prompt, salt=shared) == 48


def test_the_last_prompt_token_is_computed_even_when_all_of_it_is_cached():
    world = World()
    prompt = list(range(100, 132))  # exactly two blocks
    assert cached_tokens(world, "a", prompt) == 0
    assert cached_tokens(world, "a", prompt) == 16


def test_salts_are_prefix_free():
    assert salt_of("ab", "c") != salt_of("a", "bc")
    assert salt_of("a") != salt_of("a", "")


def test_service_of_another_replica_counts_against_a_flows_share():
    """Told that `a` got 500 units elsewhere, the kernel serves `b` until it has caught up."""
    world = World(config(max_running=1))
    for _ in range(4):
        world.submit("a", 10, 10)
        world.submit("b", 10, 10)
    world.apply(ExternalService((FlowNode("a"),), 500.0))
    world.run()
    order = [e.sequence for e in world.of(SequenceAdmitted)]
    assert order == [2, 4, 6, 8, 1, 3, 5, 7]


class OnlyEven:
    def allowed(self, output):
        return range(0, VOCABULARY, 2)


def test_a_constrained_sequence_waits_for_its_previous_token():
    device = AsynchronousExecutor(simulated())
    world = World(config(max_in_flight=2), executor=device)
    sampling = Sampling(temperature=0.0, constraint=OnlyEven())
    (bound,) = world.submit("a", 10, 5, sampling=sampling)
    (free,) = world.submit("a", 10, 5)
    world.run()
    device.close()
    committed: dict[int, int] = {}
    for event in world.events:
        match event:
            case StepCommitted():
                for sequence in event.sequences:
                    committed[sequence] = committed.get(sequence, 0) + 1
            case StepPlanned():
                for sequence, start in zip(event.sequences, event.starts, strict=True):
                    if sequence == bound and start:
                        assert committed[bound] == start - 9  # its token is on the host
    assert len(world.tokens[bound]) == len(world.tokens[free]) == 5
