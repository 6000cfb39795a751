"""The keys of the models that are served. See `gateway.config`."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.config_section import Folder, Name, Section, Text


class ModelSettings(Section):
    """The model that is served."""

    id: Name = "smollm2-135m"
    """The name under which callers ask for the model."""

    source: Text = "smollm2-135m"
    """An installed model (`watermaster model list`), a folder in Hugging Face layout, or a .gguf
    file."""

    fallback: Text | None = None
    """A second, quicker model, given like `source`. It answers what the first cannot finish before
    its deadline: calls that ask for the model `auto`, and those of tenants whose `on_infeasible` is
    `route`. Each of the two has the sizes and limits of `[kernel]` for itself; only the memory
    found where `kv_memory` is absent is divided between them. Absent: none."""

    fallback_id: Name = "fallback"
    """The name under which callers ask for the second model itself, and find it in its answers."""

    cache: Folder | None = None
    """Folder of installed models. Absent: `~/.cache/watermaster`."""

    device: Literal["auto", "cpu", "cuda", "simulated"] = "auto"
    """Where the model runs; `auto` takes a GPU when there is one. `cuda` plans the next step while
    the card computes one, and needs Triton. `simulated` runs it nowhere:
    answers are arbitrary tokens, at once, to try out clients, limits and the gateway itself."""

    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the weights, and of the KV cache unless `kv_dtype` says otherwise; `auto` is
    bf16 on a GPU, and on a CPU with instructions for it or with AVX2, a C++ compiler and a model of
    the usual sizes; elsewhere fp32, which is quicker there. fp16 needs a GPU."""

    kv_dtype: Literal["auto", "fp8", "fp8_e5m2"] = "auto"
    """Number format of the KV cache; `auto` is that of the weights. The others hold twice as many
    tokens as bf16 or fp16, less exactly, and need a GPU: fp8 (e4m3) of compute capability 8.9 or
    later, fp8_e5m2 of any. Numbers are stored unscaled and saturate; `docs/gpu.md` says what that
    costs the default model."""

    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of the forward pass; 0 is torch's own choice, one for each core."""

    def of_fallback(self) -> "ModelSettings | None":
        """The same for the second model, if there is one."""
        if self.fallback is None:
            return None
        second = {"id": self.fallback_id, "source": self.fallback, "fallback": None}
        return self.model_copy(update=second)
