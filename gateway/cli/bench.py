"""`watermaster bench`: each prints a ratio against a limit or a peer measured in the same run."""

from dataclasses import asdict
from pathlib import Path

import click

from gateway.cli.bench_simulator import simulator
from gateway.cli.common import json_option, note, print_json


@click.group()
def bench() -> None:
    """Measure this build on this machine."""


bench.add_command(simulator)


@bench.command()
@click.option("--streams", default=64, show_default=True, help="Streaming connections.")
@click.option("--tokens", default=64, show_default=True, help="Output tokens of each stream.")
@click.option("--repeat", default=5, show_default=True, help="Pairs of runs.")
@click.option("--model", "source", default="smollm2-135m", show_default=True, help="Name or path.")
@json_option
def boundary(streams: int, tokens: int, repeat: int, source: str, *, as_json: bool) -> None:
    """What streaming over HTTP costs the engine thread in the same process."""
    from engine.runtime.store import ModelStore
    from loadgen.boundary import measure
    from loadgen.stats import spread

    path: Path = ModelStore().pull(source, note) if source == "smollm2-135m" else Path(source)
    pairs = measure(path, streams, tokens, repeat, note)
    if as_json:
        print_json([{"dropped": asdict(a), "streamed": asdict(b)} for a, b in pairs])
        return
    dropped = [a for a, _ in pairs]
    streamed = [b for _, b in pairs]
    millions = streams * tokens / 1e6  # of tokens a run
    ratios = [b.step_ms / a.step_ms for a, b in pairs]
    rows = (
        ("decode step, tokens dropped", [a.step_ms for a in dropped], " ms"),
        ("decode step, SSE streams", [b.step_ms for b in streamed], " ms"),
        ("ratio", ratios, ""),
        ("loop CPU a token, dropped", [a.loop_cpu / millions for a in dropped], " us"),
        ("loop CPU a token, streamed", [b.loop_cpu / millions for b in streamed], " us"),
        ("CPU of the client's process", [b.client_cpu for b in streamed], " s"),
    )
    for name, values, unit in rows:
        click.echo(f"{name:<28} {spread(values, unit)}")


@bench.command()
@click.option("--seconds", default=60.0, show_default=True, help="Length of the measured part.")
@click.option("--warm-up", default=20.0, show_default=True, help="Seconds before it.")
@json_option
def shares(seconds: float, warm_up: float, *, as_json: bool) -> None:
    """Service of two backlogged tenants of weights 3 and 1, over real HTTP on the real model.

    Starts a server of its own with 64 running sequences; both tenants keep 96 calls open, each of
    64 prompt tokens and 64 output tokens. The limit is a ratio of 3.0 within 5%.
    """
    from loadgen.shares import measure

    result = measure(warm_up, seconds, note)
    if as_json:
        print_json(asdict(result))
        return
    for tenant, service in result.service.items():
        click.echo(f"{tenant:<8} {service:>10.0f} cost units, {result.calls[tenant]} calls ended")
    click.echo(f"ratio    {result.ratio:.3f}, {result.ratio / 3:.3f} of the weights' 3.0")
    click.echo(f"throughput {result.output_tokens / seconds:.0f} output tokens a second")
