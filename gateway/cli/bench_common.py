"""What the benches share: bounds of their options, and findings against limits."""

from typing import TYPE_CHECKING, Any

import click

from gateway.cli.common import print_json, print_table

if TYPE_CHECKING:
    from loadgen.limits import Finding

COUNT = click.IntRange(min=1)
AMOUNT = click.FloatRange(min=0, min_open=True)


def print_findings(findings: "list[Finding]", as_json: bool, details: dict[str, Any]) -> None:
    from loadgen.limits import ROW_HEADER, to_json

    if as_json:
        print_json({**details, "findings": to_json(findings)})
    else:
        print_table(ROW_HEADER, (finding.row() for finding in findings))
