"""Schedules whose right answer is known by hand, on the production scheduler in unit time."""

import json

import numpy as np
import pytest

from engine.sim.profile import UNIT_TIME
from loadgen.data import DEFAULT_DATA
from loadgen.simulation import Rules
from policies.config import PolicyConfig
from telemetry.units import SECOND
from tests.sim.runs import FCFS, NO_DATA, kernel, simulate

FILE = DEFAULT_DATA / "golden_schedules.json"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason=NO_DATA)


def golden() -> dict:
    return json.loads(FILE.read_text())


def run(case: dict, batching: str):
    """Prompts of one token: the first step computes it and draws the first of the tokens."""
    policy = PolicyConfig(fairness=FCFS, batching=batching)
    slots = case["slots"]
    config = kernel(policy, max_running=slots, max_step_tokens=slots + 1)
    rows = [(float(arrival), name, 1, steps) for name, arrival, steps in case["requests"]]
    return simulate(rows, config, profile=UNIT_TIME)


def completion(simulation) -> dict[str, float]:
    """Seconds, which are steps, by name."""
    flows = simulation.workload.flows
    return {
        flows[fate.request.client][0].name: fate.ended / SECOND
        for fate in simulation.recorder.fates.values()
    }


CASES = [(name, mode) for name in range(4) for mode in ("static", "continuous")]


@pytest.mark.parametrize(("number", "mode"), CASES)
def test_every_number_of_a_golden_schedule_is_met_exactly(number, mode):
    case = golden()["cases"][number]
    if mode not in case:
        assert case["name"].startswith("batch_of")  # only its static answer is given
        return
    simulation = run(case, mode)
    steps = simulation.recorder.totals.steps
    finished = completion(simulation)
    arrived = {name: arrival for name, arrival, _ in case["requests"]}
    found = {
        "completion": finished,
        "steps": steps,
        "useful": simulation.recorder.totals.output_tokens,
        "capacity": steps * case["slots"],
        "mean_flow": float(np.mean([finished[name] - arrived[name] for name in finished])),
    }
    for key, answer in case[mode].items():
        assert found[key] == answer, key


@pytest.mark.parametrize(("slots", "batches", "seed"), [(8, 50, 4), (32, 40, 1), (64, 24, 1)])
def test_continuous_over_static_slot_use_is_the_harmonic_number(slots, batches, seed):
    """Exponential lengths, always backlogged: the longest of B is on average H_B means long.

    The schedules are exact; so few batches scatter by about 3% around the mean of many.
    """
    ideal = golden()["exponential_lengths_ideal_gain"][str(slots)]
    random = np.random.default_rng(seed)
    lengths = np.ceil(random.exponential(40.0, (batches, slots))).astype(int)
    rows = [(0.0, "a", 1, length) for length in lengths.ravel().tolist()]
    use = {}
    for mode, steps in (("static", int(lengths.max(axis=1).sum())), ("continuous", batches * 32)):
        policy = PolicyConfig(fairness=FCFS, batching=mode)
        config = kernel(policy, max_running=slots, max_step_tokens=slots + 1, num_blocks=1_000_000)
        rules = Rules(until=steps * SECOND)  # before a continuous batch starts to drain
        totals = simulate(rows, config, profile=UNIT_TIME, rules=rules).recorder.totals
        assert totals.steps == steps
        use[mode] = totals.output_tokens / (totals.steps * slots)
    assert use["static"] == lengths.sum() / (lengths.max(axis=1).sum() * slots)
    assert use["continuous"] == 1.0
    assert use["continuous"] / use["static"] == pytest.approx(ideal, rel=0.03)
