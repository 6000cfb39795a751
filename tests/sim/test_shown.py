"""What the tables tell beside the usual where a scenario asks for it."""

import numpy as np

from engine.core.commands import FlowNode
from engine.sim.profile import A10G_LLAMA2_7B
from loadgen.data import DataFolder
from loadgen.endings import endings
from loadgen.endings_table import endings_table
from loadgen.ratio_table import ratio_table
from loadgen.record import Fate
from loadgen.report import tables
from loadgen.scenario import Ratio, load_scenario
from loadgen.simulation import Rules, Simulation
from loadgen.summary import longest_steps
from loadgen.sweep import Cell, Run, cells, run_grid
from loadgen.workload import Request, Workload
from telemetry.events import Cause
from tests.sim.runs import kernel, workload


def test_ratios_are_those_of_the_means_over_seeds_at_the_first_rate():
    def run(policy: str, seed: int, batch: float, scale: float = 1.0) -> Run:
        return Run(Cell(policy, scale, seed), {"steps": {"mean_batch": batch}}, 0.0)

    runs = [run("a", 0, 7.0), run("a", 1, 9.0), run("b", 0, 3.0), run("b", 1, 5.0)]
    runs += [run("a", 0, 100.0, scale=2.0)]
    header, rows = ratio_table(runs, [Ratio("a", "b", 2.5), Ratio("a", "absent", 2.0)])
    assert rows == [("a", "8.000", "b", "4.000", "2.0000", "2.5000", "-20.00%")]
    assert len(header) == len(rows[0])


def test_endings_by_hand():
    request = Request(0, 0, 10, 100, deadline=50)
    served = {"arrived": 0, "admitted": 0, "first_token": 5}
    fates = [
        Fate(request, **served, ended=50, cause=Cause.STOP, output_tokens=7),
        Fate(request, **served, ended=51, cause=Cause.STOP, output_tokens=100),  # late
        Fate(request, **served, ended=9, cause=Cause.LENGTH, output_tokens=20, shortened=True),
        Fate(request, **served, ended=50, cause=Cause.DEADLINE, output_tokens=3),
        Fate(request, **served, ended=50, cause=Cause.PARTIAL, output_tokens=4),
        Fate(request, arrived=0, ended=50, cause=Cause.DEADLINE),
        Fate(request, arrived=0, ended=30, cause=Cause.RELEGATED),
        Fate(request, arrived=0, ended=30, cause=Cause.DISPLACED),
        Fate(request, ended=0, cause=Cause.QUEUE_FULL),
        Fate(request, arrived=0),
    ]
    assert endings(fates) == {
        "offered": 10,
        "whole": 2,
        "shortened": 1,
        "partial": 1,
        "cut": 1,
        "refused": 1,
        "displaced": 1,
        "dropped": 2,
        "unfinished": 1,
        "tokens_in_time": 7 + 20 + 3 + 4,
    }


def test_endings_are_summed_over_seeds_and_what_never_happened_is_left_out():
    none = dict.fromkeys(("shortened", "partial", "cut", "displaced", "dropped", "unfinished"), 0)

    def run(seed: int, whole: int, refused: int) -> Run:
        counts = {"offered": whole + refused, "whole": whole, "refused": refused, **none}
        client = {"client": "a", "endings": {**counts, "tokens_in_time": 1000 * whole}}
        return Run(Cell("p", 1.0, seed), {"clients": [client]}, 0.0)

    header, rows = endings_table([run(0, 3, 1), run(1, 4, 0)])
    assert header[3:] == ("offered", "whole", "refused", "output tokens in time")
    assert rows == [("p", "1", "a", "8", "7", "1", "7,000")]


def test_the_longest_step_is_the_longest_between_a_requests_own_tokens():
    times = np.array([1, 3, 4, 9, 10, 30]) * 10**9
    served = {"cause": Cause.STOP, "output_tokens": 3}
    fates = [
        Fate(Request(0, 0, 1, 3), first_token=3 * 10**9, ended=9 * 10**9, **served),
        Fate(Request(0, 0, 1, 3), first_token=9 * 10**9, ended=10 * 10**9, **served),
        Fate(Request(0, 0, 1, 1), first_token=10**9, ended=10**9, cause=Cause.STOP),
    ]
    assert longest_steps(fates, times) == [5.0, 1.0]


def test_prompts_that_begin_alike_find_what_the_first_computed():
    """Of 100 tokens 64 are alike: four blocks, computed by the first of the two beginnings each."""
    load = workload(
        [(0.0, "a", 100, 2), (1.0, "a", 100, 2), (2.0, "a", 100, 2), (3.0, "a", 100, 2)]
    )
    alike = [(0, 64), (0, 64), (1, 64), (1, 64)]
    requests = tuple(
        Request(r.arrival, 0, r.prompt, r.output, origin=r.origin, prefix=prefix, shared=shared)
        for r, (prefix, shared) in zip(load.requests, alike, strict=True)
    )
    config = kernel(num_blocks=1000, block_size=16, prefix_cache=True)
    flows = ((FlowNode("a"),),)
    simulation = Simulation(Workload(flows, requests), config, A10G_LLAMA2_7B, Rules())
    totals = simulation.run().totals
    assert (totals.cached_tokens, totals.prompt_tokens) == (2 * 64, 4 * 100 - 2 * 64)


TEXT = """
title = "A small flood"
duration = 8.0
kernel = { kv_tokens = 2000, max_running = 8, max_step_tokens = 256, max_queued_requests = 12 }
grid = { show = ["cached", "tpot", "outcomes"] }

[[clients]]
name = "a"
phases = [{ rate = 3.0 }]
prompt = 30
output = 10

[[clients]]
name = "b"
phases = [{ rate = 60.0 }]
prompt = 30
output = 10

[policies.displace]
[policies.keep]
admission = { displace = false }
"""


def test_a_scenario_chooses_what_is_shown(tmp_path):
    """A full queue, in which the small tenant may take the places of the large one, or not."""
    file = tmp_path / "flood.toml"
    file.write_text(TEXT)
    scenario = load_scenario(str(file))
    runs = run_grid(scenario, cells(scenario, (), (), None), DataFolder(), 1, lambda _run: None)
    found = tables(scenario, runs)
    for header, rows in found:
        assert {len(row) for row in rows} == {len(header)}
    (policies, _), (clients, _), (endings_header, rows) = found
    assert policies[-1] == "cached"
    assert clients[-4:] == ("p50 TPOT", "p99 TPOT", "p50 longest step", "p99 longest step")
    whole, displaced = endings_header.index("whole"), endings_header.index("displaced")
    by_name = {row[:3:2]: row for row in rows}
    assert int(by_name["displace", "a"][whole]) > int(by_name["keep", "a"][whole])
    assert int(by_name["displace", "b"][displaced]) > 0
    assert {by_name["keep", name][displaced] for name in "ab"} == {"0"}
