"""The script for a card: runs here dry, without the web stack, and judges by its goals."""

import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.runtime.device_check import __main__ as script
from engine.runtime.device_check.__main__ import main
from engine.runtime.device_check.decode import read_weights
from engine.runtime.device_check.mixed import NAME as MIXED
from engine.runtime.device_check.mixed import some_requests
from engine.runtime.device_check.parts import PARTS
from engine.runtime.device_check.peers import BOUND, comparison, rate_of
from engine.runtime.device_check.peers import NAME as PEER
from engine.runtime.device_check.prefill import prefill_flops
from engine.runtime.device_check.process import listen
from engine.runtime.device_check.report import Row, as_json, table
from engine.runtime.device_check.target import DRY, Target
from engine.runtime.device_check.waiting import places
from engine.runtime.loader import build_model
from engine.runtime.random_weights import RandomWeights, geometry
from tests.test_engine_imports import ABSENT

ROOT = Path(__file__).parents[2]
MODULE = "engine.runtime.device_check"
CPU = Target(torch.device("cpu"), torch.float32, DRY)

# read by every interpreter at start, also that of a part
WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
OTHERS = ("mixed", "peer")  # tried beside each other, with transformers
OURS = [part.name for part in PARTS if part.name not in OTHERS]


def found_by(file, *options, **environment):
    """What a dry run finds, by name; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--dry-run", "--json", str(file), *options],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert all(f"| {name} |" in done.stdout for name in rows)
    assert "dry run: on the CPU at tiny sizes" in done.stdout
    return rows


@pytest.mark.model  # slow as those are
def test_a_dry_run_prints_its_table_on_a_host_without_a_web_stack(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    rows = found_by(
        tmp_path / "found.json",
        *("--only", *OURS),
        TRITON_INTERPRET="1",
        PYTHONPATH=str(tmp_path),
    )
    musts = [row for row in rows.values() if row["must"]]
    # text; attention and operators in two formats; attention over two 8-bit ones; five draws
    assert len(musts) == 1 + 4 + 2 + 5
    assert all(row["met"] for row in musts)
    assert rows["decode step, batch 4, context 64"]["value"] > 0
    assert rows["decode step, batch 4, context 64"]["goal"] is None
    assert rows["decode step, batch 4, context 64, 8-bit cache"]["value"] > 0


@pytest.mark.model
def test_transformers_serves_the_same_requests(tmp_path):
    """Its real interface, on the CPU; a row says how many times its rate ours is."""
    pytest.importorskip("transformers")
    rows = found_by(tmp_path / "found.json", "--only", *OTHERS)
    assert rows[PEER]["value"] > 0
    assert rows["ours, times its rate"]["value"] == rows[MIXED]["value"] / rows[PEER]["value"]


@pytest.mark.model
def test_requests_that_take_transformers_too_long_bound_its_rate():
    pytest.importorskip("transformers")
    shape = geometry("tiny")
    requests = some_requests(CPU, shape.vocab_size)[:2]
    began = time.perf_counter()
    found = rate_of(replace(CPU, sizes=replace(DRY, patience=0.0)), shape, requests)
    assert not found.whole
    # all of their tokens in less time than this took, though hardly one was made
    assert found.rate > sum(request.output for request in requests) / (time.perf_counter() - began)
    assert found.attention.endswith("sdpa")  # 5.17 says "paged|" before it


def test_a_rate_that_is_only_bounded_misses_no_goal():
    def said(rate, note=""):
        return next(comparison(Row(MIXED, 4000.0), Row(PEER, rate, note=note)))

    assert (said(1000.0).met, said(1001.0).met) == (True, False)
    bounded = [said(rate, f"{BOUND}: it was not done after 90 s") for rate in (1000.0, 1001.0)]
    assert [row.met for row in bounded] == [True, None]
    assert {row.note for row in bounded} == {"at least: its run was not done"}
    assert not list(comparison(Row(MIXED, 4000.0), Row(PEER, note="transformers failed")))


def test_the_peers_run_ends_before_its_part_does(monkeypatch):
    """Also where less is left than the part may take: its rate is then bounded, and not lost."""
    heard = []

    def listened(command, limit, hear):
        heard.append((limit, float(command[command.index("--limit") + 1])))
        return ""

    monkeypatch.setattr(script, "listen", listened)
    assert main(["--dry-run", "--only", "peer", "--limit", "60"]) == 0
    ((given, told),) = heard
    assert given == pytest.approx(told, abs=0.5)
    assert script._target(told, dry=True).sizes.patience == told / 2 < 60 / 2 + 0.5
    assert script._target(480.0, dry=True).sizes.patience == DRY.patience


def part_that(does):
    """A command that does this after it has found one row."""
    code = f"""
import os, sys, time
print("what a library says as it is imported", flush=True)
from engine.runtime.device_check.process import tell
from engine.runtime.device_check.report import Row

def rows():
    yield Row("first", 1.0)
    print("what a library says")
    {does}

os._exit(tell(rows()))
"""
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("does", "fault"),
    [
        ("yield Row('second', note='all of it')", ""),
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("os.kill(os.getpid(), 11)", "its process ended with status -11"),
        ("time.sleep(60)", "it was ended after 5 s"),
    ],
    ids=["well", "raises", "crashes", "hangs"],
)
@pytest.mark.model  # starts processes
def test_what_a_part_found_is_kept_however_it_ends(does, fault):
    heard = []
    limit = 5.0 if "sleep" in does else 60.0
    assert listen(part_that(does), limit, heard.append) == fault
    assert heard == [Row("first", 1.0), Row("second", note="all of it")][: 2 if not fault else 1]


def test_a_failed_part_costs_no_other_and_the_file_is_there_after_each(tmp_path, monkeypatch):
    file, files = tmp_path / "found.json", []

    def listened(command, limit, hear):
        files.append(json.loads(file.read_text())["rows"] if file.exists() else [])
        if "text" in command:
            return "RuntimeError: no kernel image"
        hear(Row("limit", limit))
        return ""

    monkeypatch.setattr(script, "listen", listened)
    assert main(["--dry-run", "--only", "limits", "text", "times", "--json", str(file)]) == 1
    assert [len(rows) for rows in files] == [0, 1, 2]
    names = [row["name"] for row in json.loads(file.read_text())["rows"]]
    assert names == ["limit", "part text", "limit"]
    assert main(["--dry-run", "--only", "limits", "times", "--json", str(file)]) == 0
    main(["--dry-run", "--only", "times", "--limit", "20", "--json", str(file)])
    assert json.loads(file.read_text())["rows"][0]["value"] <= 20
    assert main(["--dry-run", "--limit", "1", "--json", str(file)]) == 0
    notes = {row["note"] for row in json.loads(file.read_text())["rows"]}
    assert notes == {"no time was left for it"}


def test_what_is_planned_fits_the_time_of_the_whole():
    assert sum(part.usual for part in PARTS) <= script.LIMIT
    assert all(part.usual <= part.limit for part in PARTS)


def test_of_what_torch_warns_of_only_waits_are_counted():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation (Triggered in c10)", stacklevel=1)
    assert [place.partition(":")[0] for place in places(told)] == ["test_device_check.py"]


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


def test_what_a_broken_kernel_gives_leaves_a_file_that_can_be_read():
    rows = [Row("attention", float("inf"), goal=0.03, at_most=True, must=True)]
    rows.append(Row("draws", float("nan"), goal=98.0, must=True, more={"MiB": float("-inf")}))
    text = as_json({}, rows)
    found = json.loads(text, parse_constant=pytest.fail)["rows"]
    assert [row["value"] for row in found] == ["inf", "nan"]
    assert [row["met"] for row in found] == [False, False]
    assert found[1]["more"] == {"MiB": "-inf"}


def test_what_the_first_call_compiles_is_not_timed(monkeypatch):
    """Counted, it would leave a single call a round, and launching it would be its time."""
    done, timed = [], []

    def timed_round(_target, work, calls):
        timed.append(len(done))
        for _ in range(calls):
            work()
        return 1e-6

    monkeypatch.setattr(Target, "_round", timed_round)
    assert CPU.seconds(lambda: done.append(None)) == 1e-6
    assert timed[0] == 1


def test_a_card_that_lacks_an_8_bit_format_is_not_asked_for_it(monkeypatch):
    """Ampere does not convert the usual one: that is no failure of the check."""
    card = Target(torch.device("cuda", 0), torch.bfloat16, DRY)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    assert card.narrow == (torch.float8_e5m2,)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert card.narrow == (torch.float8_e4m3fn, torch.float8_e5m2)


def test_what_a_step_must_do_is_counted_by_hand():
    shape = geometry("tiny")
    weights = RandomWeights(shape, torch.float32, torch.device("cpu"))
    model = build_model(shape, weights, torch.float32, torch.device("cpu"))
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    assert read_weights(model) == 4 * (2 * layer + 512 * 64 + 5 * 64)
    # 3 tokens: each layer's products, 6 pairs of query and key times 4 heads of 16 and back, head
    assert prefill_flops(shape, 3) == 2 * (2 * (3 * layer + 2 * 6 * 64) + 512 * 64)
