"""What every choice of policies promises, whatever it is combined with.

The combinations cover every pair of choices: whatever two of them do to each other shows in one.
"""

from itertools import combinations, product
from operator import itemgetter

import pytest

from engine.core.commands import Abort
from engine.core.plan import Sampling
from policies.admission import AdmissionConfig
from policies.config import BATCHINGS, KV_ADMISSIONS, ORDERINGS, PREEMPTIONS, PolicyConfig
from policies.cost import NAMES as COSTS
from policies.cost import CostConfig
from policies.fairness.config import NAMES, FairnessConfig
from telemetry.admission_events import DeadlineInfeasible
from telemetry.events import Cause, StepCommitted
from tenants.choices import CHOICES, MODES
from tests.kernel.world import World, config

CHOSEN = {
    "fairness": NAMES,
    "ordering": ORDERINGS,
    "mode": MODES,
    "on_infeasible": CHOICES,
    "kv_admission": KV_ADMISSIONS,
    "preemption": PREEMPTIONS,
    "cost": COSTS,
    "batching": BATCHINGS,
    "pause": (True, False),
    "displace": (True, False),
}

Combination = tuple[object, ...]


def pairs_of(combination: Combination) -> set[tuple[int, object, int, object]]:
    places = combinations(range(len(combination)), 2)
    return {(i, combination[i], j, combination[j]) for i, j in places}


def all_pairs(choices: list[tuple[object, ...]]) -> list[Combination]:
    """Combinations in which every two values of different choices meet, greedily few."""
    missing = {
        (i, first, j, second)
        for i, j in combinations(range(len(choices)), 2)
        for first, second in product(choices[i], choices[j])
    }
    found = []
    while missing:
        i, first, j, second = min(missing, key=repr)
        chosen = {i: first, j: second}
        for place in range(len(choices)):
            if place not in chosen:
                gains = [met_by(chosen, place, value, missing) for value in choices[place]]
                chosen[place] = choices[place][gains.index(max(gains))]
        found.append(tuple(chosen[place] for place in range(len(choices))))
        missing -= pairs_of(found[-1])
    return found


def met_by(chosen: dict[int, object], place: int, value: object, missing: set) -> int:
    """How many missing pairs `value` at `place` makes with what is chosen."""
    pairs = (sorted([(place, value), other], key=itemgetter(0)) for other in chosen.items())
    return sum((*first, *second) in missing for first, second in pairs)


COMBINATIONS = all_pairs(list(CHOSEN.values()))


def policy_of(combination: Combination) -> PolicyConfig:
    chosen = dict(zip(CHOSEN, combination, strict=True))
    fairness = FairnessConfig(
        chosen["fairness"], max_lag=60.0, requests_per_minute=3, quantum=100.0, ageing=2.0
    )
    admission = AdmissionConfig(
        mode=chosen["mode"],
        on_infeasible=chosen["on_infeasible"],
        displace=chosen["displace"],
    )
    return PolicyConfig(
        fairness=fairness,
        admission=admission,
        cost=CostConfig(chosen["cost"]),
        **{name: chosen[name] for name in ("ordering", "kv_admission", "preemption")},
        **{name: chosen[name] for name in ("batching", "pause")},
    )


AMPLE = {"num_blocks": 400, "max_running": 24, "max_step_tokens": 256}
SHORT = {"num_blocks": 10, "host_blocks": 12, "max_running": 3, "max_queued_requests": 9}


def history(policy: PolicyConfig, **kernel: int) -> World:
    """Three tenants, one of them weighty and one split in two, and one hang-up. Every third has a

    deadline that may be missed, every third one that is far away.
    """
    world = World(config(policy=policy, **kernel))
    for number in range(20):
        deadline = (None, 1.5, 60.0)[number % 3]
        world.submit(
            ("a", "b/x", "b/y", "c")[number % 4],
            [number, *range(30 + 17 * (number % 3))],
            4 + 9 * (number % 3),
            weight=2.0 if number % 4 == 0 else 1.0,
            priority=number % 2,
            deadline=None if deadline is None else world.clock.now() + int(deadline * 1e9),
            sampling=Sampling(temperature=0.0, seed=number),
        )
        for _ in range(2 * (number % 3)):
            world.step()
    world.apply(Abort((17,), Cause.DISCONNECTED))
    world.run()
    return world


ENDS = {
    Cause.LENGTH,
    Cause.DISCONNECTED,
    Cause.DEADLINE,
    Cause.PARTIAL,
    Cause.DEADLINE_INFEASIBLE,
    Cause.RELEGATED,
    Cause.SATURATED,
    Cause.DISPLACED,
}


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, list[int]]:
    """What each sequence says where nothing is short and nobody is refused."""
    accept = AdmissionConfig(on_infeasible="accept")
    return history(PolicyConfig(admission=accept), **AMPLE).tokens


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "-".join(map(str, c)))
def test_work_ends_once_is_charged_exactly_and_says_what_it_would_alone(combination, undisturbed):
    """`World` checks the laws of the kernel at every turn besides."""
    world = history(policy_of(combination), **SHORT)
    world.check_idle()
    assert set(world.ended) == set(range(1, 21))
    assert {finished.cause for finished in world.ended.values()} <= ENDS
    shortened = {event.sequence for event in world.of(DeadlineInfeasible)}
    for number, finished in world.ended.items():
        said, whole = world.tokens.get(number, []), undisturbed[number]
        assert said == whole[: len(said)]
        assert len(said) == len(whole) or finished.cause is not Cause.LENGTH or number in shortened
    charges = world.charges()
    assert sum(charge.output_tokens for charge in charges) == sum(map(len, world.tokens.values()))
    rework = sum(charge.rework_tokens for charge in charges)
    assert rework == sum(step.recomputed_tokens for step in world.of(StepCommitted))


def test_every_two_choices_meet():
    met = set().union(*map(pairs_of, COMBINATIONS))
    choices = list(CHOSEN.values())
    for i, j in combinations(range(len(choices)), 2):
        for first, second in product(choices[i], choices[j]):
            assert (i, first, j, second) in met
    assert len(COMBINATIONS) == len(NAMES) * len(ORDERINGS)  # no fewer can do
