"""Whether to take a request in, given what is predicted for it.

Refusing expensive work at the door is the lever that keeps deadlines under overload; ordering is
secondary. Two modes: `feasible` refuses what is predicted to miss its deadline and looks at
nothing else; `goodput` further refuses the work that costs most per request when the tenant offers
more than its share of the device can serve (the density gate), and work for which memory is spoken
for (the memory gate). Times here are seconds from now.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from math import inf

from policies.promises import PromiseConfig
from tenants.choices import CHOICES, EXPIRIES, MODES, OnExpiry, OnInfeasible

MIN_ARRIVALS = 20  # below, no load can be told


class Verdict(StrEnum):
    """What admission decided."""

    ADMIT = "admit"
    DEGRADE = "degrade"
    PARTIAL = "partial"
    REJECT = "reject"
    ROUTE = "route"  # not here; another engine may be asked
    TRIAL = "trial"  # taken in to find out whether the forecast is right


class Ground(StrEnum):
    """What a request would miss, or which gate it did not pass."""

    FIRST_TOKEN = "first_token"
    COMPLETION = "completion"
    DENSITY = "density"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """`mode`, `on_infeasible` and `on_expiry` hold for tenants that choose nothing else.

    `length_quantile` is the share of outputs that are at most as long as what must fit before a
    completion deadline: low, since callers know better than we how much they ask for.
    `waiting_share` is the part of the time until then that may pass before the request starts.
    `density` is the load in device seconds per second above which the goodput mode sheds, seen over
    the last `density_window` arrivals; `memory_slack` how much more KV than the pool holds may be
    running or waiting in that mode, as a share of the pool; `memory_room` for how many requests of
    its size there must be room when one is let in.
    `urgent_steps`: a waiter whose first-token slack falls below this many steps takes the place of
    the cheapest running work of its tenant that has no deadline left; 0 never. `drop_hopeless` ends
    waiting work as soon as it can no longer meet its deadline, rather than when that passes.
    `displace` makes room in a full queue at the expense of the flow furthest above its share.
    """

    mode: str = "feasible"
    on_infeasible: str = OnInfeasible.REJECT.value
    on_expiry: str = OnExpiry.FAIL.value
    length_quantile: float = 0.1
    waiting_share: float = 0.05
    density: float = 0.9
    density_window: int = 200
    memory_slack: float = 0.08
    memory_room: float = 4.0
    urgent_steps: float = 3.0
    drop_hopeless: bool = True
    displace: bool = True
    promises: PromiseConfig = field(default_factory=PromiseConfig)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.on_infeasible not in CHOICES:
            names = ", ".join(CHOICES)
            raise ValueError(f"on_infeasible must be one of {names}, not {self.on_infeasible!r}")
        if self.on_expiry not in EXPIRIES:
            names = ", ".join(EXPIRIES)
            raise ValueError(f"on_expiry must be one of {names}, not {self.on_expiry!r}")
        if not 0 < self.length_quantile < 1:
            raise ValueError(f"length_quantile must be in (0, 1), not {self.length_quantile}")
        if not 0 <= self.waiting_share <= 1:
            raise ValueError(f"waiting_share must be in [0, 1], not {self.waiting_share}")
        if not self.density > 0:
            raise ValueError(f"density must be greater than 0, not {self.density}")
        if self.density_window < 2:
            raise ValueError(f"density_window must be at least 2, not {self.density_window}")
        if not self.memory_slack >= 0:
            raise ValueError(f"memory_slack must be at least 0, not {self.memory_slack}")
        if not self.memory_room >= 1:
            raise ValueError(f"memory_room must be at least 1, not {self.memory_room}")
        if not self.urgent_steps >= 0:
            raise ValueError(f"urgent_steps must be at least 0, not {self.urgent_steps}")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds from now until a request starts, has its first token and ends; `token` is the time
    that one more output token takes.
    """

    start: float
    first_token: float
    finish: float
    token: float


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for: seconds left until its deadlines, and its output cap."""

    max_tokens: int
    first_token_in: float | None = None
    finish_in: float | None = None
    on_infeasible: str = OnInfeasible.REJECT.value

    @property
    def has_deadline(self) -> bool:
        return self.first_token_in is not None or self.finish_in is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict and what it rests on; `max_tokens` is the output cap that holds from now on."""

    verdict: Verdict
    max_tokens: int
    ground: Ground | None = None


def decide(wish: Wish, forecast: Forecast, closed: Ground | None = None) -> Decision:
    """Admit, admit with less, reject, or have it routed. `closed` is the goodput gate that did not

    let it pass.
    """
    decision = _decide(wish, forecast, closed)
    if decision.verdict is Verdict.REJECT and wish.on_infeasible == OnInfeasible.ROUTE:
        return replace(decision, verdict=Verdict.ROUTE)
    return decision


def _decide(wish: Wish, forecast: Forecast, closed: Ground | None) -> Decision:
    cap = wish.max_tokens
    if wish.on_infeasible == OnInfeasible.ACCEPT or not wish.has_deadline:
        return Decision(Verdict.ADMIT, cap)
    if closed is not None:
        return Decision(Verdict.REJECT, cap, closed)
    if _later(forecast.first_token, wish.first_token_in):
        return Decision(Verdict.REJECT, cap, Ground.FIRST_TOKEN)
    if not _later(forecast.finish, wish.finish_in):
        return Decision(Verdict.ADMIT, cap)
    return _less(wish, forecast)


def worth_a_trial(wish: Wish, forecast: Forecast, doubt: float) -> bool:
    """Whether the deadlines can be kept if all takes less than predicted by a factor of `doubt`;

    never if that is 0.
    """
    moments = ((forecast.first_token, wish.first_token_in), (forecast.finish, wish.finish_in))
    return doubt > 0 and not any(
        _later(predicted, None if allowed is None else doubt * allowed)
        for predicted, allowed in moments
    )


def _later(predicted: float, allowed: float | None) -> bool:
    return allowed is not None and predicted > allowed


def _less(wish: Wish, forecast: Forecast) -> Decision:
    """What can be done with a request that starts in time and would end too late."""
    assert wish.finish_in is not None  # it would end too late for something
    spare = wish.finish_in - forecast.first_token
    if spare >= 0:
        if wish.on_infeasible == OnInfeasible.PARTIAL:
            return Decision(Verdict.PARTIAL, wish.max_tokens, Ground.COMPLETION)
        if wish.on_infeasible == OnInfeasible.DEGRADE:
            fits = 1 + (int(spare / forecast.token) if forecast.token > 0 else wish.max_tokens)
            return Decision(Verdict.DEGRADE, min(fits, wish.max_tokens), Ground.COMPLETION)
    return Decision(Verdict.REJECT, wish.max_tokens, Ground.COMPLETION)


class DensityGate:
    """Over the last `window` arrivals of a tenant, refused ones too: is it offering too much, and

    is this request among those that cost too much? Keeps the cheapest requests that together load
    the device with no more than the rate it may have, which maximises how many are served.
    """

    def __init__(self, window: int) -> None:
        self._arrivals: deque[tuple[int, float]] = deque(maxlen=window)

    def observe(self, now: int, cost: float) -> None:
        """A request that costs `cost` device seconds arrived at `now` (ns)."""
        self._arrivals.append((now, cost))

    def load(self, now: int) -> float:
        """Device seconds asked for per second."""
        span = self._span(now)
        return sum(cost for _, cost in self._arrivals) / span if span else 0.0

    def threshold(self, now: int, rate: float) -> float:
        """The cost up to which requests pass, if the tenant may use `rate` device seconds a

        second; infinite while it offers no more than that.
        """
        span = self._span(now)
        allowed = rate * span
        costs = sorted(cost for _, cost in self._arrivals)
        if not span or sum(costs) <= allowed:
            return inf
        passed = 0.0
        for cost, total in zip(costs, accumulate(costs), strict=True):
            if total > allowed:
                break
            passed = cost
        return passed

    def _span(self, now: int) -> float:
        """Seconds covered by the window; 0 while too few arrived to tell a rate."""
        if len(self._arrivals) < MIN_ARRIVALS:
            return 0.0
        return (now - self._arrivals[0][0]) / 1e9


def memory_claim(needed: int, pool: int, config: AdmissionConfig) -> float:
    """Tokens of KV that must not be spoken for yet when a request needs `needed` of them.

    Several times what it takes, so that memory which is scarce is left to those who take little of
    it (trunk reservation, as in telephone networks); but of the pool no more than half for that.
    """
    return max(needed, min(config.memory_room * needed, pool / 2))


def memory_over(spoken_for: float, claim: float, pool: int, config: AdmissionConfig) -> float:
    """By how many tokens a claim exceeds what may be asked for beside `spoken_for`, which are in

    use or wanted by those who stand before the request; at most 0 if it does not.
    """
    return spoken_for + claim - (1 + config.memory_slack) * pool


def planned_seconds(finish_in: float, prompt_seconds: float, config: AdmissionConfig) -> float:
    """What the caller of a request that is to end in `finish_in` seconds left for its output.

    Whoever sets a deadline knows more than we of the length asked for, and means little of the time
    to be spent waiting.
    """
    return (1 - config.waiting_share) * finish_in - prompt_seconds
