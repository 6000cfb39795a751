"""The same requests on transformers' continuous batching, where it is installed."""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from engine.runtime.device_check.mixed import Request, some_requests
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target
from engine.runtime.model_config import ModelConfig

GOAL = 4.0  # times its rate
PATIENCE = 90.0  # seconds that its requests may take: so many that the part ends before its limit
NAME = "mixed run: transformers' continuous batching"


def peer_rows(target: Target, shape: ModelConfig) -> Iterator[Row]:
    """Its rate; a fault of its own is a finding about it, not ours."""
    if importlib.util.find_spec("transformers") is None:
        yield Row(NAME, note="transformers is not installed")
        return
    requests = some_requests(target, shape.vocab_size)
    try:
        from transformers import __version__ as version

        rate, whole = rate_of(target, shape, requests)
    except Exception as error:  # noqa: BLE001 — whatever it is, it is a finding about it
        yield Row(NAME, note=f"transformers failed: {type(error).__name__}: {error}"[:400])
        return
    note = f"transformers {version}, its defaults"
    if not whole:
        note = f"less than this: it was not done after {PATIENCE:.0f} s; {note}"
    yield Row(NAME, rate, "tok/s", note=note)


def comparison(ours: float, theirs: float) -> Row:
    """Of two rates in output tokens a second."""
    return Row("ours, times its rate", ours / theirs, "×", goal=GOAL)


def rate_of(
    target: Target, shape: ModelConfig, requests: Sequence[Request], patience: float = PATIENCE
) -> tuple[float, bool]:
    """Output tokens a second of all `requests` at once, and whether they ended within `patience`.

    If they did not, the rate is what would be if they ended then: it is less.

    By the interface that transformers has had since 5.5 (tried with 5.5, 5.10, 5.16 and 5.24).
    RuntimeError if a request fails.
    """
    from transformers import GenerationConfig

    settings: Any = GenerationConfig  # transformers' own types are incomplete
    generation = settings(do_sample=False, eos_token_id=-1, pad_token_id=0)
    # not inference_mode, in which its thread, begun without, could not write what is made here
    with torch.no_grad():
        model = _model(target, shape)
        manager = model.init_continuous_batching(generation, **_sized(target))
        if hasattr(manager, "warmup"):
            manager.warmup()
        manager.start()
        return _served(manager, requests, patience)


def _model(target: Target, shape: ModelConfig) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = shape.to_hf()
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    made: Any = AutoModelForCausalLM
    with torch.device(target.device):
        return made.from_config(config, dtype=target.dtype).eval()


def _sized(target: Target) -> dict[str, Any]:
    """Its own choices on a card; on a CPU it would take all memory."""
    if not target.dry:
        return {}
    from transformers import ContinuousBatchingConfig

    few: Any = ContinuousBatchingConfig
    return {"continuous_batching_config": few(num_blocks=16, max_batch_tokens=64)}


def _served(manager: Any, requests: Sequence[Request], patience: float) -> tuple[float, bool]:
    tokens, left, began = 0, len(requests), time.perf_counter()
    for number, request in enumerate(requests):
        manager.add_request(
            request.prompt.tolist(), request_id=str(number), max_new_tokens=request.output
        )
    while left and time.perf_counter() - began < patience:
        result = manager.get_result(timeout=1.0)
        if result is None:
            if not manager.is_running():
                raise RuntimeError(f"its thread ended with {left} requests left")
        elif result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            tokens, left = tokens + len(result.generated_tokens), left - 1
    seconds = time.perf_counter() - began
    manager.stop(block=True, timeout=5.0)
    if left:
        tokens = sum(request.output for request in requests)
    return tokens / seconds, not left
