"""`watermaster bench simulator`: how fast virtual time passes on this machine."""

from dataclasses import asdict

import click

from gateway.cli.common import json_option, print_json

TARGETS = {25: ("steps a second", 8_000), 256: ("sequence-steps a second", 600_000)}


@click.command()
@click.option("--steps", default=1000, show_default=True, help="Steps of each repeat; 25 running.")
@click.option("--repeat", default=5, show_default=True, help="Measurements of each kind.")
@json_option
def simulator(steps: int, repeat: int, *, as_json: bool) -> None:
    """Simulated steps a second against the project's targets, on one core."""
    from loadgen.simulator_cost import measure
    from loadgen.stats import spread

    small = list(measure(25, steps, repeat))
    large = list(measure(256, max(1, steps // 4), repeat))
    if as_json:
        print_json([asdict(speed) for speed in (*small, *large)])
        return
    rows = (
        (25, [speed.steps_per_second for speed in small]),
        (256, [speed.sequence_steps_per_second for speed in large]),
    )
    for running, values in rows:
        name, target = TARGETS[running]
        ratios = spread([value / target for value in values])
        click.echo(f"{running:>3} running: {spread(values)} {name}; {ratios} of {target:,}")
