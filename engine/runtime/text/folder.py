"""Reads and writes the tokenizer files of a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

from engine.runtime.text.description import check_description
from engine.runtime.text.errors import CodecError
from engine.runtime.text.source import TokenizerSource

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_folder(folder: Path) -> TokenizerSource:
    """Read tokenizer, chat template, end tokens and context length. Raises CodecError."""
    if not (folder / "tokenizer.json").is_file():
        raise CodecError(f"{folder} has no tokenizer.json, so its tokenizer cannot be built")
    tokenizer = _json(folder / "tokenizer.json")
    check_description(tokenizer, folder / "tokenizer.json")
    settings = _json(folder / "tokenizer_config.json")
    special = {
        name: text
        for name in _SPECIAL_TOKENS
        if (text := _token_text(folder, name, settings.get(name))) is not None
    }
    config = _json(folder / "config.json")
    ends = _ids(folder / "config.json", config)
    ends |= _ids(folder / "generation_config.json", _json(folder / "generation_config.json"))
    end = _token_id(tokenizer, special["eos_token"]) if "eos_token" in special else None
    if end is not None:
        ends.add(end)
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
        try:
            return own_file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CodecError(f"{own_file} is not UTF-8: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        named = (each for each in template if isinstance(each, dict))
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise CodecError(f"{folder / 'tokenizer_config.json'}: 'chat_template' must be text")
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


def _token_text(folder: Path, name: str, value: object) -> str | None:
    if value is None:
        return None
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise CodecError(f"{folder / 'tokenizer_config.json'}: '{name}' must be text or a token")
    return text


def _token_id(tokenizer: dict[str, Any], text: str) -> int | None:
    added = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    token: int | None = added.get(text, tokenizer["model"]["vocab"].get(text))
    return token


def _ids(path: Path, content: dict[str, Any]) -> set[int]:
    value = content.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise CodecError(f"{path}: 'eos_token_id' must be a token id or a list of them")
    return set(ids)
