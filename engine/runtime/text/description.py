"""What a `tokenizer.json` must hold to be understood here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.runtime.text.errors import CodecError


def check_description(content: dict[str, Any], path: Path) -> None:
    """Raise CodecError, which names `path` and the field, for what is no BPE tokenizer."""
    model = content.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise CodecError(f"{path}: the tokenizer's model must be BPE, not {kind}")
    for field, sound in _fields(content, model):
        if not sound:
            raise CodecError(f"{path}: '{field}' does not hold what a BPE tokenizer has there")


def _fields(content: dict[str, Any], model: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    vocabulary, merges = model.get("vocab"), model.get("merges")
    yield (
        "model.vocab",
        isinstance(vocabulary, dict) and all(isinstance(i, int) for i in vocabulary.values()),
    )
    yield "model.merges", isinstance(merges, list) and all(map(_is_merge, merges))
    added = content.get("added_tokens")
    yield "added_tokens", isinstance(added, list) and all(map(_is_added, added))
    decoder = content.get("decoder")
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else decoder
    yield "decoder", steps is None or (isinstance(steps, list) and all(map(_is_step, steps)))


def _is_merge(value: object) -> bool:
    pair = value.split(" ") if isinstance(value, str) else value
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(s, str) for s in pair)


def _is_added(value: object) -> bool:
    kinds = {"id": int, "content": str, "special": bool, "normalized": bool}
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind) for name, kind in kinds.items()
    )


def _is_step(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)
