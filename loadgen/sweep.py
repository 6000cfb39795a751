"""A scenario's grid of policies, rate scales and seeds, run in parallel processes."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from time import perf_counter
from typing import Any

from engine.core.loop import Recorder
from loadgen.data import DataFolder
from loadgen.hints import CommandList, check, sample
from loadgen.kernel_config import kernel_config
from loadgen.overrides import length_knowledge, senders_only
from loadgen.replay import Rerun, Work
from loadgen.scenario import Scenario
from loadgen.simulation import Rules, Simulation
from loadgen.summary import summarise
from loadgen.tables import ScenarioError
from loadgen.workload import make_workload
from telemetry.units import SECOND


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid."""

    policy: str
    scale: float
    seed: int


@dataclass(frozen=True, slots=True)
class Run:
    """A cell and its figures. `cost` is the run's own time in seconds of the wall."""

    cell: Cell
    figures: dict[str, Any]
    cost: float


def cells(
    scenario: Scenario, policies: Sequence[str], scales: Sequence[float], seeds: int | None
) -> list[Cell]:
    """The grid, policy by policy; an empty choice takes the scenario's own.

    Raises ScenarioError for a policy that the scenario does not have, and for no rate at all.
    """
    for policy in policies:
        if policy not in scenario.policies:
            known = ", ".join(scenario.policies)
            raise ScenarioError(f"the scenario has no policy {policy!r}; known are {known}")
    policies = policies or scenario.grid.policies or tuple(scenario.policies)
    try:
        scales = replace(scenario.grid, scales=tuple(scales) or scenario.grid.scales).scales
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    return [Cell(*cell) for cell in product(policies, scales, range(seeds or scenario.grid.seeds))]


def prepare(
    scenario: Scenario, cell: Cell, data: DataFolder, journal: Recorder | None = None
) -> Simulation:
    """The simulation of one cell. Raises ScenarioError for what the scenario has wrong."""
    profile = scenario.device.noise_free()
    workload = make_workload(scenario, cell.seed, cell.scale, data, profile)
    workload = senders_only(workload, scenario, cell.policy)
    until = None if scenario.drain else int(scenario.duration * SECOND)
    rules = Rules(
        lengths=length_knowledge(scenario, cell.policy),
        cap=scenario.cap,
        until=until,
        returns=scenario.returns,
        seed=cell.seed,
    )
    kernel = kernel_config(scenario, cell.policy, profile.link)
    device = scenario.device.build(cell.seed)
    return Simulation(workload, kernel, device, rules, journal=journal)


def run_cell(scenario: Scenario, cell: Cell, data: DataFolder) -> Run:
    """Simulate one cell and take its figures."""
    started = perf_counter()
    commands = CommandList()
    checked = scenario.returns.checked
    simulation = prepare(scenario, cell, data, commands if checked else None)
    recorder = simulation.run()
    hints = []
    if checked:
        work = Work(tuple(commands.given), simulation.lengths, {})
        again = Rerun(work, simulation.scheduler.config, scenario.device.build(cell.seed))
        hints = check(again, recorder.fates, sample(recorder.fates, checked))
    figures = summarise(scenario, simulation.workload, recorder, simulation.clock.now(), hints)
    return Run(cell, figures, perf_counter() - started)


def run_grid(
    scenario: Scenario,
    grid: Sequence[Cell],
    data: DataFolder,
    jobs: int,
    done: Callable[[Run], None],
) -> list[Run]:
    """All runs in the order of the grid; `done` is told of each as it ends."""
    if jobs == 1 or len(grid) == 1:
        runs = []
        for cell in grid:
            runs.append(run_cell(scenario, cell, data))
            done(runs[-1])
        return runs
    found: dict[Cell, Run] = {}
    with ProcessPoolExecutor(min(jobs, len(grid)), mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(run_cell, scenario, cell, data) for cell in grid]
        try:
            for task in as_completed(tasks):
                run = task.result()
                found[run.cell] = run
                done(run)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[cell] for cell in grid]
