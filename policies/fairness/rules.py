"""Fairness policies: who is next among the flows that have work waiting.

Every policy answers the same questions through `Rule`; the kernel does not know which one runs.
`Head` is what a rule may know of a flow's first waiter.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import inf, isinf
from operator import attrgetter
from typing import Protocol

from policies.fairness.config import FairnessConfig
from policies.fairness.tree import Flow, FlowTree
from policies.ordering import NEVER
from telemetry.units import SECOND

MINUTE = 60_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class Head:
    """A flow's first waiter: its arrival and deadline (ns), and what finds its cached prefix."""

    arrived: int
    deadline: int | None
    prefix: Callable[[], int]  # tokens


HeadOf = Callable[[Flow], Head]


_STANDING = attrgetter("counter", "path")


class Rule(Protocol):
    """One fairness policy. It keeps no state of its own: flows carry it."""

    def pick(self, tree: FlowTree, passed: Collection[Flow], head: HeadOf, now: int) -> Flow | None:
        """The flow to serve next among those with waiters that are not in `passed`."""
        ...

    def line(self, tree: FlowTree, head: HeadOf, now: int) -> Iterator[Flow]:
        """The flows with waiters, each as `pick` would choose it with those before passed.

        Counters may change meanwhile; that of a flow matters until its turn has come.
        """
        ...

    def prepay(self, flow: Flow, max_tokens: int) -> int:
        """Output tokens charged when a sequence of `flow` is first admitted."""
        ...

    def admitted(self, tree: FlowTree, flow: Flow, cost: float, now: int) -> None:
        """A sequence of `flow` was admitted; `cost` is what its prompt and prepayment cost."""
        ...

    def next_change(self, tree: FlowTree, now: int) -> int | None:
        """When time alone will make a waiting flow eligible (ns); None if it never does."""
        ...


class _Plain(ABC):
    """What most policies answer: nothing is prepaid, nothing happens at admission or in time."""

    @abstractmethod
    def pick(
        self, tree: FlowTree, passed: Collection[Flow], head: HeadOf, now: int
    ) -> Flow | None: ...

    def line(self, tree: FlowTree, head: HeadOf, now: int) -> Iterator[Flow]:
        passed: set[Flow] = set()
        while (flow := self.pick(tree, passed, head, now)) is not None:
            yield flow
            passed.add(flow)

    def prepay(self, _flow: Flow, _max_tokens: int) -> int:
        return 0

    def admitted(self, _tree: FlowTree, _flow: Flow, _cost: float, _now: int) -> None:
        return None

    def next_change(self, _tree: FlowTree, _now: int) -> int | None:
        return None


class Counters(_Plain):
    """`fair`, `vtc` and `lcf`: the backlogged child with the smallest counter, level by level.

    Siblings share by weight whatever they hold below them; an unused share is borrowed by whoever
    has work. Waiters of an inner node (from before its tenant was subdivided) go before those below
    it. `vtc` is Sheng et al., OSDI 2024, algorithm 2, with weights; `lcf` is the same without the
    lift; `fair` adds the bounded lag, which `policies.fairness.lag` decides.

    With an urgency debt, the nearest deadline goes first among those siblings that are served at
    most that much more than the least served one; what it gets is charged as always, so a flow
    cannot stay ahead by more than the debt and one request.
    """

    def __init__(self, urgency_debt: float = 0.0) -> None:
        self._debt = urgency_debt

    def pick(self, tree: FlowTree, passed: Collection[Flow], head: HeadOf, now: int) -> Flow | None:  # noqa: ARG002
        return self._descend(tree.root, passed, head)

    def line(self, tree: FlowTree, head: HeadOf, now: int) -> Iterator[Flow]:  # noqa: ARG002
        return self._line(tree.root, head)

    def _line(self, node: Flow, head: HeadOf) -> Iterator[Flow]:
        if node.own:
            yield node
        waiting = sorted(node.waiting.values(), key=_STANDING)
        if not self._debt:
            for child in waiting:
                yield from self._line(child, head)
        while self._debt and waiting:
            child = self._first(waiting, head)
            waiting.remove(child)
            yield from self._line(child, head)

    def _descend(self, node: Flow, passed: Collection[Flow], head: HeadOf) -> Flow | None:
        if node.own and node not in passed:
            return node
        waiting = list(node.waiting.values())
        if passed and self._debt:  # the debt counts from the least served of those that may go
            waiting = [child for child in waiting if child.waiting or child not in passed]
        while waiting:
            child = self._first(waiting, head)
            found = self._descend(child, passed, head)
            if found is not None:
                return found
            waiting.remove(child)
        return None

    def _first(self, waiting: list[Flow], head: HeadOf) -> Flow:
        child = _least(waiting)
        if not self._debt:
            return child
        near = [c for c in waiting if c.counter <= child.counter + self._debt]
        return min(near, key=lambda c: (_nearest(c, head), c.counter, c.path))


def _least(flows: list[Flow]) -> Flow:
    """The one with the smallest counter, of equals the first by path.

    A plain loop: with many equal counters it is quicker than `min` with a key or over lists.
    """
    found, *others = flows
    least = found.counter
    for flow in others:
        counter = flow.counter
        if counter < least or (counter == least and flow.path < found.path):
            found, least = flow, counter
    return found


def _nearest(flow: Flow, head: HeadOf) -> int:
    """The nearest deadline of a first waiter at or below `flow`, in ns."""
    below = [_nearest(child, head) for child in flow.waiting.values()]
    own = head(flow).deadline if flow.own else None
    return min([*below, NEVER if own is None else own])


class Predicting(Counters):
    """`vtc_predict`: the expected output is charged at admission, the difference as it shows.

    The expectation is the mean of the flow's last five outputs (Sheng et al., section 4.4).
    """

    def prepay(self, flow: Flow, max_tokens: int) -> int:
        if not flow.recent:
            return 0
        return min(max_tokens, round(sum(flow.recent) / len(flow.recent)))


class Oracle(Counters):
    """`vtc_oracle`: as `vtc_predict`, with the declared output taken for the true one."""

    def prepay(self, _flow: Flow, max_tokens: int) -> int:
        return max_tokens


class Arrival(_Plain):
    """`fcfs`: whoever arrived first, whosever it is."""

    def pick(self, tree: FlowTree, passed: Collection[Flow], head: HeadOf, now: int) -> Flow | None:  # noqa: ARG002
        flows = [flow for flow in tree.backlogged() if flow not in passed]
        return min(flows, key=lambda flow: (head(flow).arrived, flow.path), default=None)


class RequestsPerMinute(_Plain):
    """`rpm`: first come first served, but each flow is admitted so often in each minute only.

    Not work-conserving: a flow over its rate waits even when nobody else wants the engine.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def pick(self, tree: FlowTree, passed: Collection[Flow], head: HeadOf, now: int) -> Flow | None:
        flows = [
            f for f in tree.backlogged() if f not in passed and self._used(f, now) < self._limit
        ]
        return min(flows, key=lambda flow: (head(flow).arrived, flow.path), default=None)

    def admitted(self, _tree: FlowTree, flow: Flow, _cost: float, now: int) -> None:
        flow.window = (now // MINUTE, self._used(flow, now) + 1)

    def next_change(self, tree: FlowTree, now: int) -> int | None:
        waits = any(self._used(flow, now) >= self._limit for flow in tree.backlogged())
        return (now // MINUTE + 1) * MINUTE if waits else None

    @staticmethod
    def _used(flow: Flow, now: int) -> int:
        window, used = flow.window
        return used if window == now // MINUTE else 0


class DeficitPrefix(_Plain):
    """`dlpm`: the longest cached prefix among flows whose deficit is positive.

    Deficit Longest Prefix Match (Cao et al., 2025): each flow spends its deficit; when all that
    wait have spent theirs, each gets another quantum, times its weight. Those that have spent
    theirs go only where none of the others can.
    """

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum

    def pick(self, tree: FlowTree, passed: Collection[Flow], head: HeadOf, now: int) -> Flow | None:  # noqa: ARG002
        waiting = tree.backlogged()
        flows = [flow for flow in waiting if flow not in passed]
        if not flows:
            return None
        # what was charged since is the difference of counters; a deficit is a level to reach
        most = max(flow.deficit - flow.counter for flow in waiting)
        if most <= 0:
            refills = int(-most // self._quantum) + 1
            for flow in waiting:
                flow.deficit += refills * self._quantum
        open_ = [flow for flow in flows if flow.deficit > flow.counter]
        return min(open_ or flows, key=lambda f: (-head(f).prefix(), head(f).arrived, f.path))


class Priority(_Plain):
    """`priority`: the highest priority first, then arrival; waiting raises it with `ageing`.

    Strict priority (ageing inf) starves lower classes for as long as higher ones have work. With
    ageing, a waiter overtakes anyone who arrived more than `ageing` seconds later per level.
    """

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing

    def pick(self, tree: FlowTree, passed: Collection[Flow], head: HeadOf, now: int) -> Flow | None:
        def rank(flow: Flow) -> tuple[float, int, tuple[str, ...]]:
            arrived = head(flow).arrived
            waited = 0.0 if isinf(self._ageing) else (now - arrived) / SECOND / self._ageing
            return -(flow.priority + waited), arrived, flow.path

        return min((f for f in tree.backlogged() if f not in passed), key=rank, default=None)


def make_rule(config: FairnessConfig, urgency_debt: float = 0.0) -> Rule:
    """The rule that `config` names."""
    rules: dict[str, Rule] = {
        "fair": Counters(urgency_debt),
        "fcfs": Arrival(),
        "lcf": Counters(),
        "rpm": RequestsPerMinute(config.requests_per_minute),
        "vtc": Counters(),
        "vtc_predict": Predicting(),
        "vtc_oracle": Oracle(),
        "dlpm": DeficitPrefix(config.quantum),
        "priority": Priority(config.ageing),
    }
    return rules[config.name]


def make_tree(config: FairnessConfig, capacity: int) -> FlowTree:
    """A tree for the policy that `config` names."""
    return FlowTree(capacity, lifts=config.name != "lcf", allowed_lead=allowed_lead(config))


def allowed_lead(config: FairnessConfig) -> float:
    """How far ahead of a backlogged flow another may be; inf for policies without a bound.

    Half of `max_lag`: in one window the lead may pass from one to the other.
    """
    return config.max_lag / 2 if config.name == "fair" else inf
