"""`watermaster replay`: a recorded command log run again, as it was or under another policy."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.common import CliError, Exit, json_option, note, print_json, print_table

if TYPE_CHECKING:
    from loadgen.command_log import CommandLogFile
    from loadgen.outcomes import Outcome
    from policies.config import PolicyConfig


HEADER = (
    *("tenant", "run", "offered", "prompt", "output", "rework"),
    *("p50 TTFT", "p99 TTFT", "p50 end", "p99 end", "preempted", "ended by"),
)


@click.command()
@click.argument("log", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--policy", metavar="POLICY", help="Show what this policy would have done.")
@json_option
def replay(log: Path, policy: str | None, as_json: bool) -> None:
    """Run LOG again and check that every decision is the same, byte for byte.

    LOG is a file that the server wrote under engine.command_log. With --policy, show instead what
    each tenant would have got under another policy: a fairness policy's name, or KEY=VALUE for any
    field of a policy (docs/simulator.md lists them), or several of them with commas between, as in
    `vtc,ordering=sjf` or `fairness.max_lag=500`.
    """
    from engine.core.journal_records import JournalError
    from loadgen.command_log import CommandLogFile, ReplayedFaultError

    try:
        file = CommandLogFile(log)
        if policy is None:
            _verify(file, as_json)
        else:
            _what_if(file, policy, as_json)
    except JournalError as error:
        raise CliError(str(error)) from None
    except ReplayedFaultError as fault:
        raise CliError(
            f"the kernel fails at {fault}; see how the log ends to know if it did when recorded"
        ) from None


def _verify(file: "CommandLogFile", as_json: bool) -> None:
    from loadgen.command_log import Verifier

    verdict = Verifier(file).run()
    difference = verdict.difference
    if as_json:
        print_json(
            {
                "identical": difference is None,
                "complete": verdict.end is not None,
                "end": verdict.end,
                "engine": verdict.header.engine,
                "steps": verdict.steps,
                "events": verdict.events,
                "difference": None if difference is None else asdict(difference),
            }
        )
    elif difference is None:
        click.echo(
            f"identical: {verdict.steps} steps and {verdict.events} decisions of "
            f"{verdict.header.engine}"
        )
    else:
        click.echo(f"line {difference.line} differs, after {verdict.events} equal decisions")
        click.echo(f"recorded  {difference.recorded or 'nothing more'}")
        click.echo(f"replayed  {difference.replayed or 'nothing more'}")
    if difference is not None:
        raise CliError("the decisions are not those recorded")
    if verdict.end is None:
        raise CliError(
            f"the log breaks off after line {verdict.lines}: its server still writes it or was"
            " killed, or its disk was full"
        )


def _what_if(file: "CommandLogFile", text: str, as_json: bool) -> None:
    from loadgen.replay import what_if

    recorded = file.header.kernel.policy
    policy = _policy(text, recorded)
    found = what_if(file, policy)
    runs = {
        "recorded": found.recorded,
        f"{recorded.fairness.name}, simulated": found.again,
        f"{text}, simulated": found.other,
    }
    if as_json:
        print_json(
            {
                "policy": text,
                "step_times": {"steps": found.steps, "error": found.error},
                "recorded": _figures(found.recorded),
                "simulated_as_recorded": _figures(found.again),
                "simulated_with_policy": _figures(found.other),
            }
        )
        return
    note(f"step times fitted to {found.steps} steps, typical error {found.error:.1%}")
    tenants = dict.fromkeys(tenant for run in runs.values() for tenant in run)
    rows = [
        _row(tenant, name, run[tenant])
        for tenant in tenants
        for name, run in runs.items()
        if tenant in run
    ]
    print_table(HEADER, rows)


def _policy(text: str, recorded: "PolicyConfig") -> "PolicyConfig":
    """The recorded policy with the changes of `text`."""
    from loadgen.tables import ScenarioError, build
    from policies.config import PolicyConfig

    table = asdict(recorded)
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        path = key.split(".") if equals else ["fairness", "name"]
        inner = table
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise CliError(f"--policy: {key} is not a key", Exit.CONFIGURATION)
        inner[path[-1]] = _value(value) if equals else key
    try:
        return build(PolicyConfig, table, "--policy")
    except ScenarioError as error:
        raise CliError(str(error), Exit.CONFIGURATION) from None


def _value(text: str) -> Any:
    """A number or truth value where the text is one; otherwise the text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _figures(run: "dict[str, Outcome]") -> dict[str, Any]:
    return {tenant: outcome.figures() for tenant, outcome in run.items()}


def _row(tenant: str, run: str, outcome: "Outcome") -> tuple[object, ...]:
    figures = outcome.figures()
    times = [
        None if figures[kind] is None else f"{figures[kind][share]:.3g} s"
        for kind in ("ttft", "completion")
        for share in ("p50", "p99")
    ]
    ended = ", ".join(f"{cause} {count}" for cause, count in figures["ended"].items())
    return (
        tenant,
        run,
        outcome.offered,
        outcome.prompt_tokens,
        outcome.output_tokens,
        outcome.rework_tokens,
        *times,
        outcome.preemptions,
        ended,
    )
