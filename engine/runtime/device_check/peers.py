"""The same requests on transformers' continuous batching, where it is installed."""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.runtime.device_check.mixed import Request, some_requests
from engine.runtime.device_check.report import Row
from engine.runtime.device_check.target import Target
from engine.runtime.model_config import ModelConfig

GOAL = 4.0  # times its rate
NAME = "mixed run: transformers' continuous batching"
FIRST, FIRST_TOKENS = 16, 4  # requests and their output before those that are timed
BOUND = "less than this"  # how the note of a rate begins that was not measured to its end


@dataclass(frozen=True, slots=True)
class Served:
    """Output tokens a second, by the `attention` that it took.

    Of a run that was not done in the time it had, not `whole`: what would be if it had been.
    """

    rate: float
    whole: bool
    attention: str


def peer_rows(target: Target, shape: ModelConfig) -> Iterator[Row]:
    """Its rate; a fault of its own is a finding about it, not ours."""
    if importlib.util.find_spec("transformers") is None:
        yield Row(NAME, note="transformers is not installed")
        return
    requests = some_requests(target, shape.vocab_size)
    try:
        from transformers import __version__ as version

        found = rate_of(target, shape, requests)
    except Exception as error:  # noqa: BLE001 — whatever it is, it is a finding about it
        yield Row(NAME, note=f"transformers failed: {type(error).__name__}: {error}"[:400])
        return
    note = f"transformers {version}, its defaults, attention {found.attention}"
    if not found.whole:
        note = f"{BOUND}: it was not done after {target.sizes.patience:.0f} s; {note}"
    yield Row(NAME, found.rate, "tok/s", note=note)


def comparison(ours: Row, theirs: Row) -> Iterator[Row]:
    """Of two rates in output tokens a second, if both were measured."""
    if not ours.value or not theirs.value:
        return
    times, bound = ours.value / theirs.value, theirs.note.startswith(BOUND)
    # at least so many times: enough, or nothing is known
    goal = GOAL if not bound or times >= GOAL else None
    note = "at least: its run was not done" if bound else ""
    yield Row("ours, times its rate", times, "×", goal=goal, note=note)


def rate_of(target: Target, shape: ModelConfig, requests: Sequence[Request]) -> Served:
    """How quickly it serves all of `requests` at once, within `target.sizes.patience`.

    By the interface that transformers has had since 5.5 (tried with 5.5, 5.10, 5.16, 5.17 and
    5.24). RuntimeError if a request fails.
    """
    from transformers import GenerationConfig

    settings: Any = GenerationConfig  # transformers' own types are incomplete
    generation = settings(do_sample=False, eos_token_id=-1, pad_token_id=0)
    patience = target.sizes.patience
    # libraries load kernels at the first product of a size; backwards, for no prefix to be known
    first = [replace(r, prompt=r.prompt[::-1], output=FIRST_TOKENS) for r in requests[:FIRST]]
    # not inference_mode, in which its thread, begun without, could not write what is made here
    with torch.no_grad():
        model = _model(target, shape)
        manager = model.init_continuous_batching(generation, **_sized(target))
        attention = model.config._attn_implementation  # noqa: SLF001 — told under this name only
        if hasattr(manager, "warmup"):
            manager.warmup()
        manager.start()
        _serve(manager, "first", first, patience / 4)
        tokens, seconds, whole = _serve(manager, "timed", requests, patience)
        manager.stop(block=True, timeout=5.0)
    if not whole:
        tokens = sum(request.output for request in requests)
    return Served(tokens / seconds, whole, attention)


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


def _serve(
    manager: Any, name: str, requests: Sequence[Request], patience: float
) -> tuple[int, float, bool]:
    """Tokens that came, the seconds that took, and whether all were done within `patience`."""
    tokens, began = 0, time.perf_counter()
    left = {f"{name} {number}" for number in range(len(requests))}
    for number, request in enumerate(requests):
        manager.add_request(
            request.prompt.tolist(),
            request_id=f"{name} {number}",
            max_new_tokens=request.output,
        )
    while left and time.perf_counter() - began < patience:
        result = manager.get_result(timeout=1.0)
        if result is None:
            if not manager.is_running():
                raise RuntimeError(f"its thread ended with {len(left)} requests left")
        elif result.is_finished() and result.request_id in left:
            if result.error:
                raise RuntimeError(result.error)
            left.remove(result.request_id)
            tokens += len(result.generated_tokens)
    return tokens, time.perf_counter() - began, not left
