"""The same requests on transformers' continuous batching, where it is installed."""

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

from engine.runtime.device_check.mixed import Request, Run
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target
from engine.runtime.model_config import ModelConfig

GOAL = 4.0  # times its rate
NAME = "mixed run: transformers' continuous batching"


def peer_rows(
    target: Target, shape: ModelConfig, requests: Sequence[Request], ours: Run, patience: float
) -> list[Row]:
    """It has `patience` seconds for all requests."""
    if target.dry:
        return [Row(NAME, note="a dry run has no card")]
    if importlib.util.find_spec("transformers") is None:
        return [Row(NAME, note="transformers is not installed")]
    try:
        rate = _rate(target, shape, requests, patience)
    except Exception as error:  # noqa: BLE001 — a peer's fault is a finding about it, not ours
        return [Row(NAME, note=f"it failed: {type(error).__name__}: {error}")]
    times = ours.rate / rate
    return [
        Row(NAME, rate, "tok/s"),
        Row("ours, times its rate", times, "×", goal=GOAL),
    ]


def _rate(
    target: Target, shape: ModelConfig, requests: Sequence[Request], patience: float
) -> float:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    raw = shape.to_hf()
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device(target.device):
        made: Any = AutoModelForCausalLM  # transformers' own types are incomplete
        model = made.from_config(config, dtype=target.dtype).eval()
    settings: Any = GenerationConfig
    generation = settings(do_sample=False, eos_token_id=-1, pad_token_id=0)
    tokens, left = 0, len(requests)
    with model.continuous_batching_context_manager(generation_config=generation) as manager:
        began = time.perf_counter()
        for number, request in enumerate(requests):
            manager.add_request(
                request.prompt.tolist(), request_id=str(number), max_new_tokens=request.output
            )
        while left:
            result = manager.get_result(timeout=1.0)
            if time.perf_counter() - began > patience:
                raise TimeoutError(f"{left} requests were left after {patience:.0f} s")
            if result is not None and result.is_finished():
                if result.error:
                    raise RuntimeError(result.error)
                tokens, left = tokens + len(result.generated_tokens), left - 1
        return tokens / (time.perf_counter() - began)
