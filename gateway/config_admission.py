"""The keys of admission: which requests are worth taking in. See `gateway.config`."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config_section import Section
from policies.admission import AdmissionConfig
from policies.promises import PromiseConfig
from tenants.choices import CHOICES, EXPIRIES, MODES


class AdmissionSettings(Section):
    """What is refused at the door, and what is promised to those who are."""

    mode: Literal[MODES] = "feasible"  # type: ignore[valid-type]
    """`feasible` refuses what is predicted to miss its deadline and looks at nothing else.
    `goodput` also sheds, within a tenant's own share, the requests that cost most, so that more of
    the others are on time; long prompts pay for that. `accept` refuses nothing for its deadline.
    A tenant may have its own (`tenants update --admission`)."""

    on_infeasible: Literal[CHOICES] = "reject"  # type: ignore[valid-type]
    """What becomes of a request that would end after its deadline: refused (`reject`), given a
    shorter output (`degrade`), taken in for what is done by then (`partial`) or anyway
    (`accept`), or asked of `model.fallback` (`route`). A tenant may have its own
    (`tenants update --on-infeasible`)."""

    on_expiry: Literal[EXPIRIES] = "fail"  # type: ignore[valid-type]
    """What becomes of an answer that has begun when its deadline passes: an error (`fail`), or a
    complete answer of what there is, marked `partial`. A tenant may have its own
    (`tenants update --on-expiry`)."""

    length_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Which of a tenant's past output lengths must fit before a completion deadline: at 0.1 the one
    that a tenth of its outputs do not exceed, or `max_tokens` if that is less. What would be late
    with even so short an output is refused; an answer that becomes longer ends at its deadline."""

    waiting_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """`feasible`: share of the time until a completion deadline that a request may be predicted to
    wait before it starts. It may wait longer where the rest is enough even for its output cap, or
    for 99% of its tenant's outputs."""

    density: Annotated[float, Field(gt=0, le=10)] = 0.9
    """`goodput`: load, in device seconds asked for per second, above which requests are shed."""

    memory_slack: Annotated[float, Field(ge=0, le=10)] = 0.08
    """`goodput`: KV wanted beyond what the pool holds before requests are refused, as a share."""

    memory_room: Annotated[float, Field(ge=1, le=100)] = 4.0
    """`goodput`: for how many requests of its size there must be room in memory when one is let in,
    though never more than half of the pool for that: what is scarce is left to the small."""

    urgent_steps: Annotated[float, Field(ge=0, le=100)] = 3.0
    """`goodput`: steps before the last moment for a first token at which a request takes the place
    of the tenant's own cheapest running work that has no deadline; 0 never."""

    drop_hopeless: bool = True
    """Whether waiting work ends as soon as it cannot meet its deadline, not when that passes."""

    displace: bool = True
    """Whether a full queue takes the last waiter of whoever is furthest above their share, rather
    than refuse the newcomer."""

    promise_longest: Annotated[float, Field(ge=0, le=3600)] = 60.0
    """Longest wait, in seconds, for which a refused caller's place is held; 0 holds none."""

    promise_grace: Annotated[float, Field(ge=0, le=60)] = 2.0
    """Seconds for which a held place waits for its caller once it is due."""

    def to_config(self) -> AdmissionConfig:
        """The engine's own form."""
        return AdmissionConfig(
            mode=self.mode,
            on_infeasible=self.on_infeasible,
            on_expiry=self.on_expiry,
            length_quantile=self.length_quantile,
            waiting_share=self.waiting_share,
            density=self.density,
            memory_slack=self.memory_slack,
            memory_room=self.memory_room,
            urgent_steps=self.urgent_steps,
            drop_hopeless=self.drop_hopeless,
            displace=self.displace,
            promises=PromiseConfig(grace=self.promise_grace, longest=self.promise_longest),
        )
