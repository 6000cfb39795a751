"""What becomes of every parameter of the OpenAI API: honoured, ignored or refused.

This list is what the server acts on, and `docs/openai-parameters.md` is made from it
(`python -m gateway.parameters > docs/openai-parameters.md`).
"""

import json
import sys
from collections.abc import Mapping
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


def _honoured(name: str, note: str, *, nullable: bool = True) -> Parameter:
    return Parameter(name, Treatment.HONOURED, note, nullable=nullable)


def _ignored(name: str, note: str) -> Parameter:
    return Parameter(name, Treatment.IGNORED, note)


def _refused(name: str, note: str, *neutral: Any) -> Parameter:
    return Parameter(name, Treatment.REFUSED, note, neutral)


# What both endpoints share.
_MODEL = _honoured(
    "model",
    "Required: one of `GET /v1/models`, or `auto`: the first of these, or its fallback where that "
    "keeps a deadline.",
    nullable=False,
)
_SAMPLING = (
    _honoured("temperature", "0 to 2, default 1; 0 is greedy."),
    _honoured("top_p", "0 to 1, default 1."),
    _honoured("presence_penalty", "-2 to 2, default 0."),
    _honoured("frequency_penalty", "-2 to 2, default 0."),
    _honoured("logit_bias", "Token id to bias, -100 to 100, at most 300 entries."),
    _honoured("seed", "64-bit integer. Choice i draws with seed + i."),
    _honoured("stop", "A string or up to 16, each of 1 to 256 characters. Not part of the text."),
    _honoured("n", "1 to 16 choices, default 1. The prompt is computed once."),
    _honoured("stream", "Server-sent events."),
    _honoured(
        "stream_options",
        "`include_usage` is honoured, `include_obfuscation` ignored; only with `stream`.",
    ),
    _ignored("user", "Tenants are told apart by their keys."),
)
_MAX_TOKENS = (
    "At least 1, and it must fit the context with the prompt. null is refused: leave it out."
)
_EXTENSIONS = (
    _honoured("top_k", "Not OpenAI's. 0 or more, default 0, which is off."),
    _honoured("min_p", "Not OpenAI's. 0 to 1, default 0, which is off."),
    _honoured("repetition_penalty", "Not OpenAI's. Over 0, up to 10; default 1, which is off."),
    _honoured("min_tokens", "Not OpenAI's. No stop token is drawn before so many tokens."),
    _honoured("stop_token_ids", "Not OpenAI's. Up to 64 token ids that end the output."),
    _honoured("ignore_eos", "Not OpenAI's. Go on past the model's own end token."),
)
_NO_TOOLS = "The models served call no tools."
_TEXT_ONLY = "Text only."
_HOSTED = "A service of OpenAI's that has no counterpart here."

CHAT = (
    _MODEL,
    _honoured("messages", "1 to 2048 messages; see below.", nullable=False),
    *_SAMPLING,
    _honoured("max_completion_tokens", _MAX_TOKENS, nullable=False),
    _honoured(
        "max_tokens",
        "The old name of `max_completion_tokens`; send one. null is refused.",
        nullable=False,
    ),
    _honoured("logprobs", "Boolean."),
    _honoured("top_logprobs", "0 to 20, only with `logprobs`."),
    *_EXTENSIONS,
    _ignored("metadata", "Nothing is stored."),
    _ignored("prompt_cache_key", "Prefixes are found by content."),
    _ignored("safety_identifier", "Tenants are told apart by their keys."),
    _ignored("service_tier", "The tenant's weight decides."),
    _refused("audio", _TEXT_ONLY),
    _refused("function_call", _NO_TOOLS, "none", "auto"),
    _refused("functions", _NO_TOOLS, []),
    _refused("modalities", _TEXT_ONLY, ["text"]),
    _refused("moderation", _HOSTED),
    _refused("parallel_tool_calls", _NO_TOOLS, True, False),
    _refused("prediction", "There is no predicted output."),
    _refused("prompt_cache_options", "The prefix cache has no options of the caller's."),
    _refused("prompt_cache_retention", "Cached prefixes are kept while there is room."),
    _refused("reasoning_effort", "The models served do not reason apart.", "none"),
    _refused("response_format", "There is no structured output yet.", {"type": "text"}),
    _refused("store", "Nothing is stored.", False),
    _refused("tool_choice", _NO_TOOLS, "none", "auto"),
    _refused("tools", _NO_TOOLS, []),
    _refused("verbosity", "Ask for it in the prompt.", "medium"),
    _refused("web_search_options", _HOSTED),
)

COMPLETIONS = (
    _MODEL,
    _honoured(
        "prompt",
        "A string or a list of token ids; a list of just one of these passes too. Several prompts"
        " need several calls.",
        nullable=False,
    ),
    *_SAMPLING,
    _honoured("max_tokens", _MAX_TOKENS + " Default 16, as OpenAI's.", nullable=False),
    _honoured("logprobs", "0 to 5 alternatives for each token."),
    *_EXTENSIONS,
    _refused("best_of", "Ask for `n` choices and pick.", 1),
    _refused("echo", "The prompt is not repeated.", False),
    _refused("suffix", "The models served do not fill in.", ""),
)

MESSAGE = (
    _honoured(
        "role",
        "`system`, `developer` (the same as `system`), `user` or `assistant`.",
        nullable=False,
    ),
    _honoured(
        "content",
        'A string, or a list of parts `{"type": "text", "text": …}`, which are joined. Parts of'
        " other types (`image_url`, `input_audio`, `file`, `refusal`) are refused.",
        nullable=False,
    ),
    _ignored("name", "Chat templates have no place for it."),
    _ignored("annotations", "Part of an answer that is sent back."),
    _refused("audio", _TEXT_ONLY),
    _refused("function_call", _NO_TOOLS),
    _refused("refusal", "There are no refusals to repeat."),
    _refused("tool_call_id", _NO_TOOLS),
    _refused("tool_calls", _NO_TOOLS, []),
)

STREAM_OPTIONS = (
    _honoured("include_usage", "A last chunk without choices brings the usage."),
    _ignored("include_obfuscation", "Chunks are not padded."),
)

MAX_NAME_ECHOED = 64


Known = Mapping[str, Parameter]


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


def render_document() -> str:
    """The text of `docs/openai-parameters.md`."""
    sections = [_INTRODUCTION]
    for title, parameters in _TABLES:
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


_TABLES = (
    ("`POST /v1/chat/completions`", CHAT),
    ("A message", MESSAGE),
    ("`POST /v1/completions`", COMPLETIONS),
    ("`stream_options`", STREAM_OPTIONS),
)
_INTRODUCTION = """\
# OpenAI parameters

What the server does with every parameter. *Honoured*: it has its documented effect. *Accepted and
ignored*: any value passes and changes nothing. *Refused*: 400 with the parameter's name in `param`
and code `unsupported_parameter`; values that ask for nothing pass, so that a client which spells
out its defaults works. A name that is not listed is refused with code `unknown_parameter`. null
means the same as leaving the parameter out, except where the table says otherwise.

This page is generated from `gateway/parameters.py`."""

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

Stock clients send the same headers again when they retry. With `x-task-id`, the first
`x-timeout-ms` of a task fixes when the task ends: later calls under it can end earlier, not later.
Without one, `x-timeout-ms` counts anew in each attempt; use `x-deadline` for a limit over all.
"""


if __name__ == "__main__":
    sys.stdout.write(render_document())
