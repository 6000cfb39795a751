"""Real tokenizer files, small enough to read by eye."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
HIDDEN, FEED_FORWARD, HEADS = 8, 16, 2


def write_gguf(
    path: Path,
    *,
    tokens: Sequence[str],
    kinds: Sequence[int],
    kind: str = "gpt2",
    pre: str | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: dict[str, int] | None = None,
    flags: dict[str, bool] | None = None,
    template: str | None = None,
    weights: bool = False,
) -> Path:
    """Write a GGUF file with this tokenizer and, if asked, a one-layer model."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(kinds))
    if merges is not None:
        writer.add_token_merges(list(merges))
    if scores is not None:
        writer.add_token_scores(list(scores))
    for name, token in (ids or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    for name, flag in (flags or {}).items():
        writer.add_bool(f"tokenizer.ggml.{name}", flag)
    if template is not None:
        writer.add_chat_template(template)
    if weights:
        _add_weights(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_weights(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    writer.add_block_count(1)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {
        "token_embd": (vocabulary, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN, HIDDEN),
        "blk.0.attn_v": (HIDDEN, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_up": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FEED_FORWARD),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape, dtype=np.float32))


def byte_letters() -> list[str]:
    """The 256 one-byte pieces of byte-level BPE, in the order of their bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    return [letters[byte] for byte in range(256)]


CONTROL_TOKENS = ["<|end|>", "<|end", "<|turn|>"]
CHAT = (
    "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)


def write_byte_model(path: Path, **changes) -> Path:
    """A byte-level model: three control tokens, one ordinary added token, 256 bytes, two merges."""
    letters = byte_letters()
    tokens = [*CONTROL_TOKENS, "<think>", *letters, "he", "hel"]
    kinds = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * 258
    settings = {
        "tokens": tokens,
        "kinds": kinds,
        "pre": "gpt-2",
        "merges": ["h e", "he l"],
        "ids": {"eos": 0, "bos": 2},
        "template": CHAT,
    }
    return write_gguf(path, **(settings | changes))
