"""Grids of runs, their figures and their tables; and the command."""

import json

import pytest
from click.testing import CliRunner

from engine.sim.jitter import JitteredProfile
from engine.sim.profile import A10G_LLAMA2_7B, StepShape, stall
from gateway.cli import main
from loadgen.data import DataFolder
from loadgen.goodput import goodput
from loadgen.meter import ReworkMeter
from loadgen.record import Fate
from loadgen.report import client_table, goodput_table, policy_table, tables
from loadgen.scenario import load_scenario
from loadgen.sweep import Cell, Run, cells, run_grid
from loadgen.tables import ScenarioError
from loadgen.workload import Request
from telemetry.events import Cause
from telemetry.units import SECOND

TEXT = """
title = "Two small clients"
duration = 20.0
device = { jitter = 0.02 }
kernel = { kv_tokens = 2000, max_running = 8, max_step_tokens = 256 }
windows = { seconds = 5.0, ticks = 3, warm_up = 0.0, horizon = 20.0 }
grid = { seeds = 2, scales = [1.0, 2.0] }

[[clients]]
name = "a"
phases = [{ rate = 1.0 }]
prompt = 30
output = 20

[[clients]]
name = "b"
weight = 2.0
phases = [{ rate = 2.0 }]
prompt = 30
output = { kind = "exponential", mean = 20.0, most = 100 }

[policies.fcfs]
fairness = { name = "fcfs" }

[policies.unknown]
lengths = "unknown"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def test_a_grid_covers_policies_scales_and_seeds_and_options_narrow_it(file):
    scenario = load_scenario(str(file))
    assert len(cells(scenario, (), (), None)) == 2 * 2 * 2
    assert cells(scenario, ("fcfs",), (1.5,), 1) == [Cell("fcfs", 1.5, 0)]
    with pytest.raises(ScenarioError, match="no policy 'vtc'; known are fcfs, unknown"):
        cells(scenario, ("vtc",), (), None)


def test_processes_give_the_same_figures_as_one(file):
    scenario = load_scenario(str(file))
    grid = cells(scenario, (), (1.0,), 1)
    seen = []
    alone = run_grid(scenario, grid, DataFolder(), 1, seen.append)
    spread = run_grid(scenario, grid, DataFolder(), 2, seen.append)
    assert [run.figures for run in alone] == [run.figures for run in spread]
    assert sorted(run.cell.policy for run in seen) == ["fcfs", "fcfs", "unknown", "unknown"]


def test_the_figures_of_a_run_account_for_every_request(file):
    scenario = load_scenario(str(file))
    (run,) = run_grid(scenario, [Cell("unknown", 1.0, 0)], DataFolder(), 1, lambda _run: None)
    figures = run.figures
    requests = figures["requests"]
    offered = requests["offered"]
    assert requests["completed"] == requests["accepted"] == offered > 30
    assert requests["ended"] == {"stop": offered}
    a, b = figures["clients"]
    assert a["offered"] + b["offered"] == offered
    assert figures["ttft"]["p50"] <= figures["ttft"]["p99"] < 5
    assert figures["goodput"] is None
    assert 0 < figures["steps"]["busy_share"] <= 1


def test_a_table_has_a_row_for_each_policy_and_rate(file):
    scenario = load_scenario(str(file))
    runs = run_grid(scenario, cells(scenario, (), (), 1), DataFolder(), 1, lambda _run: None)
    header, rows = policy_table(runs)
    assert [row[:3] for row in rows] == [
        ("fcfs", "1", "1"),
        ("fcfs", "2", "1"),
        ("unknown", "1", "1"),
        ("unknown", "2", "1"),
    ]
    assert {len(row) for row in rows} == {len(header)}
    clients_header, clients = tables(scenario, runs)[1]
    assert len(clients) == 8
    assert {len(row) for row in clients} == {len(clients_header)}


def test_clients_with_deadlines_are_told_apart_by_how_many_they_kept(file):
    """Two seconds are ample for a first token here, a microsecond is not enough."""
    for allowed, kept in (("[2.0]", "100.0%"), ("[1e-6]", "0.0%")):
        file.write_text(TEXT.replace("weight = 2.0", f"objectives = {{ first_token = {allowed} }}"))
        scenario = load_scenario(str(file))
        runs = run_grid(scenario, [Cell("fcfs", 0.5, 0)], DataFolder(), 1, lambda _run: None)
        header, (a, b) = client_table(runs)
        assert (a[header.index("on time")], b[header.index("on time")]) == ("-", kept)


def test_goodput_is_told_as_a_ratio_to_the_baseline():
    def run(policy: str, scale: float, rate: float) -> Run:
        figures = {
            "per_second": rate,
            "violations": 0.01,
            "refused_share": 0.2,
            "refused_at_arrival": 0.95,
            "by_prompt": [1.0, 0.9, 0.8],
            "by_output": [0.7, 0.6, 0.5],
        }
        return Run(Cell(policy, scale, 0), {"goodput": figures}, 0.0)

    runs = [run("edf", 1.0, 2.0), run("new", 1.0, 2.5), run("new", 1.5, 3.0)]
    header, rows = goodput_table(runs, "edf")
    assert header[:4] == ("policy", "rate", "on time/s", "/ edf")
    assert [row[:4] for row in rows] == [
        ("edf", "1", "2.000", "1.000"),
        ("new", "1", "2.500", "1.250"),
        ("new", "1.5", "3.000", "-"),
    ]
    assert rows[0][4:7] == ("1.0%", "20.0%", "95.0%")
    assert rows[0][7:] == ("100.0%", "90.0%", "80.0%", "70.0%", "60.0%", "50.0%")
    assert len(header) == len(rows[0])


def request_fate(deadline: float | None, first: float | None, **fields) -> Fate:
    at = None if deadline is None else int(deadline * SECOND)
    first_token = None if first is None else int(first * SECOND)
    return Fate(Request(0, 0, 1, 1, first_token_deadline=at), first_token=first_token, **fields)


def test_goodput_by_hand():
    fates = [
        request_fate(1.0, 0.5, arrived=0, admitted=0, cause=Cause.LENGTH),  # on time
        request_fate(1.0, 1.5, arrived=0, admitted=0, cause=Cause.LENGTH),  # late
        request_fate(1.0, None, arrived=0, cause=Cause.FIRST_TOKEN_DEADLINE),  # dropped in queue
        request_fate(1.0, None, cause=Cause.QUEUE_FULL),  # refused at arrival
        request_fate(1.0, None, cause=Cause.QUEUE_FULL),
        request_fate(None, 9.0, arrived=0, admitted=0),  # has no deadline: not counted
    ]
    found = goodput(fates, 10.0)
    del found["by_prompt"], found["by_output"]
    assert found == {
        "per_second": 0.1,
        "on_time_share": 0.2,
        "violations": 0.5,
        "refused_share": 0.6,
        "refused_at_arrival": pytest.approx(2 / 3),
    }
    assert goodput(fates[-1:], 10.0) is None


def test_on_time_shares_by_thirds_of_length():
    lengths = [(10, 600), (20, 500), (30, 400), (40, 300), (50, 200), (60, 100)]
    fates = [
        Fate(Request(0, 0, p, q, deadline=5, origin=i), admitted=0, arrived=0, ended=p // 10)
        for i, (p, q) in enumerate(lengths)
    ]
    for fate in fates:
        fate.cause = Cause.LENGTH
    found = goodput(fates, 1.0)  # only the last, which ends at 6, is late
    assert found["by_prompt"] == [1.0, 1.0, 0.5]
    assert found["by_output"] == [0.5, 1.0, 1.0]


def test_a_missed_completion_is_not_on_time():
    late = Fate(Request(0, 0, 1, 1, deadline=5), admitted=0, arrived=0, ended=6, cause=Cause.LENGTH)
    cut = Fate(
        Request(0, 0, 1, 1, deadline=5), admitted=0, arrived=0, ended=5, cause=Cause.DEADLINE
    )
    good = Fate(Request(0, 0, 1, 1, deadline=5), admitted=0, arrived=0, ended=5, cause=Cause.STOP)
    assert goodput([late, cut, good], 1.0)["on_time_share"] == pytest.approx(1 / 3)


def test_rework_is_what_steps_would_have_been_spared():
    meter = ReworkMeter(JitteredProfile(A10G_LLAMA2_7B, 0.5, 0))
    decode = {"decode_sequences": 1, "context_tokens": 0}
    meter.duration(StepShape(prefill_tokens=100, **decode))
    meter.committed(40)
    assert meter.recompute == pytest.approx(0.21314 * 40 * 1e6, abs=2)
    meter.duration(StepShape(prefill_tokens=40, **decode))
    meter.committed(40)  # without it the step would not have prefilled at all
    assert meter.recompute == pytest.approx((0.21314 * 80 + 35.84) * 1e6, abs=4)
    before = meter.recompute
    moving = StepShape(tokens_out=1000, **decode)
    meter.duration(moving)
    meter.committed(0)
    assert meter.recompute == before
    waiting = 1e3 * 1000 * 524_288 / 12e9 - (16.295 + 0.245)
    assert stall(meter, moving) == pytest.approx(waiting * 1e6, abs=2)
    assert stall(meter, StepShape(**decode)) == 0


def run_command(*args: str):
    return CliRunner().invoke(main, ["simulate", *args])


def test_the_command_prints_tables_and_writes_files(file, tmp_path):
    out = tmp_path / "results"
    result = run_command(str(file), "--policy", "fcfs", "--seeds", "1", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "Two small clients" in result.output
    written = json.loads((out / "small.json").read_text())
    assert [(r["policy"], r["scale"], r["seed"]) for r in written["runs"]] == [
        ("fcfs", 1.0, 0),
        ("fcfs", 2.0, 0),
    ]
    text = (out / "small.md").read_text()
    assert "| policy | rate | seeds |" in text
    assert f"    watermaster simulate {file} --policy fcfs --seeds 1\n" in text
    assert "| sup\\|ΔW\\| mean |" in text


def test_the_command_prints_json_and_lists_scenarios(file):
    result = CliRunner().invoke(
        main, ["simulate", str(file), "--rate", "1", "--seeds", "1", "--jobs", "1", "--json"]
    )
    assert {run["policy"] for run in json.loads(result.stdout)["runs"]} == {"fcfs", "unknown"}
    assert "vtc-overload" in run_command("--list").output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "no scenario is called 'nowhere'"),
        (["missing.toml"], "cannot read missing.toml: No such file"),
        (["vtc-overload", "--policy", "x"], "the scenario has no policy 'x'"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(arguments, complaint):
    result = run_command(*arguments)
    assert result.exit_code == 2
    assert f"error: {complaint}" in result.stderr
    assert result.stdout == ""
