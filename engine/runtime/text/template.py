"""Chat templates: Jinja programs that write a conversation the way the model has learnt it."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from engine.runtime.text.errors import ChatTemplateError

MAX_RENDERED = 16 * 1024 * 1024  # characters; far above any context length
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ChatTemplate:
    """One model's template, run in a sandbox that reaches no Python internals.

    It sees what it would see in Hugging Face transformers: `messages`, `add_generation_prompt`, the
    special tokens by name, `raise_exception`, `strftime_now`, a plain `tojson`. The template comes
    with the model: it is kept away from the process and its output is bounded, but like the weights
    it is the operator's choice, and one that loops forever is not interrupted.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Write the conversation, ready for the assistant's turn. Raises ChatTemplateError."""
        for message in messages:
            # Templates build control tokens out of roles, so a role is never free text.
            if not _ROLE.fullmatch(message.get("role", "")):
                raise ChatTemplateError(
                    "the role of a message must be a word of letters, digits, '_' and '-'"
                )
        template = self._compiled
        pieces: list[str] = []
        length = 0
        try:
            for piece in template.generate(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            ):
                length += len(piece)
                if length > MAX_RENDERED:
                    raise ChatTemplateError(
                        f"the rendered conversation is longer than {MAX_RENDERED} characters"
                    )
                pieces.append(piece)
        except ChatTemplateError:
            raise
        except Exception as error:  # a template is a program: it can fail in any way
            raise ChatTemplateError(
                f"the model's chat template fails on these messages: {_one_line(error)}"
            ) from error
        return "".join(pieces)

    @cached_property
    def _compiled(self) -> Any:
        # Not at import and not at load: GPU hosts that never render a chat lack jinja2.
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            template = environment.from_string(self._source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the model's chat template is not valid Jinja: {_one_line(error)}"
            ) from error
        # Every rendering copies them, and Jinja's chain of maps is slow to copy.
        template.globals = dict(template.globals)
        return template


def _raise_exception(message: object) -> None:
    raise ChatTemplateError(f"the model's chat template refuses these messages: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
