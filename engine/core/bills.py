"""The bills of one step: prompt work and rework as they are planned, output as it is committed."""

from collections.abc import Iterator

from policies.fairness.tree import Flow
from telemetry.billing_events import Holdup, Repeat, ServiceCharged
from telemetry.lineage import Lineage

Causer = tuple[tuple[str, ...], str, str]  # flow, tenant and key


class Bills:
    """What a step costs each flow: tokens by kind, and cost units before division by weight.

    Moves of KV cost no units; the time for which they hold the step up is billed as time.
    """

    __slots__ = ("_costs", "_flows", "_moves", "_output", "_prompt", "_repeats", "_rework", "_rows")

    def __init__(self) -> None:
        self._flows: list[Flow] = []
        self._rows: dict[Flow, int] = {}
        self._prompt: list[int] = []
        self._output: list[int] = []
        self._rework: list[int] = []
        self._costs: list[float] = []
        self._repeats: list[Repeat] = []
        self._moves: dict[Causer, int] = {}  # blocks

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens computed for the first time, of all flows."""
        return sum(self._prompt)

    @property
    def rework_tokens(self) -> int:
        """Tokens computed again, at the expense of any flow."""
        return sum(self._rework)

    def charge(self, flow: Flow, cost: float, *, prompt: int = 0, rework: int = 0) -> None:
        """Add planned work to the bill of `flow`."""
        row = self._row(flow)
        self._prompt[row] += prompt
        self._rework[row] += rework
        self._costs[row] += cost

    def repeat(self, sequence: int, payer: Lineage, tokens: int) -> None:
        """Note whose work it was for which `sequence` computes `tokens` again."""
        self._repeats.append(Repeat(sequence, payer.tenant, payer.key, tokens))

    def move(self, flow: Flow, payer: Lineage, blocks: int) -> None:
        """The step moves so many blocks because `flow`, with work of `payer`, needed their room."""
        causer = flow.path, payer.tenant, payer.key
        self._moves[causer] = self._moves.get(causer, 0) + blocks

    def charge_output(self, flows: list[Flow], tokens: list[int], costs: list[float]) -> None:
        """Add committed output tokens to the bills of `flows`."""
        if not self._flows:  # most steps only decode
            self._flows, self._output, self._costs = flows, tokens, costs
            self._prompt, self._rework = [0] * len(flows), [0] * len(flows)
            return
        for flow, drawn, cost in zip(flows, tokens, costs, strict=True):
            row = self._row(flow)
            self._output[row] += drawn
            self._costs[row] += cost

    def event(self, step: int, now: int, stall: int) -> ServiceCharged:
        """All of it as an event; `stall` is divided among those for whom KV moves, by blocks."""
        return ServiceCharged(
            now,
            step,
            tuple([flow.path for flow in self._flows]),
            tuple(self._prompt),
            tuple(self._output),
            tuple(self._rework),
            tuple(self._costs),
            tuple(self._repeats),
            tuple(self._holdups(stall)) if stall else (),
        )

    def _holdups(self, stall: int) -> Iterator[Holdup]:
        total, done, before = sum(self._moves.values()), 0, 0
        for causer, blocks in self._moves.items():
            done += blocks
            until = stall * done // total
            yield Holdup(*causer, until - before)
            before = until

    def __bool__(self) -> bool:
        return bool(self._flows or self._moves)

    def _row(self, flow: Flow) -> int:
        row = self._rows.get(flow)
        if row is None:
            row = self._rows[flow] = len(self._flows)
            self._flows.append(flow)
            for column in (self._prompt, self._output, self._rework):
                column.append(0)
            self._costs.append(0.0)
        return row
