"""`watermaster bench`: each prints a ratio against a limit or a peer measured in the same run."""

from dataclasses import asdict
from pathlib import Path

import click

from gateway.cli.bench_common import AMOUNT, COUNT, print_findings
from gateway.cli.bench_peers import flood, peers
from gateway.cli.bench_simulator import simulator
from gateway.cli.common import json_option, note, print_json, print_table
from gateway.cli.live_model import live_errors, live_options, load_live


@click.group()
def bench() -> None:
    """Measure this build on this machine."""


bench.add_command(simulator)
bench.add_command(peers)
bench.add_command(flood)


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


@bench.command()
@click.option(
    "--steps", type=COUNT, default=400, show_default=True, help="Measured steps of each run."
)
@click.option("--repeat", type=COUNT, default=5, show_default=True, help="Runs; the median counts.")
@json_option
def kernel(steps: int, repeat: int, *, as_json: bool) -> None:
    """Host cost of the scheduler, and speed of the simulator that runs it, on one core.

    A steady decode step with 256 running and 1,000 waiting sequences, without any model; and the
    simulator with all slots in use. Stop other work first: it counts.
    """
    from loadgen.kernel_bench import measure

    print_findings(measure(steps, repeat, note), as_json, {})


@bench.command("step-time")
@live_options
@click.option("--rate", type=AMOUNT, default=6.0, show_default=True, help="Last requests a second.")
@click.option(
    "--seconds", type=AMOUNT, default=30.0, show_default=True, help="Time in which requests arrive."
)
@json_option
def step_time(
    config_file: Path | None,
    source: str | None,
    threads: int | None,
    rate: float,
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """Error of the step-time model on the running engine, and time of a prediction.

    The engine runs in this process, without HTTP. Requests arrive faster and faster, up to --rate,
    so that all batch sizes occur. Each step is predicted before the model learns from it; the
    first 50 only teach.
    """
    from loadgen.step_error import findings, measure

    model = load_live(config_file, source, threads)
    with live_errors():
        result = measure(model, rate, seconds, note)
    print_findings(findings(result), as_json, {"steps": result.steps})


@bench.command()
@live_options
@click.option(
    "--seconds", type=AMOUNT, default=8.0, show_default=True, help="Time in which requests arrive."
)
@click.option(
    "--load", type=AMOUNT, default=2.0, show_default=True, help="Rate over what can be served."
)
@click.option("--rate", type=AMOUNT, help="Requests a second.  [default: from --load]")
@click.option(
    "--repeat", type=COUNT, default=7, show_default=True, help="Comparisons; the median counts."
)
@click.option(
    "--profile-seconds", type=AMOUNT, default=120.0, show_default=True, help="For the profile."
)
@json_option
def reality(
    config_file: Path | None,
    source: str | None,
    threads: int | None,
    seconds: float,
    load: float,
    rate: float | None,
    repeat: int,
    profile_seconds: float,
    *,
    as_json: bool,
) -> None:
    """The same scenario on the running engine and in the simulator.

    The engine's step times are measured and a profile is fitted to them, as `watermaster profile`
    does, in parts between the runs. Two tenants of weights 3 and 1 send requests of 32 to 256
    prompt and 16 to 128 output tokens, --load times as many as 32 slots can serve, to the engine
    and, at the same instants, to the simulator with that profile. Takes about six minutes; stop
    other work first.
    """
    from loadgen import reality as bench_reality
    from loadgen.profiling import about

    model = load_live(config_file, source, threads)
    plan = bench_reality.Plan(seconds, load, rate, repeat, profile_seconds)
    with live_errors():
        outcome = bench_reality.compare(model, plan, note)
    found, profiled = outcome.comparisons, outcome.profiled
    if not as_json:
        click.echo(
            f"profile: mean error {profiled.fit.mean_error:.1%} over {len(profiled.measured)} "
            f"shapes, {profiled.passes} passes; {outcome.rate:.2f} requests a second"
        )
        print_table(bench_reality.HEADER, bench_reality.rows(found))
        click.echo()
    details = {
        "about": about(model, profiled),
        "rate": outcome.rate,
        "runs": [bench_reality.figures(one) for one in found],
    }
    print_findings(bench_reality.findings(found), as_json, details)


@bench.command()
@live_options
@click.option(
    "--seconds", type=AMOUNT, default=20.0, show_default=True, help="For decode and prompts."
)
@click.option("--repeat", type=COUNT, default=3, show_default=True, help="Mixed runs.")
@json_option
def engine(
    config_file: Path | None,
    source: str | None,
    threads: int | None,
    seconds: float,
    repeat: int,
    *,
    as_json: bool,
) -> None:
    """Speed of the engine beside the limits of the machine, measured in the same run.

    The engine runs in this process, without HTTP: prompts of 128 to 1,024 tokens, decode batches
    of 1 to 64 with contexts of 256 tokens, and 32 requests at once with 32 to 256 prompt and 16 to
    128 output tokens. At best is all arithmetic at the machine's matrix rate or all memory read
    once at its copy bandwidth, whichever takes longer; weights of few bits are multiplied as
    integers with AVX2, which can take less than float32 at best. Then a prompt of 4,096 tokens
    among 16 running answers with a target of 50 ms a token, and prompts of which 2,000 tokens are
    cached. Stop other work first.
    """
    from loadgen import engine_bench

    model = load_live(config_file, source, threads)
    with live_errors():
        result = engine_bench.measure(model, seconds, repeat, note)
    if not as_json:
        for line in engine_bench.summary(result):
            click.echo(line)
        print_table(engine_bench.HEADER, engine_bench.rows(result))
        click.echo()
    print_findings(engine_bench.findings(result), as_json, engine_bench.figures(result))


@bench.command()
@click.option("--seconds", type=AMOUNT, default=4.0, show_default=True, help="Length of each load.")
@click.option("--repeat", type=COUNT, default=3, show_default=True, help="Runs; the median counts.")
@json_option
def gateway(seconds: float, repeat: int, *, as_json: bool) -> None:
    """What the gateway costs beside a bare endpoint on the same HTTP server.

    Starts a server with a simulated model that answers at once, and a bare JSON and event-stream
    endpoint on the same uvicorn, uvloop and httptools, each as a process, and calls them in turns
    in a closed loop: one client and 64, 64 streams, and 64 clients with every request traced.
    """
    from loadgen import gateway_bench

    pairs = gateway_bench.measure(seconds, repeat, note)
    if not as_json:
        print_table(gateway_bench.HEADER, gateway_bench.rows(pairs))
        click.echo()
    details = {"loads": [asdict(pair) for pair in pairs]}
    print_findings(gateway_bench.findings(pairs), as_json, details)


@bench.command()
@click.option("--fan-outs", type=COUNT, default=100, show_default=True, help="Races, in turn.")
@json_option
def cancel(fan_outs: int, *, as_json: bool) -> None:
    """What the losers of racing fan-outs of three cost after the commit has come.

    Over HTTP and on the real model, with a server of its own. When all three attempts have begun to
    answer, the first is committed. The limit is one token for each loser.
    """
    from loadgen import cancel_bench

    races = cancel_bench.measure(fan_outs, note)
    if not as_json:
        print_table(cancel_bench.HEADER, cancel_bench.rows(races))
        click.echo()
    details = {"races": [asdict(race) for race in races]}
    print_findings(cancel_bench.findings(races), as_json, details)


@bench.command("retry-after")
@click.option("--load", type=AMOUNT, default=1.5, show_default=True, help="Times the capacity.")
@click.option("--seconds", type=AMOUNT, default=90.0, show_default=True, help="Of arrivals, twice.")
@click.option("--probe", type=COUNT, default=200, show_default=True, help="Calls that show it.")
@json_option
def retry_after(load: float, seconds: float, probe: int, *, as_json: bool) -> None:
    """What becomes of refused callers who come back when told, and of those who do not listen.

    Over HTTP and on the real model, with a server of its own whose queues are short. Two tenants
    send more than is served, open loop. In the first run the refused come back at the time of their
    Retry-After; in the second by the backoff that stock clients use where there is none.
    """
    from loadgen import refusals

    ways = refusals.measure(load, seconds, probe, note)
    if not as_json:
        print_table(refusals.HEADER, refusals.rows(ways))
        click.echo()
    print_findings(refusals.findings(ways), as_json, {"ways": [asdict(way) for way in ways]})
