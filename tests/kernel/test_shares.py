"""Two backlogged tenants of weights 3 and 1 get service in that ratio, in every window."""

import numpy as np
import pytest

from telemetry.billing_events import ServiceCharged
from telemetry.events import (
    SequenceEnded,
)
from tests.kernel.world import World, config

STEPS, WARM_UP, WINDOW = 1100, 500, 200
WEIGHTS = {"gold": 3.0, "bronze": 1.0}


def service_by_step(budget: int) -> np.ndarray:
    """Cost units each tenant received in each step, shape [steps, 2], always backlogged."""
    kernel = config(num_blocks=2000, max_running=64, max_step_tokens=budget, min_chunk=32)
    world = World(kernel)
    world.scheduler.verify = lambda: None  # the laws have tests of their own; this one is long
    owner: dict[int, str] = {}

    def submit(tenant: str) -> None:
        prompt = [(len(owner) * 37 + i) % 997 for i in range(64)]
        (number,) = world.submit(tenant, prompt, 64, weight=WEIGHTS[tenant])
        owner[number] = tenant

    for tenant in WEIGHTS:
        for _ in range(96):
            submit(tenant)
    rows = []
    for _ in range(STEPS):
        world.events.clear()
        world.step()
        row = dict.fromkeys(WEIGHTS, 0.0)
        for event in list(world.events):
            if isinstance(event, ServiceCharged):
                for bill in event.charges():
                    row[bill.flow[0]] += bill.prompt_tokens + 2 * bill.output_tokens
            elif isinstance(event, SequenceEnded):
                submit(owner[event.sequence])
        rows.append([row["gold"], row["bronze"]])
    return np.array(rows)


@pytest.mark.parametrize("budget", [256, 512])
def test_every_window_of_200_steps_is_within_2_percent_of_3_to_1(budget):
    served = service_by_step(budget)
    sums = np.vstack([[0.0, 0.0], np.cumsum(served, axis=0)])
    starts = np.arange(WARM_UP, STEPS - WINDOW + 1)
    windows = sums[starts + WINDOW] - sums[starts]
    ratios = windows[:, 0] / windows[:, 1]
    assert ratios.min() >= 3.0 * 0.98
    assert ratios.max() <= 3.0 * 1.02
