"""Kernel configuration. A plain dataclass, so that gateway and loadgen share it."""

from dataclasses import dataclass, field
from math import inf

from policies.config import PolicyConfig


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Sizes and limits of one engine. Every queue and table of the kernel is bounded by these."""

    num_blocks: int  # KV blocks in the pool
    block_size: int = 16  # tokens in a KV block
    max_running: int = 64  # sequences in the batch
    max_step_tokens: int = 512  # positions computed by one step
    min_chunk: int = 32  # smallest prefill chunk worth a step, in tokens
    max_context: int = 8192  # prompt plus output, in tokens
    vocab_size: int = 49152
    max_queued_requests: int = 1024  # waiting sequences of all tenants together
    max_queued_tokens: int = 2_000_000  # their prompt tokens
    tenant_queued_requests: int = 256  # default cap of one tenant, unless its record says otherwise
    tenant_queued_tokens: int = 500_000
    kv_reserve: float = 0.02  # share of the pool kept free for growth when admitting
    kv_growth_deviations: float = 1.5  # above its mean, growth that must fit what runs
    kv_bypass_limit: int = 32  # admissions that may pass a head that waits for KV blocks
    max_tombstones: int = 4096  # cancelled scopes remembered
    tombstone_ttl: int = 600_000_000_000  # nanoseconds
    draft_tokens: int = 0  # speculative positions after each decode position
    max_flows: int = 10_000  # nodes of the flow tree
    max_in_flight: int = 1  # steps launched before the first of them is waited for
    prefix_cache: bool = True  # whether full blocks are published and found again
    host_blocks: int = 0  # host blocks that swapped-out KV may occupy
    host_block_ns: float = 0.0  # time to move one block one way; 0 counts as free
    host_overlap: bool = False  # whether moves run beside a step's computation, or before it
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "block_size",
            "max_running",
            "max_step_tokens",
            "min_chunk",
            "max_context",
            "vocab_size",
            "max_queued_requests",
            "max_queued_tokens",
            "tenant_queued_requests",
            "tenant_queued_tokens",
            "max_tombstones",
            "max_flows",
            "max_in_flight",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.kv_reserve < 1:
            raise ValueError(f"kv_reserve must be in [0, 1), not {self.kv_reserve}")
        if not 0 <= self.kv_growth_deviations < inf:
            raise ValueError(
                f"kv_growth_deviations must be finite and at least 0, not "
                f"{self.kv_growth_deviations}"
            )
        decodes = self.max_running * (1 + self.draft_tokens)
        if self.max_step_tokens < decodes + self.min_chunk:
            raise ValueError(
                f"max_step_tokens must be at least {decodes + self.min_chunk} (a decode row with "
                f"{self.draft_tokens} drafts for each of max_running {self.max_running} "
                f"sequences, and one min_chunk of {self.min_chunk}), not {self.max_step_tokens}"
            )
