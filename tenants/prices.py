"""What tokens cost. Money is counted in whole nanos, 10^-9 of the operator's currency's unit."""

from dataclasses import dataclass

NANOS = 1_000_000_000  # in one unit of the currency
_PER_MILLION = 1_000_000  # a price for a million tokens is as many micros for one


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens of a model, in units of the operator's currency, exact to 10^-6.

    `cached` is for prompt tokens that were found in the prefix cache; None: as other prompt tokens.
    """

    prompt: float = 0.0
    cached: float | None = None
    output: float = 0.0

    def nanos(self, prompt: int, cached: int, output: int) -> int:
        """What a call costs, in nanos, rounded up. All in tokens; `cached` is part of `prompt`."""
        cached_price = self.prompt if self.cached is None else self.cached
        picos = (
            (prompt - cached) * round(self.prompt * _PER_MILLION)
            + cached * round(cached_price * _PER_MILLION)
            + output * round(self.output * _PER_MILLION)
        )  # in 10^-12 of a unit
        return -(-picos // 1000)

    def highest(self, prompt: int, output: int) -> int:
        """The most that a call of these tokens can cost, in nanos: as if the dearer kind."""
        return max(self.nanos(prompt, 0, output), self.nanos(prompt, prompt, output))


FREE = Price()
