"""`watermaster simulate`: the production scheduler in virtual time."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.common import CliError, Exit, json_option, note, print_json, print_table

if TYPE_CHECKING:
    from loadgen.data import DataFolder
    from loadgen.scenario import Scenario
    from loadgen.sweep import Cell, Run


@click.command()
@click.argument("scenario", required=False)
@click.option("--list", "list_", is_flag=True, help="List the scenarios that come with it.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only this policy.")
@click.option("--rate", "scales", multiple=True, type=float, help="Multiply all arrival rates.")
@click.option("--seeds", type=click.IntRange(min=1), help="Runs of each policy and rate.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes.  [default: one a core]")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Folder of traces.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Write files there.")
@json_option
def simulate(
    scenario: str | None,
    list_: bool,
    policies: tuple[str, ...],
    scales: tuple[float, ...],
    seeds: int | None,
    jobs: int | None,
    data: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run SCENARIO, a TOML file or the name of a shipped one, for each policy and seed.

    Options replace what the scenario's own grid says; --policy and --rate may be repeated. With
    --out, NAME.json holds all figures and NAME.md the tables beside the command that made them.
    """
    from loadgen import report
    from loadgen.data import DEFAULT_DATA, DataFolder
    from loadgen.scenario import load_scenario, shipped
    from loadgen.sweep import cells
    from loadgen.tables import ScenarioError

    try:
        if list_ or scenario is None:
            print_table(("scenario", "what it is"), shipped())
            return
        loaded = load_scenario(scenario)
        if out is not None:
            _make_folder(out)  # before hours may have gone into what could not be written
        grid = cells(loaded, policies, scales, seeds)
        runs = _run(loaded, grid, DataFolder(data or DEFAULT_DATA), jobs or os.cpu_count() or 1)
    except ScenarioError as error:
        raise CliError(str(error), Exit.CONFIGURATION) from None
    name = Path(scenario).stem
    if out is not None:
        command = _command(scenario, policies, scales, seeds)
        for path in report.write(out, name, loaded, runs, command):
            note(f"written: {path}")
    if as_json:
        print_json(report.to_json(loaded, name, runs))
        return
    click.echo(loaded.title)
    for header, rows in report.tables(loaded, runs):
        click.echo()
        print_table(header, rows)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"cannot write to {out}: {error.strerror}", Exit.CONFIGURATION) from None
    if not os.access(out, os.W_OK):
        raise CliError(f"cannot write to {out}: permission denied", Exit.CONFIGURATION)


def _command(
    scenario: str, policies: tuple[str, ...], scales: tuple[float, ...], seeds: int | None
) -> str:
    """The command that gives the same figures: how many processes and where to is left out."""
    words = ["watermaster", "simulate", scenario]
    words += [word for policy in policies for word in ("--policy", policy)]
    words += [word for scale in scales for word in ("--rate", f"{scale:g}")]
    words += [] if seeds is None else ["--seeds", str(seeds)]
    return shlex.join(words)


def _run(scenario: "Scenario", grid: "list[Cell]", data: "DataFolder", jobs: int) -> "list[Run]":
    """All runs of the grid, with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    from loadgen.sweep import run_grid

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("simulating", total=len(grid))
        return run_grid(scenario, grid, data, jobs, lambda _run: progress.advance(bar))
