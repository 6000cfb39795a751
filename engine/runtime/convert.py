"""GGUF to a Hugging Face folder, once, so that later starts read memory-mapped safetensors."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.runtime.gguf_weights import GgufSource
from engine.runtime.store import ORIGIN
from engine.runtime.weights import weight_names


def convert_weights(gguf: Path, out: Path) -> None:
    """Write `config.json` and `model.safetensors` (bfloat16) of the model in `gguf` into `out`.

    The folder loads in transformers too. The file itself goes with it, for a CPU can multiply with
    weights of few bits as they are. Raises UnsupportedModelError, WeightsError or OSError.
    """
    source = GgufSource(gguf)
    tensors = {
        name: source.get(name).to(torch.bfloat16).contiguous()
        for name in weight_names(source.config)
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = source.config.to_hf() | {"torch_dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    # It comes out for this user's eyes alone, whatever the umask lets others read.
    (out / "model.safetensors").chmod((out / "config.json").stat().st_mode & 0o777)
    try:
        (out / ORIGIN).hardlink_to(gguf)
    except OSError:  # another file system, or one without links
        shutil.copyfile(gguf, out / ORIGIN)
