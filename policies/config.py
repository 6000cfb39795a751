"""All policy choices of one engine, as plain data."""

from dataclasses import dataclass, field
from math import inf

from policies.admission import AdmissionConfig
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
    `cached_prompt_cost` is the share of a prompt token's cost that one found in the prefix cache
    counts for. `urgency_debt` (cost units over weight) is how much further served than the next in
    line a flow may be and still go first because its deadline is nearer. `tpot_target` (seconds) is
    the time per output token that prompts may not push running decodes beyond; 0 sets none.
    """

    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    ordering: str = "edf"
    batching: str = "continuous"
    kv_admission: str = "grow"
    client_overhead_tokens: int = 0
    preemption: str = "auto"
    pause: bool = True
    cached_prompt_cost: float = 0.0
    urgency_debt: float = 0.0
    tpot_target: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.cached_prompt_cost <= 1:
            raise ValueError(f"cached_prompt_cost must be in [0, 1], not {self.cached_prompt_cost}")
        if not 0 <= self.urgency_debt < inf:
            raise ValueError(f"urgency_debt must be finite and at least 0, not {self.urgency_debt}")
        if not 0 <= self.tpot_target < inf:
            raise ValueError(f"tpot_target must be finite and at least 0, not {self.tpot_target}")
        for name, allowed in (
            ("ordering", ORDERINGS),
            ("batching", BATCHINGS),
            ("kv_admission", KV_ADMISSIONS),
            ("preemption", PREEMPTIONS),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
