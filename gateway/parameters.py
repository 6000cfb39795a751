"""What becomes of a parameter: honoured, ignored or refused.

The written list of each API is what the server acts on and what its page is made from.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.errors import ApiError, Reason


class Treatment(StrEnum):
    HONOURED = "honoured"
    IGNORED = "accepted and ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`neutral` are values that ask for nothing and so pass even where the name is refused.

    null is neutral everywhere, unless `nullable` is off.
    """

    name: str
    treatment: Treatment
    note: str
    neutral: tuple[Any, ...] = ()
    nullable: bool = True


def honoured(name: str, note: str, *, nullable: bool = True) -> Parameter:
    return Parameter(name, Treatment.HONOURED, note, nullable=nullable)


def ignored(name: str, note: str) -> Parameter:
    return Parameter(name, Treatment.IGNORED, note)


def refused(name: str, note: str, *neutral: Any) -> Parameter:
    return Parameter(name, Treatment.REFUSED, note, neutral)


MAX_NAME_ECHOED = 64

Known = Mapping[str, Parameter]
Tables = Sequence[tuple[str, Sequence[Parameter]]]  # with titles


def select(body: Mapping[str, Any], known: Known, where: str = "") -> dict[str, Any]:
    """The honoured members of `body` that are set; `where` is the path to it, for messages.

    Raises ApiError 400 that names the first member that is refused or unknown.
    """
    chosen = {}
    for name, value in body.items():
        path = where + name[:MAX_NAME_ECHOED]
        parameter = known.get(name)
        if parameter is None:
            raise ApiError(Reason.UNKNOWN_PARAMETER, f"There is no parameter {path!r}.", param=path)
        if value is None:
            if not parameter.nullable:
                raise ApiError(Reason.INVALID_VALUE, f"{path!r} must not be null.", param=path)
            continue
        if parameter.treatment is Treatment.HONOURED:
            chosen[name] = value
        elif parameter.treatment is Treatment.REFUSED and not _is_neutral(value, parameter):
            raise ApiError(
                Reason.UNSUPPORTED_PARAMETER,
                f"{path!r} with this value is not supported. {parameter.note}",
                param=path,
            )
    return chosen


def _is_neutral(value: Any, parameter: Parameter) -> bool:
    # Types are compared too: in Python 1 == True.
    return any(type(value) is type(other) and value == other for other in parameter.neutral)


def by_name(parameters: tuple[Parameter, ...]) -> Known:
    return {parameter.name: parameter for parameter in parameters}


def render_page(introduction: str, tables: Tables) -> str:
    """The text of a page that lists `tables`."""
    sections = [introduction]
    for title, parameters in tables:
        sections += [f"\n## {title}\n", "| name | | what it means here |", "| --- | --- | --- |"]
        sections += [
            f"| `{parameter.name}` | {parameter.treatment} | {_describe(parameter)} |"
            for parameter in sorted(parameters, key=lambda parameter: parameter.name)
        ]
    return "\n".join([*sections, _HEADERS])


def _describe(parameter: Parameter) -> str:
    if not parameter.neutral:
        return parameter.note
    passing = ", ".join(f"`{json.dumps(value)}`" for value in parameter.neutral)
    return f"{parameter.note} {passing} {'pass' if len(parameter.neutral) > 1 else 'passes'}."


_HEADERS = """
## Request headers

- `x-task-id`, `x-run-id`, `x-attempt-id`, `x-request-id`: whom the call belongs to, for
  cancellation and traces. 1 to 128 of `A-Z a-z 0-9 . _ : @ + = -`, starting with a letter or a
  digit. One that is left out stands for the call alone. `x-request-id` is echoed.
- `x-deadline`: the instant after which the answer is worth nothing, in RFC 3339 or as Unix
  milliseconds; at most 31 days ahead.
- `x-timeout-ms`: the same as the time that is left, in whole milliseconds. The earlier of the two
  counts, within the tenant's ceiling.
- `x-first-token-deadline`, `x-first-token-timeout-ms`: the same for the first token; missed before
  any output, the answer is a 504.
- `traceparent`: the caller's span, of which the call becomes a child.
- `baggage`: W3C's; members `watermaster.task`, `watermaster.run` and `watermaster.attempt` stand
  for `x-task-id`, `x-run-id` and `x-attempt-id` where these are not sent. What is malformed in it
  is ignored, since a hop that knows nothing of this server may have written it: the call then
  belongs to no such task, and the answer says so in `x-watermaster-ignored-baggage`.
- `content-encoding`: leave it out; a body that is compressed is refused.

Stock clients send the same headers again when they retry. With `x-task-id`, the first
`x-timeout-ms` of a task fixes when the task ends: later calls under it can end earlier, not later.
Without one, `x-timeout-ms` counts anew in each attempt; use `x-deadline` for a limit over all.
"""
