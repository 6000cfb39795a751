"""Every key of the configuration: its type, range, default and meaning.

Pydantic stays here; what the engine needs leaves as plain dataclasses. The docstring below each key
is what `docs/configuration.md` and `watermaster.example.toml` say: both are generated from these
models. `gateway.config_load` fills them from a file, the environment and the command line.
"""

from math import inf
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from engine.core.config import KernelConfig
from gateway.config_admission import AdmissionSettings
from gateway.config_model import ModelSettings
from gateway.config_prices import PriceSettings
from gateway.config_section import Count, File, Folder, Seconds, Section, Text
from gateway.config_usage import UsageSettings
from policies.config import ORDERINGS, PREEMPTIONS, PolicyConfig
from policies.cost import NAMES as COSTS
from policies.cost import CostConfig
from policies.fairness.config import NAMES as FAIRNESS
from policies.fairness.config import FairnessConfig
from tenants.choices import AUTO, DOMAINS, OnInfeasible

Cost = Annotated[float, Field(ge=0, le=1e6)]


class ServerSettings(Section):
    """The HTTP side."""

    host: Text = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 lets the system pick a free one."""

    max_connections: Count = 1024
    """Open connections, idle ones included; a further one gets 503. Fewer where the system allows
    too few open files."""

    max_requests: Count = 1024
    """Calls that may be open, all tenants together; a further one gets 503."""

    max_tenant_requests: Count = 512
    """Calls that one tenant may have open; a further one gets 429."""

    max_header_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = 64 << 10
    """Largest request head, in bytes; a larger one gets 431."""

    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 << 20
    """Largest request body, in bytes; a larger one gets 413."""

    read_timeout: Seconds = 10.0
    """Seconds a caller may take to send a request's head, and again for its body."""

    write_timeout: Seconds = 30.0
    """Seconds after which a caller that does not read its answer is cut off; later by
    `stream_keepalive` where the answer is no stream."""

    idle_timeout: Annotated[int, Field(ge=1, le=3600)] = 75
    """Seconds an idle connection is kept for its caller's next request. Longer than a load balancer
    in front keeps it (60 is usual), or requests meet a connection that is just being closed."""

    stream_keepalive: Seconds = 15.0
    """Seconds of silence after which a stream gets a comment, so that proxies keep it open."""

    workers: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads that parse and tokenise requests."""

    drain_grace: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds that running work may go on after SIGTERM before it is ended."""


class KernelSettings(Section):
    """Sizes and limits of the scheduler and its KV cache."""

    kv_memory: Annotated[int, Field(ge=1 << 20)] | None = None
    """Bytes of the KV cache. Absent: on a CPU a quarter of the available memory, at most 1 GiB; on
    a GPU what weights, a step's tensors, graphs and a reserve (3% of the card, at least 1 GiB)
    leave free; and never more than `max_running` sequences of `max_context` tokens can use."""

    host_memory: Annotated[int, Field(ge=0)] = 256 << 20
    """Bytes of host memory for the KV of work that gave way to others; 0 computes it again."""

    block_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens in a KV block; of a prompt that was seen before, whole blocks are found again. Absent:
    16 on a GPU, 64 on a CPU, which reads large pieces sooner."""

    max_running: Annotated[int, Field(ge=1, le=4096)] = 64
    """Sequences computed in one batch."""

    max_step_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 512
    """Token positions computed by one step; at least `max_running` and `min_chunk` together."""

    min_chunk: Count = 32
    """Smallest piece of a prompt worth a place in a step, in tokens. Less only where it would hold
    up answers that miss their TPOT target as it is."""

    max_context: Annotated[int, Field(ge=16)] | None = None
    """Prompt plus output of one sequence, in tokens. Absent: what the model allows."""

    max_queued_requests: Count = 1024
    """Sequences that may wait, all tenants together."""

    max_queued_tokens: Count = 2_000_000
    """Prompt tokens that may wait, all tenants together."""

    tenant_queued_requests: Count = 256
    """Sequences that one tenant may have waiting, unless it sets its own number."""

    tenant_queued_tokens: Count = 500_000
    """Prompt tokens that one tenant may have waiting, unless it sets its own number."""

    kv_reserve: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Share of the KV cache kept free for growth when admitting, at the least."""

    kv_growth_deviations: Annotated[float, Field(ge=0, le=10)] = 1.5
    """How many standard deviations above its mean the expected growth of what runs is kept free
    when admitting, where KV that has to give way is computed again. 0 keeps the mean."""

    kv_bypass_limit: Annotated[int, Field(ge=0)] = 32
    """Admissions that may pass a request that waits for KV blocks before it gets the next ones."""

    max_tombstones: Count = 4096
    """Cancelled tasks remembered. Of more, the oldest of the tenant that has most are forgotten."""

    tombstone_ttl: Annotated[float, Field(gt=0, le=86400)] = 600.0
    """Seconds that a cancelled task is remembered."""

    max_flows: Count = 10_000
    """Tenants and groups that the scheduler keeps account of at a time."""

    def to_config(
        self,
        policy: PolicyConfig | None = None,
        *,
        block_size: int = 16,
        vocab_size: int = 1,
        model_context: int = 1 << 20,
    ) -> KernelConfig:
        """The engine's own form, for one KV block. `model_context` is the model's limit, in tokens;
        `block_size` holds where none is set.
        """
        own_form = {"kv_memory", "block_size", "host_memory", "max_context", "tombstone_ttl"}
        values = self.model_dump(exclude=own_form)
        return KernelConfig(
            policy=policy or PolicyConfig(),
            block_size=self.block_size or block_size,
            num_blocks=1,
            vocab_size=vocab_size,
            max_context=min(self.max_context or model_context, model_context),
            tombstone_ttl=round(self.tombstone_ttl * 1e9),
            **values,
        )

    @model_validator(mode="after")
    def _consistent(self) -> "KernelSettings":
        self.to_config()  # raises on what no single range can say
        return self


class PolicySettings(Section):
    """Who is served next, and at whose expense."""

    fairness: Literal[FAIRNESS] = "fair"  # type: ignore[valid-type]
    """`fair` shares by weight, token by token, with a bound on how far a backlogged tenant may lag.
    The others are for comparison: `vtc`, `vtc_predict`, `vtc_oracle`, `lcf`, `fcfs`, `rpm`, `dlpm`,
    `priority`."""

    domain: Literal[DOMAINS] = "tenant"  # type: ignore[valid-type]
    """Between whom a tenant's share is divided: nobody, its keys, the users that its calls name
    (`user`, `safety_identifier`, `metadata.user_id`), its tasks (`x-task-id`), or the
    runs of its tasks (`x-run-id`). Tenants always share by weight, so splitting up buys nothing."""

    max_lag: Annotated[float, Field(gt=0)] = 1024.0
    """`fair`: cost units, divided by weight, by which the service of two tenants may differ over
    any stretch of time in which both have work waiting, a step's charges apart. Whoever is ahead
    by half of it gives running work up. Smaller is fairer and moves more KV."""

    requests_per_minute: Count = 60
    """`rpm`: admissions of one tenant in each minute."""

    quantum: Annotated[float, Field(gt=0)] = 4096.0
    """`dlpm`: cost units, divided by weight, that a tenant may spend before others get theirs."""

    ageing: Annotated[float, Field(gt=0)] | None = None
    """`priority`: seconds of waiting worth one level. Absent: strict, lower levels may starve."""

    cost: Literal[COSTS] = "linear"  # type: ignore[valid-type]
    """What service counts for: `linear` in tokens, `profiled` (quadratic, in milliseconds of a
    reference device), or `device_time` (measured)."""

    prompt_cost: Cost = 1.0
    """`linear`: what a prompt token costs when it is first computed."""

    output_cost: Cost = 2.0
    """`linear`: what an output token costs."""

    ordering: Literal[ORDERINGS] = "edf"  # type: ignore[valid-type]
    """Order within a tenant: earliest deadline (`edf`), least slack (`slack`), shortest (`sjf`),
    longest cached prefix (`prefix`), or arrival (`fcfs`)."""

    preemption: Literal[PREEMPTIONS] = "auto"  # type: ignore[valid-type]
    """What becomes of KV that is taken back: moved to host memory (`swap`), computed again
    (`recompute`), or whichever is predicted to cost less (`auto`)."""

    cached_prompt_cost: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of a prompt token's cost that one found in the prefix cache counts for."""

    urgency_debt: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """`fair`: how many cost units, divided by weight, a tenant may be ahead of the next in line and
    still go first because its deadline is nearer."""

    tpot_target: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Seconds per output token that prompts of others may not push running answers beyond: their
    chunks are cut to fit. 0 sets no target; prompts then take what a step holds. A tenant may have
    its own (`tenants update --tpot-target-ms`)."""

    pause: bool = True
    """Whether work may lose its place in the batch and keep its KV."""

    def to_config(self, admission: AdmissionSettings) -> PolicyConfig:
        """The engine's own form."""
        return PolicyConfig(
            admission=admission.to_config(),
            fairness=FairnessConfig(
                name=self.fairness,
                max_lag=self.max_lag,
                requests_per_minute=self.requests_per_minute,
                quantum=self.quantum,
                ageing=inf if self.ageing is None else self.ageing,
            ),
            cost=CostConfig(self.cost, self.prompt_cost, self.output_cost),
            ordering=self.ordering,
            preemption=self.preemption,
            pause=self.pause,
            cached_prompt_cost=self.cached_prompt_cost,
            urgency_debt=self.urgency_debt,
            tpot_target=self.tpot_target,
        )


class EngineSettings(Section):
    """How the engine is run."""

    max_restarts: Annotated[int, Field(ge=0, le=100)] = 3
    """Times that a failed engine is built anew within ten minutes; after that the process exits."""

    step_timeout: Seconds = 120.0
    """Seconds after which a step of the model counts as hung and the engine as failed."""

    share_prefixes: bool = False
    """Whether tenants may use each other's cached prompts. Answer times then tell a tenant what
    others have asked lately."""

    command_log: File | None = None
    """File that keeps everything done to the scheduler, for `watermaster replay`: who asked when
    for how much, never what. Each start begins a new one; the last two are kept beside it, and that
    of `model.fallback`. Absent: nothing is recorded."""

    command_log_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    """Size at which recording ends until the next start, in bytes; serving goes on."""


class StoreSettings(Section):
    """Where tenants and keys are kept."""

    url: str = ""
    """URL of your own Redis or Valkey (`redis://`, `rediss://` or `unix://`). Empty: an embedded
    Valkey is started."""

    data_dir: Folder = Path(".watermaster")
    """Folder of the embedded store, the demo keys, the usage journal, and what else this server
    must find again."""

    lease: Annotated[float, Field(ge=3, le=3600)] = 45.0
    """Seconds for which a server may go on with its share of tenants' limits while the store is
    away. The share of a server that is lost with its folder comes back to the others after as
    long."""

    @property
    def usage_dir(self) -> Path:
        """Folder of the usage journal."""
        return self.data_dir / "usage"

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        # The value stays out of the message: it may hold a password.
        if url and not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// or unix://")
        return url


class TelemetrySettings(Section):
    """Traces, metrics and the event log."""

    exporter: Literal["none", "console", "otlp"] = "none"
    """Where spans go: nowhere, standard error, or an OTLP collector."""

    endpoint: str = ""
    """URL of the OTLP collector's trace endpoint. Empty: what the `OTEL_*` variables say."""

    event_log_size: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Events kept in memory; the oldest make room."""


class LogSettings(Section):
    """The log of the process, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages shown."""

    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""


class Settings(Section):
    """All sections. Some choices only make sense together."""

    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    kernel: KernelSettings = KernelSettings()
    policy: PolicySettings = PolicySettings()
    admission: AdmissionSettings = AdmissionSettings()
    engine: EngineSettings = EngineSettings()
    prices: PriceSettings = PriceSettings()
    usage: UsageSettings = UsageSettings()
    store: StoreSettings = StoreSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        model = self.model
        if AUTO in (model.id, model.fallback_id):
            raise ValueError(f"model.id and model.fallback_id must not be {AUTO!r}")
        if model.fallback is not None and model.id == model.fallback_id:
            raise ValueError(f"model.id and model.fallback_id must differ, and are {model.id!r}")
        if model.fallback is None and self.admission.on_infeasible == OnInfeasible.ROUTE:
            raise ValueError("admission.on_infeasible is route, but model.fallback names no model")
        return self
