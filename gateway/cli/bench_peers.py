"""`watermaster bench peers` and `bench flood`: our server beside others on the same machine."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.cli.bench_common import AMOUNT, COUNT, print_findings
from gateway.cli.common import CliError, json_option, note, print_json, print_table

F = TypeVar("F", bound=Callable[..., Any])


def peer_options(command: F) -> F:
    """Which other servers, how often, and how ours is configured."""
    options = (
        click.option(
            "--peer",
            "peers",
            multiple=True,
            metavar="NAME=URL",
            help="Another server's base URL, with /v1.",
        ),
        click.option(
            "--repeat", type=COUNT, default=3, show_default=True, help="Runs; the median counts."
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Configuration of our server, without [store] and the port.  "
            "[default: as installed]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _urls(peers: tuple[str, ...]) -> dict[str, str]:
    if not all("=" in peer for peer in peers):
        raise click.UsageError("--peer is NAME=URL")
    return dict(peer.split("=", 1) for peer in peers)


@click.command()
@peer_options
@click.option(
    "--load", "names", multiple=True, metavar="NAME", help="One of the loads.  [default: all]"
)
@json_option
def peers(
    peers: tuple[str, ...],
    names: tuple[str, ...],
    repeat: int,
    config_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Our server beside other OpenAI-compatible ones, in turns, under the same load.

    Starts our server; start the others first, with the same model. Loads: "one stream" and
    "prompts of 512" tokens one after another, "32 at once" and "128 at once" with prompts of 64 to
    256 and outputs of 16 to 256 tokens. Prompts are token ids. Peers named vllm and llama.cpp are
    compared with what is wanted.
    """
    from loadgen import peers as bench_peers
    from loadgen.peer_client import PeerError

    known = {load.name: load for load in bench_peers.LOADS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"--load is one of {', '.join(known)}")
    loads = [known[name] for name in names] or list(known.values())
    ours = config_file.read_text() if config_file else ""
    try:
        runs = bench_peers.measure(_urls(peers), loads, repeat, ours, note)
    except PeerError as error:
        raise CliError(str(error)) from None
    if not as_json:
        print_table(bench_peers.HEADER, bench_peers.rows(runs))
        click.echo()
    details = {"runs": [asdict(run) for run in runs]}
    print_findings(bench_peers.findings(runs, loads), as_json, details)


@click.command()
@peer_options
@click.option("--callers", type=COUNT, default=256, show_default=True, help="Of the flood.")
@click.option("--warm-up", type=AMOUNT, default=20.0, show_default=True, help="Seconds of flood.")
@click.option("--seconds", type=AMOUNT, default=60.0, show_default=True, help="Then measured.")
@json_option
def flood(
    peers: tuple[str, ...],
    repeat: int,
    config_file: Path | None,
    callers: int,
    warm_up: float,
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """How long one tenant waits beside another's flood, on our server and on others, in turns.

    Starts our server; start the others first, with the same model. The flood calls in a closed loop
    with prompts of 64 to 256 and outputs of 16 to 256 tokens. The visitor, here a tenant with a
    third of the flood's weight, asks for 32 tokens after a prompt of 64, and a second after each
    answer again.
    """
    from loadgen import flood as bench_flood
    from loadgen.peer_client import PeerError

    ours = config_file.read_text() if config_file else ""
    load = bench_flood.Flood(callers, warm_up, seconds)
    try:
        visits = bench_flood.measure(_urls(peers), load, repeat, ours, note)
    except PeerError as error:
        raise CliError(str(error)) from None
    if as_json:
        print_json([asdict(visit) for visit in visits])
        return
    print_table(bench_flood.HEADER, bench_flood.rows(visits))
    click.echo()
    for line in bench_flood.ratios(visits):
        click.echo(line)
