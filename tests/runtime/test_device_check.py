"""The script for a card: runs here dry, without the web stack, and judges by its goals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.runtime.device_check.__main__ import main
from engine.runtime.device_check.decode import read_weights
from engine.runtime.device_check.prefill import prefill_flops
from engine.runtime.device_check.report import Row, as_json, table
from engine.runtime.loader import build_model
from engine.runtime.random_weights import RandomWeights, geometry
from tests.test_engine_imports import ABSENT

ROOT = Path(__file__).parents[2]

SCRIPT = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = ["device_check", "--dry-run", "--json", sys.argv[1]]
runpy.run_module("engine.runtime.device_check", run_name="__main__")
"""


@pytest.mark.timeout(300)
@pytest.mark.model  # slow as those are
def test_a_dry_run_prints_its_table_on_a_host_without_a_web_stack(tmp_path):
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", f"ABSENT = {ABSENT!r}\n{SCRIPT}", str(tmp_path / "found.json")],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "dry run: on the CPU at tiny sizes" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert all(f"| {name} |" in done.stdout for name in rows)
    musts = [row for row in rows.values() if row["must"]]
    assert len(musts) == 6  # text, attention and operators in two formats, draws
    assert all(row["met"] for row in musts)
    assert rows["decode step, batch 4, context 64"]["value"] > 0
    assert rows["decode step, batch 4, context 64"]["goal"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_card_it_says_so(capsys):
    assert main([]) == 2
    assert "no CUDA device here" in capsys.readouterr().out


def test_goals_are_of_the_share_where_there_is_one():
    step = Row("step", 4.0, "ms", share=0.9, goal=0.85)
    gap = Row("gap", 60.0, "µs", goal=50.0, at_most=True)
    assert (step.met, gap.met) == (True, False)
    assert Row("none", 1.0, "s").met is None
    assert Row("skipped", goal=0.5, note="no room").met is None
    lines = table([step, gap, Row("skipped", goal=0.5, note="no room")]).splitlines()
    assert lines[2] == "| step | 4 ms | 90.0% | ≥ 85% met |  |"
    assert lines[3] == "| gap | 60 µs |  | ≤ 50 µs MISSED |  |"
    assert lines[4].startswith("| skipped | not run |")
    written = json.loads(as_json({"card": "none"}, [gap]))
    assert (written["about"], written["rows"][0]["met"]) == ({"card": "none"}, False)


def test_what_a_step_must_do_is_counted_by_hand():
    shape = geometry("tiny")
    weights = RandomWeights(shape, torch.float32, torch.device("cpu"))
    model = build_model(shape, weights, torch.float32, torch.device("cpu"))
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    assert read_weights(model) == 4 * (2 * layer + 512 * 64 + 5 * 64)
    # 3 tokens: each layer's products, 6 pairs of query and key times 4 heads of 16 and back, head
    assert prefill_flops(shape, 3) == 2 * (2 * (3 * layer + 2 * 6 * 64) + 512 * 64)
