"""The keys of what tokens cost. See `gateway.config`."""

from typing import Annotated

from pydantic import Field

from gateway.config_section import Section
from tenants.prices import Price

Amount = Annotated[float, Field(ge=0, le=1e6)]


class PriceSettings(Section):
    """What tokens cost, for budgets in money and for bills. Any currency, the same everywhere."""

    prompt: Amount = 0.0
    """Price of a million prompt tokens."""

    cached: Amount | None = None
    """Price of a million prompt tokens that were found in the prefix cache. Absent: `prompt`."""

    output: Amount = 0.0
    """Price of a million output tokens."""

    fallback_prompt: Amount | None = None
    """`prompt` for the second model. Absent: the same."""

    fallback_cached: Amount | None = None
    """`cached` for the second model. Absent: the same."""

    fallback_output: Amount | None = None
    """`output` for the second model. Absent: the same."""

    def of_model(self) -> Price:
        return Price(self.prompt, self.cached, self.output)

    def of_fallback(self) -> Price:
        prompt = self.prompt if self.fallback_prompt is None else self.fallback_prompt
        cached = self.cached if self.fallback_cached is None else self.fallback_cached
        output = self.output if self.fallback_output is None else self.fallback_output
        return Price(prompt, cached, output)
