"""A step-time model from first principles: the larger of the compute and the memory bound."""

from dataclasses import dataclass

from engine.sim.profile import DEFAULT_LINK, HostLink, StepShape


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """Sizes of a decoder-only transformer with grouped-query attention and a gated MLP."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    bytes_per_value: int = 2

    @property
    def layer_parameters(self) -> int:
        """Weights that every position is multiplied with, in all layers."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def head_parameters(self) -> int:
        """Weights of the output projection, used only where a token is drawn."""
        return self.hidden * self.vocabulary

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one position occupies."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value

    @property
    def attention_flops(self) -> int:
        """Operations for one position to attend to one other: scores and weighted values."""
        return 4 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class RooflineProfile:
    """A step lasts as long as its operations at `flops` or its bytes at `bandwidth`, plus overhead.

    The bytes are the weights, read once, and the keys and values attended to. `flops` (per second)
    and `bandwidth` (bytes per second) are what the device reaches in practice: `flop_efficiency`
    and `bandwidth_efficiency` of its data sheet (Williams et al., Roofline, CACM 2009). `overhead`
    is in milliseconds.
    """

    model: ModelGeometry
    flops: float
    bandwidth: float
    flop_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    overhead: float = 1.0
    link: HostLink = DEFAULT_LINK

    def duration(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes."""
        positions = shape.prefill_tokens + shape.decode_sequences
        compute = 0.0
        if positions:
            compute = 1e3 * max(self._compute(shape, positions), self._memory(shape))
        return self.link.step(compute, shape, self.overhead)

    def _compute(self, shape: StepShape, positions: int) -> float:
        model = self.model
        attended = shape.prefill_context + shape.context_tokens
        drawn = shape.decode_sequences + (1 if shape.prefill_tokens else 0)
        operations = 2 * (positions * model.layer_parameters + drawn * model.head_parameters)
        operations += model.attention_flops * attended
        return operations / (self.flops * self.flop_efficiency)

    def _memory(self, shape: StepShape) -> float:
        model = self.model
        weights = (model.layer_parameters + model.head_parameters) * model.bytes_per_value
        cache = (shape.context_tokens + shape.prefill_tokens) * model.kv_bytes_per_token
        return (weights + cache) / (self.bandwidth * self.bandwidth_efficiency)


LLAMA3_8B = ModelGeometry(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocabulary=128_256
)

# Dense bf16 rate and memory bandwidth of the data sheets (SXM boards); the host link is PCIe 5.0.
_PCIE5 = HostLink(bytes_per_second=50e9, bytes_per_token=LLAMA3_8B.kv_bytes_per_token)
H100_8B = RooflineProfile(LLAMA3_8B, flops=989e12, bandwidth=3.35e12, link=_PCIE5)
H200_8B = RooflineProfile(LLAMA3_8B, flops=989e12, bandwidth=4.8e12, link=_PCIE5)
