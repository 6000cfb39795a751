"""`watermaster usage`: what the ledger says."""

import time
from pathlib import Path

import click

from gateway.cli.common import (
    CliError,
    config_option,
    json_option,
    load_config,
    note,
    print_json,
    print_table,
)
from gateway.cli.store import with_store

MOST_LINES = 1_000_000


@click.command()
@click.option("--tenant", metavar="TENANT", help="Of this tenant alone.")
@click.option("--key", metavar="KEY", help="Of the key with this public id alone.")
@click.option("--model", metavar="MODEL", help="Of this model alone.")
@click.option("--from", "begin", metavar="TIME", help="From then on.  [default: 30 days ago]")
@click.option("--to", "end", metavar="TIME", help="Up to then.  [default: now]")
@click.option(
    "--by",
    default="tenant,key,model",
    show_default=True,
    metavar="NAMES",
    help="Sum up by these, out of tenant, key, model, day and hour; '' for one total.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@config_option
@json_option
def usage(
    tenant: str | None,
    key: str | None,
    model: str | None,
    begin: str | None,
    end: str | None,
    by: str,
    as_csv: bool,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Report what was used, in tokens, device seconds and money.

    A TIME is a date, an RFC 3339 time or Unix seconds; the hours that overlap it count whole. A
    running server is at most some seconds ahead of what this says. See docs/usage.md.
    """
    from tenants.ledger import report
    from tenants.ledger.leftovers import left_behind
    from tenants.ledger.usage_store import UsageStore

    if as_csv and as_json:
        raise click.UsageError("--csv and --json contradict each other")
    settings = load_config(config_file).settings
    named = {"from": begin, "to": end, "key": key, "model": model, "by": by}
    given = {name: value for name, value in named.items() if value is not None}
    try:
        question = report.read_question(given, int(time.time()), report.GROUPS, tenant)
    except report.InvalidQuestionError as error:
        raise click.UsageError(str(error)) from None
    days = settings.usage.retention_days
    try:
        lines = with_store(
            settings.store,
            lambda store: report.answer(UsageStore(store.connection, days), question, MOST_LINES),
        )
    except report.TooManyLinesError as error:
        raise CliError(f"{error}; ask for less time, or by less") from None
    waiting = left_behind(settings.store.usage_dir, {})
    if waiting:
        note(f"up to {waiting} bytes of usage are not in it: a server that starts here adds them")
    if as_csv:
        click.echo(report.as_csv(question.by, lines), nl=False)
    elif as_json:
        print_json([line.describe() for line in lines])
    else:
        header = [name.upper() for name in (*question.by, *report.SUMS)]
        print_table(header, [list(line.describe().values()) for line in lines])
