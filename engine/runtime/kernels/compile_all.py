"""Compile every kernel variant for cards that need not be there, and check what it takes of them.

    python -m engine.runtime.kernels.compile_all [--quick] [--jobs N] [--write docs/kernels.md]

Prints a table; exits with 1 when a variant spills more than SPILL_BOUND bytes a thread, or needs
more registers or shared memory than a card has. `--quick` takes bfloat16 alone: all kernels of one
model, and attention of one more for each other head size.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from engine.runtime.kernels.ahead import Footprint, compile_ahead
from engine.runtime.kernels.variants import FORMATS, GEOMETRIES, attention_variants, variants

CARDS = (80, 90)
SPILL_BOUND = 0  # bytes a thread
QUICK = 4  # geometries, the first of the list
MARKER = "<!-- what follows is written by engine.runtime.kernels.compile_all -->\n"
HEAD = (
    "| kernel | variant | card | registers | spilled B | shared B | matrix | copies B |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)

Work = tuple[int, str, torch.dtype, bool]
Row = tuple[str, str, int, Footprint]


def compile_part(work: Work) -> list[Row]:
    """What a pool's process does: one model in one number format for one card."""
    card, geometry, dtype, everything = work
    chosen = variants if everything else attention_variants
    return [
        (variant.kernel, variant.shape, card, compile_ahead(variant.launch, card))
        for variant in chosen(card, geometry, dtype)
    ]


def compile_all(work: list[Work], jobs: int) -> list[Row]:
    """Rows in order of kernel, variant and card; what two models share appears once."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(compile_part, work))
    rows = {row[:3]: row for part in parts for row in part}
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="a Markdown file with the marker line in it")
    options = parser.parse_args()
    names, formats = list(GEOMETRIES), list(FORMATS)
    if options.quick:
        names, formats = names[:QUICK], formats[:1]
    work = [
        (card, name, dtype, not options.quick or name == names[0])
        for name in names
        for dtype in formats
        for card in CARDS
    ]
    rows = compile_all(work, options.jobs)
    report = table(rows)
    sys.stdout.write(report)
    if options.write:
        text = options.write.read_text()
        options.write.write_text(text.partition(MARKER)[0] + MARKER + "\n" + report)
    failed = 0
    for kernel, shape, card, footprint in rows:
        for breach in footprint.breaches(card, SPILL_BOUND):
            failed += 1
            sys.stderr.write(f"error: {kernel} ({shape}) on sm_{card}: {breach}\n")
    sys.stderr.write(f"{len(rows)} compiled, {failed} limits broken\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
