"""Sequences that wait: a sorted queue a flow, the flow tree over them, and their counts."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.core.sequence import Sequence, State
from policies.fairness.tree import Flow, FlowTree, Lift
from policies.ordering import OrderKey, order_key

Entry = tuple[OrderKey, Sequence]
Path = tuple[str, ...]


class Backlog:
    """Waiting sequences and their tokens, of one node of the flow tree or of all."""

    __slots__ = ("caps", "fresh", "sequences", "tokens")

    def __init__(self) -> None:
        self.sequences = 0
        self.fresh = 0  # of these, how many never ran
        self.tokens = 0
        self.caps = 0  # output tokens they may have

    def add(self, sequence: Sequence, sign: int) -> None:
        """Count `sequence` in (sign 1) or out (sign -1)."""
        self.sequences += sign
        self.fresh += sign if sequence.state is State.WAITING else 0
        self.tokens += sign * len(sequence.tokens)
        self.caps += sign * sequence.max_tokens


class WaitingRoom:
    """Who waits, by flow. A sequence is *counted* from its arrival until it runs or ends, and

    *queued* while it may be picked; choices that wait for a sibling's prompt are only counted.
    """

    def __init__(self, tree: FlowTree, ordering: str) -> None:
        self.tree = tree
        self._ordering = ordering
        self.total = Backlog()
        self._backlogs: dict[Path, Backlog] = {}  # of every node with something below it
        self._queues: dict[Flow, list[Entry]] = {}
        self._keys: dict[int, OrderKey] = {}

    def below(self, path: Path) -> Backlog:
        """The backlog of one node of the tree and all below it; empty when it has none."""
        return self._backlogs.get(path) or Backlog()

    def count(self, sequence: Sequence) -> None:
        """`sequence` starts to wait."""
        self.total.add(sequence, 1)
        for node in sequence.flow.upward():
            self._backlogs.setdefault(node.path, Backlog()).add(sequence, 1)

    def uncount(self, sequence: Sequence) -> None:
        """`sequence` no longer waits."""
        self.total.add(sequence, -1)
        for node in sequence.flow.upward():
            backlog = self._backlogs[node.path]
            backlog.add(sequence, -1)
            if not backlog.sequences:
                del self._backlogs[node.path]

    def place(self, sequence: Sequence, token_ns: float = 0.0) -> OrderKey:
        """Where `sequence` stands within its flow, when a token takes `token_ns` to compute."""
        return order_key(
            self._ordering,
            preempted=sequence.state in (State.PAUSED, State.PREEMPTED),
            deadline=sequence.urgency,
            arrived=sequence.since,
            sequence=sequence.id,
            tokens=sequence.prompt_length + sequence.max_tokens,
            needed=int(token_ns * len(sequence.tokens)),
            pressing=sequence.pressing,
        )

    def queue(self, sequence: Sequence, token_ns: float) -> list[Lift]:
        """Let `sequence` be picked from now on. Returns the flows lifted by that."""
        key = self.place(sequence, token_ns)
        self._keys[sequence.id] = key
        insort(self._queues.setdefault(sequence.flow, []), (key, sequence), key=_key)
        return self.tree.enqueue(sequence.flow)

    def unqueue(self, sequence: Sequence) -> bool:
        """Take `sequence` out of its queue; False if it was not in one."""
        key = self._keys.pop(sequence.id, None)
        if key is None:
            return False
        queue = self._queues[sequence.flow]
        del queue[bisect_left(queue, key, key=_key)]
        if not queue:
            del self._queues[sequence.flow]
        self.tree.dequeue(sequence.flow)
        return True

    def front(self, flow: Flow) -> Iterator[Sequence]:
        """The waiters of `flow` in order; stop iterating before changing the queue."""
        return (sequence for _, sequence in self._queues.get(flow, ()))

    def back(self, flow: Flow) -> Iterator[Sequence]:
        """The waiters of `flow`, the last in line first."""
        return (sequence for _, sequence in reversed(self._queues.get(flow, ())))

    def under(self, path: Path) -> Iterator[Sequence]:
        """Every queued sequence of one node of the tree and all below it."""
        flows = (flow for flow in self._queues if flow.path[: len(path)] == path)
        return (sequence for flow in flows for _, sequence in self._queues[flow])

    def queued(self) -> Iterator[Sequence]:
        """Every queued sequence."""
        return (sequence for queue in self._queues.values() for _, sequence in queue)


def _key(entry: Entry) -> OrderKey:
    return entry[0]
