"""Reads and writes the tokenizer files of a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

from engine.runtime.text.errors import CodecError
from engine.runtime.text.source import TokenizerSource

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_folder(folder: Path) -> TokenizerSource:
    """Read tokenizer, chat template, end tokens and context length. Raises CodecError."""
    if not (folder / "tokenizer.json").is_file():
        raise CodecError(f"{folder} has no tokenizer.json, so its tokenizer cannot be built")
    tokenizer = _json(folder / "tokenizer.json")
    settings = _json(folder / "tokenizer_config.json")
    special = {
        name: text
        for name in _SPECIAL_TOKENS
        if (text := _token_text(settings.get(name))) is not None
    }
    config = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json")
    ends = _ids(generation.get("eos_token_id")) | _ids(config.get("eos_token_id"))
    if "eos_token" in special:
        ends |= _ids(_token_id(tokenizer, special["eos_token"]))
    return TokenizerSource(
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, settings),
        special_tokens=special,
        eos_ids=frozenset(ends),
        context_length=config.get("max_position_embeddings"),
    )


def write_folder(source: TokenizerSource, folder: Path) -> None:
    """Write the files that read_folder() and transformers' AutoTokenizer read.

    The context length stands in config.json, which belongs to the weights.
    """
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **source.special_tokens,
    }
    if source.chat_template is not None:
        settings["chat_template"] = source.chat_template
    if source.context_length is not None:
        settings["model_max_length"] = source.context_length
    generation: dict[str, Any] = {"eos_token_id": sorted(source.eos_ids)}
    for name in ("bos_token", "pad_token"):
        if name in source.special_tokens:
            token = _token_id(source.tokenizer, source.special_tokens[name])
            generation[f"{name}_id"] = token
    _write(folder / "tokenizer.json", source.tokenizer)
    _write(folder / "tokenizer_config.json", settings)
    _write(folder / "generation_config.json", generation)


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        return next((each["template"] for each in template if each["name"] == "default"), None)
    return template


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CodecError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CodecError(f"{path} must hold a JSON object")
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def _token_text(value: str | dict[str, Any] | None) -> str | None:
    return value["content"] if isinstance(value, dict) else value


def _token_id(tokenizer: dict[str, Any], text: str) -> int | None:
    added = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    token: int | None = added.get(text, tokenizer["model"]["vocab"].get(text))
    return token


def _ids(value: int | list[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)
