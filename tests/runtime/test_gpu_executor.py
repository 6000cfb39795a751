"""The overlapped executor on an asynchronous fake device: its text is the serial executor's."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from engine.core.plan import Sampling, Transfer
from engine.runtime.executor import TorchExecutor
from engine.runtime.gpu.build import fake_executor
from engine.runtime.gpu.graphs import buckets
from telemetry.events import Cause, PreemptMode, SequenceForked, SequencePreempted
from tests.kernel.world import World, won
from tests.runtime.driver import (
    Row,
    generate,
    join,
    plan,
    run,
    tiny_config,
    tiny_model,
)
from tests.runtime.test_sampler import Broken

MODEL = tiny_model()
SMALL = replace(
    tiny_config(num_blocks=24, max_running=6, max_step_tokens=48, host_blocks=12), min_chunk=8
)


def overlapped(config, seed, **options):
    made = fake_executor(MODEL, config, seed, **options)
    made.cache.blocks.copy_(torch.tensor(math.nan))  # nothing may depend on what it holds at first
    made.warm_up()
    return made


class EvenAfterOdd:
    def allowed(self, output):
        return range(0, 90, 2) if output and output[-1] % 2 else range(1, 90, 2)


def some_sampling(random: Random) -> Sampling:
    return Sampling(
        temperature=random.choice([0.0, 0.0, 0.7, 1.3]),
        top_p=random.choice([1.0, 0.8]),
        top_k=random.choice([0, 0, 20]),
        min_p=random.choice([0.0, 0.05]),
        presence_penalty=random.choice([0.0, 0.0, 0.5]),
        repetition_penalty=random.choice([1.0, 1.0, 1.2]),
        logit_bias=random.choice([(), ((3, 2.0),)]),
        seed=random.randrange(1 << 40),
        logprobs=random.choice([None, None, 0, 3]),
        min_tokens=random.choice([0, 2]),
        stop_token_ids=random.choice([(), (5, 6, 7)]),
        constraint=random.choice([None, None, None, EvenAfterOdd()]),
    )


def history(world: World, seed: int) -> World:
    """Arrivals, forks, common prefixes, forced preemptions and cancellations by chance."""
    random, chance = Random(seed), Random(seed)  # what arrives is the same however long it takes
    shared = [random.randrange(97) for _ in range(40)]
    for number in range(12):
        prompt = shared[: random.choice([0, 20, 40])]
        prompt += [random.randrange(97) for _ in range(random.randint(1, 40))]
        world.submit(
            random.choice("ab"),
            prompt,
            random.randint(1, 25),
            n=random.choice([1, 1, 3]),
            sampling=some_sampling(random),
            task=f"task-{number}",
        )
        for _ in range(random.randint(0, 6)):
            world.step()
            for sequence in world.scheduler.live():
                if chance.random() < 0.05:
                    world.scheduler.preempt(sequence, world.clock.now())
        if number % 4 == 3:
            world.apply(won("a", f"task-{number}", "another"))
    world.run()
    world.check_idle()
    return world


def assert_same_texts(one: World, other: World) -> None:
    assert set(one.ended) == set(other.ended)
    for sequence, ended in one.ended.items():
        mine, theirs = one.tokens[sequence], other.tokens[sequence]
        if Cause.LOST_RACE in (ended.cause, other.ended[sequence].cause):
            common = min(len(mine), len(theirs))  # how far they came is a matter of time
            assert mine[:common] == theirs[:common]
        else:
            assert (ended.cause, mine) == (other.ended[sequence].cause, theirs)


@pytest.mark.parametrize("seed", [3, 5])
def test_overlapped_text_is_serial_text_whatever_happens(seed):
    serial = history(World(SMALL, executor=TorchExecutor(MODEL, SMALL)), seed)
    config = replace(SMALL, max_in_flight=2)
    late = history(World(config, executor=overlapped(config, seed)), seed)
    assert_same_texts(serial, late)
    assert late.of(SequenceForked)
    assert PreemptMode.SWAP in {event.mode for event in late.of(SequencePreempted)}


@pytest.mark.parametrize("form", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_overlapped_text_is_serial_text_with_an_8_bit_cache(form):
    """Copies, swaps and graphs move its bits; its serial text is not that of the exact cache."""
    serial = fake_executor(MODEL, SMALL, graphs=False, kv_dtype=form)
    one = history(World(SMALL, executor=serial), 3)
    config = replace(SMALL, max_in_flight=2)
    late = history(World(config, executor=overlapped(config, 3, kv_dtype=form)), 3)
    assert late.of(SequenceForked)
    assert PreemptMode.SWAP in {event.mode for event in late.of(SequencePreempted)}
    assert_same_texts(one, late)
    exact = history(World(SMALL, executor=TorchExecutor(MODEL, SMALL)), 3)
    assert exact.tokens != one.tokens


def test_one_step_at_a_time_and_without_graphs_the_text_is_the_same():
    serial = history(World(SMALL, executor=TorchExecutor(MODEL, SMALL)), 9)
    for executor in (overlapped(SMALL, 9), overlapped(SMALL, None, graphs=False)):
        assert_same_texts(serial, history(World(SMALL, executor=executor), 9))


PROMPTS = [np.random.default_rng(0).integers(0, 97, n).tolist() for n in (5, 33, 17)]
GREEDY_TEXTS = [
    text.output
    for text in generate(TorchExecutor(MODEL, tiny_config()), tiny_config(), PROMPTS, new_tokens=6)
]


def test_a_step_finds_the_token_that_the_host_has_not_seen():
    made = overlapped(tiny_config(), 1)
    first = made.launch(plan([Row(0, 0, 5)], joined=(join(0, PROMPTS[0], [3]),)))
    second = made.launch(plan([Row(0, 5, 1)]))
    with pytest.raises(ValueError, match="step 7 would be one more than 2 in flight"):
        made.launch(plan([Row(0, 6, 1)], step=7))
    with pytest.raises(ValueError, match="is not the oldest in flight"):
        made.wait(second)
    tokens = [made.wait(ticket).tokens[0] for ticket in (first, second)]
    assert tokens == GREEDY_TEXTS[0][:2]


class Sees:
    """A constraint that notes what it is shown."""

    def __init__(self):
        self.output = None

    def allowed(self, output):
        self.output = list(output)
        return range(97)


def test_a_late_token_is_not_taken_for_the_next_sequences():
    """Slot 0 changes hands while a draw of its first sequence is in flight."""
    made, seen = overlapped(tiny_config(), 2), Sees()
    first = made.launch(plan([Row(0, 0, 5)], joined=(join(0, PROMPTS[0], [3]),)))
    resumed = join(0, [1, 2, 3, 4, 11, 12, 13], [4], Sampling(constraint=seen), prompt=4)
    second = made.launch(plan([Row(0, 0, 7, samples=False)], left=(0,), joined=(resumed,)))
    assert made.wait(first).tokens.tolist() == GREEDY_TEXTS[0][:1]
    made.launch(plan([Row(0, 6, 1)]))
    assert seen.output == [11, 12, 13]
    assert not len(made.wait(second).tokens)


class Never:
    """A coin that leaves all work for later."""

    def randint(self, low, high):
        return low

    def choice(self, options):
        return options[0]


def test_a_choice_moves_to_the_host_only_once_its_prompt_is_computed():
    """It owns blocks that a step in flight still writes: its sibling's row, and its own copy."""
    prompt = PROMPTS[2]
    made = overlapped(tiny_config(host_blocks=2), None)
    made._main._chance = Never()  # moves would be done at once
    joins = (join(0, prompt, [10, 20]), join(1, prompt, [10, 21]))
    rows = [Row(0, 0, 17), Row(1, 17, 0, logits=0)]
    first = made.launch(plan(rows, joined=joins, copies=((20, 21),)))
    out = (Transfer(10, 0, True), Transfer(21, 1, True))
    second = made.launch(plan([Row(0, 17, 1)], left=(1,), transfers=out))
    assert made.wait(first).tokens.tolist() == GREEDY_TEXTS[2][:1] * 2
    assert made.wait(second).tokens.tolist() == GREEDY_TEXTS[2][1:2]
    back = (Transfer(40, 0, False), Transfer(41, 1, False))
    again = join(1, [*prompt, GREEDY_TEXTS[2][0]], [40, 41], prompt=17)
    result = run(made, plan([Row(1, 17, 1)], joined=(again,), transfers=back))
    assert result.tokens.tolist() == GREEDY_TEXTS[2][1:2]


def test_padding_writes_nowhere():
    """Three sequences decode in the graph for four; all blocks but theirs keep every bit."""
    made = overlapped(tiny_config(), 4)
    joins = tuple(
        join(i, prompt, [i * 3, i * 3 + 1, i * 3 + 2]) for i, prompt in enumerate(PROMPTS)
    )
    rows = [Row(i, 0, len(prompt)) for i, prompt in enumerate(PROMPTS)]
    run(made, plan(rows, joined=joins))
    bits = made.cache.blocks.view(torch.int32)  # NaN, which fills what nobody owns, equals nothing
    before = bits.clone()
    result = run(made, plan([Row(i, len(prompt), 1) for i, prompt in enumerate(PROMPTS)]))
    assert result.tokens.tolist() == [text[1] for text in GREEDY_TEXTS]
    changed = (bits != before).any(dim=(0, 2, 4)).nonzero().tolist()
    assert changed == [[i * 3 + len(p) // 16, len(p) % 16] for i, p in enumerate(PROMPTS)]


def test_nan_in_one_sequence_fails_it_alone():
    made = overlapped(tiny_config(), 5)
    joins = tuple(
        join(i, prompt, [i * 3, i * 3 + 1, i * 3 + 2]) for i, prompt in enumerate(PROMPTS)
    )
    run(made, plan([Row(i, 0, len(p)) for i, p in enumerate(PROMPTS)], joined=joins))
    made.cache.blocks[:, 3] = math.nan
    result = run(made, plan([Row(i, len(prompt), 1) for i, prompt in enumerate(PROMPTS)]))
    assert result.token_counts.tolist() == [1, 0, 1]
    assert result.failures[1].numerical
    assert result.tokens.tolist() == [GREEDY_TEXTS[0][1], GREEDY_TEXTS[2][1]]


def test_what_cannot_be_drawn_for_fails_its_row_alone():
    made = overlapped(tiny_config(), 6)
    broken = join(0, PROMPTS[0], [0], Sampling(constraint=Broken()))
    strange = join(1, [1, 97, 2], [1])
    joined = (broken, strange, join(2, PROMPTS[0], [2]))
    result = run(made, plan([Row(0, 0, 5), Row(1, 0, 3), Row(2, 0, 5)], joined=joined))
    assert result.token_counts.tolist() == [0, 0, 1]
    assert "constraint raised" in result.failures[0].detail
    assert result.failures[1].detail == "prompt token id 97 is outside the vocabulary of 97"
    assert result.tokens.tolist() == GREEDY_TEXTS[0][:1]


def test_a_fault_on_the_device_is_raised_by_whoever_waits():
    made = overlapped(tiny_config(host_blocks=3), None)
    with pytest.raises(ValueError, match="host block 3 is outside the pool of 3"):
        run(made, plan([], transfers=(Transfer(0, 3, True),)))


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, (1,)),
        (7, (1, 2, 4, 8)),
        (64, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)),
        (100, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112)),
    ],
)
def test_buckets(largest, sizes):
    assert buckets(largest) == sizes


def test_large_batches_are_padded_by_less_than_an_eighth_and_the_largest_run_eagerly():
    sizes = buckets(4096)
    assert (sizes[-1], len(sizes)) == (512, 31)
    for rows in range(65, 513):
        assert min(size for size in sizes if size >= rows) - rows < max(16, rows / 8)
