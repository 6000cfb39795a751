"""`watermaster profile`: step times of the running engine, as a cost profile for the simulator."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.common import CliError, Exit, json_option, note, print_json, print_table
from gateway.cli.live_model import live_errors, live_options, load_live, progress

if TYPE_CHECKING:
    from loadgen.profiling import Profiled

HEADER = ("prompt tokens", "attended", "decoding", "context", "ms", "fitted", "error", "steps")


@click.command()
@live_options
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=110.0,
    show_default=True,
    help="Time to measure for.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="Write the profile there.",
)
@json_option
def profile(
    config_file: Path | None,
    source: str | None,
    threads: int | None,
    seconds: float,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Measure the steps of the running engine and fit the simulator's cost profile to them.

    The engine runs in this process, without HTTP, over a grid of step shapes: prompts, decode
    batches and both together, with short and long contexts. The whole grid is measured at least
    once and as often as --seconds allow; means count. The profile is the larger of two linear
    pieces plus the host's constant time a step. In a scenario it is used as
    `device.profile = "FILE.json"`.
    """
    from engine.sim.fitted import dump_fitted
    from loadgen.profiling import about, measure

    if out is not None and (out.suffix != ".json" or not out.parent.is_dir()):
        raise CliError(
            f"--out {out} must end in .json and lie in an existing folder", Exit.CONFIGURATION
        )
    model = load_live(config_file, source, threads)
    with live_errors(), progress("profiling") as report:
        profiled = measure(model, seconds, report)
    origin = about(model, profiled)
    if out is not None:
        dump_fitted(profiled.fit.profile, out, origin)
        note(f"written: {out}")
    if as_json:
        print_json({"about": origin, **_figures(profiled)})
        return
    print_table(HEADER, _rows(profiled))
    click.echo()
    _print_fit(profiled)
    click.echo("  ".join(f"{name}: {value}" for name, value in origin.items()))


def _rows(profiled: "Profiled") -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for one, error in zip(profiled.measured, profiled.fit.errors, strict=True):
        fitted = profiled.fit.profile.duration(one.shape) / 1e6
        shape = one.shape
        rows.append(
            (
                *(shape.prefill_tokens, shape.prefill_context),
                *(shape.decode_sequences, shape.context_tokens),
                *(f"{fitted / (1 + error):.2f}", f"{fitted:.2f}", f"{error:+.1%}", one.steps),
            )
        )
    return rows


def _print_fit(profiled: "Profiled") -> None:
    from engine.sim.fitted import COEFFICIENTS

    fit = profiled.fit
    print_table(
        ("piece, in ms", *COEFFICIENTS),
        [
            (number, *(f"{getattr(piece, name):.5g}" for name in COEFFICIENTS))
            for number, piece in enumerate(fit.profile.pieces, start=1)
        ],
    )
    link = fit.profile.link
    click.echo(
        f"host overhead {fit.profile.overhead:.3f} ms a step; KV of {link.bytes_per_token:,} bytes "
        f"a token moves at {link.bytes_per_second / 1e9:.1f} GB/s"
    )
    click.echo(
        f"error of the fit {fit.mean_error:.1%} on average, {fit.worst_error:.1%} at worst, over "
        f"{len(profiled.measured)} shapes, {profiled.passes} whole passes, {profiled.seconds:.0f} s"
    )


def _figures(profiled: "Profiled") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "profile": asdict(profiled.fit.profile),
        "seconds": profiled.seconds,
        "measured": [
            {**asdict(one), "error": error}
            for one, error in zip(profiled.measured, profiled.fit.errors, strict=True)
        ],
    }
