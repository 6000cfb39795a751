"""Compile every kernel variant for cards that need not be there, and check what it takes of them.

    python -m engine.runtime.kernels.compile_all [--quick] [--jobs N] [--write docs/kernels.md]

Prints a table; exits with 1 when a variant spills more bytes a thread than its bound, or needs more
registers or shared memory than a card has. `--quick` takes bfloat16 alone: all kernels of one
model, and attention of every head size.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import triton

from engine.runtime.kernels.ahead import Footprint, compile_ahead
from engine.runtime.kernels.variants import ATTENTION_CHECKS, FORMATS, MODELS, Part, parts, variants

CARDS = (80, 90)
# bytes a thread; float32 has no matrix units to multiply with, and is there to compare with
SPILL_BOUND, FLOAT32_SPILL_BOUND = 0, 64
MARKER = "<!-- what follows is written by engine.runtime.kernels.compile_all -->\n"
HEAD = (
    "| kernel | variant | card | registers | spilled B | shared B | matrix | copies B |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)

Row = tuple[str, str, int, Footprint]


def compile_part(part: Part, card: int) -> list[Row]:
    """What a pool's process does."""
    return [
        (variant.kernel, variant.shape, card, compile_ahead(variant.launch, card))
        for variant in variants(part, card)
    ]


def compile_all(work: list[Part], jobs: int) -> list[Row]:
    """Rows in order of kernel, variant and card; what two models share appears once."""
    rows: dict[tuple[str, str, int], Row] = {}
    for card in CARDS:  # with processes of its own; see `compile_ahead`
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            for found in pool.map(compile_part, work, repeat(card)):
                rows |= {row[:3]: row for row in found}
    order: dict[str, int] = {}
    for kernel, *_rest in rows:
        order.setdefault(kernel, len(order))
    return sorted(rows.values(), key=lambda row: (order[row[0]], row[1], row[2]))


def table(rows: list[Row]) -> str:
    """Markdown; cards for which a kernel takes the same share a line."""
    cards: dict[tuple[str, str, Footprint], list[str]] = {}
    for kernel, shape, card, footprint in rows:
        cards.setdefault((kernel, shape, footprint), []).append(f"sm_{card}")
    lines = [
        f"| {kernel} | {shape} | {', '.join(where)} | {taken.registers} x {taken.threads} "
        f"| {taken.spilled} | {taken.shared} | {taken.matrix} | {taken.copies} |\n"
        for (kernel, shape, taken), where in cards.items()
    ]
    return HEAD + "".join(lines)


def quick(part: Part) -> bool:
    """Whether it is compiled where little time is."""
    names = (next(iter(MODELS)), *ATTENTION_CHECKS.values())
    return part.geometry in names and part.dtype == FORMATS[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="a Markdown file with the marker line in it")
    options = parser.parse_args()
    rows = compile_all(list(filter(quick, parts()) if options.quick else parts()), options.jobs)
    report = f"By Triton {triton.__version__}:\n\n{table(rows)}"
    sys.stdout.write(report)
    if options.write:
        text = options.write.read_text()
        options.write.write_text(text.partition(MARKER)[0] + MARKER + "\n" + report)
    failed = 0
    for kernel, shape, card, footprint in rows:
        bound = FLOAT32_SPILL_BOUND if "float32" in shape else SPILL_BOUND
        for breach in footprint.breaches(card, bound):
            failed += 1
            sys.stderr.write(f"error: {kernel} ({shape}) on sm_{card}: {breach}\n")
    sys.stderr.write(f"{len(rows)} compiled, {failed} limits broken\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
