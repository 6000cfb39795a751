"""The step-time model: right on each kind of device, quick, and not led astray by hiccups."""

from random import Random
from timeit import timeit

import pytest

from engine.sim.profile import A10G_LLAMA2_7B, StepShape
from policies.step_time import StepTimeModel, StepWork


def linear(work: StepWork) -> float:
    shape = StepShape(
        prefill_tokens=work.prefill_tokens,
        decode_sequences=work.decode_sequences,
        context_tokens=work.context_tokens,
    )
    return A10G_LLAMA2_7B.duration(shape) / 1e9


def roofline(work: StepWork) -> float:
    """An 8B model on a card with 600 TFLOP/s and 3 TB/s: linear layers and attention overlap."""
    tokens = work.prefill_tokens + work.decode_sequences
    flops = 2 * 8e9 * tokens + 4 * 32 * 4096 * (work.prefill_context + work.context_tokens)
    bytes_moved = 2 * 8e9 + 131_072 * (work.context_tokens + work.prefill_tokens)
    return max(flops / 600e12, bytes_moved / 3e12) + 0.5e-3


def split_roofline(work: StepWork) -> float:
    """Linear layers and attention each have their own bound: no longer a maximum of two planes."""
    tokens = work.prefill_tokens + work.decode_sequences
    layers = max(2 * 8e9 * tokens / 600e12, 2 * 8e9 / 3e12)
    attention = max(
        4 * 32 * 4096 * (work.prefill_context + work.context_tokens) / 600e12,
        131_072 * work.context_tokens / 3e12,
    )
    return layers + attention + 0.5e-3


DEVICES = [linear, roofline, split_roofline]


def draw(random: Random) -> StepWork:
    decodes = random.randint(1, 256)
    context = decodes * random.randint(50, 800)
    kind = random.random()
    if kind < 0.5:
        return StepWork(decode_sequences=decodes, context_tokens=context)
    tokens = random.randint(16, 2048)
    prefill = tokens * (random.choice([0, random.randint(0, 3000)]) + tokens / 2)
    if kind < 0.9:
        return StepWork(tokens, prefill, decodes, context)
    return StepWork(tokens, prefill)


def trained(device, steps: int, *, seed: int = 0, jitter: float = 0.0) -> StepTimeModel:
    random, model = Random(seed), StepTimeModel()
    for _ in range(steps):
        work = draw(random)
        model.observe(work, device(work) * (1 + jitter * random.gauss(0, 1)))
    return model


def held_out_error(model: StepTimeModel, device) -> float:
    random = Random(99)
    works = [draw(random) for _ in range(500)]
    return sum(abs(model.predict(w) / device(w) - 1) for w in works) / len(works)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jitter", [0.0, 0.03])
def test_held_out_steps_are_predicted_within_three_percent(device, seed, jitter):
    assert held_out_error(trained(device, 600, seed=seed, jitter=jitter), device) <= 0.03


def test_it_follows_a_device_that_slows_down():
    model, random = trained(linear, 500), Random(7)
    for _ in range(4000):
        work = draw(random)
        model.observe(work, 2 * linear(work))
    assert held_out_error(model, lambda work: 2 * linear(work)) <= 0.03


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("times", "error"), [(6, 0.15), (1.4, 0.05), (1 / 1.4, 0.05), (1 / 6, 0.25)]
)
def test_a_change_of_speed_is_followed_within_fifty_steps(device, times, error):
    model, random = trained(device, 1500), Random(7)
    for speed in (times, 1):
        for _ in range(50):
            work = draw(random)
            model.observe(work, speed * device(work))
        assert held_out_error(model, lambda work, speed=speed: speed * device(work)) <= error


@pytest.mark.parametrize("device", DEVICES)
def test_a_lasting_change_of_speed_is_learned_from_steps_that_vary(device):
    model, random = trained(device, 600, jitter=0.03), Random(50)
    for _ in range(3000):
        work = draw(random)
        model.observe(work, 2 * device(work) * (1 + 0.03 * random.gauss(0, 1)))
    assert held_out_error(model, lambda work: 2 * device(work)) <= 0.04


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(2))
def test_steps_that_only_vary_are_not_taken_for_a_change_of_speed(device, seed):
    model, random = trained(device, 1500), Random(seed)
    errors = []
    for _ in range(30):
        for _ in range(10):
            work = draw(random)
            model.observe(work, device(work) * random.uniform(0.85, 1.15))
        errors.append(held_out_error(model, device))
    assert sum(errors) / len(errors) <= 0.012


def test_a_hiccup_is_set_aside_and_a_quicker_step_is_believed():
    model = trained(linear, 500)
    work = StepWork(decode_sequences=16, context_tokens=4000)
    before = model.predict(work)
    assert not model.observe(work, 20 * before)
    assert model.predict(work) == before
    assert model.observe(work, before / 2)
    assert model.predict(work) < before


def test_a_kind_of_step_that_comes_late_and_rarely_is_learned():
    """Prompts come after a long stretch of decoding, one in twenty steps."""
    model, random = StepTimeModel(), Random(3)

    def decode() -> None:
        decodes = random.randint(1, 64)
        work = StepWork(decode_sequences=decodes, context_tokens=decodes * 300)
        model.observe(work, linear(work))

    for _ in range(500):
        decode()
    for turn in range(2000):
        tokens = random.randint(16, 2048)
        work = StepWork(tokens, tokens * tokens / 2, 16, 4800)
        if turn % 20:
            decode()
        else:
            model.observe(work, linear(work))
    prompt = StepWork(512, 512 * 256, 16, 4800)
    assert model.predict(prompt) == pytest.approx(linear(prompt), rel=0.03)


def test_a_kind_of_step_that_became_slower_is_believed_after_a_while():
    """However many steps of another kind run in between."""
    model = trained(linear, 500)
    prompt, decode = StepWork(512, 512 * 256), StepWork(decode_sequences=16, context_tokens=4800)
    for _ in range(1500):
        model.observe(prompt, 3 * linear(prompt))
        model.observe(decode, linear(decode))
    assert model.predict(prompt) == pytest.approx(3 * linear(prompt), rel=0.05)


def test_nothing_is_predicted_before_anything_was_seen():
    model = StepTimeModel()
    assert (model.predict(StepWork(64)), model.steps) == (0.0, 0)
    with pytest.raises(ValueError, match="more than 0"):
        model.observe(StepWork(64), 0.0)


def test_a_prediction_is_quick():
    """At most 20 µs; a tenfold slower machine than ours still passes."""
    model, work = trained(linear, 50), StepWork(100, 5000.0, 30, 9000)
    assert min(timeit(lambda: model.predict(work), number=200) for _ in range(5)) / 200 <= 20e-6
