"""How tenants stand with the engines, asked of each engine a few times a second at most."""

import asyncio
from collections import OrderedDict

from engine.core.commands import FlowNode
from engine.core.pressure import Inquiry, Pressure
from engine.host.worker import EngineState
from gateway.state import ServedModel

FRESH = 0.2  # seconds for which an answer is good
PATIENCE = 5.0  # seconds that a step may take before an answer is not waited for
MOST_KEPT = 1024  # answers

_Question = asyncio.Task[Pressure | None]


class PressureDesk:
    """Callers of one flow share an answer, and those who ask at a time the question as well."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[str, Inquiry], tuple[float, _Question]] = OrderedDict()

    async def ordinary_seconds(self, model: ServedModel, tenant: str) -> float | None:
        """How long an ordinary call sent now would take in all; None if nobody can say."""
        if model.engine.status().state is not EngineState.READY:
            return None
        told = await self.ask(model, Inquiry((FlowNode(tenant),)))
        if told is None or told.start is None or told.duration is None:
            return None
        return told.start + told.duration

    async def ask(self, model: ServedModel, inquiry: Inquiry) -> Pressure | None:
        """How the caller of `inquiry` stands; None if the engine does not say so in time."""
        now = asyncio.get_running_loop().time()
        at, question = self._asked.get((model.id, inquiry), (0.0, None))
        if question is None or (question.done() and now - at > FRESH):
            question = asyncio.create_task(_ask(model, inquiry))
            self._asked[model.id, inquiry] = (now, question)
            self._asked.move_to_end((model.id, inquiry))
            if len(self._asked) > MOST_KEPT:
                self._asked.popitem(last=False)
        # One caller who hangs up must not take the answer from the others.
        return await asyncio.shield(question)


async def _ask(model: ServedModel, inquiry: Inquiry) -> Pressure | None:
    try:
        async with asyncio.timeout(PATIENCE):
            return await model.engine.pressure(inquiry)
    except TimeoutError:
        return None
