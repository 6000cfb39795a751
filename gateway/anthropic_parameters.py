"""What becomes of every parameter of the Anthropic Messages API.

`docs/anthropic-parameters.md` is made from it
(`python -m gateway.anthropic_parameters > docs/anthropic-parameters.md`).
"""

import sys

from gateway.parameters import honoured, ignored, refused, render_page

_NO_TOOLS = "The models served call no tools."
_HOSTED = "A service of Anthropic's that has no counterpart here."
_CACHE = "Prefixes are found by content and kept while there is room; there are no breakpoints."

MESSAGES = (
    honoured(
        "model",
        "Required: one of `GET /v1/models`, or `auto`: the first of these, or its fallback where"
        " that keeps a deadline; `x-watermaster-model` then names it.",
        nullable=False,
    ),
    honoured(
        "max_tokens",
        "Required. At least 1, and it must fit the context with the prompt.",
        nullable=False,
    ),
    honoured(
        "messages",
        "1 to 2048 messages; see below. The last may not be the assistant's: a begun answer is not"
        " continued.",
        nullable=False,
    ),
    honoured("system", "A string, or a list of text blocks, which are joined."),
    honoured("stop_sequences", "Up to 16, each of 1 to 256 characters. Not part of the text."),
    honoured("stream", "Server-sent events; `ping` fills silence."),
    honoured("temperature", "0 to 1, default 1; 0 is greedy."),
    honoured("top_p", "0 to 1, default 1."),
    honoured("top_k", "0 or more, default 0, which is off."),
    honoured(
        "metadata",
        "`user_id`: whom the call is for, up to 512 characters. Where a tenant's `domain` is"
        " `user`, its share is divided between them.",
    ),
    ignored("service_tier", "The tenant's weight decides."),
    refused("cache_control", _CACHE),
    refused("container", _HOSTED),
    refused("diagnostics", "`GET /v1/requests/{id}/explain` tells where a call's time went."),
    refused("inference_geo", "The server computes where it runs."),
    refused("mcp_servers", _NO_TOOLS, []),
    refused("output_config", "There is no structured output yet, and no effort to choose.", {}),
    refused("speed", "The deadline headers say how fast an answer is needed.", "standard"),
    refused("thinking", "The models served do not reason apart.", {"type": "disabled"}),
    refused("tool_choice", _NO_TOOLS, {"type": "auto"}, {"type": "none"}),
    refused("tools", _NO_TOOLS, []),
)

MESSAGE = (
    honoured("role", "`user`, `assistant` or `system`.", nullable=False),
    honoured(
        "content",
        "A string, or a list of text blocks, which are joined. Blocks of other types (`image`,"
        " `document`, `tool_use`, `tool_result`, `thinking` and the like) are refused.",
        nullable=False,
    ),
)

METADATA = (honoured("user_id", "Whom the call is for."),)

TEXT_BLOCK = (
    honoured("type", "`text`.", nullable=False),
    honoured("text", "A string.", nullable=False),
    refused("cache_control", _CACHE),
    refused("citations", "Nothing is cited.", []),
)

_TABLES = (
    ("`POST /v1/messages`", MESSAGES),
    ("A message", MESSAGE),
    ("A text block", TEXT_BLOCK),
    ("`metadata`", METADATA),
)
_INTRODUCTION = """\
# Anthropic parameters

What `POST /v1/messages` does with every parameter. *Honoured*: it has its documented effect.
*Accepted and ignored*: any value passes and changes nothing. *Refused*: 400 with the parameter's
name in `error.param` and `unsupported_parameter` in `error.code`; values that ask for nothing pass.
A name that is not listed is refused with code `unknown_parameter`. null means the same as leaving
the parameter out, except for what must be there.

Keys pass as `x-api-key` or as `authorization: Bearer`. `anthropic-version` and `anthropic-beta` are
accepted and change nothing.

## Answers

`stop_reason` is `end_turn`, `max_tokens` or `stop_sequence`, the last with the sequence that was
found in `stop_sequence`. In `usage`, `input_tokens` are those that were computed and
`cache_read_input_tokens` those that the prefix cache had; `cache_creation_input_tokens` is always
0, for nothing is paid for keeping them. A stream's `message_start` counts the whole prompt as
`input_tokens`, because what is cached is known only later; `message_delta` has the final figures.

## Errors

Bodies and `error` events have the form `{"type": "error", "error": {"type": …, "message": …},
"request_id": …}`; `error` further holds `code`, `param` and the same facts as on OpenAI's
endpoints. The request id is in the headers `request-id` and `x-request-id`, too.

| status | `error.type` |
| --- | --- |
| 401 | `authentication_error` |
| 403 | `permission_error` |
| 404 | `not_found_error` |
| 409 | `conflict_error` |
| 413 | `request_too_large` |
| other 4xx | `invalid_request_error` |
| 429 | `rate_limit_error` |
| 500 | `api_error` |
| 504 | `timeout_error` |
| 529 | `overloaded_error`, where OpenAI's endpoints answer 503 |

`retry-after`, `retry-after-ms` and `x-should-retry` are the same as on OpenAI's endpoints, and
stock clients obey them: they wait as told, and do not repeat what is hopeless.

This page is generated from `gateway/anthropic_parameters.py`."""


def render_document() -> str:
    """The text of `docs/anthropic-parameters.md`."""
    return render_page(_INTRODUCTION, _TABLES)


if __name__ == "__main__":
    sys.stdout.write(render_document())
