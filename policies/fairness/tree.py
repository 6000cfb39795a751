"""The tree of flows: counters, what waits and what runs at each node.

Each node keeps a virtual counter: the service its flow received, in cost units, divided by its
weight. Who is served next is a rule over these nodes (`policies.fairness.rules`). A flow that
returns from idle may be lifted: under the Virtual Token Counter (Sheng et al., OSDI 2024, algorithm
2) it starts no lower than the least served of its backlogged siblings, or than the last one that
left when none is backlogged, so that idleness saves up no credit.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite

from policies.drain import Departures

RECENT = 5  # output lengths remembered a flow, for prediction


@dataclass(frozen=True, slots=True)
class Lift:
    """A counter moved because its flow returned from idle."""

    path: tuple[str, ...]
    before: float
    after: float


class Flow:
    """A node of the tree. `queued` counts waiting sequences, `running` those in the batch and
    `live` all, here and below; `own` those waiting here, not below. `priority` (higher is sooner),
    `deficit`, `recent` output lengths and `window` (start, admissions) are of single policies;
    `departures` tell how fast its queue moves.
    """

    __slots__ = (
        "children",
        "counter",
        "deficit",
        "departures",
        "highest",
        "index",
        "last_left",
        "live",
        "own",
        "parent",
        "path",
        "priority",
        "queued",
        "recent",
        "running",
        "waiting",
        "weight",
        "window",
    )

    def __init__(self, path: tuple[str, ...], weight: float, parent: "Flow | None") -> None:
        self.path = path
        self.weight = weight
        self.parent = parent
        self.index = -1
        self.children: dict[str, Flow] = {}
        self.waiting: dict[str, Flow] = {}  # those of `children` that have waiters
        self.counter = 0.0
        self.queued = 0
        self.own = 0
        self.running = 0
        self.live = 0
        self.priority = 0
        self.deficit = 0.0
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.window = (0, 0)
        self.departures = Departures()
        self.highest = 0.0  # counter that any of its children ever had
        self.last_left = 0.0  # counter of the child that was last to run out of waiters

    def __repr__(self) -> str:
        return f"<Flow {'/'.join(self.path)} {self.counter:g}, {self.queued} queued>"

    @property
    def above(self) -> "Flow":
        """What it belongs to. Asked of nodes below the root only."""
        assert self.parent is not None
        return self.parent

    def upward(self) -> Iterator["Flow"]:
        """This node and its ancestors below the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class FlowTree:
    """All flows of one engine. At most `capacity` nodes are remembered; idle ones go first.

    With `lifts`, flows that return from idle are lifted. With a finite `allowed_lead` they also end
    up within it of others: no further behind siblings that run, nor ahead of those that wait, for
    what was served while nobody waited is held against nobody.
    """

    def __init__(self, capacity: int, *, lifts: bool = True, allowed_lead: float = inf) -> None:
        self._lifts = lifts
        self._allowed_lead = allowed_lead
        self.version = 0  # raised by whatever may change who is next
        self._root = Flow((), 1.0, None)
        self._capacity = capacity
        self._idle: OrderedDict[tuple[str, ...], Flow] = OrderedDict()  # leaves, oldest first
        self._nodes: dict[tuple[str, ...], Flow] = {}
        self._free_indices: list[int] = []
        self.by_index: list[Flow] = []  # forgotten ones until their index is given out again

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._nodes.values())

    def find(self, path: tuple[str, ...]) -> Flow | None:
        """The node at `path`, if it is known."""
        return self._nodes.get(path)

    def reach(self, nodes: tuple[tuple[str, float], ...]) -> Flow | None:
        """The node at the path of (name, weight) pairs, created where missing.

        Weights take effect at once. None when the tree is full of flows in use.
        """
        if not nodes:
            raise ValueError("a flow needs at least one node")
        node = self._root
        for name, weight in nodes:
            if not (isfinite(weight) and weight > 0):
                raise ValueError(f"weight of flow {name!r} must be positive, not {weight}")
            child = node.children.get(name)
            if child is None:
                child = self._add(node, name, weight)
                if child is None:
                    return None
            if child.weight != weight:
                child.weight = weight
                self.version += 1
            node = child
        return node

    def _add(self, parent: Flow, name: str, weight: float) -> Flow | None:
        if len(self._nodes) >= self._capacity and not self._forget_one(parent):
            return None
        flow = Flow((*parent.path, name), weight, parent)
        parent.children[name] = flow
        self._nodes[flow.path] = flow
        if self._free_indices:
            flow.index = self._free_indices.pop()
            self.by_index[flow.index] = flow
        else:
            flow.index = len(self.by_index)
            self.by_index.append(flow)
        self._idle.pop(parent.path, None)
        self._idle[flow.path] = flow
        return flow

    def _forget_one(self, keep: Flow) -> bool:
        for path, flow in self._idle.items():
            if flow is keep:
                continue
            del self._idle[path]
            del self._nodes[path]
            self._free_indices.append(flow.index)
            parent = flow.above
            del parent.children[path[-1]]
            if not parent.children and parent.parent is not None and not parent.live:
                self._idle[parent.path] = parent
            return True
        return False

    def enter(self, flow: Flow) -> None:
        """A sequence of `flow` came to life."""
        for node in flow.upward():
            node.live += 1
        self._idle.pop(flow.path, None)

    def leave(self, flow: Flow) -> None:
        """A sequence of `flow` ended."""
        for node in flow.upward():
            node.live -= 1
        if not flow.live and not flow.children:
            self._idle[flow.path] = flow

    def enqueue(self, flow: Flow) -> list[Lift]:
        """A sequence of `flow` started to wait. Returns the counters lifted by that."""
        lifts = []
        self.version += 1
        flow.own += 1
        for node in flow.upward():
            if node.queued == 0:
                if self._lifts and (after := self._entered(node)) != node.counter:
                    lifts.append(Lift(node.path, node.counter, after))
                    node.counter = after
                    node.above.highest = max(node.above.highest, after)
                node.above.waiting[node.path[-1]] = node
            node.queued += 1
        return lifts

    def _entered(self, node: Flow) -> float:
        """The counter of `node` as it starts to wait."""
        parent = node.above
        waiting = [child.counter for child in parent.waiting.values()]
        least = min(waiting) if waiting else parent.last_left
        if self._allowed_lead == inf:
            return max(node.counter, least)
        running = [child.counter for child in parent.children.values() if child.running]
        least = max(least, max(running, default=-inf) - self._allowed_lead)
        most = min(waiting, default=inf) + self._allowed_lead
        return max(least, min(node.counter, most))

    def dequeue(self, flow: Flow) -> None:
        """A sequence of `flow` stopped waiting."""
        self.version += 1
        flow.own -= 1
        for node in flow.upward():
            node.queued -= 1
            if node.queued == 0:
                node.above.last_left = node.counter
                del node.above.waiting[node.path[-1]]

    def start(self, flow: Flow) -> None:
        """A sequence of `flow` entered the batch."""
        for node in flow.upward():
            node.running += 1

    def stop(self, flow: Flow) -> None:
        """A sequence of `flow` left the batch."""
        for node in flow.upward():
            node.running -= 1

    def charge(self, flow: Flow, cost: float) -> None:
        """Count `cost` units of service against `flow` and all it belongs to."""
        self.charge_all([flow], [cost])

    def charge_all(self, flows: list[Flow], costs: list[float]) -> None:
        """The same for many flows at once."""
        self.version += 1
        root = self._root
        for flow, cost in zip(flows, costs, strict=True):
            node = flow
            while node is not root:
                above = node.parent or root
                counter = node.counter = node.counter + cost / node.weight
                if counter > above.highest:  # noqa: PLR1730 - a call would take thrice as long
                    above.highest = counter
                node = above

    @property
    def root(self) -> Flow:
        """The node above all tenants."""
        return self._root

    def backlogged(self) -> list[Flow]:
        """Every node with waiters of its own."""
        return [flow for flow in self._nodes.values() if flow.own]
