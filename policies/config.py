"""All policy choices of one engine, as plain data."""

from dataclasses import dataclass, field

from policies.cost import CostConfig
from policies.fairness.config import FairnessConfig

ORDERINGS = ("fcfs", "edf", "edf_drop", "sjf", "prefix", "slack")
BATCHINGS = ("continuous", "static")
KV_ADMISSIONS = ("grow", "predicted_peak", "reserve")
PREEMPTIONS = ("auto", "swap", "recompute")


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """`batching` static forms a batch only when the last one has ended.

    `kv_admission` says what memory a newcomer must find: its prompt and a growth reserve (`grow`),
    room for the predicted peak of all running work at its declared lengths (`predicted_peak`, which
    keeps `client_overhead_tokens` free for each running flow, as the VTC artifact does for its
    adapters), or its own declared maximum (`reserve`). `preemption` says what happens to KV that is
    taken back; `pause` whether a slot may be taken while the KV stays.
    """

    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    ordering: str = "edf"
    batching: str = "continuous"
    kv_admission: str = "grow"
    client_overhead_tokens: int = 0
    preemption: str = "auto"
    pause: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (
            ("ordering", ORDERINGS),
            ("batching", BATCHINGS),
            ("kv_admission", KV_ADMISSIONS),
            ("preemption", PREEMPTIONS),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
