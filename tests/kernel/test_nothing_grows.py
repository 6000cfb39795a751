"""Whoever has come and gone leaves nothing behind that is not bounded: the kernel is weighed."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType

import pytest

from engine.core import outlook, state, urgency
from engine.core.commands import Abort, Cancel
from policies.admission import AdmissionConfig
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from policies.promises import PromiseConfig
from telemetry.events import Cause
from telemetry.lineage import Scope
from telemetry.metrics import MetricsFold
from telemetry.usage import UsageFold
from tests.kernel.world import World, config

PLAIN = (str, bytes, int, float, type(None))
MONTH = 31 * 24 * 3600 * 10**9  # the furthest deadline that the edge lets in


def entries(root: object) -> Counter[str]:
    """How much every container that can be reached from `root` holds, by who has it."""
    held: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        owner, value = todo.pop()
        if isinstance(value, PLAIN) or id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping | MappingProxyType):
            held[owner] += len(value)
            inside: Iterable[object] = (*value.keys(), *value.values())
            todo += [(owner, one) for one in inside]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            held[owner] += len(value)
            todo += [(owner, one) for one in value]
        else:
            todo += [(f"{type(value).__name__}.{name}", one) for name, one in _parts(value)]
    return held


def _parts(value: object) -> list[tuple[str, object]]:
    names = {field.name for field in fields(value)} if is_dataclass(value) else set()  # type: ignore[arg-type]
    for kind in type(value).__mro__:
        names.update(kind.__dict__.get("__slots__", ()))
    names.update(getattr(value, "__dict__", ()))
    return [(name, getattr(value, name)) for name in sorted(names) if hasattr(value, name)]


def round_of_strangers(world: World, first: int, count: int) -> None:
    """Calls of tenants, users and tasks that nobody has seen before, which end in all the ways."""
    for number in range(first, first + count):
        now = world.clock.now()
        who = {"tenant": f"t{number}/u{number}", "task": f"task-{number}", "run": f"run-{number}"}
        late = {"deadline": now + MONTH, "first_token_deadline": now + MONTH}
        world.submit(prompt=40, output=3, **who, **late)
        (hung_up,) = world.submit(prompt=20, output=3, **who, attempt="b", **late)
        world.submit(prompt=500, output=500, **who)  # never fits
        world.submit(prompt=8, output=3, **who, queue_requests=1, claims=(f"claim-{number}",))
        world.submit(prompt=8, output=3, tenant=f"t{number}", task="hopeless", deadline=now + 1)
        world.step()
        world.apply(Abort((hung_up,), Cause.DISCONNECTED))
        if number % 2:
            world.apply(Cancel(Scope(f"t{number}", f"task-{number}"), remember=True))
        world.run()


class Watched:
    """A kernel, and who folds its events for as long as the process lives."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folds = UsageFold(), MetricsFold("model", max_tenants=8)

    def most_held(self, first: int, rounds: int) -> Counter[str]:
        """The most that each container held after any of some rounds of forty."""
        most: Counter[str] = Counter()
        usage, metrics = self.folds
        for start in range(first, first + 40 * rounds, 40):
            round_of_strangers(self.world, start, 40)
            usage.fold(self.world.events)
            metrics.apply_all(self.world.events)
            self.world.events.clear()
            most |= entries((self.world.scheduler, *self.folds))
        return most


@pytest.mark.parametrize("fairness", ["fair", "rpm", "dlpm"])
def test_nothing_in_the_kernel_grows_with_the_number_of_callers_ever_seen(
    fairness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is not configured would take thousands of callers to fill.
    monkeypatch.setattr(state, "SLACK", 16)
    monkeypatch.setattr(urgency, "SLACK", 16)
    monkeypatch.setattr(outlook, "MOST_GATES", 16)
    admission = AdmissionConfig(mode="goodput", promises=PromiseConfig(total=8))
    policy = PolicyConfig(fairness=FairnessConfig(fairness), admission=admission)
    world = World(config(max_flows=24, max_tombstones=8, max_running=2, policy=policy))
    watched = Watched(world)
    before, after = watched.most_held(0, 2), watched.most_held(80, 3)
    grown = {name: count for name, count in after.items() if count > before[name] + 20}
    assert grown == {}
    for swept in ("KernelState.pressing", "KernelState.deadlines", "PromiseLedger._tallies"):
        assert before[swept], f"nothing was ever in {swept}"
