"""Correctness and speed on this machine's card, as a table and as JSON."""

import argparse
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from engine.core.config import KernelConfig
from engine.runtime.device_check.correctness import correctness_rows
from engine.runtime.device_check.decode import decode_rows
from engine.runtime.device_check.kernels import kernel_rows
from engine.runtime.device_check.limits import measure_limits
from engine.runtime.device_check.mixed import mixed_rows, some_requests
from engine.runtime.device_check.peers import peer_rows
from engine.runtime.device_check.prefill import prefill_rows
from engine.runtime.device_check.report import Row, as_json, table
from engine.runtime.device_check.target import DRY, Sizes, Target
from engine.runtime.device_check.waiting import waiting_rows
from engine.runtime.gpu.executor import GpuExecutor
from engine.runtime.gpu.graphs import buckets
from engine.runtime.gpu.memory import GIB, MIB, MemoryPlan, block_bytes, plan_memory
from engine.runtime.loader import CARD_READERS, build_model
from engine.runtime.model_config import ModelConfig
from engine.runtime.random_weights import GEOMETRIES, RandomWeights, geometry

LIMIT = 480.0  # seconds that the whole should take; the peer gets what is left of them


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 when something was not correct, 2 without a card."""
    options = _parser().parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        print("torch finds no CUDA device here; --dry-run shows the table on the CPU")
        return 2
    target = _target(dry=options.dry_run)
    name = options.random_weights or ("tiny" if target.dry else "llama-3-8b")
    began, rows = time.perf_counter(), []
    for found in check(target, geometry(name), peers=not options.no_peers):
        # a card's goals and limits mean nothing on a CPU
        row = replace(found, goal=None, share=None) if target.dry and not found.must else found
        rows.append(row)
        print(" | ".join(cell for cell in row.cells if cell), file=sys.stderr, flush=True)
    about = _about(target, name) | {"seconds": round(time.perf_counter() - began, 1)}
    print("\n".join(f"{key}: {value}" for key, value in about.items()) + "\n\n" + table(rows))
    if options.json:
        options.json.write_text(as_json(about, rows))
    return 1 if any(row.must and row.met is False for row in rows) else 0


def check(target: Target, shape: ModelConfig, *, peers: bool) -> Iterator[Row]:
    """All findings, each as soon as it is there."""
    began = time.perf_counter()
    yield from correctness_rows(target, shape)
    limits = measure_limits(target)
    yield from limits.rows()
    yield from kernel_rows(target, shape, limits)
    sizes = target.sizes
    longer = replace(shape, context_length=max(sizes.contexts) + 2 * sizes.steps)
    config, planned = _sized(target, longer)
    weights = RandomWeights(longer, target.dtype, target.device)
    readers = 1 if target.dry else CARD_READERS
    model = build_model(longer, weights, target.dtype, target.device, readers)
    executor = target.cold(model, config)
    yield _start_row(target, executor, config)
    yield from waiting_rows(target, executor, config)
    yield from decode_rows(target, model, executor, config, limits)
    yield from prefill_rows(target, executor, config, limits, longer)
    yield Row("memory left", target.memory()[0] / GIB, "GiB", note=f"planned: {planned}")
    runs, full = mixed_rows(target, executor, config)
    yield from runs
    del executor, model
    if peers:
        target.memory()  # gives back what the allocator holds
        patience = max(30.0, LIMIT - (time.perf_counter() - began))
        requests = some_requests(target, config.vocab_size)
        yield from peer_rows(target, shape, requests, full, patience)


def _start_row(target: Target, executor: GpuExecutor, config: KernelConfig) -> Row:
    """Capture and warm-up: how long, and what graphs and libraries keep of the memory."""
    before, began = target.memory()[0], time.perf_counter()
    executor.warm_up()
    seconds = time.perf_counter() - began
    count = len(buckets(config.max_running))
    kept = (before - target.memory()[0]) / MIB
    return Row(
        "start: graphs captured, kernels compiled",
        seconds,
        "s",
        more={"graphs": count, "MiB kept": kept, "MiB a graph, if all were theirs": kept / count},
    )


def _sized(target: Target, shape: ModelConfig) -> tuple[KernelConfig, MemoryPlan]:
    """As many KV blocks as the card has room for beside the model."""
    sizes = target.sizes
    config = KernelConfig(
        num_blocks=1,
        max_running=sizes.running,
        max_step_tokens=sizes.step_tokens,
        max_context=shape.context_length,
        vocab_size=shape.vocab_size,
        max_in_flight=2,
        min_chunk=min(32, sizes.step_tokens // 2),
        max_queued_tokens=1 << 40,
    )
    free, total = target.memory()
    planned = plan_memory(shape, target.dtype, config, total=total, free=free)
    useful = sizes.running * -(-config.max_context // config.block_size)
    blocks = planned.blocks(block_bytes(shape, target.dtype, config.block_size), None, useful)
    return replace(config, num_blocks=blocks), planned


def _target(*, dry: bool) -> Target:
    if dry:
        torch.set_num_threads(1)
        return Target(torch.device("cpu"), torch.float32, DRY)
    return Target(torch.device("cuda", torch.cuda.current_device()), torch.bfloat16, Sizes())


def _about(target: Target, geometry_name: str) -> dict[str, object]:
    about: dict[str, object] = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    if target.dry:
        about["dry run"] = "on the CPU at tiny sizes: its times say nothing about a card"
    else:
        from triton import __version__ as triton_version

        about["card"] = torch.cuda.get_device_name(target.device)
        about["triton"] = triton_version
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    return about | {"python": platform.python_version(), "geometry": geometry_name} | versions


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine.runtime.device_check", description=__doc__
    )
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, at tiny sizes")
    parser.add_argument(
        "--random-weights", choices=sorted(GEOMETRIES), help="geometry of the model (llama-3-8b)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there too")
    parser.add_argument("--no-peers", action="store_true", help="leave transformers out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
