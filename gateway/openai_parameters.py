"""What becomes of every parameter of the OpenAI API.

`docs/openai-parameters.md` is made from it
(`python -m gateway.openai_parameters > docs/openai-parameters.md`).
"""

import sys

from gateway.parameters import honoured, ignored, refused, render_page

_END_USER = (
    "Whom the call is for. Where a tenant's `domain` is `user`, its share is divided between them."
)
# What both endpoints share.
_MODEL = honoured(
    "model",
    "Required: one of `GET /v1/models`, or `auto`: the first of these, or its fallback where that "
    "keeps a deadline; `x-watermaster-model` then names it.",
    nullable=False,
)
_SAMPLING = (
    honoured("temperature", "0 to 2, default 1; 0 is greedy."),
    honoured("top_p", "0 to 1, default 1."),
    honoured("presence_penalty", "-2 to 2, default 0."),
    honoured("frequency_penalty", "-2 to 2, default 0."),
    honoured("logit_bias", "Token id to bias, -100 to 100, at most 300 entries."),
    honoured("seed", "64-bit integer. Choice i draws with seed + i."),
    honoured("stop", "A string or up to 16, each of 1 to 256 characters. Not part of the text."),
    honoured("n", "1 to 16 choices, default 1. The prompt is computed once."),
    honoured("stream", "Server-sent events."),
    honoured(
        "stream_options",
        "`include_usage` is honoured, `include_obfuscation` ignored; only with `stream`.",
    ),
    honoured("user", f"{_END_USER} Up to 512 characters."),
)
_MAX_TOKENS = (
    "At least 1, and it must fit the context with the prompt. null is refused: leave it out."
)
_EXTENSIONS = (
    honoured("top_k", "Not OpenAI's. 0 or more, default 0, which is off."),
    honoured("min_p", "Not OpenAI's. 0 to 1, default 0, which is off."),
    honoured("repetition_penalty", "Not OpenAI's. Over 0, up to 10; default 1, which is off."),
    honoured("min_tokens", "Not OpenAI's. No stop token is drawn before so many tokens."),
    honoured("stop_token_ids", "Not OpenAI's. Up to 64 token ids that end the output."),
    honoured("ignore_eos", "Not OpenAI's. Go on past the model's own end token."),
)
_NO_TOOLS = "The models served call no tools."
_TEXT_ONLY = "Text only."
_HOSTED = "A service of OpenAI's that has no counterpart here."

CHAT = (
    _MODEL,
    honoured("messages", "1 to 2048 messages; see below.", nullable=False),
    *_SAMPLING,
    honoured("max_completion_tokens", _MAX_TOKENS, nullable=False),
    honoured(
        "max_tokens",
        "The old name of `max_completion_tokens`; send one. null is refused.",
        nullable=False,
    ),
    honoured("logprobs", "Boolean."),
    honoured("top_logprobs", "0 to 20, only with `logprobs`."),
    *_EXTENSIONS,
    ignored("metadata", "Nothing is stored."),
    ignored("prompt_cache_key", "Prefixes are found by content."),
    honoured("safety_identifier", f"{_END_USER} Goes before `user`."),
    ignored("service_tier", "The tenant's weight decides."),
    refused("audio", _TEXT_ONLY),
    refused("function_call", _NO_TOOLS, "none", "auto"),
    refused("functions", _NO_TOOLS, []),
    refused("modalities", _TEXT_ONLY, ["text"]),
    refused("moderation", _HOSTED),
    refused("parallel_tool_calls", _NO_TOOLS, True, False),
    refused("prediction", "There is no predicted output."),
    refused("prompt_cache_options", "The prefix cache has no options of the caller's."),
    refused("prompt_cache_retention", "Cached prefixes are kept while there is room."),
    refused("reasoning_effort", "The models served do not reason apart.", "none"),
    refused("response_format", "There is no structured output yet.", {"type": "text"}),
    refused("store", "Nothing is stored.", False),
    refused("tool_choice", _NO_TOOLS, "none", "auto"),
    refused("tools", _NO_TOOLS, []),
    refused("verbosity", "Ask for it in the prompt.", "medium"),
    refused("web_search_options", _HOSTED),
)

COMPLETIONS = (
    _MODEL,
    honoured(
        "prompt",
        "A string or a list of token ids; a list of just one of these passes too. Several prompts"
        " need several calls.",
        nullable=False,
    ),
    *_SAMPLING,
    honoured("max_tokens", _MAX_TOKENS + " Default 16, as OpenAI's.", nullable=False),
    honoured("logprobs", "0 to 5 alternatives for each token."),
    *_EXTENSIONS,
    refused("best_of", "Ask for `n` choices and pick.", 1),
    refused("echo", "The prompt is not repeated.", False),
    refused("suffix", "The models served do not fill in.", ""),
)

MESSAGE = (
    honoured(
        "role",
        "`system`, `developer` (the same as `system`), `user` or `assistant`.",
        nullable=False,
    ),
    honoured(
        "content",
        'A string, or a list of parts `{"type": "text", "text": …}`, which are joined. Parts of'
        " other types (`image_url`, `input_audio`, `file`, `refusal`) are refused.",
        nullable=False,
    ),
    ignored("name", "Chat templates have no place for it."),
    ignored("annotations", "Part of an answer that is sent back."),
    refused("audio", _TEXT_ONLY),
    refused("function_call", _NO_TOOLS),
    refused("refusal", "There are no refusals to repeat."),
    refused("tool_call_id", _NO_TOOLS),
    refused("tool_calls", _NO_TOOLS, []),
)

STREAM_OPTIONS = (
    honoured("include_usage", "A last chunk without choices brings the usage."),
    ignored("include_obfuscation", "Chunks are not padded."),
)

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

This page is generated from `gateway/openai_parameters.py`."""


def render_document() -> str:
    """The text of `docs/openai-parameters.md`."""
    return render_page(_INTRODUCTION, _TABLES)


if __name__ == "__main__":
    sys.stdout.write(render_document())
