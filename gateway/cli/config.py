"""`watermaster config`: what is in force, whether it is valid, and the reference of all keys."""

from pathlib import Path

import click

from gateway.cli.common import config_option, json_option, load_config, print_json, print_table


@click.group()
def config() -> None:
    """Show and check the configuration."""


@config.command()
@config_option
@json_option
def show(config_file: Path | None, as_json: bool) -> None:
    """Print every key, its value, and where the value comes from."""
    from gateway.config_docs import effective

    rows = effective(load_config(config_file))
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("KEY", "VALUE", "SOURCE"),
            [(key, row["value"], row["source"]) for key, row in rows.items()],
        )


@config.command()
@config_option
@json_option
def check(config_file: Path | None, as_json: bool) -> None:
    """Say whether the configuration is valid; exit with 2 if it is not."""
    sources = load_config(config_file).sources
    if as_json:
        print_json({"valid": True, "keys_set": len(sources)})
    else:
        click.echo(f"valid: {len(sources)} keys set, the others at their defaults")


@config.command()
def example() -> None:
    """Print a configuration file with every key at its default."""
    from gateway.config_docs import example as text

    click.echo(text(), nl=False)


@config.command()
def docs() -> None:
    """Print the reference of all keys as Markdown."""
    from gateway.config_docs import markdown

    click.echo(markdown(), nl=False)
