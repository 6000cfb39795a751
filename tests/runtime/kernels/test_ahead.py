"""Kernels compiled for cards that are not here: what they take, and that limits are enforced."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.runtime.kernels.ahead import Footprint
from engine.runtime.kernels.compile_all import CARDS, MARKER
from engine.runtime.kernels.variants import parts, variants

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "kernels.md"

# 64 keys a pass are more than Ampere's registers hold, which is why fewer are taken there
SPILLING = """
import torch
from engine.runtime.kernels.ahead import compile_ahead
from engine.runtime.kernels.variants import Part, variants
part = Part("llama-3-8b", torch.bfloat16, whole=False)
found = next(v for v in variants(part, 90) if v.kernel == "prefill")
taken = compile_ahead(found.launch, 80)
print(taken.spilled > 0, taken.breaches(80, 0) == [f"{taken.spilled} bytes spilled, at most 0"])
"""


def compiling(tmp_path, *command):
    """Runs Python without the interpreter that the tests beside this one use."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET")
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def cells_of(lines):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_whatever_is_launched_on_a_card_is_compiled_ahead(tmp_path):
    """By `device_check`, and by an executor of each model, at its start."""
    done = compiling(tmp_path, "-m", "tests.runtime.kernels.launched")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "kernels launched: 10\n"  # all but the write without a rotation


def test_the_published_table_has_whatever_is_compiled():
    rows = cells_of(PUBLISHED.read_text().partition(MARKER)[2].splitlines()[5:])
    published = {(row[0], row[1], card) for row in rows for card in row[2].split(", ")}
    assert published == {
        (variant.kernel, variant.shape, f"sm_{card}")
        for card in CARDS
        for part in parts()
        for variant in variants(part, card)
    }


def test_kernels_fit_their_cards_and_the_published_table_is_true(tmp_path):
    done = compiling(tmp_path, "-m", "engine.runtime.kernels.compile_all", "--quick")
    assert done.returncode == 0, done.stderr
    compiler, lines = done.stdout.splitlines()[0], done.stdout.splitlines()[4:]
    published = PUBLISHED.read_text().splitlines()
    if compiler in published:  # another one takes other registers
        assert [line for line in lines if line not in published] == []
    rows = cells_of(lines)
    assert {row[0] for row in rows} >= {"decode", "combine", "prefill", "rope + write", "draw"}
    attending = [row for row in rows if row[0] in ("decode", "prefill")]
    assert {row[1].split(",")[0].split(" x ")[1] for row in attending} == {"64", "80", "96", "128"}
    for kernel, shape, card, _, _, shared, matrix, copies in attending:
        assert matrix, "products run on the matrix units"
        if "cache" not in shape:
            assert copies == "16", "keys and values come 16 bytes a copy"
        if shape == "32/8 x 128, bfloat16":
            keys = 32 if (kernel, card) == ("prefill", "sm_80") else 64
            buffer = 2 * keys * 128 * 2  # keys and values of one pass
            assert int(shared) >= 2 * buffer, "one pass is read while another is computed"
    hopper = [row for row in attending if row[0] == "prefill" and row[2] == "sm_90"]
    assert {row[6] for row in hopper} == {"wgmma"}


def test_a_kernel_that_spills_is_found(tmp_path):
    done = compiling(tmp_path, "-c", SPILLING)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_each_limit_is_told():
    fits = Footprint(255, 0, 163 << 10, 256, "", "")
    assert fits.breaches(80, 0) == []
    assert fits.breaches(90, 0) == []
    too_much = Footprint(255, 8, (163 << 10) + 1, 512, "", "")
    assert too_much.breaches(80, 4) == [
        "8 bytes spilled, at most 4",
        "255 registers x 512 threads exceed 65536",
        "166913 bytes of shared memory exceed 166912",
    ]
    assert len(too_much.breaches(90, 8)) == 1
